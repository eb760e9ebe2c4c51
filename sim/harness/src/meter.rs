//! A device that counts the regions of each queue pair, so that leaks are seen. Mutants that misbehave as devices do
//! so here, too.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{
    Armed, Capabilities, CompletionEvents, CompletionQueueId, Device, DeviceError, KernelOrder, PostError, QueuePairId,
    Region, RemoteRegion, Wait, WorkCompletion, WorkRequest,
};
use parking_lot::Mutex;

use crate::mutants::DeviceMutant;

/// See the module documentation.
pub(crate) struct Meter {
    inner: Arc<dyn Device>,
    regions: Mutex<BTreeMap<QueuePairId, BTreeSet<u32>>>,
    mutant: Option<DeviceMutant>,
}

impl Meter {
    pub(crate) fn new(inner: Arc<dyn Device>, mutant: Option<DeviceMutant>) -> Meter {
        Meter { inner, regions: Mutex::default(), mutant }
    }

    /// Regions asked for and not given back, by queue pair.
    pub(crate) fn regions(&self) -> Vec<(QueuePairId, usize)> {
        self.regions.lock().iter().map(|(qp, r)| (*qp, r.len())).filter(|(_, n)| *n > 0).collect()
    }
}

impl Device for Meter {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn capabilities_of(&self, qp: QueuePairId) -> Capabilities {
        self.inner.capabilities_of(qp)
    }

    fn create_cq(&self) -> Result<CompletionQueueId, DeviceError> {
        self.inner.create_cq()
    }

    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        self.inner.pending(cq, out)
    }

    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        let n = self.inner.poll_qp(qp, out);
        self.mutant.as_ref().map_or(n, |m| m.filter(&mut out[..n]))
    }

    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError> {
        self.inner.rebind(qp, cq)
    }

    fn alloc_region(&self, qp: QueuePairId, len: usize) -> Result<Region, DeviceError> {
        let region = self.inner.alloc_region(qp, len)?;
        self.regions.lock().entry(qp).or_default().insert(region.remote.rkey.0);
        Ok(region)
    }

    fn free_region(&self, qp: QueuePairId, region: Region) {
        if self.mutant.as_ref().is_some_and(DeviceMutant::keeps_region) {
            return;
        }
        if let Some(regions) = self.regions.lock().get_mut(&qp) {
            regions.remove(&region.remote.rkey.0);
        }
        self.inner.free_region(qp, region);
    }

    fn window(&self, qp: QueuePairId, remote: RemoteRegion) -> Result<Region, DeviceError> {
        self.inner.window(qp, remote)
    }

    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError> {
        self.inner.post_recv(qp, count)
    }

    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        match &self.mutant {
            Some(mutant) => mutant.post_send(&*self.inner, qp, wrs),
            None => self.inner.post_send(qp, wrs),
        }
    }

    fn fail_qp(&self, qp: QueuePairId) {
        self.inner.fail_qp(qp);
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        self.regions.lock().remove(&qp);
        self.inner.destroy_qp(qp);
    }
}

impl CompletionEvents for Meter {
    fn arm(&self, cq: CompletionQueueId) -> Armed {
        self.inner.arm(cq)
    }

    fn arm_moderated(&self, cq: CompletionQueueId) -> Armed {
        self.inner.arm_moderated(cq)
    }

    fn disarm(&self, cq: CompletionQueueId) {
        self.inner.disarm(cq);
    }

    fn channel_fd(&self, cq: CompletionQueueId) -> Option<RawFd> {
        self.inner.channel_fd(cq)
    }

    fn drain(&self, cq: CompletionQueueId) {
        self.inner.drain(cq);
    }

    fn qp_sequence(&self, qp: QueuePairId) -> u32 {
        self.inner.qp_sequence(qp)
    }

    fn wait_qp(&self, qp: QueuePairId, seen: u32, timeout: Option<Duration>) -> Wait {
        self.inner.wait_qp(qp, seen, timeout)
    }

    fn wake_qp(&self, qp: QueuePairId) {
        self.inner.wake_qp(qp);
    }

    fn knock(&self, qp: QueuePairId) {
        self.inner.knock(qp);
    }

    fn hold_wakes(&self) {
        self.inner.hold_wakes();
    }

    fn release_wakes(&self) {
        self.inner.release_wakes();
    }
}

impl KernelOrder for Meter {}
