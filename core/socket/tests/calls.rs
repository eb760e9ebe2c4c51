//! Calls on connections of two endpoints on loopback devices: the steps of a send and a receive, and the events that
//! they wait for.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire, InMemoryAnchor};
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::{Anchor, FourTuple, Instant};
use netacc_driver::loopback::{self, Deaf};
use netacc_driver::{Endpoint, EndpointConfig, Readiness, StreamCell, PLEDGE_PATIENCE};
use netacc_proto::{CacheConfig, Reason, Role, TxSink};
use netacc_socket::{
    Connection, Errno, Expected, Incoming, Limit, MemoryCall, Next, Outgoing, Receiving, RecvSocket, RecvWait,
    SendWait, Sending, SwitchPatience, Waited, JOIN_PATIENCE, REPLAY_PATIENCE, SWITCH_PATIENCE,
};

fn endpoint(fabric: &Fabric) -> Endpoint {
    let config = loopback::config(1);
    let cache = CacheConfig { expire: None, ..config.cache };
    let config = EndpointConfig { cache, stall_patience: None, ..config };
    loopback::open(fabric.open(LoopbackConfig::shm()), config, Deaf)
}

fn poll_no_link() -> bool {
    false
}

type SendCall<'a> = MemoryCall<InMemoryAnchor, Outgoing<'a>, fn() -> bool>;
type RecvCall<'a> = MemoryCall<InMemoryAnchor, Incoming<'a>, fn() -> bool>;

/// A connection whose ends are on plain TCP.
struct Pair {
    client: Endpoint,
    server: Endpoint,
    near: Arc<StreamCell>,
    far: Arc<StreamCell>,
    /// The near end's anchor.
    anchor: InMemoryAnchor,
    far_anchor: InMemoryAnchor,
    wire: AnchorWire,
    patience: SwitchPatience,
    now: Instant,
}

impl Pair {
    fn new(config: AnchorConfig) -> Pair {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (client, server) = (endpoint(&fabric), endpoint(&fabric));
        let (a, b, wire) = anchor_pair(config);
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let tuple = FourTuple { local: address(40_000), remote: address(6379) };
        let far = server.adopt(Role::Acceptor, tuple.reversed(), Box::new(b.clone()));
        server.publish(&far);
        let near = client.adopt(Role::Opener, tuple, Box::new(a.clone()));
        Pair {
            client,
            server,
            near,
            far,
            anchor: a,
            far_anchor: b,
            wire,
            patience: SwitchPatience::new(),
            now: Instant::from_nanos(1),
        }
    }

    /// Both processes do the work that is due.
    fn progress(&self) {
        for _ in 0..8 {
            for (endpoint, cell) in [(&self.client, &self.near), (&self.server, &self.far)] {
                endpoint.progress(self.now);
                self.wire.deliver_all();
                cell.take_in(endpoint);
            }
        }
    }

    fn linked() -> Pair {
        let pair = Pair::new(AnchorConfig::default());
        pair.client.promote(&pair.near).expect("the acceptor is published");
        pair.progress();
        assert!(pair.near.lock(&pair.client).proto().is_linked() && pair.far.lock(&pair.server).proto().is_linked());
        pair
    }

    /// The near end has a pledge out, which the server has not seen.
    fn pledged(config: AnchorConfig) -> Pair {
        let pair = Pair::new(config);
        pair.client.promote(&pair.near).expect("the acceptor is published");
        while pair.sink() != TxSink::Pledged {
            pair.server.progress(pair.now);
            pair.client.progress(pair.now);
        }
        pair
    }

    fn sink(&self) -> TxSink {
        self.near.lock(&self.client).tx_sink()
    }

    fn connection(&self) -> Connection<'_> {
        Connection { endpoint: &self.client, cell: &self.near }
    }

    /// A send of `len` bytes by the near end.
    fn sending(&self, len: usize) -> SendCall<'_> {
        let bytes = Outgoing::new(&[7; 5000][..len], false, &self.patience);
        MemoryCall::new(self.now, self.anchor.clone(), bytes, poll_no_link as fn() -> bool).blocking()
    }

    /// A receive by the near end.
    fn receiving<'a>(&self, room: &'a mut [u8]) -> RecvCall<'a> {
        MemoryCall::new(self.now, self.anchor.clone(), Incoming::new(room, false), poll_no_link as fn() -> bool)
            .blocking()
    }
}

