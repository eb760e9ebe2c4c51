//! Requests of crowds for links, from the threads that make their connections to the helper thread.
//!
//! A connection that was just made has mostly not been accepted yet, and others follow. So the helper, once it is woken by
//! the first request, waits for a moment and then serves all of them in one turn. A request costs no wake-up meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netacc_driver::StreamCell;
use parking_lot::Mutex;

/// How long the helper waits for more requests after the first one. Arbitrary: the shortest sleep of a thread in `epoll_wait`.
pub(crate) const GATHERING: Duration = Duration::from_millis(1);

/// A request.
pub(crate) enum Arrival {
    /// For a link for the stream of a connection that was just made.
    Stream(Arc<StreamCell>),
    /// For links for all connections to a service.
    All(SocketAddr),
}

/// The requests that the helper has not served.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<Vec<Arrival>>);

impl Arrivals {
    /// Adds a request. Returns whether it is the first, so that the helper must be woken.
    pub(crate) fn add(&self, arrival: Arrival) -> bool {
        let mut arrivals = self.0.lock();
        arrivals.push(arrival);
        arrivals.len() == 1
    }

    /// Whether there is a request.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// All requests, in their order.
    pub(crate) fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut self.0.lock())
    }
}
