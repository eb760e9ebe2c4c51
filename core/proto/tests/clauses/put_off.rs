//! Promotions on links where markers may be put off.

use netacc_proto::{
    Control, Demotion, Failure, Markers, MessageKind, Reason, Record, RecordKind, RecordVerdict, Rest, Role, RxSource,
    Stream, StreamConfig, TxSink,
};

use crate::pair::{Pair, A, NONCE, O};

/// As far as ACCEPT, which the opener has handled; its UNMARKED or SWITCHED is in flight.
fn accepted(mut p: Pair) -> Pair {
    p.open();
    p.deliver(A);
    p.deliver(O);
    p
}

/// The link dies, and what is in flight with it.
fn die(p: &mut Pair) {
    p.link.iter_mut().for_each(|messages| messages.clear());
    p.side.iter_mut().for_each(|side| side.demote(Demotion::LinkFailed));
    p.flush();
}

#[test]
fn nothing_goes_to_the_anchor() {
    //= spec §4.3.7
    //= type=test
    let mut p = accepted(Pair::without_markers());
    assert_eq!((p.signals_to(A), p.side[O].tx_sink()), (vec![MessageKind::Unmarked], TxSink::Wait));
    p.deliver(A);
    assert!(p.side[A].is_linked());
    assert_eq!(p.signals_to(O), [MessageKind::Unmarked]);
    p.deliver(O);
    assert!(p.side[O].is_linked() && p.anchor.iter().all(|bytes| bytes.is_empty()));
}

#[test]
fn a_marker_is_written_where_one_side_needs_it() {
    //= spec §4.3.7
    //= type=test
    let cautious: [fn(&mut Pair); 4] = [
        |p| p.side[O] = Stream::new(Role::Opener, StreamConfig { trust_hints: false }),
        |p| p.side[A] = Stream::new(Role::Acceptor, StreamConfig { trust_hints: false }),
        // A thread of it waits in the kernel.
        |p| {
            p.open();
            p.side[O].require_marker();
        },
        |p| p.markers = Markers::Written,
    ];
    for (n, set) in cautious.into_iter().enumerate() {
        let mut p = Pair::without_markers();
        set(&mut p);
        if p.side[O].may_promote() {
            p.open();
        }
        p.deliver(A);
        p.deliver(O);
        assert_eq!((p.record_to(A), p.signals_to(A)), (Some(RecordKind::Marker), vec![MessageKind::Switched]), "{n}");
        p.deliver(A);
        p.peek(A);
        assert_eq!((p.record_to(O), p.signals_to(O)), (Some(RecordKind::Marker), vec![MessageKind::Switched]), "{n}");
        p.run_until_idle();
        assert!(p.side.iter().all(Stream::is_linked), "{n}");
    }
}

#[test]
fn unmarked_that_is_not_allowed_is_a_violation() {
    //= spec §4.3.7
    //= type=test
    for s in [O, A] {
        let mut p = accepted(Pair::new(true));
        p.side[s].handle_signal(MessageKind::Unmarked);
        assert!(matches!(p.side[s].failure(), Some(Failure::Violation(_))), "{s}");
    }
}

#[test]
fn unmarked_comes_before_data() {
    //= spec §4.3.7
    //= type=test
    let mut p = accepted(Pair::without_markers());
    p.side[A].handle_signal(MessageKind::Unmarked);
    assert_eq!((p.side[A].tx_sink(), p.side[A].claim(1).len), (TxSink::Wait, 0));
    assert_eq!(p.side[A].poll_control(), Some(Control::Signal(MessageKind::Unmarked)));
    assert_eq!((p.side[A].tx_sink(), p.side[A].claim(1).len), (TxSink::Link, 1));
}