/// Continues until the call waits or is over.
fn send_on(sending: &mut Sending, pair: &Pair, call: &mut SendCall<'_>, mut next: Next<SendWait>) -> Next<SendWait> {
    while let Next::Again = next {
        next = sending.attempt(pair.connection(), call);
    }
    next
}

fn recv_on(
    receiving: &mut Receiving,
    pair: &Pair,
    call: &mut impl RecvSocket,
    mut next: Next<RecvWait>,
) -> Next<RecvWait> {
    while let Next::Again = next {
        next = receiving.attempt(pair.connection(), call);
    }
    next
}

/// A write of `len` bytes until it waits or is over.
fn send(pair: &Pair, call: &mut SendCall<'_>, nonblocking: bool) -> (Sending, Next<SendWait>) {
    let mut sending = Sending::begin(pair.connection(), call, nonblocking);
    let next = send_on(&mut sending, pair, call, Next::Again);
    (sending, next)
}

const IDLE: Limit = Limit { deadline: None, idle: true };

/// Breaks if a call lost bytes that it has sent when the ring is full, or if one that blocks did not wait for room.
#[test]
fn a_full_ring_ends_a_nonblocking_call_and_blocks_a_blocking_one() {
    let pair = Pair::linked();
    let mut call = pair.sending(5000);
    let (_, next) = send(&pair, &mut call, true);
    assert!(matches!(next, Next::Done(Ok(4096))), "{next:?}");
    assert_eq!((call.moved, call.waits), (4096, 0));
    let (_, next) = send(&pair, &mut pair.sending(1), true);
    assert!(matches!(next, Next::Done(Err(Errno::AGAIN))), "{next:?}");
    let mut call = pair.sending(1);
    let (mut sending, next) = send(&pair, &mut call, false);
    assert!(matches!(next, Next::Wait(SendWait::Room(IDLE))), "{next:?}");
    assert_eq!(call.waits, 1);
    let next = sending.resume(pair.connection(), &mut call, Waited::Interrupted);
    assert!(matches!(next, Next::Done(Err(Errno::INTERRUPTED))), "{next:?}");
}

/// Breaks if a call that would fail with EAGAIN did not poll the link once before.
#[test]
fn a_blocked_call_polls_the_link_once() {
    let pair = Pair::linked();
    let mut room = [0; 10];
    let mut polls = VecDeque::from([true, true]);
    let poll_link = || polls.pop_front().unwrap_or(false);
    let mut call =
        MemoryCall::new(pair.now, pair.anchor.clone(), Incoming::new(&mut room, false), poll_link).blocking();
    let mut receiving = Receiving::begin(pair.connection(), &mut call, 1, true);
    let next = receiving.attempt(pair.connection(), &mut call);
    assert!(matches!(next, Next::Again), "{next:?}");
    let next = recv_on(&mut receiving, &pair, &mut call, next);
    assert!(matches!(next, Next::Done(Err(Errno::AGAIN))), "{next:?}");
    assert_eq!(polls.len(), 1);
}

/// Breaks if a write waited for an answer to OPEN for another time than its link's patience, or continued while the
/// pledge stands: the bytes would lie where the marker has to.
#[test]
fn a_write_during_a_pledge_waits_for_the_answer_and_then_voids_it() {
    let pair = Pair::pledged(AnchorConfig::default());
    let patience = pair.near.lock(&pair.client).link().expect("its OPEN is on one").answer_patience().get();
    let mut call = pair.sending(10);
    let (mut sending, next) = send(&pair, &mut call, true);
    assert!(matches!(next, Next::Wait(SendWait::Peer { expected: Expected::Answer, limit: None, .. })), "{next:?}");
    assert_eq!(sending.waits_until(), Some(pair.now + patience));
    // Woken too early: nothing has changed.
    let next = sending.resume(pair.connection(), &mut call, Waited::Again);
    assert!(matches!(next, Next::Wait(_)), "{next:?}");
    assert_eq!(pair.sink(), TxSink::Pledged);
    call.now = pair.now + patience;
    let next = sending.resume(pair.connection(), &mut call, Waited::Again);
    assert_eq!(pair.sink(), TxSink::Anchor);
    let next = send_on(&mut sending, &pair, &mut call, next);
    assert!(matches!(next, Next::Done(Ok(10))), "{next:?}");
    let longer = pair.near.lock(&pair.client).link().expect("CLOSE is outstanding").answer_patience().get();
    assert!(longer > patience, "the link has learned that {patience:?} is too short");
}

