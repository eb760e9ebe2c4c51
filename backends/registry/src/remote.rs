//! The state of peers on other hosts, and of our own connections to them.
//!
//! Links for a TCP port are accepted at its number plus [`PORT_OFFSET`]. A process that holds the accepted end of a
//! connection tries to listen there, once for each TCP port, from its first connection on. If several processes accept
//! on one port, one of them gets it, and refers peers that open another's connection to the port where that one
//! listens. The connector has no information about the other side, so it just tries; an absent peer is not tried again
//! for a while, longer each time.
//!
//! UDP ports have the same rule: a process that has received datagrams from other hosts at a port listens there.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netacc_device::{Backoff, FourTuple, PeerAddress};
use parking_lot::RwLock;

/// From a TCP port to the port for links: the rule of the original implementation.
pub(crate) const PORT_OFFSET: u16 = 20_000;

/// The pause before an absent peer is tried again. The first pause is arbitrary: a server needs about that time after
/// its first accept to begin to listen. The longest pause bounds how long connections stay on TCP to a server that is
/// accelerated only from its next start on. It costs one request per pause to each server that is not accelerated, and
/// no thread waits for the answer.
const PAUSE: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(30) };

/// The pause before a taken port is tried again, if there is a new connection. Arbitrary: about the time of a server's
/// restart.
const PORT_PAUSE: Duration = Duration::from_secs(1);

/// The number of absent peers that are remembered. Arbitrary; beyond it all are forgotten.
const MAX_ABSENT: usize = 4096;

/// A pause after a failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    until: Instant,
    len: Duration,
}

impl Pause {
    /// The failure is now. `before`: the pause after the previous failure.
    pub(crate) fn after(before: Option<Pause>, now: Instant, backoff: Backoff) -> Pause {
        let len = backoff.after(before.map(|before| before.len));
        Pause { until: now + len, len }
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.until.saturating_duration_since(now)
    }
}

/// A peer that was absent, or refused a link of ours.
#[derive(Clone, Copy, Debug)]
struct Absence {
    pause: Pause,
    /// The time at which a link was connected since. That link may still be refused, because of the pre-shared key, so
    /// the absence stays recorded.
    present: Option<Instant>,
}

/// After this time a connected link was not refused. Arbitrary: the time that setting up a link may take.
const CONFIRMED_AFTER: Duration = Duration::from_secs(10);

/// The port where links for a TCP port are accepted. `None`: there is no such port.
pub(crate) fn link_port(tcp: u16) -> Option<u16> {
    tcp.checked_add(PORT_OFFSET)
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct RemoteState {
    /// Streams of ours, by the tuple that this process sees.
    published: RwLock<HashMap<FourTuple, u32>>,
    absent: RwLock<HashMap<PeerAddress, Absence>>,
    ports: RwLock<HashMap<u16, Port>>,
    /// Sockets for datagrams are among what peers request links for.
    offers_flows: AtomicBool,
    /// A port is wanted.
    wanted: AtomicBool,
}

/// The state of a port at which we want to accept links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Wanted,
    Open,
    /// Another process had it.
    Taken(Instant),
}

impl RemoteState {
    pub(crate) fn publish(&self, tuple: &FourTuple, stream: u32) {
        self.published.write().insert(*tuple, stream);
    }

    pub(crate) fn withdraw(&self, tuple: &FourTuple, stream: u32) {
        let mut published = self.published.write();
        if published.get(tuple) == Some(&stream) {
            published.remove(tuple);
        }
    }

    pub(crate) fn resolve(&self, tuple: &FourTuple) -> Option<u32> {
        self.published.read().get(tuple).copied()
    }

    /// Peers may request links for datagrams.
    pub(crate) fn offer_flows(&self) {
        self.offers_flows.store(true, Ordering::Relaxed);
    }

    /// Whether a peer might request a link from us.
    pub(crate) fn is_published(&self) -> bool {
        self.offers_flows.load(Ordering::Relaxed) || !self.published.read().is_empty()
    }

    pub(crate) fn is_absent(&self, peer: PeerAddress, now: Instant) -> bool {
        self.absent.read().get(&peer).is_some_and(|absence| absence.present.is_none() && !absence.pause.is_over(now))
    }

    pub(crate) fn record_absent(&self, peer: PeerAddress, now: Instant) {
        let mut absent = self.absent.write();
        if absent.len() >= MAX_ABSENT {
            absent.clear();
        }
        let is_confirmed = |since: Instant| now.saturating_duration_since(since) >= CONFIRMED_AFTER;
        let before = absent.get(&peer).filter(|absence| !absence.present.is_some_and(is_confirmed));
        let pause = Pause::after(before.map(|absence| absence.pause), now, PAUSE);
        absent.insert(peer, Absence { pause, present: None });
    }

    pub(crate) fn record_present(&self, peer: PeerAddress, now: Instant) {
        let remote = |absence: &Absence| absence.present.is_some();
        if self.absent.read().get(&peer).is_none_or(remote) {
            return;
        }
        if let Some(absence) = self.absent.write().get_mut(&peer) {
            absence.present = Some(now);
        }
    }

