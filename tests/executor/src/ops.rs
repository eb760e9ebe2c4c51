//! The operations, as a worker does them.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netacc_program::{
    pattern, EpollAction, How, Interest, Op, Option_, Outcome, RecvCall, RecvFlags, SendCall, SendFlags,
};

use crate::ledger::{Direction, Ledger};
use crate::sys::{self, Fd};
use crate::worker::{Instance, Slot, Worker};
use crate::world;

/// The same after a step has waited in vain: what follows a difference need not be waited for.
const IMPATIENCE: Duration = Duration::from_millis(10);
/// Between two looks where nothing can be waited for.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// Pieces in which `fill` sends, and an end of it on a kernel that grows its buffers.
const FILL_PIECE: usize = 4000;
const FILL_MOST: usize = 64 << 20;
/// Largest piece of `send_all`, `recv_all` and `drain`.
const PIECE: usize = 256 * 1024;

/// Of the program that runs, read from the ledger with each step.
static IN_VAIN: AtomicBool = AtomicBool::new(false);
/// Ports that this process has asked for.
static NEXT_PORT: AtomicU32 = AtomicU32::new(0);

/// Whether some step of the program has waited in vain.
pub(crate) fn set_in_vain(in_vain: bool) {
    IN_VAIN.store(in_vain, Ordering::Relaxed);
}

fn patience() -> Duration {
    if IN_VAIN.load(Ordering::Relaxed) {
        IMPATIENCE
    } else {
        world::patience()
    }
}

const BITS: [(c_int, &str); 6] = [
    (libc::EPOLLIN, "in"),
    (libc::EPOLLOUT, "out"),
    (libc::EPOLLRDHUP, "rdhup"),
    (libc::EPOLLHUP, "hup"),
    (libc::EPOLLERR, "err"),
    (0x20, "nval"),
];

fn names(bits: u32) -> String {
    let set: Vec<_> = BITS.iter().filter(|(b, _)| bits & *b as u32 != 0).map(|(_, n)| *n).collect();
    set.join("|")
}

fn bits(names: &str) -> u32 {
    BITS.iter().filter(|(_, n)| names.split('|').any(|x| x == *n)).map(|(b, _)| *b as u32).sum()
}

fn mask(interest: Interest) -> u32 {
    let set = [
        (interest.input, libc::EPOLLIN),
        (interest.output, libc::EPOLLOUT),
        (interest.rdhup, libc::EPOLLRDHUP),
        (interest.edge, libc::EPOLLET),
        (interest.oneshot, libc::EPOLLONESHOT),
    ];
    set.iter().filter(|(on, _)| *on).map(|(_, b)| *b as u32).sum()
}

