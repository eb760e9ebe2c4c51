//! A program's view of a stream that has ended, in part or completely: Linux's rules for a TCP socket, in one table.
//!
//! They hold while a stream is not plain; a plain one is the kernel's own socket. They need this of the kernel's state:
//!
//! | what happened | no more in | no more out | over | error |
//! | --- | --- | --- | --- | --- |
//! | `shutdown(SHUT_RD)` | yes | | | |
//! | the peer's FIN | yes | | if we have ended too | |
//! | `shutdown(SHUT_WR)` | | yes | if the peer's FIN has come | |
//! | a reset | yes | yes | yes | ECONNRESET |
//! | a reset after the peer's FIN, while we had not ended | yes | yes | yes | EPIPE |
//! | a reset after both had ended | | | | none: nobody is there to see it |
//!
//! | call | answer, the first that applies |
//! | --- | --- |
//! | `recv` | what has arrived; the end, if the peer's FIN has come; the error; the end, if no more comes in |
//! | `send` | the error; EPIPE, if no more goes out; all of it, and a reset, if the peer reads no more |
//! | `shutdown` | ENOTCONN, if it is over |
//! | `SO_ERROR` | the error |
//! | `getpeername` | ENOTCONN, if it is over |
//! | `TCP_INFO`: state | [`TcpState`] |
//! | `SIOCOUTQ` | what was written to a peer that reads no more; and [`Stream::queued_to_send`] |
//! | `poll`: IN | as many bytes as SO_RCVLOWAT wants, or no more in |
//! | `poll`: OUT | room, or no more out |
//! | `poll`: RDHUP | no more in |
//! | `poll`: HUP | no more in and no more out |
//! | `poll`: ERR | an error |
//!
//! The error is reported once, by whichever call comes first. The peer reads no more when it has closed, or has shut
//! down reading and ended its own direction, or is gone.

use crate::ring::RxRing;
use crate::stream::state::Failed;
use crate::stream::{Failure, PeerFin, RxSource, RxState, SocketError, Stream, TxState};

/// The state of the connection, by the kernel's names. States that last only until an acknowledgement arrives are not
/// among them, because a link acknowledges at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// ESTABLISHED
    Established,
    /// CLOSE_WAIT: the peer has ended its direction.
    CloseWait,
    /// FIN_WAIT2: this side has ended its direction.
    FinWait,
    /// CLOSE: the connection is over.
    Closed,
}

impl Stream {
    /// The state that the kernel would report if it had carried the whole connection.
    pub fn tcp_state(&self) -> TcpState {
        match (self.fin_received(), self.tx.shutdown.is_wanted()) {
            _ if self.is_over() => TcpState::Closed,
            (true, _) => TcpState::CloseWait,
            (_, true) => TcpState::FinWait,
            _ => TcpState::Established,
        }
    }

    /// Bytes that the kernel would still have to send. A ring represents both of the kernel's buffers: the first half
    /// of the unread bytes counts as received by the peer, the rest as waiting to be sent.
    pub fn queued_to_send(&self) -> u64 {
        self.unconsumed().saturating_sub(u64::from(self.tx_ring_len() / 2))
    }

    /// Bytes that were written to a peer that reads no more: sent, but never acknowledged.
    pub fn refused(&self) -> u32 {
        self.tx.refused
    }

    /// Reads end when all bytes that have arrived have been read.
    #[inline]
    pub fn no_more_in(&self) -> bool {
        self.fin_received() || self.rx.shutdown.is_wanted() || self.failed.is_some()
    }

    /// Writes fail.
    #[inline]
    pub fn no_more_out(&self) -> bool {
        self.tx.shutdown.is_wanted() || self.failed.is_some()
    }

    /// The application has ended its direction, by `shutdown` or by closing, before anything else ended it.
    pub fn has_closed_writing(&self) -> bool {
        self.tx.shutdown.is_wanted()
    }

    /// The connection has ended; in the kernel's terms it is closed.
    pub fn is_over(&self) -> bool {
        self.failed.is_some() || self.fin_received() && self.tx.shutdown.is_wanted()
    }

    /// Whether no bytes are left for a program that reads no more, although the anchor's next bytes are unknown.
    pub fn is_read_out(&self) -> bool {
        self.rx.shutdown.is_wanted() && matches!(self.rx.state, RxState::Expect(_)) && self.is_ring_empty()
    }

    /// Whether RESUME may be next on the anchor.
    pub fn may_resume(&self) -> bool {
        matches!(self.rx.state, RxState::Link | RxState::AwaitResume) || self.expects_unmarked()
    }

    /// Whether the peer may have switched by a message on the link that this side has not handled, and left nothing of that on
    /// the anchor.
    //= spec §4.3.10
    //# A side that waits for UNMARKED handles every message of the link that the peer has sent, before it acts on the end of
    //# the anchor, or on RESUME there.
    pub fn expects_unmarked(&self) -> bool {
        matches!(self.rx.state, RxState::Expect(_)) && self.is_put_off()
    }

