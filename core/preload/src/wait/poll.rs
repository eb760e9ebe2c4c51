//! `poll` on several descriptors, ours and others.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use libc::pollfd;
use netacc_device::{Armed, CompletionQueueId, Instant, KernelOperation};
use netacc_driver::{Endpoint, LinkCell, Readiness, StreamCell};

use super::sleeper::{Registered, StreamWait, Waiter};
use super::slots::{self, Slot};
use super::{arm, disarm, Limit, Waited, WITHOUT_EVENTFD};
use crate::anchor::anchor_event;
use crate::datagram::{Datagram, KERNEL_LOOKS};
use crate::os::asleep::Asleep;
use crate::os::clock::{now, timespec};
use crate::os::errno::{errno, set_errno};
use crate::os::{real, uses};
use crate::runtime::{self, Runtime};
use crate::socket::Socket;
use crate::spin::Waiting;
use crate::switching;
use crate::table::{self, Entry};
use crate::watchers::{self, Registration, Sleeper};
use crate::{batch, queues, trace};

/// The result of `poll` for an epoll instance that has events, and for a socket that has datagrams.
const INSTANCE_READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;

const BOTH_KERNEL: Readiness = Readiness::KERNEL_RX.union(Readiness::KERNEL_TX);

/// Whether any of the descriptors is a stream of ours on a link, or an epoll instance that may watch one. Makes
/// inherited connections of a child plain sockets, because the kernel does not see a link that its parent has.
pub fn any_ours(fds: &[pollfd]) -> bool {
    fds.iter().fold(false, |ours, p| match table::get(p.fd).as_deref().map(|entry| &**entry) {
        Some(Entry::Stream(sock)) => {
            sock.reclaim();
            ours | sock.stream.is_some()
        }
        Some(Entry::Datagram(socket)) => ours | socket.is_linked(),
        // Also one that watches none: another thread may add one meanwhile.
        Some(Entry::Epoll(epoll)) => epoll.observe_by_poll() | ours,
        _ => ours,
    })
}

/// The call for which descriptors are polled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// `poll` or `ppoll`: the kernel refuses more descriptors than RLIMIT_NOFILE.
    Poll,
    /// One that is not.
    Another,
}

/// `poll` and `ppoll` on a mix of our descriptors and others; other waiting calls use it too.
pub fn poll(call: Call, fds: &mut [pollfd], timeout: Option<Duration>, mask: *const libc::sigset_t) -> c_int {
    let Some(rt) = runtime::get().filter(|_| !uses::is_over() || fds.iter().any(is_ours_to_report)) else {
        return kernel_poll(call, fds, timeout, mask);
    };
    let Some(endpoint) = rt.endpoint() else {
        return kernel_poll(call, fds, timeout, mask);
    };
    batch::end(endpoint);
    let _waits = trace::waits();
    let begun = now();
    let deadline = timeout.and_then(|t| {
        begun.as_nanos().checked_add(t.as_nanos().min(u128::from(u64::MAX)) as u64).map(Instant::from_nanos)
    });
    let entries: Vec<Option<Arc<Entry>>> = fds.iter().map(|p| table::get_full(p.fd)).collect();
    if let Some(n) = poll_datagrams(call, (rt, fds, &entries), deadline, mask) {
        return n;
    }
    if timeout == Some(Duration::ZERO) {
        await_switches(endpoint, fds, &entries);
    }
    let mut waiting = entries.iter().any(has_link).then(|| rt.spin.begin(begun));
    let mut spun = false;
    loop {
        let mut ready = poll_once(call, endpoint, fds, &entries);
        if ready == 0 {
            if deadline.is_some_and(|d| now() >= d) {
                return 0;
            }
            let spins = waiting.as_mut().filter(|_| !std::mem::replace(&mut spun, true));
            if spins.is_some_and(|waiting| spin(waiting, endpoint, (fds, &entries), deadline)) {
                continue;
            }
            ready = match OnlyStream::of(endpoint, fds, &entries, mask) {
                Some(only) => only.sleep(rt, endpoint, deadline),
                None => sleep(endpoint, fds, &entries, deadline, mask),
            };
        }
        if ready != 0 {
            if let Some(waiting) = waiting.filter(|_| ready > 0) {
                waiting.end(ready as usize);
            }
            return ready;
        }
    }
}

