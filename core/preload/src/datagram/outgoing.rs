//! What a socket sends: its flows, by destination.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_datagram::{Marks, Reclaimed, Refusal, Sender};
use netacc_device::{PeerAddress, QueuePairId};
use netacc_driver::{Endpoint, LinkDatagram, SendingFlow};
use netacc_proto::Reason;

use super::{Address, Counts, Resent};
use crate::os::clock::wall_nanos;
use crate::os::processor;

/// Datagrams to a destination before a ring is requested for them; after a refusal twice as many again, and so on.
/// Arbitrary.
const REQUEST_AFTER: u32 = 4;
/// Destinations that are remembered. Arbitrary.
const MOST: usize = 1024;
/// Datagrams on a link after which it is polled: the device has completed some, and there is credit for others. Arbitrary.
const POLL_AFTER: u32 = 16;

enum State {
    /// So many datagrams by the kernel, and a ring is requested at so many.
    Counting {
        sent: u32,
        request_at: u32,
    },
    /// A ring was requested.
    Requested {
        request_at: u32,
    },
    Linked {
        sender: Sender,
        qp: QueuePairId,
    },
    /// It has a place on a link, or waits for one.
    OnLink {
        endpoint: &'static Endpoint,
        flow: Arc<SendingFlow>,
        /// Sends since the link was polled.
        unpolled: u32,
        request_at: u32,
    },
    /// The receiver gets datagrams of this socket by another address as well. It could not tell the two flows apart, as
    /// it knows only where a datagram comes from: both stay in the kernel for good.
    Indistinct,
}

/// The socket that a flow goes to, and the address from which it sees the flow come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its process.
    pub peer: PeerAddress,
    /// Its number there.
    pub number: u32,
    /// The address of the sender.
    pub source: SocketAddr,
}

/// A flow on a link that is being ended.
pub type Closing = (&'static Endpoint, Arc<SendingFlow>, Address);

struct Flow {
    to: Address,
    state: State,
    /// Known once a ring was requested.
    destination: Option<Destination>,
    /// Datagrams of sends by the kernel that are going on.
    by_kernel: u64,
    /// Datagrams that were sent by the kernel.
    sent_by_kernel: u64,
    /// Datagrams that were taken back from the ring: they go by the kernel before all others.
    reclaimed: Vec<Reclaimed>,
    /// Why there was no ring when one was requested last.
    refused: Option<Reason>,
}

impl Flow {
    /// So many datagrams are about to be sent by the kernel, after those that are taken back from the ring for that.
    fn begin_by_kernel(&mut self, count: u64) {
        self.by_kernel += count;
        if let State::Linked { sender, .. } = &mut self.state {
            //= spec §10.4.4
            //# Before a datagram by the kernel to a receiver that is new, the sender takes back the records that are not
            //# taken, as in 10.3.4.
            self.reclaimed.extend(sender.reclaim());
            self.by_kernel += self.reclaimed.len() as u64;
            sender.begin_by_kernel(count + self.reclaimed.len() as u64);
            if let Some(processor) = processor::current() {
                sender.runs_on(processor);
            }
        }
        if let State::OnLink { endpoint, flow, .. } = &self.state {
            let before = self.reclaimed.len();
            self.reclaimed.extend(returned(endpoint, flow));
            self.by_kernel += (self.reclaimed.len() - before) as u64;
        }
    }
}

/// The datagrams that the receiver has not taken before it slept.
fn returned<'a>(endpoint: &'a Endpoint, flow: &'a SendingFlow) -> impl Iterator<Item = Reclaimed> + 'a {
    let taken = std::iter::from_fn(|| endpoint.take_returned(flow));
    taken.map(|LinkDatagram { bytes, ttl, tos }| Reclaimed { bytes, marks: Marks { ttl, tos } })
}

/// The bytes of some pieces, one after the other.
///
/// # Safety
/// They are readable.
unsafe fn gather(pieces: impl Iterator<Item = (*const u8, usize)>, bytes: &mut Vec<u8>) {
    bytes.clear();
    for (from, len) in pieces {
        bytes.reserve(len);
        // SAFETY: readable, and there is room.
        unsafe {
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(bytes.len()), len);
            bytes.set_len(bytes.len() + len);
        }
    }
}

