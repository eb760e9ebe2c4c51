//! Models of the lock-free parts, run by loom in every interleaving and with every value that the memory model lets a
//! load return (`ci/run.sh loom`). They call the code itself; they replace only the kernel: futexes (`sync`) and the
//! channel of a completion queue ([`Channel`]). A thread that sleeps for ever is reported as a deadlock, so each model
//! proves that no wake-up is lost, besides its assertions.
//!
//! Miri runs them as well (`ci/run.sh miri`), some interleavings of each: it checks every use of memory, and tries the
//! values that a weaker machine's load may return.
//!
//! Loom treats a SeqCst access as acquire and release only; so the models also prove that the orderings do not rest on
//! more than the barriers that are written down.

#![allow(unsafe_code, reason = "the queue pairs point at memory of the models")]

use std::sync::atomic::Ordering::*;
#[cfg(miri)]
use std::sync::{Arc, Condvar, Mutex};
#[cfg(miri)]
use std::thread;

#[cfg(loom)]
use loom::sync::{Arc, Condvar, Mutex};
#[cfg(loom)]
use loom::thread;
use netacc_device::{
    Completion, Operation, Payload, PostError, QueuePairId, RemoteKey, WorkCompletion, WorkRequest, WorkRequestId,
};

use crate::bitmap::{self, Announcement};
use crate::layout::{CloseLine, CqBitmap, Cqe, Flag, QpShared, RxLine, ASLEEP, CQS};
use crate::qp::{reset, Posts, QpLocal, Wiring};
use crate::sync::{AtomicU32, AtomicU64};

mod queues;
mod ring;
mod table;

/// Explores a model. `preemptions` bounds how often a thread is interrupted where it would not have waited: 3 finds
/// every fault that was ever found with more, in a hundredth of the time.
#[cfg(loom)]
fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Runs a model a few times, each of them scheduled at random: with real memory, whose use Miri checks.
#[cfg(miri)]
fn check(_preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    (0..8).for_each(|_| model());
}

/// The channel of a completion queue: an eventfd.
#[derive(Default)]
struct Channel {
    rung: Mutex<bool>,
    change: Condvar,
}

