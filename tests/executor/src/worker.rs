//! A worker: one process of a program. It has slots, and executes requests.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netacc_program::{Op, Outcome, Step};
use serde::{Deserialize, Serialize};

use crate::channel::{Channel, Reply, Request};
use crate::ledger::Ledger;
use crate::ops;
use crate::process::{Process, Slot, Slots};
use crate::sys::{self, Fd};
use crate::world::{join_patience, World};

/// The state that survives `exec`, as JSON in an argument.
#[derive(Serialize, Deserialize)]
struct State {
    channel: Fd,
    ledger: Fd,
    process: u8,
    host: u8,
    world: World,
    slots: Slots,
}

/// A process, and the channel from which it takes its steps.
pub(crate) struct Worker {
    channel: Channel,
    ledger_fd: Fd,
    process: Process,
    background: Mutex<BTreeMap<u32, Background>>,
}

/// A step that runs in a thread of its own.
struct Background {
    index: usize,
    result: Receiver<Outcome>,
    thread: JoinHandle<()>,
    tid: libc::pid_t,
}

/// The time that a background step gets to begin to wait. Arbitrary; the result must be the same without.
const HEAD_START: Duration = Duration::from_micros(200);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins again after `exec`.
pub(crate) fn resume(state: &str) -> ExitCode {
    let Ok(state) = serde_json::from_str::<State>(state) else { return ExitCode::FAILURE };
    let Ok(ledger) = Ledger::open(state.ledger) else { return ExitCode::FAILURE };
    let worker = Worker {
        channel: Channel { fd: state.channel },
        ledger_fd: state.ledger,
        process: Process {
            ledger,
            number: state.process,
            host: state.host,
            world: state.world,
            slots: Mutex::new(state.slots),
        },
        background: Mutex::default(),
    };
    if worker.channel.send(&Reply::default(), None).is_err() {
        return ExitCode::FAILURE;
    }
    Arc::new(worker).run()
}

