use netacc_proto::{Failure, MessageKind, Reason, Revival, RxSource, SocketError, TxSink};

use crate::pair::{Pair, A, O};

/// Both on the link, and one side has ended both directions; the other has learned of it.
fn deaf(side: usize) -> Pair {
    let mut p = Pair::promoted();
    p.side[side].shutdown_read();
    p.side[side].shutdown_write();
    p.run_until_idle();
    p
}

#[test]
fn shut_down_reading_is_announced_once_and_first() {
    //= spec §4.8.1
    //= type=test
    let mut p = Pair::promoted();
    p.side[O].shutdown_read();
    p.side[O].shutdown_read();
    p.side[O].shutdown_write();
    p.flush();
    assert_eq!(p.signals_to(A), [MessageKind::ReadShut, MessageKind::Fin]);
    // Alone it changes nothing.
    let mut p = Pair::promoted();
    p.side[O].shutdown_read();
    p.run_until_idle();
    assert_eq!((p.side[A].tx_sink(), p.side[O].rx_source()), (TxSink::Link, RxSource::Eof));
    p.write_linked(A, b"late");
    assert_eq!((p.side[O].rx_source(), p.side[O].available(), p.side[O].failure()), (RxSource::Link, 4, None));
}

#[test]
fn data_for_a_side_that_reads_no_more_is_a_reset() {
    //= spec §4.8.2
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(A, b"before");
    p.side[O].shutdown_read();
    p.side[O].shutdown_write();
    p.side[O].handle_data(4, false);
    p.flush();
    assert!(p.signals_to(A).contains(&MessageKind::Reset));
    assert_eq!((p.side[O].rx_source(), p.side[O].available()), (RxSource::Link, 6));
    p.side[O].consume(6);
    assert_eq!(p.side[O].rx_source(), RxSource::Failed(Failure::PeerReset));
    // The peer's bytes from before its own end were in flight.
    let mut p = Pair::promoted();
    p.side[O].shutdown_read();
    p.side[A].shutdown_write();
    p.run_until_idle();
    p.side[O].shutdown_write();
    p.run_until_idle();
    assert_eq!((p.side[O].failure(), p.side[A].failure()), (None, None));
}

#[test]
fn bytes_instead_of_a_marker_for_a_side_that_reads_no_more_are_a_reset() {
    //= spec §4.8.2
    //= type=test
    // The acceptor has pledged that it expects a marker; the opener writes, and so voids its pledge.
    let shut_down = |both: bool| {
        let mut p = Pair::new(false);
        p.open();
        p.deliver(A);
        p.side[A].shutdown_read();
        if both {
            p.side[A].shutdown_write();
        }
        p.write_plain(O, b"data that is no marker, but longer than a record would be");
        p
    };
    let mut p = shut_down(true);
    p.run_until_idle();
    assert_eq!((p.side[A].error(), p.side[A].tx_sink()), (Some(SocketError::Reset), TxSink::Closed));
    // Or the peer announces first that no marker will come.
    let mut p = shut_down(true);
    p.deliver(O);
    p.deliver(A);
    p.run_until_idle();
    assert_eq!(p.side[A].error(), Some(SocketError::Reset));
    // Reading alone: they can be read.
    let mut p = shut_down(false);
    p.run_until_idle();
    assert_eq!((p.side[A].failure(), p.read_plain(A).len()), (None, 57));
}

#[test]
fn a_write_to_a_side_that_reads_no_more_is_a_reset() {
    //= spec §4.8.3
    //= type=test
    let mut closed = Pair::promoted();
    closed.side[O].close(false);
    closed.run_until_idle();
    for (mut p, reported) in [(closed, None), (deaf(O), Some(SocketError::Reset))] {
        assert_eq!((p.side[A].tx_sink(), p.side[A].is_over()), (TxSink::Refused, false));
        p.side[A].refuse_write(1);
        p.run_until_idle();
        // A peer that has closed may not have learned of it.
        assert_eq!((p.side[A].is_over(), p.side[O].error()), (true, reported));
        assert_eq!(p.side[A].tx_sink(), TxSink::Closed);
        assert_eq!((p.side[A].take_error(), p.side[A].take_error()), (Some(SocketError::Pipe), None));
        assert_eq!((p.side[A].rx_source(), p.side[A].no_more_in()), (RxSource::Eof, true));
        p.side[A].close(false);
        p.side[O].close(false);
        p.run_until_idle();
        assert!(!p.side[O].uses_slot() && !p.side[A].uses_slot());
    }
    // While the path changes, the anchor's state decides.
    let mut p = deaf(O);
    p.side[A].demote(netacc_proto::Demotion::Requested(Reason::Requested));
    assert_eq!(p.side[A].tx_sink(), TxSink::Wait);
}

#[test]
fn the_ended_directions_decide_the_error_of_a_failure() {
    //= spec §4.8.4
    //= type=test
    let errors_of = |peer_ended: bool, we_ended: bool| {
        let mut p = Pair::promoted();
        for (side, ends) in [(A, peer_ended), (O, we_ended)] {
            if ends {
                p.side[side].shutdown_write();
            }
        }
        p.run_until_idle();
        assert_eq!(p.side[O].is_over(), peer_ended && we_ended);
        p.side[O].handle_signal(MessageKind::Reset);
        assert!(p.side[O].is_over());
        let before = p.side[O].rx_source();
        let error = p.side[O].take_error();
        assert_eq!((p.side[O].rx_source(), p.side[O].tx_sink()), (RxSource::Eof, TxSink::Closed));
        (before, error)
    };
    let failed = RxSource::Failed(Failure::PeerReset);
    assert_eq!(errors_of(false, false), (failed, Some(SocketError::Reset)));
    assert_eq!(errors_of(false, true), (failed, Some(SocketError::Reset)));
    assert_eq!(errors_of(true, false), (RxSource::Eof, Some(SocketError::Pipe)));
    assert_eq!(errors_of(true, true), (RxSource::Eof, None));
}

