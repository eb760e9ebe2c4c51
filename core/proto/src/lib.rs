//! The protocol of netacc links, as sans-IO state machines. `SPEC.md` beside this crate is the wire protocol in
//! numbered clauses; comments of the form `//= spec §…` name the clause that the code obeys.
//!
//! * [`Stream`]: one accelerated socket. It decides which path (anchor or link) its bytes take, in each direction, and
//!   changes the path without losing, doubling or reordering any.
//! * [`Link`]: one connected queue pair. It counts message credit, and has the slots of the streams that use it.
//! * [`FlowSender`] and [`FlowReceiver`]: the datagrams from one UDP socket to another one, on a link.
//! * [`LinkCache`]: the empty links that are kept, and for how long.
//!
//! Four kinds of method: getters take `&self`; `handle_*` feeds events in; verbs (`open`, `claim`, `demote`,
//! `shutdown`) are commands of the application; `poll_*` takes effects out. After any mutation the driver drains every
//! `poll_*` before the next one.
//!
//! The crate handles positions, never payload. It has no clock, thread, socket, entropy or environment; time and nonces
//! are arguments. It needs no operating system (`no_std`). Everything is bounded. Input from a peer never panics: a
//! violation costs that peer's stream.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod admission;
mod cache;
mod flow;
mod link;
mod reason;
mod ring;
mod silence;
mod stream;
mod wire;

pub use admission::{Admission, PreSharedKey};
pub use cache::{CacheConfig, LinkCache};
pub use flow::{
    is_flow_proof, Arrived, FlowProof, FlowReceiver, FlowRefusal, FlowSender, Placed, RecordHeader,
    FLOW_ORDER_PATIENCE, FLOW_PROOF_INTERVAL, FLOW_PROOF_TRIES, FLOW_RECORD_HEADER_LEN,
};
pub use link::{Link, LinkConfig, LinkError, SlotId, SETUP_LIMIT, UNUSED_LIMIT};
pub use reason::Reason;
pub use ring::{RxRing, Span, TxRing, Violation};
pub use silence::{Silence, PROBE_INTERVAL, SILENCE_LIMIT};
pub use stream::{
    AnchorWrite, Control, Credit, Demotion, Failure, PeerFin, Phase, RecordVerdict, Rest, Revival, Role, RxSource,
    SocketError, Stream, StreamConfig, TcpState, TxSink, LINGER_LIMIT, RECORD_GRACE,
};
pub use wire::{
    next_message, number_message, Accept, ControlMessage, Credential, FlowGrant, FlowRequest, Hello, Immediate,
    Markers, MessageKind, Nonce, Open, ProofBytes, Record, RecordKind, Refuse, RingDescriptor, WireError, WireTuple,
    CONTROL_SLOTS, CONTROL_SLOT_LEN, CORKED_REWIND, CORKED_WORD, CREDIT_BLOCK_LEN, INITIAL_MESSAGE_CREDIT,
    LINK_REGION_LEN, MAGIC_LEN, NO_SLOT, NUMBER_BITS, RECORD_LEN, VERSION,
};
