//! One device made of two: the near one joins the processes of this host, the far one reaches other hosts. They are shared
//! memory and an RDMA device; nothing here depends on that, but on the traits of `parts`.
//!
//! The thread that drives the connection manager opens the far device when the first connection to another host needs
//! it; it closes the device when that is taken away, and opens it again when it is back. The core sees one device: the
//! highest bit of a queue pair's id selects the device, a completion queue consists of one of each with a descriptor
//! for both, and capabilities are read for each queue pair.
//!
//! Invariants: the two devices number their completion queues alike, from 0. A far device that was taken away stays
//! here until its last queue pair is destroyed, so its users get the events of their end.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use netacc_config::Config;
use netacc_device::{Backoff, Capabilities, CompletionQueueId, DeviceError, FourTuple, QueuePairId};
use netacc_verbs::{EventFd, EventSet, TimerFd};
use parking_lot::Mutex;

use crate::parts::{BetweenHosts, WithinHost};
use crate::remote::{Pause, RemoteState};
use crate::{BackendFds, OpenError};

/// The two devices of a fabric: their common name, and how to open them.
pub(crate) struct Parts<N, F> {
    /// For human readers.
    pub(crate) name: &'static str,
    /// The near one, if it works here.
    pub(crate) near: Option<Arc<N>>,
    /// Opens the far one.
    pub(crate) open_far: fn(&Config) -> Result<Arc<F>, OpenError>,
}

/// See the module documentation.
pub(crate) struct Fabric<N, F> {
    config: Config,
    pub(crate) name: &'static str,
    open: fn(&Config) -> Result<Arc<F>, OpenError>,
    /// Without it no other process of this host can be found, and no connection within the host goes onto a link.
    pub(crate) near: Option<Arc<N>>,
    /// Connections within this host go over the near device, which otherwise only finds their peers.
    pub(crate) serves_host: bool,
    pub(crate) far: ArcSwapOption<F>,
    pub(crate) remote_state: RemoteState,
    capabilities: Capabilities,
    /// A thread needs the far device.
    wanted: AtomicBool,
    /// The pause after which the device may be tried again that could not be opened.
    failed: Mutex<Option<Pause>>,
    event: EventFd,
    rung: AtomicBool,
    timer: TimerFd,
    /// The descriptors on which the thread that drives the connection manager sleeps.
    events: EventSet,
    /// One for each completion queue.
    pub(crate) queues: Mutex<Vec<EventSet>>,
    /// Completion queues that a thread may sleep on, a bit each.
    armed: AtomicU64,
    /// The device that is polled first: if one alone could fill the answers, both get their turn.
    pub(crate) turn: AtomicBool,
}

/// The pause before an absent far device is opened again. Arbitrary: an attempt costs little, and only processes with
/// connections to other hosts make it.
const WITHOUT: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(4) };

/// The number of a member of a set, which is not used.
const MEMBER: u64 = 0;

impl<N: WithinHost, F: BetweenHosts> Fabric<N, F> {
    pub(crate) fn new(config: &Config, parts: Parts<N, F>, serves_host: bool) -> Result<Fabric<N, F>, OpenError> {
        let Parts { name, near, open_far } = parts;
        let os = |operation| move |source| DeviceError::Os { operation, source };
        let events = EventSet::new().map_err(os("epoll_create"))?;
        let event = EventFd::new().map_err(os("eventfd"))?;
        let timer = TimerFd::new().map_err(os("timerfd_create"))?;
        let near_fds = near.iter().flat_map(|near| near.event_fds());
        for fd in near_fds.chain([event.fd(), timer.fd()]) {
            events.add(fd, MEMBER).map_err(os("epoll_ctl"))?;
        }
        let capabilities = Capabilities {
            max_cq: near.as_ref().map_or(MAX_CQ, |near| near.capabilities().max_cq),
            qp_wait: true,
            rebind: true,
            ..Capabilities::PORTABLE
        };
        Ok(Fabric {
            config: config.clone(),
            name,
            open: open_far,
            near,
            serves_host,
            far: ArcSwapOption::empty(),
            remote_state: RemoteState::default(),
            capabilities,
            wanted: AtomicBool::new(false),
            failed: Mutex::new(None),
            event,
            rung: AtomicBool::new(false),
            timer,
            events,
            queues: Mutex::default(),
            armed: AtomicU64::new(0),
            turn: AtomicBool::new(false),
        })
    }

    /// Whether both ends are on this host.
    pub(crate) fn is_near(&self, tuple: &FourTuple) -> bool {
        N::is_within_host(tuple)
    }

