//! The ends of flows of datagrams on links: SPEC §10.6 to §10.9. The endpoint moves their datagrams: `endpoint::datagrams`.

use std::collections::VecDeque;
use std::sync::Arc;

use netacc_device::{Device, FourTuple, Instant, PeerAddress, PostError, Region};
use netacc_proto::{
    is_flow_proof, FlowProof, FlowReceiver, FlowSender, MessageKind, Nonce, Reason, RingDescriptor, Span,
    CREDIT_BLOCK_LEN,
};
use parking_lot::Mutex;

use crate::counted::Tallied;
use crate::stream::LinkCell;

/// A flow that this process sends.
pub struct SendingFlow {
    /// Where links to its receiver go.
    pub peer: PeerAddress,
    /// The source is `local`, and the destination `remote`.
    pub addresses: FourTuple,
    /// Where the owner receives proofs.
    pub(crate) proof_port: u16,
    pub(crate) inner: Mutex<Sending>,
}

/// A flow that this process receives.
pub struct ReceivingFlow {
    /// The destination is `local`, and the source `remote`.
    pub addresses: FourTuple,
    /// The process at the other end of its link.
    pub peer: PeerAddress,
    pub(crate) inner: Mutex<Receiving>,
}

/// What has become of a flow's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Sent on the link, or received from it.
    pub link: u64,
    /// Those of the sent ones that the receiver did not take before it slept. They go by the kernel.
    pub returned: u64,
    /// Those of the sent ones that may be lost, because the link has died.
    pub lost: u64,
}

/// An end of a flow.
#[derive(Clone)]
pub(crate) enum LinkFlow {
    Sending(Arc<SendingFlow>),
    Receiving(Arc<ReceivingFlow>),
}

/// A datagram with what its IP header would say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkDatagram {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
}

/// Where the sending end is.
pub(crate) enum Place {
    /// It waits for a link. One was requested for it, or none yet.
    Waiting {
        requested: bool,
    },
    On(Box<(Seat, FlowSender)>),
    Gone,
}

pub(crate) struct Sending {
    pub(crate) place: Place,
    pub(crate) returned: VecDeque<LinkDatagram>,
    /// Datagrams that were sent by the kernel, also before the flow.
    pub(crate) by_kernel: u64,
    /// The receiver's proofs have it. Known once the flow was requested.
    pub(crate) nonce: Option<Nonce>,
    /// Why it has no link.
    pub(crate) refused: Option<Reason>,
    pub(crate) counts: FlowCounts,
}

pub(crate) struct Receiving {
    pub(crate) proto: FlowReceiver,
    /// `None` once the flow is over.
    pub(crate) seat: Option<Seat>,
    /// Datagrams that were in the ring at the end.
    pub(crate) left: VecDeque<LinkDatagram>,
    /// A status that the device would not take yet.
    pub(crate) owed: Option<Report>,
    pub(crate) counts: FlowCounts,
}

/// How the sender gets a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Report {
    /// It finds it when it sends.
    Silent,
    /// By a message: it has something to do.
    Message,
}

/// The peer's end of a flow.
#[derive(Clone, Copy)]
pub(crate) struct Far {
    pub(crate) slot: u16,
    pub(crate) ring: RingDescriptor,
}

/// This side's use of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Goes,
    /// CLOSE is to be sent.
    Ends,
    Ended,
}

/// A flow's slot and memory on a link.
pub(crate) struct Seat {
    pub(crate) link: Arc<LinkCell>,
    pub(crate) slot: u16,
    /// The ring, or the sender's copy of it, behind the credit block.
    pub(crate) region: Region,
    /// `None` before the flow is granted.
    pub(crate) far: Option<Far>,
    pub(crate) ours: Use,
    pub(crate) peer_has_closed: bool,
    /// The endpoint counts its flows on links.
    pub(crate) _tallied: Tallied,
}

impl Seat {
    /// Neither side uses the slot any more.
    pub(crate) fn is_over(&self) -> bool {
        self.ours == Use::Ended && self.peer_has_closed
    }

    /// Sends CLOSE if it is due. Whether it has to be tried again.
    pub(crate) fn close_if_due(&mut self, device: &dyn Device) -> bool {
        let Some(far) = self.far.filter(|_| self.ours == Use::Ends) else { return false };
        let mut tx = self.link.tx.lock();
        let posted = tx.signal(device, MessageKind::Close, far.slot);
        tx.has_answered();
        drop(tx);
        if posted != Err(PostError::QueueFull) {
            self.ours = Use::Ended;
        }
        posted == Err(PostError::QueueFull)
    }

    /// Copies bytes of the ring.
    pub(crate) fn read(&self, Span { offset, len }: Span) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let fits = self.region.memory.read(CREDIT_BLOCK_LEN + offset as usize, &mut bytes);
        debug_assert!(fits, "a span of the ring");
        bytes
    }
}

impl SendingFlow {
    pub(crate) fn new(peer: PeerAddress, addresses: FourTuple, proof_port: u16, by_kernel: u64) -> SendingFlow {
        let (place, returned) = (Place::Waiting { requested: false }, VecDeque::new());
        let (nonce, refused, counts) = (None, None, FlowCounts::default());
        let inner = Mutex::new(Sending { place, returned, by_kernel, nonce, refused, counts });
        SendingFlow { peer, addresses, proof_port, inner }
    }