/// Whether a thread can see without a system call that the descriptor becomes ready: other waits are not worth a spin.
fn has_link(entry: &Option<Arc<Entry>>) -> bool {
    match entry.as_deref() {
        Some(Entry::Stream(sock)) => sock.stream.as_ref().is_some_and(|cell| !cell.readiness().contains(BOTH_KERNEL)),
        Some(Entry::Datagram(socket)) => socket.is_linked(),
        Some(Entry::Epoll(_)) => true,
        Some(Entry::Idle(_) | Entry::Ring(_)) | None => false,
    }
}

/// Spins until a link may have something. Whether that was so.
fn spin(
    waiting: &mut Waiting<'_>,
    endpoint: &Endpoint,
    (fds, entries): (&[pollfd], &[Option<Arc<Entry>>]),
    deadline: Option<Instant>,
) -> bool {
    waiting.spin(deadline, || {
        poll_links(endpoint, entries);
        fds.iter().zip(entries).any(|(p, e)| link_events(p.events, e) != 0)
    })
}

/// Polls datagram sockets, and descriptors that are not ours: the kernel has all but what is in rings. `None`: there are
/// others of ours.
fn poll_datagrams(
    call: Call,
    (rt, fds, entries): (&Runtime, &mut [pollfd], &[Option<Arc<Entry>>]),
    deadline: Option<Instant>,
    mask: *const libc::sigset_t,
) -> Option<c_int> {
    let mut sockets: Vec<(c_int, &Datagram)> = Vec::new();
    for (p, entry) in fds.iter().zip(entries) {
        match entry.as_deref() {
            // Whoever waits for room alone does not look at rings, and is not asleep to their senders.
            Some(Entry::Datagram(socket)) if p.events & INSTANCE_READABLE != 0 => sockets.push((p.fd, socket)),
            Some(Entry::Stream(_) | Entry::Epoll(_)) => return None,
            Some(Entry::Datagram(_) | Entry::Idle(_) | Entry::Ring(_)) | None => {}
        }
    }
    if sockets.is_empty() {
        let left = deadline.map(|deadline| deadline.saturating_since(now()));
        return Some(kernel_poll(call, fds, left, mask));
    }
    let mut waiting = rt.spin.begin(now());
    let mut spun = false;
    loop {
        let ready: Vec<i16> = fds.iter().zip(entries).map(|(p, entry)| link_events(p.events, entry)).collect();
        let none = ready.iter().all(|events| *events == 0);
        if !none || deadline.is_some_and(|deadline| now() >= deadline) {
            // With what the kernel has, too.
            let n = kernel_poll(call, fds, Some(Duration::ZERO), std::ptr::null());
            if n < 0 {
                return Some(n);
            }
            fds.iter_mut().zip(ready).for_each(|(p, events)| p.revents |= events);
            let found = fds.iter().filter(|p| p.revents != 0).count();
            if spun {
                waiting.end(found);
            }
            return Some(found as c_int);
        }
        if !std::mem::replace(&mut spun, true) && spin_for_datagrams(&mut waiting, &sockets, fds, deadline) {
            // At once with what the kernel has.
            let n = kernel_poll(call, fds, Some(Duration::ZERO), std::ptr::null());
            if n == 0 {
                continue;
            }
            waiting.end(n.max(0) as usize);
            return Some(n);
        }
        let asleep: Option<Vec<_>> = sockets.iter().map(|(fd, socket)| socket.sleep(*fd)).collect();
        if asleep.is_some() {
            let left = deadline.map(|deadline| deadline.saturating_since(now()));
            let n = kernel_poll(call, fds, left, mask);
            waiting.end(n.max(0) as usize);
            return Some(n);
        }
    }
}

