//! What a socket receives: its rings, and the addresses from which the kernel has brought it datagrams.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use netacc_datagram::{Marks, Receiver, Record};
use netacc_device::{FourTuple, PeerAddress, QueuePairId};

use super::{Address, Linked, Messages, Origin, Polled, Values};
use crate::os::{poll, sockopt};

/// Addresses that are remembered. A flow is accepted only from one of them. Arbitrary: more than the rings.
const SOURCES: usize = 256;
/// Rings of a socket. Arbitrary: each is looked at by each receive that finds nothing.
const MOST_RINGS: usize = 64;
/// Datagrams by the kernel between two looks for whether it has more, for rings that are not used yet. Arbitrary.
const NEW_INTERVAL: u32 = 8;
/// A record that is not due is waited for so often, and one of a sender that has ended not at all: then the order does not
/// count. A sender whose counts are true leaves no record behind that is not due at the next look. Arbitrary.
const STUCK: u32 = 1000;
/// Datagrams by the kernel between two looks for how many it has dropped. Arbitrary.
const DROPS_INTERVAL: u32 = 16;
/// Datagrams from rings in a row before the kernel is asked for one. Arbitrary.
const KERNEL_INTERVAL: u32 = 32;

/// A ring that brings datagrams of one flow.
pub struct Ring {
    receiver: Receiver,
    origin: Origin,
    qp: QueuePairId,
    /// The sender has ended the flow.
    ended: bool,
    /// [`Receiver::sent_by_kernel`] before the kernel was asked.
    mark: u64,
    /// How often the kernel was empty while the record at the front was not due.
    stuck: u32,
}

impl Ring {
    /// A new one.
    pub fn new(receiver: Receiver, origin: Origin, qp: QueuePairId) -> Ring {
        Ring { receiver, origin, qp, ended: false, mark: 0, stuck: 0 }
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    fn end(&mut self) {
        self.receiver.end();
        self.ended = true;
    }

    /// The record at the front, if it may be taken now.
    #[inline]
    fn due(&mut self) -> Option<Record> {
        self.receiver.front().filter(|record| self.stuck >= STUCK || self.receiver.is_due(record))
    }
}

/// What a socket receives.
#[derive(Default)]
pub struct Incoming {
    rings: Vec<Ring>,
    /// Flows on links.
    links: Vec<Linked>,
    /// The address of the socket, once it is announced.
    local: Option<SocketAddr>,
    /// The ring that is looked at first.
    next: usize,
    /// Datagrams from rings since the kernel was asked.
    since_kernel: u32,
    /// Addresses from which the kernel has brought datagrams, and how many, as far as is known.
    sources: Vec<(Address, u64)>,
    /// The address that the socket is connected to.
    peer: Option<SocketAddr>,
    /// All datagrams of a source are of one flow.
    one_flow_each: bool,
    /// The kernel's control messages of datagrams from these sources.
    messages: Vec<(Address, Messages)>,
    received_while_new: u32,
    received_while_waiting: u32,
    /// Datagrams that the kernel has dropped, when it was asked last.
    dropped: u32,
    /// Those that senders have dropped of rings that are gone.
    past_dropped: u32,
    received_since_drops: u32,
    /// Positions of rings that are gone, for [`Incoming::arrivals`].
    past: u64,
    /// Queue pairs of rings that are gone, to be ended.
    read: Vec<QueuePairId>,
}

/// A datagram that was claimed for the caller.
pub struct Taken {
    from: From,
    len: usize,
}

/// Where it is.
enum From {
    /// In the ring of that index.
    Ring(usize, Record),
    /// At the front of the link of that index.
    Link(usize),
}

impl Taken {
    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.len
    }
}

impl Incoming {
    pub(super) fn add(&mut self, ring: Ring) {
        // The sender has ended an earlier one before it has requested this one.
        if let Some(old) = self.rings.iter_mut().rfind(|old| old.origin.source == ring.origin.source) {
            old.end();
        }
        self.rings.push(ring);
    }

    /// The number of rings in use.
    pub fn rings(&self) -> usize {
        self.rings.iter().filter(|ring| !ring.ended).count() + self.links.iter().filter(|link| !link.is_over()).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rings.is_empty() && self.links.is_empty()
    }

    /// Its address, once it is announced.
    pub fn set_local(&mut self, local: SocketAddr) {
        self.local = Some(local);
    }