/// Breaks if a write went to the anchor although the answer has come.
#[test]
fn a_write_during_a_pledge_goes_to_the_link_once_the_answer_is_there() {
    let pair = Pair::pledged(AnchorConfig::default());
    let mut call = pair.sending(10);
    let (mut sending, next) = send(&pair, &mut call, true);
    assert!(matches!(next, Next::Wait(_)), "{next:?}");
    pair.progress();
    let next = sending.resume(pair.connection(), &mut call, Waited::Again);
    let next = send_on(&mut sending, &pair, &mut call, next);
    assert!(matches!(next, Next::Done(Ok(10))), "{next:?}");
    assert_eq!(pair.near.lock(&pair.client).counters().tx_bytes_link, 10);
}

/// Breaks if a call that may wait used the short patience of one that may not, or if a signal left the pledge standing:
/// its answer would wait for bytes that do not exist.
#[test]
fn a_write_that_blocks_on_a_full_anchor_waits_longer_and_a_signal_voids_the_pledge() {
    let config = AnchorConfig { send_capacity: 64, receive_capacity: 64, mode: DeliveryMode::Explicit };
    let mut pair = Pair::pledged(config);
    assert!(pair.anchor.try_write(&[1; 64]).is_ok());
    let mut call = pair.sending(10);
    let (mut sending, next) = send(&pair, &mut call, false);
    let Next::Wait(SendWait::Peer { expected: Expected::Answer, until, limit: Some(IDLE) }) = next else {
        panic!("{next:?}")
    };
    assert_eq!(until, pair.now + PLEDGE_PATIENCE);
    let next = sending.resume(pair.connection(), &mut call, Waited::Interrupted);
    assert!(matches!(next, Next::Done(Err(Errno::INTERRUPTED))), "{next:?}");
    assert_eq!(pair.sink(), TxSink::Anchor);
}

/// Breaks if a program that does something else when it cannot write waited all the same, or was not woken when it can.
#[test]
fn a_write_that_does_not_wait_leaves_the_pledge_where_the_anchor_is_full() {
    let config = AnchorConfig { send_capacity: 64, receive_capacity: 64, mode: DeliveryMode::Explicit };
    let mut pair = Pair::pledged(config);
    assert!(pair.anchor.try_write(&[1; 64]).is_ok());
    let (_, next) = send(&pair, &mut pair.sending(10), true);
    assert!(matches!(next, Next::Done(Err(Errno::AGAIN))), "{next:?}");
    assert_eq!(pair.sink(), TxSink::Pledged);
    assert!(!pair.near.readiness().contains(Readiness::KERNEL_TX));
    pair.client.progress(pair.now);
    pair.client.progress(pair.now + PLEDGE_PATIENCE);
    assert_eq!(pair.sink(), TxSink::Anchor);
    assert!(pair.near.readiness().contains(Readiness::KERNEL_TX));
}

/// Breaks if a program got EAGAIN for a change of path that is microseconds away; or if each of its writes waited as
/// long.
#[test]
fn a_write_between_the_paths_waits_for_the_change() {
    let pair = Pair::linked();
    pair.near.lock(&pair.client).change(|stream| stream.demote(Reason::Requested));
    assert_eq!(pair.sink(), TxSink::Wait);
    let mut call = pair.sending(10);
    let (mut sending, next) = send(&pair, &mut call, true);
    let Next::Wait(SendWait::Peer { expected: Expected::Switch, until, limit: None }) = next else {
        panic!("{next:?}")
    };
    assert_eq!(until, pair.now + SWITCH_PATIENCE);
    call.now = until;
    let next = sending.resume(pair.connection(), &mut call, Waited::Again);
    assert!(matches!(next, Next::Done(Err(Errno::AGAIN))), "{next:?}");
    pair.progress();
    let (_, next) = send(&pair, &mut call, true);
    assert!(matches!(next, Next::Done(Ok(10))), "{next:?}");
}

