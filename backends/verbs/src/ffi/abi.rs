//! Structures of `infiniband/verbs.h` and `rdma/rdma_cma.h` on 64-bit Linux, as far as we use them.
//!
//! Their layout has been stable since 2006 (libibverbs 1.1): fields are only ever appended. The offsets are asserted here,
//! and against the headers of the machine by the test below.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

#[repr(C)]
pub(crate) struct Device {
    _ops: [*mut c_void; 2],
    pub(crate) node_type: i32,
    pub(crate) transport_type: i32,
    pub(crate) name: [u8; 64],
}

type PollCq = unsafe extern "C" fn(*mut CompletionQueue, i32, *mut WorkCompletion) -> i32;
type ReqNotifyCq = unsafe extern "C" fn(*mut CompletionQueue, i32) -> i32;
type PostSend = unsafe extern "C" fn(*mut QueuePair, *mut SendWr, *mut *mut SendWr) -> i32;
type PostRecv = unsafe extern "C" fn(*mut QueuePair, *mut RecvWr, *mut *mut RecvWr) -> i32;

/// The four calls of the data path are inline functions in the headers: they go through this table.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    _before_poll_cq: [*mut c_void; 11],
    pub(crate) poll_cq: PollCq,
    pub(crate) req_notify_cq: ReqNotifyCq,
    _before_post_send: [*mut c_void; 12],
    pub(crate) post_send: PostSend,
    pub(crate) post_recv: PostRecv,
    _after_post_recv: [*mut c_void; 5],
    pub(crate) cmd_fd: i32,
    pub(crate) async_fd: i32,
    pub(crate) num_comp_vectors: i32,
}

/// The fields that `ibv_query_port` fills in, and some room, because later versions of it are longer.
#[repr(C)]
pub(crate) struct PortAttr {
    pub(crate) state: i32,
    _max_mtu: i32,
    pub(crate) active_mtu: i32,
    _rest: [u32; 29],
}

#[repr(C)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [u8; 64],
    _guids: [u64; 2],
    pub(crate) max_mr_size: u64,
    _page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    _hw_ver: u32,
    pub(crate) max_qp: i32,
    pub(crate) max_qp_wr: i32,
    _device_cap_flags: u32,
    pub(crate) max_sge: i32,
    _max_sge_rd: i32,
    pub(crate) max_cq: i32,
    pub(crate) max_cqe: i32,
    pub(crate) max_mr: i32,
    pub(crate) max_pd: i32,
    _rest: [u32; 22],
}

#[repr(C)]
pub(crate) struct MemoryRegion {
    _context: *mut c_void,
    _pd: *mut c_void,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct CompChannel {
    _context: *mut c_void,
    pub(crate) fd: i32,
}

#[repr(C)]
pub(crate) struct CompletionQueue {
    pub(crate) context: *mut Context,
}

/// The object of an asynchronous event: a queue pair, a completion queue, or something else.
#[repr(C)]
pub(crate) struct AsyncEvent {
    pub(crate) element: *mut c_void,
    pub(crate) event_type: i32,
}

impl Default for AsyncEvent {
    fn default() -> AsyncEvent {
        AsyncEvent { element: std::ptr::null_mut(), event_type: -1 }
    }
}

pub(crate) const EVENT_CQ_ERR: i32 = 0;
pub(crate) const EVENT_QP_FATAL: i32 = 1;
pub(crate) const EVENT_QP_REQ_ERR: i32 = 2;
pub(crate) const EVENT_QP_ACCESS_ERR: i32 = 3;
pub(crate) const EVENT_DEVICE_FATAL: i32 = 8;

#[repr(C)]
pub(crate) struct QueuePair {
    pub(crate) context: *mut Context,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: i32,
    pub(crate) opcode: i32,
    pub(crate) send_flags: u32,
    /// Big-endian.
    pub(crate) imm_data: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    _rest: [u64; 9],
}

impl SendWr {
    /// A request whose other fields are zero.
    pub(crate) fn new(wr_id: u64, opcode: i32, send_flags: u32) -> SendWr {
        SendWr {
            wr_id,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode,
            send_flags,
            imm_data: 0,
            remote_addr: 0,
            rkey: 0,
            _rest: [0; 9],
        }
    }
}

#[repr(C)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct WorkCompletion {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: i32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Big-endian.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    _src_qp: u32,
    pub(crate) wc_flags: u32,
    _rest: [u16; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut CompletionQueue,
    pub(crate) recv_cq: *mut CompletionQueue,
    pub(crate) srq: *mut c_void,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: i32,
    pub(crate) sq_sig_all: i32,
}

/// Only the new state is ever set.
#[repr(C)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: i32,
    _rest: [u32; 35],
}

