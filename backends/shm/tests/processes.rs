//! The device between real processes: set-up, traffic, back-pressure, sleep, death, strangers.

mod common;

use common::*;
use netacc_device::{CmError, CmEvent, Completion, CompletionEvents, ConnectionManager, Device, Directory, PostError};
use netacc_shm::{GiveBack, ShmConfig, ShmDevice};
use std::os::unix::process::CommandExt;

/// Rounds of the wake-up stress tests: a lost wake-up shows as ten seconds of silence.
const ROUNDS: u32 = 100_000;

/// Not a test: the other process of the tests below.
#[test]
#[ignore = "runs as a helper process only"]
fn helper() {
    let (role, dir, n) = role();
    if role == "stranger" {
        return stranger(&dir);
    }
    let node = Node::open(&dir);
    node.dev.publish(&tuple(n), 1).expect("publish");
    match role.as_str() {
        "echo" => echo(&node),
        "telling-echo" => {
            node.dev.end_with_this_thread();
            echo(&node);
        }
        "asleep" => alternate(&node, Node::recv_asleep),
        "waiting" => alternate(&node, Node::recv_waiting),
        "both-ways" => both_ways(&node, n),
        "without-descriptors" => without_descriptors(&node),
        other => panic!("no role {other}"),
    }
}

/// Sends every message back where it came from, until killed.
fn echo(node: &Node) {
    let mut conns: Vec<Conn> = Vec::new();
    let mut ready = [netacc_device::QueuePairId(0); 8];
    loop {
        conns.extend(node.try_accept());
        let n = node.dev.pending(node.cq, &mut ready);
        if n == 0 {
            std::thread::yield_now();
        }
        for qp in &ready[..n] {
            while let Some(c) = node.try_recv(*qp) {
                let Some(at) = conns.iter().position(|c| c.qp == *qp) else { continue };
                match c {
                    Completion::Receive { imm, len } => {
                        let mut bytes = vec![0u8; len as usize];
                        assert!(conns[at].local.memory.read(0, &mut bytes));
                        node.send(&conns[at], imm, 0, &bytes);
                    }
                    _ => node.dev.destroy_qp(conns.swap_remove(at).qp),
                }
            }
        }
    }
}

fn alternate(node: &Node, recv: fn(&Node, netacc_device::QueuePairId) -> Completion) {
    let conn = node.accept();
    for i in 0..ROUNDS {
        assert_eq!(recv(node, conn.qp), Completion::Receive { imm: i, len: 4 });
        node.send(&conn, i, 0, &i.to_ne_bytes());
    }
    assert_eq!(node.recv(conn.qp), Completion::Disconnected);
}

/// Answers when its program has no descriptor left.
fn without_descriptors(node: &Node) {
    let conn = node.accept();
    // Half of them would be enough for the device.
    set_descriptor_limit(128);
    let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    assert!(!taken.is_empty());
    loop {
        assert!(node.dev.poll_event().is_none());
        match node.try_recv(conn.qp) {
            Some(Completion::Receive { imm, .. }) => node.send(&conn, imm, 0, b"answer"),
            Some(_) => return,
            None => std::thread::yield_now(),
        }
    }
}

/// Connects to its counterpart while that connects to us.
fn both_ways(node: &Node, n: u16) {
    let peer = node.find(n ^ 1);
    node.dev.connect(peer, node.cq, REGION, b"").expect("connect");
    let mut conns = Vec::new();
    until("both connections", || {
        conns.extend(node.try_accept());
        (conns.len() == 2).then_some(())
    });
    conns.iter().for_each(|c| node.send(c, 7, 0, b"hi"));
    for c in &conns {
        assert_eq!(node.recv(c.qp), Completion::Receive { imm: 7, len: 2 });
    }
    conns.iter().for_each(|c| node.dev.destroy_qp(c.qp));
}