/// How a datagram goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Way {
    /// It is in the ring.
    Link,
    /// The receiver's buffer is full, and the datagram is gone, as by the kernel.
    Dropped,
    /// By the kernel: [`Outgoing::end_by_kernel`] must be called once it has gone.
    Kernel,
    /// By the kernel, as above; and a ring is to be requested for those that follow.
    KernelThenRequest,
}

/// What a socket sends.
#[derive(Default)]
pub struct Outgoing {
    flows: Vec<Flow>,
    /// The flow of the last datagram.
    last: usize,
    /// The destination that the socket is connected to, once that is known.
    pub connected: Option<Address>,
    /// What the IP headers of its datagrams say, by IPv4 and by IPv6. Known once a ring was requested.
    pub marks: [Marks; 2],
    /// The length of the datagrams into which the bytes of a send are split (`UDP_SEGMENT`); 0: they are not.
    pub segment: u16,
    /// For the bytes of a datagram that a link takes.
    gathered: Vec<u8>,
}

impl Outgoing {
    #[inline]
    fn find(&mut self, to: &Address) -> Option<&mut Flow> {
        if self.flows.get(self.last).is_none_or(|flow| flow.to != *to) {
            self.last = self.flows.iter().position(|flow| flow.to == *to)?;
        }
        self.flows.get_mut(self.last)
    }

    /// The number of rings in use.
    pub fn rings(&self) -> usize {
        let is_made = |flow: &&Flow| match &flow.state {
            State::Linked { .. } => true,
            State::OnLink { flow, .. } => flow.is_open(),
            State::Counting { .. } | State::Requested { .. } | State::Indistinct => false,
        };
        self.flows.iter().filter(is_made).count()
    }

    /// Why the latest destination for which a ring was requested has none, as far as is known.
    pub fn refused(&self) -> Option<Reason> {
        self.flows.iter().rev().find_map(|flow| flow.refused)
    }

    /// Whether datagrams to there come from this address, as far as is known, if the program names none.
    pub fn may_come_from(&mut self, to: &Address, source: IpAddr) -> bool {
        self.find(to).and_then(|flow| flow.destination).is_none_or(|known| known.source.ip() == source)
    }

    /// Whether the ring to there can take so many datagrams one after the other: see [`Sender::has_room_for`]. True if there is
    /// none.
    pub fn has_room_for(&mut self, to: &Address, count: u64, len: usize, longest: usize) -> bool {
        match self.find(to).map(|flow| &mut flow.state) {
            Some(State::Linked { sender, .. }) => sender.has_room_for(count, len, longest),
            // Nothing says how many a link takes.
            Some(State::OnLink { .. }) => false,
            _ => true,
        }
    }

    /// Sends a datagram of these pieces, or says how it must go. By the kernel it is the first of `count`, all of one call.
    ///
    /// # Safety
    /// The pieces are readable, and `len` bytes together.
    #[inline]
    pub unsafe fn send(
        &mut self,
        to: &Address,
        (pieces, len): (impl Iterator<Item = (*const u8, usize)>, usize),
        marks: Marks,
        count: u64,
    ) -> Way {
        let mut gathered = std::mem::take(&mut self.gathered);
        // SAFETY: passed on.
        let way = unsafe { self.send_gathering(to, (pieces, len), marks, count, &mut gathered) };
        self.gathered = gathered;
        way
    }

