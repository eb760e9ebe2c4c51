//! The applications' epoll instance: the model of `core/preload/src/epoll.rs`, edge-triggered.
//!
//! One per process, with all its streams in it. The driver reports changes to it through [`ReadySink`], and the descriptors
//! report the kernel's edges. An application that has seen EAGAIN does nothing until the instance reports the stream, so a
//! lost edge starves it, and the run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};

use netacc_device::CompletionQueueId;
use netacc_driver::{Endpoint, Readiness, ReadySink, Sharing, StreamCell};
use parking_lot::Mutex;

use crate::descriptor::{Descriptor, Watcher, ERR, HUP, IN, OUT, RDHUP};
use crate::mutants::Countdown;

const BOTH_KERNEL: Readiness = Readiness::KERNEL_RX.union(Readiness::KERNEL_TX);
const ALL: u32 = IN | OUT | RDHUP;
/// The events that the kernel watches on the anchor of a linked stream.
const ANCHOR_WATCH: u32 = IN | RDHUP;

/// One stream in the instance.
struct Interest {
    stream: Arc<StreamCell>,
    descriptor: Arc<Descriptor>,
    /// The kernel holds the application's own registration, not just the watch on the anchor.
    kernel: bool,
    /// It was between the paths since the kernel's registration was armed: the application may have seen EAGAIN for a
    /// reason that the kernel does not have, so coming back is an edge.
    away: bool,
    queued: bool,
    pending: u32,
}

#[derive(Default)]
struct State {
    interests: BTreeMap<u32, Interest>,
    ready: VecDeque<u32>,
    /// Anchors that the helper watches, by tag.
    watched: BTreeMap<u32, (Weak<StreamCell>, Arc<Descriptor>)>,
    /// A link came to the instance's queue while it slept.
    kicked: bool,
}

/// The instance, and the anchors that the helper watches.
pub(crate) struct Epoll {
    state: Mutex<State>,
    endpoint: OnceLock<Weak<Endpoint>>,
    cq: OnceLock<CompletionQueueId>,
    /// Counts down to an edge that is swallowed.
    drop_edge: Option<Countdown>,
}

fn events_of(r: Readiness) -> u32 {
    let mut events = 0;
    let bits = [
        (Readiness::READABLE, IN),
        (Readiness::WRITABLE, OUT),
        (Readiness::RDHUP, RDHUP),
        (Readiness::HUP, HUP),
        (Readiness::ERR, ERR),
    ];
    for (bit, event) in bits {
        if r.contains(bit) {
            events |= event;
        }
    }
    events
}

/// The kernel's answer for a direction that is on the anchor.
fn kernel_half(descriptor: &Descriptor, r: Readiness) -> u32 {
    let mut mask = 0;
    if r.contains(Readiness::KERNEL_RX) {
        mask |= IN | RDHUP;
    }
    if r.contains(Readiness::KERNEL_TX) {
        mask |= OUT;
    }
    descriptor.events() & mask
}

impl Epoll {
    pub(crate) fn new(drop_edge: Option<Countdown>) -> Epoll {
        Epoll { state: Mutex::default(), endpoint: OnceLock::new(), cq: OnceLock::new(), drop_edge }
    }

    /// Completes the construction: the endpoint needs its sink first.
    pub(crate) fn attach(&self, endpoint: &Arc<Endpoint>, cq: CompletionQueueId) {
        let _ = self.endpoint.set(Arc::downgrade(endpoint));
        let _ = self.cq.set(cq);
    }

    pub(crate) fn add(&self, tag: u32, stream: Arc<StreamCell>, descriptor: Arc<Descriptor>) {
        descriptor.rearm(Watcher::Application);
        let interest = Interest { stream, descriptor, kernel: true, away: false, queued: false, pending: 0 };
        self.state.lock().interests.insert(tag, interest);
    }

    /// The descriptor is being closed.
    pub(crate) fn remove(&self, tag: u32) {
        let mut state = self.state.lock();
        state.interests.remove(&tag);
        state.watched.remove(&tag);
    }

    pub(crate) fn clear(&self) {
        *self.state.lock() = State::default();
    }

    /// A wait would find something without the completion queue's help.
    pub(crate) fn has_events(&self) -> bool {
        let state = self.state.lock();
        !state.ready.is_empty()
            || state.kicked
            || state.interests.values().any(|i| i.descriptor.has_edges(Watcher::Application, mask(i)))
    }

    /// Takes the entries of the ready list, as `(tag, events)`.
    pub(crate) fn collect(&self, out: &mut Vec<(u32, u32)>) {
        let mut state = self.state.lock();
        state.kicked = false;
        while let Some(tag) = state.ready.pop_front() {
            let Some(i) = state.interests.get_mut(&tag) else { continue };
            i.queued = false;
            let r = i.stream.readiness();
            if r.contains(BOTH_KERNEL) {
                continue;
            }
            let events = events_of(r) | kernel_half(&i.descriptor, r);
            let pending = std::mem::take(&mut i.pending);
            if events & pending != 0 {
                out.push((tag, events));
            }
        }
    }