/// Runs as another user: it can neither open the rendezvous nor connect to a device.
fn stranger(dir: &std::path::Path) {
    assert!(ShmDevice::open(config(dir)).is_err(), "another user's directory was accepted");
    let var = std::env::var("SHM_PEER").expect("address");
    let words: Vec<u64> = var.split(',').map(|w| w.parse().expect("number")).collect();
    let peer = netacc_device::PeerAddress(words.try_into().expect("four words"));
    let own = dir.with_extension("stranger");
    let node = Node::open(&own);
    assert!(matches!(node.dev.connect(peer, node.cq, REGION, b""), Err(CmError::NotAdmitted)));
    let fd = raw_socket(peer).expect("abstract sockets let any process connect");
    until("being cut off", || raw_closed(fd).then_some(()));
}

#[test]
fn echo_between_processes() {
    let dir = Dir::new("echo");
    let _helper = Helper::start(&dir.0, "echo", 0);
    let node = Node::open(&dir.0);
    let conn = node.connect(node.find(0));
    for i in 0..10_000u32 {
        let bytes = vec![i as u8; (i % 300) as usize];
        node.send(&conn, i, 0, &bytes);
        assert_eq!(node.recv(conn.qp), Completion::Receive { imm: i, len: i % 300 });
        let mut back = vec![0; bytes.len()];
        assert!(conn.local.memory.read(0, &mut back));
        assert_eq!(back, bytes);
    }
}

/// Many queue pairs over one pair of processes; all their numbers come back after use.
#[test]
fn connect_and_destroy_many() {
    let dir = Dir::new("many");
    let _helper = Helper::start(&dir.0, "echo", 0);
    let node = Node::open(&dir.0);
    let peer = node.find(0);
    for round in 0..3 {
        let conns: Vec<Conn> = (0..600).map(|_| node.connect(peer)).collect();
        for (i, c) in conns.iter().enumerate() {
            node.send(c, i as u32, 0, &(i as u64).to_ne_bytes());
        }
        for (i, c) in conns.iter().enumerate() {
            assert_eq!(node.recv(c.qp), Completion::Receive { imm: i as u32, len: 8 }, "round {round}");
        }
        conns.iter().for_each(|c| node.dev.destroy_qp(c.qp));
    }
    for _ in 0..5000 {
        node.dev.destroy_qp(node.connect(peer).qp);
    }
}

/// A receiver that posts nothing and polls nothing is back-pressure, and nothing is lost.
#[test]
fn queue_full() {
    let dir = Dir::new("full");
    let (a, b) = (Node::open(&dir.0), Node::open(&dir.0));
    let (ca, cb) = local_pair(&a, &b);
    for i in 0..64 {
        assert_eq!(a.try_send(&ca, i, 0, b"x"), Ok(()));
    }
    assert_eq!(a.try_send(&ca, 64, 0, b"x"), Err(PostError::QueueFull));
    assert_eq!(b.dev.post_recv(cb.qp, 65), Err(PostError::QueueFull), "the ring has no room for more");
    assert_eq!(b.dev.post_recv(cb.qp, 64), Ok(()));
    for i in 64..128 {
        assert_eq!(a.try_send(&ca, i, 0, b"x"), Ok(()));
    }
    assert_eq!(a.try_send(&ca, 128, 0, b"x"), Err(PostError::QueueFull));
    for i in 0..128 {
        assert_eq!(b.recv(cb.qp), Completion::Receive { imm: i, len: 1 });
    }
    assert_eq!(b.try_recv(cb.qp), None);
}

/// The kernel refuses bytes to a connection whose process was killed, and takes them a moment before; so does the
/// device.
#[test]
fn a_dead_process_is_posted_nothing() {
    let dir = Dir::new("dead");
    let node = Node::open(&dir.0);
    let helper = Helper::start(&dir.0, "telling-echo", 0);
    let conn = node.connect(node.find(0));
    node.send(&conn, 7, 0, b"you live");
    assert_eq!(node.recv(conn.qp), Completion::Receive { imm: 7, len: 8 });
    helper.kill();
    // No thread has polled a socket since.
    assert_eq!(node.try_send(&conn, 8, 0, b"x"), Err(PostError::Dead));
    assert_eq!(node.recv(conn.qp), Completion::Disconnected);
}

