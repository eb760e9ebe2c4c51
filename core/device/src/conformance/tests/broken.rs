//! A device with one flaw: proof that the suite would find it.
//!
//! The flaws sit in a wrapper rather than in the in-memory device, so that no way of breaking it can ever be switched
//! on outside these tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::loopback::LoopbackConfig;
use crate::{
    forward, to_inner, Armed, Capabilities, Completion, CompletionEvents, CompletionQueueId, CompletionStatus, Device,
    DeviceError, KernelOrder, Operation, Payload, PostError, QueuePairId, Region, RemoteRegion, WorkCompletion,
    WorkRequest, WorkRequestId,
};

/// The flaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The wrapper itself changes nothing.
    Nothing,
    DropsImmediate,
    DropsMessageAfterSuccess,
    ReportsPendingTwice,
    ForgetsPendingThatDoesNotFit,
    IgnoresMaxInline,
    AcceptsInPlace,
    ReordersWithinQueuePair,
    ReportsUnsignaledSends,
    NeverFull,
    LosesRequestsWhenFull,
    LosesReceives,
    OverflowsUnpolled,
    DeliversBeforeReceive,
    SwallowsDisconnected,
    DisconnectsTwice,
    AcceptsPostsWhenDead,
    AlwaysSleeps,
    ClampsWritesOutside,
    TakesAnyAddress,
    ReusesDirtyRegions,
    IgnoresRebind,
    DestroyIsSilent,
    TearsPayload,
    MistakesWhoSendsFirst,
    BlamesPeersThatHaveEnded,
    RefusesWindowsForNoReason,
}

impl Flaw {
    /// Each flaw, a device it applies to, and a check that must fail.
    pub(super) fn all() -> Vec<(Flaw, LoopbackConfig, &'static str)> {
        use LoopbackConfig as C;
        vec![
            (Flaw::DropsImmediate, C::shm(), "write_with_imm_in_order"),
            (Flaw::DropsMessageAfterSuccess, C::erdma(), "write_with_imm_in_order"),
            (Flaw::DropsMessageAfterSuccess, C::send_only(), "send_in_order"),
            (Flaw::ReportsPendingTwice, C::shm(), "pending_reports_once"),
            (Flaw::ForgetsPendingThatDoesNotFit, C::shm(), "pending_with_little_room"),
            (Flaw::IgnoresMaxInline, C::erdma(), "inline_limit"),
            (Flaw::IgnoresMaxInline, C::send_only(), "inline_limit"),
            (Flaw::AcceptsInPlace, C::erdma(), "in_place_needs_capability"),
            (Flaw::ReordersWithinQueuePair, C::soft_roce(), "write_with_imm_in_order"),
            (Flaw::ReportsUnsignaledSends, C::soft_roce(), "only_signaled_sends_complete"),
            (Flaw::NeverFull, C::erdma(), "send_queue_full_and_recovery"),
            (Flaw::LosesRequestsWhenFull, C::shm(), "send_queue_full_and_recovery"),
            (Flaw::LosesReceives, C::shm(), "one_receive_per_message"),
            (Flaw::OverflowsUnpolled, C::erdma(), "unpolled_completions_are_kept"),
            (Flaw::DeliversBeforeReceive, C::soft_roce(), "receives_exhausted"),
            (Flaw::SwallowsDisconnected, C::soft_roce(), "fail_qp_disconnects_both"),
            (Flaw::DisconnectsTwice, C::soft_roce(), "fail_qp_disconnects_both"),
            (Flaw::AcceptsPostsWhenDead, C::erdma(), "dead_qp_refuses_posts"),
            (Flaw::AlwaysSleeps, C::shm(), "arm_and_disarm"),
            (Flaw::ClampsWritesOutside, C::erdma(), "writes_outside_are_refused"),
            (Flaw::TakesAnyAddress, C::send_only(), "writes_outside_are_refused"),
            (Flaw::ReusesDirtyRegions, C::shm(), "regions_are_zeroed_and_separate"),
            (Flaw::IgnoresRebind, C::shm(), "rebind_moves_completions"),
            (Flaw::DestroyIsSilent, C::shm(), "destroy_qp_disconnects_peer"),
            (Flaw::TearsPayload, C::shm(), "write_with_imm_in_order"),
            (Flaw::MistakesWhoSendsFirst, C::erdma(), "who_sends_first"),
            (Flaw::MistakesWhoSendsFirst, C::soft_roce(), "who_sends_first"),
            (Flaw::BlamesPeersThatHaveEnded, C::shm(), "window_after_the_peer_has_ended"),
            (Flaw::RefusesWindowsForNoReason, C::shm(), "window_descriptor_is_checked"),
        ]
    }
}

