//! How long the connections to a service live, in calls. A link costs as much as several requests on TCP, so a
//! connection that ends after a few requests is better off on TCP. The opener cannot see that in advance, so it expects
//! what the last connections to the same service have shown.
//!
//! Connections to an unknown service get their link early, and so do all if the last one was long: a wrong guess costs
//! a short connection one link, and a long one a few requests on TCP.
//!
//! Services are told apart by a hash of their address. Two that share a slot are taken for one.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

/// The calls after which a link has paid for itself. Arbitrary: on shared memory one costs about forty system calls in
/// each process and wakes both helper threads; a request on TCP is four calls.
const PAYS: u32 = 24;
/// A call with so many bytes counts as several. Arbitrary: the default length of a message.
const BYTES: u64 = 16 << 10;
/// So many short connections in a row make the next one wait. Arbitrary.
const EVIDENCE: u8 = 4;
/// A power of two. Arbitrary.
pub const SLOTS: usize = 256;

/// The lifetimes of the last connections, by service.
#[derive(Debug)]
pub struct Lifetimes {
    slots: [Service; SLOTS],
}

#[derive(Debug)]
struct Service {
    /// The number of connections in a row that were too short for a link.
    short: AtomicU8,
    /// The calls of the last connection, or 255 if there were more.
    calls: AtomicU8,
}

impl Default for Lifetimes {
    fn default() -> Lifetimes {
        Lifetimes { slots: [const { Service { short: AtomicU8::new(0), calls: AtomicU8::new(0) } }; SLOTS] }
    }
}

impl Lifetimes {
    /// The operation at which the next connection to `service` is to be promoted; `least` if nothing speaks against it.
    pub fn first_try(&self, service: &SocketAddr, least: u32) -> u32 {
        match self.are_short(service) {
            false => least,
            true => least.max(PAYS),
        }
    }

    /// Whether the last connections to `service` were too short for a link.
    pub fn are_short(&self, service: &SocketAddr) -> bool {
        self.slot(service).short.load(Ordering::Relaxed) >= EVIDENCE
    }

    /// Whether they were, but the last one had at least so many calls.
    pub fn are_short_but_not_below(&self, service: &SocketAddr, calls: u32) -> bool {
        self.are_short(service) && u32::from(self.slot(service).calls.load(Ordering::Relaxed)) >= calls
    }

    /// A connection to `service` has ended after so many calls that moved so many bytes.
    pub fn note_end(&self, service: &SocketAddr, calls: u64, bytes: u64) {
        let slot = self.slot(service);
        let short = slot.short.load(Ordering::Relaxed);
        let short = if calls.saturating_add(bytes / BYTES) < PAYS.into() { (short + 1).min(EVIDENCE) } else { 0 };
        slot.short.store(short, Ordering::Relaxed);
        slot.calls.store(calls.try_into().unwrap_or(u8::MAX), Ordering::Relaxed);
    }

    /// Nothing is expected of the next connections to `service`.
    pub fn forget(&self, service: &SocketAddr) {
        self.slot(service).short.store(0, Ordering::Relaxed);
    }

    fn slot(&self, service: &SocketAddr) -> &Service {
        &self.slots[slot_of(service)]
    }
}

/// The slot of a service, below [`SLOTS`].
pub fn slot_of(service: &SocketAddr) -> usize {
    let address = match service.ip().to_canonical() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64 ^ ip.to_bits() as u64,
    };
    // Fibonacci hashing: enough to tell services apart, and each connection takes it a few times.
    let spread = (address << 16 ^ u64::from(service.port())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread >> (u64::BITS - SLOTS.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u32 = 2;

    fn service(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn short_connections_make_the_next_wait_until_one_is_long() {
        let lifetimes = Lifetimes::default();
        for _ in 0..EVIDENCE {
            assert_eq!(lifetimes.first_try(&service(1), LEAST), LEAST);
            lifetimes.note_end(&service(1), 4, 256);
        }
        assert_eq!(lifetimes.first_try(&service(1), LEAST), PAYS);
        assert_eq!(lifetimes.first_try(&service(1), 2 * PAYS), 2 * PAYS, "the user's wish");
        assert_eq!(lifetimes.first_try(&service(2), LEAST), LEAST, "another service");
        lifetimes.note_end(&service(1), u64::from(PAYS), 0);
        assert_eq!(lifetimes.first_try(&service(1), LEAST), LEAST);
    }

    #[test]
    fn what_is_forgotten_must_be_shown_again() {
        let lifetimes = Lifetimes::default();
        (0..EVIDENCE).for_each(|_| lifetimes.note_end(&service(1), 12, 256));
        assert!(lifetimes.are_short_but_not_below(&service(1), 12));
        assert!(!lifetimes.are_short_but_not_below(&service(1), 13));
        lifetimes.forget(&service(1));
        assert!(!lifetimes.are_short(&service(1)) && !lifetimes.are_short_but_not_below(&service(1), 12));
    }

    #[test]
    fn a_connection_with_many_bytes_is_long() {
        let lifetimes = Lifetimes::default();
        for _ in 0..2 * EVIDENCE {
            lifetimes.note_end(&service(1), 2, u64::from(PAYS) * BYTES);
        }
        assert_eq!(lifetimes.first_try(&service(1), LEAST), LEAST);
    }
}