fn local_pair(a: &Node, b: &Node) -> (Conn, Conn) {
    let id = a.dev.connect(b.dev.address(), a.cq, REGION, b"").expect("connect");
    let mut accepted = None;
    let event = until("an established connection", || {
        accepted = accepted.take().or_else(|| b.try_accept());
        a.dev.poll_event()
    });
    let CmEvent::Established { id: got, qp, local, remote, .. } = event else { panic!("{event:?}") };
    assert_eq!(got, id);
    a.dev.post_recv(qp, 64).expect("fresh queue pair");
    let accepted = accepted.unwrap_or_else(|| b.accept());
    (Conn { qp, local, remote }, accepted)
}

/// Both ends of a connection of a process with itself.
fn own_pair(node: &Node) -> (Conn, Conn) {
    node.dev.connect(node.dev.address(), node.cq, REGION, b"").expect("connect");
    let mut ends = Vec::new();
    until("both ends", || {
        ends.extend(node.try_accept());
        (ends.len() == 2).then_some(())
    });
    let second = ends.pop().expect("two ends");
    (ends.pop().expect("two ends"), second)
}

/// One process that is both ends of its connections.
#[test]
fn connects_to_itself() {
    let dir = Dir::new("self");
    let node = Node::open(&dir.0);
    let conns = own_pair(&node);
    node.send(&conns.0, 5, 0, b"abc");
    node.send(&conns.1, 6, 0, b"d");
    assert_eq!(node.recv(conns.1.qp), Completion::Receive { imm: 5, len: 3 });
    assert_eq!(node.recv(conns.0.qp), Completion::Receive { imm: 6, len: 1 });
}

/// A region outlives the peer and the queue pair, and then gives its memory back.
#[test]
fn region_survives_its_pair() {
    let dir = Dir::new("survives");
    let (a, b) = (Node::open(&dir.0), Node::open(&dir.0));
    let (ca, cb) = local_pair(&a, &b);
    a.send(&ca, 1, 8, b"kept");
    assert_eq!(b.recv(cb.qp), Completion::Receive { imm: 1, len: 4 });
    drop((ca, a));
    assert_eq!(b.recv(cb.qp), Completion::Disconnected);
    b.dev.destroy_qp(cb.qp);
    let region = cb.local;
    drop(b);
    let mut bytes = [0u8; 4];
    assert!(region.memory.read(8, &mut bytes));
    assert_eq!(&bytes, b"kept");
}

/// Bytes that were placed can be read at both ends of a queue pair that both have destroyed, as long as one of them has a region or
/// a window of it; after that its memory serves others.
// Breaks if a stream whose link has died sends other bytes again than it was given: the peer's memory has the only copy.
#[test]
fn memory_of_an_ended_queue_pair_is_kept_for_its_readers() {
    const BYTES: usize = 256 << 10;
    let dir = Dir::new("readers");
    let few = || Node::with(ShmConfig { idle_bytes: 0, ..config(&dir.0) });
    let (a, b) = (few(), few());
    let progress = || assert!(a.dev.poll_event().is_none() && b.dev.poll_event().is_none());
    // A pair that lives on.
    let others = local_pair(&a, &b);
    for writer_reads in [true, false] {
        let (ca, cb) = local_pair(&a, &b);
        let ring = b.dev.alloc_region(cb.qp, BYTES).expect("memory");
        let window = a.dev.window(ca.qp, ring.remote).expect("a window");
        assert!(window.memory.write(0, &[7; BYTES]));
        a.dev.destroy_qp(ca.qp);
        b.dev.destroy_qp(cb.qp);
        progress();
        let (kept, dropped) = if writer_reads { (window, ring) } else { (ring, window) };
        drop((dropped, ca, cb));
        progress();
        // Memory that is cleared, or given to another, is not that of the ended queue pair.
        let other = b.dev.alloc_region(others.1.qp, BYTES).expect("memory");
        assert!(other.memory.write(0, &[8; BYTES]));
        let mut bytes = vec![0; BYTES];
        assert!(kept.memory.read(0, &mut bytes));
        assert!(bytes.iter().all(|byte| *byte == 7), "the writer reads: {writer_reads}");
        b.dev.free_region(others.1.qp, other);
    }
    // Far more in turn than there is at once.
    for _ in 0..400 {
        let (ca, cb) = local_pair(&a, &b);
        let ring = b.dev.alloc_region(cb.qp, BYTES).expect("memory of a queue pair that nobody reads any more");
        a.dev.destroy_qp(ca.qp);
        b.dev.destroy_qp(cb.qp);
        drop((ring, ca, cb));
        until("both ends to be left", || (a.dev.poll_event().is_none() && b.dev.poll_event().is_none()).then_some(()));
    }
}

