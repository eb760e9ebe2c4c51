//! The anchor behaves like a kernel connection.

use super::*;
use crate::middleware::SplitMix64;

fn explicit(send_capacity: usize, receive_capacity: usize) -> (InMemoryAnchor, InMemoryAnchor, AnchorWire) {
    anchor_pair(AnchorConfig { send_capacity, receive_capacity, mode: DeliveryMode::Explicit })
}

fn read(anchor: &mut InMemoryAnchor) -> Result<Vec<u8>, i32> {
    let mut buf = [0; 64];
    match anchor.try_read(&mut buf) {
        Ok(count) => Ok(buf[..count].to_vec()),
        Err(AnchorError::Os(error)) => Err(error.raw_os_error().unwrap_or(-1)),
        Err(_) => Err(0),
    }
}

fn write(anchor: &mut InMemoryAnchor, bytes: &[u8]) -> Result<usize, i32> {
    anchor.try_write(bytes).map_err(|error| match error {
        AnchorError::Os(error) => error.raw_os_error().unwrap_or(-1),
        AnchorError::WouldBlock => 0,
    })
}

// Breaks if a byte is lost, doubled or reordered, or a buffer grows beyond its bound, at any split.
#[test]
fn the_stream_is_reliable_at_any_split() {
    for seed in 0..100 {
        let mut rng = SplitMix64::new(seed);
        let (mut a, mut b, wire) = explicit(1 + rng.below(40), 1 + rng.below(40));
        let sent: Vec<u8> = (0..500).map(|i| (i % 253) as u8).collect();
        let (mut written, mut got) = (0, Vec::<u8>::new());
        while got.len() < sent.len() {
            let upto = (written + rng.below(30)).min(sent.len());
            written += write(&mut a, &sent[written..upto]).unwrap_or(0);
            wire.step(rng.next_u64());
            let mut buf = vec![0; rng.below(30)];
            let mut peeked = buf.clone();
            let peek = b.try_peek(&mut peeked).unwrap_or(0);
            let count = b.try_read(&mut buf).unwrap_or(0);
            assert_eq!((peek, &peeked), (count, &buf), "seed {seed}: a peek returns the same as the read");
            got.extend(&buf[..count]);
        }
        assert_eq!(got, sent, "seed {seed}");
    }
}

// Breaks if a full buffer is not back-pressure, or readiness disagrees.
#[test]
fn buffers_are_bounded() {
    let (mut a, mut b, wire) = explicit(4, 3);
    assert_eq!(write(&mut a, b"123456"), Ok(4));
    assert_eq!((write(&mut a, b"5"), a.state().writable, a.state().unsent), (Err(0), false, 4));
    assert_eq!(wire.deliverable(), [AnchorDelivery::Bytes { to: AnchorEnd::Second, len: 3 }]);
    assert!(wire.deliver(AnchorDelivery::Bytes { to: AnchorEnd::Second, len: 100 }), "as many as fit");
    assert_eq!((b.state().unread, a.state().writable, wire.deliverable().len()), (3, true, 0));
    assert_eq!(read(&mut b), Ok(b"123".to_vec()));
    wire.deliver_all();
    assert_eq!((read(&mut b), read(&mut b)), (Ok(b"4".to_vec()), Err(0)));
}

// Breaks if FIN overtakes bytes, or closes the other direction.
#[test]
fn fin_comes_after_the_bytes_and_leaves_the_other_direction_open() {
    let (mut a, mut b, wire) = explicit(16, 16);
    assert_eq!(write(&mut a, b"last"), Ok(4));
    a.shutdown_write().expect("it is connected");
    assert_eq!(write(&mut a, b"x"), Err(EPIPE));
    assert!(!wire.deliver(AnchorDelivery::Fin { to: AnchorEnd::Second }), "bytes go first");
    wire.deliver_all();
    assert_eq!((b.state().peer_closed, b.state().readable), (true, true));
    assert_eq!([read(&mut b), read(&mut b), read(&mut b)], [Ok(b"last".to_vec()), Ok(vec![]), Ok(vec![])]);
    assert_eq!(write(&mut b, b"reply"), Ok(5));
    wire.deliver_all();
    assert_eq!((read(&mut a), a.state().peer_closed), (Ok(b"reply".to_vec()), false));
}

