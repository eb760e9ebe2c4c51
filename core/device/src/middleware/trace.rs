//! A device that reports every call to an observer.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use super::event::{described, Event};
use crate::{
    forward, to_inner, Armed, CompletionEvents, CompletionQueueId, Device, DeviceError, KernelOrder, PostError,
    QueuePairId, Region, RemoteRegion, Wait, WorkCompletion, WorkRequest,
};

/// The observer of a traced device. Called on the caller's thread, after the call returned and under no lock;
/// concurrent calls may be reported in either order. Must not call the traced device.
pub trait Observer: Send + Sync {
    /// Reports one call.
    fn observe(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> Observer for F {
    fn observe(&self, event: &Event) {
        self(event);
    }
}

/// Wraps a device; reports every call except the constant `name` and `capabilities` to `observer`.
pub struct Trace<D: ?Sized, O> {
    observer: O,
    inner: Arc<D>,
}

impl<D: Device + ?Sized, O: Observer> Trace<D, O> {
    /// Traces `inner`.
    pub fn new(inner: Arc<D>, observer: O) -> Trace<D, O> {
        Trace { observer, inner }
    }

    /// The device inside.
    pub fn inner(&self) -> &Arc<D> {
        &self.inner
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Ends the tracing and gives the observer back.
    pub fn into_observer(self) -> O {
        self.observer
    }
}

fn text<T>(result: &Result<T, DeviceError>) -> Result<&T, String> {
    result.as_ref().map_err(|error| error.to_string())
}

impl<D: Device + ?Sized, O: Observer> Device for Trace<D, O> {
    forward!(to_inner: name, capabilities, capabilities_of);

    fn create_cq(&self) -> Result<CompletionQueueId, DeviceError> {
        let result = self.inner.create_cq();
        self.observer.observe(&Event::CreateCq { result: text(&result).copied() });
        result
    }

    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        let count = self.inner.pending(cq, out);
        self.observer.observe(&Event::Pending { cq, qps: out[..count].to_vec() });
        count
    }

    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        let count = self.inner.poll_qp(qp, out);
        self.observer.observe(&Event::PollQp { qp, completions: out[..count].to_vec() });
        count
    }

    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError> {
        let result = self.inner.rebind(qp, cq);
        self.observer.observe(&Event::Rebind { qp, cq, result: text(&result).copied() });
        result
    }

    fn alloc_region(&self, qp: QueuePairId, len: usize) -> Result<Region, DeviceError> {
        let result = self.inner.alloc_region(qp, len);
        self.observer.observe(&Event::AllocRegion { qp, len, result: text(&result).map(described) });
        result
    }

    fn free_region(&self, qp: QueuePairId, region: Region) {
        let described = described(&region);
        self.inner.free_region(qp, region);
        self.observer.observe(&Event::FreeRegion { qp, region: described });
    }

    fn window(&self, qp: QueuePairId, remote: RemoteRegion) -> Result<Region, DeviceError> {
        let result = self.inner.window(qp, remote);
        self.observer.observe(&Event::Window { qp, remote, result: text(&result).map(|_| ()) });
        result
    }

    fn discard(&self, qp: QueuePairId, remote: RemoteRegion, from: u32) {
        self.inner.discard(qp, remote, from);
        self.observer.observe(&Event::Discard { qp, remote, from });
    }

    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError> {
        let result = self.inner.post_recv(qp, count);
        self.observer.observe(&Event::PostRecv { qp, count, result });
        result
    }

    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        let result = self.inner.post_send(qp, wrs);
        self.observer.observe(&Event::PostSend { qp, requests: wrs.iter().map(Into::into).collect(), result });
        result
    }

    fn fail_qp(&self, qp: QueuePairId) {
        self.inner.fail_qp(qp);
        self.observer.observe(&Event::FailQp { qp });
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        self.inner.destroy_qp(qp);
        self.observer.observe(&Event::DestroyQp { qp });
    }
}

impl<D: Device + ?Sized, O: Observer> CompletionEvents for Trace<D, O> {
    forward!(to_inner: drain);

    fn arm(&self, cq: CompletionQueueId) -> Armed {
        let outcome = self.inner.arm(cq);
        self.observer.observe(&Event::Arm { cq, outcome });
        outcome
    }

    fn arm_moderated(&self, cq: CompletionQueueId) -> Armed {
        let outcome = self.inner.arm_moderated(cq);
        self.observer.observe(&Event::ArmModerated { cq, outcome });
        outcome
    }

    fn disarm(&self, cq: CompletionQueueId) {
        self.inner.disarm(cq);
        self.observer.observe(&Event::Disarm { cq });
    }

    fn channel_fd(&self, cq: CompletionQueueId) -> Option<RawFd> {
        let fd = self.inner.channel_fd(cq);
        self.observer.observe(&Event::ChannelFd { cq, fd });
        fd
    }

    fn qp_sequence(&self, qp: QueuePairId) -> u32 {
        let sequence = self.inner.qp_sequence(qp);
        self.observer.observe(&Event::QpSequence { qp, sequence });
        sequence
    }

    fn wait_qp(&self, qp: QueuePairId, seen: u32, timeout: Option<Duration>) -> Wait {
        let outcome = self.inner.wait_qp(qp, seen, timeout);
        let timeout_ns = timeout.map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
        self.observer.observe(&Event::WaitQp { qp, seen, timeout_ns, outcome });
        outcome
    }

    fn wake_qp(&self, qp: QueuePairId) {
        self.inner.wake_qp(qp);
        self.observer.observe(&Event::WakeQp { qp });
    }

    fn knock(&self, qp: QueuePairId) {
        self.inner.knock(qp);
        self.observer.observe(&Event::Knock { qp });
    }

    fn defer_wakes(&self) {
        self.inner.defer_wakes();
        self.observer.observe(&Event::HoldWakes);
    }

    fn release_wakes(&self) {
        self.inner.release_wakes();
        self.observer.observe(&Event::ReleaseWakes);
    }
}

impl<D: Device + ?Sized, O: Observer> KernelOrder for Trace<D, O> {
    forward!(to_inner: KernelOrder);
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::loopback::{DeliveryMode, Fabric, LoopbackConfig};

    // Breaks if a call is not reported, is reported twice, or with another result.
    #[test]
    fn each_call_is_reported_with_its_result() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let device: Arc<dyn Device> = Fabric::new(DeliveryMode::Immediate).open(LoopbackConfig::shm());
        let trace = Trace::new(device, move |e: &Event| log.lock().push(e.clone()));
        let cq = trace.create_cq().expect("the first queue fits");
        let qp = QueuePairId(1);
        assert_eq!(trace.post_recv(qp, 3), Err(PostError::Dead));
        assert!(trace.alloc_region(qp, 8).is_err());
        let events = seen.lock().clone();
        assert_eq!(events[0], Event::CreateCq { result: Ok(cq) });
        assert_eq!(events[1], Event::PostRecv { qp, count: 3, result: Err(PostError::Dead) });
        assert!(matches!(events[2], Event::AllocRegion { len: 8, result: Err(_), .. }));
        assert_eq!(events.len(), 3);
    }
}
