//! The count of streams that are away from the kernel. While it is wrong, a wait still finds everything: by the kernel alone, and then
//! late, or by looking at links in vain. And what a check of a stream that moves asks the kernel for.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig};
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::FourTuple;
use netacc_driver::loopback::{self, Deaf};
use netacc_proto::Role;

use super::*;
use crate::os::poll::ASKED;

const ON_LINK: Readiness = Readiness::WRITABLE;

/// An instance that watches one socket for input, as if that were a stream.
struct Watching {
    epoll: Epoll,
    fd: c_int,
    _open: (UnixStream, UnixStream, OwnedFd),
}

impl Watching {
    fn new() -> Watching {
        let (socket, peer) = UnixStream::pair().expect("a pair of sockets");
        // SAFETY: no pointers; the number is this test's alone.
        let instance = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let (epoll, fd) = (Epoll::new(instance.as_raw_fd()), socket.as_raw_fd());
        let watching = Watching { epoll, fd, _open: (socket, peer, instance) };
        watching.add();
        watching.shared().streams.store(1, Ordering::Relaxed);
        watching
    }

    fn with_kick() -> Watching {
        let watching = Watching::new();
        watching.shared().ensure_kick();
        watching
    }

    fn shared(&self) -> &Shared {
        &self.epoll.shared
    }

    fn add(&self) {
        let events = libc::EPOLLIN as u32;
        let mut state = self.shared().state.lock();
        assert_eq!(kernel_ctl(self.shared().kernel().epfd, libc::EPOLL_CTL_ADD, self.fd, events), 0);
        self.shared().forget(state.interests.insert(self.fd, Interest::kernels(events, 7)));
    }

    fn goes_to(&self, now: Readiness) {
        self.shared().handle_change(self.fd, now, Change::Readiness);
    }

    /// Whether those see it that watch the kernel's instance.
    fn is_raised(&self) -> bool {
        crate::os::poll::ready_events(self.shared().kernel().epfd, libc::POLLIN) != 0
    }

    /// How many streams are counted, and whether a wait leaves everything to the kernel.
    fn counted(&self) -> (u32, bool) {
        (self.shared().away.load(Ordering::SeqCst), self.epoll.is_kernels())
    }
}

#[test]
fn a_stream_counts_as_away_once_and_until_it_comes_back() {
    let watching = Watching::with_kick();
    assert_eq!(watching.counted(), (0, true));
    for _ in 0..2 {
        watching.goes_to(ON_LINK);
        watching.goes_to(ON_LINK);
        assert_eq!(watching.counted(), (1, false));
        watching.goes_to(BOTH_KERNEL);
        watching.goes_to(BOTH_KERNEL);
        assert_eq!(watching.counted(), (0, true));
    }
}

#[test]
fn a_stream_that_is_not_watched_any_more_is_not_away() {
    use crate::watchers::Subscriber;
    let watching = Watching::with_kick();
    let shared = watching.shared();
    watching.goes_to(ON_LINK);
    shared.leave_to_kernel(watching.fd);
    assert_eq!(watching.counted(), (0, true));
    watching.goes_to(ON_LINK);
    shared.remove(watching.fd, true);
    assert_eq!(watching.counted(), (0, true));
    watching.add();
    watching.goes_to(ON_LINK);
    assert_eq!(watching.counted(), (1, false));
    shared.forget_streams();
    assert_eq!(watching.counted(), (0, true));
}

/// Breaks if a thread that looks for the kick took one for raised that another thread had drained: an instance that watches
/// this one was never told of what is ready.
#[test]
fn a_kick_that_was_drained_meanwhile_is_raised_again() {
    let watching = Watching::with_kick();
    let shared = watching.shared();
    watching.epoll.nest();
    assert!(!watching.is_raised());
    // Something becomes ready after the kick was drained, and before this thread has the lock.
    shared.state.lock().ready.push_back(watching.fd);
    shared.take_kick();
    assert!(watching.is_raised());
    shared.state.lock().ready.clear();
    shared.take_kick();
    assert!(!watching.is_raised());
}

/// Breaks if a thread slept on though a stream became ready before the kick that wakes it was made.
#[test]
fn a_kick_that_is_made_late_is_raised() {
    let watching = Watching::new();
    watching.shared().sleepers.begin();
    watching.goes_to(ON_LINK | Readiness::READABLE);
    assert!(!watching.is_raised());
    watching.shared().ensure_kick();
    assert!(watching.is_raised());
}

/// Breaks if a wait ended before its time-out where the kernel takes no shorter unit, or never.
#[test]
fn time_outs_are_rounded_up() {
    let nanoseconds = [None, Some(0), Some(1), Some(1_000_000), Some(1_000_001), Some(u64::MAX)];
    let rounded = nanoseconds.map(|ns| waiting::milliseconds(ns.map(Duration::from_nanos)));
    assert_eq!(rounded, [-1, 0, 1, 1, 2, c_int::MAX]);
}

/// Breaks if each check of a connection that moves onto a link took a system call, though the program does not want the events
/// of the direction that is still the kernel's.
#[test]
fn the_kernel_is_asked_for_wanted_events_alone() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let [client, server] =
        [(); 2].map(|()| loopback::open(fabric.open(LoopbackConfig::shm()), loopback::config(1), Deaf));
    let end = |port| ([127, 0, 0, 1], port).into();
    let tuple = FourTuple { local: end(40_000), remote: end(6379) };
    let (near, far, _) = anchor_pair(AnchorConfig::default());
    let far = server.adopt(Role::Acceptor, tuple.reversed(), Box::new(far));
    server.publish(&far);
    let near = client.adopt(Role::Opener, tuple, Box::new(near));
    client.promote(&near).expect("the acceptor is published");
    for turn in (0..20).map(Instant::from_nanos) {
        if far.readiness() == BOTH_KERNEL {
            client.progress(turn);
            client.poll(client.default_cq());
            server.progress(turn);
        }
    }
    assert_eq!(far.readiness(), Readiness::KERNEL_TX, "the acceptor expects the opener's switch");
    let (socket, _peer) = UnixStream::pair().expect("a pair of sockets");
    for (wanted, asks) in [(libc::EPOLLIN, 0), (libc::EPOLLIN | libc::EPOLLOUT, 1)] {
        let mut interest = Interest::kernels(wanted as u32, 7);
        interest.stream = Some(far.clone());
        let before = ASKED.get();
        let answer = interest.check(socket.as_raw_fd());
        assert_eq!(ASKED.get() - before, asks);
        let expected = if asks == 0 { Answer::Nothing } else { Answer::Events(libc::EPOLLOUT as u32) };
        assert!(answer == expected);
    }
}