    fn with<T>(&self, change: impl FnOnce(&mut FlowSender) -> T) -> Option<T> {
        match &mut self.inner.lock().place {
            Place::On(on) => Some(change(&mut on.1)),
            Place::Waiting { .. } | Place::Gone => None,
        }
    }

    /// The proof that is to be sent from the flow's socket now, to that port at the destination's address.
    pub fn poll_proof(&self, now: Instant) -> Option<FlowProof> {
        self.with(|proto| proto.poll_proof(now))?
    }

    /// When there is the next one.
    pub fn next_proof(&self) -> Option<Instant> {
        self.with(|proto| proto.next_proof())?
    }

    /// The kernel has brought the owner a datagram from the destination. Whether it is this flow's proof.
    pub fn handle_proof(&self, bytes: &[u8]) -> bool {
        if self.inner.lock().nonce.is_none_or(|nonce| !is_flow_proof(bytes, &nonce)) {
            return false;
        }
        self.with(FlowSender::handle_proof);
        true
    }

    pub(crate) fn link(&self) -> Option<Arc<LinkCell>> {
        match &self.inner.lock().place {
            Place::On(on) => Some(on.0.link.clone()),
            Place::Waiting { .. } | Place::Gone => None,
        }
    }

    /// A datagram of the flow was sent by the kernel.
    pub fn count_by_kernel(&self) {
        let mut inner = self.inner.lock();
        inner.by_kernel += 1;
        if let Place::On(on) = &mut inner.place {
            on.1.count_by_kernel();
        }
    }

    /// Whether datagrams may take the link.
    pub fn is_open(&self) -> bool {
        self.with(|proto| proto.is_open()).unwrap_or(false)
    }

    /// Whether no datagram takes the link any more: the peer has refused or closed it, or the link has died, or a proof did
    /// not come.
    pub fn is_closed(&self) -> bool {
        match &self.inner.lock().place {
            Place::Waiting { .. } => false,
            Place::On(on) => on.1.is_closed() || on.0.peer_has_closed,
            Place::Gone => true,
        }
    }

    /// Why it has got no place on a link.
    pub fn refused(&self) -> Option<Reason> {
        self.inner.lock().refused
    }

    /// Whether neither end uses the flow any more: nothing comes back.
    pub fn is_over(&self) -> bool {
        matches!(self.inner.lock().place, Place::Gone)
    }

    /// Whether the receiver is done with everything that was sent, as far as is known, and everything that has come back was taken.
    pub fn is_drained(&self) -> bool {
        let inner = self.inner.lock();
        let nothing_is_kept = match &inner.place {
            Place::On(on) => on.1.is_drained(),
            Place::Waiting { .. } | Place::Gone => true,
        };
        nothing_is_kept && inner.returned.is_empty()
    }

    /// Counts of its datagrams.
    pub fn counts(&self) -> FlowCounts {
        self.inner.lock().counts
    }
}

impl ReceivingFlow {
    pub(crate) fn new(addresses: FourTuple, proto: FlowReceiver, seat: Seat) -> ReceivingFlow {
        let peer = seat.link.peer;
        let (left, counts) = (VecDeque::new(), FlowCounts::default());
        let inner = Mutex::new(Receiving { proto, seat: Some(seat), left, owed: None, counts });
        ReceivingFlow { addresses, peer, inner }
    }

    pub(crate) fn link(&self) -> Option<Arc<LinkCell>> {
        self.inner.lock().seat.as_ref().map(|seat| seat.link.clone())
    }

    /// So many datagrams have come by the kernel from the source before the flow.
    pub fn start(&self, came_by_kernel: u64) {
        self.inner.lock().proto.start(came_by_kernel);
    }

    /// A datagram of the flow was received from the kernel.
    pub fn count_by_kernel(&self) {
        self.inner.lock().proto.count_by_kernel();
    }

    /// The kernel was asked, and has no datagram for the socket.
    pub fn kernel_was_empty(&self, now: Instant) {
        self.inner.lock().proto.kernel_was_empty(now);
    }

    /// Whether there are datagrams that came by the link.
    pub fn has_more(&self) -> bool {
        let inner = self.inner.lock();
        inner.proto.has_more() || !inner.left.is_empty()
    }

    /// A number that changes when a datagram has come by the link that can be received.
    pub fn arrivals(&self) -> u64 {
        let inner = self.inner.lock();
        inner.counts.link + (inner.proto.waiting() + inner.left.len()) as u64
    }

    /// Whether nothing more comes: the sender has closed the flow, or the link has died.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().seat.as_ref().is_none_or(|seat| seat.peer_has_closed)
    }

    /// Counts of its datagrams.
    pub fn counts(&self) -> FlowCounts {
        self.inner.lock().counts
    }
}

impl Receiving {
    /// The ring is about to go: keeps what is in it.
    pub(crate) fn keep_rest(&mut self) {
        let Some(seat) = &self.seat else { return };
        while let Some(front) = self.proto.front_at_end() {
            self.left.push_back(LinkDatagram { bytes: seat.read(front.span), ttl: front.ttl, tos: front.tos });
            self.proto.take();
        }
        self.proto.close();
    }
}
