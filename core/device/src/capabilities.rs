//! The properties of a device. Code branches on these and never on a backend's name.

/// The bytes with which each side of a link reports its progress, at any time and inline.
pub const CREDIT_WORD_LEN: u32 = 8;

/// Properties of one opened device. A profile may narrow them, never widen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
pub struct Capabilities {
    /// RDMA WRITE WITH IMMEDIATE is supported. Without it messages go as SEND.
    pub write_with_imm: bool,
    /// Receives can have memory ([`Receives::FirstRegion`](crate::Receives)), so that a SEND brings bytes. Without it a
    /// SEND carries an immediate at most.
    pub sends: bool,
    /// Largest payload in bytes that a work request may carry inline (0: none). At least
    /// [`CREDIT_WORD_LEN`] with `write_with_imm`: a backend copies these where its device does not.
    pub max_inline: u32,
    /// Scatter/gather entries of a send request (at least 1).
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive (0: only zero-length receives).
    pub max_recv_sge: u32,
    /// Depth of a send queue, in requests.
    pub max_send_wr: u32,
    /// Depth of a receive queue, in receives.
    pub max_recv_wr: u32,
    /// Largest message in bytes.
    pub max_message: u32,
    /// Completion queues that may exist at once (at least 1).
    pub max_cq: u32,
    /// The peer's registered region can be mapped here ([`Device::window`](crate::Device::window)): a sender
    /// fills it directly and posts [`Payload::InPlace`](crate::Payload::InPlace), saving a copy.
    pub peer_memory: bool,
    /// The bytes that a completed post has placed stay readable by the peer even if the poster dies at once.
    pub placement_is_delivery: bool,
    /// A small RDMA WRITE without immediate costs no more than a store: credit may be returned on every read.
    pub cheap_writes: bool,
    /// Threads can sleep on one queue pair ([`CompletionEvents::wait_qp`](crate::CompletionEvents::wait_qp)).
    pub qp_wait: bool,
    /// A queue pair can be moved to another completion queue while connected.
    pub rebind: bool,
    /// A message can be announced to the peer at the completion queue that its queue pair was connected on
    /// ([`CompletionEvents::knock`](crate::CompletionEvents::knock)).
    pub knock: bool,
    /// A peer's write is refused exactly from the end of its region on, and a peer cannot reach a region that was given
    /// back. Without it regions are parts of memory that is registered as a whole: a stray write may then reach memory
    /// that its own queue pair has or had, but never another's.
    pub exact_bounds: bool,
    /// The side that accepted must have received a message before it posts, or the queue pair dies (iWARP).
    pub initiator_sends_first: bool,
    /// A queue pair whose peer is out of reach ends by itself, within seconds. Without it the device may report nothing
    /// for as long as TCP has patience, and the user of the link has to probe its peer (SPEC §2.6).
    pub notices_silence: bool,
}

impl Capabilities {
    /// The portable subset that every real device offers (eRDMA, SoftRoCE, siw, mlx5): see SPEC.md §2.
    pub const PORTABLE: Capabilities = Capabilities {
        write_with_imm: false,
        sends: false,
        max_inline: 0,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_send_wr: 64,
        max_recv_wr: 64,
        max_message: 1 << 20,
        max_cq: 1,
        peer_memory: false,
        placement_is_delivery: false,
        cheap_writes: false,
        qp_wait: false,
        rebind: false,
        knock: false,
        exact_bounds: false,
        initiator_sends_first: true,
        notices_silence: false,
    };
}