/// Spins until a ring or the kernel may have something. Whether that was so.
fn spin_for_datagrams(
    waiting: &mut Waiting<'_>,
    sockets: &[(c_int, &Datagram)],
    fds: &mut [pollfd],
    deadline: Option<Instant>,
) -> bool {
    if sockets.iter().any(|(_, socket)| socket.stands_in_senders_way()) {
        waiting.sleep();
        return false;
    }
    let mut looks = 0;
    waiting.spin(deadline, || {
        looks += 1;
        let in_ring = sockets.iter().any(|(_, socket)| socket.may_be_ready());
        let asks = looks % KERNEL_LOOKS == 0;
        in_ring || asks && kernel_poll(Call::Another, fds, Some(Duration::ZERO), std::ptr::null()) != 0
    })
}

/// Polls links and the kernel. Returns how many descriptors are ready, or -1.
///
/// If the result has bytes that a peer wrote later, it also has those that the peer wrote earlier, whatever paths they
/// took. For this, links are polled again after one of them has bytes, the kernel is asked after that, and links are
/// polled once more if the kernel has events. Further events of the links count if no peer has reported an
/// operation in the kernel that came before them.
fn poll_once(call: Call, endpoint: &Endpoint, fds: &mut [pollfd], entries: &[Option<Arc<Entry>>]) -> c_int {
    let mut passes = 0;
    loop {
        passes += 1;
        let OnLinks { events: on_links, news } = poll_links_repeatedly(endpoint, fds, entries);
        // One call for everything that the kernel decides: it also gives invalid descriptors their POLLNVAL.
        let (mut view, before) = kernel_view(fds, entries);
        let n = kernel_poll(call, &mut view, Some(Duration::ZERO), std::ptr::null());
        if n < 0 {
            return -1;
        }
        let pass = Pass { view, before, on_links, found: n > 0 };
        if pass.found {
            await_links(endpoint, entries);
            if endpoint.device().kernel_news() != news && passes < MAX_PASSES {
                continue;
            }
        }
        return merge(endpoint, fds, &pass, entries);
    }
}

/// Bounds how often links or the kernel are polled again, because a peer may write faster than this loop runs.
const MAX_PASSES: usize = 4;

/// The events of links.
struct OnLinks {
    events: Vec<i16>,
    /// The operations in the kernel that peers had reported by then.
    news: KernelOperation,
}

impl OnLinks {
    fn of(endpoint: &Endpoint, fds: &[pollfd], entries: &[Option<Arc<Entry>>]) -> OnLinks {
        let news = endpoint.device().kernel_news();
        let events = fds.iter().zip(entries).map(|(p, entry)| link_events(p.events, entry)).collect();
        OnLinks { events, news }
    }

    fn ready(&self) -> usize {
        self.events.iter().filter(|events| **events != 0).count()
    }

    /// Whether a stream has events on a link, and another one has none.
    fn are_partly_ready(&self, entries: &[Option<Arc<Entry>>]) -> bool {
        let is_on_link = |(_, cell): (&Socket, &Arc<StreamCell>)| !cell.readiness().contains(BOTH_KERNEL);
        let mut waiting = entries.iter().zip(&self.events).filter(|(_, events)| **events == 0);
        self.ready() > 0 && waiting.any(|(entry, _)| stream_of(entry).is_some_and(is_on_link))
    }
}

/// Polls links until one more pass finds no other stream ready. A pass goes from one link to the next, and other
/// threads take messages meanwhile. So it may find a message, and miss one on another link that was written before it.
fn poll_links_repeatedly(endpoint: &Endpoint, fds: &[pollfd], entries: &[Option<Arc<Entry>>]) -> OnLinks {
    poll_links(endpoint, entries);
    let mut found = OnLinks::of(endpoint, fds, entries);
    for _ in 1..MAX_PASSES {
        if !found.are_partly_ready(entries) {
            break;
        }
        let before = found.ready();
        await_links(endpoint, entries);
        found = OnLinks::of(endpoint, fds, entries);
        if found.ready() == before {
            break;
        }
    }
    found
}