/// Breaks if one distant peer made every write of the process wait for a second.
#[test]
fn a_long_wait_without_success_makes_the_next_ones_short() {
    let pair = Pair::pledged(AnchorConfig::default());
    // The server accepts; its marker stays in flight.
    while !pair.near.lock(&pair.client).proto().awaits_switch() {
        pair.server.progress(pair.now);
        pair.client.progress(pair.now);
    }
    let patience = SwitchPatience::new();
    let guard = pair.near.lock(&pair.client);
    let later = pair.now + JOIN_PATIENCE;
    assert_eq!(patience.get(&guard, pair.now), JOIN_PATIENCE);
    patience.record_failed(SWITCH_PATIENCE, pair.now);
    assert_eq!(patience.get(&guard, pair.now), JOIN_PATIENCE);
    patience.record_failed(JOIN_PATIENCE, later);
    assert_eq!(patience.get(&guard, later), SWITCH_PATIENCE);
    assert_eq!(patience.get(&guard, later + Duration::from_secs(61)), JOIN_PATIENCE);
}

/// Breaks if bytes that were there on the link seemed to be gone during their replay on the anchor.
#[test]
fn a_read_waits_for_the_replay() {
    let pair = Pair::linked();
    pair.far.lock(&pair.server).change(|stream| stream.send_slice(b"again", false));
    pair.client.poll(pair.client.default_cq());
    pair.client.poll(pair.client.control_cq());
    pair.near.lock(&pair.client).change(|stream| stream.demote(Reason::Requested));
    let mut room = [0; 10];
    let mut call = pair.receiving(&mut room);
    let mut receiving = Receiving::begin(pair.connection(), &mut call, 1, true);
    let next = recv_on(&mut receiving, &pair, &mut call, Next::Again);
    let Next::Wait(wait @ RecvWait::Replay(until)) = next else { panic!("{next:?}") };
    assert_eq!(until, pair.now + REPLAY_PATIENCE);
    pair.progress();
    let next = receiving.resume(&mut call, wait, Waited::Again);
    let next = recv_on(&mut receiving, &pair, &mut call, next);
    assert!(matches!(next, Next::Done(Ok(5))), "{next:?}");
    assert_eq!(&room[..5], b"again");
}

/// Breaks if a signal or a timeout ended a read although bytes have come meanwhile.
#[test]
fn a_read_takes_arrived_bytes_before_it_gives_up() {
    let pair = Pair::linked();
    let mut room = [0; 10];
    let mut call = pair.receiving(&mut room);
    let mut receiving = Receiving::begin(pair.connection(), &mut call, 1, false);
    let next = recv_on(&mut receiving, &pair, &mut call, Next::Again);
    let Next::Wait(wait @ RecvWait::Data(IDLE)) = next else { panic!("{next:?}") };
    pair.far.lock(&pair.server).change(|stream| stream.send_slice(b"late", false));
    pair.progress();
    let next = receiving.resume(&mut call, wait, Waited::TimedOut);
    let next = recv_on(&mut receiving, &pair, &mut call, next);
    assert!(matches!(next, Next::Done(Ok(4))), "{next:?}");
}

/// Breaks if a call that has waited for the peer's end asked the kernel for it once more: here it would wait for ever.
#[test]
fn a_read_whose_wait_has_found_the_end_is_over() {
    let pair = Pair::new(AnchorConfig::default());
    let mut room = [0; 10];
    let mut call = pair.receiving(&mut room);
    let mut receiving = Receiving::begin(pair.connection(), &mut call, 1, false);
    let next = recv_on(&mut receiving, &pair, &mut call, Next::Again);
    let Next::Wait(wait @ RecvWait::Data(IDLE)) = next else { panic!("{next:?}") };
    let next = receiving.resume(&mut call, wait, Waited::Ended);
    let next = recv_on(&mut receiving, &pair, &mut call, next);
    assert!(matches!(next, Next::Done(Ok(0))), "{next:?}");
}

