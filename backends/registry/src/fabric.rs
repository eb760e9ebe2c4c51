//! One device made of two: shared memory towards processes of this host, an RDMA device towards other hosts.
//!
//! The RDMA device is opened when the first connection to another host asks for it, by the thread that drives the
//! connection manager; closed when it is taken away, and opened again when it is back. The core sees one device: the
//! highest bit of a queue pair's id tells whose it is, a completion queue is one of each with a descriptor that stands for
//! both, and capabilities are asked for each queue pair.
//!
//! Invariants: the two devices number their completion queues alike, from 0. An RDMA device that was taken away stays
//! here until its last queue pair is destroyed, so its users hear of their end.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use netacc_config::Config;
use netacc_device::{
    Capabilities, CompletionEvents, CompletionQueueId, ConnectionManager, Device, DeviceError, FourTuple, QueuePairId,
};
use netacc_shm::ShmDevice;
use netacc_verbs::{EventFd, EventSet, TimerFd, VerbsDevice};
use parking_lot::Mutex;

use crate::remote::{Backoff, Known};
use crate::{open_rdma, BackendFds, OpenError};

/// See the module documentation.
pub(crate) struct Fabric {
    config: Config,
    /// Without it nothing is found out of other processes of this host, and nothing goes over shared memory.
    pub(crate) near: Option<Arc<ShmDevice>>,
    /// Connections within this host go over shared memory, not only what is known of them.
    pub(crate) serves_host: bool,
    pub(crate) far: ArcSwapOption<VerbsDevice>,
    pub(crate) known: Known,
    capabilities: Capabilities,
    /// Somebody has a use for the RDMA device.
    wanted: AtomicBool,
    /// When the device may be tried again that could not be opened.
    failed: Mutex<Option<Backoff>>,
    event: EventFd,
    rung: AtomicBool,
    timer: TimerFd,
    /// What the connection manager's driver sleeps on.
    events: EventSet,
    /// One for each completion queue.
    pub(crate) queues: Mutex<Vec<EventSet>>,
    /// Completion queues that somebody may sleep on, a bit each.
    armed: AtomicU64,
    /// Which of the two is asked first: where one alone could fill the answers, both get their turn.
    pub(crate) turn: AtomicBool,
}

/// How long an RDMA device that is not there is left alone at most. Arbitrary: to try costs little, and only who has
/// connections to other hosts does.
const LONGEST_WITHOUT: Duration = Duration::from_secs(4);

/// Numbers of members of sets, which nobody looks at.
const MEMBER: u64 = 0;

impl Fabric {
    pub(crate) fn new(config: &Config, near: Option<Arc<ShmDevice>>, serves_host: bool) -> Result<Fabric, OpenError> {
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
            near,
            serves_host,
            far: ArcSwapOption::empty(),
            known: Known::default(),
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
        ShmDevice::is_within_host(tuple)
    }

    /// What both can do.
    pub(crate) fn narrowest(&self) -> &Capabilities {
        &self.capabilities
    }

    /// See [`Opened::end_with_this_thread`](crate::Opened::end_with_this_thread). Peers on other hosts learn of it from them.
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

