//! State that a locked stream and its anchor show without the endpoint: readiness, above all.

use std::sync::Arc;

use netacc_device::{AnchorError, Shown};
use netacc_proto::{Rest, RxSource, SocketError, TxSink};

use super::cell::{Inner, LinkCell};
use super::states::{Flow, Listed};
use crate::Readiness;

/// The number of the check of an ended anchor at which a reset is provoked. Arbitrary: while a thread waits, the checks
/// are tens of microseconds apart, and a peer's reset follows its FIN within a few microseconds.
const PROVOKING_CHECK: u32 = 16;

impl Inner {
    /// The link that the stream is on, or is being moved to or from.
    #[inline]
    pub(crate) fn link(&self) -> Option<&Arc<LinkCell>> {
        self.attached.as_ref().map(|at| &at.link)
    }

    /// See [`LockedStream::is_steady`](crate::LockedStream::is_steady).
    #[inline]
    pub(super) fn is_steady(&self) -> bool {
        self.proto.is_flowing() && self.proto.is_steady() && !self.sending.cork.is_pending() && !self.sending.crowded
    }

    /// The same, as found after the last change.
    #[inline]
    pub(super) fn is_known_steady(&self) -> bool {
        let known = self.reported.flow == Flow::Link;
        debug_assert!(!known || self.is_steady(), "the stream was changed without a flush");
        known
    }

    /// How bytes move now.
    #[inline]
    pub(super) fn flow(&self) -> Flow {
        if self.is_steady() {
            Flow::Link
        } else if self.proto.is_at_rest() && self.attached.is_none() && !self.sending.cork.is_pending() {
            Flow::Anchor
        } else {
            Flow::Changing
        }
    }

    /// Neither side uses the stream's resources on its link any more. A CLOSE that found the queue full is still to go.
    pub(crate) fn is_idle(&self) -> bool {
        let proto = &self.proto;
        !(proto.uses_slot() || proto.needs_memory() || proto.has_control() || self.lingers())
    }

    /// Whether the kernel will report the same error, for an anchor that has ended as the stream has: a broken pipe if
    /// the peer's FIN was there before its reset.
    pub(super) fn kernel_reports_error(&self) -> bool {
        !self.tcp.end.differs && (self.proto.error() != Some(SocketError::Reset) || !self.tcp.end.fin_seen)
    }

    /// What is next on the anchor.
    pub(super) fn shown(&self) -> Shown {
        self.anchor.shown(self.tcp.low_water)
    }

    /// Whether the peer's FIN is next on the anchor.
    pub(crate) fn has_fin(&mut self) -> bool {
        let now = match self.check_fin() {
            Some(fin) => fin && self.anchor.unread() == 0,
            // Takes the error of a reset that came without a FIN.
            None => match self.anchor.try_peek(&mut [0]) {
                Ok(n) => n == 0,
                Err(error) => {
                    self.tcp.end.broken |= !matches!(error, AnchorError::WouldBlock);
                    false
                }
            },
        };
        self.tcp.end.fin_seen |= now;
        now
    }

    /// Whether the peer's FIN has come on the anchor, perhaps behind unread bytes; `None` if only reading can show it.
    pub(crate) fn check_fin(&mut self) -> Option<bool> {
        let counted = (!self.tcp.recount).then_some(self.tcp.carried.read)?;
        let fin = self.anchor.has_fin(counted)?;
        self.tcp.end.fin_seen |= fin;
        Some(fin)
    }

    /// What follows the unread beginning of a record, of which `rest` is what the caller knows.
    pub(super) fn rest_of_record(&mut self, rest: Rest) -> Rest {
        // The kernel may report the reset of a connection to no caller: that of a closed stream, above all.
        let over = self.anchor.is_over() || self.tcp.end.broken;
        match self.check_fin() {
            _ if !over => rest,
            Some(false) => Rest::Reset,
            None if self.tcp.end.broken && !self.tcp.end.fin_seen => Rest::Reset,
            _ => Rest::Ended,
        }
    }

    /// If the kernel has only the peer's FIN where a reset is due: writes one byte, once, which the peer's kernel
    /// answers with the reset.
    ///
    /// Not at the first check. A peer that resets its anchor has sent FIN just before, and a reset that comes at this
    /// moment would become the error of this write, and be lost for the program.
    pub(crate) fn provoke_reset(&mut self) {
        if !self.anchor.is_ended() || self.anchor.is_over() {
            return;
        }
        self.tcp.end.checks = self.tcp.end.checks.saturating_add(1);
        if self.tcp.end.checks == PROVOKING_CHECK {
            self.tcp.carried.written += self.anchor.try_write(&[0]).unwrap_or(0) as u64;
        }
    }

    /// Whether a write would not have to wait: there is byte credit, and room for a message or a place behind the bytes
    /// that wait for it.
    pub(super) fn has_room(&self) -> bool {
        let behind = || !self.sending.cork.is_full(self.sending.message_len, self.proto.tx_ring_len());
        let fails = || self.link().is_none_or(|link| link.is_failing());
        self.proto.link_writable() && (!self.sending.crowded || !fails() && behind())
    }

    /// Closed by the program, but records may still have to be read from the anchor or written to it.
    pub(crate) fn lingers(&self) -> bool {
        self.proto.must_linger()
    }
}

/// The result of `poll`: the table of `netacc_proto`'s `stream/tcp.rs`.
#[inline]
pub(super) fn readiness_of(inner: &Inner, low_water: u32) -> Readiness {
    let proto = &inner.proto;
    // A sender that has no room does not wait for a reader that requires more bytes than there is room for.
    let has_enough = || {
        let available = proto.available();
        available > 0 && (available >= low_water || available >= proto.rx_ring_len() / 2)
    };
    if proto.is_flowing() {
        let readable = if has_enough() { Readiness::READABLE } else { Readiness::empty() };
        return if inner.has_room() { readable | Readiness::WRITABLE } else { readable };
    }
    let mut r = match proto.rx_source() {
        RxSource::Anchor(_) => Readiness::KERNEL_RX,
        _ if proto.no_more_in() => Readiness::READABLE,
        RxSource::Link if has_enough() => Readiness::READABLE,
        // The kernel's readiness announces a record; the caller of `poll` makes progress first.
        RxSource::Link | RxSource::Record => Readiness::empty(),
        RxSource::Eof | RxSource::Failed(_) => Readiness::READABLE,
    };
    r |= match proto.tx_sink() {
        TxSink::Link if inner.has_room() => Readiness::WRITABLE,
        TxSink::Link | TxSink::Wait => Readiness::empty(),
        // Assumed writable until a write has had to wait.
        TxSink::Pledged if inner.listed.contains(Listed::PLEDGED) => Readiness::empty(),
        TxSink::Anchor | TxSink::Pledged => Readiness::KERNEL_TX,
        TxSink::Closed | TxSink::Refused => Readiness::WRITABLE,
    };
    if r.contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
        return r;
    }
    if proto.error().is_some() {
        r |= Readiness::ERR;
    }
    if proto.no_more_in() {
        r |= Readiness::RDHUP;
    }
    if proto.no_more_in() && proto.no_more_out() {
        r |= Readiness::HUP;
    }
    r
}