    /// Whether datagrams to this address come to the socket, as far as is known.
    pub fn is_at(&self, address: SocketAddr) -> bool {
        let is_there = |local: SocketAddr| local.ip().is_unspecified() || local.ip() == address.ip();
        self.local.is_some_and(|local| local.port() == address.port() && is_there(local))
    }

    pub(super) fn add_link(&mut self, link: Linked) {
        //= spec §10.9.2
        //# Both sides count from before the flow: the receiver the datagrams that the kernel has brought the socket from the
        //# source, and the sender those that it has sent to the destination.
        let source = link.origin().source;
        let known = self.sources.iter().find(|(of, _)| *of == source);
        link.start(known.map_or(0, |(_, count)| *count));
        self.links.push(link);
    }

    /// The process that sends on a link between these addresses.
    pub fn peer_of(&self, addresses: &FourTuple) -> Option<PeerAddress> {
        self.links.iter().rfind(|link| link.is_of(addresses) && !link.is_over()).map(Linked::peer)
    }

    pub(super) fn polled(&self) -> Vec<Polled> {
        self.links.iter().map(Linked::polled).collect()
    }

    /// Whether another flow may be added.
    pub fn has_room(&self) -> bool {
        self.rings.len() + self.links.len() < MOST_RINGS
    }

    /// Whether all datagrams of a source are of one flow: they are sent to one address of this socket.
    pub fn tells_flows_apart(&mut self, does: bool) {
        self.one_flow_each = does;
    }

    /// The kernel has brought so many datagrams from `source`, or an unknown number if that is 0. Whether that is a source
    /// which is not remembered.
    #[inline]
    pub fn came_by_kernel(&mut self, source: &Address, count: u64) -> bool {
        // Also where several flows come from there, unlike below: then the order between both ways may be lost, as on any
        // network.
        self.links.iter().filter(|link| link.origin().source == *source).for_each(|link| link.came_by_kernel(count));
        if let Some(ring) = self.rings.iter_mut().rfind(|ring| ring.origin.source == *source) {
            //= spec §10.4.2
            //# It does not count a datagram if it cannot tell to which flow it belongs.
            if self.one_flow_each {
                ring.receiver.came_by_kernel(count);
            }
            return false;
        }
        let is_it = |known: &&mut (Address, u64)| known.0 == *source;
        // Most datagrams come from the newest one.
        let last = self.sources.len().saturating_sub(1);
        let (others, newest) = self.sources.split_at_mut(last);
        if let Some((_, known)) = newest.iter_mut().find(is_it).or_else(|| others.iter_mut().find(is_it)) {
            *known += count;
            return false;
        }
        if self.sources.len() >= SOURCES {
            self.sources.remove(0);
        }
        self.sources.push((*source, count));
        true
    }

    /// Where the sender of a flow from there ran when it sent by the kernel last. `None`: it has no ring here.
    pub fn sender_processor(&self, source: &Address) -> Option<u32> {
        let ring = self.rings.iter().rfind(|ring| ring.origin.source == *source)?;
        ring.receiver.sender_processor()
    }

    /// The addresses from which the kernel has brought datagrams.
    pub fn sources(&self) -> impl Iterator<Item = &Address> {
        self.sources.iter().map(|(source, _)| source)
    }

    /// The kernel has said this of a datagram from `source`.
    pub fn learn(&mut self, source: &Address, said: &Messages) {
        if self.messages.iter().any(|known| known == &(*source, *said)) {
            return;
        }
        self.messages.retain(|(of, old)| of != source || old.destination() != said.destination());
        if self.messages.len() >= SOURCES {
            self.messages.remove(0);
        }
        self.messages.push((*source, *said));
    }

    /// The kernel brings datagrams from this address alone from now on; `None`: from all.
    pub fn set_peer(&mut self, peer: Option<SocketAddr>) {
        self.peer = peer;
    }

    /// Whether the kernel would bring the datagrams of a ring.
    pub(super) fn admits(&self, origin: &Origin) -> bool {
        self.peer.is_none_or(|peer| origin.source.socket_addr() == Some(peer))
    }

    /// Forgets the kernel's control messages: the program has set other options.
    pub fn forget(&mut self) {
        self.messages.clear();
    }