/// A peer that leaves, with its descriptors or its life, may not have read our memory to the end; nor may we have read our own.
#[test]
fn memory_of_a_dead_pair_is_kept_for_its_readers() {
    const BYTES: usize = 256 << 10;
    let dir = Dir::new("leaves");
    let few = || Node::with(ShmConfig { idle_bytes: 0, ..config(&dir.0) });
    let (a, b) = (few(), few());
    let ((ca, cb), (_, sibling)) = (local_pair(&a, &b), local_pair(&a, &b));
    let ring = b.dev.alloc_region(cb.qp, BYTES).expect("memory");
    let window = a.dev.window(ca.qp, ring.remote).expect("a window");
    assert!(window.memory.write(0, &[7; BYTES]));
    a.dev.give_back(GiveBack::All);
    assert_eq!(b.recv(cb.qp), Completion::Disconnected);
    b.dev.destroy_qp(cb.qp);
    assert!(b.dev.poll_event().is_none());
    assert!(b.dev.alloc_region(sibling.qp, BYTES).is_err(), "the memory may be that which the peer reads");
    for region in [ring, window] {
        let mut bytes = vec![0; BYTES];
        assert!(region.memory.read(0, &mut bytes));
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn destroy_is_seen_after_placed_bytes() {
    let dir = Dir::new("destroy");
    let (a, b) = (Node::open(&dir.0), Node::open(&dir.0));
    let (ca, cb) = local_pair(&a, &b);
    for i in 0..3 {
        a.send(&ca, i, 0, b"x");
    }
    a.dev.destroy_qp(ca.qp);
    for i in 0..3 {
        assert_eq!(b.recv_asleep(cb.qp), Completion::Receive { imm: i, len: 1 });
    }
    assert_eq!(b.recv_waiting(cb.qp), Completion::Disconnected);
    assert_eq!(b.try_recv(cb.qp), None, "reported once");
    assert_eq!(b.try_send(&cb, 0, 0, b"x"), Err(PostError::Dead));
}

/// A process that has no descriptor left cannot take the one by which it would wake its peer.
// Breaks if that ends the pair, and so all links of the two processes.
#[test]
fn a_peer_without_descriptors_is_no_stranger() {
    let dir = Dir::new("short");
    let node = Node::open(&dir.0);
    let _helper = Helper::start(&dir.0, "without-descriptors", 1);
    let conn = node.connect(node.find(1));
    for i in 0..20 {
        node.send(&conn, i, 0, b"question");
        assert_eq!(node.recv_asleep(conn.qp), Completion::Receive { imm: i, len: 6 });
    }
    node.dev.destroy_qp(conn.qp);
}

/// If a process writes to several queue pairs, they are read in that order, whatever their numbers.
// Breaks if `pending` reports them by number.
#[test]
fn pending_in_the_order_of_posts() {
    let dir = Dir::new("order");
    let (a, b) = (Node::open(&dir.0), Node::open(&dir.0));
    let pairs: Vec<_> = (0..3).map(|_| local_pair(&a, &b)).collect();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1], [0, 2, 1], [1, 0, 2]] {
        for at in order {
            b.send(&pairs[at].1, at as u32, 0, b"x");
        }
        let mut pending = [pairs[0].0.qp; 8];
        let n = a.dev.pending(a.cq, &mut pending);
        assert_eq!(pending[..n], order.map(|at| pairs[at].0.qp));
        for at in order {
            assert!(matches!(a.try_recv(pairs[at].0.qp), Some(Completion::Receive { .. })));
        }
    }
}

