//! The properties of a simulated device, and its behaviour where real devices differ.

use crate::Capabilities;

/// The time at which posted work arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    /// Before the posting call returns.
    Immediate,
    /// When the owner of the fabric delivers it.
    Explicit,
}

/// The effect of a message that finds no posted receive. Real devices do all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReceive {
    /// It waits for a receive (InfiniBand and RoCE with unlimited RNR retries).
    Wait,
    /// The queue pair dies at both ends (iWARP, eRDMA).
    Fatal,
    /// It is not accepted in the first place: the post fails with `QueueFull` (shared memory).
    QueueFull,
}

/// The time at which the slot of an unsignaled request can be used again. The slot of a signaled request is free when
/// its completion is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotRelease {
    /// As soon as the request is done.
    OnDelivery,
    /// When the completion of a later signaled request is polled, as on every verbs device. A sender that never signals
    /// runs out of slots permanently.
    OnPolledCompletion,
}

/// Configuration of one [`LoopbackDevice`](super::LoopbackDevice).
#[derive(Clone, Debug)]
pub struct LoopbackConfig {
    /// Its name, for people.
    pub name: String,
    /// The capabilities that it reports, and obeys.
    pub capabilities: Capabilities,
    /// The effect of a message that finds no receive at the peer. The sender's setting counts.
    pub no_receive: NoReceive,
    /// The time at which the slot of an unsignaled request is free again.
    pub slot_release: SlotRelease,
    /// SEND carries an immediate. Without it the peer always sees 0.
    pub send_carries_imm: bool,
    /// Requests that a dead queue pair never executed complete as `Flushed`. Some devices stay silent.
    pub report_flushes: bool,
    /// Private data arrives padded with zeros to its greatest length (RoCE).
    pub pad_private_data: bool,
    /// Queue pairs that may exist at once, connecting ones included.
    pub max_qp: u32,
    /// Regions that may be registered at once. The first regions of queue pairs count, but are never refused because of
    /// it.
    pub max_mr: u32,
    /// Bytes that may be registered at once.
    pub memory_limit_bytes: usize,
}

/// Registered bytes allowed by the presets. Arbitrary: far above the use of a simulation.
const MEMORY_LIMIT_BYTES: usize = 1 << 30;

/// Queue pairs allowed by the presets. Arbitrary, as above.
const MAX_QP: u32 = 1 << 16;

/// Regions allowed by the presets. Arbitrary, as above.
const MAX_MR: u32 = 1 << 20;

impl LoopbackConfig {
    /// A software RNIC over shared memory.
    pub fn shm() -> LoopbackConfig {
        LoopbackConfig {
            name: "loopback-shm".into(),
            capabilities: Capabilities {
                write_with_imm: true,
                sends: false,
                max_inline: 256,
                max_send_sge: 1,
                max_recv_sge: 0,
                max_send_wr: 64,
                max_recv_wr: 64,
                max_message: 1 << 20,
                max_cq: 64,
                peer_memory: true,
                placement_is_delivery: true,
                cheap_writes: true,
                qp_wait: false,
                rebind: true,
                knock: false,
                exact_bounds: true,
                initiator_sends_first: false,
                notices_silence: true,
            },
            no_receive: NoReceive::QueueFull,
            slot_release: SlotRelease::OnDelivery,
            send_carries_imm: true,
            report_flushes: true,
            pad_private_data: false,
            max_qp: MAX_QP,
            max_mr: MAX_MR,
            memory_limit_bytes: MEMORY_LIMIT_BYTES,
        }
    }

    /// An eRDMA adapter in its standard (iWARP) mode, as strict as facts/erdma.md describes it.
    pub fn erdma() -> LoopbackConfig {
        LoopbackConfig {
            name: "loopback-erdma".into(),
            capabilities: Capabilities {
                write_with_imm: true,
                sends: true,
                max_inline: 96,
                max_send_sge: 6,
                max_recv_sge: 1,
                max_send_wr: 64,
                max_recv_wr: 64,
                max_message: 1 << 20,
                max_cq: 64,
                peer_memory: false,
                placement_is_delivery: false,
                cheap_writes: false,
                qp_wait: false,
                rebind: false,
                knock: false,
                exact_bounds: true,
                initiator_sends_first: true,
                notices_silence: false,
            },
            no_receive: NoReceive::Fatal,
            slot_release: SlotRelease::OnPolledCompletion,
            send_carries_imm: true,
            report_flushes: false,
            pad_private_data: false,
            max_qp: MAX_QP,
            max_mr: MAX_MR,
            memory_limit_bytes: MEMORY_LIMIT_BYTES,
        }
    }

    /// SoftRoCE: messages wait for receives, flushes are reported, private data is padded.
    pub fn soft_roce() -> LoopbackConfig {
        let mut config = LoopbackConfig::erdma();
        config.name = "loopback-rxe".into();
        config.capabilities.max_inline = 512;
        config.capabilities.max_recv_sge = 0;
        config.no_receive = NoReceive::Wait;
        config.report_flushes = true;
        config.capabilities.initiator_sends_first = false;
        config.capabilities.notices_silence = true;
        config.pad_private_data = true;
        config
    }

    /// A device without write-with-immediate, and whose SEND carries none either (soft-iWARP): the portable subset.
    pub fn send_only() -> LoopbackConfig {
        let mut config = LoopbackConfig::erdma();
        config.name = "loopback-send-only".into();
        config.capabilities = Capabilities { sends: true, ..Capabilities::PORTABLE };
        config.send_carries_imm = false;
        config
    }
}
