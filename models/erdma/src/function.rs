//! A PCI function: its registers and doorbells, and the device behind them.

use netacc_device::Instant;

use crate::bits::bits;
use crate::command_queue::CommandQueue;
use crate::completions::CompletionQueue;
use crate::context::{Context, Effect, COMMON_VECTOR};
use crate::counters::Counters;
use crate::device::{Device, COMMAND_EVENT_QUEUE};
use crate::events::{AsyncEvent, EventQueue};
use crate::host::Host;
use crate::pages::{Pages, Ring};
use crate::queue_pair::{Connection, State};
use crate::registers::{self, Registers};
use crate::settings::{Driver, Flushes, Settings};
use crate::status::Status;
use crate::wire::{Message, Reply};

/// Entries of the longest command queue, as a power of two: the driver counts blocks in 16 bits.
const MAX_LOG_COMMANDS: u32 = 15;

pub(crate) struct Function<H> {
    pub(crate) cx: Context<H>,
    driver: Driver,
    registers: Registers,
    /// Present while the driver has set INIT.
    device: Option<Box<Device>>,
}

impl<H: Host> Function<H> {
    pub(crate) fn new(host: H, mac: [u8; 6], driver: Driver) -> Function<H> {
        let cx =
            Context { host, settings: Settings::default(), counters: Counters::default(), effects: Default::default() };
        Function { cx, driver, registers: Registers::new(mac), device: None }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.cx.counters
    }

    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.cx.effects.pop_front()
    }

    /// Everything is as after power-on, except the counters and the settings.
    pub(crate) fn reset(&mut self) {
        self.registers.reset();
        self.device = None;
        self.cx.effects.clear();
        self.cx.effects.push_back(Effect::Reset);
    }

    /// A processor reads from BAR 0. Doorbells read as 0.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        if registers::STATISTICS.contains(&offset) {
            let value = self.cx.counters.register(offset & !7).to_le_bytes();
            let from = usize::try_from(offset & 7).ok().and_then(|at| value.get(at..at + into.len()));
            return match from {
                Some(from) => into.copy_from_slice(from),
                None => into.fill(0),
            };
        }
        self.registers.read(offset, into);
    }

    /// A processor writes to BAR 0. A write to an address without a register or doorbell is ignored.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if offset == registers::CONTROL {
            return self.control(crate::bits::u32_at(bytes, 0));
        }
        // A doorbell is one store of 8 bytes; half of one names no queue.
        if let Ok(value) = <[u8; 8]>::try_from(bytes) {
            self.doorbell(offset, u64::from_le_bytes(value));
        }
        self.registers.write(offset, bytes);
    }

    fn control(&mut self, value: u32) {
        if value & registers::CONTROL_RESET != 0 {
            self.reset();
        }
        if value & registers::CONTROL_INIT != 0 && self.device.is_none() {
            self.device = self.initialised().map(Box::new);
            if self.device.is_some() {
                self.registers.set(registers::DEVICE_STATUS, registers::STATUS_INIT_DONE);
            }
        }
    }

    /// The device that the registers describe. `None`: they describe none, and INIT is never done.
    fn initialised(&self) -> Option<Device> {
        let registers = &self.registers;
        let depth = registers.get(registers::COMMAND_DEPTH);
        let log_depth =
            depth.is_power_of_two().then(|| depth.trailing_zeros()).filter(|log| *log <= MAX_LOG_COMMANDS)?;
        // Both queues are one piece of memory: a page as large as they are, and no smaller than the smallest.
        let ring = |at| Ring::new(Pages::new(vec![registers.address(at)], (log_depth + 5).max(12))?, 0, log_depth);
        let events = |at, depth| EventQueue::with_depth(registers.address(at), registers.get(depth), COMMON_VECTOR);
        let completions = CompletionQueue::new(ring(registers::COMMAND_COMPLETIONS)?, COMMAND_EVENT_QUEUE);
        Some(Device::new(
            CommandQueue::new(ring(registers::COMMAND_QUEUE)?, completions),
            events(registers::COMMAND_EVENTS, registers::COMMAND_EVENTS_DEPTH)?,
            events(registers::ASYNC_EVENTS, registers::ASYNC_EVENTS_DEPTH)?,
        ))
    }

    fn doorbell(&mut self, offset: u64, value: u64) {
        let Some(device) = &mut self.device else { return };
        let cx = &mut self.cx;
        let known = match offset {
            registers::ASYNC_EVENTS_DOORBELL => {
                if device.async_events.handle_doorbell(value as u16) {
                    cx.raise(device.async_events.vector());
                }
                true
            }
            at if registers::EVENT_DOORBELLS.contains(&at) => {
                let queue = device.event_queues.get_mut(&(((at - registers::EVENT_DOORBELLS.start) / 8) as u16));
                queue.map(|queue| queue.handle_doorbell(value as u16).then(|| cx.raise(queue.vector()))).is_some()
            }
            registers::COMMAND_DOORBELL => {
                let posted = device.commands.post(value as u16);
                if posted {
                    cx.effects.push_back(Effect::Commands);
                }
                posted
            }
            registers::COMMAND_COMPLETIONS_DOORBELL => {
                if device.commands.completions.handle_doorbell(value) {
                    device.report_command(cx);
                }
                true
            }
            at if registers::SEND_DOORBELLS.contains(&at) => {
                let qpn = bits(value, 51, 32) as u32;
                send_doorbell(device, cx, qpn, value as u16)
            }
            at if registers::RECEIVE_DOORBELLS.contains(&at) => {
                receive_doorbell(device, cx, (value >> 32) as u32, value as u16)
            }
            at if registers::COMPLETION_DOORBELLS.contains(&at) => {
                let cqn = bits(value, 55, 32) as u32;
                let news = device.completion_queues.get_mut(&cqn).map(|queue| queue.handle_doorbell(value));
                if news == Some(true) {
                    device.report_completion(cx, cqn);
                }
                news.is_some()
            }
            // Registers.
            _ => true,
        };
        cx.counters.doorbells_refused += u64::from(!known);
    }

    pub(crate) fn run_commands(&mut self, now: Instant) {
        if let Some(device) = &mut self.device {
            device.run_commands(&mut self.cx, self.driver, now);
        }
    }

    /// The time at which the command in front is done.
    pub(crate) fn commands_due(&self) -> Option<Instant> {
        let commands = &self.device.as_ref()?.commands;
        commands.done_at.filter(|_| !self.cx.settings.command_mute)
    }

    /// The connection of a queue pair that is ready, and its own cookie.
    pub(crate) fn connection(&self, qpn: u32) -> Option<(Connection, u32)> {
        let qp = self.device.as_ref()?.queue_pairs.get(&qpn)?;
        match qp.state {
            State::Ready(connection) => Some((connection, qp.cookie)),
            State::Idle | State::Stopped => None,
        }
    }

    /// Whether a queue pair is ready and has requests that are not done.
    pub(crate) fn has_work(&self, qpn: u32) -> bool {
        let qp = self.device.as_ref().and_then(|device| device.queue_pairs.get(&qpn));
        qp.is_some_and(|qp| qp.is_ready() && !qp.send.is_idle())
    }

    pub(crate) fn next_message(&mut self, qpn: u32) -> Option<Message> {
        if self.cx.settings.stall_transmit {
            return None;
        }
        self.device.as_mut()?.next_message(&mut self.cx, qpn)
    }

    pub(crate) fn deliver(&mut self, qpn: u32, message: Message) {
        if let Some(device) = &mut self.device {
            device.deliver(&mut self.cx, qpn, message);
        }
    }

    pub(crate) fn handle_next(&mut self, qpn: u32) -> Option<(u64, Reply)> {
        self.device.as_mut()?.handle_next(&mut self.cx, qpn)
    }

    pub(crate) fn handle_reply(&mut self, qpn: u32, id: u64, reply: Reply) {
        if let Some(device) = &mut self.device {
            device.handle_reply(&mut self.cx, qpn, id, reply);
        }
    }

    pub(crate) fn give_up(&mut self, qpn: u32, status: Status) {
        if let Some(device) = &mut self.device {
            device.give_up(&mut self.cx, qpn, status);
        }
    }

    /// Reports an event as if it had happened; a queue pair fails with events of its own. `false`: there is no such
    /// queue.
    pub(crate) fn inject(&mut self, event: AsyncEvent, number: u32) -> bool {
        let Some(device) = &mut self.device else { return false };
        if event == AsyncEvent::CqError {
            let known = device.completion_queues.contains_key(&number);
            if known {
                device.report(&mut self.cx, event, number);
            }
            return known;
        }
        let known = device.queue_pairs.contains_key(&number);
        device.fail(&mut self.cx, number, event, false);
        known
    }

    /// Numbers of the queue pairs.
    pub(crate) fn queue_pairs(&self) -> Vec<u32> {
        self.device.as_ref().map_or_else(Vec::new, |device| device.queue_pairs.keys().copied().collect())
    }

    /// Numbers of the completion queues.
    pub(crate) fn completion_queues(&self) -> Vec<u32> {
        self.device.as_ref().map_or_else(Vec::new, |device| device.completion_queues.keys().copied().collect())
    }
}

