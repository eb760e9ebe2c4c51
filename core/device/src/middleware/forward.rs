//! Forwarding: the signature of each method of a device, once.

/// Writes the named methods of [`Device`](crate::Device), [`CompletionEvents`](crate::CompletionEvents) or
/// [`KernelOrder`](crate::KernelOrder) in an `impl` of that trait. The body of each is `$to!(self, method(arguments))`, a
/// macro of the caller's. `CompletionEvents` and `KernelOrder` stand for all methods of the trait.
///
/// ```
/// # use std::sync::Arc;
/// # use netacc_device::{forward, Device, KernelOrder};
/// struct Wrapped(Arc<dyn Device>);
///
/// macro_rules! to_inner {
///     ($self:ident, $method:ident($($argument:ident),*)) => { $self.0.$method($($argument),*) };
/// }
///
/// impl KernelOrder for Wrapped {
///     forward!(to_inner: KernelOrder);
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($to:ident: $($method:ident),+ $(,)?) => { $($crate::forward!(@$method $to);)+ };

    (@name $to:ident) => {
        fn name(&self) -> &str {
            $to!(self, name())
        }
    };
    (@capabilities $to:ident) => {
        fn capabilities(&self) -> &$crate::Capabilities {
            $to!(self, capabilities())
        }
    };
    (@capabilities_of $to:ident) => {
        fn capabilities_of(&self, qp: $crate::QueuePairId) -> $crate::Capabilities {
            $to!(self, capabilities_of(qp))
        }
    };
    (@create_cq $to:ident) => {
        fn create_cq(&self) -> Result<$crate::CompletionQueueId, $crate::DeviceError> {
            $to!(self, create_cq())
        }
    };
    (@pending $to:ident) => {
        fn pending(&self, cq: $crate::CompletionQueueId, out: &mut [$crate::QueuePairId]) -> usize {
            $to!(self, pending(cq, out))
        }
    };
    (@poll_qp $to:ident) => {
        fn poll_qp(&self, qp: $crate::QueuePairId, out: &mut [$crate::WorkCompletion]) -> usize {
            $to!(self, poll_qp(qp, out))
        }
    };
    (@poll_one $to:ident) => {
        fn poll_one(&self, qp: $crate::QueuePairId) -> Option<$crate::WorkCompletion> {
            $to!(self, poll_one(qp))
        }
    };
    (@rebind $to:ident) => {
        fn rebind(&self, qp: $crate::QueuePairId, cq: $crate::CompletionQueueId) -> Result<(), $crate::DeviceError> {
            $to!(self, rebind(qp, cq))
        }
    };
    (@alloc_region $to:ident) => {
        fn alloc_region(&self, qp: $crate::QueuePairId, len: usize) -> Result<$crate::Region, $crate::DeviceError> {
            $to!(self, alloc_region(qp, len))
        }
    };
    (@free_region $to:ident) => {
        fn free_region(&self, qp: $crate::QueuePairId, region: $crate::Region) {
            $to!(self, free_region(qp, region))
        }
    };
    (@window $to:ident) => {
        fn window(
            &self,
            qp: $crate::QueuePairId,
            remote: $crate::RemoteRegion,
        ) -> Result<$crate::Region, $crate::DeviceError> {
            $to!(self, window(qp, remote))
        }
    };
    (@discard $to:ident) => {
        fn discard(&self, qp: $crate::QueuePairId, remote: $crate::RemoteRegion, from: u32) {
            $to!(self, discard(qp, remote, from))
        }
    };
    (@post_recv $to:ident) => {
        fn post_recv(&self, qp: $crate::QueuePairId, count: u32) -> Result<(), $crate::PostError> {
            $to!(self, post_recv(qp, count))
        }
    };
    (@post_send $to:ident) => {
        fn post_send(
            &self,
            qp: $crate::QueuePairId,
            wrs: &[$crate::WorkRequest<'_>],
        ) -> Result<usize, $crate::PostError> {
            $to!(self, post_send(qp, wrs))
        }
    };
    (@in_place $to:ident) => {
        fn in_place(&self, qp: $crate::QueuePairId) -> Option<Box<dyn $crate::InPlaceQueue>> {
            $to!(self, in_place(qp))
        }
    };
    (@fail_qp $to:ident) => {
        fn fail_qp(&self, qp: $crate::QueuePairId) {
            $to!(self, fail_qp(qp))
        }
    };
    (@destroy_qp $to:ident) => {
        fn destroy_qp(&self, qp: $crate::QueuePairId) {
            $to!(self, destroy_qp(qp))
        }
    };

    (@CompletionEvents $to:ident) => {
        $crate::forward!(
            $to: arm, arm_moderated, disarm, channel_fd, drain, qp_sequence, wait_qp, wake_qp, knock, defer_wakes,
            release_wakes,
        );
    };
    (@arm $to:ident) => {
        fn arm(&self, cq: $crate::CompletionQueueId) -> $crate::Armed {
            $to!(self, arm(cq))
        }
    };
    (@arm_moderated $to:ident) => {
        fn arm_moderated(&self, cq: $crate::CompletionQueueId) -> $crate::Armed {
            $to!(self, arm_moderated(cq))
        }
    };
    (@disarm $to:ident) => {
        fn disarm(&self, cq: $crate::CompletionQueueId) {
            $to!(self, disarm(cq))
        }
    };
    (@channel_fd $to:ident) => {
        fn channel_fd(&self, cq: $crate::CompletionQueueId) -> Option<::std::os::fd::RawFd> {
            $to!(self, channel_fd(cq))
        }
    };
    (@drain $to:ident) => {
        fn drain(&self, cq: $crate::CompletionQueueId) {
            $to!(self, drain(cq))
        }
    };
    (@qp_sequence $to:ident) => {
        fn qp_sequence(&self, qp: $crate::QueuePairId) -> u32 {
            $to!(self, qp_sequence(qp))
        }
    };
    (@wait_qp $to:ident) => {
        fn wait_qp(
            &self,
            qp: $crate::QueuePairId,
            seen: u32,
            timeout: Option<::std::time::Duration>,
        ) -> $crate::Wait {
            $to!(self, wait_qp(qp, seen, timeout))
        }
    };
    (@wake_qp $to:ident) => {
        fn wake_qp(&self, qp: $crate::QueuePairId) {
            $to!(self, wake_qp(qp))
        }
    };
    (@knock $to:ident) => {
        fn knock(&self, qp: $crate::QueuePairId) {
            $to!(self, knock(qp))
        }
    };
    (@defer_wakes $to:ident) => {
        fn defer_wakes(&self) {
            $to!(self, defer_wakes())
        }
    };
    (@release_wakes $to:ident) => {
        fn release_wakes(&self) {
            $to!(self, release_wakes())
        }
    };

    (@KernelOrder $to:ident) => {
        $crate::forward!($to: begin_kernel_operation, end_kernel_operation, announce_kernel_operations, kernel_news);
    };
    (@begin_kernel_operation $to:ident) => {
        fn begin_kernel_operation(&self) {
            $to!(self, begin_kernel_operation())
        }
    };
    (@end_kernel_operation $to:ident) => {
        fn end_kernel_operation(&self, operation: $crate::KernelOperation) {
            $to!(self, end_kernel_operation(operation))
        }
    };
    (@announce_kernel_operations $to:ident) => {
        fn announce_kernel_operations(&self) {
            $to!(self, announce_kernel_operations())
        }
    };
    (@kernel_news $to:ident) => {
        fn kernel_news(&self) -> $crate::KernelOperation {
            $to!(self, kernel_news())
        }
    };
}

/// As `$to` of [`forward`]: to the device in the field `inner`.
#[macro_export]
macro_rules! to_inner {
    ($self:ident, $method:ident($($argument:ident),*)) => { $self.inner.$method($($argument),*) };
}