    /// # Safety
    /// As [`send`](Outgoing::send).
    #[inline]
    unsafe fn send_gathering(
        &mut self,
        to: &Address,
        (pieces, len): (impl Iterator<Item = (*const u8, usize)>, usize),
        marks: Marks,
        count: u64,
        gathered: &mut Vec<u8>,
    ) -> Way {
        let Some(flow) = self.find(to) else {
            if self.flows.len() >= MOST {
                // Those that have rings are worth more than what is new.
                self.flows.retain(|flow| matches!(flow.state, State::Linked { .. } | State::OnLink { .. }));
                self.last = 0;
            }
            if self.flows.len() < MOST {
                self.flows.push(Flow {
                    to: *to,
                    state: State::Counting { sent: 1, request_at: REQUEST_AFTER },
                    destination: None,
                    by_kernel: count,
                    sent_by_kernel: 0,
                    reclaimed: Vec::new(),
                    refused: None,
                });
            }
            return Way::Kernel;
        };
        match &mut flow.state {
            State::Linked { sender, .. } => {
                // SAFETY: passed on.
                match unsafe { sender.send(pieces, len, marks, wall_nanos) } {
                    Ok(()) => return Way::Link,
                    Err(Refusal::Dropped) => return Way::Dropped,
                    Err(_) => {}
                }
            }
            State::Counting { sent, request_at } => {
                *sent += 1;
                let request_at = *request_at;
                if *sent >= request_at {
                    flow.state = State::Requested { request_at };
                    flow.begin_by_kernel(count);
                    return Way::KernelThenRequest;
                }
            }
            State::OnLink { endpoint, flow, unpolled, .. } => {
                *unpolled += 1;
                // Those that the receiver has not taken go first.
                if flow.is_open() {
                    // SAFETY: passed on.
                    unsafe { gather(pieces, gathered) };
                    if endpoint.send_datagram(flow, gathered, marks.ttl, marks.tos).is_ok() {
                        return Way::Link;
                    }
                }
            }
            State::Requested { .. } | State::Indistinct => {}
        }
        flow.begin_by_kernel(count);
        Way::Kernel
    }

    /// So many datagrams go by the kernel because of what they are: see [`Way::Kernel`].
    pub fn begin_by_kernel(&mut self, to: &Address, count: u64) {
        if let Some(flow) = self.find(to) {
            flow.begin_by_kernel(count);
        }
    }

    /// Sends by the kernel what was taken back from the ring of a flow. `fd` is a descriptor of the socket. Call it before a datagram
    /// goes by the kernel, and keep the lock in between, or others overtake.
    #[inline]
    pub fn resend_reclaimed(&mut self, fd: c_int, to: &Address, counts: &Counts) {
        let Some(flow) = self.find(to).filter(|flow| !flow.reclaimed.is_empty()) else { return };
        let reclaimed = std::mem::take(&mut flow.reclaimed);
        self.resend(fd, to, &reclaimed, counts);
        self.end_by_kernel(to, reclaimed.len() as u64, true);
    }

    /// Sends by the kernel the datagrams that were taken back from a ring. Those that the kernel does not take are dropped.
    #[cold]
    pub fn resend(&self, fd: c_int, to: &Address, reclaimed: &[Reclaimed], counts: &Counts) {
        let usual = self.marks[usize::from(!to.is_v4())];
        for Reclaimed { bytes, marks } in reclaimed {
            let marks = Some(*marks).filter(|marks| *marks != usual);
            Resent { bytes, to, marks, is_never_split: self.segment != 0 }.send(fd);
        }
        let count = reclaimed.len() as u64;
        counts.tx_link.fetch_sub(count, Ordering::Relaxed);
        counts.tx_kernel.fetch_add(count, Ordering::Relaxed);
        counts.taken_back.fetch_add(count, Ordering::Relaxed);
    }

    /// So many were `sent` by the kernel, or could not be.
    pub fn end_by_kernel(&mut self, to: &Address, count: u64, sent: bool) {
        if let Some(flow) = self.find(to) {
            flow.by_kernel = flow.by_kernel.saturating_sub(count);
            flow.sent_by_kernel += if sent { count } else { 0 };
            match &mut flow.state {
                State::Linked { sender, .. } => sender.end_by_kernel(count, sent),
                State::OnLink { flow, .. } if sent => (0..count).for_each(|_| flow.count_by_kernel()),
                _ => {}
            }
        }
    }

