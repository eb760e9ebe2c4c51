//! Fork. A link belongs to one process: the parent keeps it, and a child that uses an inherited descriptor requests
//! that the parent demotes the stream to the anchor, which both processes hold. The child then creates its own stream
//! for the connection, which may be promoted once no other process holds the descriptor (see [`family`]). So a server
//! that accepts, forks, and closes in the parent is accelerated in the child. A child that uses no connection causes
//! no work.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_driver::Readiness;
use netacc_proto::Reason;
use netacc_registry::BackendFds;

use super::{exit, flows, shortage, starting};
use crate::datagram::Datagram;
use crate::os::{actions, confinement, deferral, kept, lingering, own, real, uses};
use crate::runtime::helper::ASLEEP;
use crate::runtime::inherited::add_way;
use crate::runtime::{self, get, Inherited, Runtime};
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::{family, queues, switching, trace, wait};

thread_local! {
    /// The descriptors of the backend, and those that threads and epoll instances have for their waits, listed before
    /// this thread forks, because locks may be held in the child.
    static FDS: Cell<BackendFds> = const { Cell::new(BackendFds { own: Vec::new(), libraries: Vec::new() }) };

    /// The runtime whose helper does not work until this thread has forked.
    static PAUSED: Cell<Option<&'static Runtime>> = const { Cell::new(None) };
}

/// Before fork: no operation may be half done, and the child enters the family as one more holder of each socket.
pub fn before_fork() {
    if confinement::is_confined() {
        return;
    }
    let known = family::before_fork();
    let rt = get().and_then(|rt| Some((rt, rt.endpoint()?)));
    let entries: Vec<_> = table::entries().collect();
    flows::before_fork(&entries, known);
    for (_, entry) in entries {
        if let Entry::Epoll(epoll) = &*entry {
            epoll.before_fork();
        }
        let Entry::Stream(sock) = &*entry else { continue };
        match family::share(sock.family.load(Ordering::Relaxed)).filter(|_| known) {
            Some(id) => {
                if sock.family.swap(id, Ordering::Relaxed) != id && sock.loans.count() > 0 {
                    family::lend(id);
                }
            }
            None => {
                sock.record_reason(Reason::Shared);
                sock.keep_on_kernel();
            }
        }
        let (Some(cell), Some((rt, endpoint))) = (&sock.stream, rt) else { continue };
        rt.share(cell);
        let mut guard = cell.lock(endpoint);
        // The child sees a plain socket and writes to it; the marker would come behind those bytes.
        guard.change(|stream| stream.withdraw());
        let promoting = matches!(guard.proto().phase(), netacc_proto::Phase::Promoting);
        drop(guard);
        if promoting {
            // The peer may be waiting for its application to read, for as long as it likes.
            switching::demote(endpoint, cell, Reason::Shared, switching::PROMOTION_PATIENCE);
        }
    }
    // After the last wait for the helper, and before this thread takes locks that the helper's work may need.
    PAUSED.set(get().filter(|rt| rt.helper.work.pause_work()));
    lingering::before_fork();
    // Last: the helper may be in the middle of a call.
    netacc_registry::before_fork();
    FDS.set(get().map_or_else(BackendFds::default, |rt| {
        let mut fds = rt.backend_fds();
        let helpers = rt.helper.fds();
        fds.own.extend(own::list().into_iter().filter(|fd| !helpers.contains(fd)));
        fds
    }));
}

/// After fork, or one that has failed, in the parent.
pub fn after_fork_parent() {
    if let Some(rt) = PAUSED.take() {
        rt.helper.work.go_on();
    }
    if confinement::is_confined() {
        return;
    }
    netacc_registry::after_fork();
    lingering::after_fork_parent();
}