    /// An address from which the kernel has brought datagrams, as the kernel writes it, with what it has said of those that were sent to
    /// `destination`.
    pub fn origin(&self, source: SocketAddr, destination: IpAddr) -> Option<Origin> {
        if self.peer.is_some_and(|peer| peer != source) {
            return None;
        }
        let on_links = self.links.iter().map(|link| &link.origin().source);
        let known = self.sources().chain(self.rings.iter().map(|ring| &ring.origin.source)).chain(on_links);
        let source = known.copied().find(|known| known.socket_addr() == Some(source))?;
        let mut said = self.messages.iter().filter(|(of, _)| *of == source).map(|(_, messages)| *messages);
        let messages = said.find(|messages| messages.destination().is_none_or(|to| to == destination));
        Some(Origin { source, messages })
    }

    /// Says that the rings are looked at from now on, unless a thread sleeps.
    #[inline]
    pub fn stay_awake(&mut self) {
        for ring in &mut self.rings {
            ring.receiver.stay_awake();
        }
        self.links.iter().for_each(Linked::stay_awake);
    }

    fn has_new(&self) -> bool {
        self.rings.iter().any(|ring| ring.receiver.is_new())
    }

    /// As [`begin_new`](Incoming::begin_new), now and then: a program that is flooded need not ask the kernel twice for each
    /// datagram.
    #[inline]
    pub fn begin_new_sometimes(&mut self, fd: c_int) {
        if self.has_new() {
            self.received_while_new = self.received_while_new.wrapping_add(1);
            if self.received_while_new.is_multiple_of(NEW_INTERVAL) {
                self.begin_new(fd);
            }
        }
    }

    /// A datagram of the kernel's was received. Datagrams in rings do not wait for those before them that the kernel has
    /// dropped: asks it for their number now and then, while there are some that wait.
    pub fn account_drops(&mut self, fd: c_int) {
        let waits = |ring: &mut Ring| {
            let front = ring.receiver.front();
            front.is_some_and(|record| !ring.receiver.is_new() && !ring.receiver.is_due(&record))
        };
        if !self.rings.iter_mut().any(waits) {
            return;
        }
        self.received_while_waiting = self.received_while_waiting.wrapping_add(1);
        if !self.received_while_waiting.is_multiple_of(DROPS_INTERVAL) {
            return;
        }
        self.refresh_drops(fd);
    }

    fn refresh_drops(&mut self, fd: c_int) {
        let Some(dropped) = sockopt::memory(fd).map(|memory| memory[sockopt::SK_MEMINFO_DROPS]) else { return };
        let more = dropped.wrapping_sub(std::mem::replace(&mut self.dropped, dropped));
        for ring in &mut self.rings {
            ring.receiver.kernel_dropped(more.into());
        }
    }

    /// Datagrams that senders have dropped because a ring was full.
    pub fn dropped_by_rings(&self) -> u32 {
        self.rings.iter().fold(self.past_dropped, |sum, ring| sum.wrapping_add(ring.receiver.dropped() as u32))
    }

    /// Datagrams that were dropped, by the kernel and by rings. The kernel is asked now and then.
    pub fn count_dropped(&mut self, fd: c_int) -> u32 {
        if self.received_since_drops.is_multiple_of(DROPS_INTERVAL) {
            self.refresh_drops(fd);
        }
        self.received_since_drops = self.received_since_drops.wrapping_add(1);
        self.dropped.wrapping_add(self.dropped_by_rings())
    }

    /// What a datagram's control messages say. The time is the sender's word: it is not later than `now`.
    pub fn values(&self, taken: &Taken, now: impl Fn() -> u64, dropped: Option<u32>) -> Values {
        let (marks, time) = match &taken.from {
            From::Ring(ring, record) => (record.marks(), self.rings[*ring].receiver.time(record)),
            From::Link(link) => {
                let found = self.links[*link].found();
                (found.map_or(Marks::default(), |found| Marks { ttl: found.ttl, tos: found.tos }), None)
            }
        };
        Values { marks, time: time.map_or(0, |time| time.min(now())), dropped }
    }

    /// Whether datagrams that the kernel has are known to be before anything that the rings get from now on. The rings were
    /// found without a datagram that is due after this was called.
    pub fn expects_by_kernel(&self) -> bool {
        self.rings.iter().any(|ring| ring.receiver.expects_by_kernel())
    }

    /// Begins to use rings for which the kernel's socket must be found empty first. A program that receives only what it
    /// knows to be there never finds it so. `fd` is a descriptor of the socket.
    pub fn begin_new(&mut self, fd: c_int) {
        if self.has_new() {
            self.before_kernel();
            if poll::ready_events(fd, libc::POLLIN) == 0 {
                self.kernel_was_empty();
            }
        }
    }