// Breaks if an aborted connection looks like a clean end.
#[test]
fn abort_resets_when_it_closes() {
    let (mut a, mut b, wire) = explicit(16, 16);
    assert_eq!(write(&mut a, b"arrived lost"), Ok(12));
    a.abort();
    assert!(wire.deliver(AnchorDelivery::Bytes { to: AnchorEnd::Second, len: 7 }));
    assert!(!b.state().reset, "not before it is closed");
    drop(a);
    assert!(wire.deliver(AnchorDelivery::Reset { to: AnchorEnd::Second }));
    let state = b.state();
    assert!(state.reset && state.readable && state.writable && state.peer_closed);
    assert_eq!(read(&mut b), Ok(b"arrived".to_vec()), "bytes that had arrived can be read");
    assert_eq!([read(&mut b), read(&mut b)], [Err(ECONNRESET), Ok(vec![])], "the error is reported once");
    assert_eq!(write(&mut b, b"x"), Err(EPIPE));
    assert!(matches!(b.shutdown_write(), Err(AnchorError::Os(e)) if e.raw_os_error() == Some(ENOTCONN)));
    assert!(wire.deliverable().is_empty());
}

// Breaks if closing with unread bytes, or writing to a closed end, goes unanswered.
#[test]
fn a_careless_close_resets_too() {
    let (mut a, b, _wire) = anchor_pair(AnchorConfig::default());
    assert_eq!(write(&mut a, b"unread"), Ok(6));
    drop(b);
    assert_eq!([read(&mut a), read(&mut a)], [Err(ECONNRESET), Ok(vec![])]);
    let (mut a, b, _wire) = anchor_pair(AnchorConfig::default());
    drop(b);
    assert_eq!(read(&mut a), Ok(vec![]), "a clean end");
    assert_eq!(write(&mut a, b"to nobody"), Ok(9));
    assert!(a.state().reset);
    assert_eq!(write(&mut a, b"x"), Err(EPIPE), "after a FIN, a reset is EPIPE");
}

// Breaks if one of several holders closes the connection under the others.
#[test]
fn the_last_handle_closes() {
    let (a, mut b, _wire) = anchor_pair(AnchorConfig::default());
    let mut child = a.clone();
    drop(a);
    assert_eq!((read(&mut b), write(&mut child, b"alive")), (Err(0), Ok(5)));
    drop(child);
    assert_eq!([read(&mut b), read(&mut b)], [Ok(b"alive".to_vec()), Ok(vec![])]);
}

// Breaks if a broken connection resets one end only.
#[test]
fn a_broken_wire_resets_both() {
    let (mut a, mut b, wire) = anchor_pair(AnchorConfig::default());
    wire.break_off();
    assert_eq!((read(&mut a), write(&mut b, b"x")), (Err(ECONNRESET), Err(ECONNRESET)));
    assert!(wire.deliverable().is_empty());
}

// Breaks if a reset that drops unsent bytes delivers the end that waited behind them: its reader would miss bytes, and
// not notice.
#[test]
fn a_reset_takes_the_end_with_it() {
    let (mut a, mut b, wire) = explicit(16, 16);
    assert_eq!(write(&mut a, b"arrived lost"), Ok(12));
    assert!(a.shutdown_write().is_ok());
    assert!(wire.deliver(AnchorDelivery::Bytes { to: AnchorEnd::Second, len: 7 }));
    a.reset();
    wire.deliver_all();
    assert_eq!([read(&mut b), read(&mut b)], [Ok(b"arrived".to_vec()), Err(ECONNRESET)]);
    assert!(wire.is_over());
}
