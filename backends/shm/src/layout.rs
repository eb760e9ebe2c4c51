//! The shape of a pair's segment. Only atomics: both processes write here at any time, and one of them may write false
//! values.
//!
//! A segment has two halves of equal size. The connecting side *receives* in half 0, the accepting side in half 1. A
//! half holds control structures ([`Half`]) and then memory for regions, which its receiver allocates.
//!
//! The writer of each part (R: the half's receiver, S: its sender):
//!
//! | word | writer | meaning |
//! | --- | --- | --- |
//! | `Cqe` | S | one message; valid for consumer index `c` while the low half of `tag` is `c + 1` |
//! | `RxLine::posted` | R | receives ever posted; S may produce while `produced != posted` |
//! | `RxLine::wake` | R, S clears `SLEEPER` | completion queue to report to, and whether a thread sleeps in a futex |
//! | `RxLine::futex` | both, only increments | what sleepers sleep on |
//! | `CloseLine::closed` | S, once | no more messages after those in the ring |
//! | `CqBitmap` | S sets, R clears (R may set too) | queue pairs with something to poll |
//! | `KeyEntry` | R | regions that S may write |
//!
//! Invariant: `posted - consumed <= RING`, kept by R, so a sender that respects `posted` never overruns the ring and
//! needs no consumer index. A sender checks `posted - produced <= RING` before it trusts the value.
//!
//! The hot words of different writers are on different cache lines. In a ping-pong the line of the CQE, the payload
//! and the bitmap move between the cores; the line of `posted` moves once for every `post_recv`.

use crate::sync::{AtomicU32, AtomicU64};

/// Queue pairs of one pair of processes. Indices are even for queue pairs that side 0 requested, odd for side 1's.
pub(crate) const QPS: usize = if cfg!(any(loom, miri)) { 128 } else { 4096 };
/// Entries of a completion ring, and so the receives that may be posted. A power of two.
pub(crate) const RING: u32 = if cfg!(any(loom, miri)) { 2 } else { 128 };
/// Completion queues of a device.
pub(crate) const CQS: usize = if cfg!(any(loom, miri)) { 2 } else { 8 };
/// Regions per half.
pub(crate) const KEYS: usize = 1 << KEY_BITS;
/// Bits of a region key that are its index.
pub(crate) const KEY_BITS: u32 = 15;
/// The place where region memory begins in a half.
pub(crate) const SLAB_OFFSET: u64 = 16 << 20;

/// One message in a completion ring.
#[repr(C)]
pub(crate) struct Cqe {
    /// Immediate in the low half, length in the high half.
    pub data: AtomicU64,
    /// Consumer index + 1 in the low half, the post's stamp (`Posts`) in the high half. Stored last, with release.
    pub tag: AtomicU64,
}

/// The receiver's state for the sender, on one line.
#[repr(C, align(64))]
pub(crate) struct RxLine {
    pub posted: AtomicU32,
    pub wake: AtomicU32,
    pub futex: AtomicU32,
}

/// In `RxLine::wake`: a thread of the receiver sleeps on `futex`. The low byte is the completion queue.
pub(crate) const SLEEPER: u32 = 1 << 8;
/// In `RxLine::wake`: the completion queue.
pub(crate) const CQ_MASK: u32 = 0xff;
/// In `RxLine::wake`: the completion queue that the queue pair was connected on begins at this bit, and is as wide.
pub(crate) const HOME_SHIFT: u32 = 16;

/// Written once, so every empty poll can read it without moving the line between cores.
#[repr(C, align(64))]
pub(crate) struct CloseLine {
    pub closed: AtomicU32,
}

/// The shared part of one direction of a queue pair.
#[repr(C, align(64))]
pub(crate) struct QpShared {
    pub rx: RxLine,
    pub close: CloseLine,
    pub ring: [Cqe; RING as usize],
}

/// The queue pairs that have completions for one completion queue. `summary` has one bit for every word that may be
/// non-zero. It shares its line with the words of the first 448 queue pairs.
#[repr(C, align(64))]
pub(crate) struct CqBitmap {
    pub summary: AtomicU64,
    pub words: [AtomicU64; QPS / 64],
}

/// A region that the sender may write.
#[repr(C)]
pub(crate) struct KeyEntry {
    /// The whole key in the high half, the length in the low half; 0 when free.
    pub key_len: AtomicU64,
    /// Queue pair index in the top 16 bits, offset within the half below.
    pub qp_base: AtomicU64,
}

/// The control structures of a half.
#[repr(C, align(4096))]
pub(crate) struct Half {
    pub bitmaps: [CqBitmap; CQS],
    pub keys: [KeyEntry; KEYS],
    /// In the order of [`place_of`].
    qps: [QpShared; QPS],
}

impl Half {
    /// The queue pair at an index.
    #[inline]
    pub(crate) fn qp(&self, index: usize) -> &QpShared {
        &self.qps[place_of(index)]
    }
}

/// The place of the queue pair at an index: those that one side requested lie side by side. Mostly one side alone requests
/// them, and each takes half a page, so that every other one would take a page of its own.
const fn place_of(index: usize) -> usize {
    index / 2 + index % 2 * (QPS / 2)
}

// Loom's atomics are larger than the real ones; it never sees a segment.
const _: () = assert!(cfg!(any(loom, miri)) || std::mem::size_of::<Half>() as u64 <= SLAB_OFFSET);
const _: () = assert!(cfg!(any(loom, miri)) || std::mem::size_of::<QpShared>() == 128 + 16 * RING as usize);
const _: () = assert!(QPS / 64 <= 64, "one summary word covers all bitmap words");
const _: () = assert!(QPS.is_multiple_of(2), "each side has as many places");

/// One flag on a line of its own.
#[repr(C, align(64))]
pub(crate) struct Flag(pub AtomicU32);

/// A process's operations in the kernel, for its peers. It stamps its posts with the number of the last one.
#[repr(C, align(64))]
pub(crate) struct KernelOperations {
    /// The number of operations that have begun.
    pub begun: AtomicU32,
    /// The number of the last one that has ended. Operations are numbered as they end.
    pub last: AtomicU32,
    /// The times at which the operations of the latest numbers began and ended, in nanoseconds. Stored before `last`.
    pub times: [[AtomicU64; 2]; OPERATIONS],
}

/// The number of operations that are remembered.
pub(crate) const OPERATIONS: usize = 32;

/// In [`Doorbell::armed`]: no thread sleeps on the queue's channel; one sleeps that polls by itself before long; one
/// sleeps that relies on being woken.
pub(crate) const AWAKE: u32 = 0;
pub(crate) const MODERATED: u32 = 1;
pub(crate) const ASLEEP: u32 = 2;

/// A process's doorbell page: `armed[cq]` is non-zero while a thread sleeps on that queue's channel. The owner, or the
/// kernel in its name, writes it; peers map it read-only.
#[repr(C, align(4096))]
pub(crate) struct Doorbell {
    pub armed: [Flag; CQS],
    /// The kernel operations of the owner.
    pub kernel_operations: KernelOperations,
    /// The robust futex of a thread that ends when the process does, with [`DIED`] set once it has; 0 if there is none.
    pub life: Flag,
}

/// In [`Doorbell::life`]: `FUTEX_OWNER_DIED` in linux/futex.h.
pub(crate) const DIED: u32 = 0x4000_0000;

/// Bytes of the doorbell page.
pub(crate) const DOORBELL_BYTES: usize = 4096;
const _: () = assert!(cfg!(any(loom, miri)) || std::mem::size_of::<Doorbell>() == DOORBELL_BYTES);
