use netacc_proto::{
    Control, ControlMessage, Failure, Markers, MessageKind, Phase, Reason, RecordKind, RecordVerdict, Rest, Role,
    RxSource, Stream, StreamConfig, TxSink, RECORD_GRACE, RECORD_LEN,
};

use crate::pair::{ring, Pair, A, NONCE, O};

#[test]
fn marker_and_answer() {
    //= spec §4.2.1, §4.2.2, §4.3.1, §4.3.2, §4.3.3
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    assert_eq!(p.side[O].tx_sink(), TxSink::Pledged);
    p.deliver(A);
    assert_eq!((p.side[A].tx_sink(), p.side[A].phase()), (TxSink::Pledged, Phase::Promoting));
    p.deliver(O);
    assert_eq!((p.record_to(A), p.side[O].tx_sink()), (Some(RecordKind::Marker), TxSink::Wait));
    assert_eq!(p.signals_to(A), [MessageKind::Switched]);
    // Without trust, SWITCHED changes nothing.
    p.deliver(A);
    assert_eq!(p.side[A].tx_sink(), TxSink::Pledged);
    assert_eq!(p.peek(A), Some(RecordVerdict::Consume));
    assert!(p.side[A].is_linked());
    assert_eq!((p.record_to(O), p.signals_to(O)), (Some(RecordKind::Marker), vec![MessageKind::Switched]));
    assert_eq!(p.peek(O), Some(RecordVerdict::Consume));
    assert!(p.side[O].is_linked() && p.anchor.iter().all(|a| a.is_empty()));
}

#[test]
fn no_data_before_the_marker_is_written() {
    //= spec §4.3.2, §4.3.3
    //= type=test
    let mut p = Pair::new(true);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.side[A].handle_signal(MessageKind::Switched);
    assert_eq!((p.side[A].tx_sink(), p.side[A].claim(1).len), (TxSink::Wait, 0));
    p.side[A].shutdown_write();
    assert!(!p.side[A].has_control());
    p.flush();
    assert_eq!(p.signals_to(O), [MessageKind::Switched, MessageKind::Fin]);
}

#[test]
fn hints_are_believed_where_they_may_be() {
    //= spec §4.3.6
    //= type=test
    let mut p = Pair::new(true);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.deliver(A);
    assert_eq!((p.side[A].tx_sink(), p.side[A].rx_source()), (TxSink::Link, RxSource::Record));
    p.deliver(O);
    assert_eq!(p.side[O].tx_sink(), TxSink::Link);
    p.run_until_idle();
    assert!(p.side[O].is_linked() && p.side[A].is_linked());
}

#[test]
fn only_an_acceptor_accepts() {
    //= spec §1.5
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    let Some(Control::Message(ControlMessage::Open(open))) = p.link[A].pop_front() else { panic!() };
    let mut other = Stream::new(Role::Opener, StreamConfig { trust_hints: false });
    assert_eq!(other.accept(&open, 0, NONCE[A], ring(), Markers::Written), Err(Reason::UnknownStream));
}

#[test]
fn not_while_anything_is_under_way() {
    //= spec §4.1.1
    //= type=test
    let p = Pair::new(false);
    assert!(p.side[O].may_promote());
    let mut p = Pair::new(false);
    p.side[O].shutdown_write();
    assert!(!p.side[O].may_promote());
    let p = Pair::promoted();
    assert!(!p.side[O].may_promote() && !p.side[A].may_promote());
}

#[test]
fn an_old_pledge_is_refused() {
    //= spec §4.2.3
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.write_plain(O, b"x");
    assert_eq!(p.read_plain(A), b"x");
    p.deliver(A);
    assert_eq!(p.side[O].reason(), Reason::PledgeVoided);
    assert!(p.side[A].is_plain() && p.side[O].is_plain() && p.side[O].may_promote());
}

#[test]
fn a_voided_pledge_is_answered_with_close() {
    //= spec §4.2.4, §4.2.5
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.write_plain(O, b"x");
    assert_eq!(p.side[O].tx_sink(), TxSink::Anchor);
    p.deliver(O);
    assert_eq!(p.signals_to(A), [MessageKind::Close]);
    assert!(p.anchor[A] == b"x");
}

