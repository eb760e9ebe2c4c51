//! Ending and closing connections.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::Anchor;
use netacc_driver::{Endpoint, LockedStream, Readiness, Shutdown, StreamCell};
use netacc_proto::{Phase, Reason};

use crate::anchor::FdAnchor;
use crate::asking::FEW_CALLS;
use crate::control::flows;
use crate::datagram::KernelOnly;
use crate::os::clock::now;
use crate::os::deferral::Busy;
use crate::os::errno::{fail, set_errno};
use crate::os::{lingering, real};
use crate::protected::is_protected;
use crate::runtime::{self, Runtime};
use crate::socket::Socket;
use crate::table::{self, Entry, NO_FD};
use crate::{family, queues, stats, switching, watched};

/// `shutdown`.
pub fn shutdown(entry: &Arc<Entry>, fd: c_int, how: c_int) -> c_int {
    let endpoint = runtime::get().and_then(Runtime::endpoint);
    if let Entry::Datagram(socket) = &**entry {
        flows::withdraw_for_all(socket, fd, KernelOnly::Ended);
    }
    let Entry::Stream(sock) = &**entry else {
        // SAFETY: no pointers.
        return unsafe { real::shutdown(fd, how) };
    };
    let (Some(cell), Some(endpoint)) = (&sock.stream, endpoint) else {
        sock.reclaim();
        // SAFETY: no pointers.
        return runtime::in_kernel(|| unsafe { real::shutdown(fd, how) });
    };
    let ends = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return fail(libc::EINVAL) as c_int,
    };
    // Bytes that arrived before are not for a socket that reads no more; and the connection may be over.
    cell.take_in(endpoint);
    let mut guard = cell.lock(endpoint);
    guard.change(LockedStream::withdraw);
    if guard.ends_both(ends) {
        drop(guard);
        // Bytes that arrive from then on must be answered with a reset, at once.
        leave_promotion(endpoint, cell);
        guard = cell.lock(endpoint);
    }
    guard.change(LockedStream::take_in_replay);
    if guard.kernel_is_accurate() {
        // SAFETY: no pointers.
        let rc = runtime::in_kernel(|| unsafe { real::shutdown(fd, how) });
        if rc == 0 {
            guard.change(|stream| stream.handle_kernel_shutdown(ends));
        }
        return rc;
    }
    let over = guard.proto().is_over();
    guard.change(|stream| {
        stream.shutdown(ends);
        stream.announce_again();
    });
    drop(guard);
    if over {
        return fail(libc::ENOTCONN) as c_int;
    }
    0
}

/// `close`, of any descriptor.
pub fn close(fd: c_int) -> c_int {
    if is_protected(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    if !table::has(fd) {
        // SAFETY: no pointers.
        return runtime::in_kernel(|| netacc_descriptors::change(|| unsafe { real::close(fd) }));
    }
    forget(fd);
    // SAFETY: no pointers.
    runtime::in_kernel(|| unsafe { real::close(fd) })
}

/// Ends the library's use of `fd`; the caller closes or replaces the kernel's descriptor.
pub fn forget(fd: c_int) {
    let _busy = Busy::enter();
    // Until the stream uses another descriptor, no watcher can be woken for a change.
    let known = match table::get(fd).as_deref().map(|entry| &**entry) {
        Some(Entry::Stream(sock)) => sock.stream.as_ref().map(|cell| cell.readiness()),
        _ => None,
    };
    let Some(entry) = table::remove(fd) else { return };
    match &*entry {
        Entry::Stream(sock) => {
            if sock.descriptors.fetch_sub(1, Ordering::AcqRel) > 1 {
                watched::outlive(sock, fd);
                keep_other(&entry, sock, fd, known);
                return;
            }
            if !(sock.callers.wait_elsewhere() && keep_for_callers(sock, fd)) {
                end(sock, fd);
            }
        }
        Entry::Idle(listener) => {
            listener.descriptors.fetch_sub(1, Ordering::AcqRel);
            watched::leave_to_kernel(&listener.watchers, fd);
        }
        Entry::Epoll(epoll) => epoll.closed(fd),
        Entry::Datagram(socket) => {
            if socket.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
                flows::withdraw(socket, fd, KernelOnly::Ended);
                socket.sharing().leave();
                if let Some(rt) = runtime::get() {
                    flows::end(rt, socket.incoming().abandon());
                    rt.flows.absorb(socket);
                }
            } else {
                // The helper may be sending by this descriptor.
                drop(socket.outgoing());
            }
        }
        Entry::Ring(_) => {}
    }
}

/// The last descriptor of a connection is closed, and no thread waits in a call on it.
fn end(sock: &Socket, fd: c_int) {
    let shared = !sock.holds_alone() || sock.stream.as_ref().is_some_and(|cell| cell.is_pinned());
    let lingers = close_stream(sock, fd);
    if shared {
        watched::leave_to_kernel(&sock.watchers, fd);
    } else {
        watched::forget_fd(&sock.watchers, fd, lingers);
    }
    watched::end_outliving(&sock.watchers, &sock.outliving, shared);
    family::leave(sock.family.load(Ordering::Relaxed));
}