    pub(super) fn fall_asleep(&mut self, alone: bool) -> bool {
        // All of them, so that none relies on a thread that looks no more.
        let ready = self.rings.iter_mut().filter_map(|ring| (!ring.receiver.fall_asleep(alone)).then_some(())).count();
        let on_links = self.links.iter().filter(|link| !link.fall_asleep()).count();
        ready + on_links == 0
    }

    /// Whether no ring has anything, is new or is to be removed. Then the kernel may be asked without a look there before, by a
    /// thread that falls asleep in between.
    pub fn begins_quietly(&mut self) -> bool {
        let is_quiet = |ring: &mut Ring| !ring.ended && !ring.receiver.is_new() && ring.receiver.front().is_none();
        let are_quiet = self.links.is_empty() && self.rings.iter_mut().all(is_quiet);
        if are_quiet {
            self.since_kernel = 0;
        }
        are_quiet
    }

    pub(super) fn may_be_ready(&self) -> bool {
        self.rings.iter().any(|ring| ring.receiver.has_more()) || self.links.iter().any(Linked::may_be_ready)
    }

    pub(super) fn is_ready(&mut self) -> bool {
        self.rings.iter_mut().any(|ring| ring.receiver.front().is_some())
            || self.links.iter_mut().any(|link| link.front().is_some())
    }

    pub(super) fn arrivals(&self) -> u64 {
        let in_rings = self.rings.iter().fold(self.past, |sum, ring| sum.wrapping_add(ring.receiver.arrivals()));
        self.links.iter().fold(in_rings, |sum, link| sum.wrapping_add(link.arrivals()))
    }

    /// Whether it is the kernel's turn although rings may have something.
    #[inline]
    pub fn is_kernels_turn(&self) -> bool {
        self.since_kernel >= KERNEL_INTERVAL
    }

    /// The next datagram that may be taken. Claims it, unless it is only looked at (`peek`).
    #[inline]
    pub fn take(&mut self, peek: bool) -> Option<Taken> {
        let count = self.rings.len();
        for i in 0..count {
            let ring = (self.next + i) % count;
            if let Some(taken) = self.take_from(ring, peek) {
                self.next = ring;
                return Some(taken);
            }
        }
        (0..self.links.len()).find_map(|link| self.take_from_link(link))
    }

    #[inline]
    fn take_from_link(&mut self, link: usize) -> Option<Taken> {
        let len = self.links[link].front()?.bytes.len();
        Some(Taken { from: From::Link(link), len })
    }

    /// As [`take`](Incoming::take), of the flow from `source`: the kernel has a datagram of it, which is behind those in the
    /// ring that are due.
    pub fn take_before(&mut self, source: &Address, peek: bool) -> Option<Taken> {
        // A flow that was made again has another ring, while its former one is still there.
        let in_ring = (0..self.rings.len()).find_map(|ring| match self.rings[ring].origin.source == *source {
            true => self.take_from(ring, peek),
            false => None,
        });
        in_ring.or_else(|| {
            (0..self.links.len()).find_map(|link| match self.links[link].origin().source == *source {
                true => self.take_from_link(link),
                false => None,
            })
        })
    }

    #[inline]
    fn take_from(&mut self, ring: usize, peek: bool) -> Option<Taken> {
        let from = &mut self.rings[ring];
        // Bounded: a peer may change what it has written, over and over.
        for _ in 0..4 {
            let record = from.due()?;
            if peek || from.receiver.claim(&record) {
                from.stuck = if from.ended { from.stuck } else { 0 };
                return Some(Taken { len: record.len(), from: From::Ring(ring, record) });
            }
        }
        None
    }

    /// Copies bytes of a datagram from `skip` on.
    ///
    /// # Safety
    /// `to..to + len` is writable.
    #[inline]
    pub unsafe fn copy(&self, taken: &Taken, skip: usize, to: *mut u8, len: usize) {
        match &taken.from {
            // SAFETY: passed on.
            From::Ring(ring, record) => unsafe { self.rings[*ring].receiver.copy(record, skip, to, len) },
            From::Link(link) => {
                let found = self.links[*link].found().and_then(|found| found.bytes.get(skip..skip + len));
                if let Some(bytes) = found {
                    // SAFETY: as many bytes as are writable there.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
                }
            }
        }
    }

    /// Where a datagram comes from.
    #[inline]
    pub fn origin_of(&self, taken: &Taken) -> &Origin {
        match taken.from {
            From::Ring(ring, _) => &self.rings[ring].origin,
            From::Link(link) => self.links[link].origin(),
        }
    }

