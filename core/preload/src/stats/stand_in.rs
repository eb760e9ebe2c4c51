//! A thread that answers `netacc_ss` while the helper waits for a device.
//!
//! Opening a device, making or ending a queue pair, and handling a device's events take as long as the device does not answer:
//! 15 s with eRDMA's driver. That is when the state of the process is asked for.

use std::os::fd::RawFd;
use std::thread::JoinHandle;

use crate::os::{inside, own, poll, signals};
use crate::runtime::Runtime;

/// Answers requests until it is dropped.
pub struct StandIn {
    /// Signalled when the thread is to end.
    end: RawFd,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// `None`: nobody listens, or there is no descriptor or thread left. Requests then wait.
    pub fn begin(runtime: &'static Runtime) -> Option<StandIn> {
        let listener = runtime.helper.stats()?;
        let end = own::new_eventfd()?;
        let serve = move || {
            inside::mark_thread();
            let watched = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = [watched(end), watched(listener)];
            while poll::wait(&mut fds, std::ptr::null(), std::ptr::null()) >= 0 && fds[0].revents == 0 {
                super::serve(listener, runtime);
            }
        };
        let mut stand_in = StandIn { end, thread: None };
        let blocked_signals = signals::BlockedSignals::all();
        let thread = std::thread::Builder::new().name("netacc-ss".into()).stack_size(256 << 10).spawn(serve);
        drop(blocked_signals);
        stand_in.thread = Some(thread.ok()?);
        Some(stand_in)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        own::kick(self.end);
        if let Some(thread) = self.thread.take() {
            // Its panic, if it was one, has been reported.
            let _ = thread.join();
        }
        own::discard(self.end);
    }
}