    /// The link of a flow, if it is time to poll it. Not with this locked: the thread that handles its messages locks it.
    #[inline]
    pub fn take_due_poll(&mut self, to: &Address) -> Option<(&'static Endpoint, Arc<SendingFlow>)> {
        match self.find(to).map(|flow| &mut flow.state) {
            Some(State::OnLink { endpoint, flow, unpolled, .. }) if *unpolled >= POLL_AFTER => {
                *unpolled = 0;
                Some((endpoint, flow.clone()))
            }
            _ => None,
        }
    }

    /// Makes a flow on a link for the datagrams to there, by `open`, which gets the number of those that were sent by the kernel.
    /// `None`: it is not wanted any more.
    pub fn place_on_link(
        &mut self,
        to: &Address,
        endpoint: &'static Endpoint,
        open: impl FnOnce(u64) -> Arc<SendingFlow>,
    ) -> Option<Arc<SendingFlow>> {
        let flow = self.find(to)?;
        let State::Requested { request_at } = flow.state else { return None };
        let on_link = open(flow.sent_by_kernel);
        flow.state = State::OnLink { endpoint, flow: on_link.clone(), unpolled: 0, request_at };
        Some(on_link)
    }

    /// Ends the flows on links. What their receivers do not take from them [comes back](Outgoing::follow_link).
    pub fn close_links(&mut self) -> Vec<Closing> {
        let on_links = self.flows.iter().filter_map(|flow| match &flow.state {
            State::OnLink { endpoint, flow: on_link, .. } => Some((*endpoint, on_link.clone(), flow.to)),
            _ => None,
        });
        let closing: Vec<_> = on_links.collect();
        closing.iter().for_each(|(endpoint, flow, _)| endpoint.close_sending(flow));
        closing
    }

    /// The flow on a link has changed: sends by the kernel what its receiver has not taken. Another one may be requested later if it is
    /// over. `fd` is a descriptor of the socket.
    pub fn follow_link(&mut self, fd: c_int, to: &Address, on_link: &Arc<SendingFlow>, counts: &Counts) {
        let is_it = |flow: &Flow| matches!(&flow.state, State::OnLink { flow, .. } if Arc::ptr_eq(flow, on_link));
        let Some(endpoint) = self.find(to).filter(|flow| is_it(flow)).and_then(|flow| match &flow.state {
            State::OnLink { endpoint, .. } => Some(*endpoint),
            _ => None,
        }) else {
            return;
        };
        // First: then nothing more comes back.
        let is_over = on_link.is_over();
        let reclaimed: Vec<_> = returned(endpoint, on_link).collect();
        if !reclaimed.is_empty() {
            self.resend(fd, to, &reclaimed, counts);
            reclaimed.iter().for_each(|_| on_link.count_by_kernel());
        }
        let Some(flow) = self.find(to) else { return };
        flow.sent_by_kernel += reclaimed.len() as u64;
        if let State::OnLink { request_at, .. } = flow.state {
            if is_over {
                flow.refused = on_link.refused();
                flow.state = State::Counting { sent: 0, request_at: request_at.saturating_mul(2) };
            }
        }
    }

    /// A ring to this destination may be requested. `Err`: it must not be, because another flow goes there, too. That one
    /// has ended; its queue pair, if it had one, is to be ended as well.
    pub fn reserve(&mut self, to: &Address, destination: Destination) -> Result<(), Option<QueuePairId>> {
        let is_other = |flow: &Flow| flow.to != *to && flow.destination == Some(destination);
        let other = self.flows.iter_mut().find(|flow| is_other(flow));
        let former = other.map(|other| std::mem::replace(&mut other.state, State::Indistinct));
        if let Some(flow) = self.find(to) {
            flow.destination = Some(destination);
            if former.is_some() {
                flow.state = State::Indistinct;
            }
        }
        match former {
            None => Ok(()),
            Some(State::Linked { qp, .. }) => Err(Some(qp)),
            Some(_) => Err(None),
        }
    }