    /// The datagram was received.
    #[inline]
    pub fn finish(&mut self, taken: &Taken) {
        match &taken.from {
            From::Ring(ring, record) => self.rings[*ring].receiver.release(record),
            From::Link(link) => self.links[*link].release(),
        }
        self.since_kernel += 1;
    }

    /// The kernel is about to be asked.
    pub fn before_kernel(&mut self) {
        self.since_kernel = 0;
        for ring in &mut self.rings {
            ring.mark = ring.receiver.sent_by_kernel();
        }
    }

    /// The kernel had nothing. Rings whose flows have ended, and that are empty, go.
    pub fn kernel_was_empty(&mut self) {
        for ring in &mut self.rings {
            ring.receiver.kernel_was_empty(ring.mark);
            if ring.due().is_none() && ring.receiver.front().is_some() {
                ring.stuck = if ring.ended { STUCK } else { ring.stuck + 1 };
            }
        }
        self.remove(|ring| ring.ended && ring.receiver.front().is_none());
        self.links.iter().for_each(Linked::kernel_was_empty);
        self.remove_links(Linked::is_over);
    }

    /// Removes flows on links.
    fn remove_links(&mut self, goes: impl Fn(&Linked) -> bool) {
        let Incoming { links, past, .. } = self;
        links.retain(|link| {
            let goes = goes(link);
            if goes {
                *past = past.wrapping_add(link.arrivals());
            }
            !goes
        });
    }

    /// Removes rings.
    fn remove(&mut self, goes: impl Fn(&mut Ring) -> bool) {
        let Incoming { rings, past, past_dropped, read, .. } = self;
        rings.retain_mut(|ring| {
            let goes = goes(ring);
            if goes {
                *past = past.wrapping_add(ring.receiver.arrivals());
                *past_dropped = past_dropped.wrapping_add(ring.receiver.dropped() as u32);
                read.push(ring.qp);
            }
            !goes
        });
    }

    /// The queue pairs of rings that are gone since this was called last, to be ended.
    pub fn take_read(&mut self) -> Vec<QueuePairId> {
        std::mem::take(&mut self.read)
    }

    //= spec §10.3.6
    //# A receiver whose flow has ended keeps its queue pair until it has taken the records in the ring
    /// The sender has ended a flow, or is gone. Its ring stays until its datagrams are received.
    pub fn end(&mut self, qp: QueuePairId) {
        if let Some(ring) = self.rings.iter_mut().find(|ring| ring.qp == qp) {
            ring.end();
            self.remove(|ring| ring.qp == qp && ring.receiver.front().is_none());
        }
    }

    /// No datagram takes a ring from now on. Rings stay until their datagrams are received, with their queue pairs.
    pub(super) fn close_all(&mut self) -> Vec<QueuePairId> {
        for ring in &mut self.rings {
            ring.receiver.close();
            ring.end();
        }
        self.links.iter_mut().for_each(Linked::close);
        self.remove_links(Linked::is_over);
        self.remove(|ring| ring.receiver.front().is_none());
        self.take_read()
    }

    /// No datagram takes a ring from now on, and what is in them comes by the kernel, but for the rings whose senders have
    /// ended.
    pub(super) fn give_back_all(&mut self) -> Vec<QueuePairId> {
        for ring in self.rings.iter_mut().filter(|ring| !ring.ended) {
            ring.receiver.give_back();
            ring.ended = true;
        }
        self.links.iter_mut().for_each(Linked::give_back);
        self.remove_links(Linked::is_over);
        self.remove(|ring| ring.receiver.front().is_none());
        self.take_read()
    }

    /// Nobody receives any more. Returns the queue pairs of all rings that there still were.
    pub fn abandon(&mut self) -> Vec<QueuePairId> {
        self.links.iter_mut().for_each(Linked::abandon);
        self.remove_links(|_| true);
        self.remove(|_| true);
        self.take_read()
    }

    /// The length of the next datagram in a ring.
    pub fn next_len(&mut self) -> Option<usize> {
        self.take(true).map(|taken| taken.bytes())
    }
}

#[cfg(test)]
mod tests {
    use netacc_datagram::{inbox_len, Marks, Sender, OUTBOX_LEN};
    use netacc_device::Memory;

    use super::*;

    const ORIGIN: Origin = Origin { source: Address::UNKNOWN, messages: None };

