//! Memory for regions: a buddy allocator over a half's slab. Pure arithmetic; the caller touches the memory.
//!
//! Invariants: blocks are powers of two of at least [`UNIT`] and aligned to their size; free blocks never overlap
//! and no two free buddies of one order coexist; a unit that is free and not `dirty` reads as zero.
//! Small blocks, such as the first regions of links, share larger ones ([`SHARED`]), which stay in use: so they take half a
//! page each.
//! The slab is used up to `grown`, which advances in steps that double from the smallest to the largest increment.

use std::collections::BTreeSet;

/// Smallest block, in bytes.
pub(crate) const UNIT: u64 = 4096;

/// Bytes of a small block, in cache lines: as many as the first region of a link has (SPEC §2.2).
const SMALL: u64 = 2112;
/// The order of a block that small ones share.
const SHARED: u32 = 3;

/// A range of the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// First byte, from the start of the slab.
    pub offset: u64,
    size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// [`SMALL`] bytes.
    Small,
    /// [`UNIT`] times two to this power.
    Units(u32),
}

impl Block {
    /// Length in bytes.
    #[cfg(test)]
    pub(crate) fn len(&self) -> u64 {
        match self.size {
            Size::Small => SMALL,
            Size::Units(order) => UNIT << order,
        }
    }
}

/// The allocator of one half.
#[derive(Debug)]
pub(crate) struct Buddy {
    /// Unit indices of free blocks, by order.
    free: Vec<BTreeSet<u64>>,
    /// Units handed to `free` so far.
    grown: u64,
    units: u64,
    next_inc: u64,
    max_inc: u64,
    /// One bit per unit: it may contain bytes other than zero.
    dirty: Vec<u64>,
    /// Units that are both free and dirty.
    dirty_free: u64,
    /// Small blocks that are free, any of which may contain bytes other than zero.
    small: Vec<u64>,
}

impl Buddy {
    pub(crate) fn new(slab_bytes: u64, min_inc: u64, max_inc: u64) -> Buddy {
        let units = slab_bytes / UNIT;
        let orders = units.max(1).ilog2() + 1;
        let to_units = |bytes: u64| (bytes / UNIT).clamp(1, units.max(1));
        Buddy {
            free: vec![BTreeSet::new(); orders as usize],
            grown: 0,
            units,
            next_inc: to_units(min_inc),
            max_inc: to_units(max_inc.max(min_inc)),
            dirty: vec![0; units.div_ceil(64) as usize],
            dirty_free: 0,
            small: Vec::new(),
        }
    }

