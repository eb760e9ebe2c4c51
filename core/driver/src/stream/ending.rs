//! Leaving the link, and the end of a stream: demotion, giving back to the anchor, shutting down, closing.

use netacc_device::{Anchor, Instant};
use netacc_proto::{AnchorWrite, Demotion, Phase, Reason, SocketError};

use super::guard::LockedStream;
use super::lazy::LazyAnchor;
use super::states::Listed;
use crate::endpoint::Timed;

/// The directions that `shutdown` shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// SHUT_RD
    Read,
    /// SHUT_WR
    Write,
    /// SHUT_RDWR
    Both,
}

impl LockedStream<'_> {
    /// Leaves the link. Progress comes with [`progress_anchor`](LockedStream::progress_anchor) until `proto().is_plain()`.
    pub fn demote(&mut self, reason: Reason) {
        if self.inner.proto.has_ended() && !self.inner.proto.revive() {
            return self.give_back();
        }
        if self.inner.proto.is_linked() && self.inner.has_fin() {
            //= spec §4.6.9
            //# A side writes neither a marker nor, of its own accord, RESUME where it sees that the anchor has ended.
            // The peer disappeared without a message: its kernel would answer with a reset. The messages on the link
            // decide.
            return self.end_of_anchor();
        }
        self.inner.proto.demote(Demotion::Requested(reason));
    }

    /// Leaves the link for an anchor that has ended as the stream has. If the anchor will end only later, nothing
    /// happens yet.
    fn give_back(&mut self) {
        let inner = &mut *self.inner;
        let failed = inner.proto.failure().is_some();
        // No caller requests the error of a closed stream.
        if inner.closing.is_closed() || !inner.kernel_reports_error() {
            return;
        }
        // Records may come until the anchor has ended, perhaps incomplete.
        if !failed && !inner.has_fin() {
            return;
        }
        if failed && !inner.anchor.is_over() {
            // No process reads bytes that come there: the peer's kernel answers with a reset, once it has closed.
            if inner.proto.is_peer_gone() {
                inner.provoke_reset();
            }
            if !inner.anchor.is_over() {
                return;
            }
        }
        if failed {
            self.discard_records();
            let inner = &mut *self.inner;
            let known = match inner.proto.error() {
                None => {
                    inner.anchor.clear_error();
                    true
                }
                // A call of ours may have received it.
                Some(SocketError::Reset) => inner.anchor.is_broken(),
                Some(SocketError::Pipe) => inner.has_fin(),
            };
            if !known {
                inner.tcp.end.differs = true;
                return;
            }
        }
        self.arrived |= self.inner.proto.give_back();
    }

    /// Reads and discards the unread bytes on the anchor of a stream that has failed: records, or parts of records.
    fn discard_records(&mut self) {
        let inner = &mut *self.inner;
        let mut bytes = [0; 4096];
        // Bounded, as the kernel's buffer is. Reading further would take the error.
        for _ in 0..64 {
            if inner.anchor.is_broken() || !matches!(inner.anchor.try_peek(&mut bytes), Ok(n) if n > 0) {
                return;
            }
            let Ok(n) = inner.anchor.try_read(&mut bytes) else { return };
            inner.tcp.carried.read += n as u64;
        }
    }

    /// Whether a stream that has ended cannot be given back to its anchor, because the kernel does not have what the
    /// stream is still to report.
    pub fn is_kept(&self) -> bool {
        let proto = &self.inner.proto;
        if proto.is_revivable() {
            return false;
        }
        let unknown = !self.inner.kernel_reports_error() || !proto.is_peer_gone() && !self.inner.anchor.is_over();
        proto.has_ended() && (proto.available() > 0 || proto.failure().is_some() && unknown)
    }

    /// Whether the stream has failed, and its anchor may bring records before it fails too, which will be soon.
    pub(crate) fn awaits_end(&self) -> bool {
        let proto = &self.inner.proto;
        proto.failure().is_some() && !proto.is_plain() && !self.inner.closing.is_closed() && !self.is_kept()
    }

    /// Whether the stream must not end with the process: it is open, or its peer has not read all of it. Bytes on the
    /// link can be read by the process at its other end alone, and that may give the socket away.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.inner.closing.is_closed() || self.inner.proto.unconsumed() > 0
    }

    /// Whether nothing would be lost if the process ended: the kernel has everything, or the link of a closed stream
    /// has.
    pub(crate) fn can_be_left(&mut self, now: Instant) -> bool {
        let proto = &self.inner.proto;
        let is_done = !self.is_wanted() && proto.phase() == Phase::Linked && !proto.has_control();
        if proto.failure().is_some() || is_done {
            return true;
        }
        if proto.phase() == Phase::Promoting && self.link().is_none_or(|link| link.is_dead()) {
            // No marker will be written any more, but one may be in flight, or none: wait for at most the limit.
            return self.has_waited(now);
        }
        // A replay to a socket that is closed already is answered with a reset behind its FIN; had the bytes been there
        // unread, the reset would have come at once.
        proto.is_plain() && (self.inner.closing.is_closed() || self.has_replay(now))
    }

    /// Whether nothing can be read or written any more after this `shutdown`.
    pub fn ends_both(&self, how: Shutdown) -> bool {
        self.inner.proto.ends_both(how != Shutdown::Write, how != Shutdown::Read)
    }

    /// `shutdown`.
    pub fn shutdown(&mut self, how: Shutdown) {
        // Bytes that the kernel has already come before the shutdown.
        self.take_in_replay();
        if how != Shutdown::Write {
            self.inner.proto.shutdown_read();
        }
        if how != Shutdown::Read {
            self.inner.proto.shutdown_write();
        }
    }

    /// The program has closed its last descriptor of a stream that the kernel's socket has completely. In that case the
    /// result is true, and the stream is to be [forgotten](crate::Endpoint::forget). From now on neither side opens it:
    /// a pledge would be followed by the kernel's end of the connection, and the peer would take that for a death.
    pub(super) fn close_plain(&mut self) -> bool {
        let plain = self.inner.proto.is_plain() && self.inner.attached.is_none();
        if plain {
            self.abandon();
        }
        plain
    }

    /// The program has closed its last descriptor. If the result is true, the anchor must live on (as `keep`, a
    /// duplicate) until records and replay are finished; the endpoint then finishes by itself.
    pub fn close(&mut self, abort: bool, keep: impl FnOnce() -> Option<Box<dyn Anchor + Send>>) -> bool {
        let inner = &mut *self.inner;
        inner.closing.close();
        inner.proto.close(abort);
        if inner.proto.must_linger() {
            // It may be finished at once.
            self.progress_anchor(false);
        }
        let inner = &mut *self.inner;
        if inner.proto.failure().is_some() || inner.proto.resets() {
            inner.anchor.abort();
        }
        if inner.published {
            inner.published = false;
            self.endpoint.directory().withdraw(&self.cell.tuple(), self.cell.number);
        }
        let linger = inner.lingers();
        match linger.then(keep).flatten() {
            Some(anchor) => inner.anchor = anchor.into(),
            None => inner.anchor = LazyAnchor::gone(),
        }
        // From now on only the link could report that the peer has finished with the slot, or is gone.
        if let Some(link) = inner.link() {
            self.endpoint.expect_answer(&mut link.tx.lock());
        }
        if linger {
            inner.listed.insert(Listed::LINGERING);
            self.endpoint.add_timer(Timed::Lingering(self.cell.clone()));
        } else if inner.is_idle() {
            self.endpoint.enqueue_release(self.cell);
        }
        linger
    }

    /// The kernel's socket of a plain stream has been shut down directly: the stream is past promotion.
    pub fn handle_kernel_shutdown(&mut self, how: Shutdown) {
        // Other processes may have read the replayed bytes: see `rx_source`.
        self.inner.proto.handle_replay();
        self.shutdown(how);
        while let Some(AnchorWrite::Shutdown | AnchorWrite::ShutdownRead) = self.inner.proto.poll_anchor_write() {
            self.inner.proto.anchor_written(0);
        }
    }

    /// Closes the duplicate that outlived the program's descriptor.
    pub(crate) fn end_linger(&mut self) {
        let inner = &mut *self.inner;
        if inner.proto.resets() && inner.proto.has_closed_writing() {
            // In the order in which a kernel would have reported it. No caller requests the error of a stream that has
            // ended already.
            let _ = inner.anchor.shutdown_write();
        }
        if inner.closing.has_refused() || inner.proto.resets() || inner.proto.failure().is_some() {
            inner.anchor.abort();
        }
        self.abandon();
    }

    /// The program has closed the descriptor of a stream that is plain TCP: it must not be used again.
    pub(crate) fn abandon(&mut self) {
        self.inner.closing.close();
        self.inner.anchor = LazyAnchor::gone();
    }
}