#[test]
fn an_acceptor_that_wrote_does_not_act_on_unmarked() {
    //= spec §4.3.8
    //= type=test
    let voided = || {
        let mut p = accepted(Pair::without_markers());
        p.write_plain(A, b"y");
        p.deliver(A);
        assert_eq!((p.side[A].tx_sink(), p.side[A].rx_source()), (TxSink::Anchor, RxSource::Record));
        p
    };
    let mut p = voided();
    p.peek(O);
    assert_eq!((p.side[O].is_plain(), p.read_plain(O)), (true, b"y".to_vec()));
    p.deliver(A);
    assert!(p.side[A].is_plain(), "CLOSE shows that no marker comes");
    let mut p = voided();
    die(&mut p);
    assert_eq!((p.record_to(A), p.peek(A)), (Some(RecordKind::Marker), Some(RecordVerdict::Consume)));
    p.run_until_idle();
    assert!(p.side.iter().all(Stream::is_plain));
}

/// Breaks if the first bytes of a marker counted as promised, although UNMARKED promises none.
#[test]
fn bytes_like_a_marker_are_the_applications_after_unmarked() {
    //= spec §4.3.8
    //= type=test
    let mut p = accepted(Pair::without_markers());
    p.write_plain(A, b"y");
    p.deliver(A);
    let magic = [0xA7];
    assert_eq!(p.side[A].handle_record(&magic, Rest::Coming), RecordVerdict::NeedMore);
    assert_eq!(p.side[A].handle_record(&magic, Rest::Late), RecordVerdict::Plain);
}

#[test]
fn the_marker_is_written_when_the_link_dies() {
    //= spec §4.3.9
    //= type=test
    // UNMARKED has not come.
    let mut p = accepted(Pair::without_markers());
    die(&mut p);
    assert_eq!(p.peek(A), Some(RecordVerdict::Consume));
    assert_eq!(p.record_to(O), Some(RecordKind::Marker));
    p.run_until_idle();
    assert!(p.side.iter().all(|side| side.is_plain() && side.promotions() == 1));
    // The answer has not come.
    let mut p = accepted(Pair::without_markers());
    p.deliver(A);
    die(&mut p);
    let again = p.bytes_to(A);
    assert_eq!((p.record_to(A), p.record_to(O)), (Some(RecordKind::Marker), Some(RecordKind::Resume)));
    assert_eq!(p.peek(A), Some(RecordVerdict::Consume));
    let mut twice = p.side[A].clone();
    assert_eq!(twice.handle_record(&again, Rest::Coming), RecordVerdict::Plain);
    assert!(matches!(twice.failure(), Some(Failure::Violation(_))));
    p.run_until_idle();
    assert!(p.side.iter().all(|side| side.is_plain() && side.promotions() == 1));
}

#[test]
fn a_marker_with_another_position_is_a_violation() {
    //= spec §4.4.2
    //= type=test
    let mut p = accepted(Pair::without_markers());
    p.deliver(A);
    let marker = Record { kind: RecordKind::Marker, position: 1, end: 0, token: NONCE[A] };
    assert_eq!(p.side[A].handle_record(&marker.encode(), Rest::Coming), RecordVerdict::Plain);
    assert!(matches!(p.side[A].failure(), Some(Failure::Violation(_))));
}

#[test]
fn leaving_writes_resume_alone() {
    //= spec §4.3.7, §4.5.1
    //= type=test
    let mut p = accepted(Pair::without_markers());
    p.run_until_idle();
    p.write_linked(O, b"bytes");
    p.side[A].demote(Demotion::Requested(Reason::Requested));
    p.flush();
    assert_eq!(p.record_to(O), Some(RecordKind::Resume));
    p.run_until_idle();
    assert!(p.side.iter().all(Stream::is_plain));
    assert_eq!(p.read_plain(A), b"bytes");
}

/// Breaks if an opener took the end of a killed acceptor's connection for an end in good order although that had written.
#[test]
fn the_link_is_handled_before_the_end_of_the_anchor() {
    //= spec §4.3.10
    //= type=test
    let mut p = accepted(Pair::without_markers());
    assert!(p.side[O].expects_unmarked() && p.side[O].may_resume());
    p.deliver(A);
    let rewind = p.hold_back(A, b"bytes");
    p.deliver(O);
    p.side[O].handle_data(5, rewind);
    assert!(!p.side[O].expects_unmarked() && p.side[O].ends_by_link());
    p.side[O].handle_anchor_end(false);
    assert_eq!((p.side[O].available(), p.side[O].failure()), (5, Some(Failure::PeerReset)));
}
