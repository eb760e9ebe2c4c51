//! A completion queue for the core: the queue pairs that report to it, and a descriptor to sleep on.
//!
//! Each queue pair has a completion queue of the device and a channel of its own
//! ([`DeviceCq`](crate::device_cq::DeviceCq)), and ours is a set of them. So a queue pair can move to another thread's
//! queue, which no device can do for its own, and a device's queue never has too few entries. The price is a poll of
//! each member; those that sleep are polled together.
//!
//! Invariants: a link is in `ready` at most once (its flag `reported` shows that); the locks are taken in the order
//! members, device queue, link, ready. A thread that makes a link non-empty records it here, and signals if a thread
//! may sleep here.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use netacc_device::{Armed, QueuePairId};
use parking_lot::Mutex;

use crate::ffi::{EventFd, EventSet};
use crate::link::{Link, Links};

pub(crate) struct Queue {
    set: EventSet,
    event: EventFd,
    armed: AtomicBool,
    members: Mutex<HashMap<QueuePairId, Arc<Link>>>,
    ready: Mutex<VecDeque<QueuePairId>>,
}

/// The event's number in the set; the numbers of links have 32 bits.
const EVENT_FD: u64 = u64::MAX;

impl Queue {
    pub(crate) fn new() -> io::Result<Queue> {
        let (set, event) = (EventSet::new()?, EventFd::new()?);
        set.add(event.fd(), EVENT_FD)?;
        Ok(Queue { set, event, armed: AtomicBool::new(false), members: Mutex::default(), ready: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.set.fd()
    }

    /// The queue's own descriptors.
    pub(crate) fn fds(&self) -> [RawFd; 2] {
        [self.set.fd(), self.event.fd()]
    }

    /// From now on the link reports here. Completions that it has already need not be reported.
    pub(crate) fn add(&self, link: &Arc<Link>) -> io::Result<()> {
        let mut members = self.members.lock();
        self.set.add(link.device_cq.fd(), link.id.0.into())?;
        members.insert(link.id, Arc::clone(link));
        if self.is_armed() {
            link.device_cq.arm();
        }
        Ok(())
    }

    /// The link does not report here any more.
    pub(crate) fn remove(&self, link: &Link) {
        let mut members = self.members.lock();
        if members.remove(&link.id).is_some() {
            self.set.remove(link.device_cq.fd());
        }
    }

    /// Whether a thread may sleep here.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    /// A link has new completions.
    pub(crate) fn announce(&self, link: &Link) {
        self.enqueue(link);
        if self.is_armed() {
            self.event.signal();
        }
    }

    fn enqueue(&self, link: &Link) {
        if !link.reported.swap(true, Ordering::AcqRel) {
            self.ready.lock().push_back(link.id);
        }
    }

    /// Takes the device's completions for the members.
    fn collect(&self) {
        let mut died = Vec::new();
        for link in self.members.lock().values() {
            let gathered = link.gather();
            if gathered.any {
                self.enqueue(link);
            }
            if gathered.died {
                died.push(Arc::clone(link));
            }
        }
        // A queue pair that failed by itself: the peer may not have detected it.
        died.iter().for_each(|link| link.hang_up());
    }

    /// See [`Device::pending`](netacc_device::Device::pending).
    pub(crate) fn pending(&self, links: &Links, out: &mut [QueuePairId]) -> usize {
        if out.is_empty() {
            return 0;
        }
        self.collect();
        let mut ready = self.ready.lock();
        let mut count = 0;
        while count < out.len() {
            let Some(id) = ready.pop_front() else { break };
            // Polled empty meanwhile, or destroyed: nothing to report.
            let Some(link) = links.get(id) else { continue };
            link.reported.store(false, Ordering::Release);
            if !link.is_empty() {
                out[count] = id;
                count += 1;
            }
        }
        count
    }

    /// See [`CompletionEvents::arm`](netacc_device::CompletionEvents::arm).
    pub(crate) fn arm(&self, links: &Links) -> Armed {
        self.drain();
        self.armed.store(true, Ordering::SeqCst);
        self.members.lock().values().for_each(|link| link.device_cq.arm());
        // Completions that came before the device was armed make no event.
        self.collect();
        let waiting = |id: &QueuePairId| links.get(*id).is_some_and(|link| !link.is_empty());
        if self.ready.lock().iter().any(waiting) {
            Armed::Pending
        } else {
            Armed::Sleep
        }
    }

    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    /// Consumes wake-ups; while armed, requests the next.
    pub(crate) fn drain(&self) {
        let members = self.members.lock();
        let armed = self.is_armed();
        self.set.readable(|number| match u32::try_from(number).ok().and_then(|id| members.get(&QueuePairId(id))) {
            Some(link) => {
                link.device_cq.drain();
                if armed {
                    link.device_cq.arm();
                }
            }
            None => self.event.clear(),
        });
    }
}