/// Breaks if a read of a socket that another process has made non-blocking returned EAGAIN without looking for bytes, because
/// the reads before it had to sleep for theirs.
#[test]
fn a_read_that_does_not_wait_looks_first() {
    let mut pair = Pair::new(AnchorConfig::default());
    pair.far_anchor.try_write(b"there").expect("there is room");
    pair.wire.deliver_all();
    let mut room = [0; 10];
    let bytes = Incoming::new(&mut room, false);
    let mut call = MemoryCall::new(pair.now, pair.anchor.clone(), bytes, poll_no_link as fn() -> bool).after_sleeps();
    let mut receiving = Receiving::begin(pair.connection(), &mut call, 1, false);
    let next = recv_on(&mut receiving, &pair, &mut call, Next::Again);
    assert!(matches!(next, Next::Done(Ok(5))), "{next:?}");
}

/// The direct way of a send on TCP, with this outcome of the kernel's call.
fn send_at_rest(pair: &Pair, outcome: Result<usize, Errno>) -> Option<Result<usize, Errno>> {
    pair.near.send_at_rest(|| outcome)
}

/// Breaks if bytes that the kernel has moved the direct way were not counted: the link would begin at another position.
#[test]
fn bytes_moved_at_rest_are_counted_as_those_of_the_steps() {
    let pair = Pair::new(AnchorConfig::default());
    let mut call = pair.sending(100);
    let (_, next) = send(&pair, &mut call, true);
    assert!(matches!(next, Next::Done(Ok(100))), "{next:?}");
    assert_eq!(send_at_rest(&pair, Ok(40)), Some(Ok(40)));
    assert_eq!(send_at_rest(&pair, Err(Errno::PIPE)), Some(Err(Errno::PIPE)));
    assert_eq!(pair.near.receive_at_rest(|| Ok::<_, Errno>(7)), Some(Ok(7)));
    let guard = pair.near.lock(&pair.client);
    let counted = guard.counters();
    assert_eq!((counted.tx_bytes_tcp, counted.rx_bytes_tcp), (140, 7));
    assert_eq!(guard.proto().positions(), (140, 7));
}

/// Breaks if the kernel carried bytes of a stream that is on its way to a link, on it, or has ended there.
#[test]
fn a_stream_that_is_not_at_rest_takes_the_steps() {
    let never = || -> Result<usize, Errno> { panic!("the kernel is called") };
    for pair in [Pair::pledged(AnchorConfig::default()), Pair::linked()] {
        assert_eq!(pair.near.send_at_rest(never), None);
        assert_eq!(pair.near.receive_at_rest(never), None);
    }
}

/// Breaks if a call lost or repeated bytes that the kernel has sent the direct way, or did not wait where it has to.
#[test]
fn a_call_goes_on_behind_the_attempt_of_the_direct_way() {
    let pair = Pair::new(AnchorConfig::default());
    let mut call = pair.sending(100);
    let mut sending = Sending::begin(pair.connection(), &mut call, true);
    let next = sending.go_on_after(pair.connection(), &mut call, 30);
    assert!(matches!(next, Next::Again), "{next:?}");
    let next = send_on(&mut sending, &pair, &mut call, next);
    assert!(matches!(next, Next::Done(Ok(100))), "{next:?}");
    assert_eq!(pair.near.lock(&pair.client).counters().tx_bytes_tcp, 70, "the environment has counted the others");
    // No room, and no bytes.
    let mut call = pair.sending(100);
    let mut sending = Sending::begin(pair.connection(), &mut call, false);
    let next = sending.go_on_after(pair.connection(), &mut call, 0);
    assert!(matches!(next, Next::Wait(SendWait::Room(IDLE))), "{next:?}");
    let mut room = [0; 10];
    let mut call = pair.receiving(&mut room);
    let mut receiving = Receiving::begin(pair.connection(), &mut call, 1, false);
    let next = receiving.go_on_after(pair.connection(), &mut call, 0);
    assert!(matches!(next, Next::Wait(RecvWait::Data(IDLE))) && receiving.has_looked(), "{next:?}");
    // Fewer than the call waits for.
    let mut receiving = Receiving::begin(pair.connection(), &mut call, 10, false);
    let next = receiving.go_on_after(pair.connection(), &mut call, 4);
    assert!(matches!(next, Next::Again), "{next:?}");
    let next = recv_on(&mut receiving, &pair, &mut call, next);
    assert!(matches!(next, Next::Wait(RecvWait::Data(Limit { idle: false, .. }))), "{next:?}");
}
