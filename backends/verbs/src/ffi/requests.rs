//! Requests of a queue pair, and the calls that post them.

use std::ptr::{self, NonNull};

use super::abi;
use super::errno::errno;
use super::library::Library;
use super::objects::{Cq, Pd};

/// The operation of a send request, as the device defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendKind {
    Write { address: u64, rkey: u32, imm: Option<u32> },
    Send { imm: Option<u32> },
}

/// A send request whose bytes, if any, are one piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSend {
    pub(crate) wr_id: u64,
    pub(crate) kind: SendKind,
    pub(crate) signaled: bool,
    pub(crate) inline: bool,
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// A receive into one piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRecv {
    pub(crate) wr_id: u64,
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// A work request of either queue, as part of a chain.
pub(crate) trait Chained {
    /// Sets the next request, and the request's one piece of memory, if it has one.
    fn set(&mut self, next: *mut Self, sge: *mut abi::Sge);
}

impl Chained for abi::SendWr {
    fn set(&mut self, next: *mut Self, sge: *mut abi::Sge) {
        (self.next, self.sg_list, self.num_sge) = (next, sge, i32::from(!sge.is_null()));
    }
}

impl Chained for abi::RecvWr {
    fn set(&mut self, next: *mut Self, sge: *mut abi::Sge) {
        (self.next, self.sg_list, self.num_sge) = (next, sge, i32::from(!sge.is_null()));
    }
}

/// Room for a chain of requests, kept so that posting allocates nothing.
///
/// Invariant: the pointers in it are used only during the call for which they were set.
pub(crate) struct Chain<W> {
    wrs: Vec<W>,
    sges: Vec<abi::Sge>,
}

// SAFETY: by the invariant the pointers mean nothing between calls; all else is plain numbers.
unsafe impl<W> Send for Chain<W> {}

impl<W: Chained> Chain<W> {
    /// Room for `depth` requests; it grows if more come.
    pub(crate) fn new(depth: u32) -> Chain<W> {
        Chain { wrs: Vec::with_capacity(depth as usize), sges: Vec::with_capacity(depth as usize) }
    }

    fn fill(&mut self, requests: impl Iterator<Item = (W, abi::Sge)>) {
        self.wrs.clear();
        self.sges.clear();
        for (wr, sge) in requests {
            self.wrs.push(wr);
            self.sges.push(sge);
        }
    }

    /// Sets the pointers; returns the first request, if there is one.
    fn link(&mut self) -> Option<*mut W> {
        let count = self.wrs.len();
        let (wrs, sges) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr());
        for index in 0..count {
            // SAFETY: `index` is in bounds of both, and one more of the requests only where there is one more.
            unsafe {
                let sge = sges.add(index);
                let next = if index + 1 < count { wrs.add(index + 1) } else { ptr::null_mut() };
                (*wrs.add(index)).set(next, if (*sge).length > 0 { sge } else { ptr::null_mut() });
            }
        }
        (count > 0).then_some(wrs)
    }

    fn outcome(&self, status: i32, bad: *mut W) -> Result<(), (usize, i32)> {
        if status == 0 {
            return Ok(());
        }
        let taken = self.wrs.iter().position(|wr| ptr::eq(wr, bad)).unwrap_or(0);
        Err((taken, errno(status)))
    }
}

/// The calls on a queue pair; the connection manager's id owns it and destroys it.
#[derive(Clone, Copy)]
pub(crate) struct QueuePair {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<abi::QueuePair>,
}

