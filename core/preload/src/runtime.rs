//! The process's endpoint, made at the first socket that could use it, and the helper thread behind it.
//!
//! The helper runs the control path: connecting links, answering OPEN, watching the anchors of linked streams for
//! records and for their end, serving `netacc_ss`. It sleeps in one `epoll_wait` without a timeout; an idle process
//! uses no CPU. It blocks all signals, so the program's handlers run in the program's threads.
//!
//! Descriptors that the library keeps are moved to high numbers, because programs expect the lowest free one.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_config::{Config, Expiry, Problem, UnseenIoPolicy};
use netacc_device::{Armed, Instant, KernelOperation};
use netacc_driver::{Endpoint, EndpointConfig, Readiness, ReadySink, StreamCell, STALL_PATIENCE};
use netacc_proto::{CacheConfig, PreSharedKey, Reason};
use netacc_registry::{BackendFds, GiveBack};
use parking_lot::Mutex;

use crate::answers::Services;
use crate::os::clock::now;
use crate::os::inside::{is_inside, Inside};
use crate::os::log;
use crate::os::own;
use crate::os::real;
use crate::ring::foreign::{self, Verdict};
use crate::table::{self, Entry, NO_FD};
use crate::{queues, stats, wait};

pub mod environment;
mod exit;
mod fork;
mod helper;
pub mod shortage;

use crate::os::limits;
use crate::settling;
pub use exit::{end, leave, stay, thread_exits};
pub use fork::{after_fork_child, after_fork_parent, before_fork, Inherited};

/// Everything of this process. Lives until exit once made.
pub struct Runtime {
    /// Streams and links; `None` when nothing can be accelerated.
    endpoint: Option<Endpoint>,
    /// The configuration in force.
    pub config: Config,
    /// What was wrong with it.
    pub problems: Vec<Problem>,
    /// The device's name; `none` without one.
    pub backend: String,
    /// Lists the descriptors that the backend keeps open.
    backend_fds: Option<Arc<dyn Fn() -> BackendFds + Send + Sync>>,
    end_with_this_thread: Option<Arc<dyn Fn() + Send + Sync>>,
    leave_backend: Option<Arc<dyn Fn() + Send + Sync>>,
    give_back_of_backend: Option<Arc<dyn Fn(GiveBack) -> usize + Send + Sync>>,
    /// Why nothing is accelerated; empty if something may be.
    pub refused: String,
    /// The same as a reason; `Reason::None` with an endpoint.
    pub refused_for: Reason,
    /// Waiting policy.
    pub spin: wait::SpinPolicy,
    /// Streams whose promotion is to be tried.
    promotions: Mutex<Vec<Arc<StreamCell>>>,
    /// Accepted streams for which nobody has asked: the helper finds out why.
    unasked: Mutex<Vec<Arc<StreamCell>>>,
    /// How long those take to answer that this process has connected to.
    pub(crate) services: Services,
    helper: helper::Helper,
    /// Used as long as there is no endpoint, which has its own.
    counters: netacc_driver::Counters,
    /// Some connection wants a search for processes that hold its socket unseen.
    search_wanted: AtomicBool,
    fork: fork::Shared,
    /// The process that it belongs to.
    pid: u32,
}

/// What a runtime keeps of its backend, besides the endpoint.
struct Backend {
    name: String,
    fds: Arc<dyn Fn() -> BackendFds + Send + Sync>,
    /// Descriptors come and go, with any numbers.
    opens_later: bool,
    /// For the helper, which ends when the process does.
    end_with_this_thread: Arc<dyn Fn() + Send + Sync>,
    leave: Arc<dyn Fn() + Send + Sync>,
    give_back: Arc<dyn Fn(GiveBack) -> usize + Send + Sync>,
}

static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());

/// Held while the runtime is made. A forked child has a new one: a thread of its parent that was making one, and does not
/// exist in the child, would hold the old one for ever.
static STARTING: AtomicPtr<Mutex<()>> = AtomicPtr::new((&raw const FIRST_STARTING).cast_mut());
static FIRST_STARTING: Mutex<()> = Mutex::new(());

fn starting() -> &'static Mutex<()> {
    // SAFETY: a static, or a leaked box.
    unsafe { &*STARTING.load(Ordering::Acquire) }
}

/// The runtime, if it has been made.
#[inline]
pub fn get() -> Option<&'static Runtime> {
    // SAFETY: set once per process to a leaked box; after fork the child forgets it without freeing.
    unsafe { RUNTIME.load(Ordering::Acquire).as_ref() }
}

