use netacc_proto::{Demotion, Failure, MessageKind, Reason, RecordKind, RxSource, Stream, LINGER_LIMIT};

use crate::pair::{Pair, A, O};

#[test]
fn close_is_the_last_message() {
    //= spec §4.6.1
    //= type=test
    let mut p = Pair::promoted();
    p.side[O].close(false);
    p.side[O].give_credit();
    p.flush();
    assert_eq!(p.signals_to(A), [MessageKind::Fin, MessageKind::Close]);
    assert!(p.side[O].uses_slot());
    p.run_until_idle();
    assert!(!p.side[O].uses_slot() && !p.side[A].uses_slot());
}

#[test]
fn close_without_end_is_a_violation() {
    //= spec §4.6.2
    //= type=test
    let mut p = Pair::promoted();
    p.side[A].handle_signal(MessageKind::Close);
    assert!(matches!(p.side[A].failure(), Some(Failure::Violation(_))));
    let mut p = Pair::promoted();
    p.side[O].close(false);
    p.run_until_idle();
    assert_eq!(p.side[O].failure(), None);
}

#[test]
fn nothing_is_written_after_close_or_death() {
    //= spec §4.6.3
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(O, b"ab");
    assert!(p.side[A].consume(1).announce);
    p.side[O].close(false);
    p.run_until_idle();
    // The last byte: CLOSE goes out with its consumption.
    assert!(!p.side[A].consume(1).announce);
    p.flush();
    assert_eq!(p.signals_to(O), [MessageKind::Close]);
    let mut p = Pair::promoted();
    p.write_linked(O, b"ab");
    p.side[A].demote(Demotion::LinkFailed);
    p.side[A].handle_anchor_end(false);
    assert!(!p.side[A].consume(1).announce);
}

#[test]
fn a_closed_side_lingers_and_replays() {
    //= spec §4.6.4
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(O, b"response");
    p.side[O].close(false);
    p.flush();
    assert!(p.side[O].must_linger());
    p.link[A].clear();
    for s in 0..2 {
        p.side[s].demote(Demotion::LinkFailed);
    }
    p.run_until_idle();
    //= spec §4.8.9
    //= type=test
    //# For the same reason a side that has closed, and has nothing left to do on the anchor, ends it by closing it.
    assert!(!p.side[O].must_linger() && !p.anchor_ended[A]);
    assert_eq!(p.read_plain(A), b"response");
    assert_eq!(LINGER_LIMIT.as_millis(), 102_200);
}

/// Breaks if a stream that came to its link after the link had died kept a message for it: it would never be released.
#[test]
fn nothing_is_sent_on_a_dead_link() {
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.side[O].shutdown_write();
    for s in 0..2 {
        p.side[s].demote(Demotion::LinkFailed);
        p.link[s].clear();
    }
    for _ in 0..2 {
        p.peek(A);
        p.peek(O);
    }
    assert!(p.side[O].is_plain() && p.side[A].is_plain());
    assert!(p.anchor_ended[A], "the anchor carries the end");
    assert!(p.link.iter().all(|sent| sent.is_empty()), "{:?}", p.link);
}

/// Breaks if an opener whose anchor was reset before the acceptor's marker came sent CLOSE alone: the acceptor, which has
/// switched, would count a violation.
#[test]
fn a_reset_before_the_marker_is_announced() {
    //= spec §4.6.2
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.peek(A);
    assert!(p.side[A].is_linked());
    p.side[O].handle_kept_reset();
    assert!(p.side[O].is_plain(), "the kernel reports the error");
    p.flush();
    p.deliver(A);
    assert_eq!(p.side[A].failure(), Some(Failure::PeerReset));
}

#[test]
fn the_end_of_the_anchor_releases_a_lingering_side() {
    //= spec §4.6.5
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(O, b"response");
    p.side[O].close(false);
    p.run_until_idle();
    // The acceptor reads everything, and its CLOSE is lost with the link.
    p.side[A].consume(8);
    while p.side[A].poll_control().is_some() {}
    for s in 0..2 {
        p.side[s].demote(Demotion::LinkFailed);
    }
    p.flush();
    assert!(p.side[O].must_linger() && p.anchor[O].is_empty());
    p.peek(A);
    assert_eq!(p.record_to(O), Some(RecordKind::Resume));
    p.peek(O);
    assert!(!p.side[O].must_linger());
    assert_eq!(p.side[A].rx_source(), RxSource::Eof);
}

#[test]
fn close_waits_for_the_reader() {
    //= spec §4.6.6
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(O, b"response");
    p.side[O].close(false);
    p.run_until_idle();
    assert!(p.side[O].must_linger() && p.side[A].uses_slot());
    // Another process is about to use the descriptor.
    p.side[A].demote(Demotion::Requested(Reason::Shared));
    p.run_until_idle();
    assert!(p.side[A].is_plain());
    assert_eq!(p.read_plain(A), b"response");
}

#[test]
fn a_peer_that_has_read_everything_ends_the_anchor_in_good_order() {
    //= spec §4.7.1
    //= type=test
    type Ending = fn(&mut Stream);
    for ended in [(|s| s.handle_anchor_end(false)) as Ending, |s| s.handle_last_end(0)] {
        let mut p = Pair::promoted();
        p.write_linked(O, b"response");
        p.side[O].close(false);
        p.flush();
        p.deliver(A);
        p.side[A].consume(8);
        // Its CLOSE goes out, which no FIN can follow: it ends on the anchor.
        p.flush();
        p.side[A].shutdown_write();
        p.flush();
        p.deliver(O);
        ended(&mut p.side[O]);
        assert_eq!((p.side[O].failure(), p.side[O].must_linger(), p.side[O].uses_slot()), (None, false, false));
    }
}

#[test]
fn memory_outlives_the_replay_from_it() {
    //= spec §4.6.7
    //= type=test
    let mut p = Pair::promoted();
    p.write_linked(O, b"response");
    p.side[O].close(false);
    p.run_until_idle();
    p.side[A].demote(Demotion::Requested(Reason::Shared));
    p.run_until_idle();
    assert!(!p.side[A].uses_slot() && p.side[A].needs_memory());
    p.read_plain(A);
    assert!(!p.side[A].needs_memory());
}

#[test]
fn a_marker_is_consumed_before_the_anchor_is_closed() {
    //= spec §4.6.8
    //= type=test
    let mut p = Pair::new(false);
    p.open();
    p.deliver(A);
    p.deliver(O);
    p.write_plain(A, b"response");
    p.side[A].close(false);
    p.flush();
    assert!(p.side[A].must_linger() && p.anchor_ended[O]);
    p.peek(A);
    assert!(!p.side[A].must_linger() && p.anchor[A].is_empty());
    p.run_until_idle();
    assert_eq!((p.read_plain(O), p.side[O].failure()), (b"response".to_vec(), None));
}

#[test]
fn unread_bytes_make_close_a_reset() {
    let mut p = Pair::promoted();
    p.write_linked(O, b"unread");
    p.side[A].close(false);
    p.flush();
    assert_eq!(p.signals_to(O), [MessageKind::Reset, MessageKind::Close]);
    p.deliver(O);
    assert_eq!(p.side[O].failure(), Some(Failure::PeerReset));
}

#[test]
fn an_aborted_opener_answers_accept_with_close() {
    let mut p = Pair::new(false);
    p.open();
    p.side[O].abort();
    p.deliver(A);
    p.deliver(O);
    assert_eq!(p.signals_to(A), [MessageKind::Close]);
    p.run_until_idle();
    assert!(!p.side[O].uses_slot() && !p.side[A].uses_slot());
}
