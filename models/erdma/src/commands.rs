//! The commands: the effect of each, and its refusals.
//!
//! Layouts: erdma_hw.h, `struct erdma_cmdq_*_req`, `struct erdma_cmdq_query_stats_resp`; numbers: `enum
//! CMDQ_RDMA_OPCODE`, `enum CMDQ_COMMON_OPCODE`. The driver reads every status but 0 as EIO, so a refusal only harms
//! the caller.

use netacc_device::Instant;
use netacc_rnic::Command as Timed;

use crate::bits::bits;
use crate::budget::Exhausted;
use crate::command_queue::{blocks, Command, MAX_BYTES};
use crate::completions::CompletionQueue;
use crate::context::{Context, Effect};
use crate::device::{Device, COMMAND_EVENT_QUEUE};
use crate::events::EventQueue;
use crate::host::Host;
use crate::pages::{Pages, Ring, MAX_PAGES, MIN_SHIFT};
use crate::queue_pair::{Connection, QueuePair, ReceiveQueue, SendQueue, State};
use crate::region::{FastTable, Mapping, Range, Region, Rights};
use crate::settings::{Driver, Flushes};
use crate::status::CommandStatus;

mod number {
    pub(super) const QUERY_DEVICE: (u8, u8) = (0, 0);
    pub(super) const CREATE_QP: (u8, u8) = (0, 1);
    pub(super) const DESTROY_QP: (u8, u8) = (0, 2);
    pub(super) const MODIFY_QP: (u8, u8) = (0, 3);
    pub(super) const CREATE_CQ: (u8, u8) = (0, 4);
    pub(super) const DESTROY_CQ: (u8, u8) = (0, 5);
    pub(super) const REFLUSH: (u8, u8) = (0, 6);
    pub(super) const REG_MR: (u8, u8) = (0, 8);
    pub(super) const DEREG_MR: (u8, u8) = (0, 9);
    pub(super) const CREATE_EQ: (u8, u8) = (1, 0);
    pub(super) const DESTROY_EQ: (u8, u8) = (1, 1);
    pub(super) const QUERY_FW_INFO: (u8, u8) = (1, 2);
    pub(super) const CONF_MTU: (u8, u8) = (1, 3);
    pub(super) const GET_STATS: (u8, u8) = (1, 4);
    pub(super) const CONF_DEVICE: (u8, u8) = (1, 5);
    pub(super) const SET_RETRANS_NUM: (u8, u8) = (1, 7);
    pub(super) const SET_EXT_ATTR: (u8, u8) = (1, 10);
    pub(super) const GET_EXT_ATTR: (u8, u8) = (1, 11);
}

/// States of a queue pair in MODIFY_QP (erdma_verbs.h: `enum erdma_qp_state`).
mod state {
    pub(super) const RTS: u32 = 2;
    pub(super) const CLOSING: u32 = 3;
    pub(super) const TERMINATE: u32 = 4;
    pub(super) const ERROR: u32 = 5;
}

/// Kinds of regions (erdma_verbs.h: `ERDMA_MR_TYPE_*`).
mod region_kind {
    pub(super) const NORMAL: u32 = 0;
    pub(super) const FAST: u32 = 1;
    pub(super) const PHYSICAL: u32 = 2;
}

/// Completion event queues that there are doorbells for.
const MAX_EVENT_QUEUES: u8 = 32;

/// Vectors (`ERDMA_NUM_MSIX_VEC`).
const VECTORS: u8 = 32;

/// Entries of a send queue, as a power of two: the driver counts blocks in 16 bits.
const MAX_LOG_BLOCKS: u32 = 15;

/// The beginning of every answer to a query (erdma_verbs.c: `erdma_query_hw_stats`).
const ANSWER_MAGIC: u16 = 0x5566;

/// The difference between a queue pair's cookie and its number. Arbitrary: a cookie must not be mistaken for a queue
/// pair's number.
const COOKIE: u32 = 0xc000_0000;

type Results = [u64; 2];