/// The result of a pass.
struct Pass {
    /// The kernel's answer, and the readiness that its question was made from.
    view: Vec<pollfd>,
    before: Vec<Readiness>,
    /// The events of links before the kernel was asked.
    on_links: Vec<i16>,
    /// The kernel has events.
    found: bool,
}

/// A caller that polls only once, and finds that it cannot write, may take a change of path for a full buffer.
fn await_switches(endpoint: &Endpoint, fds: &[pollfd], entries: &[Option<Arc<Entry>>]) {
    let until = now() + netacc_socket::SWITCH_PATIENCE;
    for (p, entry) in fds.iter().zip(entries) {
        let Some((_, cell)) = stream_of(entry) else { continue };
        let wants_room = p.events & (libc::POLLOUT | libc::POLLWRNORM) != 0;
        if wants_room && !cell.readiness().intersects(Readiness::WRITABLE | Readiness::KERNEL_TX) {
            switching::await_switch(endpoint, cell, until);
        }
    }
}

/// Whether the kernel does not have a stream's end: its error was taken from the kernel, and the library reports it. Or
/// an epoll instance watches such a stream.
fn is_ours_to_report(p: &pollfd) -> bool {
    match table::get(p.fd).as_deref().map(|entry| &**entry) {
        Some(Entry::Stream(sock)) => sock.stream.as_ref().is_some_and(|cell| !cell.readiness().contains(BOTH_KERNEL)),
        Some(Entry::Epoll(epoll)) => epoll.has_ready(),
        _ => false,
    }
}

fn kernel_poll(call: Call, fds: &mut [pollfd], timeout: Option<Duration>, mask: *const libc::sigset_t) -> c_int {
    let sleeps = timeout != Some(Duration::ZERO);
    let _sleeps = sleeps.then(trace::sleeps);
    let asleep = sleeps.then(Asleep::begin);
    if asleep.as_ref().is_some_and(|asleep| asleep.is_interrupted(false)) {
        set_errno(libc::EINTR);
        return -1;
    }
    let ts = timeout.map(timespec);
    let ts = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    match call {
        // SAFETY: a valid array; the mask is the caller's.
        Call::Poll => unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ts, mask) },
        Call::Another => crate::os::poll::wait(fds, ts, mask),
    }
}

fn stream_of(entry: &Option<Arc<Entry>>) -> Option<(&Socket, &Arc<StreamCell>)> {
    match entry.as_deref() {
        Some(Entry::Stream(sock)) => sock.stream.as_ref().map(|s| (sock, s)),
        _ => None,
    }
}

fn poll_links(endpoint: &Endpoint, entries: &[Option<Arc<Entry>>]) {
    let mut seen: Option<CompletionQueueId> = None;
    for (_, cell) in entries.iter().filter_map(stream_of) {
        if cell.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
            continue;
        }
        let Some(link) = cell.try_lock(endpoint).and_then(|guard| guard.link().cloned()) else { continue };
        let cq = link.cq();
        if cq == endpoint.default_cq() || cq == endpoint.control_cq() {
            // Other streams' links use that queue, too.
            endpoint.poll_link(&link);
        } else if seen != Some(cq) {
            seen = Some(cq);
            endpoint.poll(cq);
        }
    }
    for entry in entries {
        if let Some(Entry::Epoll(epoll)) = entry.as_deref() {
            epoll.poll(endpoint);
        }
    }
}

/// Handles completions of links, and waits for threads that are about to handle some.
fn await_links(endpoint: &Endpoint, entries: &[Option<Arc<Entry>>]) {
    for (_, cell) in entries.iter().filter_map(stream_of) {
        if !cell.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
            let link = cell.lock(endpoint).link().cloned();
            if let Some(link) = link {
                endpoint.poll_link(&link);
            }
        }
    }
    poll_links(endpoint, entries);
}

