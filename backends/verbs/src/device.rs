//! The device: its capabilities, completion queues and queue pairs.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{
    Armed, Capabilities, CompletionEvents, CompletionQueueId, Device, DeviceError, KernelOrder, PostError, QueuePairId,
    Region, Wait, WorkCompletion, WorkRequest,
};
use parking_lot::{Mutex, RwLock};

use crate::connect_threads::ConnectThreads;
use crate::device_cq::DeviceCq;
use crate::discovery::library;
use crate::ffi::abi::QpCap;
use crate::ffi::{
    enter, is_limited, CmId, CompletionChannel, Context, Cq, DeviceAttributes, EventChannel, Pd, QueuePair, UnlinkWatch,
};
use crate::link::{Link, Links, Shape};
use crate::manager::{listen_at, Manager, BACKLOG};
use crate::memory::{Growth, LinkMemory};
use crate::profile::{Limits, Profile};
use crate::queue::Queue;

/// The settings for opening a device.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// An address of this machine that an RDMA device serves: links are made from and accepted on it.
    pub address: IpAddr,
    /// Other addresses that the device may serve: the first one of the other family that it serves is used for links of
    /// that family.
    pub also: Vec<IpAddr>,
    /// The port at which links are accepted; 0: any.
    pub port: u16,
    /// The profile whose limits the device is narrowed to.
    pub profile: Profile,
    /// Requests of a send queue. The device may allow fewer.
    pub send_depth: u32,
    /// Receives of a receive queue. The device may allow fewer.
    pub recv_depth: u32,
    /// Entries of a completion queue, if other than the number that its queue pair can complete at a time: with fewer
    /// it can overflow, which only a test needs.
    pub completion_entries: Option<u32>,
    /// The completion vector of the first completion queue; the others have the next ones. Beyond the device's last it
    /// begins again.
    pub comp_vector: u32,
    /// The amount of memory that is registered at first for a queue pair (`NACC_RDMA_MR_MIN_INC_SIZE`). Each further
    /// time it is twice as much, and always enough for the request.
    pub mr_min_inc_bytes: usize,
    /// The largest amount at a time, unless a single region is longer (`NACC_RDMA_MR_MAX_INC_SIZE`).
    pub mr_max_inc_bytes: usize,
}

impl VerbsConfig {
    /// The usual depths, the device's own limits, any port.
    pub fn new(address: IpAddr) -> VerbsConfig {
        // Arbitrary: enough for a link's messages in flight, small enough for thousands of links.
        VerbsConfig {
            address,
            also: Vec::new(),
            port: 0,
            profile: Profile::Native,
            send_depth: 256,
            recv_depth: 256,
            completion_entries: None,
            comp_vector: 0,
            mr_min_inc_bytes: 16 << 10,
            mr_max_inc_bytes: 8 << 20,
        }
    }
}

/// Completion queues of ours. Arbitrary: one for each epoll instance of a program.
const MAX_CQ: u32 = 64;

/// Larger messages than any ring.
const MAX_MESSAGE: u32 = 1 << 30;

/// An RDMA device, and the connection manager on one of its addresses.
pub struct VerbsDevice {
    name: String,
    pub(crate) context: Context,
    pub(crate) limits: Limits,
    pub(crate) shape: Shape,
    pub(crate) address: SocketAddr,
    /// The address of the other family, if the device serves one.
    pub(crate) second_address: Option<IpAddr>,
    capabilities: Capabilities,
    /// See [`Profile::guard_entries`].
    guard: Option<Cq>,
    queues: RwLock<Vec<Arc<Queue>>>,
    pub(crate) links: Links,
    next_link: AtomicU32,
    pub(crate) completion_entries: u32,
    /// See [`VerbsConfig::comp_vector`].
    pub(crate) comp_vector: u32,
    growth: Growth,
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) manager: Mutex<Manager>,
    /// Set if connecting needs threads of its own.
    pub(crate) connect_threads: Option<Arc<ConnectThreads>>,
    /// The device was taken away.
    pub(crate) gone: AtomicBool,
    /// Reports the removal first, and for some devices it alone does: the kernel waits for processes that have the
    /// device open before it informs the connection manager.
    pub(crate) node: Option<UnlinkWatch>,
}