/// The runtime, made now if need be.
pub fn start() -> &'static Runtime {
    if let Some(rt) = get() {
        return rt;
    }
    let _one = starting().lock();
    if let Some(rt) = get() {
        return rt;
    }
    let errno = crate::os::errno::errno();
    let inside = Inside::enter();
    // Before any thread needs them.
    queues::of_process();
    let made = Box::into_raw(Box::new(Runtime::new()));
    // SAFETY: never freed.
    let rt = unsafe { &*made };
    if let Err(error) = if rt.helper.has_descriptors() { helper::spawn(rt) } else { Ok(()) } {
        // SAFETY: there is no helper, so nobody else has a reference.
        unsafe { &mut *made }.go_without_helper(&error);
    }
    RUNTIME.store(made, Ordering::Release);
    drop(inside);
    crate::os::errno::set_errno(errno);
    rt
}

/// New connections stay in the kernel: see [`keep_on_kernel`].
static KEPT_ON_KERNEL: AtomicBool = AtomicBool::new(false);

/// Every connection that is made from now on stays on TCP for good: the program has ways to use it that are not seen.
pub fn keep_on_kernel() {
    KEPT_ON_KERNEL.store(true, Ordering::Relaxed);
}

/// Whether [`keep_on_kernel`] was called.
pub fn is_kept_on_kernel() -> bool {
    KEPT_ON_KERNEL.load(Ordering::Relaxed)
}

/// Whether `fd` is one that the library keeps for itself.
#[inline]
pub fn is_helper_fd(fd: c_int) -> bool {
    own::may_be_own(fd) && !is_inside() && is_own(fd)
}

#[cold]
fn is_own(fd: c_int) -> bool {
    fork::ways_to_parents().any(|kept| kept == fd)
        || own::is_listed(fd)
        || get().is_some_and(|rt| rt.device_fds().contains(&fd))
}

/// All descriptors that the library keeps for itself.
pub fn protected_fds() -> Vec<c_int> {
    let mut fds: Vec<c_int> = fork::ways_to_parents().collect();
    fds.extend(own::list());
    if let Some(rt) = get() {
        fds.extend(rt.device_fds());
    }
    fds
}

impl Runtime {
    fn new() -> Runtime {
        let (config, problems) = Config::load();
        report(&config, &problems);
        let short = shortage::is_short();
        let helper = if short { helper::Helper::none() } else { helper::Helper::new() };
        let mut rt = Runtime {
            endpoint: None,
            spin: wait::SpinPolicy::new(config.io.poll),
            services: Services::new(&config.promotion),
            config,
            problems,
            backend: "none".into(),
            backend_fds: None,
            end_with_this_thread: None,
            leave_backend: None,
            give_back_of_backend: None,
            refused: String::new(),
            refused_for: Reason::None,
            promotions: Mutex::default(),
            unasked: Mutex::default(),
            helper,
            counters: netacc_driver::Counters::default(),
            search_wanted: AtomicBool::new(false),
            fork: fork::Shared::new(),
            pid: std::process::id(),
        };
        if short {
            rt.refuse(Reason::DescriptorLimit, "the process may open too few descriptors (RLIMIT_NOFILE)".into());
            return rt;
        }
        shortage::look_from(limits::soft_limit());
        match rt.open_endpoint() {
            Ok((endpoint, backend)) => {
                rt.endpoint = Some(endpoint);
                rt.backend = backend.name;
                // Others that it opens get higher numbers than its first, or any.
                let first = (backend.fds)().own.into_iter().min().unwrap_or(c_int::MAX);
                own::lower_floor(if backend.opens_later { 3 } else { first });
                rt.backend_fds = Some(backend.fds);
                rt.end_with_this_thread = Some(backend.end_with_this_thread);
                rt.leave_backend = Some(backend.leave);
                rt.give_back_of_backend = Some(backend.give_back);
            }
            Err((reason, text)) => rt.refuse(reason, text),
        }
        rt
    }

    /// Nothing is accelerated, because nobody would run the control path.
    fn go_without_helper(&mut self, error: &std::io::Error) {
        self.endpoint = None;
        self.backend = "none".into();
        // With these the backend is closed.
        self.backend_fds = None;
        self.end_with_this_thread = None;
        self.leave_backend = None;
        self.give_back_of_backend = None;
        self.helper.give_back();
        self.refuse(Reason::ThreadLimit, format!("the helper thread cannot be started: {error}"));
    }

    fn refuse(&mut self, reason: Reason, text: String) {
        self.counters.reason(reason);
        log::append(&self.config, &format!("staying on TCP: {text}"));
        self.refused = text;
        self.refused_for = reason;
    }

