//! Sending and receiving, and the counts of bytes.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use netacc_program::{pattern, Outcome, RecvCall, RecvFlags, SendCall, SendFlags};

use super::{errno_name, failure, outcome, patience, would_block, POLL_INTERVAL};
use crate::ledger::Direction;
use crate::process::{Process, Slot};
use crate::sys::{self, Fd};

/// Pieces in which `fill` sends, and an end of it on a kernel that grows its buffers.
const FILL_PIECE: usize = 4000;
const FILL_MOST: usize = 64 << 20;
/// Largest piece of `send_all`, `recv_all` and `drain`.
const PIECE: usize = 256 * 1024;

fn directions<'a>(process: &'a Process, slot: &Slot) -> Option<([&'a Direction; 2], [u64; 2])> {
    let (c, side) = slot.end?;
    let pair = &process.ledger.directions[c as usize];
    let (ours, theirs) = (usize::from(side), usize::from(1 - side));
    Some(([&pair[ours], &pair[theirs]], [pattern::key(c, side), pattern::key(c, 1 - side)]))
}

/// Waits with `poll`, until [`patience`] after `begun` at most.
pub(super) fn wait_for(fd: Fd, events: i16, begun: Instant) -> bool {
    let left = patience().saturating_sub(begun.elapsed());
    let mut one = [libc::pollfd { fd, events, revents: 0 }];
    let ready = sys::poll(&mut one, left.as_millis() as c_int).is_ok_and(|n| n > 0);
    if ready && one[0].revents & events == 0 {
        // Something else stays ready: do not spin.
        std::thread::sleep(POLL_INTERVAL);
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

pub(super) fn send(
    process: &Process,
    slot: &Slot,
    (n, call, flags): (u32, SendCall, SendFlags),
    expect: Option<&Outcome>,
) -> Outcome {
    let mut bytes = vec![0; n as usize];
    let ledger = directions(process, slot);
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

pub(super) fn send_all(process: &Process, slot: &Slot, n: u32) -> Outcome {
    let Some(([out, _], [key, _])) = directions(process, slot) else { return Outcome::skipped("no connection") };
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
                process.ledger.progress.fetch_add(1, Ordering::SeqCst);
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

pub(super) fn fill(process: &Process, slot: &Slot, expect: Option<&Outcome>) -> Outcome {
    let Some(([out, _], [key, _])) = directions(process, slot) else { return Outcome::skipped("no connection") };
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
            // As in `send`: where there was room for some bytes there is again, if not at once.
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

fn bits_of(flags: RecvFlags) -> c_int {
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
    bits
}

pub(super) fn receive(
    process: &Process,
    slot: &Slot,
    (n, call, flags): (u32, RecvCall, RecvFlags),
    expect: Option<&Outcome>,
) -> Outcome {
    let bits = bits_of(flags);
    let ledger = directions(process, slot);
    // Calls that take no flags get none.
    let plain = matches!(call, RecvCall::Read | RecvCall::Readv);
    let (peek, trunc) = (flags.peek && !plain, flags.trunc && !plain);
    let mut buffer = vec![0; n as usize];
    let mut out = Outcome::default();
    let begun = Instant::now();
    let want = expect.map_or(0, |e| if e.errno.is_none() { e.ret.max(0) as usize } else { 0 });
    let mut got = 0;
    loop {
        out.calls += 1;
        // Reading further pieces must not block where the first did not have to.
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
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
            Err(error) => {
                let arrives = match expect {
                    Some(e) => {
                        e.errno.as_deref() != Some(&errno_name(&error))
                            // A caller that receives no bytes learns that some are there.
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

/// `recv_all` and `drain`: up to `most` bytes; without it, all bytes that were sent, and the end if there is one.
fn take_all(process: &Process, slot: &Slot, most: Option<u64>, end_expected: bool) -> Outcome {
    let Some(([_, from], [_, key])) = directions(process, slot) else { return Outcome::skipped("no connection") };
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
                process.ledger.progress.fetch_add(1, Ordering::SeqCst);
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

pub(super) fn receive_all(process: &Process, slot: &Slot, n: u64) -> Outcome {
    take_all(process, slot, Some(n), false)
}

pub(super) fn drain(process: &Process, slot: &Slot, expect: Option<&Outcome>) -> Outcome {
    take_all(process, slot, None, expect.is_some_and(|e| e.end || e.errno.is_some()))
}

pub(super) fn fionread(slot: &Slot, expect: Option<&Outcome>) -> Outcome {
    let begun = Instant::now();
    loop {
        match sys::unread(slot.fd) {
            Ok(n) if expect.is_some_and(|e| e.ret > n as i64) && begun.elapsed() < patience() => {
                std::thread::sleep(POLL_INTERVAL);
            }
            result => return outcome(result.map(|n| n as i64)),
        }
    }
}
