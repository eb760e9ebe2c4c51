//! The pairs of a device, and the identifiers of the queue pairs in them.
//!
//! Slots are permanent and filled from 0; identifiers carry a generation. So nothing here takes a lock.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::OnceLock;

use netacc_device::QueuePairId;

use crate::layout::QPS;
use crate::pair::{PairSlot, PAIRS};
use crate::qp::QpLocal;

const INDEX_BITS: u32 = QPS.trailing_zeros();
const PAIR_BITS: u32 = PAIRS.trailing_zeros();
/// The highest bit of an id is reserved.
const GENERATION_MASK: u32 = (1 << (31 - INDEX_BITS - PAIR_BITS)) - 1;

/// The slots of all pairs.
pub(crate) struct Pairs {
    slots: Box<[OnceLock<Box<PairSlot>>; PAIRS]>,
    /// Slots made so far.
    count: AtomicU32,
}

impl Pairs {
    pub(crate) fn new() -> Pairs {
        Pairs { slots: Box::new([const { OnceLock::new() }; PAIRS]), count: AtomicU32::new(0) }
    }

    /// The number of slots made so far.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Acquire) as usize
    }

    /// The slots made so far.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PairSlot> {
        self.slots[..self.count()].iter().filter_map(|p| p.get().map(|p| &**p))
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&PairSlot> {
        self.slots.get(index)?.get().map(|p| &**p)
    }

    /// Adds a slot. Under the connection manager's lock.
    pub(crate) fn push(&self, make: impl FnOnce(u32) -> io::Result<PairSlot>) -> io::Result<&PairSlot> {
        let index = self.count.load(Acquire);
        let Some(place) = self.slots.get(index as usize) else { return Err(io::ErrorKind::QuotaExceeded.into()) };
        let slot = Box::new(make(index)?);
        let slot = place.get_or_init(|| slot);
        self.count.store(index + 1, Release);
        Ok(slot)
    }

    /// The pair, the index within it, and the queue pair, if `qp` is one that lives.
    #[inline]
    pub(crate) fn qp(&self, qp: QueuePairId) -> Option<(&PairSlot, usize, &QpLocal)> {
        let index = qp.0 as usize % QPS;
        let pair = self.get((qp.0 >> INDEX_BITS) as usize % PAIRS)?;
        let local = pair.qp(index)?;
        let generation = local.generation()?;
        (generation & GENERATION_MASK == qp.0 >> (INDEX_BITS + PAIR_BITS)).then_some((pair, index, local))
    }
}

/// The identifier of a queue pair.
#[inline]
pub(crate) fn qp_id(pair: u32, index: usize, generation: u32) -> QueuePairId {
    QueuePairId((generation & GENERATION_MASK) << (INDEX_BITS + PAIR_BITS) | pair << INDEX_BITS | index as u32)
}