/// The events to request from the kernel: all for foreign descriptors; for ours those that the anchor decides, and
/// always the anchor's readability, which announces a record or its end. Also the readiness that this was decided by.
fn kernel_view(fds: &[pollfd], entries: &[Option<Arc<Entry>>]) -> (Vec<pollfd>, Vec<Readiness>) {
    fds.iter()
        .zip(entries)
        .map(|(p, e)| {
            let Some((_, cell)) = stream_of(e) else { return (pollfd { revents: 0, ..*p }, Readiness::empty()) };
            let r = cell.readiness();
            let mut events = p.events;
            if !r.contains(Readiness::KERNEL_TX) {
                events &= !(libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND);
            }
            if !r.contains(Readiness::KERNEL_RX) {
                events = events & (libc::POLLOUT | libc::POLLWRNORM) | libc::POLLIN | libc::POLLRDHUP;
            }
            (pollfd { fd: p.fd, events, revents: 0 }, r)
        })
        .unzip()
}

fn merge(endpoint: &Endpoint, fds: &mut [pollfd], pass: &Pass, entries: &[Option<Arc<Entry>>]) -> c_int {
    let mut ready = 0;
    let Pass { view, before, on_links, found } = pass;
    for ((((p, k), before), on_link), entry) in fds.iter_mut().zip(view).zip(before).zip(on_links).zip(entries) {
        p.revents = match stream_of(entry) {
            None => match entry.as_deref() {
                Some(Entry::Epoll(epoll)) if epoll.has_ready() => k.revents | (p.events & INSTANCE_READABLE),
                Some(Entry::Epoll(epoll)) if k.revents & INSTANCE_READABLE != 0 && !epoll.confirm() => 0,
                Some(Entry::Datagram(_)) => k.revents | link_events(p.events, entry),
                _ => k.revents,
            },
            Some((_, cell)) => {
                let mut revents = k.revents;
                if revents & libc::POLLERR != 0 && switching::handle_kernel_error(endpoint, cell) {
                    let mut again = [pollfd { revents: 0, ..*k }];
                    kernel_poll(Call::Another, &mut again, Some(Duration::ZERO), std::ptr::null());
                    revents = again[0].revents;
                }
                // For a stream that was on its link when the kernel was asked, the event may be a record, which has
                // perhaps been taken since.
                if !before.contains(Readiness::KERNEL_RX) || !cell.readiness().contains(Readiness::KERNEL_RX) {
                    if k.revents & (libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0 {
                        cell.anchor_event(endpoint, anchor_event(k.revents as u16 as u32));
                    }
                    revents &= libc::POLLOUT | libc::POLLWRNORM | libc::POLLNVAL;
                }
                revents & p.events
                    | revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL)
                    | if *found { link_events(p.events, entry) } else { *on_link }
            }
        };
        ready += c_int::from(p.revents != 0);
    }
    ready
}

/// The requested events that the link side of a stream has.
fn link_events(wanted: i16, entry: &Option<Arc<Entry>>) -> i16 {
    if let Some(Entry::Epoll(epoll)) = entry.as_deref() {
        return if epoll.has_ready() { wanted & INSTANCE_READABLE } else { 0 };
    }
    if let Some(Entry::Datagram(socket)) = entry.as_deref() {
        return if socket.is_ready() { wanted & INSTANCE_READABLE } else { 0 };
    }
    let Some((_, cell)) = stream_of(entry) else { return 0 };
    let r = cell.readiness();
    let mut events = 0;
    if r.contains(Readiness::READABLE) {
        events |= libc::POLLIN | libc::POLLRDNORM;
    }
    if r.contains(Readiness::WRITABLE) {
        events |= libc::POLLOUT | libc::POLLWRNORM;
    }
    if r.contains(Readiness::RDHUP) {
        events |= libc::POLLRDHUP;
    }
    events &= wanted;
    if r.intersects(Readiness::ERR | Readiness::NOTICE) {
        events |= libc::POLLERR;
    }
    if r.contains(Readiness::HUP) {
        events |= libc::POLLHUP;
    }
    events
}