    fn open_endpoint(&self) -> Result<(Endpoint, Backend), (Reason, String)> {
        let c = &self.config;
        if !c.acceleration_allowed() {
            return Err((Reason::Disabled, "the configuration asks for it".into()));
        }
        let key = self.key().map_err(|text| (Reason::KeyMissing, text))?;
        let opened = netacc_registry::open(c).map_err(|e| (reason_of(&e), e.to_string()))?;
        let cache = CacheConfig {
            expire: match c.links.empty_expiry {
                Expiry::Never => None,
                Expiry::After(d) => Some(d),
            },
            max_all: c.links.empty_max,
            max_per: c.links.empty_max_per_peer,
        };
        let settings = EndpointConfig {
            ring_len: c.memory.ring_bytes as u32,
            message_len: c.memory.msg_bytes.min(c.memory.ring_bytes / 2) as u32,
            streams_per_link: c.links.streams_per_link.min(u32::from(u16::MAX)) as u16,
            // As many as the device has.
            receive_depth: u32::MAX,
            cache,
            trust_hints: true,
            key,
            stall_patience: Some(STALL_PATIENCE),
        };
        let wake = Box::new(|| {
            if let Some(rt) = get().filter(|_| HELPER_ASLEEP.swap(false, Ordering::SeqCst)) {
                rt.helper.kick();
            }
        });
        let endpoint =
            Endpoint::new(opened.device, opened.cm, opened.directory, settings, Arc::new(Sink), wake, Box::new(nonce))
                .map_err(|e| (reason_of(&e), e.to_string()))?;
        let netacc_registry::Opened { name, fds, opens_later, end_with_this_thread, leave, give_back, .. } = opened;
        Ok((endpoint, Backend { name, fds, opens_later, end_with_this_thread, leave, give_back }))
    }

    /// The pre-shared key, if one is wanted.
    fn key(&self) -> Result<Option<PreSharedKey>, String> {
        let Some(path) = &self.config.links.key_file else { return Ok(None) };
        // SAFETY: no pointers.
        let secret = netacc_config::read_secret(path, unsafe { libc::geteuid() });
        let key = secret.map_err(|error| error.to_string());
        let key = key.and_then(|bytes| PreSharedKey::new(&bytes).ok_or_else(|| "too short".to_owned()));
        key.map(Some).map_err(|error| format!("NACC_PSK_FILE {}: {error}", path.display()))
    }

    /// Whether it was made by the process with this number.
    pub fn belongs_to(&self, pid: u32) -> bool {
        self.pid == pid
    }

    /// Streams and links.
    #[inline]
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    fn backend_fds(&self) -> BackendFds {
        self.backend_fds.as_ref().map_or_else(BackendFds::default, |fds| fds())
    }

    fn device_fds(&self) -> Vec<c_int> {
        let BackendFds { mut own, libraries } = self.backend_fds();
        own.extend(libraries);
        own
    }

    /// Counts why a connection without a stream stays on TCP.
    pub fn count_reason(&self, reason: Reason) {
        self.counters().reason(reason);
    }

    /// Counters of the process: the endpoint's, or those kept without one.
    pub fn counters(&self) -> &netacc_driver::Counters {
        self.endpoint.as_ref().map_or(&self.counters, Endpoint::counters)
    }

    /// Asks the helper to promote a stream.
    pub fn request_promotion(&self, cell: &Arc<StreamCell>) {
        self.promotions.lock().push(cell.clone());
        if let Some(endpoint) = &self.endpoint {
            endpoint.need_helper();
        }
    }

