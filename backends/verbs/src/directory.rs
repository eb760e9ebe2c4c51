//! Finding the peer of a TCP connection: at its address, on the TCP port's number plus [`PORT_OFFSET`].
//!
//! Who holds the accepted end listens there, once for each TCP port, from its first connection on. The connector knows
//! nothing of the other side, so it just tries; who was not there is not asked again for a while, longer each time. The
//! acceptor finds the stream by its addresses.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use netacc_device::{Directory, DirectoryError, FourTuple, PeerAddress, UNKNOWN_STREAM};
use parking_lot::RwLock;

use crate::device::VerbsDevice;

/// From a TCP port to the port for links: the original's rule.
pub const PORT_OFFSET: u16 = 20_000;

/// How long a peer that was not there is left alone at first, and at most. Arbitrary: a server that has just been accepted
/// from needs about the first to begin to listen.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Peers of which is known that they were not there. Arbitrary; beyond it all are forgotten.
const MAX_ABSENT: usize = 4096;

#[derive(Default)]
pub(crate) struct Known {
    /// Streams of ours, as seen from here.
    published: RwLock<HashMap<FourTuple, u32>>,
    absent: RwLock<HashMap<PeerAddress, Absence>>,
}

struct Absence {
    until: Instant,
    pause: Duration,
}

/// Where links for a TCP port are accepted. `None`: there is no such port.
pub(crate) fn link_port(tcp: u16) -> Option<u16> {
    tcp.checked_add(PORT_OFFSET)
}

impl Known {
    fn is_absent(&self, peer: PeerAddress, now: Instant) -> bool {
        self.absent.read().get(&peer).is_some_and(|absence| now < absence.until)
    }

    fn note_absent(&self, peer: PeerAddress, now: Instant) {
        let mut absent = self.absent.write();
        if absent.len() >= MAX_ABSENT {
            absent.clear();
        }
        let pause = absent.get(&peer).map_or(FIRST_PAUSE, |before| (before.pause * 2).min(LONGEST_PAUSE));
        absent.insert(peer, Absence { until: now + pause, pause });
    }

    pub(crate) fn note_present(&self, peer: PeerAddress) {
        if self.absent.read().contains_key(&peer) {
            self.absent.write().remove(&peer);
        }
    }
}

impl Directory for VerbsDevice {
    fn serves(&self, tuple: &FourTuple) -> bool {
        tuple.local.ip() == self.address.ip() && tuple.remote.is_ipv4() == self.address.is_ipv4()
    }

    fn publish(&self, tuple: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
        if !self.serves(tuple) {
            return Err(DirectoryError::NotServed);
        }
        let port = link_port(tuple.local.port()).ok_or(DirectoryError::NotServed)?;
        self.listen_on(port).map_err(|_| DirectoryError::NotServed)?;
        self.known.published.write().insert(*tuple, stream);
        Ok(())
    }

    fn withdraw(&self, tuple: &FourTuple, stream: u32) {
        let mut published = self.known.published.write();
        if published.get(tuple) == Some(&stream) {
            published.remove(tuple);
        }
    }

    fn lookup(&self, tuple: &FourTuple) -> Option<(PeerAddress, u32)> {
        let port = link_port(tuple.remote.port()).filter(|_| self.serves(tuple))?;
        let peer = VerbsDevice::peer_address(SocketAddr::new(tuple.remote.ip(), port));
        (!self.known.is_absent(peer, Instant::now())).then_some((peer, UNKNOWN_STREAM))
    }

    fn resolve(&self, tuple: &FourTuple) -> Option<u32> {
        self.known.published.read().get(tuple).copied()
    }

    fn note_unreachable(&self, peer: PeerAddress) {
        self.known.note_absent(peer, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_beyond_the_last_have_no_links() {
        assert_eq!(link_port(6379), Some(26379));
        assert_eq!(link_port(45535), Some(65535));
        assert_eq!(link_port(45536), None);
    }

    #[test]
    fn who_was_not_there_is_left_alone_longer_each_time() {
        let (known, peer, begun) = (Known::default(), PeerAddress([1; 4]), Instant::now());
        assert!(!known.is_absent(peer, begun));
        let mut now = begun;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            known.note_absent(peer, now);
            let pause = known.absent.read()[&peer].pause;
            assert!(known.is_absent(peer, now + pause - Duration::from_millis(1)));
            now += pause;
            assert!(!known.is_absent(peer, now));
            pauses.push(pause);
        }
        assert_eq!((pauses[0], pauses[1], pauses[11]), (FIRST_PAUSE, FIRST_PAUSE * 2, LONGEST_PAUSE));
        known.note_present(peer);
        known.note_absent(peer, now);
        assert_eq!(known.absent.read()[&peer].pause, FIRST_PAUSE);
    }

    #[test]
    fn peers_without_end_take_no_memory_without_end() {
        let known = Known::default();
        let now = Instant::now();
        (0..3 * MAX_ABSENT as u64).for_each(|number| known.note_absent(PeerAddress([number; 4]), now));
        assert!(known.absent.read().len() <= MAX_ABSENT);
    }
}