    /// There is a ring now. `false`: the flow is not wanted any more.
    pub fn link(&mut self, to: &Address, mut sender: Sender, qp: QueuePairId) -> bool {
        let Some(flow) = self.find(to).filter(|flow| matches!(flow.state, State::Requested { .. })) else {
            return false;
        };
        sender.start(flow.by_kernel);
        flow.state = State::Linked { sender, qp };
        true
    }

    /// There will be no ring for now.
    pub fn refuse(&mut self, to: &Address, reason: Reason) {
        if let Some(flow) = self.find(to) {
            flow.refused = Some(reason);
            if let State::Requested { request_at } = flow.state {
                flow.state = State::Counting { sent: 0, request_at: request_at.saturating_mul(2) };
            }
        }
    }

    /// The receiver has ended a flow, or is gone. Returns its destination, and the datagrams that the receiver has given back;
    /// `None`: it was none of these.
    pub fn end(&mut self, qp: QueuePairId) -> Option<(Address, Vec<Reclaimed>)> {
        let is_it = |flow: &Flow| matches!(flow.state, State::Linked { qp: of, .. } if of == qp);
        let ended = self.flows.iter().position(is_it)?;
        self.last = 0;
        let Flow { to, state, .. } = self.flows.remove(ended);
        match state {
            State::Linked { mut sender, .. } => Some((to, sender.end())),
            _ => None,
        }
    }

