//! The device's side of one queue pair's completions: a completion queue, its channel, and the threads that sleep on
//! it.
//!
//! Invariants: an armed queue makes one event, and only the thread that takes that event may mark it as not armed. If
//! polling has taken a completion of an armed queue, the event has come, is on its way, or is lost with its interrupt:
//! the queue is armed again before anybody sleeps, so a lost event costs one sleep, not each one from then on. An event
//! that was only late then wakes a thread once for nothing. Events are acknowledged under the lock that polling holds.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use netacc_device::Wait;
use parking_lot::Mutex;

use crate::ffi::abi::WorkCompletion;
use crate::ffi::{sleep_on, CompletionChannel, Context, Cq, EventFd, Sleep};

/// Completions taken from the device at a time.
const BATCH: usize = 16;

pub(crate) struct DeviceCq {
    channel: Arc<CompletionChannel>,
    pub(crate) cq: Arc<Cq>,
    /// The device will make an event, or has made one that was not taken yet.
    armed: AtomicBool,
    /// A completion was taken while the queue was armed.
    due: AtomicBool,
    /// Held while completions are taken, so that they are handed out in their order. The buffer for completions:
    /// clearing one at each poll would be most of the cost of a poll.
    polling: Mutex<[WorkCompletion; BATCH]>,
    /// Changes with every completion.
    sequence: AtomicU32,
    sleepers: AtomicU32,
    /// Wakes sleepers for other causes; made at the first sleep.
    event: OnceLock<EventFd>,
}

impl DeviceCq {
    pub(crate) fn new(context: Context, entries: u32, vector: u32) -> io::Result<DeviceCq> {
        let channel = CompletionChannel::new(context)?;
        let cq = Arc::new(Cq::new(&channel, entries, vector)?);
        Ok(DeviceCq {
            channel,
            cq,
            armed: AtomicBool::new(false),
            due: AtomicBool::new(false),
            polling: Mutex::new([WorkCompletion::default(); BATCH]),
            sequence: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            event: OnceLock::new(),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    /// The descriptor that is ours alone.
    pub(crate) fn event_fd(&self) -> Option<RawFd> {
        self.event.get().map(EventFd::fd)
    }

    /// Passes the device's completions to `take`.
    pub(crate) fn poll(&self, mut take: impl FnMut(&WorkCompletion)) {
        let mut batch = self.polling.lock();
        loop {
            let count = self.cq.poll(&mut *batch);
            batch[..count].iter().for_each(&mut take);
            if count > 0 {
                self.sequence.fetch_add(1, Ordering::Release);
                if self.armed.load(Ordering::Relaxed) {
                    self.due.store(true, Ordering::Relaxed);
                }
            }
            if count < BATCH {
                return;
            }
        }
    }

    /// Requests an event at the next completion.
    pub(crate) fn arm(&self) {
        if self.armed.swap(true, Ordering::SeqCst) {
            if !self.due.swap(false, Ordering::Relaxed) {
                return;
            }
            // Left there, it would end the sleep at once.
            let _order = self.polling.lock();
            self.channel.take_event();
        }
        self.cq.arm();
    }

    /// Takes the event, if there is one. Returns whether there was.
    fn take_event(&self) -> bool {
        let _order = self.polling.lock();
        let taken = self.armed.load(Ordering::SeqCst) && self.channel.take_event();
        if taken {
            self.armed.store(false, Ordering::SeqCst);
            self.due.store(false, Ordering::Relaxed);
        }
        taken
    }

    /// Takes the event for a thread that does not sleep here. Those that do would not see it any more, so they are woken.
    pub(crate) fn drain(&self) {
        if self.take_event() && self.sleepers.load(Ordering::SeqCst) > 0 {
            if let Some(event) = self.event.get() {
                event.signal();
            }
        }
    }

    pub(crate) fn sequence(&self) -> u32 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Sleeps until the sequence differs from `seen`, or another thread calls `wake`. `collect` handles the device's
    /// completions; `wanted` returns whether other threads rely on the event.
    pub(crate) fn wait(
        &self,
        seen: u32,
        timeout: Option<Duration>,
        collect: impl Fn(),
        wanted: impl Fn() -> bool,
    ) -> Wait {
        let event = match self.event.get() {
            Some(event) => event,
            None => match EventFd::new() {
                Ok(event) => self.event.get_or_init(|| event),
                // Without descriptors: polls again and again.
                Err(_) => return Wait::Woken,
            },
        };
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.arm();
        collect();
        let slept = match self.sequence() == seen {
            true => sleep_on([self.channel.fd(), event.fd()], timeout),
            false => Sleep::Readable,
        };
        self.take_event();
        let others = self.sleepers.fetch_sub(1, Ordering::SeqCst) > 1;
        if others || wanted() {
            // The event was for all of them.
            self.arm();
            collect();
        }
        if !others {
            // An eventfd wakes every sleeper, so the last to wake clears it. It may have been signalled for a thread that has
            // begun to sleep meanwhile.
            event.clear();
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                event.signal();
            }
        }
        match slept {
            Sleep::Readable => Wait::Woken,
            Sleep::TimedOut => Wait::TimedOut,
            Sleep::Interrupted => Wait::Interrupted,
        }
    }

    /// Wakes the threads that sleep.
    pub(crate) fn wake(&self) {
        self.sequence.fetch_add(1, Ordering::Release);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            if let Some(event) = self.event.get() {
                event.signal();
            }
        }
    }
}