impl Device {
    /// Runs the commands that are due.
    pub(crate) fn run_commands(&mut self, cx: &mut Context<impl Host>, driver: Driver, now: Instant) {
        while self.commands.posted != self.commands.fetched && !cx.settings.command_mute {
            let Some(command) = self.front_command(cx) else {
                // The queue itself is not in memory: no answer can be written.
                self.commands.fetched = self.commands.posted;
                return;
            };
            let done_at = *self.commands.done_at.get_or_insert(now + time(cx, &command));
            if done_at > now {
                return;
            }
            self.commands.done_at = None;
            self.run_command(cx, driver, &command);
        }
    }

    /// The command in front; a malformed one takes all that was posted.
    fn front_command(&self, cx: &Context<impl Host>) -> Option<Command> {
        let index = self.commands.fetched;
        let posted = self.commands.posted.wrapping_sub(index);
        let mut bytes = vec![0; MAX_BYTES];
        self.commands.ring.read(&cx.host, u32::from(index), &mut bytes[..8]).ok()?;
        let blocks = blocks(crate::bits::u64_at(&bytes, 0)).min(posted);
        bytes.truncate(usize::from(blocks) * 32);
        self.commands.ring.read(&cx.host, u32::from(index), &mut bytes).ok()?;
        Some(Command { bytes, index, blocks })
    }

    fn run_command(&mut self, cx: &mut Context<impl Host>, driver: Driver, command: &Command) {
        let (status, results) = match self.execute(cx, driver, command) {
            Ok(results) => (CommandStatus::Success, results),
            Err(status) => (status, [0; 2]),
        };
        cx.counters.commands += 1;
        cx.counters.commands_refused += u64::from(status != CommandStatus::Success);
        self.commands.fetched = command.index.wrapping_add(command.blocks);
        let header = (command.kind().1, status.code());
        // Without memory for its completions the queue answers nothing.
        if let Ok(true) =
            self.commands.completions.push_command(&mut cx.host, header, u32::from(command.index), results)
        {
            self.report_command(cx);
        }
    }

    fn execute(
        &mut self,
        cx: &mut Context<impl Host>,
        driver: Driver,
        command: &Command,
    ) -> Result<Results, CommandStatus> {
        let limits = cx.settings.limits;
        if cx.settings.failing_commands.contains(&command.kind()) {
            return Err(CommandStatus::Injected);
        }
        match command.kind() {
            number::QUERY_DEVICE => {
                let first = u64::from(limits.log_max_cqe) << 40
                    | u64::from(limits.atomics) << 31
                    | u64::from(limits.log_max_recv_wr) << 16
                    | u64::from(limits.log_max_mr_size);
                // Congestion control 1; the driver only hands it back.
                return Ok([first, 1 << 28 | u64::from(limits.qp_blocks) << 16]);
            }
            number::QUERY_FW_INFO => return Ok([driver.firmware_version(cx.settings.limits.firmware_patch), 0]),
            number::CREATE_QP => return self.create_qp(cx, command),
            number::DESTROY_QP => self.destroy_qp(cx, command)?,
            number::MODIFY_QP => self.modify_qp(cx, command)?,
            number::CREATE_CQ => self.create_cq(cx, command)?,
            number::DESTROY_CQ => self.destroy_cq(command)?,
            number::REFLUSH => self.reflush(cx, command)?,
            number::REG_MR => self.register(cx, command)?,
            number::DEREG_MR => {
                let (index, key) = (command.field(8, 19, 0), command.field(8, 27, 20) as u8);
                self.regions.get(&index).filter(|region| region.key == key).ok_or(CommandStatus::Object)?;
                let region = self.regions.remove(&index);
                self.budget.give_pages(region.map_or(0, |region| region.mapping.pages()));
            }
            number::CREATE_EQ => self.create_eq(command)?,
            number::DESTROY_EQ => {
                let eqn = u16::from(command.byte(17));
                if eqn == COMMAND_EVENT_QUEUE || self.event_queues.remove(&eqn).is_none() {
                    return Err(CommandStatus::Object);
                }
            }
            number::GET_STATS => answer(cx, command, |counters| counters.statistics().map(u64::to_le_bytes).concat())?,
            // No attribute is offered, and none set: capabilities, values, and a count of delayed acknowledgements.
            number::GET_EXT_ATTR => answer(cx, command, |_| vec![0; 12])?,
            // The device has nothing that these could set, and no command reads the values back.
            number::CONF_MTU | number::CONF_DEVICE | number::SET_RETRANS_NUM | number::SET_EXT_ATTR => {}
            _ => return Err(CommandStatus::Unsupported),
        }
        Ok([0; 2])
    }

