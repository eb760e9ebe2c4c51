use netacc_proto::{Failure, MessageKind};

use crate::pair::{Pair, A, O, RING};

#[test]
fn zero_and_old_positions_carry_no_information() {
    //= spec §5.2.1, §5.2.2
    //= type=test
    let mut p = Pair::new(false);
    p.write_plain(O, b"before");
    p.read_plain(A);
    p.open();
    p.run_until_idle();
    p.write_linked(O, b"x");
    assert!(!p.side[O].handle_consumed(0) && p.side[O].failure().is_none());
    assert!(p.side[O].handle_consumed(7));
    assert!(!p.side[O].handle_consumed(6) && p.side[O].failure().is_none(), "one that is old has none either");
    p.side[O].handle_consumed(8);
    assert!(matches!(p.side[O].failure(), Some(Failure::Violation(_))));
}

#[test]
fn credit_is_requested_once_and_given_at_half() {
    //= spec §5.2.3, §5.2.4
    //= type=test
    let mut p = Pair::promoted();
    let full = vec![7; RING as usize];
    p.write_linked(O, &full);
    assert_eq!(p.side[O].claim(1).len, 0);
    p.side[O].stalled();
    p.side[O].stalled();
    p.flush();
    assert_eq!(p.signals_to(A), [MessageKind::CreditWant]);
    p.deliver(A);
    assert!(p.signals_to(O).is_empty());
    assert!(!p.side[A].consume(RING / 2 - 1).give);
    let credit = p.side[A].consume(1);
    assert!(credit.give && !p.side[A].consume(1).give);
    p.side[A].give_credit();
    p.flush();
    p.side[O].handle_consumed(credit.consumed);
    p.deliver(O);
    assert_eq!(p.side[O].claim(RING).len, RING / 2);
}

#[test]
fn a_receiver_may_announce_late() {
    //= spec §5.2.5
    //= type=test
    // If credit comes only in quarters, the sender still never stalls permanently: at most a quarter more is free.
    let mut p = Pair::promoted();
    let (quarter, mut reported) = (RING / 4, 0);
    for _ in 0..1000 {
        p.side[O].handle_consumed(reported);
        let n = p.side[O].claim(100).len;
        assert!(n > 0);
        p.write_linked(O, &vec![1; n as usize]);
        let credit = p.side[A].consume(n);
        if credit.consumed - reported >= u64::from(quarter) {
            reported = credit.consumed;
        }
    }
}

#[test]
fn a_message_that_could_not_be_posted_is_taken_back() {
    let mut p = Pair::promoted();
    p.write_linked(O, b"abc");
    p.side[A].consume(3);
    p.side[O].handle_consumed(3);
    let span = p.side[O].claim(2);
    let rewind = p.side[O].commit(span.len);
    p.side[O].uncommit(span.len, rewind);
    p.write_linked(O, b"de");
    assert_eq!((p.side[A].readable(0).offset, p.side[A].positions(), p.side[O].positions()), (0, (0, 3), (5, 0)));
}