    /// The near device, if it may have the other end of a connection that is not within this network namespace.
    pub(crate) fn spanning(&self) -> Option<&Arc<N>> {
        self.near.as_ref().filter(|near| self.serves_host && near.spans_namespaces())
    }

    /// The capabilities that both have.
    pub(crate) fn narrowest(&self) -> &Capabilities {
        &self.capabilities
    }

    /// See [`Opened::end_with_this_thread`](crate::Opened::end_with_this_thread). Peers on other hosts get that event
    /// from their devices.
    pub(crate) fn end_with_this_thread(&self) {
        if let Some(near) = &self.near {
            near.end_with_this_thread();
        }
    }

    /// See [`Opened::leave`](crate::Opened::leave).
    pub(crate) fn leave(&self) {
        if let Some(near) = &self.near {
            near.leave();
        }
    }

    /// Closes descriptors of the near device; the far one keeps its own. Returns their number.
    pub(crate) fn give_back(&self, which: netacc_shm::GiveBack) -> usize {
        self.near.as_ref().map_or(0, |near| near.give_back(which))
    }

    /// Every descriptor that is kept open.
    pub(crate) fn fds(&self) -> BackendFds {
        let mut own = vec![self.event.fd(), self.timer.fd(), self.events.fd()];
        own.extend(self.queues.lock().iter().map(EventSet::fd));
        own.extend(self.near.iter().flat_map(|near| near.fds()));
        let mut libraries = Vec::new();
        if let Some(far) = &*self.far.load() {
            let fds = far.fds();
            own.extend(fds.own);
            libraries = fds.libraries;
        }
        BackendFds { own, libraries }
    }

    pub(crate) fn event_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Whether the far device may serve a connection to another host, now or when the device is back.
    pub(crate) fn may_serve(&self, tuple: &FourTuple) -> bool {
        // A connection may far outlive the absence of the device.
        self.far.load().as_ref().is_none_or(|far| far.address_of_family(tuple.remote.ip()) == Some(tuple.local.ip()))
    }

    /// Whether there is a far device that can be used.
    pub(crate) fn has_far(&self) -> bool {
        self.far.load().as_ref().is_some_and(|far| !far.is_gone())
    }

    /// A thread needs the far device. Opening it takes time, which the caller must not spend.
    pub(crate) fn want_far(&self) {
        if self.far.load().is_none() && !self.wanted.swap(true, Ordering::SeqCst) {
            self.call();
        }
    }

