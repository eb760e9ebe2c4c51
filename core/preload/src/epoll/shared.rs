//! Instances that several processes hold.
//!
//! A forked child shares the kernel's instance with its parent, and has the program's data of its registrations. The
//! streams in it are the parent's until the child waits on the instance: then the child requests them, because the
//! kernel would report them to both. A child that only adds and removes descriptors leaves the parent's streams on
//! their links. The child passes events back that only the parent can handle: those of the parent's kick and channel.
//!
//! A process that gets an instance in a message has none of the library's state for it. So before the instance is sent,
//! it becomes the kernel's alone in all processes, for good: with the program's own data, and with connections that
//! stay on TCP.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Duration;

use libc::epoll_event;
use netacc_driver::StreamCell;
use netacc_proto::Reason;

use super::{deregister, Epoll, Shared};
use crate::control::flows;
use crate::datagram::KernelOnly;
use crate::os::{own, real};
use crate::runtime::{self, Runtime};
use crate::table::{self, Entry};
use crate::{leaving, switching};

/// The other holders of an instance.
pub(super) struct Holders {
    /// A [`Held`].
    held: AtomicU8,
    /// The kick of the process that this one was forked from, if that has made one; 0 for none.
    parents_kick: AtomicU32,
    /// It was there at a fork, so a process of each side may hold it.
    was_forked: AtomicBool,
}

#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// By this process: it has made the instance, or has waited on it.
    Here,
    /// By the parent, too; this process has not touched it.
    Inherited,
    /// By the parent, too; this process has changed what is in it, but not waited on it.
    Changed,
    /// By any process: it is the kernel's.
    Given,
}

/// How long a child leaves a kick to its parent before it checks again. Arbitrary; the parent has been woken.
const PARENTS_TURN: Duration = Duration::from_millis(1);

impl Holders {
    /// Of an instance that this process has just made.
    pub(super) fn here() -> Holders {
        Holders {
            held: AtomicU8::new(Held::Here as u8),
            parents_kick: AtomicU32::new(0),
            was_forked: AtomicBool::new(false),
        }
    }

    /// Of the instance of the process that this one was forked from.
    pub(super) fn inherited(parent: &Shared) -> Holders {
        let held = if parent.is_given() { Held::Given } else { Held::Inherited };
        let parents_kick = parent.kick.eventfd().unwrap_or(0);
        let parents_kick = AtomicU32::new(parents_kick as u32);
        Holders { held: AtomicU8::new(held as u8), parents_kick, was_forked: AtomicBool::new(true) }
    }

    fn are(&self, held: Held) -> bool {
        self.held.load(Ordering::Acquire) == held as u8
    }

    fn become_held(&self, held: Held) {
        self.held.store(held as u8, Ordering::Release);
    }
}

impl Shared {
    /// Whether the instance is the kernel's alone.
    #[inline]
    pub(super) fn is_given(&self) -> bool {
        self.holders.are(Held::Given)
    }

    /// Whether only other processes translate the events of the kernel's instance, if any process does.
    pub(super) fn is_others(&self) -> bool {
        self.holders.are(Held::Inherited) || self.is_given()
    }

    /// A child is about to inherit the instance.
    pub(super) fn before_fork(&self) {
        self.holders.was_forked.store(true, Ordering::Release);
    }

    /// Whether another process may wait on the instance: it knows the program's data of the registrations that there were
    /// at the fork, and no others.
    pub(super) fn was_forked(&self) -> bool {
        self.holders.was_forked.load(Ordering::Acquire)
    }