    fn create_eq(&mut self, command: &Command) -> Result<(), CommandStatus> {
        let (vector, eqn, log_depth) = (command.byte(16), command.byte(17), command.byte(18));
        if vector >= VECTORS || eqn >= MAX_EVENT_QUEUES {
            return Err(CommandStatus::Invalid);
        }
        if self.event_queues.contains_key(&u16::from(eqn)) {
            return Err(CommandStatus::Object);
        }
        let queue = EventQueue::new(command.u64(8), u32::from(log_depth), u16::from(vector));
        self.event_queues.insert(u16::from(eqn), queue.ok_or(CommandStatus::Invalid)?);
        Ok(())
    }

    fn create_cq(&mut self, cx: &mut Context<impl Host>, command: &Command) -> Result<(), CommandStatus> {
        let limits = cx.settings.limits;
        let (log_depth, cqn) = (command.field(8, 31, 24), command.field(8, 19, 0));
        let (count, event_queue) = (command.field(20, 31, 16), command.field(20, 9, 0) as u16);
        let address = u64::from(command.u32(12)) | u64::from(command.u32(16)) << 32;
        if cqn >= limits.max_cq_and_mr() || log_depth > u32::from(limits.log_max_cqe) {
            return Err(CommandStatus::Invalid);
        }
        let known = event_queue != COMMAND_EVENT_QUEUE && self.event_queues.contains_key(&event_queue);
        if !known || self.completion_queues.contains_key(&cqn) {
            return Err(CommandStatus::Object);
        }
        // The type is "table" for a single page, too, but the address is the page's (erdma_verbs.c: `create_cq_cmd`).
        let inline = count == 1 || command.field(20, 15, 15) == 0;
        let shift = command.field(8, 23, 20) + MIN_SHIFT;
        let pages = if inline { Pages::new(vec![address], shift) } else { table(cx, address, count, shift)? };
        let ring = pages.and_then(|pages| Ring::new(pages, u64::from(command.u32(32)), log_depth));
        let queue = CompletionQueue::new(ring.ok_or(CommandStatus::Invalid)?, event_queue);
        self.budget.take_pages(queue.pages())?;
        self.completion_queues.insert(cqn, queue);
        Ok(())
    }

    fn destroy_cq(&mut self, command: &Command) -> Result<(), CommandStatus> {
        let cqn = command.u32(8);
        let used = self.queue_pairs.values().any(|qp| qp.send.cqn == cqn || qp.receive.cqn == cqn);
        if used {
            return Err(CommandStatus::Object);
        }
        let queue = self.completion_queues.remove(&cqn).ok_or(CommandStatus::Object)?;
        self.budget.give_pages(queue.pages());
        Ok(())
    }

