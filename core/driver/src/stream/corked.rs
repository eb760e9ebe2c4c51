//! The bytes that a stream holds back.

use std::time::Duration;

use netacc_proto::Span;

/// How long bytes are held back at least, if the program does not release them; at most twice as long. The kernel's
/// ceiling for `TCP_CORK` is 200 ms (tcp(7)), and programs rely on two writes within that time to be one segment.
pub(crate) const CORK_INTERVAL: Duration = Duration::from_millis(200);

/// After so many messages without an answer from the peer's program a stream is no conversation, and its small messages
/// wait for each other. Arbitrary: more messages than an answer in pieces has, and fewer than the interval of signaled
/// requests.
pub(super) const MAX_UNANSWERED: u32 = 8;

/// The bytes that a stream holds back.
#[derive(Default)]
pub(crate) struct Cork {
    pub(super) corked: Option<Corked>,
    /// The program has corked them: the program releases them, or the endpoint after [`CORK_INTERVAL`].
    pub(super) requested: bool,
    /// It has waited for a completion: other bytes may have to wait behind it.
    pub(super) waited: bool,
    /// The endpoint has them in its list, and checks them after [`CORK_INTERVAL`].
    pub(super) listed: bool,
    /// The number of spans held back so far; and the number at the endpoint's last check.
    pub(super) spans: u64,
    pub(super) seen: u64,
}

pub(super) struct Corked {
    pub(super) span: Span,
    pub(super) rewind: bool,
}

impl Cork {
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.corked.is_some()
    }

    /// Whether bytes are held back that the next room, or completion, is to release.
    pub(crate) fn awaits_room(&self) -> bool {
        self.corked.is_some() && !self.requested
    }

    /// Whether a further write cannot be sure to find room behind the bytes held back.
    #[inline]
    pub(super) fn is_full(&self, message_len: u32, ring_len: u32) -> bool {
        self.corked
            .as_ref()
            .is_some_and(|Corked { span, .. }| span.len >= message_len / 2 || span.offset + span.len >= ring_len)
    }
}