    /// Called before a change of the instance's registrations.
    #[inline]
    pub(super) fn begin_change(&self) {
        if self.holders.are(Held::Inherited) {
            let (from, to) = (Held::Inherited as u8, Held::Changed as u8);
            // Another thread may have waited on it meanwhile.
            let _ = self.holders.held.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Called before a forked child first checks the instance: streams on links of its parent are demoted.
    #[inline]
    pub(super) fn reclaim(&self) {
        let held = self.holders.held.load(Ordering::Acquire);
        if held == Held::Inherited as u8 || held == Held::Changed as u8 {
            self.reclaim_streams();
        }
    }

    #[cold]
    fn reclaim_streams(&self) {
        self.holders.become_held(Held::Here);
        let watched: Vec<c_int> = self.state.lock().interests.iter().map(|(fd, _)| fd).collect();
        for entry in watched.into_iter().filter_map(table::get_full) {
            if let Entry::Stream(sock) = &*entry {
                sock.reclaim();
            }
        }
    }

    /// The kick of another process is readable, which this one cannot drain.
    #[cold]
    pub(super) fn leave_kick_to_parent(&self) {
        std::thread::sleep(PARENTS_TURN);
    }

    /// This process has taken an edge of the channel of another one.
    #[cold]
    pub(super) fn pass_channel_back(&self) {
        let kick = self.holders.parents_kick.load(Ordering::Relaxed);
        if kick != 0 {
            own::kick(kick as c_int);
        }
    }

    /// All connections in the instance go to the kernel, and stay there.
    fn demote_all(&self) {
        let streams: Vec<(c_int, Arc<StreamCell>)> = {
            let state = self.state.lock();
            state.interests.iter().filter_map(|(fd, i)| Some((fd, i.stream.clone()?))).collect()
        };
        self.leave_datagrams_to_kernel();
        for (fd, cell) in streams {
            keep_on_kernel(fd);
            // Also one whose descriptor is closed.
            cell.pin();
            if let Some(endpoint) = runtime::get().and_then(Runtime::endpoint) {
                switching::demote(endpoint, &cell, Reason::Shared, switching::PROMOTION_PATIENCE);
            }
        }
    }

    /// Registers all interests with the program's own events and data, and drops them.
    fn hand_over(&self) {
        let mut state = self.state.lock();
        let epfd = self.kernel().epfd;
        for (fd, i) in std::mem::take(&mut state.interests).iter() {
            if i.parked {
                deregister(epfd, fd);
                continue;
            }
            // A used one is armed again by the program, with its data. Every registration includes ERR and HUP.
            let events = if i.disabled { libc::EPOLLONESHOT as u32 } else { i.events };
            let mut event = epoll_event { events, u64: i.data };
            // SAFETY: the event is readable.
            if unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &mut event) } != 0 {
                deregister(epfd, fd);
                // SAFETY: as above.
                unsafe { real::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut event) };
            }
        }
        state.ready.clear();
        self.ready_len.store(0, Ordering::SeqCst);
        self.forget_streams();
        let endpoint = runtime::get().and_then(Runtime::endpoint);
        let channel = endpoint.zip(self.own_queue()).and_then(|(endpoint, cq)| endpoint.device().channel_fd(cq));
        if let Some(channel) = channel {
            deregister(epfd, channel);
        }
        self.kick.deregister(epfd);
    }
}

/// The connection that `fd` names, or will name, stays on TCP.
pub(super) fn keep_on_kernel(fd: c_int) {
    match table::get_full(fd).as_deref() {
        Some(Entry::Stream(sock)) => drop(leaving::demote_for(sock, Reason::Shared)),
        Some(Entry::Idle(listener)) => listener.kernel_only.store(true, Ordering::Relaxed),
        Some(Entry::Datagram(socket)) => flows::withdraw(socket, fd, KernelOnly::Watched),
        _ => {}
    }
}

impl Epoll {
    /// The instance is about to be sent to another process.
    pub(super) fn give_away(&self) {
        if self.shared.is_given() {
            return;
        }
        self.shared.reclaim();
        self.shared.demote_all();
        self.shared.holders.become_held(Held::Given);
        // Descriptors that were added meanwhile.
        self.shared.demote_all();
        self.shared.hand_over();
    }

    /// An instance that came from another process, as `fd`.
    pub fn received(fd: c_int) -> Epoll {
        let epoll = Epoll::new(fd);
        epoll.shared.holders.become_held(Held::Given);
        epoll
    }
}
