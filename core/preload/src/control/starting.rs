//! Making the runtime, at the first socket that could use it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::Arc;

use netacc_config::{Config, Expiry, LogLevel, Problem};
use netacc_driver::{Endpoint, EndpointConfig, Sharing, IDLE_AFTER, STALL_PATIENCE};
use netacc_proto::{CacheConfig, Nonce, PreSharedKey, Reason};
use netacc_registry::{BackendFds, GiveBack};
use parking_lot::Mutex;

use super::sink::Sink;
use super::{assistant, helper, shortage};
use crate::answers::Services;
use crate::asking::Asking;
use crate::crowds::Crowds;
use crate::datagram::Flows;
use crate::lifetimes::Lifetimes;
use crate::os::clock::now;
use crate::os::errno::{errno, set_errno};
use crate::os::inside::Inside;
use crate::os::{kept, limits, log, own, real};
use crate::ring::foreign;
use crate::runtime::arrivals::Arrivals;
use crate::runtime::assistants::Assistants;
use crate::runtime::helper::{Helper, ASLEEP};
use crate::runtime::inherited::Requests;
use crate::runtime::{get, publish, Runtime};
use crate::spin::SpinPolicy;
use crate::{queues, stats};

/// The parts of a backend that a runtime keeps, besides the endpoint.
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

/// Held while the runtime is made. A forked child has a new one: a thread of its parent that was making one, and does not
/// exist in the child, would hold the old one for ever.
static STARTING: AtomicPtr<Mutex<()>> = AtomicPtr::new((&raw const FIRST_STARTING).cast_mut());
static FIRST_STARTING: Mutex<()> = Mutex::new(());

pub(super) fn starting() -> &'static Mutex<()> {
    // SAFETY: a static, or a leaked box.
    unsafe { &*STARTING.load(Ordering::Acquire) }
}

/// In a forked child: a thread of its parent may hold the lock.
pub(super) fn after_fork_child() {
    let former = STARTING.swap(Box::into_raw(Box::default()), Ordering::AcqRel);
    if former != (&raw const FIRST_STARTING).cast_mut() {
        kept::keep(former);
    }
}

/// The runtime. Makes it if there is none yet.
pub fn start() -> &'static Runtime {
    if let Some(rt) = get() {
        return rt;
    }
    let _one = starting().lock();
    if let Some(rt) = get() {
        return rt;
    }
    let errno = errno();
    let inside = Inside::enter();
    // Before any thread needs them.
    queues::of_process();
    let made = Box::into_raw(Box::new(make()));
    // SAFETY: never freed.
    let rt = unsafe { &*made };
    if let Err(error) = if rt.helper.has_descriptors() { helper::spawn(rt) } else { Ok(()) } {
        // SAFETY: there is no helper, so no other thread has a reference.
        go_without_helper(unsafe { &mut *made }, &error);
    }
    assistant::spawn(rt);
    publish(rt);
    drop(inside);
    set_errno(errno);
    rt
}

/// A runtime, whose helper does not run yet.
fn make() -> Runtime {
    let (config, problems) = Config::load();
    report(&config, &problems);
    let short = shortage::is_short();
    let helper = if short { Helper::none() } else { Helper::new(stats::listen(), foreign::open_mappings()) };
    let mut rt = Runtime {
        endpoint: None,
        spin: SpinPolicy::new(config.io.poll),
        ended_epoll_waits: AtomicU64::new(0),
        services: Services::new(&config.promotion),
        lifetimes: Lifetimes::default(),
        asking: Asking::default(),
        served: Lifetimes::default(),
        crowds: Crowds::default(),
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
        arrivals: Arrivals::default(),
        unrequested: Mutex::default(),
        helper,
        assistants: Assistants::default(),
        counters: netacc_driver::Counters::default(),
        search_wanted: AtomicBool::new(false),
        child_requests: Requests::new(),
        flows: Flows::default(),
        pid: std::process::id(),
    };
    if short {
        refuse(&mut rt, Reason::DescriptorLimit, "the process may open too few descriptors (RLIMIT_NOFILE)".into());
        return rt;
    }
    shortage::watch_from(limits::soft_limit());
    match open_endpoint(&rt.config) {
        Ok((endpoint, backend)) => {
            rt.endpoint = Some(endpoint);
            rt.backend = backend.name;
            log::append(
                &rt.config,
                LogLevel::Debug,
                &format!("connections may get links by the backend {}", rt.backend),
            );
            // Others that it opens get higher numbers than its first, or any.
            let first = (backend.fds)().own.into_iter().min().unwrap_or(c_int::MAX);
            own::lower_floor(if backend.opens_later { 3 } else { first });
            rt.backend_fds = Some(backend.fds);
            rt.end_with_this_thread = Some(backend.end_with_this_thread);
            rt.leave_backend = Some(backend.leave);
            rt.give_back_of_backend = Some(backend.give_back);
            rt.assistants = assistant::make(&rt);
        }
        Err((reason, text)) => refuse(&mut rt, reason, text),
    }
    rt
}

