//! Demoting connections because the kernel, or another process, needs all of their bytes.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use netacc_driver::{Endpoint, StreamCell};
use netacc_proto::{Reason, RxSource};
use netacc_socket::REPLAY_PATIENCE;

use crate::os::clock::now;
use crate::os::errno::{errno, set_errno};
use crate::os::sockopt::unread;
use crate::runtime::{self, Runtime};
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::{family, switching};

/// Leaves the link for an operation that only the kernel can do, and stays off it.
pub fn demote_for(sock: &Socket, reason: Reason) -> bool {
    sock.keep_on_kernel();
    bring_back(sock, reason)
}

/// Leaves the link, and waits until the kernel has the bytes that were unread on it. Returns whether it has them.
pub fn bring_back(sock: &Socket, reason: Reason) -> bool {
    match (&sock.stream, runtime::get().and_then(Runtime::endpoint)) {
        (Some(cell), Some(endpoint)) => {
            let was_plain = cell.lock(endpoint).proto().is_plain();
            if was_plain {
                // The end of a link is counted separately.
                sock.record_reason(reason);
            }
            let plain = switching::demote(endpoint, cell, reason, DEMOTE_PATIENCE);
            if plain && !was_plain {
                await_all_replay(endpoint, cell, sock.fd.load(Ordering::Relaxed));
            }
            plain
        }
        _ => {
            sock.reclaim();
            true
        }
    }
}

/// How long a demotion may take. Arbitrary: a live peer answers in well under a millisecond.
const DEMOTE_PATIENCE: Duration = Duration::from_secs(2);

/// The stream is plain, and its unread bytes come again: returns once the kernel has all of them, as if they had never
/// been on a link. Calls on the socket then find these bytes, and closing it with bytes unread sends a reset.
#[cold]
pub fn await_all_replay(endpoint: &Endpoint, cell: &Arc<StreamCell>, fd: c_int) {
    let begun = now();
    loop {
        let left = match cell.lock(endpoint).proto().rx_source() {
            RxSource::Anchor(left) if left != u64::MAX => left,
            _ => return,
        };
        // A small kernel buffer has no room for all bytes of a ring.
        if unread(fd) >= left || now().saturating_since(begun) > REPLAY_PATIENCE {
            return;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// `fd` is about to be used by code that does not call this library, or by another process: demotes its
/// stream for good.
pub fn surrender(fd: c_int, reason: Reason) {
    let Some(entry) = table::get_full(fd) else { return };
    if let Entry::Stream(sock) = &*entry {
        let saved = errno();
        demote_for(sock, reason);
        set_errno(saved);
    }
}

/// Demotes connections because processes that do not enter themselves as holders are about to get their sockets. They
/// may be promoted again once none of these processes holds the socket.
pub fn lend(entries: &[Arc<Entry>]) {
    let socks = || {
        entries.iter().filter_map(|entry| match &**entry {
            Entry::Stream(sock) => Some(sock),
            _ => None,
        })
    };
    let rt = runtime::get();
    for sock in socks() {
        sock.loans.add();
        family::lend(sock.family.load(Ordering::Relaxed));
        let (Some(cell), Some((rt, endpoint))) = (&sock.stream, rt.and_then(|rt| Some((rt, rt.endpoint()?)))) else {
            continue;
        };
        rt.share(cell);
        sock.promotion.begin_again(sock.operations.load(Ordering::Relaxed));
        // All demotions begin before the first wait, so that the peers answer at the same time.
        let mut guard = cell.lock(endpoint);
        if !guard.proto().is_plain() {
            guard.change(|stream| {
                stream.demote(Reason::Shared);
                stream.progress_anchor(false);
            });
        }
    }
    for sock in socks() {
        bring_back(sock, Reason::Shared);
    }
}
