//! Options of sockets.

use std::ffi::c_int;
use std::io;
use std::time::Instant;

use netacc_program::{Option_, Outcome};

use super::{outcome, patience, POLL_INTERVAL};
use crate::process::Slot;
use crate::sys;

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

pub(super) fn set(slot: &Slot, option: Option_, value: i32) -> Outcome {
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

/// The answer once it is the oracle's, or after [`patience`]: an end may arrive later.
fn awaited(expect: Option<&Outcome>, query: impl Fn() -> io::Result<i64>) -> io::Result<i64> {
    let begun = Instant::now();
    loop {
        let answer = query();
        let same = expect.is_none_or(|e| match &answer {
            Ok(value) => e.errno.is_none() && e.ret == *value,
            Err(_) => e.errno.is_some(),
        });
        if same || begun.elapsed() >= patience() {
            return answer;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The state that follows a transient one of the kernel when the peer's acknowledgement arrives. linux/tcp_states.h.
fn final_state(state: u8) -> u8 {
    const FIN_WAIT1: u8 = 4;
    const FIN_WAIT2: u8 = 5;
    const TIME_WAIT: u8 = 6;
    const CLOSE: u8 = 7;
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    match state {
        FIN_WAIT1 => FIN_WAIT2,
        TIME_WAIT | LAST_ACK | CLOSING => CLOSE,
        state => state,
    }
}

pub(super) fn get(slot: &Slot, option: Option_, expect: Option<&Outcome>) -> Outcome {
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
        Option_::Peer => awaited(expect, || sys::has_peer_name(slot.fd).map(|()| 1)),
        Option_::State => awaited(expect, || {
            sys::get_option::<u8>(slot.fd, libc::IPPROTO_TCP, libc::TCP_INFO).map(|state| i64::from(final_state(state)))
        }),
        Option_::Error => {
            let begun = Instant::now();
            loop {
                let value = sys::get_option::<c_int>(slot.fd, libc::SOL_SOCKET, libc::SO_ERROR);
                let awaited = expect.is_some_and(|e| e.ret != 0);
                if matches!(value, Ok(0)) && awaited && begun.elapsed() < patience() {
                    std::thread::sleep(POLL_INTERVAL);
                    continue;
                }
                break value.map(i64::from);
            }
        }
        other => match number_option(other) {
            Some((level, name)) => sys::get_option::<c_int>(slot.fd, level, name).map(i64::from),
            None => return Outcome::skipped("cannot be read"),
        },
    };
    outcome(result)
}