/// Nothing is accelerated, because no thread would run the control path.
fn go_without_helper(rt: &mut Runtime, error: &std::io::Error) {
    rt.endpoint = None;
    rt.backend = "none".into();
    // With these the backend is closed.
    rt.backend_fds = None;
    rt.end_with_this_thread = None;
    rt.leave_backend = None;
    rt.give_back_of_backend = None;
    rt.helper.give_back();
    refuse(rt, Reason::ThreadLimit, format!("the helper thread cannot be started: {error}"));
}

fn refuse(rt: &mut Runtime, reason: Reason, text: String) {
    rt.counters.reason(reason);
    log::append(&rt.config, LogLevel::Warn, &format!("staying on TCP: {text}"));
    rt.refused = text;
    rt.refused_for = reason;
}

fn open_endpoint(c: &Config) -> Result<(Endpoint, Backend), (Reason, String)> {
    if !c.acceleration_allowed() {
        return Err((Reason::Disabled, "the configuration switches acceleration off".into()));
    }
    let key = key(c).map_err(|text| (Reason::KeyMissing, text))?;
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
        sharing: Sharing::from_setting(c.links.streams_per_link.min(u32::from(u16::MAX)) as u16),
        // As many as the device has.
        receive_depth: u32::MAX,
        cache,
        trust_hints: true,
        key,
        stall_patience: Some(STALL_PATIENCE),
        idle_after: IDLE_AFTER,
    };
    let wake = Box::new(|| {
        if let Some(rt) = get().filter(|_| ASLEEP.swap(false, Ordering::SeqCst)) {
            rt.helper.kick();
        }
    });
    let endpoint = Endpoint::new(opened.device, opened.cm, opened.directory, settings, Arc::new(Sink), wake, nonces())
        .map_err(|e| (reason_of(&e), e.to_string()))?;
    let netacc_registry::Opened { name, fds, opens_later, end_with_this_thread, leave, give_back, .. } = opened;
    Ok((endpoint, Backend { name, fds, opens_later, end_with_this_thread, leave, give_back }))
}

/// The pre-shared key, if one is wanted.
fn key(config: &Config) -> Result<Option<PreSharedKey>, String> {
    let Some(path) = &config.links.key_file else { return Ok(None) };
    // SAFETY: no pointers.
    let secret = netacc_config::read_secret(path, unsafe { libc::geteuid() });
    let key = secret.map_err(|error| error.to_string());
    let key = key.and_then(|bytes| PreSharedKey::new(&bytes).ok_or_else(|| "too short".to_owned()));
    key.map(Some).map_err(|error| format!("NACC_PSK_FILE {}: {error}", path.display()))
}

/// The reason why a backend could not be opened: a limit of the process, if the kernel reports one.
fn reason_of(error: &(dyn std::error::Error + 'static)) -> Reason {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let errno = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>()).find_map(|e| e.raw_os_error());
    match errno {
        Some(libc::EFBIG | libc::ENOMEM) => Reason::MemoryLimit,
        Some(libc::EMFILE | libc::ENFILE) => Reason::DescriptorLimit,
        _ => Reason::NoBackend,
    }
}

/// Nonces of one system call. Arbitrary: the kernel returns so many bytes in one piece, whatever signals come.
const NONCES: usize = 256 / size_of::<Nonce>();

/// Nonces of this process: a forked child makes a runtime of its own.
fn nonces() -> Box<dyn Fn() -> Nonce + Send + Sync> {
    let left = Mutex::new(Vec::new());
    Box::new(move || {
        let mut left = left.lock();
        left.pop().unwrap_or_else(|| {
            left.extend(random());
            left.pop().unwrap_or_default()
        })
    })
}

fn random() -> [Nonce; NONCES] {
    let mut bytes = [Nonce::default(); NONCES];
    let len = size_of_val(&bytes);
    // SAFETY: so many writable bytes. Without entropy (cannot happen after boot) the peer would refuse nothing, so
    // the fallback is the clock: the nonces of different attempts still differ.
    if unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), len, 0) } != len as isize {
        let now = now().as_nanos();
        for (nonce, at) in bytes.iter_mut().zip(now..) {
            nonce[..8].copy_from_slice(&at.to_le_bytes());
        }
    }
    bytes
}

/// One line for each problem: in the log, and on standard error unless `netacc_run` has printed them already.
fn report(config: &Config, problems: &[Problem]) {
    let reported = std::env::var_os("NETACC_TOLD").is_some();
    for problem in problems {
        let line = format!("netacc: {problem}\n");
        if !reported {
            // SAFETY: the bytes are readable.
            unsafe { real::write(2, line.as_ptr().cast(), line.len()) };
        }
        if reported || config.log.path.is_some() {
            log::append(config, LogLevel::Warn, line.trim_end());
        }
    }
}
