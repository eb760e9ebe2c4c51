//! Streams that wait for a link, and links that are made for them, by peer.
//!
//! The cost of placing a stream hardly depends on how many others wait: a peer's streams wait in a queue, each attempt
//! checks only the peer's links that are being made, and links with room are found in turn. A stream that gives up
//! waiting leaves the queue by its ticket, without a search.
//!
//! A stream that is being opened can write only after its peer has answered, so few are opened at a time: the others
//! continue on TCP meanwhile. And its link is polled by the helper thread, on behalf of all its streams, so the streams
//! that are opened at a time are on few links.
//!
//! Invariant: a peer with streams that wait has a link being made, or a stream being opened, or its streams have been
//! placed or failed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{Capabilities, ConnectionId, Instant, PeerAddress, QueuePairId};
use netacc_proto::Reason;

use super::sharing::Distribution;
use super::unaccepted::Unaccepted;
use crate::counted::{Tallied, Tally};
use crate::stream::Identity;
use crate::{LinkCell, StreamCell};

/// Links to one peer that are made at the same time, at most. Arbitrary: enough to keep both sides busy, and fewer than
/// connection managers queue.
const MAX_CONNECTING: usize = 64;

/// Streams that are being opened at one peer at the same time, at most. Arbitrary: enough for the helper threads of
/// both sides to work at the same time where they often wait for a processor. And few, because a write that comes
/// meanwhile waits until the helpers have finished those before it.
const MAX_OPENING: u32 = 128;

/// An opening that takes longer than once or twice this time does not count: the peer answers only after its program has
/// read what came before, and programs may leave that for ever. Arbitrary: longer than a helper thread waits for a
/// processor.
const OPENING_PATIENCE: Duration = Duration::from_millis(50);

/// Streams that are opened on a shared link one after the other while many wait, at most. Arbitrary: fewer than a link
/// has slots for control messages.
const MAX_RUN: usize = 16;

/// A stream that waits for a link.
pub(super) struct Waiting {
    pub(super) stream: Arc<StreamCell>,
    pub(super) hint: u32,
}

/// The waiting streams and new links, by peer.
#[derive(Default)]
pub(crate) struct Promotions {
    peers: HashMap<PeerAddress, Peer>,
    /// Peers to which links are being made, or for which streams wait. Ordered, so that replays go through them in the
    /// same order.
    unfinished: BTreeSet<PeerAddress>,
    /// The streams that wait.
    queued: HashMap<Identity, Place>,
    /// The ticket of the next stream.
    next_ticket: u64,
    /// Streams whose peers are not found yet.
    pub(super) unaccepted: Unaccepted,
}

/// A stream's place in a queue.
#[derive(Clone, Copy)]
struct Place {
    peer: PeerAddress,
    ticket: u64,
}

/// One peer: the streams that wait for a link to it, and the links to it that this side has made.
#[derive(Default)]
pub(super) struct Peer {
    /// By their tickets, so in the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    pub(super) attempts: Vec<ConnectionId>,
    /// Connected, and not ready for streams at the last check.
    pub(super) connecting: Vec<QueuePairId>,
    /// All of them, `connecting` too.
    links: Vec<QueuePairId>,
    /// Of the first link that was made. All links to a peer are of the same device.
    caps: Option<Capabilities>,
    /// Streams that the peer admits on a link, by its last HELLO.
    admitted: Option<u16>,
    /// The index in `links` at which the search for room begins.
    next: usize,
    /// Streams put onto that link since the search reached it.
    run: usize,
    room: Room,
    /// Streams that are being opened, of those that have been opened since `counted_since`.
    opening: Tally,
    /// `None`: no stream has waited at the last turn of the control path.
    counted_since: Option<Instant>,
    /// Why no further link is made for those that wait now.
    pub(super) refused: Option<Reason>,
}

/// Whether a peer's links have room, as far as the last search found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Room {
    #[default]
    Unknown,
    /// The last search found none, and no stream has left a link since then.
    None,
}

/// The result of checking a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usability {
    Usable,
    /// HELLO has not come yet.
    NotReady,
    /// Dead, or full.
    Unusable,
}

impl Promotions {
    /// `stream` waits for a link to `peer`, if it does not already wait.
    pub(super) fn add(&mut self, peer: PeerAddress, stream: &Arc<StreamCell>, hint: u32) {
        self.unaccepted.remove(stream);
        if self.queued.contains_key(&stream.identity()) {
            return;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queued.insert(stream.identity(), Place { peer, ticket });
        self.unfinished.insert(peer);
        self.peers.entry(peer).or_default().waiting.insert(ticket, Waiting { stream: stream.clone(), hint });
    }

    /// `stream` does not wait any more.
    pub(super) fn remove(&mut self, stream: &Arc<StreamCell>) {
        self.unaccepted.remove(stream);
        // Mostly none waits, and hashing the number costs more than all else here.
        if self.queued.is_empty() {
            return;
        }
        let Some(place) = self.queued.remove(&stream.identity()) else { return };
        if let Some(peer) = self.peers.get_mut(&place.peer) {
            peer.waiting.remove(&place.ticket);
        }
    }

    /// The number of streams that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queued.len()
    }