#[test]
fn reading_beyond_the_answer_is_answered_with_close() {
    //= spec §4.2.4
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.write_plain(A, b"y");
    assert_eq!(p.read_plain(O), b"y");
    p.deliver(O);
    assert_eq!(p.signals_to(A), [MessageKind::Close]);
    p.run_until_idle();
    assert!(p.side[O].is_plain() && p.side[A].is_plain());
}

#[test]
fn application_bytes_at_the_pledge_end_the_attempt() {
    //= spec §4.4.1, §4.4.3
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.write_plain(O, b"data that is no marker, but longer than a record would be");
    assert_eq!(p.peek(A), Some(RecordVerdict::Plain));
    assert!(p.side[A].is_plain());
    assert_eq!(p.read_plain(A).len(), 57);
    p.run_until_idle();
    assert!(p.side[O].is_plain() && !p.side[O].uses_slot() && !p.side[A].uses_slot());
}

#[test]
fn an_acceptor_that_wrote_stays_on_the_anchor() {
    //= spec §4.3.4
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.write_plain(A, b"y");
    assert_eq!(p.peek(A), Some(RecordVerdict::Consume));
    assert!(p.side[A].is_plain() && p.anchor[A].is_empty());
    p.peek(O);
    assert_eq!((p.side[O].is_plain(), p.read_plain(O)), (true, b"y".to_vec()));
}

#[test]
fn close_after_switched_does_not_unexpect_the_marker() {
    //= spec §4.3.5
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.write_plain(A, b"y");
    p.peek(O);
    assert_eq!(p.signals_to(A), [MessageKind::Switched, MessageKind::Close]);
    p.deliver(A);
    assert_eq!(p.side[A].rx_source(), RxSource::Record);
    assert_eq!(p.peek(A), Some(RecordVerdict::Consume));
    assert!(p.side[A].is_plain());
}

#[test]
fn a_beginning_is_waited_for() {
    //= spec §3.3.2
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.deliver(O);
    let marker: Vec<u8> = p.anchor[A].iter().copied().collect();
    for n in 0..RECORD_LEN {
        assert_eq!(p.side[A].handle_record(&marker[..n], Rest::Coming), RecordVerdict::NeedMore);
    }
    // A part so short may be anything; a longer one can only be a record that its writer did not live to finish.
    assert_eq!(p.side[A].clone().handle_record(&marker[..7], Rest::Ended), RecordVerdict::Plain);
    let mut cut = p.side[A].clone();
    assert_eq!(cut.handle_record(&marker[..8], Rest::Ended), RecordVerdict::NeedMore);
    cut.handle_anchor_end(true);
    assert_eq!(cut.rx_source(), RxSource::Failed(Failure::PeerReset));
    assert_eq!(p.side[A].handle_record(&marker, Rest::Coming), RecordVerdict::Consume);
    assert_eq!(RECORD_GRACE.as_secs(), 3);
}

/// Breaks if the first bytes of a marker were given to the application because a reset came before the rest of them.
#[test]
fn a_beginning_before_a_reset_is_no_data() {
    //= spec §3.3.2
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.deliver(O);
    let marker: Vec<u8> = p.anchor[A].iter().copied().collect();
    for n in 1..RECORD_LEN {
        let mut cut = p.side[A].clone();
        assert_eq!(cut.handle_record(&marker[..n], Rest::Reset), RecordVerdict::NeedMore, "{n} bytes");
        cut.handle_anchor_end(true);
        assert_eq!(cut.rx_source(), RxSource::Failed(Failure::PeerReset), "{n} bytes");
    }
    assert_eq!(p.side[A].handle_record(&[marker[0], !marker[1]], Rest::Reset), RecordVerdict::Plain);
}

/// Breaks if a side whose own pledge is void forgot that the peer has sent SWITCHED: the rest of a marker may be late on
/// a slow network.
#[test]
fn a_marker_that_was_announced_is_waited_for() {
    //= spec §3.3.2
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.write_plain(A, b"y");
    p.deliver(A);
    let marker: Vec<u8> = p.anchor[A].iter().copied().collect();
    for rest in [Rest::Late, Rest::Ended] {
        assert_eq!(p.side[A].clone().handle_record(&marker[..1], rest), RecordVerdict::NeedMore, "{rest:?}");
    }
    assert_eq!(p.side[A].handle_record(&marker, Rest::Coming), RecordVerdict::Consume);
}