    /// Links are to be accepted at `port`. True: [`open_ports`](RemoteState::open_ports) has work to do. For a port that was
    /// seen before it costs a lookup.
    pub(crate) fn want(&self, port: u16, now: Instant) -> bool {
        match self.ports.read().get(&port) {
            Some(Port::Open | Port::Wanted) => return false,
            Some(Port::Taken(until)) if now < *until => return false,
            _ => {}
        }
        self.ports.write().insert(port, Port::Wanted);
        self.wanted.store(true, Ordering::Release);
        true
    }

    /// Whether another process had `port` when we wanted to listen there.
    pub(crate) fn is_taken(&self, port: u16) -> bool {
        matches!(self.ports.read().get(&port), Some(Port::Taken(_)))
    }

    /// The listeners are gone: all ports are wanted again.
    pub(crate) fn forget_ports(&self) {
        let mut ports = self.ports.write();
        ports.values_mut().for_each(|port| *port = Port::Wanted);
        self.wanted.store(!ports.is_empty(), Ordering::Release);
    }

    /// Opens the wanted ports with `listen`.
    pub(crate) fn open_ports(&self, now: Instant, listen: impl Fn(u16) -> io::Result<()>) {
        if !self.wanted.swap(false, Ordering::AcqRel) {
            return;
        }
        let wanted: Vec<u16> =
            self.ports.read().iter().filter(|(_, port)| **port == Port::Wanted).map(|(port, _)| *port).collect();
        for port in wanted {
            let outcome = listen(port).map_or(Port::Taken(now + PORT_PAUSE), |()| Port::Open);
            self.ports.write().insert(port, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn ports_beyond_the_last_have_no_links() {
        assert_eq!(link_port(6379), Some(26379));
        assert_eq!(link_port(45535), Some(65535));
        assert_eq!(link_port(45536), None);
    }

    #[test]
    fn the_pause_grows_with_each_failed_attempt() {
        let (remote, peer, begun) = (RemoteState::default(), PeerAddress([1; 4]), Instant::now());
        assert!(!remote.is_absent(peer, begun));
        let mut now = begun;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            remote.record_absent(peer, now);
            let pause = pause_of(&remote, peer);
            assert!(remote.is_absent(peer, now + pause - Duration::from_millis(1)));
            now += pause;
            assert!(!remote.is_absent(peer, now));
            pauses.push(pause);
        }
        assert_eq!((pauses[0], pauses[1], pauses[11]), (PAUSE.first, PAUSE.first * 2, PAUSE.longest));
        remote.record_present(peer, now);
        assert!(!remote.is_absent(peer, now));
        now += CONFIRMED_AFTER;
        remote.record_absent(peer, now);
        assert_eq!(pause_of(&remote, peer), PAUSE.first);
    }

    fn pause_of(remote: &RemoteState, peer: PeerAddress) -> Duration {
        remote.absent.read()[&peer].pause.len
    }

    /// Breaks if a device that comes later is not opened for a socket that receives datagrams.
    #[test]
    fn flows_that_are_offered_are_published() {
        let remote = RemoteState::default();
        assert!(!remote.is_published());
        remote.offer_flows();
        assert!(remote.is_published());
    }

    /// Breaks if a peer with another key got one request after the other, because connecting to it succeeds.
    #[test]
    fn the_pause_grows_with_each_refused_link() {
        let (remote, peer, mut now) = (RemoteState::default(), PeerAddress([1; 4]), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..4 {
            remote.record_present(peer, now);
            now += Duration::from_millis(10);
            remote.record_absent(peer, now);
            assert!(remote.is_absent(peer, now));
            let pause = pause_of(&remote, peer);
            pauses.push(pause);
            now += pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8].map(|times| PAUSE.first * times));
    }

    #[test]
    fn peers_without_end_take_no_memory_without_end() {
        let remote = RemoteState::default();
        let now = Instant::now();
        (0..3 * MAX_ABSENT as u64).for_each(|number| remote.record_absent(PeerAddress([number; 4]), now));
        assert!(remote.absent.read().len() <= MAX_ABSENT);
    }

    /// Breaks if each new connection had the port opened once more, or one that is taken were given up permanently.
    #[test]
    fn a_port_is_opened_once_and_tried_again_after_a_while_if_it_was_taken() {
        let (remote, now) = (RemoteState::default(), Instant::now());
        let tried = RefCell::new(Vec::new());
        let open = |now, result: fn() -> io::Result<()>| {
            remote.open_ports(now, |port| {
                tried.borrow_mut().push(port);
                result()
            });
        };
        assert!(remote.want(26379, now) && !remote.want(26379, now));
        assert!(!remote.is_taken(26379));
        open(now, || Err(io::ErrorKind::AddrInUse.into()));
        assert!(remote.is_taken(26379) && !remote.is_taken(26380));
        let early = now + PORT_PAUSE - Duration::from_millis(1);
        assert!(!remote.want(26379, early));
        open(early, || Ok(()));
        assert_eq!(*tried.borrow(), [26379], "not before its time");
        assert!(remote.want(26379, now + PORT_PAUSE));
        open(now + PORT_PAUSE, || Ok(()));
        assert!(!remote.want(26379, now + 10 * PORT_PAUSE) && !remote.is_taken(26379));
        assert_eq!(*tried.borrow(), [26379, 26379]);
        remote.forget_ports();
        open(now + 10 * PORT_PAUSE, || Ok(()));
        assert_eq!(tried.borrow().len(), 3, "the device was lost, and with it its ports");
    }
}
