//! What a stream holds back.

use std::time::Duration;

use netacc_proto::Span;

/// How long bytes are held back at least, if the application does not let go of them; at most twice as long. The kernel's
/// ceiling for `TCP_CORK` is 200 ms (tcp(7)), and programs rely on two writes within that time to be one segment.
pub(crate) const CORK_INTERVAL: Duration = Duration::from_millis(200);

/// After so many messages without a word from the peer's application a stream is no conversation, and its small messages
/// wait for each other. Arbitrary: more than an answer in pieces, and less than devices are asked for completions.
pub(super) const UNHEARD: u32 = 8;

/// What a stream holds back.
#[derive(Default)]
pub(crate) struct Cork {
    pub(super) held: Option<Held>,
    /// The application has asked for it: it is let go by the application, or after [`CORK_INTERVAL`].
    pub(super) asked: bool,
    /// It has waited for a completion: as others may behind it.
    pub(super) waited: bool,
    /// The endpoint knows, and looks after [`CORK_INTERVAL`].
    pub(super) noted: bool,
    /// Spans that were held so far; and when the endpoint looked last.
    pub(super) spans: u64,
    pub(super) seen: u64,
}

pub(super) struct Held {
    pub(super) span: Span,
    pub(super) rewind: bool,
}

impl Cork {
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Whether something is held that the next room, or completion, is to let go.
    pub(crate) fn holds_unasked(&self) -> bool {
        self.held.is_some() && !self.asked
    }

    /// Whether a further write cannot be sure to find a place behind what is held.
    #[inline]
    pub(super) fn is_full(&self, message_len: u32, ring_len: u32) -> bool {
        self.held
            .as_ref()
            .is_some_and(|Held { span, .. }| span.len >= message_len / 2 || span.offset + span.len >= ring_len)
    }
}