// SAFETY: libibverbs allows every call on a queue pair from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// The size of `inline` that a queue pair of these sizes would get; `None` if no such queue pair can be made.
    pub(crate) fn probe(pd: &Pd, cq: &Cq, mut cap: abi::QpCap) -> Option<u32> {
        loop {
            let mut init = init_attr(cq, cap);
            // SAFETY: domain and queue live; the structure is as the library expects it.
            let qp = unsafe { (pd.context.library.ibv_create_qp)(pd.raw.as_ptr(), &raw mut init) };
            if !qp.is_null() {
                // SAFETY: created just now.
                unsafe { (pd.context.library.ibv_destroy_qp)(qp) };
                return Some(cap.max_inline_data);
            }
            if cap.max_inline_data == 0 {
                return None;
            }
            cap.max_inline_data = if cap.max_inline_data < 16 { 0 } else { cap.max_inline_data / 2 };
        }
    }

    /// Posts requests with one doorbell. `Err`: the number of accepted requests, and the error.
    ///
    /// # Safety
    /// The bytes of the requests, except for those inline, stay where they are until the requests have completed.
    pub(crate) unsafe fn post_send(
        &self,
        requests: &[RawSend],
        chain: &mut Chain<abi::SendWr>,
    ) -> Result<(), (usize, i32)> {
        chain.fill(requests.iter().map(|request| {
            let sge = abi::Sge { addr: request.address, length: request.len, lkey: request.lkey };
            (send_wr(request), sge)
        }));
        let Some(first) = chain.link() else {
            return Ok(());
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the chain and its pieces live through the call, which copies them; the bytes are the caller's promise.
        let status = unsafe {
            let context = self.raw.as_ref().context;
            ((*context).post_send)(self.raw.as_ptr(), first, &raw mut bad)
        };
        chain.outcome(status, bad)
    }

    /// Posts receives with one doorbell; errors as for `post_send`.
    ///
    /// # Safety
    /// The pieces stay registered until the receives have completed.
    pub(crate) unsafe fn post_recv(
        &self,
        receives: impl Iterator<Item = RawRecv>,
        chain: &mut Chain<abi::RecvWr>,
    ) -> Result<(), (usize, i32)> {
        chain.fill(receives.map(|receive| {
            let sge = abi::Sge { addr: receive.address, length: receive.len, lkey: receive.lkey };
            let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
            (abi::RecvWr { wr_id: receive.wr_id, next, sg_list, num_sge: 0 }, sge)
        }));
        let Some(first) = chain.link() else {
            return Ok(());
        };
        let mut bad = ptr::null_mut();
        // SAFETY: as for `post_send`.
        let status = unsafe {
            let context = self.raw.as_ref().context;
            ((*context).post_recv)(self.raw.as_ptr(), first, &raw mut bad)
        };
        chain.outcome(status, bad)
    }

    /// Its identity in events.
    pub(crate) fn address(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Puts it into the error state. It can only fail if the queue pair is in that state already.
    pub(crate) fn fail(&self) {
        let mut attributes = abi::QpAttr::state(abi::QPS_ERR);
        // SAFETY: the queue pair lives; the structure is as large as the library's.
        unsafe { (self.library.ibv_modify_qp)(self.raw.as_ptr(), &raw mut attributes, abi::QP_STATE) };
    }
}

pub(super) fn init_attr(cq: &Cq, cap: abi::QpCap) -> abi::QpInitAttr {
    abi::QpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: cq.raw.as_ptr(),
        recv_cq: cq.raw.as_ptr(),
        srq: ptr::null_mut(),
        cap,
        qp_type: abi::QPT_RC,
        sq_sig_all: 0,
    }
}

fn send_wr(request: &RawSend) -> abi::SendWr {
    let flags = if request.signaled { abi::SEND_SIGNALED } else { 0 }
        | if request.inline && request.len > 0 { abi::SEND_INLINE } else { 0 };
    let (opcode, imm) = match request.kind {
        SendKind::Write { imm: Some(imm), .. } => (abi::WR_RDMA_WRITE_WITH_IMM, imm),
        SendKind::Write { imm: None, .. } => (abi::WR_RDMA_WRITE, 0),
        SendKind::Send { imm: Some(imm) } => (abi::WR_SEND_WITH_IMM, imm),
        SendKind::Send { imm: None } => (abi::WR_SEND, 0),
    };
    let mut wr = abi::SendWr::new(request.wr_id, opcode, flags);
    wr.imm_data = imm.to_be();
    if let SendKind::Write { address, rkey, .. } = request.kind {
        (wr.remote_addr, wr.rkey) = (address, rkey);
    }
    wr
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if an error that a provider returns negated (eRDMA, soft-iWARP) were taken for another one.
    #[test]
    fn errors_have_one_sign() {
        for (status, error) in [(12, 12), (-12, 12), (-22, 22), (i32::MIN, i32::MAX)] {
            assert_eq!(errno(status), error);
        }
        let mut chain = Chain::<abi::RecvWr>::new(3);
        let receive = |wr_id| abi::RecvWr { wr_id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        chain.fill((0..3).map(|number| (receive(number), abi::Sge { addr: 0, length: 0, lkey: 0 })));
        let third: *mut abi::RecvWr = &raw mut chain.wrs[2];
        assert_eq!(chain.outcome(0, ptr::null_mut()), Ok(()));
        assert_eq!(chain.outcome(-libc::ENOMEM, third), Err((2, libc::ENOMEM)));
        assert_eq!(chain.outcome(libc::ENOMEM, third), Err((2, libc::ENOMEM)));
        assert_eq!(chain.outcome(-libc::EINVAL, ptr::null_mut()), Err((0, libc::EINVAL)), "it does not show which");
    }
}
