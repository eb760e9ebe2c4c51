//! A device whose driver has set INIT: its queues and tables, and the operations that several parts need.

use std::collections::BTreeMap;

use crate::budget::Budget;
use crate::command_queue::CommandQueue;
use crate::completions::{Completion, CompletionQueue, Kind, QueueLost};
use crate::context::{Context, Effect};
use crate::events::{AsyncEvent, EventQueue};
use crate::host::Host;
use crate::queue_pair::{QueuePair, State};
use crate::region::{Access, Mapping, Region, Violation};
use crate::settings::Flushes;
use crate::status::Status;
use crate::work::{opcode, Header, MAX_BLOCKS};

/// The event queue of the command queue.
pub(crate) const COMMAND_EVENT_QUEUE: u16 = 0;

/// Bytes of the longest message. Arbitrary: it bounds the memory that one request takes here.
pub(crate) const MAX_MESSAGE: u64 = 1 << 30;

pub(crate) struct Device {
    pub(crate) commands: CommandQueue,
    pub(crate) async_events: EventQueue,
    /// By number; [`COMMAND_EVENT_QUEUE`] is always there.
    pub(crate) event_queues: BTreeMap<u16, EventQueue>,
    pub(crate) completion_queues: BTreeMap<u32, CompletionQueue>,
    pub(crate) queue_pairs: BTreeMap<u32, QueuePair>,
    /// By the number in their key.
    pub(crate) regions: BTreeMap<u32, Region>,
    pub(crate) budget: Budget,
}

impl Device {
    pub(crate) fn new(commands: CommandQueue, command_events: EventQueue, async_events: EventQueue) -> Device {
        Device {
            commands,
            async_events,
            event_queues: BTreeMap::from([(COMMAND_EVENT_QUEUE, command_events)]),
            completion_queues: BTreeMap::new(),
            queue_pairs: BTreeMap::new(),
            regions: BTreeMap::new(),
            budget: Budget::default(),
        }
    }

    /// Writes a completion, and an event if the queue is armed.
    pub(crate) fn complete(&mut self, cx: &mut Context<impl Host>, cqn: u32, completion: &Completion) {
        let Some(queue) = self.completion_queues.get_mut(&cqn) else { return };
        cx.counters.completions += 1;
        cx.counters.completions_failed += u64::from(completion.status != Status::Success.code());
        match queue.push(&mut cx.host, completion) {
            Ok(true) => self.report_completion(cx, cqn),
            Ok(false) => {}
            Err(QueueLost) => self.report(cx, AsyncEvent::CqError, cqn),
        }
    }

    /// Writes the event that a completion queue has new entries.
    pub(crate) fn report_completion(&mut self, cx: &mut Context<impl Host>, cqn: u32) {
        let Some(queue) = self.completion_queues.get_mut(&cqn) else { return };
        queue.disarm();
        let (number, produced) = (queue.event_queue, queue.produced());
        self.report_on(cx, number, cqn, produced);
    }

    /// Writes the event that the command queue has new completions.
    pub(crate) fn report_command(&mut self, cx: &mut Context<impl Host>) {
        self.commands.completions.disarm();
        self.report_on(cx, COMMAND_EVENT_QUEUE, 0, self.commands.completions.produced());
    }

    fn report_on(&mut self, cx: &mut Context<impl Host>, number: u16, cqn: u32, produced: u32) {
        let Some(events) = self.event_queues.get_mut(&number) else { return };
        match events.report_completion(&mut cx.host, cqn, produced) {
            Ok(()) => {
                cx.counters.events += 1;
                cx.raise(events.vector());
            }
            Err(_) => cx.counters.events_lost += 1,
        }
    }

    /// Reports an asynchronous event.
    pub(crate) fn report(&mut self, cx: &mut Context<impl Host>, event: AsyncEvent, number: u32) {
        match self.async_events.report(&mut cx.host, event, number) {
            Ok(()) => {
                cx.counters.events += 1;
                cx.raise(self.async_events.vector());
            }
            Err(_) => cx.counters.events_lost += 1,
        }
    }

