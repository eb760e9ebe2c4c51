//! The runtime: the state of a process that has made a socket which could use a link. It has the endpoint, the
//! configuration, and the interface of the other threads to the helper thread.
//!
//! [`control`](crate::control) makes it, and runs the helper.
//!
//! Descriptors that the library keeps are moved to high numbers, because programs expect the lowest free one.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::Arc;

use netacc_config::{Config, Problem};
use netacc_device::KernelOperation;
use netacc_driver::{Endpoint, StreamCell};
use netacc_proto::Reason;
use netacc_registry::{BackendFds, GiveBack};
use parking_lot::Mutex;

use crate::answers::Services;
use crate::asking::Asking;
use crate::crowds::Crowds;
use crate::datagram::Flows;
use crate::lifetimes::Lifetimes;
use crate::os::clock::now;
use crate::os::inside::is_inside;
use crate::os::{kept, own};
use crate::spin::SpinPolicy;

pub(crate) mod arrivals;
pub(crate) mod assistants;
pub(crate) mod helper;
pub(crate) mod inherited;
pub(crate) mod poller;

use arrivals::{Arrival, Arrivals};
use assistants::Assistants;
use helper::Helper;
pub use inherited::Inherited;
use inherited::{ways_to_parents, Requests};

/// The state of this process. Lives until exit once made.
pub struct Runtime {
    /// Streams and links; `None` when nothing can be accelerated.
    pub(crate) endpoint: Option<Endpoint>,
    /// The configuration in force.
    pub config: Config,
    /// The problems found in it.
    pub problems: Vec<Problem>,
    /// The device's name; `none` without one.
    pub backend: String,
    /// Lists the descriptors that the backend keeps open.
    pub(crate) backend_fds: Option<Arc<dyn Fn() -> BackendFds + Send + Sync>>,
    pub(crate) end_with_this_thread: Option<Arc<dyn Fn() + Send + Sync>>,
    pub(crate) leave_backend: Option<Arc<dyn Fn() + Send + Sync>>,
    pub(crate) give_back_of_backend: Option<Arc<dyn Fn(GiveBack) -> usize + Send + Sync>>,
    /// Why nothing is accelerated; empty if something may be.
    pub refused: String,
    /// The same as a reason; `Reason::None` with an endpoint.
    pub refused_for: Reason,
    /// Waiting policy.
    pub spin: SpinPolicy,
    /// Calls of `epoll_wait` on instances that are closed.
    pub(crate) ended_epoll_waits: AtomicU64,
    /// Streams whose promotion is to be tried.
    pub(crate) promotions: Mutex<Vec<Arc<StreamCell>>>,
    /// The requests of crowds' connections for links.
    pub(crate) arrivals: Arrivals,
    /// Accepted streams whose peers have not asked for promotion: the helper finds out why.
    pub(crate) unrequested: Mutex<Vec<Arc<StreamCell>>>,
    /// The answer times of the services that this process has connected to.
    pub(crate) services: Services,
    /// How long connections to services live.
    pub(crate) lifetimes: Lifetimes,
    /// When short connections to them ask for links.
    pub(crate) asking: Asking,
    /// How long the connections live that this process has accepted: the services are its own.
    pub(crate) served: Lifetimes,
    /// Services with many connections of this process.
    pub(crate) crowds: Crowds,
    /// The first helper thread, as others reach it.
    pub(crate) helper: Helper,
    /// The others.
    pub(crate) assistants: Assistants,
    /// Used as long as there is no endpoint, which has its own.
    pub(crate) counters: netacc_driver::Counters,
    /// A connection has requested a search for processes that hold its socket unseen.
    pub(crate) search_wanted: AtomicBool,
    /// The requests of children.
    pub(crate) child_requests: Requests,
    /// Flows of datagrams.
    pub(crate) flows: Flows,
    /// The process that it belongs to.
    pub(crate) pid: u32,
}

static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(null_mut());

/// The runtime, if it has been made.
#[inline]
pub fn get() -> Option<&'static Runtime> {
    // SAFETY: set once per process to a leaked box; after fork the child forgets it without freeing.
    unsafe { RUNTIME.load(Ordering::Acquire).as_ref() }
}

/// From now on `made` is the runtime of this process.
pub(crate) fn publish(made: &'static Runtime) {
    RUNTIME.store(std::ptr::from_ref(made).cast_mut(), Ordering::Release);
}

/// In a forked child, which makes its own when it needs one: the runtime of its parent, which stays in memory.
pub(crate) fn forget() -> Option<&'static Runtime> {
    let parents = get()?;
    kept::keep(parents);
    RUNTIME.store(null_mut(), Ordering::Release);
    Some(parents)
}

/// New connections stay in the kernel: see [`keep_on_kernel`].
static KEPT_ON_KERNEL: AtomicBool = AtomicBool::new(false);

/// Every connection that is made from now on stays on TCP for good: the program has ways to use it that the library
/// does not see.
pub fn keep_on_kernel() {
    KEPT_ON_KERNEL.store(true, Ordering::Relaxed);
}