    fn create_qp(&mut self, cx: &mut Context<impl Host>, command: &Command) -> Result<Results, CommandStatus> {
        let limits = cx.settings.limits;
        let (log_blocks, qpn) = (command.field(8, 31, 20), command.field(8, 19, 0));
        let (log_receives, domain) = (command.field(12, 31, 20), command.field(12, 19, 0));
        let (send_cqn, receive_cqn) = (command.field(16, 23, 0), command.field(20, 23, 0));
        let fits = log_blocks <= MAX_LOG_BLOCKS && log_receives <= u32::from(limits.log_max_recv_wr.min(15));
        if !fits || qpn == 0 || qpn >= limits.max_qp() {
            return Err(CommandStatus::Invalid);
        }
        let known = [send_cqn, receive_cqn].iter().all(|cqn| self.completion_queues.contains_key(cqn));
        if !known || self.queue_pairs.contains_key(&qpn) {
            return Err(CommandStatus::Object);
        }
        let send = QpRing { pages: 16, address: 24, mtt: 40, more: 64 }.build(cx, command, log_blocks)?;
        let receive = QpRing { pages: 20, address: 32, mtt: 44, more: 88 }.build(cx, command, log_receives)?;
        let cookie = COOKIE | qpn;
        let send = SendQueue::new(send, send_cqn);
        let qp = QueuePair::new(domain, cookie, send, ReceiveQueue::new(receive, receive_cqn));
        self.budget.take_pages(qp.pages())?;
        self.queue_pairs.insert(qpn, qp);
        Ok([u64::from(cookie), 0])
    }

    fn destroy_qp(&mut self, cx: &mut Context<impl Host>, command: &Command) -> Result<(), CommandStatus> {
        let qpn = command.u32(8);
        let qp = self.queue_pairs.remove(&qpn).ok_or(CommandStatus::Object)?;
        self.budget.give_pages(qp.pages());
        self.budget.give_payload(qp.send.pending_bytes);
        self.feed(cx);
        if qp.state != State::Stopped {
            cx.effects.push_back(Effect::Disconnect { qpn, linger: false });
        }
        Ok(())
    }

    fn modify_qp(&mut self, cx: &mut Context<impl Host>, command: &Command) -> Result<(), CommandStatus> {
        let (to, qpn) = (command.field(8, 31, 24), command.field(8, 19, 0));
        let qp = self.queue_pairs.get_mut(&qpn).ok_or(CommandStatus::Object)?;
        match (to, qp.state) {
            (state::RTS, State::Idle) => {
                // Addresses and ports have the same form in the command as in packets; both ends only compare them.
                let connection = Connection {
                    local: (command.u32(20), command.field(24, 15, 0) as u16),
                    remote: (command.u32(16), command.field(24, 31, 16) as u16),
                    peer_cookie: command.u32(12),
                };
                qp.state = State::Ready(connection);
                cx.effects.push_back(Effect::Connect(qpn));
                Ok(())
            }
            (state::CLOSING | state::TERMINATE | state::ERROR, _) => {
                self.stop(cx, qpn, false);
                Ok(())
            }
            _ => Err(CommandStatus::Invalid),
        }
    }

    /// Flushes requests that the driver has posted to a queue pair that had stopped.
    fn reflush(&mut self, cx: &mut Context<impl Host>, command: &Command) -> Result<(), CommandStatus> {
        let qpn = command.u32(8);
        let qp = self.queue_pairs.get_mut(&qpn).ok_or(CommandStatus::Object)?;
        let posted = qp.send.post(command.u32(12) as u16).and_then(|()| qp.receive.post(command.u32(16) as u16));
        if posted.is_err() || qp.state != State::Stopped {
            return Err(CommandStatus::Invalid);
        }
        if cx.settings.flushes != Flushes::None {
            self.flush(cx, qpn);
        }
        Ok(())
    }