    /// The peers to which links are being made, or for which streams wait.
    pub(super) fn unfinished(&self) -> Vec<PeerAddress> {
        self.unfinished.iter().copied().collect()
    }

    pub(super) fn peer(&mut self, address: PeerAddress) -> Option<&mut Peer> {
        self.peers.get_mut(&address)
    }

    /// The stream at the head of a peer's queue leaves it.
    pub(super) fn pop(&mut self, address: PeerAddress) -> Option<Waiting> {
        let (_, first) = self.peers.get_mut(&address)?.waiting.pop_first()?;
        self.queued.remove(&first.stream.identity());
        Some(first)
    }

    /// All streams that wait for a link to `address` leave its queue.
    pub(super) fn drain(&mut self, address: PeerAddress) -> Vec<Waiting> {
        std::iter::from_fn(|| self.pop(address)).collect()
    }

    /// The attempt has made a link.
    pub(super) fn established(&mut self, address: PeerAddress, id: ConnectionId, link: &LinkCell) {
        let peer = self.peers.entry(address).or_default();
        peer.attempts.retain(|attempt| *attempt != id);
        peer.connecting.push(link.qp);
        peer.links.push(link.qp);
        peer.caps.get_or_insert_with(|| link.caps.clone());
        self.unfinished.insert(address);
    }

    /// The peer admits so many streams on a link.
    pub(super) fn admits(&mut self, address: PeerAddress, streams: u16) {
        if let Some(peer) = self.peers.get_mut(&address) {
            peer.admitted = Some(streams);
        }
    }

    /// The attempt has failed.
    pub(super) fn failed(&mut self, address: PeerAddress, id: ConnectionId, reason: Reason) {
        let Some(peer) = self.peers.get_mut(&address) else { return };
        peer.attempts.retain(|attempt| *attempt != id);
        peer.refused = Some(reason);
    }

    /// A link that this side has made carries no further stream.
    pub(super) fn ended(&mut self, address: PeerAddress, qp: QueuePairId, reason: Reason) {
        let Some(peer) = self.peers.get_mut(&address) else { return };
        peer.links.retain(|link| *link != qp);
        let before = peer.connecting.len();
        peer.connecting.retain(|link| *link != qp);
        if peer.connecting.len() < before {
            peer.refused = Some(reason);
        }
        self.finish(address);
    }

    /// Whether streams wait that may use the link once it is ready.
    pub(super) fn awaits(&self, address: PeerAddress, qp: QueuePairId) -> bool {
        self.peers.get(&address).is_some_and(|peer| !peer.waiting.is_empty() && peer.connecting.contains(&qp))
    }

    /// A stream has left a link to `address`.
    pub(super) fn freed(&mut self, address: PeerAddress) {
        if let Some(peer) = self.peers.get_mut(&address) {
            peer.room = Room::Unknown;
        }
    }

    /// Forgets that a peer is unfinished if it is not, and forgets the peer if it has neither streams nor links.
    pub(super) fn finish(&mut self, address: PeerAddress) {
        let Some(peer) = self.peers.get_mut(&address) else { return };
        if peer.is_making() || !peer.waiting.is_empty() {
            return;
        }
        self.unfinished.remove(&address);
        peer.refused = None;
        if peer.links.is_empty() {
            self.peers.remove(&address);
        }
    }
}

impl Peer {
    /// The capabilities of links to the peer; `None`: none has been made yet.
    pub(super) fn caps(&self) -> Option<&Capabilities> {
        self.caps.as_ref()
    }

    /// Streams that the peer admits on a link; `None`: it has not said so yet.
    pub(super) fn admitted(&self) -> Option<u16> {
        self.admitted
    }

    /// Whether links are being made.
    pub(super) fn is_making(&self) -> bool {
        !(self.attempts.is_empty() && self.connecting.is_empty())
    }

    /// Whether streams wait.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether as many streams are being opened as may be.
    pub(super) fn is_busy(&self) -> bool {
        self.opening.now() >= MAX_OPENING
    }

    /// A turn of the control path: openings of long ago do not count any more. Returns when the next turn is due, as far
    /// as that matters to streams that wait.
    pub(super) fn recount(&mut self, now: Instant) -> Option<Instant> {
        if self.waiting.is_empty() {
            self.counted_since = None;
            return None;
        }
        let since = self.counted_since.get_or_insert(now);
        if now.saturating_since(*since) >= OPENING_PATIENCE {
            *since = now;
            self.opening = Tally::default();
        }
        let next = *since + OPENING_PATIENCE;
        self.is_busy().then_some(next)
    }

    /// Counts one more stream that is being opened.
    pub(super) fn open_one(&self) -> Tallied {
        self.opening.add()
    }