    fn flow() -> (Sender, Incoming) {
        let (inbox, outbox) = (Memory::heap(inbox_len(1024)), Memory::heap(OUTBOX_LEN));
        let receiver = Receiver::new(inbox.clone(), outbox.clone(), false).expect("a ring");
        let mut incoming = Incoming::default();
        incoming.add(Ring::new(receiver, ORIGIN, QueuePairId(7)));
        let mut sender = Sender::new(inbox, outbox).expect("a ring");
        sender.start(0);
        look(&mut incoming);
        incoming.stay_awake();
        (sender, incoming)
    }

    /// The kernel is asked, and has nothing.
    fn look(incoming: &mut Incoming) {
        incoming.before_kernel();
        incoming.kernel_was_empty();
    }

    fn send(sender: &mut Sender) {
        // SAFETY: no bytes.
        unsafe { sender.send(std::iter::empty(), 0, Marks { ttl: 64, tos: 0 }, || 0) }
            .expect("room, and a receiver that is awake");
    }

    // Breaks if only the former ring of a flow that was made again is looked at: then the kernel's datagram overtakes.
    #[test]
    fn a_datagram_of_the_kernels_comes_after_those_in_the_newest_ring_of_its_flow() {
        let (_, mut incoming) = flow();
        incoming.end(QueuePairId(7));
        let (inbox, outbox) = (Memory::heap(inbox_len(1024)), Memory::heap(OUTBOX_LEN));
        let receiver = Receiver::new(inbox.clone(), outbox.clone(), false).expect("a ring");
        incoming.add(Ring::new(receiver, ORIGIN, QueuePairId(8)));
        let mut sender = Sender::new(inbox, outbox).expect("a ring");
        sender.start(0);
        incoming.rings.iter_mut().for_each(|ring| ring.receiver.kernel_was_empty(ring.receiver.sent_by_kernel()));
        incoming.stay_awake();
        send(&mut sender);
        assert!(incoming.take_before(&ORIGIN.source, false).is_some());
    }

    // Breaks if a program that waits for readiness runs in circles, because it is told of a datagram that it does not get.
    #[test]
    fn a_record_with_a_false_count_is_not_waited_for() {
        let (mut sender, mut incoming) = flow();
        sender.begin_by_kernel(1);
        sender.end_by_kernel(1, true);
        send(&mut sender);
        // From now on it says that it has sent none by the kernel, and the record says one.
        sender.start(0);
        let looks = (0..).take_while(|_| {
            look(&mut incoming);
            incoming.take(false).is_none()
        });
        assert_eq!(looks.count() as u32, STUCK - 1);
    }

    #[test]
    fn what_a_sender_leaves_is_received_before_its_ring_goes() {
        let (mut sender, mut incoming) = flow();
        sender.begin_by_kernel(1);
        sender.end_by_kernel(1, true);
        sender.begin_by_kernel(1);
        for _ in 0..2 {
            send(&mut sender);
        }
        incoming.end(QueuePairId(7));
        look(&mut incoming);
        for _ in 0..2 {
            assert_eq!(incoming.take_read(), [], "the region may be another flow's once the queue pair is");
            let taken = incoming.take(false).expect("a datagram");
            incoming.finish(&taken);
        }
        assert!(!incoming.is_empty());
        look(&mut incoming);
        assert!(incoming.is_empty());
        assert_eq!(incoming.take_read(), [QueuePairId(7)]);
    }

    //= spec §10.3.6
    //= type=test
    //# A receiver whose flow has ended keeps its queue pair until it has taken the records in the ring
    // Breaks if the region of a ring that this end has closed is given up, or the peer's is written to, while there is a
    // datagram to be received.
    #[test]
    fn what_is_in_a_ring_that_is_closed_is_received_before_its_ring_goes() {
        let (mut sender, mut incoming) = flow();
        send(&mut sender);
        assert_eq!(incoming.close_all(), []);
        let taken = incoming.take(false).expect("a datagram");
        incoming.finish(&taken);
        look(&mut incoming);
        assert_eq!(incoming.take_read(), [QueuePairId(7)]);

        let (_, mut incoming) = flow();
        assert_eq!(incoming.close_all(), [QueuePairId(7)], "nothing is in it");
    }

    #[test]
    fn what_is_in_a_ring_of_a_shared_socket_is_the_senders() {
        let (mut sender, mut incoming) = flow();
        send(&mut sender);
        assert_eq!(incoming.give_back_all(), [QueuePairId(7)]);
        assert!(incoming.is_empty());
        assert_eq!(sender.end().len(), 1);
    }
}
