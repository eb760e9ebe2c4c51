//! The first helper thread, and in most processes the only one. It runs the control path: connecting links, answering OPEN, watching
//! the anchors of linked streams for records and for their end, serving `netacc_ss`. It sleeps in one `epoll_wait` without a
//! timeout; an idle process uses no CPU.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Once};

use netacc_config::{LogLevel, UnseenIoPolicy};
use netacc_device::{Armed, Instant};
use netacc_driver::{Endpoint, StreamCell};
use netacc_proto::{Reason, Role};

use super::unwatched::Unwatched;
use super::{exit, flows, links, proofs, shortage, threads};
use crate::holders::search::Searches;
use crate::os::clock::now;
use crate::os::own::drain;
use crate::os::{log, real};
use crate::ring::foreign::{self, Verdict};
use crate::runtime::arrivals::{Arrival, GATHERING};
use crate::runtime::assistants::Done;
use crate::runtime::helper::{ASLEEP, DEVICE, PROOFS, STATS, UNWATCHED};
use crate::runtime::poller::KICK;
use crate::runtime::Runtime;
use crate::table::{self, Entry};
use crate::{anchor, queues, stats};

/// Events taken at a time.
const BATCH: usize = 64;

/// Starts the thread.
///
/// # Errors
/// The kernel or the C library has no thread left, or no memory for its stack. Then no thread has kept `rt`.
pub(super) fn spawn(rt: &'static Runtime) -> std::io::Result<()> {
    rt.helper.poller.add(rt.helper.kick_fd(), libc::EPOLLIN, KICK);
    if let Some(fd) = rt.helper.stats() {
        rt.helper.poller.add(fd, libc::EPOLLIN, STATS);
    }
    if let Some(endpoint) = rt.endpoint() {
        for fd in endpoint.cm().event_fds() {
            rt.helper.poller.add(fd, libc::EPOLLIN, DEVICE);
        }
        if let Some(fd) = endpoint.device().channel_fd(endpoint.control_cq()) {
            // Edge-triggered, so that it need not be drained.
            rt.helper.poller.add(fd, libc::EPOLLIN | libc::EPOLLET, DEVICE);
        }
    }
    threads::start(&rt.helper.work, 0, move || run(rt)).map(|thread| *rt.helper.thread.lock() = Some(thread))
}

/// The longest time for which the helper does not serve a child that waits.
const CHILD_INTERVAL_MS: u128 = 100;

fn run(rt: &'static Runtime) {
    threads::prepare(rt);
    let Some(endpoint) = rt.endpoint() else { return serve_only(rt) };
    if let Some(end) = &rt.end_with_this_thread {
        end();
    }
    let mut helper = Helper {
        rt,
        endpoint,
        searches: Searches::new(&rt.search_wanted),
        unwatched: Unwatched::new(rt, endpoint),
        kicked: false,
        child_waits_since: None,
        arrivals_at: None,
        giving_back: None,
    };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    while !rt.helper.ends.load(Ordering::SeqCst) {
        helper.turn(&mut events);
    }
}

/// The helper's state between two turns of its loop.
struct Helper<'a> {
    rt: &'static Runtime,
    endpoint: &'static Endpoint,
    searches: Searches<'a>,
    unwatched: Option<Unwatched<'a>>,
    /// The helper was kicked, perhaps by a child, which is not served yet.
    kicked: bool,
    /// Since when the helper has tried to serve it.
    child_waits_since: Option<Instant>,
    /// When the requests of crowds are served. `None`: there was none at the last turn.
    arrivals_at: Option<Instant>,
    /// Since when connections are demoted because the program is short of descriptors.
    giving_back: Option<Instant>,
}

