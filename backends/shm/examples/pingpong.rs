//! One-way latency of a 64-byte ping-pong between two polling processes, and the cost of each step on its own.
//!
//! `cargo run --release -p netacc-shm --example pingpong [ROUNDS]`

use std::hint::{black_box, spin_loop};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use netacc_device::{
    CmEvent, Completion, CompletionQueueId, CompletionStatus, ConnectionManager, Device, Directory, FourTuple,
    Operation, Payload, QueuePairId, RemoteRegion, WorkCompletion, WorkRequest, WorkRequestId,
};
use netacc_shm::{ShmConfig, ShmDevice};

const EMPTY: WorkCompletion =
    WorkCompletion { qp: QueuePairId(0), status: CompletionStatus::Success, completion: Completion::Disconnected };

struct End {
    dev: Arc<ShmDevice>,
    cq: CompletionQueueId,
    qp: QueuePairId,
    remote: RemoteRegion,
}

fn open() -> (Arc<ShmDevice>, CompletionQueueId) {
    let dir = std::env::var("PINGPONG_DIR").expect("set by the parent").into();
    let dev = ShmDevice::open(ShmConfig { directory: Some(dir), ..ShmConfig::default() }).expect("device");
    let cq = dev.create_cq().expect("completion queue");
    (dev, cq)
}

fn established(dev: Arc<ShmDevice>, cq: CompletionQueueId) -> End {
    loop {
        match dev.poll_event() {
            Some(CmEvent::Request { id, .. }) => dev.accept(id, cq, 16384).expect("accept"),
            Some(CmEvent::Established { qp, remote, .. }) => {
                dev.post_recv(qp, 64).expect("fresh queue pair");
                return End { dev, cq, qp, remote };
            }
            Some(other) => panic!("{other:?}"),
            None => std::thread::yield_now(),
        }
    }
}

impl End {
    #[inline]
    fn send(&self, bytes: &[u8]) -> bool {
        let operation = Operation::Write { rkey: self.remote.rkey, offset: self.remote.base, imm: Some(1) };
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload: Payload::Inline(bytes), signaled: false };
        self.dev.post_send(self.qp, &[wr]).is_ok()
    }

    /// `false`: the peer has gone.
    #[inline]
    fn receive(&self) -> bool {
        let (mut ready, mut wc) = ([self.qp; 8], [EMPTY; 8]);
        loop {
            if self.dev.pending(self.cq, &mut ready) == 0 {
                spin_loop();
                continue;
            }
            let n = self.dev.poll_qp(self.qp, &mut wc);
            if n > 0 {
                let alive = matches!(wc[0].completion, Completion::Receive { .. });
                return alive && self.dev.post_recv(self.qp, n as u32).is_ok();
            }
        }
    }
}

fn tuple() -> FourTuple {
    FourTuple { local: SocketAddr::from(([127, 0, 0, 1], 1)), remote: SocketAddr::from(([127, 0, 0, 1], 2)) }
}

fn child() {
    let (dev, cq) = open();
    dev.publish(&tuple(), 1).expect("publish");
    let end = established(dev, cq);
    while end.receive() && end.send(&[7; 64]) {}
}

fn ns(what: &str, times: u32, mut f: impl FnMut()) {
    let start = Instant::now();
    (0..times).for_each(|_| f());
    println!("{what}: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(times));
}

/// Both ends in this process and thread: the cost of the instructions when every line is in the cache.
fn steps() {
    let (a, acq) = open();
    let (b, bcq) = open();
    a.connect(b.address(), acq, 16384, b"").expect("connect");
    let (mut ends, mut events) = (Vec::new(), 0);
    while ends.len() < 2 {
        events += 1;
        assert!(events < 1_000_000, "no connection");
        for (dev, cq) in [(&a, acq), (&b, bcq)] {
            match dev.poll_event() {
                Some(CmEvent::Request { id, .. }) => dev.accept(id, cq, 16384).expect("accept"),
                Some(CmEvent::Established { qp, remote, .. }) => {
                    dev.post_recv(qp, 64).expect("fresh queue pair");
                    ends.push(End { dev: dev.clone(), cq, qp, remote });
                }
                _ => {}
            }
        }
    }
    let to = ends.iter().position(|e| Arc::ptr_eq(&e.dev, &b)).expect("b is one of them");
    let (tx, rx) = (&ends[1 - to], &ends[to]);
    let (mut ready, mut wc) = ([rx.qp; 8], [EMPTY; 64]);
    let payload = black_box([7u8; 64]);
    let times = 2_000_000;
    ns("post_send + pending + poll_qp + post_recv, 64 B, one by one", times, || {
        assert!(tx.send(&payload));
        assert_eq!(rx.dev.pending(rx.cq, &mut ready), 1);
        assert_eq!(rx.dev.poll_qp(rx.qp, &mut wc), 1);
        rx.dev.post_recv(rx.qp, 1).expect("room");
    });
    let (mut posting, mut taking, mut polling) = (0u128, 0u128, 0u128);
    for _ in 0..times / 32 {
        let t0 = Instant::now();
        (0..32).for_each(|_| assert!(tx.send(&payload)));
        let t1 = Instant::now();
        assert_eq!(rx.dev.pending(rx.cq, &mut ready), 1);
        let t2 = Instant::now();
        for _ in 0..32 {
            assert_eq!(rx.dev.poll_qp(rx.qp, &mut wc[..1]), 1);
        }
        polling += t2.elapsed().as_nanos();
        posting += (t1 - t0).as_nanos();
        taking += (t2 - t1).as_nanos();
        rx.dev.post_recv(rx.qp, 32).expect("room");
    }
    let each = f64::from(times / 32);
    println!("post_send, 64 B inline, receiver not looking: {:.1} ns", posting as f64 / each / 32.0);
    println!("pending with one hit (with two clock reads): {:.1} ns", taking as f64 / each);
    println!("poll_qp, one completion: {:.1} ns", polling as f64 / each / 32.0);
    ns("pending, nothing there", times, || {
        black_box(rx.dev.pending(rx.cq, &mut ready));
    });
    ns("poll_qp, nothing there", times, || {
        black_box(rx.dev.poll_qp(rx.qp, &mut wc[..1]));
    });
    ns("a clock read", times, || {
        black_box(Instant::now());
    });
}

fn main() {
    if std::env::var_os("PINGPONG_CHILD").is_some() {
        return child();
    }
    let rounds: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(200_000);
    let dir = format!("/dev/shm/netacc-pingpong-{}", std::process::id());
    std::env::set_var("PINGPONG_DIR", &dir);
    steps();
    let exe = std::env::current_exe().expect("own path");
    let mut peer = std::process::Command::new(exe).env("PINGPONG_CHILD", "1").spawn().expect("second process");
    let (dev, cq) = open();
    let address = loop {
        match dev.lookup(&tuple().reversed()) {
            Some((address, _)) => break address,
            None => std::thread::yield_now(),
        }
    };
    dev.connect(address, cq, 16384, b"").expect("connect");
    let end = established(dev, cq);
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        assert!(end.send(&[1; 64]) && end.receive());
        times.push(start.elapsed().as_nanos() as u64 / 2);
    }
    times.sort_unstable();
    let at = |p: f64| times[((rounds - 1) as f64 * p) as usize];
    println!(
        "64 B ping-pong between two processes, one way: p50 {} ns, p90 {} ns, p99 {} ns, p99.9 {} ns, max {} ns",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    end.dev.destroy_qp(end.qp);
    let _ = peer.wait();
}