/// The stream of a call that waits for nothing else, if it is on a link: its thread sleeps on the queue pair. The
/// helper handles events of its anchor.
struct OnlyStream<'a> {
    events: i16,
    entry: &'a Option<Arc<Entry>>,
    sock: &'a Socket,
    cell: &'a Arc<StreamCell>,
    link: Arc<LinkCell>,
}

impl<'a> OnlyStream<'a> {
    /// `None`: the call waits for other descriptors as well, or with a mask of signals, which only the kernel can set
    /// for a sleep.
    fn of(
        endpoint: &Endpoint,
        fds: &[pollfd],
        entries: &'a [Option<Arc<Entry>>],
        mask: *const libc::sigset_t,
    ) -> Option<OnlyStream<'a>> {
        let mut named = fds.iter().zip(entries).filter(|(p, _)| p.fd >= 0);
        let (p, entry) = named.next()?;
        if named.next().is_some() || !mask.is_null() {
            return None;
        }
        let (sock, cell) = stream_of(entry)?;
        let link = {
            let guard = cell.lock(endpoint);
            guard.link().filter(|link| guard.proto().is_linked() && link.can_be_waited_for()).cloned()?
        };
        Some(OnlyStream { events: p.events, entry, sock, cell, link })
    }

    fn sleep(&self, rt: &Runtime, endpoint: &Endpoint, deadline: Option<Instant>) -> c_int {
        let _registered = Registered::new(self.sock, Waiter::on_queue_pair(self.cell));
        let ready = || {
            let kernels = Readiness::KERNEL_RX | Readiness::KERNEL_TX;
            link_events(self.events, self.entry) != 0 || self.cell.readiness().intersects(kernels)
        };
        // Every handler ends `poll`.
        let limit = Limit { deadline, idle: false };
        let wait = StreamWait { sock: self.sock, cell: self.cell, link: &self.link, limit };
        match wait.sleep(rt, endpoint, ready) {
            Waited::Interrupted => {
                set_errno(libc::EINTR);
                -1
            }
            Waited::Again | Waited::TimedOut | Waited::Ended => 0,
        }
    }
}

/// A thread in `poll` that is registered with everything it waits for. Drop removes the registrations, also if the
/// thread is cancelled while it sleeps.
struct Announced<'a> {
    endpoint: &'a Endpoint,
    entries: &'a [Option<Arc<Entry>>],
    slot: Arc<Slot>,
    waiter: Arc<Waiter>,
    queues: Vec<CompletionQueueId>,
    /// Some queue has something already.
    pending: bool,
}

impl<'a> Announced<'a> {
    fn new(endpoint: &'a Endpoint, entries: &'a [Option<Arc<Entry>>], slot: Arc<Slot>) -> Self {
        let on_link = |(_, cell): (&Socket, &Arc<StreamCell>)| cell.lock(endpoint).link().is_some();
        let queue = match entries.iter().filter_map(stream_of).any(on_link) {
            true => slot.queue_for_sleep(endpoint),
            false => slot.queue(),
        };
        let waiter = Waiter::at_slot(&slot);
        let sleeper: Arc<dyn Sleeper> = waiter.clone();
        let mut queues = Vec::from_iter(queue);
        for entry in entries {
            if let Some((sock, cell)) = stream_of(entry) {
                sock.watchers.lock().push(Registration::Sleeper(waiter.clone()));
                queues.extend(queues::reassign_watched(endpoint, cell, queue));
            } else if let Some(Entry::Epoll(epoll)) = entry.as_deref() {
                epoll.add_sleeper(&sleeper);
                queues.extend(epoll.own_queue());
            }
        }
        // The helper polls its own queue, and wakes this thread.
        queues.retain(|cq| *cq != endpoint.control_cq());
        queues.sort_unstable();
        queues.dedup();
        let mut pending = false;
        for &cq in &queues {
            pending |= arm(endpoint, cq, false) == Armed::Pending;
        }
        Announced { endpoint, entries, slot, waiter, queues, pending }
    }