    /// Asks the helper why nobody asks for an accepted stream.
    pub fn request_reason(&self, cell: &Arc<StreamCell>) {
        self.unasked.lock().push(cell.clone());
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

    /// Ends the helper thread, and with it everything that is answered to other processes.
    pub fn end_helper(&self) {
        self.helper.end();
        stats::await_answers();
    }

    /// Does what a thread of the library, other than the helper, does without waiting for anybody. No fork begins meanwhile.
    pub fn work<T>(&self, action: impl FnOnce() -> T) -> T {
        self.helper.work.begin();
        let done = action();
        self.helper.work.end();
        done
    }

    /// Lets the helper watch the anchor of a linked stream.
    fn watch_anchor(&self, fd: c_int, cell: &Arc<StreamCell>) {
        self.helper.watch(fd, cell);
    }
}

/// True while the helper sleeps, or is about to: whoever swaps it to false must kick it.
static HELPER_ASLEEP: AtomicBool = AtomicBool::new(false);

/// The library's answer to changes of streams.
struct Sink;

impl ReadySink for Sink {
    #[inline]
    fn ready(&self, stream: &Arc<StreamCell>, now: Readiness, arrived: bool) {
        if stream.is_shared() && now.contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
            // A child may be waiting for it.
            if let Some(endpoint) = get().and_then(Runtime::endpoint) {
                endpoint.need_helper();
            }
        }
        if stream.sleepers() > 0 {
            settling::wake_sleepers(stream);
        }
        let fd = stream.tag().load(Ordering::Relaxed);
        if fd == NO_FD {
            return;
        }
        let Some(guard) = table::get(fd as c_int) else { return };
        if let Some(Entry::Stream(sock)) = guard.as_deref() {
            if sock.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, stream)) {
                if now.contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
                    sock.note_return(stream);
                }
                for watcher in sock.watchers.lock().iter() {
                    watcher.ready(now, arrived);
                }
            }
        }
    }

    fn holds_alone(&self, stream: &Arc<StreamCell>) -> bool {
        let fd = stream.tag().load(Ordering::Relaxed);
        if fd == NO_FD {
            return false;
        }
        match table::get_full(fd as c_int).as_deref() {
            Some(Entry::Stream(sock)) if sock.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, stream)) => {
                let alone = sock.holds_alone();
                if !alone {
                    sock.search_holders();
                }
                alone
            }
            _ => false,
        }
    }

    fn unseen_io(&self, stream: &Arc<StreamCell>) -> bool {
        let (Some(rt), fd) = (get(), stream.tag().load(Ordering::Relaxed)) else { return false };
        let policy = rt.config.unseen_io;
        log::append(&rt.config, &format!("bytes of descriptor {fd} were moved by calls that were not seen: {policy}"));
        match policy {
            UnseenIoPolicy::Log => return true,
            UnseenIoPolicy::Abort => std::process::abort(),
            _ => stream.pin(),
        }
        if let Some(Entry::Stream(sock)) = table::get_full(fd as c_int).as_deref() {
            if policy == UnseenIoPolicy::Error && sock.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, stream)) {
                sock.deferred_error.store(libc::EIO, Ordering::Relaxed);
            }
        }
        false
    }

    fn may_promote(&self) -> Result<(), Reason> {
        let allowed =
            foreign::verdict() == Verdict::Files || get().is_none_or(|rt| rt.config.unseen_io == UnseenIoPolicy::Log);
        allowed.then_some(()).ok_or(Reason::UnseenIo)
    }

    fn moved(&self, stream: &Arc<StreamCell>) {
        let (Some(rt), fd) = (get(), stream.tag().load(Ordering::Relaxed)) else { return };
        let Some(endpoint) = rt.endpoint() else { return };
        if fd == NO_FD {
            return;
        }
        let (link, plain) = {
            let guard = stream.lock(endpoint);
            (guard.link().cloned(), guard.proto().is_plain())
        };
        if !plain && !stream.is_opening() {
            rt.watch_anchor(fd as c_int, stream);
        }
        if let Some(link) = link {
            queues::settle(endpoint, &link, stream);
        }
    }
}

/// Why a backend could not be opened: a limit of the process, if the kernel says so.
fn reason_of(error: &(dyn std::error::Error + 'static)) -> Reason {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let errno = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>()).find_map(|e| e.raw_os_error());
    match errno {
        Some(libc::EFBIG | libc::ENOMEM) => Reason::MemoryLimit,
        Some(libc::EMFILE | libc::ENFILE) => Reason::DescriptorLimit,
        _ => Reason::NoBackend,
    }
}

/// Makes a system call on a connection of which its peer learns from the kernel. Whoever takes what is sent on a link later
/// looks at the kernel first.
#[inline]
pub fn in_kernel<R>(call: impl FnOnce() -> R) -> R {
    let Some(endpoint) = get().and_then(Runtime::endpoint) else { return call() };
    let begun = now();
    endpoint.device().begin_kernel_operation();
    let result = call();
    endpoint.device().end_kernel_operation(KernelOperation { begun, ended: now() });
    result
}

fn nonce() -> [u8; 16] {
    let mut bytes = [0; 16];
    // SAFETY: sixteen writable bytes. Without entropy (cannot happen after boot) the peer would refuse nothing, so
    // the fallback is the clock: the nonce then still tells attempts apart.
    if unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 16, 0) } != 16 {
        bytes[..8].copy_from_slice(&now().as_nanos().to_le_bytes());
    }
    bytes
}

/// One line for each problem: in the log, and on standard error unless `netacc_run` has printed them already.
fn report(config: &Config, problems: &[Problem]) {
    let told = std::env::var_os("NETACC_TOLD").is_some();
    for problem in problems {
        let line = format!("netacc: {problem}\n");
        if !told {
            // SAFETY: the bytes are readable.
            unsafe { real::write(2, line.as_ptr().cast(), line.len()) };
        }
        log::append(config, line.trim_end());
    }
}