/// Whether [`keep_on_kernel`] was called.
pub fn is_kept_on_kernel() -> bool {
    KEPT_ON_KERNEL.load(Ordering::Relaxed)
}

/// Whether `fd` may be one that the library keeps for itself, and the call on it is the program's.
#[inline]
pub fn may_be_helper_fd(fd: c_int) -> bool {
    own::may_be_own(fd) && !is_inside()
}

/// Whether the library keeps `fd` for itself. Searches all descriptors of the device.
#[cold]
pub fn is_own(fd: c_int) -> bool {
    ways_to_parents().any(|kept| kept == fd)
        || own::is_listed(fd)
        || get().is_some_and(|rt| rt.device_fds().contains(&fd))
}

/// All descriptors that the library keeps for itself.
pub fn protected_fds() -> Vec<c_int> {
    let mut fds: Vec<c_int> = ways_to_parents().collect();
    fds.extend(own::list());
    if let Some(rt) = get() {
        fds.extend(rt.device_fds());
    }
    fds
}

impl Runtime {
    /// Whether it was made by the process with this number.
    pub fn belongs_to(&self, pid: u32) -> bool {
        self.pid == pid
    }

    /// Streams and links.
    #[inline]
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// The descriptors that the backend keeps open.
    pub(crate) fn backend_fds(&self) -> BackendFds {
        self.backend_fds.as_ref().map_or_else(BackendFds::default, |fds| fds())
    }

    fn device_fds(&self) -> Vec<c_int> {
        let BackendFds { mut own, libraries } = self.backend_fds();
        own.extend(libraries);
        own
    }

    /// Counts the reason why a connection without a stream stays on TCP.
    pub fn count_reason(&self, reason: Reason) {
        self.counters().reason(reason);
    }

    /// Counters of the process: the endpoint's, or those kept without one.
    pub fn counters(&self) -> &netacc_driver::Counters {
        self.endpoint.as_ref().map_or(&self.counters, Endpoint::counters)
    }

    /// Queues a stream for promotion by the helper thread that has it in its share.
    pub fn request_promotion(&self, cell: &Arc<StreamCell>) {
        if self.assistants.request_promotion(cell) {
            return;
        }
        self.promotions.lock().push(cell.clone());
        if let Some(endpoint) = &self.endpoint {
            endpoint.need_helper();
        }
    }

    /// A connection of a crowd asks for links. The helper serves such requests together.
    pub(crate) fn request_new(&self, arrival: Arrival) {
        if let (true, Some(endpoint)) = (self.arrivals.add(arrival), &self.endpoint) {
            endpoint.need_helper();
        }
    }

    /// Lets the helper find out why the peer of an accepted stream does not ask for promotion.
    pub fn request_reason(&self, cell: &Arc<StreamCell>) {
        if self.assistants.request_reason(cell) {
            return;
        }
        self.unrequested.lock().push(cell.clone());
        if let Some(endpoint) = &self.endpoint {
            endpoint.need_helper();
        }
    }

    /// Lets the helper search for processes that hold sockets unseen.
    pub fn search_holders(&self) {
        self.search_wanted.store(true, Ordering::SeqCst);
        if let Some(endpoint) = &self.endpoint {
            endpoint.need_helper();
        }
    }

    /// Runs a piece of work in a thread of the library other than the helper. The work waits for no other thread. No
    /// fork begins meanwhile.
    pub fn work<T>(&self, action: impl FnOnce() -> T) -> T {
        self.helper.work.begin();
        let done = action();
        self.helper.work.end();
        done
    }

    /// Lets a helper thread watch the anchor of a linked stream.
    pub(crate) fn watch_anchor(&self, fd: c_int, cell: &Arc<StreamCell>) {
        self.assistants.of(cell).map_or(&self.helper.poller, |assistant| &assistant.poller).watch(fd, cell);
    }

    /// Ends all helper threads, and waits for their ends.
    pub(crate) fn end_helpers(&self) {
        self.assistants.end();
        self.helper.end();
    }
}

/// Makes a system call on a connection whose effect the peer sees in the kernel. A peer that takes bytes sent on a link
/// after this call checks the kernel first.
#[inline]
pub fn in_kernel<R>(call: impl FnOnce() -> R) -> R {
    match get().and_then(Runtime::endpoint) {
        Some(endpoint) => in_kernel_of(endpoint, call),
        None => call(),
    }
}

/// As [`in_kernel`], of a process with this endpoint.
#[inline]
pub fn in_kernel_of<R>(endpoint: &Endpoint, call: impl FnOnce() -> R) -> R {
    if !endpoint.uses_links() {
        // The first message on a link announces it together with all earlier ones: most short connections are spared that.
        let result = call();
        if endpoint.uses_links() {
            endpoint.device().announce_kernel_operations();
        }
        return result;
    }
    let begun = now();
    endpoint.device().begin_kernel_operation();
    let result = call();
    endpoint.device().end_kernel_operation(KernelOperation { begun, ended: now() });
    result
}