    /// Removes the thread from a stream. If an epoll instance watches the stream as well, its link goes back to the
    /// instance's queue.
    fn leave(&self, sock: &Socket, cell: &Arc<StreamCell>) {
        if watchers::remove_sleeper(&sock.watchers, &self.waiter) {
            let link = cell.lock(self.endpoint).link().cloned();
            if let Some(link) = link.filter(|link| link.cq() == self.endpoint.control_cq()) {
                queues::reassign(self.endpoint, &link, cell);
            }
        }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let saved = errno();
        for &cq in &self.queues {
            self.endpoint.device().drain(cq);
            disarm(self.endpoint, cq);
        }
        let sleeper: Arc<dyn Sleeper> = self.waiter.clone();
        for entry in self.entries {
            if let Some((sock, cell)) = stream_of(entry) {
                self.leave(sock, cell);
            } else if let Some(Entry::Epoll(epoll)) = entry.as_deref() {
                epoll.remove_sleeper(&sleeper);
            }
        }
        self.slot.get_up(|| self.waiter.get_up());
        set_errno(saved);
    }
}

/// Announces, polls once more, sleeps. Returns how many descriptors are ready, if the kernel's answer is all that there is to
/// know; 0: poll again; or -1.
fn sleep(
    endpoint: &Endpoint,
    fds: &mut [pollfd],
    entries: &[Option<Arc<Entry>>],
    deadline: Option<Instant>,
    mask: *const libc::sigset_t,
) -> c_int {
    let Some(slot) = slots::of_process().take(endpoint) else {
        let left = deadline.map_or(WITHOUT_EVENTFD, |d| d.saturating_since(now()).min(WITHOUT_EVENTFD));
        let (mut view, _) = kernel_view(fds, entries);
        return kernel_poll(Call::Another, &mut view, Some(left), mask).min(0);
    };
    let announced = Announced::new(endpoint, entries, slot);
    let datagrams = fds.iter().zip(entries).filter_map(|(p, entry)| match entry.as_deref() {
        Some(Entry::Datagram(socket)) if p.events & INSTANCE_READABLE != 0 => Some(socket.sleep(p.fd)),
        _ => None,
    });
    let Some(_asleep) = datagrams.collect::<Option<Vec<_>>>() else { return 0 };
    let (mut view, before) = kernel_view(fds, entries);
    view.push(pollfd { fd: announced.slot.eventfd(), events: libc::POLLIN, revents: 0 });
    let channels = announced.queues.iter().filter_map(|&cq| endpoint.device().channel_fd(cq));
    view.extend(channels.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 }));
    if announced.pending || fds.iter().zip(entries).any(|(p, e)| link_events(p.events, e) != 0) {
        return 0;
    }
    let n = kernel_poll(Call::Another, &mut view, deadline.map(|d| d.saturating_since(now())), mask);
    let woken = view.drain(fds.len()..).any(|own| own.revents != 0);
    if n <= 0 || woken || entries.iter().any(|entry| is_translated(endpoint, entry)) {
        return n.min(0);
    }
    let on_links = vec![0; fds.len()];
    merge(endpoint, fds, &Pass { view, before, on_links, found: false }, entries)
}

/// Whether the kernel's events for the descriptor may be about something else than the program's bytes: about a record on the
/// anchor, for example, that has been taken since.
fn is_translated(endpoint: &Endpoint, entry: &Option<Arc<Entry>>) -> bool {
    match entry.as_deref() {
        Some(Entry::Stream(sock)) => sock.stream.as_ref().is_some_and(|cell| {
            let guard = cell.lock(endpoint);
            guard.proto().promotions() > 0 || guard.proto().uses_slot() || !guard.proto().is_plain()
        }),
        Some(Entry::Datagram(_) | Entry::Epoll(_)) => true,
        Some(Entry::Idle(_) | Entry::Ring(_)) | None => false,
    }
}