    /// Closes descriptors of shared memory; an RDMA device keeps its own. How many.
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
            own.extend(far.own_fds());
            libraries = far.library_fds();
        }
        BackendFds { own, libraries }
    }

    pub(crate) fn event_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Whether an RDMA device may serve a connection to another host, now or when it is there.
    pub(crate) fn may_serve(&self, tuple: &FourTuple) -> bool {
        // A connection may outlive the absence of the device by far.
        self.far.load().as_ref().is_none_or(|far| far.address_of_family(tuple.remote.ip()) == Some(tuple.local.ip()))
    }

    /// Whether there is an RDMA device that can be used.
    pub(crate) fn has_far(&self) -> bool {
        self.far.load().as_ref().is_some_and(|far| !far.is_gone())
    }

    /// There is a use for the RDMA device. Opening it takes time, which is not the caller's.
    pub(crate) fn want_far(&self) {
        if self.far.load().is_none() && !self.wanted.swap(true, Ordering::SeqCst) {
            self.call();
        }
    }

    /// Has [`tend`](Fabric::tend) called soon.
    pub(crate) fn call(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            self.event.signal();
        }
    }

    /// Opens and closes what is to be. By the thread that drives the connection manager.
    pub(crate) fn tend(&self) {
        if self.rung.load(Ordering::SeqCst) {
            // In this order: who rings in between is heard below, or rings.
            self.event.clear();
            self.rung.store(false, Ordering::SeqCst);
        }
        let gone = match &*self.far.load() {
            Some(far) if far.is_gone() => !far.is_in_use(),
            Some(far) => {
                self.known.open_ports(Instant::now(), |port| far.listen_on(port));
                false
            }
            None => false,
        };
        if gone {
            self.let_go();
        }
        if self.far.load().is_none() && self.wanted.swap(false, Ordering::SeqCst) {
            // Whoever wants it hears of it by its being there.
            let _ = self.open_far();
        }
    }

    /// The RDMA device, opened now if it was not.
    ///
    /// # Errors
    /// It cannot be, or could not a moment ago.
    pub(crate) fn open_far(&self) -> Result<Arc<VerbsDevice>, OpenError> {
        let mut failed = self.failed.lock();
        if let Some(far) = self.far.load_full() {
            return Ok(far);
        }
        let now = Instant::now();
        if let Some(failed) = failed.filter(|failed| !failed.is_over(now)) {
            self.try_later(failed.left(now));
            return Err(OpenError::Paused);
        }
        match open_rdma(&self.config).and_then(|far| self.attach(far)) {
            Ok(far) => {
                *failed = None;
                self.timer.set(None);
                Ok(far)
            }
            Err(error) => {
                *failed = Some(Backoff::after(*failed, now, LONGEST_WITHOUT));
                self.try_later(failed.map_or(LONGEST_WITHOUT, |failed| failed.left(now)));
                Err(error)
            }
        }
    }

    /// Peers may ask for links; nobody else would make us try.
    fn try_later(&self, left: Duration) {
        let published = self.known.is_published();
        self.wanted.store(published, Ordering::SeqCst);
        self.timer.set(published.then_some(left));
    }

    fn attach(&self, far: Arc<VerbsDevice>) -> Result<Arc<VerbsDevice>, OpenError> {
        let os = |source| DeviceError::Os { operation: "epoll_ctl", source };
        let queues = self.queues.lock();
        for queue in queues.iter() {
            join(&far, queue)?;
        }
        for fd in far.event_fds() {
            self.events.add(fd, MEMBER).map_err(os)?;
        }
        if let Some(near) = &self.near {
            near.tell_link_port(far.address().port());
        }
        self.far.store(Some(Arc::clone(&far)));
        // Who sleeps already did not know of this device. The other queues stay as they are: of each message on one that
        // is armed somebody is told, which costs a system call.
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed);
        for cq in (0..queues.len() as u32).filter(|cq| armed & bit(CompletionQueueId(*cq)) != 0) {
            far.arm(CompletionQueueId(cq));
        }
        // Who is about to fork waits for it while calls into the libraries wait for that.
        drop(queues);
        self.known.forget_ports();
        self.known.open_ports(Instant::now(), |port| far.listen_on(port));
        Ok(far)
    }

    /// The RDMA device was taken away, and nobody uses it any more.
    fn let_go(&self) {
        if let Some(near) = &self.near {
            near.tell_link_port(0);
        }
        // Its descriptors leave the sets as they are closed.
        self.far.store(None);
        let (mut failed, now) = (self.failed.lock(), Instant::now());
        let backoff = Backoff::after(None, now, LONGEST_WITHOUT);
        *failed = Some(backoff);
        self.try_later(backoff.left(now));
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
            join(far, &queue)?;
        }
        queues.push(queue);
        Ok(CompletionQueueId(queues.len() as u32 - 1))
    }

    /// Somebody is about to sleep on `cq`. To be called before the RDMA device is looked for: either it is there, or who
    /// opens it sees this.
    pub(crate) fn note_armed(&self, cq: CompletionQueueId) {
        self.armed.fetch_or(bit(cq), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Nobody sleeps on `cq`, or who does says so again.
    pub(crate) fn note_disarmed(&self, cq: CompletionQueueId) {
        self.armed.fetch_and(!bit(cq), Ordering::Relaxed);
    }

    /// Which of the two has `qp`, and as what.
    pub(crate) fn split(&self, qp: QueuePairId) -> Side<'_> {
        if qp.0 & FAR == 0 {
            return self.near.as_deref().map_or(Side::Nobody, Side::Near);
        }
        match self.far.load_full() {
            Some(far) => Side::Far(far, QueuePairId(qp.0 & !FAR)),
            None => Side::Nobody,
        }
    }
}

