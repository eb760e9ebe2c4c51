//! A simulated file descriptor: the application's handle of an anchor, with the kernel's readiness edges.
//!
//! Invariants:
//! * after `close` no thread may use it: in a real process the number may already name another connection. Uses are
//!   counted, and the world fails the run;
//! * an OUT edge comes only after a write or a poll found no room, as from the kernel (SOCK_NOSPACE).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use netacc_device::loopback::anchor::{AnchorState, InMemoryAnchor};
use netacc_device::{Anchor, AnchorError, AnchorPosition};
use netacc_driver::{LockedStream, Shutdown};
use parking_lot::Mutex;

use crate::mutants::AnchorMutant;

/// Readable.
pub(crate) const IN: u32 = 1;
/// Writable.
pub(crate) const OUT: u32 = 4;
/// Failed.
pub(crate) const ERR: u32 = 8;
/// Both directions ended.
pub(crate) const HUP: u32 = 16;
/// The peer's direction ended.
pub(crate) const RDHUP: u32 = 32;

/// The watchers of edges of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Watcher {
    /// The application's epoll instance.
    Application = 0,
    /// The helper thread.
    Helper = 1,
}

/// One open descriptor.
pub(crate) struct Descriptor {
    anchor: Mutex<Option<InMemoryAnchor>>,
    no_space: AtomicBool,
    edges: [AtomicU32; 2],
    /// Uses after `close`.
    misused: AtomicU64,
    mutant: Option<AnchorMutant>,
}

impl Descriptor {
    pub(crate) fn new(anchor: InMemoryAnchor, mutant: Option<AnchorMutant>) -> Arc<Descriptor> {
        Arc::new(Descriptor {
            anchor: Mutex::new(Some(anchor)),
            no_space: AtomicBool::new(false),
            edges: [AtomicU32::new(IN | OUT), AtomicU32::new(0)],
            misused: AtomicU64::new(0),
            mutant,
        })
    }

    /// Closes it; the anchor goes with its last handle.
    pub(crate) fn close(&self) {
        let gone = self.anchor.lock().take();
        drop(gone);
    }

    /// As `dup(2)`: another handle of the same socket.
    pub(crate) fn duplicate(self: &Arc<Self>) -> Option<Arc<Descriptor>> {
        let anchor = self.anchor.lock().clone()?;
        Some(Descriptor::new(anchor, self.mutant.clone()))
    }

    /// The events that `poll` would report; closed descriptors have none.
    pub(crate) fn state(&self) -> AnchorState {
        self.anchor.lock().as_ref().map_or_else(AnchorState::default, InMemoryAnchor::state)
    }

    /// Progress of the stream on this anchor, with the kernel's state of its end.
    pub(crate) fn progress(&self, stream: &mut LockedStream<'_>) {
        let state = self.state();
        if state.reset {
            stream.anchor_failed();
        } else {
            // Behind the peer's FIN the rest of a record will never come.
            stream.progress_anchor(state.peer_closed);
        }
    }

    /// Whether `poll` would report an error, or that the connection is over.
    pub(crate) fn is_over(&self) -> bool {
        self.anchor.lock().as_ref().is_none_or(Anchor::is_over)
    }

    pub(crate) fn events(&self) -> u32 {
        let s = self.state();
        if !s.writable {
            // As `tcp_poll`: a watcher that saw no room gets an edge when there is.
            self.no_space.store(true, Ordering::Relaxed);
        }
        let mut events = 0;
        for (set, bits) in [(s.readable, IN), (s.writable, OUT), (s.peer_closed, RDHUP), (s.reset, ERR | HUP)] {
            if set {
                events |= bits;
            }
        }
        events
    }

