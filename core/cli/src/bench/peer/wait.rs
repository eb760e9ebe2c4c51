//! Waiting for many non-blocking sockets, in the three ways that programs have.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;

use super::super::args::Mode;

/// Ready sockets taken from epoll at once.
const EVENTS: usize = 512;

/// Waits for sockets, which are named by their place in a slice.
pub(super) enum Waiter<'a> {
    Epoll {
        epoll: Epoll,
        sockets: Vec<BorrowedFd<'a>>,
        events: Vec<EpollEvent>,
    },
    Poll {
        fds: Vec<PollFd<'a>>,
        indices: Vec<usize>,
    },
    /// Does not wait: the next read finds out.
    Spin {
        indices: Vec<usize>,
    },
}

impl<'a> Waiter<'a> {
    /// Watches all sockets for something to read. `Mode::Blocking` is not for this.
    pub(super) fn new(mode: Mode, sockets: &'a [Socket]) -> io::Result<Self> {
        let fds = sockets.iter().map(Socket::as_fd);
        Ok(match mode {
            Mode::Epoll => {
                let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
                for (index, fd) in fds.clone().enumerate() {
                    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
                }
                Waiter::Epoll { epoll, sockets: fds.collect(), events: vec![EpollEvent::empty(); EVENTS] }
            }
            Mode::Poll => Waiter::Poll {
                fds: fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect(),
                indices: (0..sockets.len()).collect(),
            },
            Mode::Spin | Mode::Blocking => Waiter::Spin { indices: (0..sockets.len()).collect() },
        })
    }

    /// Puts the places of the sockets that may be ready into `ready`. Waits without limit: the
    /// parent has one.
    pub(super) fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        match self {
            Waiter::Epoll { epoll, events, .. } => match epoll.wait(events, EpollTimeout::NONE) {
                Ok(count) => ready.extend(events[..count].iter().map(|event| event.data() as usize)),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            },
            Waiter::Poll { fds, indices } => match poll(fds, PollTimeout::NONE) {
                Ok(_) => {
                    let both = fds.iter().zip(indices);
                    ready.extend(both.filter(|(fd, _)| fd.any().unwrap_or(true)).map(|(_, index)| *index));
                }
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            },
            Waiter::Spin { indices } => {
                std::hint::spin_loop();
                ready.extend_from_slice(indices);
            }
        }
        Ok(())
    }

    /// Watches a socket for room to write, or for something to read again.
    pub(super) fn watch(&mut self, index: usize, writing: bool) -> io::Result<()> {
        match self {
            Waiter::Epoll { epoll, sockets, .. } => {
                let flags = if writing { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
                epoll.modify(sockets[index], &mut EpollEvent::new(flags, index as u64))?;
            }
            Waiter::Poll { fds, indices } => {
                let flags = if writing { PollFlags::POLLOUT } else { PollFlags::POLLIN };
                for (fd, _) in fds.iter_mut().zip(indices).filter(|(_, other)| **other == index) {
                    fd.set_events(flags);
                }
            }
            Waiter::Spin { .. } => {}
        }
        Ok(())
    }

    /// Stops watching a socket, and watches it for something to read again. Only `epoll` has calls for this.
    pub(super) fn rewatch(&mut self, index: usize) -> io::Result<()> {
        if let Waiter::Epoll { epoll, sockets, .. } = self {
            epoll.delete(sockets[index])?;
            epoll.add(sockets[index], EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
        }
        Ok(())
    }

    /// Mean nanoseconds of a call that watches a socket or stops to, least of some batches, so that no interruption is in it; 0
    /// where no such call is made. Event loops that watch a connection for room before each write make several for each request.
    pub(super) fn time_interest_change(&mut self) -> io::Result<f64> {
        /// Arbitrary: a batch takes less than a time slice.
        const BATCHES: u32 = 20;
        const PAIRS: u32 = 100;
        let Waiter::Epoll { epoll, sockets, .. } = self else { return Ok(0.0) };
        let Some(socket) = sockets.first() else { return Ok(0.0) };
        let mut least = Duration::MAX;
        for _ in 0..BATCHES {
            let begun = Instant::now();
            for _ in 0..PAIRS {
                epoll.delete(socket)?;
                epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            }
            least = least.min(begun.elapsed());
        }
        Ok(least.as_secs_f64() * 1e9 / f64::from(2 * PAIRS))
    }

    /// Watches a socket no more.
    pub(super) fn forget(&mut self, index: usize) -> io::Result<()> {
        match self {
            Waiter::Epoll { epoll, sockets, .. } => epoll.delete(sockets[index])?,
            Waiter::Poll { fds, indices } => {
                if let Some(place) = indices.iter().position(|other| *other == index) {
                    fds.swap_remove(place);
                    indices.swap_remove(place);
                }
            }
            Waiter::Spin { indices } => indices.retain(|other| *other != index),
        }
        Ok(())
    }
}
