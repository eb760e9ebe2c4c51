//! `netacc demote` and `netacc promote`: every connection of the running process off its link, or back.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netacc_config::stats::{Switched, VERSION};
use netacc_driver::{Endpoint, Readiness};
use netacc_proto::{Reason, Role};

use crate::os::clock::now;
use crate::runtime::Runtime;
use crate::table::{self, Entry};

/// How long one request tries; the client may send it again. Shorter than a client waits for its answer.
const EFFORT: Duration = Duration::from_millis(1000);
/// The time between two checks of connections that wait for their peers.
const PAUSE: Duration = Duration::from_micros(200);

/// Takes every connection off its link and keeps all off links.
pub(super) fn demote(rt: &Runtime) -> Switched {
    let Some(endpoint) = rt.endpoint() else { return count(None) };
    endpoint.suspend_promotion(true);
    let begun = now();
    loop {
        let mut left = 0;
        for cell in endpoint.streams() {
            let mut guard = cell.lock(endpoint);
            if guard.proto().is_plain() || guard.is_closed() {
                continue;
            }
            guard.change(|stream| {
                stream.demote(Reason::Requested);
                stream.progress_anchor(false);
            });
            let link = guard.link().cloned();
            drop(guard);
            if let Some(link) = link {
                endpoint.poll_link(&link);
            }
            left += usize::from(!cell.lock(endpoint).proto().is_plain());
        }
        if left == 0 || now().saturating_since(begun) > EFFORT {
            return count(Some(endpoint));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Lets connections onto links again. Connections that this process has opened are tried at once; for the others the
/// peers decide, after some more use.
pub(super) fn promote(rt: &Runtime) -> Switched {
    let Some(endpoint) = rt.endpoint() else { return count(None) };
    endpoint.suspend_promotion(false);
    for (fd, entry) in table::entries() {
        let Entry::Stream(sock) = &*entry else { continue };
        let Some(cell) = sock.stream.as_ref().filter(|c| !c.is_pinned() && sock.holds_alone()) else { continue };
        let wanted = {
            let guard = cell.lock(endpoint);
            guard.proto().role() == Role::Opener && guard.proto().may_promote()
        };
        if wanted && sock.fd.load(Ordering::Relaxed) == fd {
            cell.tag().store(fd as u32, Ordering::Relaxed);
            rt.request_promotion(cell);
        }
    }
    count(Some(endpoint))
}

pub(super) fn count(endpoint: Option<&Endpoint>) -> Switched {
    let mut switched = Switched {
        version: VERSION,
        pid: std::process::id(),
        allowed: endpoint.is_some_and(|e| !e.is_promotion_suspended()),
        ..Switched::default()
    };
    let kernel = Readiness::KERNEL_RX | Readiness::KERNEL_TX;
    for (fd, entry) in table::entries() {
        let Entry::Stream(sock) = &*entry else { continue };
        if sock.fd.load(Ordering::Relaxed) == fd as c_int {
            switched.connections += 1;
            switched.on_link += u64::from(sock.stream.as_ref().is_some_and(|s| !s.readiness().contains(kernel)));
        }
    }
    switched
}