    /// A block of at least `bytes`, or `None` when the slab has no such block left.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Option<Block> {
        if bytes <= SMALL {
            return self.alloc_small();
        }
        self.alloc_units(bytes.div_ceil(UNIT).checked_next_power_of_two()?.ilog2())
    }

    fn alloc_small(&mut self) -> Option<Block> {
        if self.small.is_empty() {
            let shared = self.alloc_units(SHARED)?;
            self.take_dirty(shared);
            // The first one is taken first.
            self.small.extend((0..(UNIT << SHARED) / SMALL).rev().map(|i| shared.offset + i * SMALL));
        }
        Some(Block { offset: self.small.pop()?, size: Size::Small })
    }

    fn alloc_units(&mut self, order: u32) -> Option<Block> {
        loop {
            if let Some(block) = self.take(order) {
                return Some(block);
            }
            if !self.grow(order) {
                return None;
            }
        }
    }

    /// Takes a block back. Its contents count as dirty.
    pub(crate) fn free(&mut self, block: Block) {
        let Size::Units(order) = block.size else { return self.small.push(block.offset) };
        let first = block.offset / UNIT;
        for unit in first..first + (1 << order) {
            self.dirty[(unit / 64) as usize] |= 1 << (unit % 64);
        }
        self.dirty_free += 1 << order;
        self.give(first, order);
    }

    /// The parts of a fresh block, relative to the slab, that must be zeroed before use; they count as clean after.
    pub(crate) fn take_dirty(&mut self, block: Block) -> Vec<(u64, u64)> {
        let Size::Units(order) = block.size else { return vec![(block.offset, SMALL)] };
        let first = block.offset / UNIT;
        self.take_runs(first, first + (1 << order))
    }

    /// Bytes that are free but may still occupy memory.
    pub(crate) fn idle_bytes(&self) -> u64 {
        self.dirty_free * UNIT
    }

    /// Every free dirty range, which the caller returns to the system (so that they read as zero again).
    pub(crate) fn reclaim(&mut self) -> Vec<(u64, u64)> {
        let blocks: Vec<(u64, u64)> = self
            .free
            .iter()
            .enumerate()
            .flat_map(|(order, set)| set.iter().map(move |&unit| (unit, unit + (1 << order))))
            .collect();
        blocks.into_iter().flat_map(|(from, to)| self.take_runs(from, to)).collect()
    }

    fn take(&mut self, order: u32) -> Option<Block> {
        let from = (order..self.free.len() as u32).find(|&o| !self.free[o as usize].is_empty())?;
        let unit = self.free[from as usize].pop_first()?;
        for o in (order..from).rev() {
            self.free[o as usize].insert(unit + (1 << o));
        }
        Some(Block { offset: unit * UNIT, size: Size::Units(order) })
    }

    fn give(&mut self, mut unit: u64, mut order: u32) {
        while order + 1 < self.free.len() as u32 && self.free[order as usize].remove(&(unit ^ (1 << order))) {
            unit &= !(1 << order);
            order += 1;
        }
        self.free[order as usize].insert(unit);
    }

    fn grow(&mut self, order: u32) -> bool {
        if self.grown >= self.units {
            return false;
        }
        let want = self.next_inc.max(1 << order).min(self.units - self.grown);
        self.next_inc = (self.next_inc * 2).min(self.max_inc);
        let end = self.grown + want;
        while self.grown < end {
            let align = if self.grown == 0 { u32::MAX } else { self.grown.trailing_zeros() };
            let order = align.min((end - self.grown).ilog2()).min(self.free.len() as u32 - 1);
            self.give(self.grown, order);
            self.grown += 1 << order;
        }
        true
    }

    fn take_runs(&mut self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for unit in from..to {
            let (word, bit) = ((unit / 64) as usize, 1 << (unit % 64));
            if self.dirty[word] & bit == 0 {
                continue;
            }
            self.dirty[word] &= !bit;
            self.dirty_free -= 1;
            match runs.last_mut() {
                Some((start, len)) if *start + *len == unit * UNIT => *len += UNIT,
                _ => runs.push((unit * UNIT, UNIT)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Blocks never overlap, stay in bounds and aligned; dirty parts are reported exactly once.
        #[test]
        fn blocks_are_disjoint(ops in prop::collection::vec((any::<bool>(), prop_oneof![1..=SMALL, 1u64..300_000], any::<usize>()), 1..200)) {
            let slab = 3 << 20;
            let mut buddy = Buddy::new(slab, 16 << 10, 1 << 20);
            let mut live: Vec<Block> = Vec::new();
            for (alloc, size, pick) in ops {
                if alloc || live.is_empty() {
                    let Some(b) = buddy.alloc(size) else { continue };
                    let aligned_to = if b.len() == SMALL { 64 } else { b.len() };
                    prop_assert!(b.len() >= size && b.offset % aligned_to == 0 && b.offset + b.len() <= slab);
                    for o in &live {
                        prop_assert!(b.offset + b.len() <= o.offset || o.offset + o.len() <= b.offset);
                    }
                    for (at, len) in buddy.take_dirty(b) {
                        prop_assert!(at >= b.offset && at + len <= b.offset + b.len());
                    }
                    live.push(b);
                } else {
                    let b = live.swap_remove(pick % live.len());
                    buddy.free(b);
                    if buddy.idle_bytes() > 1 << 20 {
                        buddy.reclaim();
                        prop_assert_eq!(buddy.idle_bytes(), 0);
                    }
                }
            }
        }
    }

    /// Everything freed merges again, so the largest block can be had after any history.
    #[test]
    fn merges_back() {
        let mut buddy = Buddy::new(1 << 20, 4096, 8192);
        let blocks: Vec<_> = std::iter::from_fn(|| buddy.alloc(4096)).collect();
        assert_eq!(blocks.len(), 256);
        blocks.into_iter().for_each(|b| buddy.free(b));
        assert_eq!(buddy.idle_bytes(), 1 << 20);
        assert_eq!(buddy.alloc(1 << 20).map(|b| b.len()), Some(1 << 20));
        assert!(buddy.alloc(1).is_none() && buddy.alloc(SMALL + 1).is_none());
        assert!(buddy.alloc(u64::MAX).is_none());
    }

    /// Small blocks lie side by side, and one that was given back is cleared before it is used again.
    #[test]
    fn small_blocks_share_pages() {
        let mut buddy = Buddy::new(1 << 20, 4096, 8192);
        let blocks: Vec<_> = (0..15).filter_map(|_| buddy.alloc(SMALL)).collect();
        assert!(blocks.windows(2).all(|pair| pair[0].offset + SMALL == pair[1].offset));
        assert!(blocks[14].offset + SMALL <= 32 << 10, "15 of them are in 8 pages");
        buddy.free(blocks[7]);
        assert_eq!(buddy.alloc(1), Some(blocks[7]));
        assert_eq!(buddy.take_dirty(blocks[7]), [(blocks[7].offset, SMALL)]);
    }
}