impl Worker {
    pub(crate) fn new(channel: Channel, ledger: (Fd, &'static Ledger), world: World, process: u8, host: u8) -> Worker {
        Worker {
            channel,
            ledger_fd: ledger.0,
            process: Process { ledger: ledger.1, number: process, host, world, slots: Mutex::default() },
            background: Mutex::default(),
        }
    }

    /// Serves until the channel ends. Never returns to the coordinator's code.
    pub(crate) fn run(self: Arc<Self>) -> ! {
        sys::handle_signals();
        self.process.world.apply_patience();
        while let Ok(Some((request, beside))) = self.channel.receive::<Request>() {
            let reply = self.answer(request, beside);
            let (reply, attached) = match reply {
                Some(reply) => reply,
                None => break,
            };
            let sent = self.channel.send(&reply, attached);
            if let Some(fd) = attached {
                let _ = sys::close(fd);
            }
            if sent.is_err() {
                break;
            }
        }
        sys::quit()
    }

    fn answer(self: &Arc<Self>, request: Request, beside: Option<Fd>) -> Option<(Reply, Option<Fd>)> {
        let mut reply = Reply::default();
        match request {
            Request::Run(steps) => {
                for (index, step, expect) in steps {
                    self.take(index, step, expect, &mut reply.outcomes);
                }
            }
            Request::Warm { s, receive, send } => {
                let ok = (!receive || ops::run(&self.process, &Op::RecvAll { s, n: 1 }, None).ret == 1)
                    && (!send || ops::run(&self.process, &Op::SendAll { s, n: 1 }, None).ret == 1);
                let kernel = self.process.slot(s).and_then(|slot| sys::kernel_received(slot.fd));
                reply.kernel_bytes = if ok { kernel.unwrap_or(0) } else { u64::MAX };
            }
            Request::Fork => return Some(self.fork()),
            Request::Exec => {
                let error = self.exec();
                reply.outcomes.push((0, ops::failure(&error)));
            }
            Request::Give { s } => {
                let outcome = match (self.process.slot(s), beside) {
                    (Some(slot), Some(over)) => {
                        reply.end = slot.end;
                        ops::outcome(sys::send_packet(over, b"x", Some(slot.fd)).map(|()| 0))
                    }
                    _ => Outcome::skipped("no such slot"),
                };
                reply.outcomes.push((0, outcome));
            }
            Request::Take { to, c, side } => {
                let outcome = match beside.map(|over| sys::receive_packet(over, &mut [0; 8])) {
                    Some(Ok((_, Some(fd)))) => {
                        let slot = Slot { fd, end: Some((c, side)), cloexec: false };
                        self.process.slots().sockets.insert(to, slot);
                        Outcome::value(0)
                    }
                    Some(Err(e)) => ops::failure(&e),
                    _ => Outcome::error("no descriptor came"),
                };
                reply.outcomes.push((0, outcome));
            }
            Request::Exit => return None,
            Request::Reset => self.reset(&mut reply),
        }
        if let Some(fd) = beside {
            let _ = sys::close(fd);
        }
        Some((reply, None))
    }

    /// Takes one step, now or in a thread.
    fn take(self: &Arc<Self>, index: usize, step: Step, expect: Option<Outcome>, out: &mut Vec<(usize, Outcome)>) {
        use std::sync::atomic::Ordering;
        self.process.ledger.at[usize::from(self.process.number)].store(index as u32 + 1, Ordering::SeqCst);
        self.process.ledger.progress.fetch_add(1, Ordering::SeqCst);
        if let Some(number) = step.background {
            self.take_in_background(index, number, step.op, expect);
            return;
        }
        match &step.op {
            Op::Join { of } => {
                let joined = locked(&self.background).remove(of);
                out.push((index, Outcome::default()));
                if let Some(Background { index, result, .. }) = joined {
                    out.push((index, result.recv_timeout(join_patience()).unwrap_or_else(|_| Outcome::stuck())));
                }
            }
            Op::Signal { of, restart } => {
                self.signal(*of, *restart);
                out.push((index, Outcome::default()));
            }
            op => {
                out.push((index, ops::run(&self.process, op, expect.as_ref())));
                self.process.world.let_answer(op);
            }
        }
    }

    fn take_in_background(self: &Arc<Self>, index: usize, number: u32, op: Op, expect: Option<Outcome>) {
        let ((report, result), (send_tid, tid)) = (channel(), channel());
        let worker = self.clone();
        let thread = std::thread::Builder::new().stack_size(256 * 1024).spawn(move || {
            let _ = send_tid.send(sys::thread());
            let _ = report.send(ops::run(&worker.process, &op, expect.as_ref()));
        });
        if let (Ok(thread), Ok(tid)) = (thread, tid.recv()) {
            locked(&self.background).insert(number, Background { index, result, thread, tid });
            std::thread::sleep(HEAD_START);
        }
    }

    /// Interrupts a background step. A step that is not restarted may not have begun to wait at the first signal, so
    /// more signals follow until it has ended. A step that is restarted continues to wait after any number of signals.
    fn signal(&self, of: u32, restart: bool) {
        /// Arbitrary; more than one, so that some come while it waits.
        const RESTARTS: u32 = 4;
        let begun = Instant::now();
        for sent in 0u32.. {
            match locked(&self.background).get(&of) {
                Some(step) if !step.thread.is_finished() => sys::interrupt(step.tid, restart),
                _ => break,
            }
            std::thread::sleep(HEAD_START);
            if restart && sent >= RESTARTS || begun.elapsed() > join_patience() {
                break;
            }
        }
    }

    fn fork(self: &Arc<Self>) -> (Reply, Option<Fd>) {
        let mut reply = Reply::default();
        let process = &self.process;
        let (ours, childs) = match Channel::pair() {
            Ok(pair) => pair,
            Err(e) => {
                reply.outcomes.push((0, ops::failure(&e)));
                return (reply, None);
            }
        };
        match sys::fork() {
            Ok(0) => {
                let _ = sys::close(self.channel.fd);
                ours.close();
                let child = Worker {
                    channel: childs,
                    ledger_fd: self.ledger_fd,
                    process: Process {
                        ledger: process.ledger,
                        // The coordinator distinguishes it by its requests.
                        number: process.number,
                        host: process.host,
                        world: process.world.clone(),
                        slots: Mutex::new(process.slots().clone()),
                    },
                    background: Mutex::default(),
                };
                Arc::new(child).run()
            }
            Ok(pid) => {
                childs.close();
                reply.pid = pid;
                reply.outcomes.push((0, Outcome::value(0)));
                (reply, Some(ours.fd))
            }
            Err(e) => {
                reply.outcomes.push((0, ops::failure(&e)));
                (reply, None)
            }
        }
    }

    fn exec(&self) -> std::io::Error {
        let mut slots = self.process.slots().clone();
        slots.sockets.retain(|_, slot| !slot.cloexec);
        let state = State {
            channel: self.channel.fd,
            ledger: self.ledger_fd,
            process: self.process.number,
            host: self.process.host,
            world: self.process.world.clone(),
            slots,
        };
        match serde_json::to_string(&state) {
            Ok(state) => sys::execute(&["netacc-exec".into(), "--worker".into(), state]),
            Err(e) => e.into(),
        }
    }

    /// Ends the program: background steps that were not joined, then all open descriptors.
    fn reset(&self, reply: &mut Reply) {
        let left = std::mem::take(&mut *locked(&self.background));
        let slots = std::mem::take(&mut *self.process.slots());
        for slot in slots.sockets.values() {
            ops::record_kernel(self.process.ledger, slot);
            if !left.is_empty() {
                // A thread that still waits there must return.
                let _ = sys::shutdown(slot.fd, libc::SHUT_RDWR);
            }
        }
        for Background { index, result, .. } in left.into_values() {
            let outcome = result.recv_timeout(join_patience()).unwrap_or_else(|_| Outcome::stuck());
            reply.outcomes.push((index, outcome));
        }
        for fd in slots.sockets.values().map(|s| s.fd).chain(slots.epolls.values().map(|e| e.fd)) {
            let _ = sys::close(fd);
        }
    }
}