    /// A queue pair fails: the driver gets an event, and the queue pair stops. `linger`: its last answer is in flight.
    pub(crate) fn fail(&mut self, cx: &mut Context<impl Host>, qpn: u32, event: AsyncEvent, linger: bool) {
        if self.queue_pairs.get(&qpn).is_none_or(|qp| qp.state == State::Stopped) {
            return;
        }
        cx.counters.qp_failures += 1;
        self.report(cx, event, qpn);
        self.stop(cx, qpn, linger);
    }

    /// A queue pair stops, and its posted requests are flushed.
    pub(crate) fn stop(&mut self, cx: &mut Context<impl Host>, qpn: u32, linger: bool) {
        let Some(qp) = self.queue_pairs.get_mut(&qpn).filter(|qp| qp.state != State::Stopped) else { return };
        qp.state = State::Stopped;
        qp.receive.waiting.clear();
        cx.effects.push_back(Effect::Disconnect { qpn, linger });
        if cx.settings.flushes != Flushes::None {
            self.flush(cx, qpn);
        }
    }

    /// Completes all requests and receives of a stopped queue pair as flushed.
    pub(crate) fn flush(&mut self, cx: &mut Context<impl Host>, qpn: u32) {
        let status = Status::Flushed.code();
        let flushed = |kind, opcode, index: u16| Completion {
            kind,
            opcode,
            status,
            index: u32::from(index),
            qpn,
            extra: [0; 4],
            len: 0,
            solicited: true,
        };
        while let Some(qp) = self.queue_pairs.get_mut(&qpn) {
            let (cqn, completion) = if !qp.receive.is_empty() {
                let index = qp.receive.consumed;
                qp.receive.consumed = index.wrapping_add(1);
                (qp.receive.cqn, flushed(Kind::Receive, opcode::RECEIVE, index))
            } else if let Some(pending) = qp.send.take_oldest() {
                self.budget.give_payload(u64::from(pending.len));
                if pending.reported {
                    continue;
                }
                (qp.send.cqn, flushed(Kind::Send, pending.opcode, pending.index))
            } else if qp.send.posted != qp.send.fetched {
                let index = qp.send.fetched;
                let mut first = [0; 8];
                let header = qp.send.ring.read(&cx.host, u32::from(index), &mut first).map(|()| Header::new(&first));
                let left = qp.send.posted.wrapping_sub(index);
                let blocks = header.map_or(left, |header| header.blocks().min(MAX_BLOCKS).min(left));
                qp.send.fetched = index.wrapping_add(blocks);
                (qp.send.cqn, flushed(Kind::Send, header.map_or(opcode::SEND, Header::opcode), index))
            } else {
                break;
            };
            self.complete(cx, cqn, &completion);
        }
        self.feed(cx);
    }

    /// Lets queue pairs continue that found no room for payload.
    pub(crate) fn feed(&mut self, cx: &mut Context<impl Host>) {
        cx.effects.extend(self.budget.take_fed().into_iter().map(Effect::Send));
    }

    /// The region of a key.
    pub(crate) fn region(&self, access: &Access) -> Result<&Region, Violation> {
        self.regions.get(&(access.key >> 8)).ok_or(Violation::Key)
    }

    /// Removes the mapping of a region that the kernel maps with requests. Other regions keep theirs: their key can
    /// only be taken back by a command.
    pub(crate) fn invalidate(&mut self, domain: u32, key: u32) -> Result<(), Violation> {
        let region =
            self.regions.get_mut(&(key >> 8)).filter(|region| region.key == key as u8).ok_or(Violation::Key)?;
        if region.domain != domain {
            return Err(Violation::Domain);
        }
        if region.fast.is_none() {
            return Err(Violation::Right);
        }
        let pages = region.mapping.pages();
        region.mapping = Mapping::Unmapped;
        self.budget.give_pages(pages);
        Ok(())
    }
}
