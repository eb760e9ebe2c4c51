//! The short way of a queue pair for messages whose bytes are in place: [`InPlaceQueue`] of shared memory.
//!
//! It has found the queue pair once and for all. Invariant: everything that it names is permanent while the device lives,
//! and it keeps the device: pair slots, the queue pairs in them and their ranges are never freed before it. A slot that is used
//! again has another connection, which is checked for each message.

#![expect(unsafe_code, reason = "names parts of the device that it keeps")]

use std::ptr::NonNull;
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

use netacc_device::{InPlaceError, InPlaceQueue, PostError};

use super::ShmDevice;
use crate::bitmap::Unfinished;
use crate::layout::{Doorbell, KernelOperations, DIED};
use crate::pair::PairSlot;
use crate::qp::{check_credit, Posts, QpLocal};

/// A part of a device that lives as long as the device.
struct Part<T>(NonNull<T>);

// SAFETY: a shared reference, see `get`.
unsafe impl<T: Sync> Send for Part<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Part<T> {}

impl<T> Part<T> {
    fn of(part: &T) -> Part<T> {
        Part(NonNull::from(part))
    }

    #[inline(always)]
    fn get(&self) -> &T {
        // SAFETY: `InPlace` alone has parts, and keeps their device, in which they are permanent.
        unsafe { self.0.as_ref() }
    }
}

/// See the module's text.
pub(crate) struct InPlace {
    local: Part<QpLocal>,
    pair: Part<PairSlot>,
    /// The peer's.
    doorbell: Part<Doorbell>,
    posts: Part<Posts>,
    /// Our own.
    kernel_operations: Part<KernelOperations>,
    index: usize,
    /// Of `local`.
    connection: u32,
    device: Arc<ShmDevice>,
}

impl InPlace {
    /// For the queue pair at `index`, which is connected.
    pub(crate) fn new(device: Arc<ShmDevice>, pair: &PairSlot, index: usize) -> Option<InPlace> {
        let local = pair.qp(index)?;
        Some(InPlace {
            connection: local.connection()?,
            local: Part::of(local),
            pair: Part::of(pair),
            doorbell: Part::of(pair.doorbell()),
            posts: Part::of(device.posts(pair)),
            kernel_operations: Part::of(device.kernel_operations()),
            index,
            device,
        })
    }

    /// The announcement of a message that was posted.
    #[inline(never)]
    fn finish(&self, unfinished: Unfinished) -> Result<(), InPlaceError> {
        let (pair, local) = (self.pair.get(), self.local.get());
        let ring = pair.announcement(self.index, local.tx()).finish(pair.armed(), unfinished);
        if ring != 0 {
            self.device.ring_queues(pair, ring);
        }
        Ok(())
    }

    #[cold]
    fn refuse_without_credit(&self) -> Result<(), InPlaceError> {
        let local = self.local.get();
        match check_credit(local.tx(), local.produced()) {
            Err(PostError::Dead) => self.refuse_dead(),
            _ => Err(PostError::QueueFull.into()),
        }
    }

    #[cold]
    fn refuse_dead(&self) -> Result<(), InPlaceError> {
        self.device.refuse_dead(self.pair.get(), self.index, self.local.get())
    }
}

impl InPlaceQueue for InPlace {
    fn post(&self, seen: Option<u32>, len: u32, imm: u32) -> Result<(), InPlaceError> {
        let local = self.local.get();
        if !local.is_at(self.connection) {
            return gone();
        }
        let rx = local.rx();
        if local.is_over(rx, self.doorbell.get().life.0.load(Acquire) & DIED) {
            return self.refuse_dead();
        }
        if seen.is_some_and(|seen| !local.has_still(rx, seen)) {
            return news();
        }
        let (tx, produced) = (local.tx(), local.produced());
        if check_credit(tx, produced).is_err() {
            return self.refuse_without_credit();
        }
        let stamp = self.posts.get().stamp(self.kernel_operations.get().last.load(Acquire));
        local.post_in_place(tx, produced, stamp, (len, imm));
        match self.pair.get().announcement(self.index, tx).begin() {
            None => Ok(()),
            Some(unfinished) => self.finish(unfinished),
        }
    }
}

// Refusals are calls, so that the way of a message keeps nothing for them.

#[inline(never)]
fn news() -> Result<(), InPlaceError> {
    Err(InPlaceError::News)
}

/// The queue pair has another connection now, or none.
#[inline(never)]
fn gone() -> Result<(), InPlaceError> {
    Err(PostError::Dead.into())
}
