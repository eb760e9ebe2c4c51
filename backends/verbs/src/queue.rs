//! A completion queue as the core knows it: what its queue pairs have for their owners, and a descriptor to sleep on.
//!
//! The device's own queues are shared by many queue pairs, so whoever polls hands completions out to the links they
//! belong to. A device's queue has a fixed depth; we keep as many as the queue pairs need, each on the same channel, so
//! that none can overflow.
//!
//! Invariants: a link is in `ready` at most once (its flag `reported` says so); the locks are taken in the order
//! state, then link. The state's lock is also what keeps a queue alive while its events are acknowledged.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use netacc_device::{Armed, QueuePairId};
use parking_lot::Mutex;

use crate::device::Links;
use crate::ffi::abi::WorkCompletion;
use crate::ffi::{CompletionChannel, Context, Cq, Wakeup};
use crate::link::{link_of, Link};

/// Completions taken from the device at a time.
const BATCH: usize = 16;

/// Queue pairs that one queue of the device is made for.
const LINKS_PER_CQ: u32 = 8;

pub(crate) struct Queue {
    channel: Arc<CompletionChannel>,
    wakeup: Wakeup,
    armed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    cqs: Vec<Shard>,
    ready: VecDeque<QueuePairId>,
}

struct Shard {
    cq: Arc<Cq>,
    /// Entries that no queue pair can fill.
    free: u32,
}

impl Queue {
    pub(crate) fn new(context: Context) -> io::Result<Queue> {
        let channel = CompletionChannel::new(context)?;
        let wakeup = Wakeup::new(channel.fd())?;
        let state = State { cqs: Vec::new(), ready: VecDeque::new() };
        Ok(Queue { channel, wakeup, armed: AtomicBool::new(false), state: Mutex::new(state) })
    }

    /// Room for `entries` completions of one more queue pair. Give it back with [`release`](Queue::release).
    ///
    /// # Errors
    /// The device has no further queue.
    pub(crate) fn reserve(&self, entries: u32, max_cqe: u32, vector: u32) -> io::Result<Arc<Cq>> {
        let mut state = self.state.lock();
        if let Some(shard) = state.cqs.iter_mut().find(|shard| shard.free >= entries) {
            shard.free -= entries;
            return Ok(Arc::clone(&shard.cq));
        }
        let depth = (entries * LINKS_PER_CQ).min(max_cqe).max(entries);
        let cq = Arc::new(Cq::new(&self.channel, depth, vector)?);
        if self.armed.load(Ordering::Acquire) {
            cq.arm();
        }
        state.cqs.push(Shard { cq: Arc::clone(&cq), free: depth - entries });
        Ok(cq)
    }

    /// Gives room back once the queue pair is destroyed and what it left has been collected.
    pub(crate) fn release(&self, cq: &Arc<Cq>, entries: u32) {
        if let Some(shard) = self.state.lock().cqs.iter_mut().find(|shard| Arc::ptr_eq(&shard.cq, cq)) {
            shard.free += entries;
        }
    }

    /// Takes what the device has, and hands it to the links.
    pub(crate) fn collect(&self, links: &Links) {
        // A queue pair that failed by itself: the peer need not have noticed.
        self.hand_out(links).iter().for_each(|link| link.hang_up());
    }

    /// Returns the links that died of what they were handed.
    fn hand_out(&self, links: &Links) -> Vec<Arc<Link>> {
        let mut died = Vec::new();
        let mut state = self.state.lock();
        let State { cqs, ready } = &mut *state;
        let mut batch = [WorkCompletion::default(); BATCH];
        for shard in cqs {
            loop {
                let count = shard.cq.poll(&mut batch);
                for completion in &batch[..count] {
                    if let Some(link) = links.get(link_of(completion.wr_id)) {
                        let was_dead = link.is_dead();
                        if link.take(completion) {
                            note(ready, &link);
                        }
                        if !was_dead && link.is_dead() {
                            died.push(link);
                        }
                    }
                }
                if count < BATCH {
                    break;
                }
            }
        }
        died
    }

    /// A link has something that did not come from the device.
    pub(crate) fn announce(&self, link: &Link) {
        note(&mut self.state.lock().ready, link);
        if self.armed.load(Ordering::Acquire) {
            self.wakeup.ring();
        }
    }

    /// See [`Device::pending`](netacc_device::Device::pending).
    pub(crate) fn pending(&self, links: &Links, out: &mut [QueuePairId]) -> usize {
        if out.is_empty() {
            return 0;
        }
        self.collect(links);
        let mut state = self.state.lock();
        let mut count = 0;
        while count < out.len() {
            let Some(id) = state.ready.pop_front() else { break };
            // Polled empty meanwhile, or destroyed: nothing to tell.
            let Some(link) = links.get(id) else { continue };
            link.reported.store(false, Ordering::Release);
            if !link.is_empty() {
                out[count] = id;
                count += 1;
            }
        }
        count
    }

    /// See [`Device::arm`](netacc_device::Device::arm).
    pub(crate) fn arm(&self, links: &Links) -> Armed {
        self.armed.store(true, Ordering::Release);
        self.state.lock().cqs.iter().for_each(|shard| shard.cq.arm());
        // What came before the device was armed makes no event.
        self.collect(links);
        let state = self.state.lock();
        let waiting = |id: &QueuePairId| links.get(*id).is_some_and(|link| !link.is_empty());
        if state.ready.iter().any(waiting) {
            Armed::Pending
        } else {
            Armed::Sleep
        }
    }

    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
    }

    /// Consumes wake-ups; while armed, asks for the next.
    pub(crate) fn drain(&self) {
        let state = self.state.lock();
        self.wakeup.clear();
        let mut any = false;
        while self.channel.take_event() {
            any = true;
        }
        if any && self.armed.load(Ordering::Acquire) {
            state.cqs.iter().for_each(|shard| shard.cq.arm());
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.wakeup.fd()
    }
}

fn note(ready: &mut VecDeque<QueuePairId>, link: &Link) {
    if !link.reported.swap(true, Ordering::AcqRel) {
        ready.push_back(link.id);
    }
}