    fn register(&mut self, cx: &mut Context<impl Host>, command: &Command) -> Result<(), CommandStatus> {
        let limits = cx.settings.limits;
        let (index, key, valid) = (command.field(8, 19, 0), command.field(8, 27, 20) as u8, command.field(8, 31, 31));
        let (kind, rights) = (command.field(12, 7, 6), Rights::from_bits_truncate(command.field(12, 5, 1) as u8));
        let (shift, level, count) = (command.field(28, 31, 27), command.field(28, 21, 20), command.field(28, 19, 0));
        if index >= limits.max_cq_and_mr() {
            return Err(CommandStatus::Invalid);
        }
        if self.regions.contains_key(&index) {
            return Err(CommandStatus::Object);
        }
        let fast = (kind == region_kind::FAST).then(|| FastTable { address: command.u64(32), capacity: count });
        let mapping = match kind {
            region_kind::NORMAL => {
                let len = u64::from(command.u32(24));
                let inline = || (0..count as usize).map(|page| command.u64(32 + 8 * page)).collect();
                let pages = match level {
                    0 if count <= 4 => Pages::new(inline(), shift),
                    1 => table(cx, command.u64(32), count, shift)?,
                    _ => None,
                };
                let range = pages.and_then(|pages| Range::new(command.u64(16), len, pages));
                let permitted = valid == 1 && u128::from(len) <= 1u128 << limits.log_max_mr_size.min(64);
                Mapping::Range(range.filter(|_| permitted).ok_or(CommandStatus::Invalid)?)
            }
            region_kind::FAST => Mapping::Unmapped,
            region_kind::PHYSICAL if valid == 1 => Mapping::Physical,
            _ => return Err(CommandStatus::Invalid),
        };
        self.budget.take_pages(mapping.pages())?;
        let domain = command.field(12, 31, 12);
        self.regions.insert(index, Region { domain, key, rights, mapping, fast });
        Ok(())
    }
}

impl From<Exhausted> for CommandStatus {
    fn from(_: Exhausted) -> CommandStatus {
        CommandStatus::Exhausted
    }
}

/// The place in CREATE_QP of a ring's pages.
struct QpRing {
    pages: usize,
    address: usize,
    mtt: usize,
    /// Three more pages of a list without a table; only in later drivers' longer command.
    more: usize,
}

impl QpRing {
    fn build(&self, cx: &Context<impl Host>, command: &Command, log_depth: u32) -> Result<Ring, CommandStatus> {
        let shift = command.field(self.pages, 31, 28) + MIN_SHIFT;
        let (offset, count) = (command.u32(self.mtt) & 0xffff_f000, command.field(self.mtt, 11, 1));
        let address = command.u64(self.address);
        let pages = if command.field(self.mtt, 0, 0) == 0 {
            let more = (0..3).map(|page| command.u64(self.more + 8 * page));
            let addresses = std::iter::once(address).chain(more).take(count.min(4) as usize).collect();
            Pages::new(addresses, shift)
        } else {
            table(cx, address, count, shift)?
        };
        pages.and_then(|pages| Ring::new(pages, u64::from(offset), log_depth)).ok_or(CommandStatus::Invalid)
    }
}

/// Reads a table of pages.
fn table(cx: &Context<impl Host>, address: u64, count: u32, shift: u32) -> Result<Option<Pages>, CommandStatus> {
    Pages::read_table(&cx.host, address, count.min(MAX_PAGES), shift).map_err(|_| CommandStatus::Invalid)
}

/// Writes the answer to a query to the address that the driver gave.
fn answer(
    cx: &mut Context<impl Host>,
    command: &Command,
    content: impl FnOnce(&crate::counters::Counters) -> Vec<u8>,
) -> Result<(), CommandStatus> {
    let mut bytes = vec![0; 16];
    bytes[..2].copy_from_slice(&ANSWER_MAGIC.to_le_bytes());
    bytes.extend(content(&cx.counters));
    bytes.truncate(command.u32(24) as usize);
    cx.host.write(command.u64(16), &bytes).map_err(|_| CommandStatus::Invalid)
}

/// The duration of a command.
fn time(cx: &Context<impl Host>, command: &Command) -> std::time::Duration {
    let timed = match command.kind() {
        number::CREATE_QP => Some(Timed::CreateQueuePair),
        number::DESTROY_QP => Some(Timed::DestroyQueuePair),
        number::MODIFY_QP if command.field(8, 31, 24) == state::RTS => Some(Timed::ConnectQueuePair),
        number::REG_MR => Some(Timed::Register { bytes: bits(command.u64(24), 31, 0) }),
        number::DEREG_MR => Some(Timed::Deregister),
        _ => None,
    };
    cx.settings.command_delay + timed.map_or_else(Default::default, |timed| cx.settings.command_times.time(timed))
}