impl Helper<'_> {
    /// Does what there is to do, sleeps until there is more, and handles what woke it.
    fn turn(&mut self, events: &mut [libc::epoll_event; BATCH]) {
        let Helper { rt, endpoint, .. } = *self;
        if let Some(verdict) = rt.helper.mappings().and_then(foreign::search) {
            react_to_rings(rt, endpoint, verdict);
        }
        let kicks = rt.helper.kicks.load(Ordering::SeqCst);
        self.serve_requests();
        let arrivals = self.serve_arrivals();
        queues::of_process().check_due(endpoint);
        let next = endpoint.progress(now());
        let on_links = links::tend(rt, endpoint);
        let search = self.searches.advance();
        let unwatched = self.unwatched.as_mut().and_then(|unwatched| unwatched.advance(now()));
        ASLEEP.store(true, Ordering::SeqCst);
        let ring_check = rt.helper.mappings().and_then(|_| foreign::next_check());
        let next = next
            .into_iter()
            .chain(arrivals)
            .chain(on_links)
            .chain(queues::of_process().next_check())
            .chain(search)
            .chain(unwatched)
            .chain(ring_check)
            .min();
        let device = endpoint.device();
        let cq = endpoint.control_cq();
        let armed = device.arm(cq);
        let mut timeout_ms = self.timeout_ms(next);
        if armed == Armed::Pending || self.has_work() {
            timeout_ms = 0;
        }
        let n = rt.helper.work.pause(|| match rt.helper.poller.epoll.load(Ordering::Relaxed) {
            -1 => {
                rt.helper.sleep(kicks, timeout_ms);
                0
            }
            // SAFETY: the array is writable.
            epoll => unsafe { real::epoll_wait(epoll, events.as_mut_ptr(), BATCH as c_int, timeout_ms) },
        });
        ASLEEP.store(false, Ordering::SeqCst);
        device.disarm(cq);
        for event in events.iter().take(n.max(0) as usize) {
            self.handle(event);
        }
        // After the anchors: a stream that a child has requested comes back with the peer's record.
        self.kicked = self.kicked && rt.serve_children();
        self.child_waits_since = self.kicked.then(|| self.child_waits_since.unwrap_or_else(now));
    }

    /// Enqueues the streams that the program's threads want promoted, for the `progress` of the same turn, and records why
    /// others are not promoted.
    fn serve_requests(&self) {
        // Not in the loop's head: the lock would be held throughout the loop.
        let promotions = std::mem::take(&mut *self.rt.promotions.lock());
        Done::add(&self.rt.helper.done.promotions, promotions.len());
        for cell in promotions {
            if let Err(reason) = self.endpoint.enqueue_promotion(&cell) {
                record_reason(&cell, reason);
            }
        }
        for cell in std::mem::take(&mut *self.rt.unrequested.lock()) {
            record_unrequested(self.rt, self.endpoint, &cell);
        }
        flows::request_wanted(self.rt, self.endpoint);
    }

    /// Serves the requests of crowds if their time has come. Returns when that is.
    fn serve_arrivals(&mut self) -> Option<Instant> {
        if self.rt.arrivals.is_empty() {
            return None;
        }
        let now = now();
        let at = *self.arrivals_at.get_or_insert(now + GATHERING);
        if now < at {
            return Some(at);
        }
        self.arrivals_at = None;
        for arrival in self.rt.arrivals.take() {
            match arrival {
                Arrival::Stream(cell) => self.enqueue_new(&cell),
                Arrival::All(service) => {
                    let streams = self.endpoint.streams().into_iter();
                    streams.filter(|cell| cell.tuple().remote == service).for_each(|cell| self.enqueue_new(&cell));
                }
            }
        }
        None
    }

    fn enqueue_new(&self, cell: &Arc<StreamCell>) {
        Done::add(&self.rt.helper.done.promotions, 1);
        self.endpoint.enqueue_new(cell);
    }

    /// How long the helper may sleep if its next task is due at `next`; -1 is for ever.
    fn timeout_ms(&mut self, next: Option<Instant>) -> c_int {
        let mut timeout = match next {
            Some(at) => at.saturating_since(now()).as_millis().min(60_000) as c_int + 1,
            None => -1,
        };
        if let Some(soon) = exit::after_last_thread(Some(self.endpoint)) {
            timeout = soon.as_millis() as c_int;
        }
        if shortage::advance(self.rt, self.endpoint, &mut self.giving_back) {
            timeout = 1;
        }
        if exit::advance(self.endpoint) {
            // The helper waits for the peers' answers on the anchors, but the peers may wait for messages on a link.
            timeout = 1;
        }
        if let Some(since) = self.child_waits_since {
            // The event that a child waits for need not be announced to this process. A child that died while it
            // waited costs little.
            let soon = (now().saturating_since(since).as_millis() / 4).clamp(1, CHILD_INTERVAL_MS) as c_int;
            timeout = if timeout < 0 { soon } else { timeout.min(soon) };
        }
        timeout
    }

    /// Whether work came after the helper had checked.
    fn has_work(&self) -> bool {
        let requested = !self.rt.promotions.lock().is_empty() || !self.rt.unrequested.lock().is_empty();
        let requested = requested || !self.rt.flows.wanted.lock().is_empty() || links::has_work(self.rt);
        let requested = requested || self.arrivals_at.is_none() && !self.rt.arrivals.is_empty();
        requested || self.endpoint.has_work() || self.searches.is_due()
    }

    fn handle(&mut self, event: &libc::epoll_event) {
        match event.u64 {
            KICK => {
                drain(self.rt.helper.kick_fd());
                self.kicked = true;
            }
            STATS => {
                if let Some(fd) = self.rt.helper.stats() {
                    stats::serve(fd, self.rt);
                }
            }
            DEVICE => {}
            PROOFS => {
                if proofs::serve(self.rt, self.endpoint) {
                    links::changed(self.rt);
                }
            }
            UNWATCHED => {
                if let Some(unwatched) = &mut self.unwatched {
                    unwatched.announced(now());
                }
            }
            key => {
                Done::add(&self.rt.helper.done.anchor_events, 1);
                if let Some(cell) = self.rt.helper.poller.stream(key) {
                    cell.anchor_event(self.endpoint, anchor::anchor_event(event.events));
                }
            }
        }
    }
}