pub(super) struct Broken {
    inner: Arc<dyn Device>,
    capabilities: Capabilities,
    flaw: Flaw,
    again: Mutex<Vec<(CompletionQueueId, QueuePairId)>>,
    extra: Mutex<BTreeMap<QueuePairId, Vec<WorkCompletion>>>,
    dead: Mutex<Vec<QueuePairId>>,
    counter: Mutex<u32>,
}

impl Broken {
    pub(super) fn new(inner: Arc<dyn Device>, flaw: Flaw) -> Broken {
        let mut capabilities = inner.capabilities().clone();
        capabilities.initiator_sends_first ^= flaw == Flaw::MistakesWhoSendsFirst;
        Broken {
            inner,
            capabilities,
            flaw,
            again: Mutex::default(),
            extra: Mutex::default(),
            dead: Mutex::default(),
            counter: Mutex::default(),
        }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn add(&self, qp: QueuePairId, completion: Completion) {
        let wc = WorkCompletion { qp, status: CompletionStatus::Success, completion };
        self.extra.lock().entry(qp).or_default().push(wc);
    }

    fn every(&self, n: u32) -> bool {
        let mut counter = self.counter.lock();
        *counter += 1;
        counter.is_multiple_of(n)
    }

    /// Changes one request; `None` if it is posted as it is.
    fn spoil<'a>(&self, qp: QueuePairId, wr: &WorkRequest<'a>) -> Option<WorkRequest<'a>> {
        let caps = self.inner.capabilities();
        let (mut wr, payload_len) = (*wr, wr.payload.len());
        match (self.flaw, &mut wr.operation, &mut wr.payload) {
            (Flaw::IgnoresMaxInline, _, Payload::Inline(bytes)) if bytes.len() > caps.max_inline as usize => {
                *bytes = &bytes[..caps.max_inline as usize];
            }
            (Flaw::AcceptsInPlace, _, payload @ Payload::InPlace { .. }) => *payload = Payload::Inline(&[]),
            (Flaw::DropsMessageAfterSuccess, Operation::Write { imm, .. }, _) if imm.is_some() && self.every(5) => {
                *imm = None;
            }
            (Flaw::DropsMessageAfterSuccess, operation @ Operation::Send { .. }, _) if self.every(5) => {
                *operation = Operation::Send { imm: None };
                self.add(qp, Completion::Send { id: wr.id });
                return None;
            }
            (Flaw::ReportsUnsignaledSends, _, _) => wr.signaled = true,
            (Flaw::TearsPayload, Operation::Write { imm: Some(_), .. }, Payload::Region { len, .. }) if *len > 8 => {
                *len -= 1;
            }
            // Bases of the in-memory device are multiples of 2^32: the remainder is the position in the region.
            (Flaw::ClampsWritesOutside, Operation::Write { offset, .. }, _)
                if (4090..8192).contains(&(*offset as u32)) && payload_len == 8 =>
            {
                *offset &= !0xffff_ffff;
            }
            // A base is its region's key, times 2^32.
            (Flaw::TakesAnyAddress, Operation::Write { rkey, offset, .. }, _) if *offset >> 32 != u64::from(rkey.0) => {
                *offset = u64::from(rkey.0) << 32;
            }
            _ => {}
        }
        Some(wr)
    }
}