impl VerbsDevice {
    /// Opens the device that serves an address, and listens there.
    ///
    /// # Errors
    /// Fails if the libraries or the kernel's modules are missing, no RDMA device serves the address, or the port is
    /// taken.
    pub fn open(config: &VerbsConfig) -> Result<VerbsDevice, DeviceError> {
        let unavailable = |what| move |source| DeviceError::Unavailable { what, source: Some(source) };
        let _call = enter();
        let channel = EventChannel::new(library()?)
            .map_err(unavailable("no RDMA connection manager (is the module rdma_ucm loaded?)"))?;
        let listener = CmId::new(&channel).map_err(unavailable("rdma_create_id"))?;
        let not_served = "no RDMA device serves the address";
        listener.bind(SocketAddr::new(config.address, config.port)).map_err(unavailable(not_served))?;
        let context = listener.context().ok_or(DeviceError::Unavailable { what: not_served, source: None })?;
        let attributes =
            context.attributes().map_err(|source| DeviceError::Os { operation: "ibv_query_device", source })?;
        let kind = Profile::of_vendor(attributes.vendor_id);
        let own = Limits::of(kind, context.is_iwarp());
        context.watch_trouble().map_err(|source| DeviceError::Os { operation: "fcntl", source })?;
        let guard = kind.and_then(Profile::guard_entries).map(|entries| guard(context, entries)).transpose()?;
        let limits = own.narrowed_by(config.profile.limits());
        if config.address.is_ipv6() && !limits.ipv6 {
            return Err(DeviceError::Unavailable { what: "the device connects over IPv4 only", source: None });
        }
        let shape = shape(context, &attributes, &limits, config)?;
        let port = listener.listen(BACKLOG).map_err(|source| DeviceError::Os { operation: "rdma_listen", source })?;
        let mut listeners = vec![listener];
        let other_family = |ip: &&IpAddr| ip.is_ipv4() != config.address.is_ipv4() && (ip.is_ipv4() || limits.ipv6);
        let second_address = config.also.iter().filter(other_family).copied().find(|ip| {
            let second = listen_at(&channel, context, SocketAddr::new(*ip, port));
            second.map(|second| listeners.push(second)).is_ok()
        });
        let connect_threads = limits.connect_waits.then(ConnectThreads::new).transpose();
        let connect_threads = connect_threads.map_err(|source| DeviceError::Os { operation: "eventfd", source })?;
        Ok(VerbsDevice {
            name: context.name(),
            context,
            limits,
            shape,
            address: SocketAddr::new(config.address, port),
            second_address,
            capabilities: capabilities(&attributes, &limits, &shape),
            guard,
            queues: RwLock::default(),
            links: Links::default(),
            next_link: AtomicU32::new(0),
            completion_entries: config.completion_entries.unwrap_or(Link::entries(&shape)),
            comp_vector: config.comp_vector,
            growth: Growth { min_bytes: config.mr_min_inc_bytes, max_bytes: config.mr_max_inc_bytes },
            channel,
            manager: Mutex::new(Manager::new(listeners, port)),
            connect_threads,
            gone: AtomicBool::new(false),
            node: UnlinkWatch::new(context.fds()[0]),
        })
    }

    /// Descriptors that are ours alone.
    pub fn own_fds(&self) -> Vec<RawFd> {
        let mut fds = Vec::from_iter(self.node.as_ref().map(UnlinkWatch::fd));
        fds.extend(self.connect_threads.as_ref().map(|connect_threads| connect_threads.fd()));
        self.queues.read().iter().for_each(|queue| fds.extend(queue.fds()));
        self.links.0.read().values().for_each(|link| fds.extend(link.device_cq.event_fd()));
        fds
    }

    /// Descriptors that libibverbs and librdmacm use by their numbers, also in a forked child.
    pub fn library_fds(&self) -> Vec<RawFd> {
        let mut fds = vec![self.channel.fd()];
        fds.extend(self.context.fds());
        self.links.0.read().values().for_each(|link| fds.push(link.device_cq.fd()));
        fds
    }

    /// The address at which links are always accepted: the address that the device was opened for, and the port that
    /// was found for it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The local address that links of a family come from and are accepted at.
    pub fn address_of_family(&self, like: IpAddr) -> Option<IpAddr> {
        let ours = [Some(self.address.ip()), self.second_address];
        ours.into_iter().flatten().find(|ours| ours.is_ipv4() == like.is_ipv4())
    }

