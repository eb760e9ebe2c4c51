//! The helper thread.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Weak;

use super::*;

/// Kick eventfd of the helper, its epoll, the `netacc_ss` listener.
pub(super) struct Helper {
    epoll: c_int,
    kick: c_int,
    stats: Option<c_int>,
    anchors: Mutex<HashMap<u64, Weak<StreamCell>>>,
    next: std::sync::atomic::AtomicU64,
}

const KICK: u64 = 0;
const STATS: u64 = 1;
const DEVICE: u64 = 2;
const FIRST_ANCHOR: u64 = 16;
/// Events taken at a time.
const BATCH: usize = 64;

impl Helper {
    pub(super) fn new() -> Helper {
        // SAFETY: no pointers.
        let low = unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) };
        let epoll = duplicate_high(low).unwrap_or(low);
        if epoll != low {
            // SAFETY: just created.
            unsafe { real::close(low) };
        }
        Helper {
            epoll,
            kick: new_eventfd().unwrap_or(-1),
            stats: stats::listen(),
            anchors: Mutex::default(),
            next: std::sync::atomic::AtomicU64::new(FIRST_ANCHOR),
        }
    }

    pub(super) fn kick_fd(&self) -> c_int {
        self.kick
    }

    pub(super) fn fds(&self) -> Vec<c_int> {
        [Some(self.epoll), Some(self.kick), self.stats].into_iter().flatten().collect()
    }

    fn add(&self, fd: c_int, events: c_int, data: u64) -> bool {
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: the event is readable.
        unsafe { real::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, fd, &mut event) == 0 }
    }

    /// Watches an anchor for records and for its end. The registration goes with the descriptor.
    pub(super) fn watch(&self, fd: c_int, cell: &Arc<StreamCell>) {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let mut anchors = self.anchors.lock();
        if anchors.len() > 64 && anchors.len().is_power_of_two() {
            anchors.retain(|_, cell| cell.strong_count() > 0);
        }
        anchors.insert(key, Arc::downgrade(cell));
        drop(anchors);
        let events = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
        if !self.add(fd, events, key) {
            let mut event = libc::epoll_event { events: events as u32, u64: key };
            // SAFETY: the event is readable.
            unsafe { real::epoll_ctl(self.epoll, libc::EPOLL_CTL_MOD, fd, &mut event) };
        }
    }
}

/// Starts the thread, with every signal blocked.
pub(super) fn spawn(rt: &'static Runtime) {
    let Some(endpoint) = rt.endpoint() else { return };
    rt.helper.add(rt.helper.kick, libc::EPOLLIN, KICK);
    if let Some(fd) = rt.helper.stats {
        rt.helper.add(fd, libc::EPOLLIN, STATS);
    }
    for fd in endpoint.cm().event_fds() {
        rt.helper.add(fd, libc::EPOLLIN, DEVICE);
    }
    if let Some(fd) = endpoint.device().channel_fd(endpoint.control_cq()) {
        rt.helper.add(fd, libc::EPOLLIN, DEVICE);
    }
    // SAFETY: both sets are initialised by the calls; the mask is restored.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let spawned = std::thread::Builder::new().name("netacc".into()).stack_size(256 << 10).spawn(move || run(rt));
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        if let Err(e) = spawned {
            log(&rt.config, &format!("cannot start the helper thread: {e}"));
        }
    }
}

fn run(rt: &'static Runtime) {
    INSIDE.set(true);
    let Some(endpoint) = rt.endpoint() else { return };
    let device = endpoint.device();
    let cq = endpoint.control_cq();
    let mut events: [libc::epoll_event; BATCH] = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    loop {
        // Not in the loop's head: the lock would be held throughout the loop.
        let promotions = std::mem::take(&mut *rt.promotions.lock());
        for cell in promotions {
            if let Err(reason) = endpoint.promote(&cell) {
                endpoint.counters().reason(reason);
            }
        }
        let next = endpoint.progress(now());
        HELPER_ASLEEP.store(true, Ordering::SeqCst);
        let armed = device.arm(cq);
        let mut timeout = match next {
            Some(at) => at.saturating_since(now()).as_millis().min(60_000) as c_int + 1,
            None => -1,
        };
        if armed == Armed::Pending || !rt.promotions.lock().is_empty() || endpoint.has_work() {
            timeout = 0;
        }
        // SAFETY: the array is writable.
        let n = unsafe { real::epoll_wait(rt.helper.epoll, events.as_mut_ptr(), BATCH as c_int, timeout) };
        HELPER_ASLEEP.store(false, Ordering::SeqCst);
        device.disarm(cq);
        for event in events.iter().take(n.max(0) as usize) {
            match event.u64 {
                KICK => {
                    drain(rt.helper.kick);
                    rt.serve_children();
                }
                STATS => {
                    if let Some(fd) = rt.helper.stats {
                        stats::serve(fd, rt);
                    }
                }
                DEVICE => {}
                key => anchor_event(rt, endpoint, key),
            }
        }
    }
}

fn anchor_event(rt: &Runtime, endpoint: &Endpoint, key: u64) {
    let cell = rt.helper.anchors.lock().get(&key).cloned();
    let Some(cell) = cell.and_then(|c| c.upgrade()) else {
        rt.helper.anchors.lock().remove(&key);
        return;
    };
    // What came by the link before the anchor moved must be seen first: a FIN, above all.
    let link = cell.lock(endpoint).link().cloned();
    if let Some(link) = link {
        endpoint.poll_link(&link);
    }
    let mut guard = cell.lock(endpoint);
    let plain = guard.proto().is_plain();
    if !plain {
        guard.progress_anchor(false);
    }
}
