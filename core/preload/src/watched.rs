//! Sockets that are watched, while their descriptors are closed, and while they become connections or cease to be.
//!
//! In the kernel an instance watches the open file: a registration lives until the last descriptor of that file is
//! closed, and keeps reporting although its number may name something else by then. Likewise here: the interest moves
//! to a duplicate that the library keeps for as long as the program has other descriptors of the socket.

use std::ffi::c_int;
use std::sync::Arc;

use netacc_proto::Reason;
use parking_lot::Mutex;

use crate::os::lingering;
use crate::runtime::{self, Runtime};
use crate::socket::Socket;
use crate::switching;
use crate::watchers::{unwatch, Registration, Subscriber, Watchers};

/// All instances drop `fd`, which is being closed and is the program's last descriptor of its socket. If the library
/// has others (`lingers`), the kernel would go on reporting it, and no thread would use the report.
pub fn forget_fd(watchers: &Watchers, fd: c_int, lingers: bool) {
    for instance in instances(watchers, fd) {
        instance.remove(fd, lingers);
    }
}

/// `fd`, the last descriptor of its socket here, is being closed, and other processes may hold the socket: the kernel's
/// registrations last as long as they hold it. The stream, if there was one, is plain by now.
pub fn leave_to_kernel(watchers: &Watchers, fd: c_int) {
    for instance in instances(watchers, fd) {
        instance.leave_to_kernel(fd);
    }
}

/// Removes the registrations of `fd`. Returns the instances that had them.
fn instances(watchers: &Watchers, fd: c_int) -> Vec<Arc<dyn Subscriber>> {
    // Mostly there is none.
    if watchers.is_empty() {
        return Vec::new();
    }
    let mut all = watchers.lock();
    let (mine, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut *all).into_iter().partition(|r| r.is_under(fd));
    *all = rest;
    mine.iter().filter_map(Registration::instance).collect()
}

/// The instances that watch a file under one of its descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// There are none.
    No,
    /// Only this process waits on them.
    Here,
    /// A fork has copied one of them, so that another process may wait on it.
    Elsewhere,
}

/// Which instances watch `fd`.
pub fn watched_under(watchers: &Watchers, fd: c_int) -> Watched {
    let all = watchers.lock();
    let forked = all.iter().filter(|r| r.is_under(fd)).map(|r| r.instance().is_some_and(|i| i.was_forked()));
    forked.fold(Watched::No, |found, forked| match (found, forked) {
        (Watched::Elsewhere, _) | (_, true) => Watched::Elsewhere,
        _ => Watched::Here,
    })
}

/// `fd` is being closed, and is not the last descriptor of its socket.
pub fn outlive(sock: &Socket, fd: c_int) {
    let watched = watched_under(&sock.watchers, fd);
    let apart = sock.stream.is_some() && (watched == Watched::Elsewhere || !sock.holds_alone());
    if watched != Watched::No && apart {
        // Another process may have the instance as well, and for it a registration that moves would be a different
        // one. So the registration stays the kernel's, and the stream must stay there too, because the
        // library does not poll it any more for threads that wait on the instance alone.
        sock.keep_on_kernel();
        if let (Some(cell), Some(endpoint)) = (&sock.stream, runtime::get().and_then(Runtime::endpoint)) {
            switching::demote(endpoint, cell, Reason::Shared, switching::PROMOTION_PATIENCE);
        }
        return leave_to_kernel(&sock.watchers, fd);
    }
    if watched != Watched::No {
        outlive_as_duplicate(&sock.watchers, &sock.outliving, fd);
    }
}

/// Moves the registrations of `fd`, which is being closed, to a duplicate.
pub fn outlive_as_duplicate(watchers: &Watchers, outliving: &Mutex<Vec<(c_int, c_int)>>, fd: c_int) {
    let Some(kept) = lingering::duplicate(fd) else {
        instances(watchers, fd).iter().for_each(|instance| instance.remove(fd, false));
        return;
    };
    rename(watchers, fd, kept);
    outliving.lock().push((fd, kept));
}

/// Moves the registrations of `from` to `to`. Other threads change the stream meanwhile, so instances are notified
/// under both numbers until they use only the new one.
fn rename(watchers: &Watchers, from: c_int, to: c_int) {
    let watching: Vec<_> = {
        let mut all = watchers.lock();
        let mine = all.iter().filter(|r| r.is_under(from));
        let watching: Vec<_> = mine.filter_map(Registration::instance).collect();
        all.extend(watching.iter().map(|instance| Registration::Epoll(Arc::downgrade(instance), to)));
        watching
    };
    for instance in &watching {
        if !instance.rename(from, to) {
            unwatch(watchers, instance, to);
        }
    }
    instances(watchers, from);
}

/// `fd` names the socket again: for the kernel it is the watched number, as if it had never been closed.
pub fn come_back(watchers: &Watchers, outliving: &Mutex<Vec<(c_int, c_int)>>, fd: c_int) {
    let mut outliving = outliving.lock();
    let Some(at) = outliving.iter().position(|(closed, _)| *closed == fd) else { return };
    let (_, kept) = outliving.swap_remove(at);
    drop(outliving);
    rename(watchers, kept, fd);
    lingering::close(kept);
}

/// The last descriptor of the socket is being closed; `shared` if others may hold the socket.
pub fn end_outliving(watchers: &Watchers, outliving: &Mutex<Vec<(c_int, c_int)>>, shared: bool) {
    let mut outliving = outliving.lock();
    if outliving.is_empty() {
        return;
    }
    let all = std::mem::take(&mut *outliving);
    drop(outliving);
    for (_, kept) in all {
        if shared {
            leave_to_kernel(watchers, kept);
        } else {
            forget_fd(watchers, kept, true);
        }
        lingering::close(kept);
    }
}

/// `fd` has become the connection `sock`: an interest of `instance` in it follows it.
pub fn attach(instance: &Arc<dyn Subscriber>, fd: c_int, sock: &Socket) {
    if instance.attach(fd, sock.stream.as_ref()) {
        sock.watchers.lock().push(Registration::Epoll(Arc::downgrade(instance), fd));
    }
}

/// Carries registrations over from an unconnected socket to the connection that it has become.
pub fn carry_over(watchers: Vec<Registration>, fd: c_int, sock: &Socket) {
    for instance in watchers.iter().filter_map(Registration::instance) {
        attach(&instance, fd, sock);
    }
}

/// A connection is dissolved, and its descriptors stay open: interests in it are the kernel's alone again. Returns the
/// registrations for its next state.
pub fn release(watchers: Vec<Registration>) -> Vec<Registration> {
    for watcher in &watchers {
        let Registration::Epoll(instance, fd) = watcher else { continue };
        if let Some(instance) = instance.upgrade() {
            instance.leave_to_kernel(*fd);
        }
    }
    watchers
}