    /// Whether the device was taken away. All its queue pairs then end, and once they are destroyed the object should
    /// be dropped: until then the kernel blocks the removal of the device.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether it has queue pairs.
    pub fn is_in_use(&self) -> bool {
        !self.links.0.read().is_empty()
    }

    /// The limits that the device is narrowed to.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Payload bytes of a full packet on the device's first port; `None` if it does not say.
    pub fn mtu(&self) -> Option<u32> {
        self.context.active_mtu(1)
    }

    pub(crate) fn queue(&self, cq: CompletionQueueId) -> Option<Arc<Queue>> {
        self.queues.read().get(cq.0 as usize).cloned()
    }

    /// Makes a queue pair on `cm`, which is bound to our device.
    pub(crate) fn make_link(&self, mut cm: CmId, cq: CompletionQueueId) -> Result<Arc<Link>, DeviceError> {
        let os = |operation| move |source| DeviceError::Os { operation, source };
        if !leaves_descriptors(self.links.0.read().len()) {
            return Err(DeviceError::Exhausted { what: "descriptors" });
        }
        let queue = self.queue(cq).ok_or(DeviceError::Unknown { what: "completion queue" })?;
        let pd = Pd::new(self.context).map_err(os("ibv_alloc_pd"))?;
        let memory = LinkMemory::new(Arc::clone(&pd), self.growth);
        let headers = memory.alloc(Link::headers_len(&self.shape))?;
        let vector = self.comp_vector.wrapping_add(cq.0);
        let device_cq = DeviceCq::new(self.context, self.completion_entries, vector)
            .map_err(|source| not_made("ibv_create_cq", self.completion_entries, is_limited(), source))?;
        let cap = cap(&self.shape);
        let qp = cm
            .create_qp(&pd, &device_cq.cq, cap)
            .map_err(|source| not_made("rdma_create_qp", cap.max_send_wr + cap.max_recv_wr, is_limited(), source))?;
        let mut links = self.links.0.write();
        let id = loop {
            let id = QueuePairId(self.next_link.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1));
            if !links.contains_key(&id) {
                break id;
            }
        };
        let link = Arc::new(Link::new(id, Arc::clone(&queue), device_cq, memory, headers, cm, qp, self.shape));
        queue.add(&link).map_err(os("epoll_ctl"))?;
        links.insert(id, Arc::clone(&link));
        Ok(link)
    }

    /// Ends a queue pair, and frees its resources. The connection continues until the peer has been informed.
    pub(crate) fn unmake(&self, manager: &mut Manager, id: QueuePairId) {
        let link = self.links.0.write().remove(&id);
        if let Some(link) = link {
            end(manager, &link);
        }
    }

    /// Ends a queue pair that was never connected, and that has no other reference.
    pub(crate) fn discard(&self, id: QueuePairId) {
        let Some(link) = self.links.0.write().remove(&id) else { return };
        drop(link.retire());
        link.home().remove(&link);
    }

    /// The end of a link, by the peer or by us. Messages that were placed before come first.
    pub(crate) fn close(&self, link: &Link) {
        link.collect();
        let news = link.close();
        link.hang_up();
        if news {
            link.home().announce(link);
            link.device_cq.wake();
        }
    }

    /// Ends the queue pairs that the device reports as dead.
    pub(crate) fn handle_trouble(&self) {
        let those_in = |trouble| self.links.0.read().values().filter(|l| l.is_in(trouble)).cloned().collect::<Vec<_>>();
        while let Some(links) = self.context.next_trouble(those_in) {
            links.iter().for_each(|link| self.close(link));
        }
    }

    /// The device was taken away: all objects that use it must go.
    pub(crate) fn take_away(&self) {
        self.gone.store(true, Ordering::Release);
        let links: Vec<_> = self.links.0.read().values().cloned().collect();
        links.iter().for_each(|link| self.close(link));
    }

    fn link(&self, qp: QueuePairId) -> Result<Arc<Link>, DeviceError> {
        self.links.get(qp).ok_or(DeviceError::Unknown { what: "queue pair" })
    }
}

/// Ends a queue pair that is no longer among the living ones.
fn end(manager: &mut Manager, link: &Link) {
    if let Some(cm) = link.retire() {
        manager.forget(cm, link.peer_informed.load(Ordering::Acquire));
    }
    link.home().remove(link);
}