    /// Whether the peer's messages on the link decide the meaning of an end of the anchor.
    pub fn ends_by_link(&self) -> bool {
        matches!(self.rx.state, RxState::Link | RxState::AwaitResume | RxState::Drain) || self.tx.state == TxState::Link
    }

    /// The error that no call has received yet.
    #[inline]
    pub fn error(&self) -> Option<SocketError> {
        self.failed.and_then(|failed| failed.error)
    }

    /// The error, for the call that receives it.
    pub fn take_error(&mut self) -> Option<SocketError> {
        self.failed.as_mut().and_then(|failed| failed.error.take())
    }

    /// The application has written `len` bytes where [`TxSink`](crate::TxSink) is `Refused`; not for a write of nothing.
    pub fn refuse_write(&mut self, len: u32) {
        // No kernel acknowledges them.
        self.tx.refused = len;
        //= spec §4.8.3
        //# Bytes written to a peer that reads no more are discarded and answered with RESET, for both sides, as its
        //# kernel would answer them.
        self.reset_peer();
    }

    /// Whether the stream has ended permanently, as far as it can: nothing more comes by the link, and nothing can be
    /// replayed.
    pub fn has_ended(&self) -> bool {
        self.rx.state == RxState::Drain || self.failed.is_some() && self.is_linked()
    }

    /// Whether the peer's end of the connection is gone: bytes written there have no reader. CLOSE alone does not show
    /// this; a peer that has left the link sends it too.
    pub fn is_peer_gone(&self) -> bool {
        self.peer_is_done() || self.rx.state == RxState::Drain
    }

    /// Gives a stream that [`has_ended`](Stream::has_ended), and that has no bytes left to read, back to its anchor,
    /// which has ended in the same way. Returns whether that could be done.
    pub fn give_back(&mut self) -> bool {
        if !self.has_ended() || !self.is_ring_empty() || self.is_closed() {
            return false;
        }
        //= spec §4.8.6
        //# A stream that has ended permanently, and has no bytes left to read, is given back to its anchor once that
        //# has ended in the same way
        (self.tx.state, self.rx.state) = (TxState::Anchor, RxState::Anchor);
        (self.tx.ring, self.rx.ring) = (None, None);
        self.failed = None;
        if self.fin_received() {
            self.rx.fin = PeerFin::Awaited;
        }
        self.tx.shutdown.repeat_on_anchor();
        self.link.demotion = None;
        self.anchor.records.clear();
        self.try_close();
        true
    }

    /// The result of `recv` when no bytes are left to read.
    pub(super) fn rx_end(&self) -> RxSource {
        match self.failed {
            Some(Failed { cause, error: Some(_) }) if !self.end_is_here() => RxSource::Failed(cause.into()),
            _ if self.no_more_in() || self.rx.state == RxState::Drain => RxSource::Eof,
            _ => RxSource::Link,
        }
    }

    /// The stream fails; the directions that had ended before decide the error that the program gets.
    pub(super) fn record_failure(&mut self, failure: Failure) {
        //= spec §4.8.4
        //# A stream that fails after both directions have ended reports no error; after the peer's alone, a broken
        //# pipe; otherwise a reset.
        if self.failed.is_none() {
            let error = match (self.end_is_here(), self.tx.shutdown.is_wanted()) {
                (true, true) => None,
                (true, false) => Some(SocketError::Pipe),
                (false, _) => Some(SocketError::Reset),
            };
            self.failed = Some(Failed { cause: failure.into(), error });
        }
    }

    /// The peer's FIN has come, and all bytes sent before it can be read.
    fn end_is_here(&self) -> bool {
        let lost = matches!(self.rx.state, RxState::Expect(_)) && !self.is_ring_empty();
        self.fin_received() && !lost
    }

    pub(super) fn is_ring_empty(&self) -> bool {
        self.rx.ring.as_ref().is_none_or(RxRing::is_empty)
    }

    /// Whether the peer discards bytes that are written to it.
    #[inline]
    pub(super) fn peer_is_deaf(&self) -> bool {
        let ended = self.fin_received() && (self.link.peer.usage.is_closed() || self.link.peer.read_shut)
            || self.rx.state == RxState::Drain;
        // While a stream changes its path, the anchor's state decides.
        ended && matches!(self.tx.state, TxState::Link | TxState::Anchor)
    }

    /// Whether this side discards bytes that come by the link.
    #[inline]
    pub(super) fn takes_no_data(&self) -> bool {
        //= spec §4.8.2
        //# A side that has closed, or has shut down reading and ended its own direction, answers DATA with RESET, unless the
        //# peer's direction has ended too.
        self.is_closed() || self.rx.shutdown.is_wanted() && self.tx.shutdown.is_wanted() && !self.fin_received()
    }
}
