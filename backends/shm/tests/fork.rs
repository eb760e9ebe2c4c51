//! A process that forks while it has a device. A binary of its own, so that no other test runs while it forks.

mod common;

use common::*;
use netacc_device::{Completion, Directory};

/// Not a test: the peer of the process that forks.
#[test]
#[ignore = "runs as a helper process only"]
fn helper() {
    let (_, dir, n) = role();
    let node = Node::open(&dir);
    node.dev.publish(&tuple(n), 1).expect("publish");
    flood(&node);
}

/// After the first message, sends numbered messages as fast as it can, until killed.
fn flood(node: &Node) {
    let conn = node.accept();
    node.recv(conn.qp);
    for i in 0u32.. {
        let at = u64::from(i % 64) * 64;
        node.send(&conn, i, at, &[i as u8; 64]);
    }
}

/// A forked child releases everything, and its parent is not affected.
#[test]
fn forked_child_forgets() {
    let dir = Dir::new("fork");
    let _helper = Helper::start(&dir.0, "flood", 0);
    let node = Node::open(&dir.0);
    let conn = node.connect(node.find(0));
    let fds = node.dev.fds();
    assert!(fds.len() >= 5);
    let status = forked(|| {
        node.dev.forget_after_fork();
        // A late access by a thread is harmless, too.
        let _ = node.try_recv(conn.qp);
        fds.iter().all(|fd| !fd_is_open(*fd)) && node.dev.fds().is_empty()
    });
    assert_eq!(status, 0);
    node.send(&conn, 0, 0, b"go");
    for imm in 0..1000 {
        assert_eq!(node.recv(conn.qp), Completion::Receive { imm, len: 64 });
    }
    assert!(node.dev.lookup(&tuple(0).reversed()).is_some());
}