/// A process that is at both ends of its connections reads its own messages in that order, even if it reads the
/// connecting side of some and the accepting side of others.
#[test]
fn own_posts_in_their_order() {
    let dir = Dir::new("own");
    let a = Node::open(&dir.0);
    let ((x, y), (z, w)) = (own_pair(&a), own_pair(&a));
    let mut pending = [x.qp; 8];
    // New completions are reported once.
    a.dev.pending(a.cq, &mut pending);
    for (first, second) in [((&x, &y), (&w, &z)), ((&w, &z), (&x, &y)), ((&y, &x), (&z, &w)), ((&z, &w), (&y, &x))] {
        a.send(first.0, 1, 0, b"x");
        a.send(second.0, 2, 0, b"x");
        let n = a.dev.pending(a.cq, &mut pending);
        assert_eq!(pending[..n], [first.1.qp, second.1.qp]);
        for qp in &pending[..n] {
            assert!(matches!(a.try_recv(*qp), Some(Completion::Receive { .. })));
        }
    }
}

/// A completion queue made after the pair: its channel reaches the peer before any thread can sleep on it.
#[test]
fn late_completion_queue_wakes() {
    let dir = Dir::new("late");
    let (a, b) = (Node::open(&dir.0), Node::open(&dir.0));
    let (ca, cb) = local_pair(&a, &b);
    let late = Node { dev: b.dev.clone(), cq: b.dev.create_cq().expect("second queue") };
    late.dev.rebind(cb.qp, late.cq).expect("rebind");
    assert_eq!(late.try_recv(cb.qp), None);
    assert_eq!(late.dev.arm(late.cq), netacc_device::Armed::Sleep);
    a.send(&ca, 9, 0, b"x");
    assert!(poll_fd(late.dev.channel_fd(late.cq).expect("channel"), PATIENCE));
    assert_eq!(late.recv_asleep(cb.qp), Completion::Receive { imm: 9, len: 1 });
}

/// In the middle of a batch, threads that poll by themselves are not woken; others are, and all at its end.
#[test]
fn a_batch_wakes_once() {
    let dir = Dir::new("batch");
    let (a, b) = (Node::open(&dir.0), Node::open(&dir.0));
    let (ca, cb) = local_pair(&a, &b);
    let channel = b.dev.channel_fd(b.cq).expect("channel");
    let rung = || {
        // The first wake-up comes by the connection manager.
        while b.dev.poll_event().is_some() {}
        poll_fd(channel, std::time::Duration::ZERO)
    };
    let up = || {
        b.dev.drain(b.cq);
        b.dev.disarm(b.cq);
        assert_eq!(b.dev.pending(b.cq, &mut [cb.qp; 2]), 1);
    };
    assert_eq!(b.dev.arm_moderated(b.cq), netacc_device::Armed::Sleep);
    a.dev.defer_wakes();
    a.send(&ca, 1, 0, b"x");
    a.send(&ca, 2, 0, b"x");
    assert!(!rung());
    assert_eq!(b.dev.arm_moderated(b.cq), netacc_device::Armed::Pending, "a thread that polls by itself sees it");
    a.dev.release_wakes();
    assert!(rung());
    up();
    for imm in [1, 2] {
        assert_eq!(b.recv(cb.qp), Completion::Receive { imm, len: 1 });
    }
    // Not in a batch any more.
    assert_eq!(b.dev.arm_moderated(b.cq), netacc_device::Armed::Sleep);
    a.send(&ca, 3, 0, b"x");
    assert!(rung());
    up();
    assert_eq!(b.recv(cb.qp), Completion::Receive { imm: 3, len: 1 });
    // A thread relies on being woken, even if others sleep too.
    assert_eq!(b.dev.arm(b.cq), netacc_device::Armed::Sleep);
    assert_eq!(b.dev.arm_moderated(b.cq), netacc_device::Armed::Sleep);
    a.dev.defer_wakes();
    a.send(&ca, 4, 0, b"x");
    assert!(rung());
    a.dev.release_wakes();
}

#[test]
fn channel_stress() {
    stress("asleep", Node::recv_asleep);
}

