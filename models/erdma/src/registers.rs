//! The first page of BAR 0: registers.
//!
//! Layout: erdma_hw.h, `ERDMA_REGS_*`, `ERDMA_CMDQ_*_REG`. The driver writes the addresses of its first queues, sets
//! INIT, and waits until the device reports that this is done (erdma_cmdq.c: `erdma_cmdq_init`).

/// Bytes of BAR 0: the power of two that holds all doorbells.
pub const BAR0_BYTES: u64 = 512 << 10;

/// Bytes of the registers.
pub(crate) const PAGE: u64 = 4096;

pub(crate) const VERSION: u64 = 0x0;
pub(crate) const CONTROL: u64 = 0x10;
pub(crate) const DEVICE_STATUS: u64 = 0x14;
pub(crate) const MAC_LOW: u64 = 0x18;
pub(crate) const MAC_HIGH: u64 = 0x1c;
pub(crate) const COMMAND_QUEUE: u64 = 0x20;
pub(crate) const COMMAND_COMPLETIONS: u64 = 0x28;
pub(crate) const COMMAND_DEPTH: u64 = 0x30;
pub(crate) const COMMAND_EVENTS_DEPTH: u64 = 0x34;
pub(crate) const COMMAND_EVENTS: u64 = 0x38;
pub(crate) const ASYNC_EVENTS: u64 = 0x40;
pub(crate) const ASYNC_EVENTS_DEPTH: u64 = 0x48;
pub(crate) const ASYNC_EVENTS_DOORBELL: u64 = 0x50;
/// The driver also writes its doorbells here; a device that sees all doorbells does not need them.
const DOORBELL_RECORDS: std::ops::Range<u64> = 0x60..0x80;
pub(crate) const STATISTICS: std::ops::Range<u64> = 0x80..0xe8;
/// One doorbell of 8 bytes for each completion event queue; the first is the command queue's.
pub(crate) const EVENT_DOORBELLS: std::ops::Range<u64> = 0x100..0x200;
pub(crate) const COMMAND_DOORBELL: u64 = 0x200;
pub(crate) const COMMAND_COMPLETIONS_DOORBELL: u64 = 0x300;
pub(crate) const SEND_DOORBELLS: std::ops::Range<u64> = 0x1000..0x61000;
pub(crate) const RECEIVE_DOORBELLS: std::ops::Range<u64> = 0x61000..0x79000;
pub(crate) const COMPLETION_DOORBELLS: std::ops::Range<u64> = 0x79000..0x7a000;

pub(crate) const CONTROL_RESET: u32 = 1;
pub(crate) const CONTROL_INIT: u32 = 2;
pub(crate) const STATUS_RESET_DONE: u32 = 1;
pub(crate) const STATUS_INIT_DONE: u32 = 2;

/// The registers. All others read as 0: among them the protocol (iWARP) and the groups of direct
/// requests (none, so the driver does without).
pub(crate) struct Registers {
    bytes: [u8; PAGE as usize],
}

impl Registers {
    pub(crate) fn new(mac: [u8; 6]) -> Registers {
        let mut registers = Registers { bytes: [0; PAGE as usize] };
        registers.set(VERSION, 1);
        let [a, b, c, d, e, f] = mac;
        // The driver takes the address from the high bytes of the number downwards (erdma_main.c).
        registers.set(MAC_LOW, u32::from_be_bytes([c, d, e, f]));
        registers.set(MAC_HIGH, u32::from_be_bytes([0, 0, a, b]));
        registers
    }

    /// Everything that the driver has written is gone.
    pub(crate) fn reset(&mut self) {
        let kept = [VERSION, MAC_LOW, MAC_HIGH].map(|at| (at, self.get(at)));
        self.bytes.fill(0);
        kept.into_iter().for_each(|(at, value)| self.set(at, value));
        self.set(DEVICE_STATUS, STATUS_RESET_DONE);
    }

    pub(crate) fn get(&self, at: u64) -> u32 {
        crate::bits::u32_at(&self.bytes, at as usize)
    }

    pub(crate) fn set(&mut self, at: u64, value: u32) {
        self.bytes[at as usize..][..4].copy_from_slice(&value.to_le_bytes());
    }

    /// An address in two registers, the low one first.
    pub(crate) fn address(&self, at: u64) -> u64 {
        crate::bits::u64_at(&self.bytes, at as usize)
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        let from = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..at.checked_add(into.len())?));
        match from {
            Some(from) => into.copy_from_slice(from),
            None => into.fill(0),
        }
    }

    /// The driver writes a register. The device's own registers keep their values.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = at.saturating_add(bytes.len() as u64);
        let writable = [COMMAND_QUEUE..ASYNC_EVENTS_DEPTH + 4, DOORBELL_RECORDS];
        if writable.iter().any(|range| range.contains(&at) && end <= range.end) {
            self.bytes[at as usize..end as usize].copy_from_slice(bytes);
        }
    }
}
