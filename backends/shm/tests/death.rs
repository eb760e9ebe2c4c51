//! A peer that is killed. A binary of its own, because it counts the process's descriptors and mappings.

mod common;

use common::*;
use netacc_device::{Completion, ConnectionManager, Device, Directory, PostError};

/// Not a test: the process that is killed.
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

/// SIGKILL in the middle of traffic: placed messages are read, then the end; and nothing accumulates.
#[test]
fn sender_killed() {
    let dir = Dir::new("killed");
    let node = Node::open(&dir.0);
    let mut fds = 0;
    for round in 0..50u16 {
        let helper = Helper::start(&dir.0, "flood", round);
        let conn = node.connect(node.find(round));
        node.send(&conn, 0, 0, b"go");
        let mut next = 0;
        let mut check = |c: Completion| match c {
            Completion::Receive { imm, len } => {
                assert_eq!((imm, len), (next, 64));
                next += 1;
                true
            }
            _ => false,
        };
        for _ in 0..1000 {
            assert!(check(node.recv(conn.qp)));
        }
        helper.kill();
        // The dead process's last ring is read from a queue pair that may or may not have the event of the death yet.
        while check(node.recv(conn.qp)) {}
        let mut last = [0u8; 1];
        assert!(conn.local.memory.read((u64::from(next - 1) % 64 * 64) as usize, &mut last));
        assert_eq!(last[0], (next - 1) as u8, "the last announced message is in memory");
        assert_eq!(node.try_send(&conn, 0, 0, b"x"), Err(PostError::Dead));
        node.dev.destroy_qp(conn.qp);
        drop(conn);
        if round == 0 {
            fds = open_fds();
        }
        assert!(open_fds() <= fds, "descriptors accumulate: {} after {round} rounds", open_fds());
    }
    // The device looks for what is left when it is asked for events.
    assert!(node.dev.poll_event().is_none());
    let mappings = std::fs::read_to_string("/proc/self/maps").expect("maps");
    assert_eq!(mappings.matches("netacc-pair").count(), 0, "segments of dead pairs are gone");
    assert_eq!(std::fs::read_dir(&dir.0).expect("directory").count(), 1);
    drop(node);
    assert!(!dir.0.exists(), "the last to leave takes the rendezvous along");
}