/// The verdict on rings that the program enters by its own system calls has changed. If one of them has used sockets,
/// it could use any connection next, so streams on links begin to leave them.
#[cold]
fn react_to_rings(rt: &Runtime, endpoint: &Endpoint, verdict: Verdict) {
    let policy = rt.config.unseen_io;
    let text = match verdict {
        Verdict::Files => "the program's own io_urings have been used for files only",
        Verdict::Unknown => "the program has an io_uring of its own that has not been used yet",
        Verdict::Sockets => "the program's own io_urings have been used for sockets",
    };
    log::append(&rt.config, LogLevel::Warn, &format!("{text}: {policy}"));
    if verdict != Verdict::Sockets || policy == UnseenIoPolicy::Log {
        return;
    }
    if policy == UnseenIoPolicy::Abort {
        std::process::abort();
    }
    for cell in endpoint.streams() {
        let mut guard = cell.lock(endpoint);
        if !guard.proto().is_plain() && !guard.is_closed() {
            guard.change(|stream| {
                stream.demote(Reason::UnseenIo);
                stream.progress_anchor(false);
            });
        }
    }
}

/// Nothing can be accelerated, but `netacc_ss` may request the reason.
fn serve_only(rt: &'static Runtime) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    while !rt.helper.ends.load(Ordering::SeqCst) && !shortage::advance_without_endpoint(rt) {
        let timeout = exit::after_last_thread(None).map_or(-1, |soon| soon.as_millis() as c_int);
        let epoll = rt.helper.poller.epoll.load(Ordering::Relaxed);
        let (n, errno) = rt.helper.work.pause(|| {
            // SAFETY: one writable event.
            let n = unsafe { real::epoll_wait(epoll, &mut event, 1, timeout) };
            (n, crate::os::errno::errno())
        });
        match (n, rt.helper.stats()) {
            (0, _) => {}
            (1, Some(fd)) if event.u64 == STATS => stats::serve(fd, rt),
            (1, _) => drain(rt.helper.kick_fd()),
            _ if errno == libc::EINTR => {}
            _ => return,
        }
    }
}

/// A stream that this process has accepted, and whose peer has not asked for promotion.
pub(super) fn record_unrequested(rt: &Runtime, endpoint: &Endpoint, cell: &Arc<StreamCell>) {
    // The stream's own reason is more specific, and was counted already.
    if cell.lock(endpoint).proto().reason() != Reason::NotYet {
        return;
    }
    let reason = endpoint.obstacle(cell, Role::Acceptor);
    record_reason(cell, reason);
    if reason == Reason::LinkPortTaken {
        static LOGGED: Once = Once::new();
        let port = cell.tuple().local.port();
        LOGGED.call_once(|| {
            log::append(&rt.config, LogLevel::Warn, &format!("the port for links of TCP port {port} is taken"))
        });
    }
}

pub(super) fn record_reason(cell: &Arc<StreamCell>, reason: Reason) {
    let entry = table::get_full(cell.tag().load(Ordering::Relaxed) as c_int);
    if let Some(Entry::Stream(sock)) = entry.as_deref() {
        if sock.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, cell)) {
            sock.record_reason(reason);
        }
    }
}