impl Device for Broken {
    forward!(to_inner: name, create_cq, free_region, fail_qp);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        if self.is(Flaw::ForgetsPendingThatDoesNotFit) {
            let mut all = [QueuePairId(0); 64];
            let count = self.inner.pending(cq, &mut all).min(out.len());
            out[..count].copy_from_slice(&all[..count]);
            return count;
        }
        let mut again = self.again.lock();
        if let Some(index) = again.iter().position(|(of, _)| *of == cq).filter(|_| !out.is_empty()) {
            out[0] = again.remove(index).1;
            return 1;
        }
        let count = self.inner.pending(cq, out);
        if self.is(Flaw::ReportsPendingTwice) {
            again.extend(out[..count].iter().map(|qp| (cq, *qp)));
        }
        count
    }

    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        let mut extra = self.extra.lock();
        if let Some(wc) = extra.get_mut(&qp).filter(|_| !out.is_empty()).and_then(|e| e.pop()) {
            out[0] = wc;
            return 1;
        }
        let mut count = self.inner.poll_qp(qp, out);
        let got = &mut out[..count];
        match self.flaw {
            Flaw::ReordersWithinQueuePair => got.reverse(),
            Flaw::DropsImmediate => {
                for wc in got {
                    if let Completion::Receive { imm, .. } = &mut wc.completion {
                        *imm = 0;
                    }
                }
            }
            // One is missing where many came since the last poll.
            Flaw::OverflowsUnpolled if count > 0 && std::mem::take(&mut *self.counter.lock()) > 32 => count -= 1,
            Flaw::SwallowsDisconnected => {
                let kept: Vec<_> = got.iter().copied().filter(|wc| wc.completion != Completion::Disconnected).collect();
                count = kept.len();
                out[..count].copy_from_slice(&kept);
            }
            Flaw::DisconnectsTwice | Flaw::AcceptsPostsWhenDead
                if got.iter().any(|wc| wc.completion == Completion::Disconnected) =>
            {
                if self.is(Flaw::DisconnectsTwice) {
                    let wc =
                        WorkCompletion { qp, status: CompletionStatus::Flushed, completion: Completion::Disconnected };
                    extra.entry(qp).or_default().push(wc);
                }
                self.dead.lock().push(qp);
            }
            _ => {}
        }
        count
    }

    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError> {
        if self.is(Flaw::IgnoresRebind) {
            Ok(())
        } else {
            self.inner.rebind(qp, cq)
        }
    }

    fn alloc_region(&self, qp: QueuePairId, len: usize) -> Result<Region, DeviceError> {
        let region = self.inner.alloc_region(qp, len)?;
        if self.is(Flaw::ReusesDirtyRegions) && len == 100 {
            let dirtied = region.memory.write(99, &[1]);
            assert!(dirtied, "the region has the requested length");
        }
        Ok(region)
    }

    fn window(&self, qp: QueuePairId, remote: RemoteRegion) -> Result<Region, DeviceError> {
        self.inner.window(qp, remote).map_err(|error| match self.flaw {
            Flaw::BlamesPeersThatHaveEnded => DeviceError::NotRegistered,
            Flaw::RefusesWindowsForNoReason => DeviceError::Unknown { what: "remote region" },
            _ => error,
        })
    }

    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError> {
        if self.is(Flaw::LosesReceives) && self.every(7) {
            return Ok(());
        }
        if self.is(Flaw::DeliversBeforeReceive) {
            // Posts one too many, silently.
            return self.inner.post_recv(qp, count + 1);
        }
        self.inner.post_recv(qp, count)
    }

    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        if self.is(Flaw::AcceptsPostsWhenDead) && self.dead.lock().contains(&qp) {
            return Ok(wrs.len());
        }
        if self.is(Flaw::OverflowsUnpolled) {
            *self.counter.lock() += wrs.len() as u32;
        }
        let spoiled: Vec<_> = wrs.iter().filter_map(|wr| self.spoil(qp, wr)).collect();
        let missing = wrs.len() - spoiled.len();
        match self.inner.post_send(qp, &spoiled) {
            Ok(count) if count < spoiled.len() && self.is(Flaw::LosesRequestsWhenFull) => Ok(count + 1),
            Ok(count) if count < spoiled.len() && self.is(Flaw::NeverFull) => {
                (count..wrs.len()).for_each(|n| self.add(qp, Completion::Send { id: WorkRequestId(n as u64) }));
                Ok(wrs.len())
            }
            Ok(count) => Ok(count + missing),
            error => error,
        }
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        if !self.is(Flaw::DestroyIsSilent) {
            self.inner.destroy_qp(qp);
        }
    }
}

impl CompletionEvents for Broken {
    forward!(to_inner: disarm, channel_fd, drain, qp_sequence, wait_qp, wake_qp, knock);

    fn arm(&self, cq: CompletionQueueId) -> Armed {
        let outcome = self.inner.arm(cq);
        if self.is(Flaw::AlwaysSleeps) {
            Armed::Sleep
        } else {
            outcome
        }
    }
}

impl KernelOrder for Broken {
    forward!(to_inner: KernelOrder);
}