#[test]
fn a_promised_marker_that_is_cut_off_is_a_reset() {
    //= spec §3.3.2
    //= type=test
    let mut p = Pair::new(true);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.deliver(A);
    assert_eq!(p.side[A].tx_sink(), TxSink::Link, "on the peer's SWITCHED alone");
    let marker: Vec<u8> = p.anchor[A].iter().copied().collect();
    for n in 1..RECORD_LEN {
        let mut cut = p.side[A].clone();
        assert_eq!(cut.handle_record(&marker[..n], Rest::Ended), RecordVerdict::NeedMore, "{n} bytes");
        cut.handle_anchor_end(true);
        assert_eq!(cut.failure(), Some(Failure::PeerReset), "{n} bytes");
    }
}

#[test]
fn a_marker_has_nothing_unread_before_it() {
    //= spec §4.2.7, §4.2.8
    //= type=test
    let mut p = Pair::new(false);
    p.write_plain(O, b"question");
    p.write_plain(A, b"answer");
    p.open();
    p.deliver(A);
    assert!(!p.side[A].has_control() && p.side[A].tx_sink() == TxSink::Anchor, "no answer yet");
    assert_eq!(p.read_plain(A), b"question");
    p.flush();
    p.deliver(O);
    assert_eq!((p.side[O].tx_sink(), p.record_to(A)), (TxSink::Pledged, None), "no marker yet");
    let mut impatient = p.side[O].clone();
    impatient.void_pledge();
    assert_eq!(
        (impatient.tx_sink(), impatient.poll_control()),
        (TxSink::Anchor, Some(Control::Signal(MessageKind::Close)))
    );
    assert_eq!(p.read_plain(O), b"answer");
    p.run_until_idle();
    assert!(p.side[O].is_linked() && p.side[A].is_linked());
}

#[test]
fn a_write_that_fails_leaves_the_pledge() {
    //= spec §4.2.5
    //= type=test
    let answered = |before: fn(&mut Pair)| {
        let mut p = Pair::new(false);
        p.open();
        p.deliver(A);
        p.side[A].void_pledge();
        assert_eq!(p.side[A].tx_sink(), TxSink::Anchor, "the application may write");
        before(&mut p);
        p.run_until_idle();
        (p.side[O].is_linked(), p.side[A].is_linked(), p.side[A].is_plain())
    };
    assert_eq!(answered(|_| {}), (true, true, false));
    assert_eq!(answered(|p| p.write_plain(A, b"answer")), (false, false, true));
    assert!(!answered(|p| p.side[A].shutdown_write()).1);
}

#[test]
fn an_attempt_that_waits_for_the_application_can_be_given_up() {
    //= spec §4.2.7
    //= type=test
    let ways: [fn(&mut Stream); 5] = [
        Stream::shutdown_write,
        |s: &mut Stream| s.close(false),
        Stream::abort,
        |s: &mut Stream| s.demote(netacc_proto::Demotion::Requested(Reason::Requested)),
        |s: &mut Stream| s.anchor_received(9),
    ];
    for give_up in ways {
        let mut p = Pair::new(false);
        p.write_plain(O, b"question");
        p.open();
        p.deliver(A);
        give_up(&mut p.side[A]);
        assert!(p.side[A].is_plain() && !p.side[A].uses_slot());
        assert!(matches!(p.side[A].poll_control(), Some(Control::Message(ControlMessage::Refuse(_)))));
    }
}

#[test]
fn a_violation_costs_the_stream() {
    //= spec §1.4
    //= type=test
    let mut p = Pair::promoted();
    p.side[O].handle_data(crate::pair::RING + 1, false);
    assert!(matches!(p.side[O].failure(), Some(Failure::Violation(_))));
    assert_eq!(p.side[O].tx_sink(), TxSink::Closed);
    p.flush();
    assert_eq!(p.signals_to(A), [MessageKind::Reset]);
    p.deliver(A);
    assert_eq!(p.side[A].failure(), Some(Failure::PeerReset));
}
