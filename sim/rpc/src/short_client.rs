//! A client that makes short connections: how many it has, and when it makes the next.

use std::num::NonZeroU32;

use netacc_device::Instant;

use crate::workload::{Conversation, Source};

/// A client that makes short connections.
pub(crate) struct ShortClient {
    pub(crate) plan: Conversation,
    pub(crate) requests: NonZeroU32,
    /// When connections are due.
    pub(crate) source: Source,
    pub(crate) made: u64,
    /// Those that the client has not closed.
    pub(crate) open: u32,
    /// When its host will be woken for the next one.
    pub(crate) wake_at: Option<Instant>,
}

impl ShortClient {
    pub(crate) fn new(plan: &Conversation) -> Option<ShortClient> {
        let requests = plan.requests_per_connection?;
        let source = Source::new(plan.clone());
        Some(ShortClient { plan: plan.clone(), requests, source, made: 0, open: 0, wake_at: None })
    }

    /// No connection is open, and none will be made.
    pub(crate) fn is_over(&self) -> bool {
        self.open == 0 && self.source.due().is_none()
    }
}