#[test]
fn reading_is_shut_down_on_the_anchor_too() {
    //= spec §4.8.5
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(A, b"unread");
    p.side[O].shutdown_read();
    p.run_until_idle();
    p.side[O].demote(netacc_proto::Demotion::Requested(Reason::Requested));
    p.run_until_idle();
    // The kernel would take an end for one of the replay.
    assert!(!p.anchor_read_shut[O]);
    assert_eq!(p.read_plain(O), b"unread");
    p.flush();
    assert!(p.anchor_read_shut[O] && !p.anchor_ended[A]);
    assert!(p.side[O].is_plain() && !p.side[O].may_promote());
}

#[test]
fn no_marker_where_the_anchor_has_ended() {
    //= spec §4.6.9
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.side[A].shutdown_write();
    p.flush();
    assert!(p.anchor_ended[O]);
    while let Some(control) = p.link[O].pop_front() {
        if let netacc_proto::Control::Message(netacc_proto::ControlMessage::Accept(accept)) = control {
            p.side[O].handle_accept(&accept);
        }
    }
    // The side that is about to write it checks the anchor first.
    assert!(p.side[O].is_about_to_switch());
    p.side[O].handle_anchor_end(false);
    p.flush();
    assert!(p.side[O].is_plain() && p.record_to(A).is_none());
}

#[test]
fn an_ended_stream_is_given_back() {
    //= spec §4.8.6
    //= type=test
    for unread in [false, true] {
        let mut p = deaf(O);
        p.side[A].refuse_write(1);
        p.run_until_idle();
        if unread {
            p = Pair::promoted();
            p.write_linked(O, b"x");
            p.side[A].handle_anchor_end(true);
        }
        assert!(p.side[A].has_ended());
        assert_eq!((p.side[A].give_back(), p.side[A].is_plain()), (!unread, !unread));
        if !unread {
            assert_eq!((p.side[A].rx_source(), p.side[A].tx_sink()), (RxSource::Anchor(u64::MAX), TxSink::Anchor));
        }
    }
    assert!(!Pair::promoted().side[A].has_ended());
}

#[test]
fn unread_bytes_are_replayed_before_a_reset() {
    //= spec §4.8.7, §4.8.8
    //= type=test
    // It closes with unread bytes; or bytes arrive after it has closed.
    for refused in [false, true] {
        for reported in [false, true] {
            let mut p = Pair::promoted();
            p.write_linked(O, b"last words");
            if !refused {
                p.write_linked(A, b"unread");
            }
            p.side[O].close(false);
            p.run_until_idle();
            if refused {
                p.side[A].refuse_write(1);
                p.run_until_idle();
            }
            assert!(p.side[A].has_ended() && p.side[O].resets() && p.side[O].must_linger());
            if reported {
                assert!(p.side[A].take_error().is_some());
            }
            assert!(p.side[A].revive());
            assert_eq!(p.side[A].revived(), Some(if reported { Revival::Reported } else { Revival::Unreported }));
            p.side[A].demote(netacc_proto::Demotion::Requested(Reason::Requested));
            p.run_until_idle();
            assert_eq!(p.read_plain(A), b"last words");
            assert!(p.side[A].is_plain() && !p.side[O].must_linger() && p.side[O].resets());
            assert_eq!((p.side[O].has_closed_writing(), p.anchor_ended[A]), (refused, false));
        }
    }
    // A side that has read everything frees its slot.
    let mut p = Pair::promoted();
    p.write_linked(O, b"x");
    p.side[O].close(true);
    p.run_until_idle();
    p.side[A].consume(1);
    p.run_until_idle();
    assert_eq!((p.side[O].must_linger(), p.side[A].revive()), (false, false));
    // It comes while the stream leaves the link.
    let mut p = Pair::promoted();
    p.side[A].demote(netacc_proto::Demotion::Requested(Reason::Requested));
    p.side[A].handle_signal(MessageKind::Reset);
    assert_eq!((p.side[A].failure(), p.side[A].revived()), (None, Some(Revival::Unreported)));
}

/// Breaks if the CLOSE with which a side frees its slot once it has left were taken for one of a closed socket.
#[test]
fn a_side_that_has_left_gets_its_unread_bytes_again() {
    //= spec §4.8.8
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(O, b"last words");
    p.side[O].shutdown_read();
    p.side[O].shutdown_write();
    p.run_until_idle();
    p.side[A].refuse_write(1);
    p.run_until_idle();
    assert!(p.side[O].failure().is_some() && p.side[O].revive());
    p.side[O].demote(netacc_proto::Demotion::Requested(Reason::Requested));
    p.flush();
    // Its CLOSE is handled before its RESUME.
    p.peek(A);
    p.run_until_idle();
    assert_eq!(p.read_plain(A), b"last words");
}

#[test]
fn a_revived_stream_ends_on_the_anchor_as_it_did_on_the_link() {
    //= spec §4.8.9
    //= type=test
    for leaver in [A, O] {
        let mut p = deaf(O);
        p.side[A].refuse_write(1);
        p.run_until_idle();
        assert!(p.side[O].failure().is_some() && p.side[leaver].revive());
        p.side[leaver].demote(netacc_proto::Demotion::Requested(Reason::Requested));
        p.run_until_idle();
        assert!(p.side[A].is_plain() && p.side[O].is_plain() && p.anchor_read_shut[O] && p.anchor_ended[A]);
        assert_eq!([A, O].map(|side| p.side[side].revived()), [Some(Revival::Unreported); 2]);
    }
}