impl QpAttr {
    pub(crate) fn state(qp_state: i32) -> QpAttr {
        QpAttr { qp_state, _rest: [0; 35] }
    }
}

#[repr(C)]
pub(crate) struct RdmaEventChannel {
    pub(crate) fd: i32,
}

#[repr(C)]
pub(crate) struct RdmaCmId {
    pub(crate) verbs: *mut Context,
    _channel: *mut c_void,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut QueuePair,
    /// As `struct sockaddr_storage`.
    pub(crate) src_addr: [u64; 16],
    pub(crate) dst_addr: [u64; 16],
    _way: [u32; 15],
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RdmaConnParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

#[repr(C)]
pub(crate) struct RdmaCmEvent {
    pub(crate) id: *mut RdmaCmId,
    pub(crate) listen_id: *mut RdmaCmId,
    pub(crate) event: i32,
    pub(crate) status: i32,
    pub(crate) conn: RdmaConnParam,
}

pub(crate) const TRANSPORT_IWARP: i32 = 1;
pub(crate) const PORT_ACTIVE: i32 = 4;
pub(crate) const QPT_RC: i32 = 2;
pub(crate) const QPS_ERR: i32 = 6;
pub(crate) const QP_STATE: i32 = 1;
pub(crate) const ACCESS_LOCAL_WRITE: i32 = 1;
pub(crate) const ACCESS_REMOTE_WRITE: i32 = 2;
pub(crate) const WR_RDMA_WRITE: i32 = 0;
pub(crate) const WR_RDMA_WRITE_WITH_IMM: i32 = 1;
pub(crate) const WR_SEND: i32 = 2;
pub(crate) const WR_SEND_WITH_IMM: i32 = 3;
pub(crate) const SEND_SIGNALED: u32 = 2;
pub(crate) const SEND_INLINE: u32 = 8;
pub(crate) const WC_WITH_IMM: u32 = 2;
pub(crate) const WC_SUCCESS: u32 = 0;
pub(crate) const WC_WR_FLUSH_ERR: u32 = 5;
pub(crate) const WC_REM_INV_REQ_ERR: u32 = 9;
pub(crate) const WC_REM_OP_ERR: u32 = 11;
pub(crate) const WC_RETRY_EXC_ERR: u32 = 12;
pub(crate) const WC_RNR_RETRY_EXC_ERR: u32 = 13;
pub(crate) const PS_TCP: i32 = 262;

/// Asserts the offsets of fields, and keeps the table for the test that checks the machine's headers.
macro_rules! layout {
    ($($type:ident = $c:ident { $($field:ident $(($($path:tt)+))?: $offset:expr),* } $(size $size:expr)?;)*) => {
        $(
            $(const _: () = assert!(offset_of!($type, $field) == $offset);)*
            $(const _: () = assert!(size_of::<$type>() == $size);)?
        )*

        /// C's name of the structure, C's name of the field (none: the structure's size), offset or size.
        #[cfg(test)]
        const LAYOUT: &[(&str, Option<&str>, usize)] = &[
            $(
                $((stringify!($c), Some(layout!(@name $field $(($($path)+))?)), $offset),)*
                $((stringify!($c), None, $size),)?
            )*
        ];
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident ($($path:tt)+)) => { stringify!($($path)+) };
}

layout! {
    Device = ibv_device { node_type: 16, transport_type: 20, name: 24 };
    Context = ibv_context { device: 0, poll_cq(ops.poll_cq): 96, req_notify_cq(ops.req_notify_cq): 104,
        post_send(ops.post_send): 208, post_recv(ops.post_recv): 216, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272 };
    DeviceAttr = ibv_device_attr { fw_ver: 0, max_mr_size: 80, vendor_id: 96, vendor_part_id: 100, max_qp: 108,
        max_qp_wr: 112, max_sge: 120, max_cq: 128, max_cqe: 132, max_mr: 136, max_pd: 140 } size 232;
    PortAttr = ibv_port_attr { state: 0, active_mtu: 8 };
    MemoryRegion = ibv_mr { lkey: 36, rkey: 40 };
    CompChannel = ibv_comp_channel { fd: 8 };
    CompletionQueue = ibv_cq { context: 0 };
    AsyncEvent = ibv_async_event { element: 0, event_type: 8 } size 16;
    QueuePair = ibv_qp { context: 0 };
    Sge = ibv_sge { addr: 0, length: 8, lkey: 12 } size 16;
    SendWr = ibv_send_wr { wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, imm_data: 36,
        remote_addr(wr.rdma.remote_addr): 40, rkey(wr.rdma.rkey): 48 } size 128;
    RecvWr = ibv_recv_wr { wr_id: 0, next: 8, sg_list: 16, num_sge: 24 } size 32;
    WorkCompletion = ibv_wc { wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, imm_data: 24, qp_num: 28,
        wc_flags: 36 } size 48;
    QpCap = ibv_qp_cap { max_send_wr: 0, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 12, max_inline_data: 16 } size 20;
    QpInitAttr = ibv_qp_init_attr { qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52,
        sq_sig_all: 56 } size 64;
    QpAttr = ibv_qp_attr { qp_state: 0 } size 144;
    RdmaEventChannel = rdma_event_channel { fd: 0 };
    RdmaCmId = rdma_cm_id { verbs: 0, context: 16, qp: 24, src_addr(route.addr.src_addr): 32,
        dst_addr(route.addr.dst_addr): 160, port_num: 348 };
    RdmaConnParam = rdma_conn_param { private_data: 0, private_data_len: 8, responder_resources: 9, initiator_depth: 10,
        flow_control: 11, retry_count: 12, rnr_retry_count: 13, srq: 14, qp_num: 16 } size 24;
    RdmaCmEvent = rdma_cm_event { id: 0, listen_id: 8, event: 16, status: 20, conn(param.conn): 24 };
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::process::Command;

    use super::*;

    /// Needs a C compiler, and the headers of libibverbs-dev and librdmacm-dev.
    #[test]
    fn the_headers_of_this_machine_agree() {
        let constants = [
            ("IBV_TRANSPORT_IWARP", TRANSPORT_IWARP as u32),
            ("IBV_QPT_RC", QPT_RC as u32),
            ("IBV_QPS_ERR", QPS_ERR as u32),
            ("IBV_QP_STATE", QP_STATE as u32),
            ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE as u32),
            ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE as u32),
            ("IBV_WR_RDMA_WRITE", WR_RDMA_WRITE as u32),
            ("IBV_WR_RDMA_WRITE_WITH_IMM", WR_RDMA_WRITE_WITH_IMM as u32),
            ("IBV_WR_SEND", WR_SEND as u32),
            ("IBV_WR_SEND_WITH_IMM", WR_SEND_WITH_IMM as u32),
            ("IBV_SEND_SIGNALED", SEND_SIGNALED),
            ("IBV_SEND_INLINE", SEND_INLINE),
            ("IBV_WC_WITH_IMM", WC_WITH_IMM),
            ("IBV_WC_SUCCESS", WC_SUCCESS),
            ("IBV_WC_WR_FLUSH_ERR", WC_WR_FLUSH_ERR),
            ("IBV_WC_REM_INV_REQ_ERR", WC_REM_INV_REQ_ERR),
            ("IBV_WC_REM_OP_ERR", WC_REM_OP_ERR),
            ("IBV_WC_RETRY_EXC_ERR", WC_RETRY_EXC_ERR),
            ("IBV_WC_RNR_RETRY_EXC_ERR", WC_RNR_RETRY_EXC_ERR),
            ("IBV_EVENT_CQ_ERR", EVENT_CQ_ERR as u32),
            ("IBV_EVENT_QP_FATAL", EVENT_QP_FATAL as u32),
            ("IBV_EVENT_QP_REQ_ERR", EVENT_QP_REQ_ERR as u32),
            ("IBV_EVENT_QP_ACCESS_ERR", EVENT_QP_ACCESS_ERR as u32),
            ("IBV_EVENT_DEVICE_FATAL", EVENT_DEVICE_FATAL as u32),
            ("RDMA_PS_TCP", PS_TCP as u32),
        ];
        let mut source =
            String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n");
        for (structure, field, number) in LAYOUT {
            let measured = match field {
                Some(field) => format!("offsetof(struct {structure}, {field})"),
                None => format!("sizeof(struct {structure})"),
            };
            writeln!(source, "_Static_assert({measured} == {number}, \"{structure}\");").expect("memory");
        }
        for (name, number) in constants {
            writeln!(source, "_Static_assert({name} == {number}, \"{name}\");").expect("memory");
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("abi.c");
        std::fs::write(&file, source).expect("writing the C source");
        let output = Command::new("cc").arg("-fsyntax-only").arg(&file).output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
