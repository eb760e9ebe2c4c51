use netacc_proto::{
    Demotion, Failure, MessageKind, PeerFin, Phase, Reason, Record, RecordKind, RecordVerdict, Rest, RxSource,
    SocketError, TcpState, TxSink, CORKED_REWIND,
};

use crate::pair::{Pair, A, NONCE, O};

const REQUEST: Demotion = Demotion::Requested(Reason::Requested);

#[test]
fn both_sides_replay_unconsumed_bytes() {
    //= spec §4.5.1, §4.5.4
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(O, b"to the acceptor");
    p.write_linked(A, b"to the opener");
    p.side[A].consume(3);
    p.side[O].demote(REQUEST);
    assert_eq!((p.side[O].tx_sink(), p.side[O].rx_source()), (TxSink::Wait, RxSource::Record));
    p.flush();
    assert_eq!((p.record_to(A), p.signals_to(A)), (Some(RecordKind::Resume), vec![MessageKind::Demote]));
    p.run_until_idle();
    assert!(p.side[O].is_plain() && p.side[A].is_plain());
    assert_eq!(p.read_plain(A), b"the acceptor");
    assert_eq!(p.read_plain(O), b"to the opener");
    assert!(p.side[O].may_promote() && p.side[A].may_promote());
    p.open();
    p.run_until_idle();
    assert!(p.side[O].is_linked() && p.side[A].is_linked());
}

#[test]
fn bytes_that_could_be_read_are_awaited_until_they_have_come_again() {
    let mut p = Pair::promoted();
    p.write_linked(O, b"seen");
    assert!(!p.side[A].awaits_replay());
    for s in 0..2 {
        p.side[s].demote(REQUEST);
    }
    // The side that had nothing to read is owed nothing.
    assert!(p.side[A].awaits_replay() && !p.side[O].awaits_replay());
    p.run_until_idle();
    assert!(p.side[A].is_plain() && p.side[A].awaits_replay());
    assert_eq!(p.read_plain(A), b"seen");
    assert!(!p.side[A].awaits_replay());
}

#[test]
fn a_fin_behind_bytes_held_back_comes_on_the_anchor_only() {
    //= spec §5.1.5
    //= type=test
    let mut p = Pair::promoted();
    p.hold_back(O, b"no message yet");
    p.side[O].close(false);
    p.side[O].demote(REQUEST);
    p.flush();
    assert_eq!(p.signals_to(A), vec![MessageKind::Demote]);
    p.run_until_idle();
    assert_eq!(p.read_plain(A), b"no message yet");
    assert_eq!((p.side[A].peer_fin(), p.side[O].must_linger()), (PeerFin::Awaited, false));
}

#[test]
fn a_fin_comes_again_on_the_anchor() {
    //= spec §4.5.4
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(O, b"last");
    p.side[O].shutdown_write();
    p.run_until_idle();
    assert_eq!(p.side[A].peer_fin(), PeerFin::Received);
    for s in 0..2 {
        p.side[s].demote(Demotion::LinkFailed);
    }
    p.run_until_idle();
    assert!(p.side[A].peer_fin() != PeerFin::Received && p.anchor_ended[A]);
    assert_eq!(p.read_plain(A), b"last");
}

#[test]
fn without_an_answer_the_pledge_is_void() {
    //= spec §4.5.2
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.side[O].demote(Demotion::LinkFailed);
    assert!(p.side[O].is_plain());
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.side[O].demote(REQUEST);
    assert_eq!(p.side[O].phase(), Phase::Promoting);
    p.run_until_idle();
    assert!(p.side[O].is_plain() && p.side[A].is_plain());
}

#[test]
fn resume_must_make_sense() {
    //= spec §4.5.3
    //= type=test
    let verdict = |position, end| {
        let mut p = Pair::promoted();
        p.write_linked(O, b"12345");
        p.write_linked(A, b"123");
        p.side[O].handle_consumed(2);
        let record = Record { kind: RecordKind::Resume, position, end, token: NONCE[O] };
        p.side[O].handle_record(&record.encode(), Rest::Coming);
        p.side[O].failure().is_none()
    };
    assert!(verdict(2, 3) && verdict(5, 4096));
    assert!(!verdict(1, 3) && !verdict(6, 3) && !verdict(2, 2) && !verdict(2, 4097));
}

#[test]
fn only_resume_on_a_switched_anchor() {
    //= spec §4.4.2
    //= type=test
    let mut p = Pair::promoted();
    assert_eq!(p.side[A].handle_record(b"GET / HTTP/1.1", Rest::Coming), RecordVerdict::Plain);
    assert!(matches!(p.side[A].failure(), Some(Failure::Violation(_))));
}

#[test]
fn a_dead_peer_is_a_reset_after_what_it_sent() {
    //= spec §4.7.1
    //= type=test
    for link_first in [false, true] {
        let mut p = Pair::promoted();
        p.write_linked(O, b"some");
        if link_first {
            p.side[A].demote(Demotion::LinkFailed);
        }
        p.side[A].handle_anchor_end(false);
        assert_eq!(p.side[A].rx_source(), RxSource::Link);
        p.side[A].consume(4);
        assert_eq!(p.side[A].rx_source(), RxSource::Failed(Failure::PeerReset));
    }
    let mut p = Pair::promoted();
    p.side[O].shutdown_write();
    p.run_until_idle();
    p.side[A].handle_anchor_end(false);
    assert_eq!((p.side[A].rx_source(), p.side[A].tx_sink()), (RxSource::Eof, TxSink::Refused));
}

