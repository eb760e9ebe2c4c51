//! The library's answer to changes of streams.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_config::{LogLevel, UnseenIoPolicy};
use netacc_device::{ConnectionId, FourTuple, PeerAddress, QueuePairId};
use netacc_driver::{Flow, Marked, Readiness, ReadySink, ReceivingFlow, SendingFlow, StreamCell};
use netacc_proto::Reason;

use super::{flows, links, proofs};
use crate::os::log;
use crate::ring::foreign::{self, Verdict};
use crate::runtime::arrivals::Arrival;
use crate::runtime::{get, Runtime};
use crate::stats::StandIn;
use crate::table::{self, Entry, NO_FD};
use crate::{probes, queues, switching, trace};

/// The library's answer to changes of streams.
pub(super) struct Sink;

impl ReadySink for Sink {
    #[inline]
    fn ready(&self, stream: &Arc<StreamCell>, now: Readiness, arrived: bool) {
        if stream.is_shared() && now.contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
            // A child may be waiting for this stream.
            if let Some(endpoint) = get().and_then(Runtime::endpoint) {
                endpoint.need_helper();
            }
        }
        if stream.sleepers() > 0 {
            switching::wake_sleepers(stream);
        }
        let fd = stream.tag().load(Ordering::Relaxed);
        if fd == NO_FD {
            return;
        }
        let Some(guard) = table::get(fd as c_int) else { return };
        if let Entry::Stream(sock) = &**guard {
            if sock.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, stream)) {
                if now.contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
                    sock.record_return(stream);
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
        log::append(
            &rt.config,
            LogLevel::Warn,
            &format!("bytes of descriptor {fd} were moved by calls that were not seen: {policy}"),
        );
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

    fn peer_found(&self, stream: &StreamCell) {
        let service = stream.tuple().remote;
        if let Some(rt) = get().filter(|rt| rt.crowds.found(&service)) {
            rt.request_new(Arrival::All(service));
        }
    }

    fn moved(&self, stream: &Arc<StreamCell>) {
        let (Some(rt), fd) = (get(), stream.tag().load(Ordering::Relaxed)) else { return };
        let Some(endpoint) = rt.endpoint() else { return };
        if fd == NO_FD {
            return;
        }
        let (link, plain, reason) = {
            let guard = stream.lock(endpoint);
            (guard.link().cloned(), guard.proto().is_plain(), guard.proto().reason())
        };
        if !stream.is_opening() {
            probes::moved(fd as c_int, !plain, reason);
        }
        if !plain && !stream.is_opening() && stream.begins_watch(fd) {
            rt.watch_anchor(fd as c_int, stream);
        }
        if let Some(link) = link {
            queues::reassign(endpoint, &link, stream);
        }
    }

    fn wait_for_device(&self, call: &mut dyn FnMut()) {
        let _stand_in = get().and_then(StandIn::begin);
        call();
    }

    fn takes_flows(&self) -> bool {
        // Before the runtime is published there is no link.
        get().is_some_and(|rt| rt.config.datagrams)
    }

    fn flow_offered(&self, addresses: &FourTuple) -> Result<u16, Reason> {
        let rt = get().ok_or(Reason::NotYet)?;
        links::offered(rt, addresses)?;
        proofs::port(rt).ok_or(Reason::Exhausted)
    }

    fn flow_granted(&self, flow: &Arc<ReceivingFlow>) {
        if let Some((rt, endpoint)) = get().and_then(|rt| Some((rt, rt.endpoint()?))) {
            links::granted(rt, endpoint, flow);
        }
    }

    fn flow_changed(&self, _: &Arc<SendingFlow>) {
        if let Some(rt) = get() {
            links::changed(rt);
        }
    }

    fn flow_requested(&self, id: ConnectionId, _: PeerAddress, request: &[u8]) -> Option<usize> {
        get().and_then(|rt| flows::requested(rt, rt.endpoint()?, id, request))
    }

    fn flow_established(&self, id: ConnectionId, flow: Flow) {
        if let Some((rt, endpoint)) = get().and_then(|rt| Some((rt, rt.endpoint()?))) {
            flows::established(rt, endpoint, id, flow);
        }
    }

    fn flow_failed(&self, id: ConnectionId) {
        if let Some(rt) = get() {
            flows::failed(rt, id);
        }
    }

    fn flow_ended(&self, qp: QueuePairId) {
        if let Some((rt, endpoint)) = get().and_then(|rt| Some((rt, rt.endpoint()?))) {
            flows::ended(rt, endpoint, qp);
        }
    }

    fn mark(&self, stream: &StreamCell, marked: &Marked) {
        trace::mark(stream, marked);
    }
}