    /// The number of links to make now for the streams that wait.
    pub(super) fn wanted(&self, distribution: Distribution) -> usize {
        if self.refused.is_some() {
            return 0;
        }
        let making = self.attempts.len() + self.connecting.len();
        // Each link is planned as if the one before were made.
        let (mut links, mut streams, mut wanted) = (self.links.len() - self.connecting.len(), self.waiting.len(), 0);
        while streams > 0 && wanted < MAX_CONNECTING {
            if distribution.spreads() && distribution.shares(links) && self.room != Room::None {
                // The links made so far have room for the rest.
                break;
            }
            streams = streams.saturating_sub(distribution.planned(links));
            links += 1;
            wanted += 1;
        }
        wanted.saturating_sub(making)
    }

    /// Links that were ready are not needed yet: they count as such again at the next check.
    pub(super) fn put_back(&mut self, ready: impl IntoIterator<Item = QueuePairId>) {
        self.connecting.extend(ready);
    }

    /// Links that have become ready, or have ended, since the last check of those being made.
    pub(super) fn take_ready(&mut self, check: impl Fn(QueuePairId) -> Usability) -> Vec<QueuePairId> {
        let mut ready = Vec::new();
        self.connecting.retain(|qp| match check(*qp) {
            Usability::NotReady => true,
            Usability::Usable => {
                ready.push(*qp);
                false
            }
            Usability::Unusable => false,
        });
        if !ready.is_empty() {
            self.room = Room::Unknown;
        }
        ready
    }

    /// A link with room that other streams use, if streams share links by now, or if no further link can be made.
    pub(super) fn find_room(
        &mut self,
        distribution: Distribution,
        check: impl Fn(QueuePairId) -> Usability,
    ) -> Option<QueuePairId> {
        let made = self.links.len() - self.connecting.len();
        let shares = distribution.shares(made) || (distribution.spreads() && self.refused.is_some());
        if self.room == Room::None || !shares {
            return None;
        }
        for i in 0..self.links.len() {
            let at = (self.next + i) % self.links.len();
            let qp = self.links[at];
            if check(qp) == Usability::Usable {
                // Where few wait, each is put onto another link.
                let most = (self.waiting.len() / self.links.len()).clamp(1, MAX_RUN);
                self.run = if i == 0 { self.run + 1 } else { 1 };
                let ends = distribution.spreads() && self.run >= most;
                (self.next, self.run) = if ends { (at + 1, 0) } else { (at, self.run) };
                return Some(qp);
            }
        }
        self.room = Room::None;
        None
    }
}

#[cfg(test)]
mod tests {
    use netacc_device::FourTuple;
    use netacc_proto::{Role, StreamConfig};

    use super::*;
    use crate::LazyAnchor;

    const PEER: PeerAddress = PeerAddress([1; 4]);

    fn stream(number: u32) -> Arc<StreamCell> {
        let end = |port| ([127, 0, 0, 1], port).into();
        let tuple = FourTuple { local: end(1), remote: end(2) };
        let proto = (Role::Opener, StreamConfig { trust_hints: false });
        Arc::new(StreamCell::new(number, tuple.into(), proto, LazyAnchor::gone(), 0))
    }

    /// Breaks if a stream that has given up waiting is placed all the same, or costs another one its place.
    #[test]
    fn streams_leave_the_queue_by_their_tickets() {
        let mut promotions = Promotions::default();
        let streams: Vec<_> = (0..4).map(stream).collect();
        streams.iter().for_each(|stream| promotions.add(PEER, stream, 0));
        promotions.remove(&streams[1]);
        promotions.remove(&streams[1]);
        promotions.add(PEER, &streams[0], 0);
        promotions.add(PEER, &streams[1], 0);
        let order: Vec<_> = std::iter::from_fn(|| promotions.pop(PEER)).map(|waiting| waiting.stream.number).collect();
        assert_eq!(order, [0, 2, 3, 1]);
        assert!(promotions.queued.is_empty());
    }

    /// Breaks if a forgotten stream costs the one that has its number now its place.
    #[test]
    fn a_forgotten_stream_keeps_no_other_from_waiting() {
        let mut promotions = Promotions::default();
        let (forgotten, next) = (stream(7), stream(7));
        promotions.add(PEER, &forgotten, 0);
        promotions.add(PEER, &next, 1);
        promotions.remove(&forgotten);
        assert_eq!(promotions.waiting(), 1);
        assert!(promotions.pop(PEER).is_some_and(|waiting| Arc::ptr_eq(&waiting.stream, &next)));
        promotions.unaccepted.add(&forgotten);
        promotions.unaccepted.add(&next);
        promotions.unaccepted.remove(&forgotten);
        assert_eq!(promotions.unaccepted.count(), 1);
        let taken = promotions.unaccepted.take(next.tuple().remote).expect("it waits");
        assert!(Arc::ptr_eq(&taken.stream, &next));
        promotions.unaccepted.end(&taken);
        assert_eq!(promotions.unaccepted.count(), 0);
        let (service, gone) = (next.tuple().remote, stream(8));
        promotions.unaccepted.add(&gone);
        drop(gone);
        assert!(promotions.unaccepted.take(service).is_none());
        assert_eq!(promotions.unaccepted.count(), 0, "another stream may be where it was");
    }
}