#[test]
fn a_peer_that_dies_while_replaying_is_a_reset() {
    //= spec §4.7.2
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(O, b"12345");
    p.side[A].demote(REQUEST);
    p.run_until_idle();
    p.anchor[A].truncate(3);
    assert_eq!(p.side[A].rx_source(), RxSource::Anchor(5));
    assert_eq!(p.read_plain(A), b"123");
    p.side[A].handle_anchor_end(false);
    assert_eq!(p.side[A].rx_source(), RxSource::Failed(Failure::PeerReset));
}

#[test]
fn bytes_that_arrived_before_a_reset_can_be_read() {
    //= spec §4.7.3
    //= type=test
    for demoted in [false, true] {
        let mut p = Pair::promoted();
        p.write_linked(A, b"last words");
        if demoted {
            p.side[O].demote(netacc_proto::Demotion::LinkFailed);
        }
        p.side[O].handle_anchor_end(true);
        assert_eq!((p.side[O].rx_source(), p.side[O].available()), (RxSource::Link, 10));
        p.side[O].consume(10);
        assert_eq!(p.side[O].rx_source(), RxSource::Failed(Failure::PeerReset));
    }
}

#[test]
fn a_link_that_loses_nothing_ends_as_the_kernel_would() {
    //= spec §4.7.4
    //= type=test
    // Both had read everything: a clean end.
    let mut p = Pair::promoted();
    p.write_linked(O, b"some");
    p.side[A].consume(4);
    p.side[A].handle_last_end(0);
    assert_eq!((p.side[A].rx_source(), p.side[A].tx_sink()), (RxSource::Eof, TxSink::Refused));
    // It had not died, and its FIN was in flight.
    p.side[A].handle_signal(MessageKind::Fin);
    assert_eq!((p.side[A].failure(), p.side[A].rx_source()), (None, RxSource::Eof));
    // It died before this side had read its last bytes: they come first.
    let mut p = Pair::promoted();
    p.write_linked(O, b"some");
    p.side[A].handle_last_end(0);
    assert_eq!((p.side[A].rx_source(), p.side[A].available()), (RxSource::Link, 4));
    assert_eq!((p.side[A].tcp_state(), p.side[A].tx_sink()), (TcpState::CloseWait, TxSink::Refused));
    p.side[A].consume(4);
    assert_eq!((p.side[A].failure(), p.side[A].rx_source()), (None, RxSource::Eof));
    // It died before it had read this side's last bytes.
    let mut p = Pair::promoted();
    p.write_linked(O, b"some");
    p.write_linked(A, b"unread");
    p.side[A].handle_last_end(0);
    assert_eq!((p.side[A].rx_source(), p.side[A].available()), (RxSource::Link, 4));
    p.side[A].consume(4);
    assert_eq!(p.side[A].rx_source(), RxSource::Failed(Failure::PeerReset));
    assert_eq!(p.side[A].tcp_state(), TcpState::Closed);
    //= spec §5.1.5
    //= type=test
    //# a peer that finds that the sender has died (§4.7.4) takes it as that message.
    for (corked, available) in [(0, 0), (4, 0), (10, 6), (4 | CORKED_REWIND, 0), (10 | CORKED_REWIND, 6)] {
        let mut p = Pair::promoted();
        let base = p.side[A].positions().1;
        p.write_linked(O, b"some");
        p.side[A].consume(4);
        p.side[A].handle_last_end(base + corked);
        assert_eq!(p.side[A].available(), available);
        p.side[A].consume(available);
        assert_eq!(p.side[A].rx_source(), RxSource::Eof);
    }
    for lie in [u64::MAX, 1 << 32, 1 << 62] {
        let mut p = Pair::promoted();
        p.side[A].handle_last_end(lie);
        assert!(p.side[A].failure().is_some() && p.side[A].available() == 0);
    }
    // It had not: a reset; and a broken pipe where its own direction had ended before.
    for (fin, error) in [(false, SocketError::Reset), (true, SocketError::Pipe)] {
        let mut p = Pair::promoted();
        if fin {
            p.side[O].shutdown_write();
        }
        p.write_linked(A, b"unread");
        p.run_until_idle();
        p.side[A].handle_last_end(0);
        assert_eq!(p.side[A].take_error(), Some(error));
    }
    // Bytes that came after the freeze were discarded, so their number is unknown.
    let mut p = Pair::promoted();
    p.side[A].demote(REQUEST);
    p.side[A].handle_last_end(0);
    assert_eq!(p.side[A].rx_source(), RxSource::Failed(Failure::PeerReset));
}

#[test]
fn a_side_that_expects_a_marker_announces_that_it_leaves() {
    //= spec §4.5.5
    //= type=test
    let mut p = Pair::new(false);
    // The opener's application has this to read before its marker may follow.
    p.write_plain(A, b"unread");
    p.open();
    p.deliver(A);
    p.deliver(O);
    assert!(p.side[O].awaits_reader());
    p.side[A].demote(REQUEST);
    p.side[A].demote(REQUEST);
    p.run_until_idle();
    assert!(p.side[A].is_plain() && p.side[O].is_plain());
    assert_eq!((p.side[O].promotions(), p.read_plain(O)), (0, b"unread".to_vec()));
}