/// After fork, in the child: the device, the links and the helper stay with the parent.
pub fn after_fork_child() {
    // Also in a child that confines itself: the program's calls are counted in any case.
    netacc_descriptors::after_fork_child();
    trace::after_fork_child();
    if confinement::is_confined() {
        return;
    }
    PAUSED.set(None);
    trace::give_back();
    own::after_fork_child();
    actions::after_fork_child();
    deferral::after_fork_child();
    netacc_registry::after_fork();
    lingering::after_fork_child();
    family::after_fork_child();
    starting::after_fork_child();
    // Also if the parent was still making its runtime: its helper may have held their locks.
    queues::after_fork_child();
    wait::after_fork_child();
    let Some(rt) = runtime::forget() else { return };
    ASLEEP.store(false, Ordering::SeqCst);
    exit::after_fork_child();
    // A parent without descriptors has no link, and does not answer.
    let answers = !uses::is_over();
    shortage::after_fork_child();
    let mut done: Vec<(*const Entry, Arc<Entry>)> = Vec::new();
    for (fd, entry) in table::entries() {
        table::remove(fd);
        // Several descriptors may name one socket.
        let known = done.iter().find(|(old, _)| *old == Arc::as_ptr(&entry)).map(|(_, new)| new.clone());
        let new = known.unwrap_or_else(|| Arc::new(inherit((rt, answers), fd, &entry)));
        if let Entry::Epoll(epoll) = &*new {
            epoll.named(fd);
        }
        done.push((Arc::as_ptr(&entry), new.clone()));
        // The parent's objects stay in memory: locks inside them may be held for ever.
        kept::keep(entry);
        table::insert(fd, new);
    }
    let BackendFds { own, libraries } = FDS.take();
    for fd in own {
        // SAFETY: a descriptor of the library, inherited and of no use here.
        unsafe { real::close(fd) };
    }
    // Libraries that the backend has loaded keep these numbers, also in the child. SAFETY: the path is a C string.
    let nothing = if libraries.is_empty() { -1 } else { unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_CLOEXEC) } };
    for fd in libraries {
        // SAFETY: as above.
        unsafe { real::dup3(nothing, fd, libc::O_CLOEXEC) };
    }
    if nothing >= 0 {
        // SAFETY: just opened.
        unsafe { real::close(nothing) };
    }
    add_way(rt.helper.kick_fd());
    for fd in rt.helper.fds() {
        if fd != rt.helper.kick_fd() {
            // SAFETY: as above. The kick descriptor stays: the child sends its requests to the parent by it.
            unsafe { real::close(fd) };
        }
    }
}

/// Replaces the parent's entry by the child's. The child requests the parent's streams if the parent `answers`. Takes
/// no lock that another thread of the parent may hold.
fn inherit((rt, answers): (&'static Runtime, bool), fd: c_int, entry: &Entry) -> Entry {
    match entry {
        Entry::Stream(sock) => {
            let fresh = Socket::inherited_from(sock, fd);
            let kernel = Readiness::KERNEL_RX | Readiness::KERNEL_TX;
            if let Some(cell) = sock.stream.as_ref().filter(|s| answers && !s.readiness().contains(kernel)) {
                fresh.inherit(Inherited::of(cell, rt));
            } else if let Some(unused) = sock.inherited().and_then(Inherited::passed_on) {
                // The parent has not used it either: the link belongs to the process that the parent
                // would send its request to.
                fresh.inherit(unused);
            }
            Entry::Stream(fresh)
        }
        Entry::Idle(l) => Entry::Idle(l.duplicate()),
        Entry::Epoll(e) => Entry::Epoll(e.after_fork(fd)),
        Entry::Datagram(socket) => Entry::Datagram(Arc::new(Datagram::inherited_from(socket))),
        Entry::Ring(ring) => Entry::Ring(ring.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::starting::starting;

    /// Breaks if a child waited for a thread of its parent that was making a runtime when the parent forked.
    #[test]
    fn a_child_can_start_although_its_parent_was_starting() {
        let starting_lock = starting().lock();
        // SAFETY: the child calls what a child calls, and leaves.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            after_fork_child();
            let free = starting().try_lock().is_some();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!free)) };
        }
        drop(starting_lock);
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child found the lock held");
    }
}
