//! The operations of a process.
//!
//! * `connections`: sockets, from their making to their end.
//! * `bytes`: sending and receiving, and the counts of bytes.
//! * `misuse`: calls with invalid arguments, and of processes that have used up a resource.
//! * `options`: options of sockets.
//! * `readiness`: the results of poll, select and epoll.
//! * `resets`: resets that arrive later than usual.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netacc_program::{How, Op, Outcome};

use crate::ledger::Ledger;
use crate::process::{Instance, Process, Slot};
use crate::sys;
use crate::world;

mod bytes;
mod connections;
mod misuse;
mod options;
mod readiness;
mod resets;

use bytes::{drain, fill, fionread, receive, receive_all, send, send_all};
use connections::{accept, bind, close, connect, dup, listen, open_socket};
use misuse::{limited, misuse};
use options::{get, set};
use readiness::{close_instance, dup_instance, epoll_ctl, epoll_wait, poll};

/// The same after a step has timed out: consequences of a difference need not be waited for.
const IMPATIENCE: Duration = Duration::from_millis(10);
/// The time between two polls where no wait is possible.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// For the running program; read from the ledger with each step.
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Sets whether some step of the program has timed out.
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

pub(crate) fn errno_name(error: &io::Error) -> String {
    let Some(code) = error.raw_os_error() else { return error.to_string() };
    let known = [
        (libc::EAGAIN, "EAGAIN"),
        (libc::EBADF, "EBADF"),
        (libc::ECONNABORTED, "ECONNABORTED"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::ECONNRESET, "ECONNRESET"),
        (libc::EEXIST, "EEXIST"),
        (libc::EFAULT, "EFAULT"),
        (libc::EINPROGRESS, "EINPROGRESS"),
        (libc::EINTR, "EINTR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EISCONN, "EISCONN"),
        (libc::ELOOP, "ELOOP"),
        (libc::EMFILE, "EMFILE"),
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

/// Records the kernel's own count of delivered bytes, before a descriptor goes.
pub(crate) fn record_kernel(ledger: &Ledger, slot: &Slot) {
    if let (Some((c, side)), Some(bytes)) = (slot.end, sys::kernel_received(slot.fd)) {
        ledger.directions[c as usize][usize::from(1 - side)].kernel.fetch_max(bytes, Ordering::SeqCst);
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Executes one operation. `expect` is the oracle's outcome.
pub(crate) fn run(process: &Process, op: &Op, expect: Option<&Outcome>) -> Outcome {
    let pipes = sys::pipes();
    set_in_vain(process.ledger.in_vain.load(Ordering::SeqCst) != 0);
    let begun = Instant::now();
    let sender = op.sends().and_then(|s| process.slot(s));
    if let Some(slot) = &sender {
        resets::await_reset(slot, expect);
    }
    let mut outcome = dispatch(process, op, expect);
    if let (Some(slot), None) = (&sender, expect) {
        resets::await_answer(slot);
    }
    if begun.elapsed() >= world::patience() {
        process.ledger.in_vain.store(1, Ordering::SeqCst);
    }
    outcome.sigpipe = sys::pipes() != pipes;
    process.ledger.progress.fetch_add(1, Ordering::SeqCst);
    outcome
}

fn dispatch(process: &Process, op: &Op, expect: Option<&Outcome>) -> Outcome {
    let slot = |s: &u32| process.slot(*s);
    let none = || Outcome::skipped("no such slot");
    match op {
        Op::Socket { s, v6, nonblock, cloexec } => open_socket(process, *s, *v6, *nonblock, *cloexec),
        Op::Bind { s } => slot(s).map_or_else(none, |slot| bind(process, &slot)),
        Op::Listen { s, l, backlog } => slot(s).map_or_else(none, |slot| listen(process, &slot, *l, *backlog)),
        Op::Connect { s, l, c } => slot(s).map_or_else(none, |slot| connect(process, (*s, &slot), *l, *c)),
        Op::Accept { from, s, c, nonblock } => {
            slot(from).map_or_else(none, |slot| accept(process, &slot, (*s, *c), *nonblock, expect))
        }
        Op::Send { s, n, call, flags } => {
            slot(s).map_or_else(none, |slot| send(process, &slot, (*n, *call, *flags), expect))
        }
        Op::SendAll { s, n } => slot(s).map_or_else(none, |slot| send_all(process, &slot, *n)),
        Op::Recv { s, n, call, flags } => {
            slot(s).map_or_else(none, |slot| receive(process, &slot, (*n, *call, *flags), expect))
        }
        Op::RecvAll { s, n } => slot(s).map_or_else(none, |slot| receive_all(process, &slot, u64::from(*n))),
        Op::Fill { s } => slot(s).map_or_else(none, |slot| fill(process, &slot, expect)),
        Op::Drain { s } => slot(s).map_or_else(none, |slot| drain(process, &slot, expect)),
        Op::Shutdown { s, how } => slot(s).map_or_else(none, |slot| {
            let how = match how {
                How::Write => libc::SHUT_WR,
                How::Read => libc::SHUT_RD,
                How::Both => libc::SHUT_RDWR,
            };
            outcome(sys::shutdown(slot.fd, how).map(|()| 0))
        }),
        Op::Close { s } if process.slots().epolls.contains_key(s) => close_instance(process, *s),
        Op::Dup { s, to } if process.slots().epolls.contains_key(s) => dup_instance(process, *s, *to),
        Op::Close { s } => close(process, *s),
        Op::Dup { s, to } => slot(s).map_or_else(none, |slot| dup(process, &slot, *to)),
        Op::Set { s, option, value } => slot(s).map_or_else(none, |slot| set(&slot, *option, *value)),
        Op::Get { s, option } => slot(s).map_or_else(none, |slot| get(&slot, *option, expect)),
        Op::Fionread { s } => slot(s).map_or_else(none, |slot| fionread(&slot, expect)),
        Op::Misuse { s, call, at } => slot(s).map_or_else(none, |slot| misuse(&slot, *call, *at, expect)),
        Op::Limited { s, resource, call } => slot(s).map_or_else(none, |slot| limited(&slot, *resource, *call, expect)),
        Op::Poll { s, interest, wait, select } => poll(process, s, *interest, (*wait, *select), expect),
        Op::EpollCreate { e } => match sys::epoll_create() {
            Ok(fd) => {
                let mut slots = process.slots();
                slots.epolls.insert(*e, Instance { fd, of: *e });
                slots.members.insert(*e, BTreeMap::new());
                Outcome::value(0)
            }
            Err(error) => failure(&error),
        },
        Op::EpollCtl { e, s, action, interest } => epoll_ctl(process, *e, *s, *action, *interest),
        Op::EpollWait { e, max, wait } => epoll_wait(process, *e, *max as usize, *wait, expect),
        Op::Pause { us } => {
            std::thread::sleep(Duration::from_micros(u64::from(*us)));
            Outcome::default()
        }
        Op::Warm { .. }
        | Op::Join { .. }
        | Op::Signal { .. }
        | Op::Fork { .. }
        | Op::Exec
        | Op::Pass { .. }
        | Op::Exit
        | Op::Kill => Outcome::skipped("the coordinator's"),
    }
}