/// Whether one more link leaves the program enough descriptors: three quarters of those that it may have. A program
/// that has just enough for its connections must not fail because it has links.
fn leaves_descriptors(links: usize) -> bool {
    /// A channel, and an eventfd.
    const PER_LINK: usize = 2;
    /// About the number that the device and the endpoint have besides.
    const FIXED: usize = 16;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    #[expect(unsafe_code, reason = "getrlimit(2)")]
    // SAFETY: the structure is writable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let most = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) / 4;
    known && (links + 1) * PER_LINK + FIXED <= most
}

pub(crate) fn cap(shape: &Shape) -> QpCap {
    QpCap {
        max_send_wr: shape.send_depth,
        max_recv_wr: shape.recv_depth,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: shape.max_inline,
    }
}

/// The reason why a queue could not be made. If the provider has a queue in the process's memory, as those of eRDMA and
/// ConnectX do, the kernel pins it, and counts it like registered memory. `limited`: the amount that may be pinned is
/// limited.
fn not_made(operation: &'static str, entries: u32, limited: bool, source: io::Error) -> DeviceError {
    /// The size of an entry, at least.
    const ENTRY: usize = 32;
    match source.kind() {
        io::ErrorKind::OutOfMemory if limited => DeviceError::MemoryLimit { wanted: entries as usize * ENTRY },
        _ => DeviceError::Os { operation, source },
    }
}

fn guard(context: Context, entries: u32) -> Result<Cq, DeviceError> {
    let made = CompletionChannel::new(context).and_then(|channel| Cq::new(&channel, entries, 0));
    made.map_err(|source| DeviceError::Os { operation: "ibv_create_cq", source })
}

/// The largest shape of a queue pair, found out by making one.
fn shape(
    context: Context,
    attributes: &DeviceAttributes,
    limits: &Limits,
    config: &VerbsConfig,
) -> Result<Shape, DeviceError> {
    let os = |operation| move |source| DeviceError::Os { operation, source };
    // A completion queue is for both queues of a queue pair.
    let most = limits.max_queue_depth.min(attributes.max_qp_wr).min(attributes.max_cqe / 2);
    let depth = |wanted: u32| wanted.min(most).max(1);
    let mut shape = Shape {
        send_depth: depth(config.send_depth),
        recv_depth: depth(config.recv_depth),
        max_inline: limits.max_inline,
        max_message: MAX_MESSAGE,
        immediate: limits.immediate,
    };
    let pd = Pd::new(context).map_err(os("ibv_alloc_pd"))?;
    let channel = CompletionChannel::new(context).map_err(os("ibv_create_comp_channel"))?;
    let cq = Cq::new(&channel, Link::entries(&shape), 0).map_err(os("ibv_create_cq"))?;
    shape.max_inline = QueuePair::probe(&pd, &cq, cap(&shape))
        .ok_or_else(|| DeviceError::Os { operation: "ibv_create_qp", source: io::Error::last_os_error() })?;
    Ok(shape)
}

/// The device's capabilities, narrowed to the limits.
fn capabilities(attributes: &DeviceAttributes, limits: &Limits, shape: &Shape) -> Capabilities {
    Capabilities {
        // If the device has none, a WRITE and a SEND do the same.
        write_with_imm: true,
        sends: true,
        max_inline: shape.max_copied(),
        max_send_sge: limits.max_send_sge.min(attributes.max_sge).max(1),
        max_recv_sge: limits.max_recv_sge.min(attributes.max_sge),
        // A message may take two requests of the device.
        max_send_wr: if limits.immediate { shape.send_depth } else { shape.send_depth / 2 },
        max_recv_wr: shape.recv_depth,
        max_message: shape.max_message,
        max_cq: MAX_CQ,
        peer_memory: false,
        placement_is_delivery: false,
        cheap_writes: false,
        qp_wait: true,
        rebind: true,
        knock: false,
        exact_bounds: false,
        initiator_sends_first: limits.initiator_sends_first,
        notices_silence: limits.notices_silence,
    }
}