/// A completion queue of an RDMA device, whose events come to `queue`.
fn join(far: &VerbsDevice, queue: &EventSet) -> Result<(), DeviceError> {
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

/// Completion queues where there is no shared memory, which has fewer.
const MAX_CQ: u32 = 8;

/// Marks what is the RDMA device's.
const FAR: u32 = 1 << 31;

pub(crate) fn mark(qp: &mut QueuePairId) {
    qp.0 |= FAR;
}

/// Whose a queue pair is.
pub(crate) enum Side<'a> {
    Near(&'a ShmDevice),
    Far(Arc<VerbsDevice>, QueuePairId),
    /// A device's that is no more.
    Nobody,
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_device::conformance::{run, Fixture};
    use netacc_device::{conformance, Directory, Obstacle};
    use netacc_shm::ShmConfig;

    struct TwoDevices([Arc<Fabric>; 2]);

    impl Fixture for TwoDevices {
        fn device(&self, side: conformance::Side) -> Arc<dyn Device> {
            self.0[side as usize].clone()
        }

        fn connection_manager(&self, side: conformance::Side) -> Option<Arc<dyn ConnectionManager>> {
            Some(self.0[side as usize].clone())
        }

        fn directory(&self, side: conformance::Side) -> Option<Arc<dyn Directory>> {
            Some(self.0[side as usize].clone())
        }

        fn progress(&mut self) {}
    }

    fn fabric(folder: &std::path::Path) -> Arc<Fabric> {
        let config = ShmConfig { directory: Some(folder.join("rendezvous")), ..ShmConfig::default() };
        let near = ShmDevice::open(config).expect("shared memory");
        let mut fabric = Fabric::new(&Config::default(), Some(near.clone()), true).expect("descriptors");
        assert!(!fabric.capabilities.peer_memory, "an RDMA device has none");
        // As it will be for every queue pair here: the suite asks but once.
        fabric.capabilities = near.capabilities().clone();
        Arc::new(fabric)
    }

    /// What shared memory can do it can do as a part, too.
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

    #[test]
    fn a_neighbour_that_holds_a_connection_is_named_once_it_accepts_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let (asked, holder) = (fabric(folder.path()), fabric(folder.path()));
        let between = tuple("10.99.0.1:6379", "10.99.0.2:40000");
        holder.publish(&between, 3).expect("room");
        assert_eq!((asked.resolve(&between), asked.holder(&between)), (None, None));
        assert_eq!(holder.resolve(&between), Some(3));
        let near = holder.near.as_ref().expect("given");
        near.tell_link_port(40001);
        assert_eq!((asked.holder(&between), holder.holder(&between)), (Some(40001), None));
        holder.withdraw(&between, 3);
        assert_eq!((asked.holder(&between), holder.resolve(&between)), (None, None));
        let beyond = tuple("10.99.0.1:50000", "10.99.0.2:40000");
        assert_eq!(holder.publish(&beyond, 4), Err(netacc_device::DirectoryError::NoPort));
        assert_eq!(holder.obstacle(&beyond, true), Some(Obstacle::NoPort));
        assert_eq!(asked.obstacle(&beyond.reversed(), false), Some(Obstacle::NoPort));
    }

    /// Breaks if a connection that is made while the device is away stayed on TCP when that is back, or were said to be out
    /// of reach.
    #[test]
    fn connections_are_served_while_the_device_is_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let fabric = fabric(folder.path());
        let between = tuple("10.99.0.1:6379", "10.99.0.2:40000");
        *fabric.failed.lock() = Some(Backoff::after(None, Instant::now() + LONGEST_WITHOUT, LONGEST_WITHOUT));
        assert!(fabric.open_far().is_err(), "not before the pause is over");
        assert!(fabric.serves(&between));
        assert_eq!(fabric.publish(&between, 3), Ok(()));
        assert_eq!(fabric.lookup(&between.reversed()), None);
        assert_eq!(fabric.obstacle(&between.reversed(), false), Some(Obstacle::NoDevice));
        assert_eq!(fabric.obstacle(&between, true), Some(Obstacle::NoDevice));
        assert_eq!(fabric.obstacle(&tuple("127.0.0.1:6379", "127.0.0.1:40000"), true), None);
    }

    /// Breaks if a taken port were blamed though its holder sends us who asks there.
    #[test]
    fn a_neighbour_that_accepts_links_may_have_the_port() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, other] = [fabric(folder.path()), fabric(folder.path())];
        let near = |fabric: &Fabric| fabric.near.clone().expect("given");
        assert!(!near(&one).has_neighbour_with_links());
        near(&one).tell_link_port(40001);
        assert!(!near(&one).has_neighbour_with_links() && near(&other).has_neighbour_with_links());
        near(&one).tell_link_port(0);
        assert!(!near(&other).has_neighbour_with_links());
    }
}