    /// Makes [`tend`](Fabric::tend) run soon.
    pub(crate) fn call(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            self.event.signal();
        }
    }

    /// Opens the far device, or closes it, if that is due. Called by the thread that drives the connection manager.
    pub(crate) fn tend(&self) {
        if self.rung.load(Ordering::SeqCst) {
            // In this order: a thread that rings in between is seen below, or rings again.
            self.event.clear();
            self.rung.store(false, Ordering::SeqCst);
        }
        let gone = match &*self.far.load() {
            Some(far) if far.is_gone() => !far.is_in_use(),
            Some(far) => {
                self.remote_state.open_ports(Instant::now(), |port| far.listen_on(port));
                false
            }
            None => false,
        };
        if gone {
            self.withdraw_far();
        }
        if self.far.load().is_none() && self.wanted.swap(false, Ordering::SeqCst) {
            // Threads that need the device find it once it is there.
            let _ = self.open_far();
        }
    }

    /// Whether [`tend`](Fabric::tend) would open the far device now.
    pub(crate) fn is_due_to_open(&self) -> bool {
        let may_try = || self.failed.lock().is_none_or(|failed| failed.is_over(Instant::now()));
        self.wanted.load(Ordering::SeqCst) && may_try()
    }

    /// The far device, opened now if it was not.
    ///
    /// # Errors
    /// Fails if it cannot be opened now, or could not a moment ago.
    pub(crate) fn open_far(&self) -> Result<Arc<F>, OpenError> {
        let mut failed = self.failed.lock();
        if let Some(far) = self.far.load_full() {
            return Ok(far);
        }
        let now = Instant::now();
        if let Some(failed) = failed.filter(|failed| !failed.is_over(now)) {
            self.try_later(failed.left(now));
            return Err(OpenError::Paused);
        }
        match (self.open)(&self.config).and_then(|far| self.attach(far)) {
            Ok(far) => {
                *failed = None;
                self.timer.set(None);
                Ok(far)
            }
            Err(error) => {
                *failed = Some(Pause::after(*failed, now, WITHOUT));
                self.try_later(failed.map_or(WITHOUT.longest, |failed| failed.left(now)));
                Err(error)
            }
        }
    }

    /// Peers may connect; nothing else would cause another attempt.
    fn try_later(&self, left: Duration) {
        let published = self.remote_state.is_published();
        self.wanted.store(published, Ordering::SeqCst);
        self.timer.set(published.then_some(left));
    }

    fn attach(&self, far: Arc<F>) -> Result<Arc<F>, OpenError> {
        let os = |source| DeviceError::Os { operation: "epoll_ctl", source };
        let queues = self.queues.lock();
        for queue in queues.iter() {
            join(&*far, queue)?;
        }
        for fd in far.event_fds() {
            self.events.add(fd, MEMBER).map_err(os)?;
        }
        if let Some(near) = &self.near {
            near.publish_link_port(far.port());
        }
        self.far.store(Some(Arc::clone(&far)));
        // A thread that sleeps already does not poll this device. The other queues stay as they are: each message on an
        // armed one causes a wake-up, which costs a system call.
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed);
        for cq in (0..queues.len() as u32).filter(|cq| armed & bit(CompletionQueueId(*cq)) != 0) {
            far.arm(CompletionQueueId(cq));
        }
        // A thread that is about to fork waits for this lock, while calls into the libraries wait for the fork.
        drop(queues);
        self.remote_state.forget_ports();
        self.remote_state.open_ports(Instant::now(), |port| far.listen_on(port));
        Ok(far)
    }

    /// The far device was taken away, and no queue pair uses it any more.
    fn withdraw_far(&self) {
        if let Some(near) = &self.near {
            near.publish_link_port(0);
        }
        // Its descriptors leave the sets as they are closed.
        self.far.store(None);
        let (mut failed, now) = (self.failed.lock(), Instant::now());
        let pause = Pause::after(None, now, WITHOUT);
        *failed = Some(pause);
        self.try_later(pause.left(now));
    }

    /// One more completion queue.
    pub(crate) fn make_queue(&self) -> Result<CompletionQueueId, DeviceError> {
        let os = |operation| move |source: io::Error| DeviceError::Os { operation, source };
        let mut queues = self.queues.lock();
        if queues.len() >= self.capabilities.max_cq as usize {
            return Err(DeviceError::Exhausted { what: "completion queue" });
        }
        let queue = EventSet::new().map_err(os("epoll_create"))?;
        if let Some(near) = &self.near {
            let cq = near.create_cq()?;
            if let Some(fd) = near.channel_fd(cq) {
                queue.add(fd, MEMBER).map_err(os("epoll_ctl"))?;
            }
        }
        if let Some(far) = &*self.far.load() {
            join(&**far, &queue)?;
        }
        queues.push(queue);
        Ok(CompletionQueueId(queues.len() as u32 - 1))
    }

    /// A thread is about to sleep on `cq`. Call it before looking for the far device: either the device is there, or
    /// the thread that opens it sees this.
    pub(crate) fn record_armed(&self, cq: CompletionQueueId) {
        self.armed.fetch_or(bit(cq), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// No thread sleeps on `cq`; one that does calls `record_armed` again.
    pub(crate) fn record_disarmed(&self, cq: CompletionQueueId) {
        self.armed.fetch_and(!bit(cq), Ordering::Relaxed);
    }

    /// The device that has `qp`, and its id there.
    pub(crate) fn split(&self, qp: QueuePairId) -> Side<'_, N, F> {
        if qp.0 & FAR == 0 {
            return self.near.as_deref().map_or(Side::Nobody, Side::Near);
        }
        match self.far.load_full() {
            Some(far) => Side::Far(far, QueuePairId(qp.0 & !FAR)),
            None => Side::Nobody,
        }
    }
}

/// Makes the events of a far device's completion queue come to `queue`.
fn join(far: &impl BetweenHosts, queue: &EventSet) -> Result<(), DeviceError> {
    let cq = far.create_cq()?;
    if let Some(fd) = far.channel_fd(cq) {
        queue.add(fd, MEMBER).map_err(|source| DeviceError::Os { operation: "epoll_ctl", source })?;
    }
    Ok(())
}

/// The bit of a completion queue in a set; none for a number that no queue has.
fn bit(cq: CompletionQueueId) -> u64 {
    1u64.checked_shl(cq.0).unwrap_or(0)
}