/// The last descriptor of a connection is closed under calls that wait: they continue with a duplicate. False if none
/// can be made.
fn keep_for_callers(sock: &Socket, fd: c_int) -> bool {
    let Some(kept) = lingering::duplicate(fd) else { return false };
    watched::outlive(sock, fd);
    sock.fd.store(kept, Ordering::Release);
    if let (Some(cell), Some(endpoint)) = (&sock.stream, runtime::get().and_then(Runtime::endpoint)) {
        cell.lock(endpoint).change(|stream| stream.replace_anchor(Box::new(FdAnchor::borrowed(kept))));
        cell.tag().store(NO_FD, Ordering::Relaxed);
    }
    if let Some(kept) = sock.callers.go_on(kept) {
        end_kept(sock, kept);
    }
    true
}

/// Ends a connection that was closed under calls which are over now; `kept` is the duplicate that they used.
pub fn end_kept(sock: &Socket, kept: c_int) {
    end(sock, kept);
    lingering::close(kept);
}

/// One of several descriptors of a connection is closed: the others, and the stream's anchor, stay open. `known` is the
/// readiness that its watchers have seen.
fn keep_other(entry: &Arc<Entry>, sock: &Socket, fd: c_int, known: Option<Readiness>) {
    if sock.fd.load(Ordering::Relaxed) != fd {
        return;
    }
    let other = table::entries().find(|(n, e)| *n != fd && Arc::ptr_eq(e, entry));
    let Some((other, _)) = other else { return };
    sock.fd.store(other, Ordering::Relaxed);
    if let (Some(cell), Some(endpoint)) = (&sock.stream, runtime::get().and_then(Runtime::endpoint)) {
        // Changes are announced under this lock: none before it is released, and later ones under the other descriptor.
        cell.lock(endpoint).change(|stream| {
            stream.replace_anchor(Box::new(FdAnchor::borrowed(other)));
            cell.tag().store(other as u32, Ordering::Relaxed);
            if known.is_some_and(|known| known != cell.readiness()) {
                stream.announce_again();
            }
        });
    }
}

/// Waits, for a bounded time, until a stream that is being promoted is on either path, because in between its end can
/// be sent on neither.
fn leave_promotion(endpoint: &Endpoint, cell: &Arc<StreamCell>) {
    if cell.lock(endpoint).proto().awaits_switch() {
        // Until then this side could not send the end, and the peer would go on writing.
        switching::until_switched(endpoint, cell);
    } else if cell.lock(endpoint).proto().phase() == Phase::Promoting {
        // As long as the peer's marker may come, the anchor stays open, and accepts bytes that should be answered with
        // a reset.
        switching::demote(endpoint, cell, Reason::PledgeVoided, netacc_socket::SWITCH_PATIENCE);
    }
}

/// The application closes its last descriptor. Whether the library keeps a duplicate for now.
pub(super) fn close_stream(sock: &Socket, fd: c_int) -> bool {
    if let (None, Some(rt)) = (&sock.stream, runtime::get()) {
        rt.counters().absorb(&stats::counted_by_kernel(fd));
        return false;
    }
    let (Some(cell), Some(rt)) = (&sock.stream, runtime::get()) else { return false };
    let Some(endpoint) = rt.endpoint() else { return false };
    let mut guard = cell.lock(endpoint);
    let c = guard.counters();
    let calls = u64::from(sock.operations.load(Ordering::Relaxed)) + c.tx_msgs_link + c.rx_msgs_link;
    let bytes = c.tx_bytes_tcp + c.rx_bytes_tcp + c.tx_bytes_link + c.rx_bytes_link;
    let tuple = cell.tuple();
    if !sock.accepted {
        rt.lifetimes.note_end(&tuple.remote, calls, bytes);
        if let Some(timed) = &sock.timed {
            rt.asking.end(&tuple.remote, timed, now(), calls);
        }
    } else if guard.was_to_leave_kernel() && calls >= FEW_CALLS.into() {
        // The next ones will ask, too, and should find no receive that takes what comes.
        rt.served.forget(&tuple.local);
    } else if calls > 0 {
        // One that was not used was only to show that the service is there.
        rt.served.note_end(&tuple.local, calls, bytes);
    }
    if cell.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
        if guard.proto().replay_left() > 0 {
            drop(guard);
            // Unread bytes turn the close into a reset; bytes that came after it would find a FIN sent.
            switching::until(endpoint, cell, now() + switching::PROMOTION_PATIENCE, |guard| {
                guard.has_replay(now()).then_some(())
            });
            guard = cell.lock(endpoint);
        }
        if guard.close_plain() {
            let stayed = guard.proto().promotions() == 0;
            drop(guard);
            if stayed && sock.recorded_reason().is_none() {
                sock.record_reason(Reason::NotYet);
            }
            cell.tag().store(NO_FD, Ordering::Relaxed);
            rt.given_up(cell);
            endpoint.forget(cell);
            return false;
        }
    }
    drop(guard);
    if !sock.holds_alone() {
        // Another process holds the socket: it must find a plain one.
        switching::demote(endpoint, cell, Reason::Shared, Duration::from_secs(2));
        rt.given_up(cell);
    }
    cell.tag().store(NO_FD, Ordering::Relaxed);
    let abort = sock.aborts_on_close(fd);
    // Bytes that have arrived but were not polled yet decide between FIN and RST.
    cell.take_in(endpoint);
    cell.lock(endpoint).change(|stream| stream.withdraw());
    leave_promotion(endpoint, cell);
    let link = cell.lock(endpoint).link().cloned();
    let lingers = cell.lock(endpoint).change(|stream| {
        stream.close(abort, || FdAnchor::duplicate(fd).map(|a| Box::new(a) as Box<dyn Anchor + Send>))
    });
    if let Some(link) = &link {
        queues::reassign(endpoint, link, cell);
    }
    lingers
}