#[test]
fn wait_qp_stress() {
    stress("waiting", Node::recv_waiting);
}

/// Strict alternation: both sides sleep until the other has sent.
fn stress(role: &str, recv: fn(&Node, netacc_device::QueuePairId) -> Completion) {
    let dir = Dir::new(role);
    let helper = Helper::start(&dir.0, role, 0);
    let node = Node::open(&dir.0);
    let conn = node.connect(node.find(0));
    for i in 0..ROUNDS {
        node.send(&conn, i, 0, &i.to_ne_bytes());
        assert_eq!(recv(&node, conn.qp), Completion::Receive { imm: i, len: 4 });
    }
    node.dev.destroy_qp(conn.qp);
    helper.finish();
}

/// Two processes that connect to each other at the same moment both succeed.
#[test]
fn simultaneous_connects() {
    let dir = Dir::new("both");
    for round in 0..20 {
        let a = Helper::start(&dir.0, "both-ways", 2 * round);
        let b = Helper::start(&dir.0, "both-ways", 2 * round + 1);
        a.finish();
        b.finish();
    }
}

#[test]
fn another_user_is_refused() {
    let dir = Dir::new("uid");
    let node = Node::open(&dir.0);
    // Only root can become another user; elsewhere the test can check nothing.
    if std::fs::metadata("/proc/self").map(|m| std::os::unix::fs::MetadataExt::uid(&m)).ok() != Some(0) {
        eprintln!("needs root to become another user");
        return;
    }
    let address = node.dev.address().0.map(|w| w.to_string()).join(",");
    let exe = std::path::PathBuf::from(format!("/tmp/netacc-shm-stranger-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().expect("own path"), &exe).expect("copy for the other user");
    let base = Helper::command(&dir.0, "stranger", 0);
    let mut command = binary(&exe);
    command.args(Helper::ARGUMENTS);
    command.envs(base.get_envs().filter_map(|(k, v)| Some((k, v?))));
    command.env("SHM_PEER", address).uid(65534).gid(65534);
    // A child of another test that has been forked meanwhile has the copy open for writing until it executes another
    // program.
    let helper = until("a copy that no process writes", || match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
        spawned => Some(Helper(spawned.expect("helper"))),
    });
    let mut helper = Some(helper);
    until("the stranger's end", || {
        node.dev.poll_event();
        let status = helper.as_mut()?.0.try_wait().expect("wait")?;
        assert!(status.success(), "the stranger got somewhere: {status}");
        Some(())
    });
    let _ = std::fs::remove_file(exe);
}

/// Garbage on the rendezvous socket costs its sender the connection, and affects no other process.
#[test]
fn garbage_on_the_socket() {
    let dir = Dir::new("garbage");
    let (a, b) = (Node::open(&dir.0), Node::open(&dir.0));
    let (ca, cb) = local_pair(&a, &b);
    let mut seed = 0x1234_5678_9abc_def1u64;
    for round in 0..300 {
        let fd = raw_socket(b.dev.address()).expect("connect");
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let mut bytes = vec![(seed % 9) as u8; 1 + (seed >> 8) as usize % 200];
        bytes.iter_mut().skip(1).enumerate().for_each(|(i, b)| *b = (seed >> (i % 8 * 8)) as u8);
        raw_send(fd, &bytes);
        until("being cut off", || {
            b.dev.poll_event();
            raw_closed(fd).then_some(())
        });
        raw_close(fd);
        a.send(&ca, round, 0, b"x");
        assert_eq!(b.recv(cb.qp), Completion::Receive { imm: round, len: 1 });
    }
}

/// An address without a process: an error or an event, never a hang.
#[test]
fn unreachable() {
    let dir = Dir::new("unreachable");
    let node = Node::open(&dir.0);
    let mut peer = node.dev.address();
    peer.0[2] ^= 1;
    assert!(matches!(node.dev.connect(peer, node.cq, REGION, b""), Err(CmError::Unreachable)));
    assert!(node.dev.connect(netacc_device::PeerAddress([u64::MAX; 4]), node.cq, REGION, b"").is_err());
}
