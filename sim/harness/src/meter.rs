//! A device that counts the regions of each queue pair, so that leaks are seen. Mutants that misbehave as devices do
//! so here, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netacc_device::{
    forward, to_inner, CompletionEvents, Device, DeviceError, KernelOrder, PostError, QueuePairId, Region,
    WorkCompletion, WorkRequest,
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
    forward!(
        to_inner: name, capabilities, capabilities_of, create_cq, pending, rebind, window, discard, post_recv, fail_qp,
    );

    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        let n = self.inner.poll_qp(qp, out);
        self.mutant.as_ref().map_or(n, |m| m.filter(&mut out[..n]))
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

    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        match &self.mutant {
            Some(mutant) => mutant.post_send(&*self.inner, qp, wrs),
            None => self.inner.post_send(qp, wrs),
        }
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        self.regions.lock().remove(&qp);
        self.inner.destroy_qp(qp);
    }
}

impl CompletionEvents for Meter {
    forward!(to_inner: CompletionEvents);
}

impl KernelOrder for Meter {
    forward!(to_inner: KernelOrder);
}