/// The number of completion queues where there is no near device; a near device has fewer.
const MAX_CQ: u32 = 8;

/// Marks identifiers of the far device.
const FAR: u32 = 1 << 31;

pub(crate) fn mark(qp: &mut QueuePairId) {
    qp.0 |= FAR;
}

/// The device of a queue pair.
pub(crate) enum Side<'a, N, F> {
    Near(&'a N),
    Far(Arc<F>, QueuePairId),
    /// It belonged to a device that is gone.
    Nobody,
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::*;
    use netacc_device::conformance::{run, Fixture};
    use netacc_device::{
        conformance, forward, to_inner, CmError, CmEvent, CompletionEvents, ConnectionId, ConnectionManager, Device,
        Directory, KernelOrder, Obstacle, PeerAddress, Receives,
    };
    use netacc_shm::{ShmConfig, ShmDevice};
    use netacc_verbs::VerbsDevice;

    type Real = Fabric<ShmDevice, VerbsDevice>;

    struct TwoDevices<N, F>([Arc<Fabric<N, F>>; 2]);

    impl<N: WithinHost + 'static, F: BetweenHosts + 'static> Fixture for TwoDevices<N, F> {
        fn device(&self, side: conformance::Side) -> Arc<dyn Device> {
            self.0[side as usize].clone()
        }

        fn connection_manager(&self, side: conformance::Side) -> Option<Arc<dyn ConnectionManager>> {
            Some(self.0[side as usize].clone())
        }

        fn directory(&self, side: conformance::Side) -> Option<Arc<dyn Directory>> {
            self.0[side as usize].near.as_ref()?;
            Some(self.0[side as usize].clone())
        }

        fn progress(&mut self) {}
    }

    fn fabric(folder: &std::path::Path) -> Arc<Real> {
        let config = ShmConfig { directory: Some(folder.join("rendezvous")), ..ShmConfig::default() };
        let near = ShmDevice::open(config).expect("shared memory");
        let parts = Parts { name: "of a test", near: Some(near.clone()), open_far: |_| Err(OpenError::NoAddress) };
        let mut fabric = Fabric::new(&Config::default(), parts, true).expect("descriptors");
        assert!(!fabric.capabilities.peer_memory, "an RDMA device has none");
        // The same for every queue pair here: the suite reads them only once.
        fabric.capabilities = near.capabilities().clone();
        Arc::new(fabric)
    }

    /// A third device: shared memory that treats its peers as if they were on other hosts.
    struct Third {
        inner: Arc<ShmDevice>,
    }

    impl Device for Third {
        forward!(to_inner: name, capabilities, capabilities_of, create_cq, pending, poll_qp, rebind);
        forward!(to_inner: alloc_region, free_region, window, discard, post_recv, post_send, fail_qp, destroy_qp);
    }

    impl CompletionEvents for Third {
        forward!(to_inner: CompletionEvents);
    }

    impl KernelOrder for Third {}

    impl ConnectionManager for Third {
        fn address(&self) -> PeerAddress {
            self.inner.address()
        }

        fn connect_with(
            &self,
            peer: PeerAddress,
            cq: CompletionQueueId,
            region_len: usize,
            private_data: &[u8],
            receives: Receives,
        ) -> Result<ConnectionId, CmError> {
            self.inner.connect_with(peer, cq, region_len, private_data, receives)
        }

        fn accept_with(
            &self,
            id: ConnectionId,
            cq: CompletionQueueId,
            region_len: usize,
            receives: Receives,
        ) -> Result<(), CmError> {
            self.inner.accept_with(id, cq, region_len, receives)
        }

        fn reject(&self, id: ConnectionId) {
            self.inner.reject(id);
        }

        fn poll_event(&self) -> Option<CmEvent> {
            self.inner.poll_event()
        }

        fn event_fds(&self) -> Vec<RawFd> {
            self.inner.event_fds()
        }
    }

    impl BetweenHosts for Third {
        fn peer_address(_: SocketAddr) -> PeerAddress {
            PeerAddress([0; 4])
        }

        fn socket_address(peer: PeerAddress) -> Option<SocketAddr> {
            (peer != PeerAddress([0; 4])).then_some(SocketAddr::from(([10, 99, 0, 1], 1)))
        }

        fn port(&self) -> u16 {
            0
        }

        fn listen_on(&self, _: u16) -> io::Result<()> {
            Ok(())
        }

        fn address_of_family(&self, like: IpAddr) -> Option<IpAddr> {
            Some(like)
        }

        fn is_gone(&self) -> bool {
            false
        }

        fn is_in_use(&self) -> bool {
            true
        }

        fn fds(&self) -> BackendFds {
            BackendFds { own: self.inner.fds(), libraries: Vec::new() }
        }
    }

    fn open_third(_: &Config) -> Result<Arc<Third>, OpenError> {
        // Two opened in one test thread find each other.
        thread_local!(static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder"));
        let directory = FOLDER.with(|folder| folder.path().join("rendezvous"));
        let inner = ShmDevice::open(ShmConfig { directory: Some(directory), ..ShmConfig::default() })?;
        Ok(Arc::new(Third { inner }))
    }

    /// Breaks if a call on a queue pair of the far device went to the near one, or only a device that this crate names
    /// could be the far one.
    #[test]
    fn the_conformance_suite_passes_over_a_third_device() {
        let fabric = || {
            let parts = Parts::<ShmDevice, Third> { name: "of a test", near: None, open_far: open_third };
            let mut fabric = Fabric::new(&Config::default(), parts, true).expect("descriptors");
            let far = fabric.open_far().expect("shared memory");
            fabric.capabilities = far.capabilities().clone();
            Arc::new(fabric)
        };
        let report = run(&mut TwoDevices([fabric(), fabric()]));
        let failed: Vec<_> = report.failed().collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }

    /// Shared memory has the same capabilities as a part.
    #[test]
    fn the_conformance_suite_passes_without_an_rdma_device() {
        let folder = tempfile::tempdir().expect("a folder");
        let report = run(&mut TwoDevices([fabric(folder.path()), fabric(folder.path())]));
        let failed: Vec<_> = report.failed().collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }

    fn tuple(local: &str, remote: &str) -> FourTuple {
        FourTuple { local: local.parse().expect("an address"), remote: remote.parse().expect("an address") }
    }

    /// Breaks if a link from another host could claim a connection within this one, whose peers are trusted.
    #[test]
    fn links_carry_connections_with_their_own_addresses_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let fabric = fabric(folder.path());
        let within = tuple("127.0.0.1:6379", "127.0.0.1:40000");
        let between = tuple("10.99.0.1:6379", "10.99.0.2:40000");
        let far = |address: &str| VerbsDevice::peer_address(address.parse().expect("an address"));
        let near = ConnectionManager::address(&*fabric);
        assert!(fabric.trusts(&within) && !fabric.trusts(&between));
        assert!(fabric.admits(near, &within) && !fabric.admits(near, &between));
        assert!(fabric.admits(far("10.99.0.2:1"), &between) && !fabric.admits(far("10.99.0.3:1"), &between));
        assert!(!fabric.admits(far("127.0.0.1:1"), &within));
        assert_eq!(fabric.neighbour(far("10.99.0.2:26379"), 40001), Some(far("10.99.0.2:40001")));
        assert_eq!((fabric.neighbour(far("10.99.0.2:26379"), 0), fabric.neighbour(near, 40001)), (None, None));
    }

    /// Breaks if a connection between two containers of this host were left to the RDMA device, or trusted.
    #[test]
    fn a_shared_folder_serves_connections_to_other_namespaces() {
        let folder = tempfile::tempdir().expect("a folder");
        let fabric = || {
            let config = ShmConfig { folder: Some(folder.path().to_owned()), ..ShmConfig::default() };
            let near = Some(ShmDevice::open(config).expect("shared memory"));
            let parts = Parts { name: "of a test", near, open_far: |_| Err(OpenError::NoAddress) };
            Real::new(&Config::default(), parts, true).expect("descriptors")
        };
        let (server, client) = (fabric(), fabric());
        // No RDMA port could be made of this one.
        let between = tuple("127.0.0.9:50001", "127.0.0.8:40000");
        let beyond = tuple("10.99.0.1:50001", "10.99.0.2:40000");
        for tuple in [&between, &beyond] {
            assert!(server.serves(tuple) && !server.trusts(tuple));
            assert!(server.admits(ConnectionManager::address(&client), tuple));
            assert_eq!(server.publish(tuple, 3), Ok(()));
            assert_eq!(client.lookup(&tuple.reversed()), None, "not proven yet");
        }
        for _ in 0..200 {
            assert!(server.poll_event().is_none() && client.poll_event().is_none());
        }
        assert_eq!(client.lookup(&between.reversed()), Some((ConnectionManager::address(&server), 3)));
        assert_eq!(client.lookup(&beyond.reversed()), None, "no address of this machine");
        assert_eq!(client.obstacle(&beyond.reversed(), false), Some(Obstacle::NoPort));
    }

    #[test]
    fn a_neighbour_that_holds_a_connection_is_named_once_it_accepts_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let (asker, holder) = (fabric(folder.path()), fabric(folder.path()));
        let between = tuple("10.99.0.1:6379", "10.99.0.2:40000");
        holder.publish(&between, 3).expect("room");
        assert_eq!((asker.resolve(&between), asker.holder(&between)), (None, None));
        assert_eq!(holder.resolve(&between), Some(3));
        let near = holder.near.as_ref().expect("given");
        near.publish_link_port(40001);
        assert_eq!((asker.holder(&between), holder.holder(&between)), (Some(40001), None));
        holder.withdraw(&between, 3);
        assert_eq!((asker.holder(&between), holder.resolve(&between)), (None, None));
        let beyond = tuple("10.99.0.1:50000", "10.99.0.2:40000");
        assert_eq!(holder.publish(&beyond, 4), Err(netacc_device::DirectoryError::NoPort));
        assert_eq!(holder.obstacle(&beyond, true), Some(Obstacle::NoPort));
        assert_eq!(asker.obstacle(&beyond.reversed(), false), Some(Obstacle::NoPort));
    }

    /// Breaks if a connection that is made while the device is away stayed on TCP when that is back, or were reported
    /// as out of reach.
    #[test]
    fn connections_are_served_while_the_device_is_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let fabric = fabric(folder.path());
        let between = tuple("10.99.0.1:6379", "10.99.0.2:40000");
        *fabric.failed.lock() = Some(Pause::after(None, Instant::now() + WITHOUT.longest, WITHOUT));
        assert!(fabric.open_far().is_err(), "not before the pause is over");
        assert!(fabric.serves(&between));
        fabric.wanted.store(true, Ordering::SeqCst);
        assert!(!fabric.may_wait(), "nothing is tried before that");
        *fabric.failed.lock() = None;
        assert!(fabric.may_wait());
        *fabric.failed.lock() = Some(Pause::after(None, Instant::now() + WITHOUT.longest, WITHOUT));
        assert_eq!(fabric.publish(&between, 3), Ok(()));
        assert_eq!(fabric.lookup(&between.reversed()), None);
        assert_eq!(fabric.obstacle(&between.reversed(), false), Some(Obstacle::NoDevice));
        assert_eq!(fabric.obstacle(&between, true), Some(Obstacle::NoDevice));
        assert_eq!(fabric.obstacle(&tuple("127.0.0.1:6379", "127.0.0.1:40000"), true), None);
    }

    /// Breaks if a process that receives datagrams alone has no device, or accepts no links at the port of its socket.
    #[test]
    fn offered_flows_want_the_device_and_a_port() {
        let folder = tempfile::tempdir().expect("a folder");
        let fabric = fabric(folder.path());
        let is_wanted = || fabric.wanted.load(Ordering::SeqCst) && fabric.rung.load(Ordering::SeqCst);
        fabric.offer_flows(&tuple("127.0.0.1:6379", "127.0.0.1:40000"));
        // There is no port for links to this one.
        fabric.offer_flows(&tuple("10.99.0.1:50000", "10.99.0.2:40000"));
        assert!(!is_wanted() && !fabric.remote_state.is_published());
        let between = tuple("10.99.0.1:6379", "10.99.0.2:40000");
        fabric.offer_flows(&between);
        assert!(is_wanted() && fabric.remote_state.is_published());
        assert!(!fabric.remote_state.want(26379, Instant::now()), "it is wanted already");
        // Another port of the same device.
        fabric.rung.store(false, Ordering::SeqCst);
        fabric.offer_flows(&tuple("10.99.0.1:6380", "10.99.0.2:40000"));
        assert!(is_wanted() && !fabric.remote_state.want(26380, Instant::now()));
    }

    /// Breaks if a taken port were blamed although its holder refers peers to us.
    #[test]
    fn a_neighbour_that_accepts_links_may_have_the_port() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = [fabric(folder.path()), fabric(folder.path())];
        let near = |fabric: &Real| fabric.near.clone().expect("given");
        assert!(!near(&one).has_neighbour_with_links());
        near(&one).publish_link_port(40001);
        assert!(!near(&one).has_neighbour_with_links() && near(&other).has_neighbour_with_links());
        near(&one).publish_link_port(0);
        assert!(!near(&other).has_neighbour_with_links());
    }
}