impl Device for VerbsDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn create_cq(&self) -> Result<CompletionQueueId, DeviceError> {
        let mut queues = self.queues.write();
        if queues.len() >= MAX_CQ as usize {
            return Err(DeviceError::Exhausted { what: "completion queue" });
        }
        let queue = Queue::new().map_err(|source| DeviceError::Os { operation: "epoll_create", source })?;
        queues.push(Arc::new(queue));
        Ok(CompletionQueueId(queues.len() as u32 - 1))
    }

    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        self.queue(cq).map_or(0, |queue| queue.pending(&self.links, out))
    }

    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        let Some(link) = self.links.get(qp) else { return 0 };
        let mut count = link.pop(out);
        if count < out.len() {
            if link.gather().died {
                link.hang_up();
            }
            count += link.pop(&mut out[count..]);
        }
        count
    }

    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError> {
        let queue = self.queue(cq).ok_or(DeviceError::Unknown { what: "completion queue" })?;
        self.link(qp)?.move_to(queue).map_err(|source| DeviceError::Os { operation: "epoll_ctl", source })
    }

    fn alloc_region(&self, qp: QueuePairId, len: usize) -> Result<Region, DeviceError> {
        self.link(qp)?.alloc_region(len)
    }

    fn free_region(&self, qp: QueuePairId, region: Region) {
        if let Some(link) = self.links.get(qp) {
            link.memory.free(region.remote.base, region.remote.rkey.0);
        }
    }

    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError> {
        self.links.get(qp).ok_or(PostError::Dead)?.post_recv(count)
    }

    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        let link = self.links.get(qp).ok_or(PostError::Dead)?;
        let posted = link.post_send(wrs);
        if posted == Err(PostError::Dead) && !link.is_dead() {
            self.fail_qp(qp);
        }
        posted
    }

    fn fail_qp(&self, qp: QueuePairId) {
        if let Some(link) = self.links.get(qp) {
            let _manager = self.manager.lock();
            self.close(&link);
        }
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        self.unmake(&mut self.manager.lock(), qp);
    }
}

impl CompletionEvents for VerbsDevice {
    fn arm(&self, cq: CompletionQueueId) -> Armed {
        self.queue(cq).map_or(Armed::Sleep, |queue| queue.arm(&self.links))
    }

    fn disarm(&self, cq: CompletionQueueId) {
        if let Some(queue) = self.queue(cq) {
            queue.disarm();
        }
    }

    fn channel_fd(&self, cq: CompletionQueueId) -> Option<RawFd> {
        self.queue(cq).map(|queue| queue.fd())
    }

    fn drain(&self, cq: CompletionQueueId) {
        if let Some(queue) = self.queue(cq) {
            queue.drain();
        }
    }

    fn qp_sequence(&self, qp: QueuePairId) -> u32 {
        self.links.get(qp).map_or(0, |link| {
            link.collect();
            link.device_cq.sequence()
        })
    }

    fn wait_qp(&self, qp: QueuePairId, seen: u32, timeout: Option<Duration>) -> Wait {
        let Some(link) = self.links.get(qp) else { return Wait::Woken };
        link.device_cq.wait(seen, timeout, || link.collect(), || link.home().is_armed())
    }

    fn wake_qp(&self, qp: QueuePairId) {
        if let Some(link) = self.links.get(qp) {
            link.device_cq.wake();
        }
    }
}

impl KernelOrder for VerbsDevice {}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        let ids: Vec<QueuePairId> = self.links.0.read().keys().copied().collect();
        let manager = self.manager.get_mut();
        for id in ids {
            let Some(link) = self.links.0.get_mut().remove(&id) else { continue };
            end(manager, &link);
        }
        manager.clear();
        drop(self.guard.take());
        if *self.gone.get_mut() {
            self.context.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a process that may pin too little for eRDMA's queues gets the error that objects ran out.
    #[test]
    fn a_queue_that_may_not_be_pinned_is_a_memory_limit() {
        let made = |errno, limited| not_made("rdma_create_qp", 512, limited, io::Error::from_raw_os_error(errno));
        assert!(matches!(made(libc::ENOMEM, true), DeviceError::MemoryLimit { wanted: 16384 }));
        for (errno, limited) in [(libc::ENOMEM, false), (libc::EAGAIN, true), (libc::EMFILE, true)] {
            assert!(matches!(made(errno, limited), DeviceError::Os { operation: "rdma_create_qp", .. }), "{errno}");
        }
    }
}
