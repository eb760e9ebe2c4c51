//! Crowds: many connections of this process to one service, open at the same time.
//!
//! A promotion takes some tens of microseconds, and programs with many connections mostly make all of them before they
//! use them. So a connection that joins a crowd asks for its link at once: the work is then done while the program still
//! connects, and does not delay its first requests. A connection that is one of a few asks later, after some operations,
//! because it may be short, and waits for nobody else's promotion.
//!
//! The rule applies once a peer of the service was found, so a service that is not accelerated costs a single attempt.
//! Services that share a slot are taken for one, as in [`lifetimes`](crate::lifetimes).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};

use crate::lifetimes::{slot_of, SLOTS};

/// Connections that are a crowd. Arbitrary: the promotions of fewer take a few milliseconds together.
pub const CROWD: u32 = 64;

/// The crowds, by service.
#[derive(Debug)]
pub struct Crowds {
    slots: [Crowd; SLOTS],
}

#[derive(Debug)]
struct Crowd {
    open: AtomicU32,
    stage: AtomicU8,
}

/// How far a service's crowd has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// No peer was found yet.
    Unknown,
    /// One connection of a crowd has asked for its link at once, to find the peer.
    Sought,
    /// A peer was found.
    Found,
    /// And all connections of a crowd have asked for links.
    Gathered,
}

/// The part of a new connection in its crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// It asks for its link after some operations.
    Later,
    /// It asks now.
    Now,
    /// It asks now, and so do all others that have not asked.
    WithAll,
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub struct Member(&'static Crowd);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Crowds {
    fn default() -> Crowds {
        let crowd = || Crowd { open: AtomicU32::new(0), stage: AtomicU8::new(Stage::Unknown as u8) };
        Crowds { slots: std::array::from_fn(|_| crowd()) }
    }
}

impl Crowds {
    /// A connection to `service` is made.
    pub fn join(&'static self, service: &SocketAddr) -> Member {
        let crowd = &self.slots[slot_of(service)];
        if crowd.open.fetch_add(1, Ordering::Relaxed) == CROWD / 2 {
            // The crowd before it, if there was one, has gone.
            crowd.turn(Stage::Gathered, Stage::Found);
        }
        Member(crowd)
    }

    /// A peer of `service` was found. Returns whether all connections to it are to ask for links now.
    pub fn found(&self, service: &SocketAddr) -> bool {
        let crowd = &self.slots[slot_of(service)];
        let is_new = crowd.turn(Stage::Unknown, Stage::Found) || crowd.turn(Stage::Sought, Stage::Found);
        is_new && crowd.is_one() && crowd.turn(Stage::Found, Stage::Gathered)
    }
}

impl Member {
    /// Whether there is a crowd.
    pub fn is_of_many(&self) -> bool {
        self.0.is_one()
    }

    /// When the connection, which was just made, asks for its link.
    pub fn asks(&self) -> Asks {
        let crowd = self.0;
        if !crowd.is_one() {
            Asks::Later
        } else if crowd.turn(Stage::Found, Stage::Gathered) {
            Asks::WithAll
        } else if crowd.turn(Stage::Unknown, Stage::Sought)
            || crowd.stage.load(Ordering::Relaxed) == Stage::Gathered as u8
        {
            Asks::Now
        } else {
            Asks::Later
        }
    }
}

impl Crowd {
    fn is_one(&self) -> bool {
        self.open.load(Ordering::Relaxed) >= CROWD
    }

    /// Goes from one stage to another. Whether it was at that stage.
    fn turn(&self, from: Stage, to: Stage) -> bool {
        // Mostly it is not, and a failed exchange takes the cache line all the same.
        self.stage.load(Ordering::Relaxed) == from as u8
            && self.stage.compare_exchange(from as u8, to as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowds() -> &'static Crowds {
        Box::leak(Box::default())
    }

    fn service(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn join(crowds: &'static Crowds, count: u32) -> (Vec<Member>, Vec<Asks>) {
        let members: Vec<_> =
            (0..count).map(|_| crowds.join(&service(1))).map(|member| (member.asks(), member)).collect();
        members.into_iter().map(|(asks, member)| (member, asks)).unzip()
    }

    /// Breaks if the connections of a crowd asked late, or those of a few at once.
    #[test]
    fn connections_ask_at_once_from_the_one_on_that_makes_a_crowd() {
        let crowds = crowds();
        assert!(!crowds.found(&service(1)), "nobody else is there");
        let (members, asks) = join(crowds, 2 * CROWD);
        let few = CROWD as usize - 1;
        assert!(asks[..few].iter().all(|asks| *asks == Asks::Later));
        assert_eq!(asks[few], Asks::WithAll);
        assert!(asks[few + 1..].iter().all(|asks| *asks == Asks::Now));
        assert_eq!(crowds.join(&service(2)).asks(), Asks::Later, "another service");
        drop(members);
        let (_, asks) = join(crowds, CROWD);
        assert_eq!((asks[0], asks[few]), (Asks::Later, Asks::WithAll), "the next crowd");
    }

    /// Breaks if each connection to a service that is not accelerated asked for a link, or none of a crowd did.
    #[test]
    fn one_connection_asks_for_all_as_long_as_no_peer_was_found() {
        let crowds = crowds();
        let (_members, asks) = join(crowds, 3 * CROWD);
        assert_eq!(asks.iter().filter(|asks| **asks != Asks::Later).count(), 1);
        assert_eq!(asks[CROWD as usize - 1], Asks::Now);
        assert!(crowds.found(&service(1)) && !crowds.found(&service(1)), "all ask, once");
        assert_eq!(crowds.join(&service(1)).asks(), Asks::Now);
    }

    /// Breaks if a later lookup let all connections ask that were not to ask at once: those made while the service's last
    /// ones were short.
    #[test]
    fn only_the_first_peer_that_is_found_lets_all_ask() {
        let crowds = crowds();
        assert!(!crowds.found(&service(1)), "nobody else is there");
        let members: Vec<_> = (0..CROWD).map(|_| crowds.join(&service(1))).collect();
        assert!(!crowds.found(&service(1)));
        let (_, asks) = join(crowds, 1);
        assert_eq!((asks[0], members.len()), (Asks::WithAll, CROWD as usize));
    }

    /// Breaks if a connection took another service's crowd for its own, or a crowd that has gone for one.
    #[test]
    fn a_member_knows_whether_there_is_a_crowd() {
        let crowds = crowds();
        let mut members: Vec<_> = (1..CROWD).map(|_| crowds.join(&service(1))).collect();
        assert!(!members[0].is_of_many());
        members.push(crowds.join(&service(1)));
        assert!(members[0].is_of_many() && !crowds.join(&service(2)).is_of_many());
        members.pop();
        assert!(!members[0].is_of_many());
    }

    /// Breaks if a pool with about so many connections let all of them ask each time that it makes one.
    #[test]
    fn all_ask_again_only_after_most_have_gone() {
        let crowds = crowds();
        crowds.found(&service(1));
        let (mut members, _) = join(crowds, CROWD);
        for _ in 0..10 {
            members.pop();
            let (member, asks) = join(crowds, 1);
            assert_eq!(asks, [Asks::Now]);
            members.extend(member);
        }
        for (left, next) in [(CROWD / 2 + 1, Asks::Now), (CROWD / 2, Asks::WithAll)] {
            members.truncate(left as usize);
            let (more, asks) = join(crowds, CROWD - left);
            assert_eq!(asks.last(), Some(&next), "{left} were left");
            members.extend(more);
        }
    }
}