fn send_doorbell(device: &mut Device, cx: &mut Context<impl Host>, qpn: u32, posted: u16) -> bool {
    let Some(qp) = device.queue_pairs.get_mut(&qpn) else { return false };
    if qp.send.post(posted).is_err() {
        device.fail(cx, qpn, AsyncEvent::QpFatal, false);
        return false;
    }
    posted_to(device, cx, qpn, Effect::Send(qpn));
    true
}

fn receive_doorbell(device: &mut Device, cx: &mut Context<impl Host>, qpn: u32, posted: u16) -> bool {
    let Some(qp) = device.queue_pairs.get_mut(&qpn) else { return false };
    if qp.receive.post(posted).is_err() {
        device.fail(cx, qpn, AsyncEvent::QpFatal, false);
        return false;
    }
    posted_to(device, cx, qpn, Effect::Receive(qpn));
    true
}

/// There is more work on a queue pair. On a stopped one it is flushed at once, or never.
fn posted_to(device: &mut Device, cx: &mut Context<impl Host>, qpn: u32, effect: Effect) {
    let Some(qp) = device.queue_pairs.get(&qpn) else { return };
    match qp.state {
        State::Ready(_) => cx.effects.push_back(effect),
        State::Stopped if cx.settings.flushes == Flushes::All => device.flush(cx, qpn),
        State::Idle | State::Stopped => {}
    }
}
