//! The driver's calls to the owner of the streams: events and queries.

use std::sync::Arc;

use netacc_device::{ConnectionId, FourTuple, PeerAddress, QueuePairId};
use netacc_proto::Reason;

use crate::{Flow, Marked, Readiness, ReceivingFlow, SendingFlow, StreamCell};

/// Receives an event when a stream's readiness may have gained a bit. Called with the stream locked: must not lock it.
pub trait ReadySink: Send + Sync {
    /// `now` is the new readiness. `arrived`: new data or a new end of stream came even if no bit changed (an edge).
    fn ready(&self, stream: &Arc<StreamCell>, now: Readiness, arrived: bool);

    /// Whether this process alone holds the descriptor of a stream that [`is shared`](StreamCell::is_shared). If so,
    /// the owner calls [`unshare`](StreamCell::unshare).
    fn holds_alone(&self, stream: &Arc<StreamCell>) -> bool;

    /// The stream's anchor has carried bytes that this process has not moved, although this process is the descriptor's
    /// only holder. Whether the stream may be promoted all the same. Called with the stream locked.
    fn unseen_io(&self, stream: &Arc<StreamCell>) -> bool;

    /// Whether streams may go onto links now. `Err`: for example, the process may use its descriptors in ways that the
    /// library does not see. Called before a stream is opened or accepted, without a stream locked.
    fn may_promote(&self) -> Result<(), Reason> {
        Ok(())
    }

    /// The peer of an opener's stream was found: the stream waits for a link to it. Called with nothing locked.
    fn peer_found(&self, _stream: &StreamCell) {}

    /// The stream has gone onto a link, is about to, or has left it: the owner may watch its anchor, and move the link to a completion queue of
    /// its own. Called from [`Endpoint::progress`](crate::Endpoint::progress) with nothing locked.
    fn moved(&self, stream: &Arc<StreamCell>);

    /// Makes a call for which the control path may have to wait for a device, for seconds if that does not answer. Called with
    /// nothing locked.
    fn wait_for_device(&self, call: &mut dyn FnMut()) {
        call();
    }

    /// A mark on the way of a stream's bytes, while a trace runs: see [`Endpoint::set_traced`](crate::Endpoint::set_traced). Called with the stream
    /// locked.
    fn mark(&self, _stream: &StreamCell, _marked: &Marked) {}

    /// Whether peers may request flows of datagrams on links.
    fn takes_flows(&self) -> bool {
        false
    }

    /// A peer requests a flow on a link, to the socket at `addresses.local`. The UDP port at which the owner receives proofs.
    ///
    /// # Errors
    /// Why it is refused: this process must have that socket, and the kernel must have brought it a datagram from
    /// `addresses.remote`.
    fn flow_offered(&self, _addresses: &FourTuple) -> Result<u16, Reason> {
        Err(Reason::UnknownStream)
    }

    /// A flow on a link is about to be granted to a peer. From now on the kernel may bring its proof.
    fn flow_granted(&self, _flow: &Arc<ReceivingFlow>) {}

    /// A flow on a link that this process sends was granted, refused or ended, or its receiver has returned datagrams.
    fn flow_changed(&self, _flow: &Arc<SendingFlow>) {}

    /// A peer requests a flow of datagrams to this process, which it will send. The length of the region for it, or `None`: it
    /// is refused. `request` is whatever the peer says.
    fn flow_requested(&self, _id: ConnectionId, _peer: PeerAddress, _request: &[u8]) -> Option<usize> {
        None
    }

    /// A flow exists that was requested by either side.
    fn flow_established(&self, _id: ConnectionId, _flow: Flow) {}

    /// A flow that was requested by either side could not be made.
    fn flow_failed(&self, _id: ConnectionId) {}

    /// The peer has ended a flow, or is gone. The owner can still read its datagrams, and then
    /// [ends](crate::Endpoint::end_flow) the flow as well.
    fn flow_ended(&self, _qp: QueuePairId) {}
}