pub(crate) fn errno_name(error: &io::Error) -> String {
    let Some(code) = error.raw_os_error() else { return error.to_string() };
    let known = [
        (libc::EAGAIN, "EAGAIN"),
        (libc::EBADF, "EBADF"),
        (libc::ECONNABORTED, "ECONNABORTED"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::ECONNRESET, "ECONNRESET"),
        (libc::EEXIST, "EEXIST"),
        (libc::EINPROGRESS, "EINPROGRESS"),
        (libc::EINTR, "EINTR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EISCONN, "EISCONN"),
        (libc::ENOENT, "ENOENT"),
        (libc::ENOTCONN, "ENOTCONN"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EPIPE, "EPIPE"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
    ];
    known.iter().find(|(c, _)| *c == code).map_or_else(|| format!("errno {code}"), |(_, n)| (*n).to_owned())
}

pub(crate) fn failure(error: &io::Error) -> Outcome {
    Outcome::error(errno_name(error))
}

pub(crate) fn outcome(result: io::Result<i64>) -> Outcome {
    match result {
        Ok(value) => Outcome::value(value),
        Err(error) => failure(&error),
    }
}

/// The kernel's own count of what it delivered, before a descriptor goes.
pub(crate) fn note_kernel(ledger: &Ledger, slot: &Slot) {
    if let (Some((c, side)), Some(bytes)) = (slot.end, sys::kernel_received(slot.fd)) {
        ledger.directions[c as usize][usize::from(1 - side)].kernel.fetch_max(bytes, Ordering::SeqCst);
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Does one operation. `expect` is what the oracle saw.
pub(crate) fn run(worker: &Worker, op: &Op, expect: Option<&Outcome>) -> Outcome {
    let pipes = sys::pipes();
    set_in_vain(worker.ledger.in_vain.load(Ordering::SeqCst) != 0);
    let begun = Instant::now();
    let mut outcome = dispatch(worker, op, expect);
    if begun.elapsed() >= world::patience() {
        worker.ledger.in_vain.store(1, Ordering::SeqCst);
    }
    outcome.sigpipe = sys::pipes() != pipes;
    worker.ledger.progress.fetch_add(1, Ordering::SeqCst);
    outcome
}

fn dispatch(worker: &Worker, op: &Op, expect: Option<&Outcome>) -> Outcome {
    let slot = |s: &u32| worker.slot(*s);
    let none = || Outcome::skipped("no such slot");
    match op {
        Op::Socket { s, v6, nonblock, cloexec } => open_socket(worker, *s, *v6, *nonblock, *cloexec),
        Op::Bind { s } => slot(s).map_or_else(none, |slot| bind(worker, &slot)),
        Op::Listen { s, l, backlog } => slot(s).map_or_else(none, |slot| listen(worker, &slot, *l, *backlog)),
        Op::Connect { s, l, c } => slot(s).map_or_else(none, |slot| connect(worker, (*s, &slot), *l, *c)),
        Op::Accept { from, s, c, nonblock } => {
            slot(from).map_or_else(none, |slot| accept(worker, &slot, (*s, *c), *nonblock, expect))
        }
        Op::Send { s, n, call, flags } => {
            slot(s).map_or_else(none, |slot| send(worker, &slot, (*n, *call, *flags), expect))
        }
        Op::SendAll { s, n } => slot(s).map_or_else(none, |slot| send_all(worker, &slot, *n)),
        Op::Recv { s, n, call, flags } => {
            slot(s).map_or_else(none, |slot| receive(worker, &slot, (*n, *call, *flags), expect))
        }
        Op::RecvAll { s, n } => slot(s).map_or_else(none, |slot| receive_all(worker, &slot, u64::from(*n))),
        Op::Fill { s } => slot(s).map_or_else(none, |slot| fill(worker, &slot, expect)),
        Op::Drain { s } => slot(s).map_or_else(none, |slot| drain(worker, &slot, expect)),
        Op::Shutdown { s, how } => slot(s).map_or_else(none, |slot| {
            let how = match how {
                How::Write => libc::SHUT_WR,
                How::Read => libc::SHUT_RD,
                How::Both => libc::SHUT_RDWR,
            };
            outcome(sys::shutdown(slot.fd, how).map(|()| 0))
        }),
        Op::Close { s } => close(worker, *s),
        Op::Dup { s, to } => slot(s).map_or_else(none, |slot| dup(worker, &slot, *to)),
        Op::Set { s, option, value } => slot(s).map_or_else(none, |slot| set(&slot, *option, *value)),
        Op::Get { s, option } => slot(s).map_or_else(none, |slot| get(&slot, *option, expect)),
        Op::Fionread { s } => slot(s).map_or_else(none, |slot| fionread(&slot, expect)),
        Op::Poll { s, interest, wait, select } => poll(worker, s, *interest, (*wait, *select), expect),
        Op::EpollCreate { e } => match sys::epoll_create() {
            Ok(fd) => {
                worker.slots().epolls.insert(*e, Instance { fd, slots: BTreeMap::new() });
                Outcome::value(0)
            }
            Err(error) => failure(&error),
        },
        Op::EpollCtl { e, s, action, interest } => epoll_ctl(worker, *e, *s, *action, *interest),
        Op::EpollWait { e, max, wait } => epoll_wait(worker, *e, *max as usize, *wait, expect),
        Op::Pause { us } => {
            std::thread::sleep(Duration::from_micros(u64::from(*us)));
            Outcome::default()
        }
        Op::Warm { .. } | Op::Join { .. } | Op::Fork { .. } | Op::Exec | Op::Pass { .. } | Op::Exit | Op::Kill => {
            Outcome::skipped("the coordinator's")
        }
    }
}

// ---- connections ----------------------------------------------------------------------------------------------------

fn open_socket(worker: &Worker, s: u32, v6: bool, nonblock: bool, cloexec: bool) -> Outcome {
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
            worker.slots().sockets.insert(s, Slot { fd, end: None, cloexec });
            Outcome::value(0)
        }
        Err(error) => failure(&error),
    }
}

/// What Nagle's algorithm holds back would arrive with the peer's delayed acknowledgement, 40 ms later.
fn no_delay(fd: Fd) {
    let on: c_int = 1;
    let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on);
}

fn bind(worker: &Worker, slot: &Slot) -> Outcome {
    let v6 = sys::local_port(slot.fd).is_ok_and(|(_, v6)| v6);
    let address = worker.world.address(u16::from(worker.host), v6);
    let Some((from, to)) = worker.world.ports else { return outcome(sys::bind(slot.fd, address, 0).map(|()| 0)) };
    // Begins elsewhere in each process, and goes on behind what is taken.
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

fn listen(worker: &Worker, slot: &Slot, l: u32, backlog: u32) -> Outcome {
    if let Err(error) = sys::listen(slot.fd, backlog) {
        return failure(&error);
    }
    match sys::local_port(slot.fd) {
        Ok((port, v6)) => {
            let listener = &worker.ledger.listeners[l as usize];
            listener.host.store(u16::from(worker.host), Ordering::SeqCst);
            listener.v6.store(u16::from(v6), Ordering::SeqCst);
            listener.port.store(port, Ordering::SeqCst);
            Outcome::value(0)
        }
        Err(error) => failure(&error),
    }
}

fn connect(worker: &Worker, (s, slot): (u32, &Slot), l: u32, c: u32) -> Outcome {
    let listener = &worker.ledger.listeners[l as usize];
    let port = listener.port.load(Ordering::SeqCst);
    if port == 0 {
        return Outcome::skipped("nobody has listened there");
    }
    let v6 = listener.v6.load(Ordering::SeqCst) != 0;
    let address = worker.world.address(listener.host.load(Ordering::SeqCst), v6);
    let result = sys::connect(slot.fd, address, port);
    if let Some(slot) = worker.slots().sockets.get_mut(&s) {
        slot.end = Some((c, 0));
    }
    outcome(result.map(|()| 0))
}

fn accept(worker: &Worker, slot: &Slot, (s, c): (u32, u32), nonblock: bool, expect: Option<&Outcome>) -> Outcome {
    let flags = if nonblock { libc::SOCK_NONBLOCK } else { 0 };
    let begun = Instant::now();
    loop {
        match sys::accept(slot.fd, flags) {
            Ok(fd) => {
                no_delay(fd);
                worker.slots().sockets.insert(s, Slot { fd, end: Some((c, 1)), cloexec: false });
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

fn close(worker: &Worker, s: u32) -> Outcome {
    let Some(slot) = worker.slots().sockets.remove(&s) else { return Outcome::skipped("no such slot") };
    worker.slots().unname(s, &slot);
    note_kernel(worker.ledger, &slot);
    outcome(sys::close(slot.fd).map(|()| 0))
}

fn dup(worker: &Worker, slot: &Slot, to: u32) -> Outcome {
    let onto = worker.slot(to);
    let result = match &onto {
        Some(old) => {
            note_kernel(worker.ledger, old);
            sys::dup2(slot.fd, old.fd)
        }
        None => sys::dup(slot.fd),
    };
    match result {
        Ok(fd) => {
            let mut slots = worker.slots();
            if let Some(old) = slots.sockets.remove(&to) {
                slots.unname(to, &old);
            }
            slots.sockets.insert(to, Slot { fd, end: slot.end, cloexec: false });
            Outcome::value(0)
        }
        Err(error) => failure(&error),
    }
}

// ---- bytes ----------------------------------------------------------------------------------------------------------

fn directions<'a>(worker: &'a Worker, slot: &Slot) -> Option<([&'a Direction; 2], [u64; 2])> {
    let (c, side) = slot.end?;
    let pair = &worker.ledger.directions[c as usize];
    let (ours, theirs) = (usize::from(side), usize::from(1 - side));
    Some(([&pair[ours], &pair[theirs]], [pattern::key(c, side), pattern::key(c, 1 - side)]))
}

/// Waits with `poll`, until [`patience`] after `begun` at most.
fn wait_for(fd: Fd, events: i16, begun: Instant) -> bool {
    let left = patience().saturating_sub(begun.elapsed());
    let mut one = [libc::pollfd { fd, events, revents: 0 }];
    let ready = sys::poll(&mut one, left.as_millis() as c_int).is_ok_and(|n| n > 0);
    if ready && one[0].revents & events == 0 {
        // Something else is ready, for good: do not spin.
        std::thread::sleep(LOOK_AGAIN);
    }
    ready
}

fn send_once(fd: Fd, bytes: &[u8], call: SendCall, flags: SendFlags) -> io::Result<usize> {
    let mut bits = 0;
    for (on, bit) in
        [(flags.dontwait, libc::MSG_DONTWAIT), (flags.more, libc::MSG_MORE), (flags.nosignal, libc::MSG_NOSIGNAL)]
    {
        if on {
            bits |= bit;
        }
    }
    match call {
        SendCall::Send => sys::send(fd, bytes, bits),
        SendCall::Sendto => sys::sendto(fd, bytes, bits),
        SendCall::Sendmsg => sys::sendmsg(fd, bytes, bits),
        SendCall::Write => sys::write(fd, bytes),
        SendCall::Writev => sys::writev(fd, bytes),
    }
}

fn send(
    worker: &Worker,
    slot: &Slot,
    (n, call, flags): (u32, SendCall, SendFlags),
    expect: Option<&Outcome>,
) -> Outcome {
    let mut bytes = vec![0; n as usize];
    let ledger = directions(worker, slot);
    if let Some(([out, _], [key, _])) = &ledger {
        pattern::fill(*key, out.sent.load(Ordering::SeqCst), &mut bytes);
    }
    let want = expect.map_or(0, |e| e.ret.max(0) as usize);
    let (mut done, mut calls, begun) = (0, 0, Instant::now());
    loop {
        calls += 1;
        let result = send_once(slot.fd, &bytes[done..], call, flags);
        if let (Some(([out, _], _)), Ok(sent)) = (&ledger, &result) {
            out.sent.fetch_add(*sent as u64, Ordering::SeqCst);
        }
        let patient = done < want && begun.elapsed() < patience();
        match result {
            Ok(sent) => {
                done += sent;
                if done >= want || !patient {
                    return Outcome { calls, ..Outcome::value(done as i64) };
                }
            }
            // Freedom "room": there may be none for a moment, as long as waiting for it helps.
            Err(error) if would_block(&error) && patient => {
                wait_for(slot.fd, libc::POLLOUT, begun);
            }
            Err(error) if done == 0 => return Outcome { calls, ..failure(&error) },
            Err(_) => return Outcome { calls, ..Outcome::value(done as i64) },
        }
    }
}

fn send_all(worker: &Worker, slot: &Slot, n: u32) -> Outcome {
    let Some(([out, _], [key, _])) = directions(worker, slot) else { return Outcome::skipped("no connection") };
    let mut bytes = vec![0; PIECE.min(n as usize)];
    let (mut done, mut calls) = (0u64, 0);
    let mut begun = Instant::now();
    while done < u64::from(n) {
        let len = PIECE.min((u64::from(n) - done) as usize);
        pattern::fill(key, out.sent.load(Ordering::SeqCst), &mut bytes[..len]);
        calls += 1;
        match sys::send(slot.fd, &bytes[..len], 0) {
            Ok(sent) => {
                out.sent.fetch_add(sent as u64, Ordering::SeqCst);
                worker.ledger.progress.fetch_add(1, Ordering::SeqCst);
                done += sent as u64;
                begun = Instant::now();
            }
            Err(error) if would_block(&error) && begun.elapsed() < patience() => {
                wait_for(slot.fd, libc::POLLOUT, begun);
            }
            Err(error) => {
                return Outcome { ret: done as i64, calls, errno: Some(errno_name(&error)), ..Outcome::default() }
            }
        }
    }
    Outcome { calls, ..Outcome::value(done as i64) }
}

fn fill(worker: &Worker, slot: &Slot, expect: Option<&Outcome>) -> Outcome {
    let Some(([out, _], [key, _])) = directions(worker, slot) else { return Outcome::skipped("no connection") };
    let mut bytes = vec![0; FILL_PIECE];
    let (mut done, begun) = (0, Instant::now());
    let some = expect.is_some_and(|e| e.ret > 0);
    while done < FILL_MOST {
        pattern::fill(key, out.sent.load(Ordering::SeqCst), &mut bytes);
        match sys::send(slot.fd, &bytes, libc::MSG_DONTWAIT) {
            Ok(sent) => {
                out.sent.fetch_add(sent as u64, Ordering::SeqCst);
                done += sent;
            }
            // As in `send`: where there was room for some there is, if not at once.
            Err(error) if would_block(&error) && some && done == 0 && begun.elapsed() < patience() => {
                wait_for(slot.fd, libc::POLLOUT, begun);
            }
            Err(error) => return Outcome { ret: done as i64, errno: Some(errno_name(&error)), ..Outcome::default() },
        }
    }
    Outcome::value(done as i64)
}

fn receive_once(fd: Fd, buffer: &mut [u8], call: RecvCall, flags: c_int) -> io::Result<usize> {
    match call {
        RecvCall::Recv => sys::recv(fd, buffer, flags),
        RecvCall::Recvfrom => sys::recvfrom(fd, buffer, flags),
        RecvCall::Recvmsg => sys::recvmsg(fd, buffer, flags),
        RecvCall::Read => sys::read(fd, buffer),
        RecvCall::Readv => sys::readv(fd, buffer),
    }
}

fn receive(
    worker: &Worker,
    slot: &Slot,
    (n, call, flags): (u32, RecvCall, RecvFlags),
    expect: Option<&Outcome>,
) -> Outcome {
    let mut bits = 0;
    for (on, bit) in [
        (flags.dontwait, libc::MSG_DONTWAIT),
        (flags.peek, libc::MSG_PEEK),
        (flags.waitall, libc::MSG_WAITALL),
        (flags.trunc, libc::MSG_TRUNC),
    ] {
        if on {
            bits |= bit;
        }
    }
    let ledger = directions(worker, slot);
    // Where the call takes no flags these are not asked for.
    let plain = matches!(call, RecvCall::Read | RecvCall::Readv);
    let (peek, trunc) = (flags.peek && !plain, flags.trunc && !plain);
    let mut buffer = vec![0; n as usize];
    let mut out = Outcome::default();
    let begun = Instant::now();
    let want = expect.map_or(0, |e| if e.errno.is_none() { e.ret.max(0) as usize } else { 0 });
    let mut got = 0;
    loop {
        out.calls += 1;
        // What is read in further pieces must not block where the first did not have to.
        let more = if got > 0 { bits | libc::MSG_DONTWAIT } else { bits };
        let result = match got {
            0 => receive_once(slot.fd, &mut buffer, call, bits),
            _ => sys::recv(slot.fd, &mut buffer[..n as usize - got], more),
        };
        let late = begun.elapsed() >= patience();
        match result {
            Ok(0) if n > 0 => {
                out.end = got == 0 || want > got;
                break;
            }
            Ok(k) => {
                if let Some(([_, from], [_, key])) = &ledger {
                    let at = from.received.load(Ordering::SeqCst);
                    if !trunc {
                        out.wrong = out.wrong.or(pattern::mismatch(*key, at, &buffer[..k]));
                    }
                    if !peek {
                        from.received.fetch_add(k as u64, Ordering::SeqCst);
                    }
                }
                got = if peek { k } else { got + k };
                // A call that waits for all of it is not free to return less.
                let whole = flags.waitall && !plain && !flags.dontwait && !sys::is_nonblocking(slot.fd).unwrap_or(true);
                if got >= want || late || whole {
                    break;
                }
                if peek {
                    got = 0;
                    std::thread::sleep(LOOK_AGAIN);
                }
            }
            Err(error) => {
                let arrives = match expect {
                    Some(e) => {
                        e.errno.as_deref() != Some(&errno_name(&error))
                            // Who receives nothing is told that something is there.
                            && (e.ret > got as i64 || e.end || e.errno.is_some() || n == 0)
                    }
                    None => false,
                };
                if would_block(&error) && arrives && !late {
                    wait_for(slot.fd, libc::POLLIN, begun);
                    continue;
                }
                if got == 0 {
                    out.errno = Some(errno_name(&error));
                }
                break;
            }
        }
    }
    out.ret = if out.errno.is_some() { -1 } else { got as i64 };
    out
}

/// `recv_all` and `drain`: up to `most` bytes; without, what was sent, and the end if there is one.
fn take_all(worker: &Worker, slot: &Slot, most: Option<u64>, end_expected: bool) -> Outcome {
    let Some(([_, from], [_, key])) = directions(worker, slot) else { return Outcome::skipped("no connection") };
    let mut buffer = vec![0; PIECE.min(most.unwrap_or(u64::MAX) as usize).max(1)];
    let mut out = Outcome::default();
    let mut begun = Instant::now();
    loop {
        let at = from.received.load(Ordering::SeqCst);
        let left = match most {
            Some(most) => most - out.ret as u64,
            None => from.sent.load(Ordering::SeqCst).saturating_sub(at),
        };
        if most.is_some() && left == 0 {
            return out;
        }
        out.calls += 1;
        let len = if most.is_some() { buffer.len().min(left as usize) } else { buffer.len() };
        match sys::recv(slot.fd, &mut buffer[..len], libc::MSG_DONTWAIT) {
            Ok(0) => {
                out.end = true;
                return out;
            }
            Ok(k) => {
                out.wrong = out.wrong.or(pattern::mismatch(key, at, &buffer[..k]));
                from.received.fetch_add(k as u64, Ordering::SeqCst);
                worker.ledger.progress.fetch_add(1, Ordering::SeqCst);
                out.ret += k as i64;
                begun = Instant::now();
            }
            Err(error) if would_block(&error) && (left > 0 || end_expected) && begun.elapsed() < patience() => {
                wait_for(slot.fd, libc::POLLIN, begun);
            }
            Err(error) if would_block(&error) => {
                out.stuck = left > 0;
                return out;
            }
            Err(error) => {
                out.errno = Some(errno_name(&error));
                return out;
            }
        }
    }
}

fn receive_all(worker: &Worker, slot: &Slot, n: u64) -> Outcome {
    take_all(worker, slot, Some(n), false)
}

fn drain(worker: &Worker, slot: &Slot, expect: Option<&Outcome>) -> Outcome {
    take_all(worker, slot, None, expect.is_some_and(|e| e.end || e.errno.is_some()))
}

fn fionread(slot: &Slot, expect: Option<&Outcome>) -> Outcome {
    let begun = Instant::now();
    loop {
        match sys::unread(slot.fd) {
            Ok(n) if expect.is_some_and(|e| e.ret > n as i64) && begun.elapsed() < patience() => {
                std::thread::sleep(LOOK_AGAIN);
            }
            result => return outcome(result.map(|n| n as i64)),
        }
    }
}

// ---- options --------------------------------------------------------------------------------------------------------

fn timeval(ms: i32) -> libc::timeval {
    libc::timeval { tv_sec: i64::from(ms) / 1000, tv_usec: i64::from(ms % 1000) * 1000 }
}

fn number_option(option: Option_) -> Option<(c_int, c_int)> {
    Some(match option {
        Option_::Nodelay => (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        Option_::Cork => (libc::IPPROTO_TCP, libc::TCP_CORK),
        Option_::Quickack => (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
        Option_::Keepalive => (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        Option_::Rcvlowat => (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        Option_::Error => (libc::SOL_SOCKET, libc::SO_ERROR),
        Option_::Type => (libc::SOL_SOCKET, libc::SO_TYPE),
        Option_::Reuseaddr => (libc::SOL_SOCKET, libc::SO_REUSEADDR),
        _ => return None,
    })
}

fn set(slot: &Slot, option: Option_, value: i32) -> Outcome {
    let result = match option {
        Option_::Linger => {
            let linger = libc::linger { l_onoff: c_int::from(value >= 0), l_linger: value.max(0) };
            sys::set_option(slot.fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
        }
        Option_::Rcvtimeo => sys::set_option(slot.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeval(value)),
        Option_::Sndtimeo => sys::set_option(slot.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &timeval(value)),
        Option_::Nonblock => sys::set_nonblocking(slot.fd, value != 0, false),
        Option_::Fionbio => sys::set_nonblocking(slot.fd, value != 0, true),
        other => match number_option(other) {
            Some((level, name)) => sys::set_option(slot.fd, level, name, &value),
            None => return Outcome::skipped("cannot be set"),
        },
    };
    outcome(result.map(|()| 0))
}

fn get(slot: &Slot, option: Option_, expect: Option<&Outcome>) -> Outcome {
    let ms = |t: libc::timeval| t.tv_sec * 1000 + t.tv_usec / 1000;
    let result = match option {
        Option_::Linger => sys::get_option::<libc::linger>(slot.fd, libc::SOL_SOCKET, libc::SO_LINGER).map(|l| {
            if l.l_onoff != 0 {
                i64::from(l.l_linger)
            } else {
                -1
            }
        }),
        Option_::Rcvtimeo => sys::get_option(slot.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO).map(ms),
        Option_::Sndtimeo => sys::get_option(slot.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO).map(ms),
        Option_::Nonblock | Option_::Fionbio => sys::is_nonblocking(slot.fd).map(i64::from),
        Option_::Error => {
            let begun = Instant::now();
            loop {
                let value = sys::get_option::<c_int>(slot.fd, libc::SOL_SOCKET, libc::SO_ERROR);
                let awaited = expect.is_some_and(|e| e.ret != 0);
                if matches!(value, Ok(0)) && awaited && begun.elapsed() < patience() {
                    std::thread::sleep(LOOK_AGAIN);
                    continue;
                }
                break value.map(i64::from);
            }
        }
        other => match number_option(other) {
            Some((level, name)) => sys::get_option::<c_int>(slot.fd, level, name).map(i64::from),
            None => return Outcome::skipped("cannot be asked"),
        },
    };
    outcome(result)
}

// ---- readiness ------------------------------------------------------------------------------------------------------

type Events = BTreeMap<u32, u32>;

fn wanted(names: &BTreeMap<u32, String>) -> Events {
    names.iter().map(|(s, names)| (*s, bits(names))).collect()
}

fn missing(wanted: &Events, seen: &Events) -> Vec<(u32, u32)> {
    let open = |(s, want): (&u32, &u32)| (*s, want & !seen.get(s).copied().unwrap_or(0));
    wanted.iter().map(open).filter(|(_, bits)| *bits != 0).collect()
}

fn named(events: &Events) -> BTreeMap<u32, String> {
    events.iter().filter(|(_, b)| **b != 0).map(|(s, b)| (*s, names(*b))).collect()
}

fn poll_slots(worker: &Worker, slots: &[(u32, u32)], timeout_ms: c_int, select: bool) -> io::Result<Events> {
    let mut fds: Vec<_> = slots
        .iter()
        .map(|(s, events)| libc::pollfd {
            fd: worker.slot(*s).map_or(-1, |slot| slot.fd),
            events: *events as i16,
            revents: 0,
        })
        .collect();
    if select {
        fds.retain(|p| p.fd >= 0);
        sys::select(&mut fds, timeout_ms)?;
    } else {
        sys::poll(&mut fds, timeout_ms)?;
    }
    let of = |fd: Fd| fds.iter().find(|p| p.fd == fd).map_or(0, |p| u32::from(p.revents as u16));
    Ok(slots.iter().filter_map(|(s, _)| Some((*s, of(worker.slot(*s)?.fd)))).collect())
}

fn poll(
    worker: &Worker,
    slots: &[u32],
    interest: Interest,
    (wait, select): (bool, bool),
    expect: Option<&Outcome>,
) -> Outcome {
    let wanted = expect.map(|e| wanted(&e.events)).unwrap_or_default();
    let all: Vec<_> = slots.iter().map(|s| (*s, mask(interest))).collect();
    let timeout = if wait { patience().as_millis() as c_int } else { 0 };
    match poll_until(worker, &all, &wanted, (timeout, select)) {
        Ok(seen) => {
            let ready = seen.values().filter(|b| **b != 0).count();
            Outcome { events: named(&seen), ..Outcome::value(ready as i64) }
        }
        Err(error) => failure(&error),
    }
}

/// Polls with a time limit of so many milliseconds, and again, bounded, until what is wanted is there.
fn poll_until(
    worker: &Worker,
    slots: &[(u32, u32)],
    wanted: &Events,
    (mut timeout_ms, select): (c_int, bool),
) -> io::Result<Events> {
    let begun = Instant::now();
    loop {
        let seen = poll_slots(worker, slots, timeout_ms, select)?;
        let missing = missing(wanted, &seen);
        if missing.is_empty() || begun.elapsed() >= patience() {
            return Ok(seen);
        }
        // Sleep for just what is missing, so that a wake-up that is lost is noticed.
        let left = patience().saturating_sub(begun.elapsed()).as_millis() as c_int;
        let before = begun.elapsed();
        let _ = poll_slots(worker, &missing, left, select);
        if begun.elapsed() - before < LOOK_AGAIN {
            std::thread::sleep(LOOK_AGAIN);
        }
        timeout_ms = 0;
    }
}

fn epoll_ctl(worker: &Worker, e: u32, s: u32, action: EpollAction, interest: Interest) -> Outcome {
    let Some(slot) = worker.slot(s) else { return Outcome::skipped("no such slot") };
    let Some(epoll) = worker.slots().epolls.get(&e).map(|i| i.fd) else { return Outcome::skipped("no such instance") };
    let number = match action {
        EpollAction::Add => libc::EPOLL_CTL_ADD,
        EpollAction::Mod => libc::EPOLL_CTL_MOD,
        EpollAction::Del => libc::EPOLL_CTL_DEL,
    };
    let result = sys::epoll_ctl(epoll, number, slot.fd, mask(interest), u64::from(s));
    if result.is_ok() {
        if let Some(instance) = worker.slots().epolls.get_mut(&e) {
            match action {
                EpollAction::Add => drop(instance.slots.insert(s, s)),
                EpollAction::Mod => {}
                EpollAction::Del => drop(instance.slots.remove(&s)),
            }
        }
    }
    outcome(result.map(|()| 0))
}

fn epoll_wait(worker: &Worker, e: u32, max: usize, wait: bool, expect: Option<&Outcome>) -> Outcome {
    let Some(instance) = worker.slots().epolls.get(&e).cloned() else { return Outcome::skipped("no such instance") };
    let begun = Instant::now();
    let expected = expect.map(|e| wanted(&e.events)).unwrap_or_default();
    let mut seen = Events::new();
    loop {
        let left = patience().saturating_sub(begun.elapsed()).as_millis() as c_int;
        let timeout = if wait && seen.is_empty() || !missing(&expected, &seen).is_empty() { left } else { 0 };
        let before = begun.elapsed();
        match sys::epoll_wait(instance.fd, max, timeout) {
            Ok(events) => {
                for (s, bits) in events {
                    *seen.entry(s as u32).or_default() |= bits;
                }
            }
            Err(error) => return failure(&error),
        }
        if missing(&expected, &seen).is_empty() || begun.elapsed() >= patience() {
            break;
        }
        if begun.elapsed() - before < LOOK_AGAIN {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    let everything = mask(Interest { input: true, output: true, rdhup: true, ..Interest::default() });
    let all: Vec<_> = instance.slots.values().map(|name| (*name, everything)).collect();
    // By the slots' present names.
    let expected = expect.map(|e| wanted(&e.level)).unwrap_or_default();
    let expected = expected.into_iter().filter_map(|(s, bits)| Some((*instance.slots.get(&s)?, bits))).collect();
    let levels = poll_until(worker, &all, &expected, (0, false)).unwrap_or_default();
    let level = instance.slots.iter().filter_map(|(s, name)| Some((*s, *levels.get(name)?))).collect();
    Outcome { events: named(&seen), level: named(&level), ..Outcome::value(seen.len() as i64) }
}
