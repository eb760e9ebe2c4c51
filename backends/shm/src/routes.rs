//! The peers of a shared folder, and the addresses of connections at which they are known to be.
//!
//! A process of another container may have announced a connection whose addresses exist in another network, too, or may
//! announce one that it does not have. An opener writes on the kernel's connection once a peer has accepted, so a peer
//! is used for an address only after a datagram with a fresh nonce, which was sent to that address, has reached it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netacc_device::PeerAddress;
use parking_lot::Mutex;

/// The time after which an unanswered question is repeated, if a connection needs the answer. Arbitrary: datagrams
/// within a host take far less.
const PATIENCE: Duration = Duration::from_secs(1);
/// Routes that are remembered. Arbitrary; beyond it all are forgotten, and proven again where they are needed.
const MAX_ROUTES: usize = 4096;

/// A peer, and the addresses of a connection to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    pub peer: PeerAddress,
    pub local: IpAddr,
    pub remote: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Wanted,
    /// The peer was asked to listen at the address, and gets this nonce there.
    Asked {
        nonce: [u64; 2],
        at: Instant,
    },
    /// It could not be asked, or the address is not one of its own.
    Refused {
        at: Instant,
    },
    Proven,
}

/// All routes of a device.
#[derive(Debug, Default)]
pub(crate) struct Routes(Mutex<HashMap<Route, State>>);

impl Routes {
    /// `None`: the route is proven. Otherwise whether there is something to do for it.
    pub(crate) fn check(&self, route: Route, now: Instant) -> Option<bool> {
        let mut known = self.0.lock();
        match known.get(&route) {
            Some(State::Proven) => return None,
            Some(State::Wanted) => return Some(true),
            Some(State::Asked { at, .. } | State::Refused { at }) if now.saturating_duration_since(*at) < PATIENCE => {
                return Some(false)
            }
            _ => {}
        }
        if known.len() >= MAX_ROUTES {
            known.clear();
        }
        known.insert(route, State::Wanted);
        Some(true)
    }

    /// The wanted routes for whose peer no other question is open: a peer answers one at a time.
    pub(crate) fn wanted(&self, now: Instant) -> Vec<Route> {
        let known = self.0.lock();
        let is_open =
            |state: &State| matches!(state, State::Asked { at, .. } if now.saturating_duration_since(*at) < PATIENCE);
        let mut busy: Vec<PeerAddress> =
            known.iter().filter(|(_, state)| is_open(state)).map(|(route, _)| route.peer).collect();
        let mut routes = Vec::new();
        for (route, _) in known.iter().filter(|(_, state)| **state == State::Wanted) {
            if !busy.contains(&route.peer) {
                busy.push(route.peer);
                routes.push(*route);
            }
        }
        routes
    }

    /// The peer is being asked.
    pub(crate) fn ask(&self, route: Route, nonce: [u64; 2], at: Instant) {
        self.0.lock().insert(route, State::Asked { nonce, at });
    }

    /// The peer cannot prove it now.
    pub(crate) fn refuse(&self, route: Route, at: Instant) {
        self.0.lock().insert(route, State::Refused { at });
    }

    /// The question that is open for a peer.
    pub(crate) fn asked(&self, peer: PeerAddress, remote: IpAddr) -> Option<(Route, [u64; 2])> {
        let known = self.0.lock();
        known.iter().find_map(|(route, state)| match state {
            State::Asked { nonce, .. } if route.peer == peer && route.remote == remote => Some((*route, *nonce)),
            _ => None,
        })
    }

    /// The peer has received something at the address that it was asked for. Returns whether that is the nonce: anything
    /// else proves nothing.
    pub(crate) fn received(&self, peer: PeerAddress, received: [u64; 2]) -> bool {
        let mut known = self.0.lock();
        let is_it = |state: &State| matches!(state, State::Asked { nonce, .. } if *nonce == received);
        let asked = known.iter_mut().find(|(route, state)| route.peer == peer && is_it(state));
        asked.map(|(_, state)| *state = State::Proven).is_some()
    }

    /// The peer is gone.
    pub(crate) fn forget(&self, peer: PeerAddress) {
        self.0.lock().retain(|route, _| route.peer != peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(peer: u64, remote: u8) -> Route {
        Route { peer: PeerAddress([peer; 4]), local: [10, 0, 0, 1].into(), remote: [10, 0, 0, remote].into() }
    }

    #[test]
    fn a_route_is_proven_by_its_nonce_alone() {
        let (routes, now) = (Routes::default(), Instant::now());
        let (one, other) = (route(1, 2), route(1, 3));
        assert_eq!((routes.check(one, now), routes.check(one, now)), (Some(true), Some(true)));
        assert_eq!(routes.wanted(now), [one]);
        routes.ask(one, [7, 8], now);
        routes.check(other, now);
        assert_eq!(routes.wanted(now), [], "one question at a time");
        assert_eq!(routes.asked(one.peer, one.remote), Some((one, [7, 8])));
        assert_eq!(routes.asked(one.peer, other.remote), None);
        assert!(!routes.received(route(2, 2).peer, [7, 8]) && !routes.received(one.peer, [7, 9]));
        assert_eq!(routes.check(one, now), Some(false));
        assert!(routes.received(one.peer, [7, 8]));
        assert_eq!((routes.check(one, now), routes.check(other, now)), (None, Some(true)));
        assert_eq!(routes.wanted(now), [other]);
        routes.forget(one.peer);
        assert_eq!(routes.check(one, now), Some(true), "another process may have its place");
    }

    #[test]
    fn a_refusal_makes_room_for_the_next_question() {
        let (routes, now) = (Routes::default(), Instant::now());
        routes.check(route(1, 2), now);
        routes.ask(route(1, 2), [1, 1], now);
        routes.check(route(1, 3), now);
        routes.refuse(route(1, 2), now);
        assert_eq!(routes.wanted(now), [route(1, 3)]);
        assert!(!routes.received(route(1, 2).peer, [1, 1]), "too late");
        assert_eq!(routes.check(route(1, 2), now), Some(false));
        assert_eq!(routes.check(route(1, 2), now + PATIENCE), Some(true));
    }

    #[test]
    fn an_unanswered_question_is_repeated_after_a_while() {
        let (routes, now) = (Routes::default(), Instant::now());
        routes.check(route(1, 2), now);
        routes.ask(route(1, 2), [1, 1], now);
        assert_eq!(routes.check(route(1, 2), now + PATIENCE / 2), Some(false));
        assert_eq!(routes.check(route(1, 2), now + PATIENCE), Some(true));
        assert_eq!(routes.wanted(now + PATIENCE), [route(1, 2)]);
    }

    #[test]
    fn routes_without_end_take_no_memory_without_end() {
        let routes = Routes::default();
        (0..3 * MAX_ROUTES as u64).for_each(|peer| {
            routes.check(route(peer, 1), Instant::now());
        });
        assert!(routes.0.lock().len() <= MAX_ROUTES);
    }
}
