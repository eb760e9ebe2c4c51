//! Sockets, from their making to their end.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use netacc_program::Outcome;

use super::bytes::wait_for;
use super::{failure, outcome, patience, record_kernel, would_block};
use crate::process::{Process, Slot};
use crate::sys::{self, Fd};

/// Ports that this process has requested.
static NEXT_PORT: AtomicU32 = AtomicU32::new(0);

pub(super) fn open_socket(process: &Process, s: u32, v6: bool, nonblock: bool, cloexec: bool) -> Outcome {
    let mut flags = 0;
    if nonblock {
        flags |= libc::SOCK_NONBLOCK;
    }
    if cloexec {
        flags |= libc::SOCK_CLOEXEC;
    }
    match sys::socket(v6, flags) {
        Ok(fd) => {
            no_delay(fd);
            process.slots().sockets.insert(s, Slot { fd, end: None, cloexec });
            Outcome::value(0)
        }
        Err(error) => failure(&error),
    }
}

/// Bytes that Nagle's algorithm delays would arrive with the peer's delayed acknowledgement, 40 ms later.
fn no_delay(fd: Fd) {
    let on: c_int = 1;
    let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on);
}

pub(super) fn bind(process: &Process, slot: &Slot) -> Outcome {
    let v6 = sys::local_port(slot.fd).is_ok_and(|(_, v6)| v6);
    let address = process.world.address(u16::from(process.host), v6);
    let Some((from, to)) = process.world.ports else { return outcome(sys::bind(slot.fd, address, 0).map(|()| 0)) };
    // Begins elsewhere in each process, and continues after ports that are taken.
    let count = u32::from(to.saturating_sub(from)) + 1;
    let start = std::process::id().wrapping_mul(31).wrapping_add(NEXT_PORT.fetch_add(1, Ordering::Relaxed));
    for step in 0..count {
        let port = from + (start.wrapping_add(step) % count) as u16;
        match sys::bind(slot.fd, address, port) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => return outcome(result.map(|()| 0)),
        }
    }
    outcome(Err(io::ErrorKind::AddrInUse.into()))
}

pub(super) fn listen(process: &Process, slot: &Slot, l: u32, backlog: u32) -> Outcome {
    if let Err(error) = sys::listen(slot.fd, backlog) {
        return failure(&error);
    }
    match sys::local_port(slot.fd) {
        Ok((port, v6)) => {
            let listener = &process.ledger.listeners[l as usize];
            listener.host.store(u16::from(process.host), Ordering::SeqCst);
            listener.v6.store(u16::from(v6), Ordering::SeqCst);
            listener.port.store(port, Ordering::SeqCst);
            Outcome::value(0)
        }
        Err(error) => failure(&error),
    }
}

pub(super) fn connect(process: &Process, (s, slot): (u32, &Slot), l: u32, c: u32) -> Outcome {
    let listener = &process.ledger.listeners[l as usize];
    let port = listener.port.load(Ordering::SeqCst);
    if port == 0 {
        return Outcome::skipped("no process has listened there");
    }
    let v6 = listener.v6.load(Ordering::SeqCst) != 0;
    let address = process.world.address(listener.host.load(Ordering::SeqCst), v6);
    let result = sys::connect(slot.fd, address, port);
    if let Some(slot) = process.slots().sockets.get_mut(&s) {
        slot.end = Some((c, 0));
    }
    outcome(result.map(|()| 0))
}

pub(super) fn accept(
    process: &Process,
    slot: &Slot,
    (s, c): (u32, u32),
    nonblock: bool,
    expect: Option<&Outcome>,
) -> Outcome {
    let flags = if nonblock { libc::SOCK_NONBLOCK } else { 0 };
    let begun = Instant::now();
    loop {
        match sys::accept(slot.fd, flags) {
            Ok(fd) => {
                no_delay(fd);
                process.slots().sockets.insert(s, Slot { fd, end: Some((c, 1)), cloexec: false });
                return Outcome::value(0);
            }
            Err(error) => {
                let should = expect.is_some_and(|e| e.ret == 0);
                if !(would_block(&error) && should && begun.elapsed() < patience()) {
                    return failure(&error);
                }
                let _ = wait_for(slot.fd, libc::POLLIN, begun);
            }
        }
    }
}

pub(super) fn close(process: &Process, s: u32) -> Outcome {
    let Some(slot) = process.slots().sockets.remove(&s) else { return Outcome::skipped("no such slot") };
    process.slots().unname(s, &slot);
    record_kernel(process.ledger, &slot);
    outcome(sys::close(slot.fd).map(|()| 0))
}

pub(super) fn dup(process: &Process, slot: &Slot, to: u32) -> Outcome {
    let onto = process.slot(to);
    let result = match &onto {
        Some(old) => {
            record_kernel(process.ledger, old);
            sys::dup2(slot.fd, old.fd)
        }
        None => sys::dup(slot.fd),
    };
    match result {
        Ok(fd) => {
            let mut slots = process.slots();
            if let Some(old) = slots.sockets.remove(&to) {
                slots.unname(to, &old);
            }
            slots.sockets.insert(to, Slot { fd, end: slot.end, cloexec: false });
            Outcome::value(0)
        }
        Err(error) => failure(&error),
    }
}