    /// Takes the kernel's events.
    pub(crate) fn kernel_events(&self, out: &mut Vec<(u32, u32)>) {
        let tags: Vec<u32> = {
            let state = self.state.lock();
            let edgy = |(_, i): &(&u32, &Interest)| i.descriptor.take_edges(Watcher::Application, mask(i)) != 0;
            state.interests.iter().filter(edgy).map(|(t, _)| *t).collect()
        };
        tags.into_iter().for_each(|tag| self.kernel_event(tag, out));
    }

    fn kernel_event(&self, tag: u32, out: &mut Vec<(u32, u32)>) {
        let mut state = self.state.lock();
        let Some(i) = state.interests.get_mut(&tag) else { return };
        let stream = i.stream.clone();
        if stream.readiness().contains(BOTH_KERNEL) {
            if i.kernel {
                out.push((tag, i.descriptor.events() & (ALL | ERR | HUP)));
            }
            return;
        }
        if i.kernel {
            // It has gone onto a link since: from now on the kernel only watches the anchor.
            i.kernel = false;
            i.descriptor.rearm(Watcher::Application);
        }
        let descriptor = i.descriptor.clone();
        drop(state);
        let Some(endpoint) = self.endpoint.get().and_then(Weak::upgrade) else { return };
        anchor_event(&endpoint, &stream, &descriptor);
        self.changed(tag, stream.readiness(), true);
    }

    /// A stream changed. Called with the stream locked.
    fn changed(&self, tag: u32, now: Readiness, arrived: bool) {
        let mut state = self.state.lock();
        let State { interests, ready, .. } = &mut *state;
        let Some(i) = interests.get_mut(&tag) else { return };
        if now.contains(BOTH_KERNEL) {
            if !i.kernel || i.away {
                i.kernel = true;
                i.away = false;
                i.descriptor.rearm(Watcher::Application);
            }
            return;
        }
        i.away = true;
        let events = events_of(now) | if now.intersects(BOTH_KERNEL) { kernel_half(&i.descriptor, now) } else { 0 };
        i.pending |= events & !IN;
        if arrived {
            i.pending |= events;
        }
        if !i.queued && events != 0 {
            i.queued = true;
            ready.push_back(tag);
        }
    }

    /// Anchors with an edge for the helper.
    pub(crate) fn helper_edges(&self) -> bool {
        self.state.lock().watched.values().any(|(_, d)| d.has_edges(Watcher::Helper, ANCHOR_WATCH))
    }

    /// The helper polls the anchors it watches.
    pub(crate) fn poll_as_helper(&self, endpoint: &Endpoint) {
        let edgy: Vec<_> = {
            let state = self.state.lock();
            let watched = state.watched.values();
            watched.filter(|(_, d)| d.take_edges(Watcher::Helper, ANCHOR_WATCH) != 0).cloned().collect()
        };
        for (stream, descriptor) in edgy {
            if let Some(stream) = stream.upgrade() {
                anchor_event(endpoint, &stream, &descriptor);
            }
        }
    }
}

fn mask(i: &Interest) -> u32 {
    if i.kernel {
        ALL
    } else {
        ANCHOR_WATCH
    }
}

/// The application or the helper saw an edge of the anchor of a stream that is, or was, on a link.
fn anchor_event(endpoint: &Endpoint, stream: &Arc<StreamCell>, descriptor: &Descriptor) {
    // Bytes that came by the link before the anchor moved must be seen first, and above all a FIN.
    let link = stream.lock(endpoint).link().cloned();
    if let Some(link) = link {
        endpoint.poll_link(&link);
    }
    let mut guard = stream.lock(endpoint);
    if !guard.proto().is_plain() {
        guard.change(|stream| descriptor.progress(stream));
    }
}

impl ReadySink for Epoll {
    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        // No program has such calls; the trace has the faults.
        true
    }

    fn ready(&self, stream: &Arc<StreamCell>, now: Readiness, arrived: bool) {
        let gains = arrived || now.intersects(Readiness::READABLE | Readiness::WRITABLE);
        if gains && self.drop_edge.as_ref().is_some_and(Countdown::strikes) {
            return;
        }
        self.changed(stream.tag().load(std::sync::atomic::Ordering::Relaxed), now, arrived);
    }

    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        false
    }

    fn moved(&self, stream: &Arc<StreamCell>) {
        let tag = stream.tag().load(std::sync::atomic::Ordering::Relaxed);
        let Some(endpoint) = self.endpoint.get().and_then(Weak::upgrade) else { return };
        let mut state = self.state.lock();
        let Some(descriptor) = state.interests.get(&tag).map(|i| i.descriptor.clone()) else { return };
        descriptor.rearm(Watcher::Helper);
        state.watched.insert(tag, (Arc::downgrade(stream), descriptor));
        drop(state);
        let link = stream.lock(&endpoint).link().cloned();
        if let (Some(link), Some(cq)) = (link, self.cq.get()) {
            if endpoint.config().sharing == Sharing::UpTo(1) || link.cq() == endpoint.control_cq() {
                endpoint.rebind(&link, *cq);
                self.state.lock().kicked = true;
            }
        }
    }
}
