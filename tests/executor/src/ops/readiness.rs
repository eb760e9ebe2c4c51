//! The results of poll, select and epoll.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io;
use std::time::Instant;

use netacc_program::{EpollAction, Interest, Outcome};

use super::{failure, outcome, patience, POLL_INTERVAL};
use crate::process::{Instance, Process};
use crate::sys::{self, Fd};

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

fn poll_slots(process: &Process, slots: &[(u32, u32)], timeout_ms: c_int, select: bool) -> io::Result<Events> {
    let mut fds: Vec<_> = slots
        .iter()
        .map(|(s, events)| libc::pollfd {
            fd: process.slots().descriptor(*s).unwrap_or(-1),
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
    Ok(slots.iter().filter_map(|(s, _)| Some((*s, of(process.slots().descriptor(*s)?)))).collect())
}

pub(super) fn poll(
    process: &Process,
    slots: &[u32],
    interest: Interest,
    (wait, select): (bool, bool),
    expect: Option<&Outcome>,
) -> Outcome {
    let wanted = expect.map(|e| wanted(&e.events)).unwrap_or_default();
    let all: Vec<_> = slots.iter().map(|s| (*s, mask(interest))).collect();
    let timeout = if wait { patience().as_millis() as c_int } else { 0 };
    match poll_until(process, &all, &wanted, (timeout, select)) {
        Ok(seen) => {
            let ready = seen.values().filter(|b| **b != 0).count();
            Outcome { events: named(&seen), ..Outcome::value(ready as i64) }
        }
        Err(error) => failure(&error),
    }
}

/// Polls with a time limit of so many milliseconds, and again, bounded, until the wanted events are there.
fn poll_until(
    process: &Process,
    slots: &[(u32, u32)],
    wanted: &Events,
    (mut timeout_ms, select): (c_int, bool),
) -> io::Result<Events> {
    let begun = Instant::now();
    loop {
        let seen = poll_slots(process, slots, timeout_ms, select)?;
        let missing = missing(wanted, &seen);
        if missing.is_empty() || begun.elapsed() >= patience() {
            return Ok(seen);
        }
        // Sleep only for the missing events, so that a lost wake-up is detected.
        let left = patience().saturating_sub(begun.elapsed()).as_millis() as c_int;
        let before = begun.elapsed();
        let _ = poll_slots(process, &missing, left, select);
        if begun.elapsed() - before < POLL_INTERVAL {
            std::thread::sleep(POLL_INTERVAL);
        }
        timeout_ms = 0;
    }
}

pub(super) fn epoll_ctl(process: &Process, e: u32, s: u32, action: EpollAction, interest: Interest) -> Outcome {
    let Some(fd) = process.slots().descriptor(s) else { return Outcome::skipped("no such slot") };
    let Some(epoll) = process.slots().epolls.get(&e).cloned() else { return Outcome::skipped("no such instance") };
    let number = match action {
        EpollAction::Add => libc::EPOLL_CTL_ADD,
        EpollAction::Mod => libc::EPOLL_CTL_MOD,
        EpollAction::Del => libc::EPOLL_CTL_DEL,
    };
    let result = sys::epoll_ctl(epoll.fd, number, fd, mask(interest), u64::from(s));
    if result.is_ok() {
        if let Some(members) = process.slots().members.get_mut(&epoll.of) {
            match action {
                EpollAction::Add => drop(members.insert(s, s)),
                EpollAction::Mod => {}
                EpollAction::Del => drop(members.remove(&s)),
            }
        }
    }
    outcome(result.map(|()| 0))
}

pub(super) fn dup_instance(process: &Process, e: u32, to: u32) -> Outcome {
    let Some(instance) = process.slots().epolls.get(&e).cloned() else { return Outcome::skipped("no such instance") };
    if process.slots().descriptor(to).is_some() {
        return Outcome::skipped("the slot is taken");
    }
    let result = sys::dup(instance.fd);
    if let Ok(fd) = result {
        process.slots().epolls.insert(to, Instance { fd, ..instance });
    }
    outcome(result.map(|_| 0))
}

pub(super) fn close_instance(process: &Process, e: u32) -> Outcome {
    let mut slots = process.slots();
    let Some(instance) = slots.epolls.remove(&e) else { return Outcome::skipped("no such instance") };
    slots.unname_instance(e, &instance);
    drop(slots);
    outcome(sys::close(instance.fd).map(|()| 0))
}

pub(super) fn epoll_wait(process: &Process, e: u32, max: usize, wait: bool, expect: Option<&Outcome>) -> Outcome {
    let Some(instance) = process.slots().epolls.get(&e).cloned() else { return Outcome::skipped("no such instance") };
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
        if begun.elapsed() - before < POLL_INTERVAL {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    let everything = mask(Interest { input: true, output: true, rdhup: true, ..Interest::default() });
    // As they are now: other steps may have closed some meanwhile.
    let members = process.slots().members.get(&instance.of).cloned().unwrap_or_default();
    let all: Vec<_> = members.values().map(|name| (*name, everything)).collect();
    // By the slots' present names.
    let expected = expect.map(|e| wanted(&e.level)).unwrap_or_default();
    let expected = expected.into_iter().filter_map(|(s, bits)| Some((*members.get(&s)?, bits))).collect();
    let levels = poll_until(process, &all, &expected, (0, false)).unwrap_or_default();
    let level = members.iter().filter_map(|(s, name)| Some((*s, *levels.get(name)?))).collect();
    Outcome { events: named(&seen), level: named(&level), ..Outcome::value(seen.len() as i64) }
}