impl Channel {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.change.notify_all();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.change.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn shared() -> Box<QpShared> {
    let word = || AtomicU32::new(0);
    let side = Box::new(QpShared {
        rx: RxLine { posted: word(), wake: word(), futex: word() },
        close: CloseLine { closed: word() },
        ring: std::array::from_fn(|_| Cqe { data: AtomicU64::new(0), tag: AtomicU64::new(0) }),
    });
    reset(&side, 0);
    side
}

/// Two processes with `N` queue pairs between them; messages go one way, all reported to completion queue 0 at first.
struct World<const N: usize> {
    /// The receiver's shared state.
    bitmaps: [CqBitmap; CQS],
    armed: [Flag; CQS],
    channels: [Channel; CQS],
    senders: [QpLocal; N],
    posts: [Posts; N],
    receivers: [QpLocal; N],
    /// The receiving sides of both ends, which the queue pairs point at.
    sides: Vec<[Box<QpShared>; 2]>,
}

/// The queue pairs of the models: the first two in different words of the bitmap.
const INDEX: [usize; 3] = [1, 64, 2];

impl<const N: usize> World<N> {
    fn new(receives: u32) -> Arc<World<N>> {
        let sides: Vec<_> = (0..N).map(|_| [shared(), shared()]).collect();
        let connected = |rx: &QpShared, tx: &QpShared| {
            let at = |side: &QpShared| std::ptr::from_ref(side).cast_mut();
            let qp = QpLocal::new();
            qp.open(&Wiring { cq: 0, rx: at(rx), tx: at(tx), tx_half: std::ptr::null_mut(), half_bytes: 0 });
            qp
        };
        let world = World {
            bitmaps: std::array::from_fn(|_| CqBitmap {
                summary: AtomicU64::new(0),
                words: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
            armed: std::array::from_fn(|_| Flag(AtomicU32::new(0))),
            channels: std::array::from_fn(|_| Channel::default()),
            senders: std::array::from_fn(|i| connected(&sides[i][0], &sides[i][1])),
            posts: std::array::from_fn(|_| Posts::default()),
            receivers: std::array::from_fn(|i| connected(&sides[i][1], &sides[i][0])),
            sides,
        };
        world.receivers.iter().for_each(|qp| qp.post_recv(receives).expect("the ring is empty"));
        Arc::new(world)
    }

    /// Posts a message on queue pair `i` and announces it. `false`: there is no receive for it.
    fn try_send(&self, i: usize, imm: u32) -> bool {
        let operation = Operation::Write { rkey: RemoteKey(0), offset: 0, imm: Some(imm) };
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload: Payload::Inline(&[]), signaled: false };
        match self.senders[i].post_send(INDEX[i], self.posts[i].stamp(0), &[wr]) {
            Ok(_) => {
                self.announce(i);
                true
            }
            Err(PostError::QueueFull) => false,
            Err(e) => panic!("the queue pair lives: {e}"),
        }
    }

    fn announce(&self, i: usize) {
        let mut ring =
            Announcement { bitmaps: &self.bitmaps, index: INDEX[i], side: &self.sides[i][1] }.make(|| &self.armed);
        while ring != 0 {
            self.channels[ring.trailing_zeros() as usize].ring();
            ring &= ring - 1;
        }
    }

    /// Takes the messages that have arrived on queue pair `i`.
    fn poll(&self, i: usize) -> Vec<Completion> {
        let mut out = [NOTHING; 4];
        let n = self.receivers[i].poll(QueuePairId(i as u32), &mut out, |_| ());
        out[..n].iter().map(|wc| wc.completion).collect()
    }

    /// Takes at most `room` queue pairs from `cq`, and their completions. As `ShmDevice::pending` and its callers do
    /// it.
    fn poll_pairs(&self, cq: usize, room: usize) -> Vec<Completion> {
        if self.bitmaps[cq].seems_empty() {
            return Vec::new();
        }
        let (mut reported, mut moved) = (Vec::new(), Vec::new());
        let taken = self.bitmaps[cq].take(0, room, |index| {
            let i = INDEX.iter().position(|at| *at == index).expect("no other bit is ever set");
            let here = self.receivers[i].cq.load(Relaxed) as usize == cq;
            if here { &mut reported } else { &mut moved }.push(i);
            here
        });
        if taken.left {
            self.ring_self(cq);
        }
        for i in moved {
            let cq = self.receivers[i].cq.load(Relaxed) as usize;
            if self.bitmaps[cq].set(INDEX[i]) {
                self.ring_self(cq);
            }
        }
        reported.into_iter().flat_map(|i| self.poll(i)).collect()
    }

    fn ring_self(&self, cq: usize) {
        if self.armed[cq].0.load(SeqCst) != 0 {
            self.channels[cq].ring();
        }
    }

    /// Sleeps on the channel of `cq` unless something is pending. A thread that wakes polls.
    fn sleep(&self, cq: usize) {
        if !bitmap::arm(&self.armed[cq].0, ASLEEP, [&self.bitmaps[cq]].into_iter()) {
            self.channels[cq].wait();
        }
        self.armed[cq].0.store(0, SeqCst);
    }

    /// Everything up to the `count`th message on `cq`, asleep while there is none.
    fn receive(&self, cq: usize, count: usize) -> Vec<u32> {
        let mut got = Vec::new();
        while got.len() < count {
            let new = self.poll_pairs(cq, 4);
            if new.is_empty() {
                self.sleep(cq);
            }
            got.extend(imms(&new));
        }
        got
    }
}

const NOTHING: WorkCompletion = WorkCompletion {
    qp: QueuePairId(0),
    status: netacc_device::CompletionStatus::Success,
    completion: Completion::Disconnected,
};

fn imms(completions: &[Completion]) -> Vec<u32> {
    let imm = |c: &Completion| match c {
        Completion::Receive { imm, .. } => *imm,
        other => panic!("only messages were sent: {other:?}"),
    };
    completions.iter().map(imm).collect()
}