    /// Something happened that wakes watchers.
    pub(crate) fn edge(&self, bits: u32) {
        for edges in &self.edges {
            edges.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Room has come in the send buffer.
    pub(crate) fn room(&self) {
        if self.no_space.swap(false, Ordering::Relaxed) {
            self.edge(OUT);
        }
    }

    /// As EPOLL_CTL_ADD or EPOLL_CTL_MOD: events that are ready now count as an edge.
    pub(crate) fn rearm(&self, watcher: Watcher) {
        self.edges[watcher as usize].store(self.events(), Ordering::Relaxed);
    }

    pub(crate) fn has_edges(&self, watcher: Watcher, mask: u32) -> bool {
        self.edges[watcher as usize].load(Ordering::Relaxed) & (mask | ERR | HUP) != 0
    }

    pub(crate) fn take_edges(&self, watcher: Watcher, mask: u32) -> u32 {
        self.edges[watcher as usize].swap(0, Ordering::Relaxed) & (mask | ERR | HUP)
    }

    pub(crate) fn misused(&self) -> u64 {
        self.misused.load(Ordering::Relaxed)
    }

    fn with<R>(&self, f: impl FnOnce(&mut InMemoryAnchor) -> Result<R, AnchorError>) -> Result<R, AnchorError> {
        match &mut *self.anchor.lock() {
            Some(anchor) => f(anchor),
            None => {
                self.misused.fetch_add(1, Ordering::Relaxed);
                Err(AnchorError::Os(io::Error::from_raw_os_error(EBADF)))
            }
        }
    }

    /// `send`, without blocking.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, AnchorError> {
        let result = self.with(|anchor| match &self.mutant {
            Some(mutant) => mutant.write(anchor, bytes),
            None => anchor.try_write(bytes),
        });
        if !matches!(result, Ok(n) if n == bytes.len()) {
            self.no_space.store(true, Ordering::Relaxed);
        }
        result
    }

    /// `recv`, without blocking.
    pub(crate) fn read(&self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.with(|anchor| anchor.try_read(buf))
    }

    /// `recv` with MSG_PEEK.
    pub(crate) fn peek(&self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.with(|anchor| anchor.try_peek(buf))
    }

    /// `shutdown(SHUT_WR)`.
    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<(), AnchorError> {
        self.with(|anchor| {
            if how != Shutdown::Write {
                anchor.shutdown_read()?;
            }
            if how != Shutdown::Read {
                anchor.shutdown_write()?;
            }
            Ok(())
        })
    }

    /// SO_LINGER with a zero time.
    pub(crate) fn abort(&self) {
        let _ = self.with(|anchor| {
            anchor.abort();
            Ok(())
        });
    }
}

/// The anchor of a stream on a descriptor: the application's own, or a duplicate that the library keeps.
pub(crate) struct Handle {
    descriptor: Arc<Descriptor>,
    /// Close it when done.
    owned: bool,
}

impl Handle {
    /// The application's own descriptor.
    pub(crate) fn borrowed(descriptor: Arc<Descriptor>) -> Handle {
        Handle { descriptor, owned: false }
    }

    /// A duplicate for a socket that the application has closed.
    pub(crate) fn owned(descriptor: Arc<Descriptor>) -> Handle {
        Handle { descriptor, owned: true }
    }
}

impl Anchor for Handle {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, AnchorError> {
        self.descriptor.write(bytes)
    }

    fn try_read(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.descriptor.read(buf)
    }

    fn try_peek(&mut self, buf: &mut [u8]) -> Result<usize, AnchorError> {
        self.descriptor.peek(buf)
    }

    fn position(&self) -> Option<AnchorPosition> {
        self.descriptor.anchor.lock().as_ref()?.position()
    }

    fn shutdown_write(&mut self) -> Result<(), AnchorError> {
        self.descriptor.shutdown(Shutdown::Write)
    }

    fn shutdown_read(&mut self) -> Result<(), AnchorError> {
        self.descriptor.shutdown(Shutdown::Read)
    }

    fn is_broken(&self) -> bool {
        self.descriptor.anchor.lock().as_ref().is_some_and(Anchor::is_broken)
    }

    fn is_over(&self) -> bool {
        self.descriptor.is_over()
    }

    fn is_ended(&self) -> bool {
        self.descriptor.anchor.lock().as_ref().is_none_or(Anchor::is_ended)
    }

    fn has_fin(&self, read: u64) -> Option<bool> {
        self.descriptor.anchor.lock().as_ref().and_then(|anchor| anchor.has_fin(read))
    }

    fn unread(&self) -> u64 {
        self.descriptor.anchor.lock().as_ref().map_or(0, Anchor::unread)
    }

    fn clear_error(&mut self) {
        if let Some(anchor) = self.descriptor.anchor.lock().as_mut() {
            anchor.clear_error();
        }
    }

    fn abort(&mut self) {
        self.descriptor.abort();
    }

    fn reset(&mut self) {
        if let Some(anchor) = self.descriptor.anchor.lock().as_mut() {
            anchor.reset();
        }
    }

    /// Without effect: every byte is announced.
    fn set_low_water(&mut self, _: u32) {}
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.owned {
            self.descriptor.close();
        }
    }
}

/// Linux errno of a descriptor that is not open.
const EBADF: i32 = 9;