    pub(super) fn end_all(&mut self, fd: c_int, counts: &Counts) -> Vec<QueuePairId> {
        self.connected = None;
        self.last = 0;
        let mut ended = Vec::new();
        for flow in std::mem::take(&mut self.flows) {
            match flow.state {
                State::Linked { mut sender, qp } => {
                    self.resend(fd, &flow.to, &sender.end(), counts);
                    ended.push(qp);
                }
                State::OnLink { endpoint, flow: on_link, .. } => {
                    let reclaimed: Vec<_> = returned(endpoint, &on_link).collect();
                    self.resend(fd, &flow.to, &reclaimed, counts);
                    endpoint.close_sending(&on_link);
                }
                State::Counting { .. } | State::Requested { .. } | State::Indistinct => {}
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use netacc_datagram::{inbox_len, Receiver, OUTBOX_LEN};
    use netacc_device::Memory;

    use super::*;

    fn to(port: u8) -> Address {
        Address::new(&[2, 0, 0, port, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    fn send(outgoing: &mut Outgoing, port: u8) -> Way {
        // SAFETY: no bytes.
        unsafe { outgoing.send(&to(port), (std::iter::empty(), 0), Marks::default(), 1) }
    }

    #[test]
    fn a_ring_is_requested_once_and_later_again() {
        let mut outgoing = Outgoing::default();
        let requests =
            |outgoing: &mut Outgoing, n: usize| (0..n).filter(|_| send(outgoing, 1) == Way::KernelThenRequest).count();
        assert_eq!(requests(&mut outgoing, 3), 0);
        assert_eq!(requests(&mut outgoing, 100), 1);
        outgoing.refuse(&to(1), Reason::PeerNotFound);
        assert_eq!(outgoing.refused(), Some(Reason::PeerNotFound));
        assert_eq!(requests(&mut outgoing, 7), 0);
        assert_eq!(requests(&mut outgoing, 100), 1);
    }

    // Breaks if the receiver gets two rings whose datagrams it cannot tell apart.
    #[test]
    fn flows_to_one_socket_by_two_addresses_stay_in_the_kernel() {
        let mut outgoing = Outgoing::default();
        let source = "127.0.0.1:9".parse().unwrap();
        let destination = Destination { peer: PeerAddress([7; 4]), number: 3, source };
        let request = |outgoing: &mut Outgoing, port| while send(outgoing, port) != Way::KernelThenRequest {};
        request(&mut outgoing, 1);
        assert_eq!(outgoing.reserve(&to(1), destination), Ok(()));
        let sender = || Sender::new(Memory::heap(inbox_len(1024)), Memory::heap(OUTBOX_LEN)).unwrap();
        assert!(outgoing.link(&to(1), sender(), QueuePairId(7)));
        request(&mut outgoing, 2);
        assert_eq!(outgoing.reserve(&to(2), Destination { number: 4, ..destination }), Ok(()), "another socket");
        request(&mut outgoing, 3);
        assert_eq!(outgoing.reserve(&to(3), destination), Err(Some(QueuePairId(7))));
        assert!(!outgoing.link(&to(3), sender(), QueuePairId(8)));
        assert!((0..100).all(|_| send(&mut outgoing, 1) == Way::Kernel && send(&mut outgoing, 3) == Way::Kernel));
    }

    /// A flow to the first address that has just got its ring, and the ring's receiver.
    fn linked() -> (Outgoing, Receiver) {
        let mut outgoing = Outgoing::default();
        while send(&mut outgoing, 1) != Way::KernelThenRequest {
            outgoing.end_by_kernel(&to(1), 1, true);
        }
        outgoing.end_by_kernel(&to(1), 1, true);
        let (inbox, outbox) = (Memory::heap(inbox_len(1024)), Memory::heap(OUTBOX_LEN));
        let receiver = Receiver::new(inbox.clone(), outbox.clone(), false).unwrap();
        assert!(outgoing.link(&to(1), Sender::new(inbox, outbox).unwrap(), QueuePairId(7)));
        (outgoing, receiver)
    }

    #[test]
    fn a_linked_flow_takes_its_ring_while_the_receiver_is_awake() {
        let (mut outgoing, mut receiver) = linked();
        assert_eq!(send(&mut outgoing, 1), Way::Kernel);
        outgoing.end_by_kernel(&to(1), 1, true);
        receiver.kernel_was_empty(receiver.sent_by_kernel());
        receiver.stay_awake();
        assert_eq!(send(&mut outgoing, 1), Way::Link);
        assert_eq!(send(&mut outgoing, 2), Way::Kernel, "another destination");
        assert_eq!(outgoing.end(QueuePairId(7)), Some((to(1), Vec::new())));
        assert_eq!(send(&mut outgoing, 1), Way::Kernel);
    }

    // Breaks if a datagram that must take the kernel overtakes those in the ring of a receiver that is new, or if the
    // receiver does not know that those come by the kernel as well.
    #[test]
    fn what_a_new_receiver_has_goes_by_the_kernel_before_what_must() {
        let (mut outgoing, mut receiver) = linked();
        receiver.stay_awake();
        assert_eq!(send(&mut outgoing, 1), Way::Link);
        assert_eq!(send(&mut outgoing, 1), Way::Link);
        assert_eq!(receiver.sender_processor(), None);
        outgoing.begin_by_kernel(&to(1), 1);
        assert!(receiver.sender_processor().is_some());
        let (counts, sent) = (Counts::default(), receiver.sent_by_kernel());
        counts.tx_link.store(2, Ordering::Relaxed);
        outgoing.resend_reclaimed(-1, &to(1), &counts);
        assert_eq!([&counts.tx_link, &counts.tx_kernel].map(|count| count.load(Ordering::Relaxed)), [0, 2]);
        outgoing.end_by_kernel(&to(1), 1, true);
        assert_eq!(receiver.sent_by_kernel(), sent + 3);
        assert_eq!(receiver.front(), None);
    }

    // Breaks if what goes by the kernel while a ring is closed is counted at its end alone: then no record is ever due.
    #[test]
    fn what_goes_by_the_kernel_because_a_ring_is_closed_is_counted() {
        let (mut outgoing, mut receiver) = linked();
        receiver.close();
        assert_eq!(send(&mut outgoing, 1), Way::Kernel);
        outgoing.end_by_kernel(&to(1), 1, true);
        receiver.kernel_was_empty(receiver.sent_by_kernel());
        assert!(!receiver.is_new());
    }
}
