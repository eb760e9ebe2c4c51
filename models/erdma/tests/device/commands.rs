//! Each command, with good arguments and bad ones.

use crate::driver::{create_cq, create_eq, create_qp, modify, modify_to_rts, reg_mr, Lab, Request, ALL, DOMAIN};

const UNSUPPORTED: u8 = 1;
const INVALID: u8 = 2;
const OBJECT: u8 = 3;

fn status(lab: &mut Lab, request: Request) -> u8 {
    lab.command(0, request).0
}

// Breaks if the driver reads other limits than the device has.
#[test]
fn query_device() {
    let mut lab = Lab::started(1);
    lab.set(0, |settings| settings.limits.atomics = true);
    let (status, [a, b, c, d]) = lab.command(0, Request::new(0, 0));
    assert_eq!(status, 0);
    assert_eq!(b >> 8 & 0xff, 20, "entries of a completion queue");
    assert_eq!(a >> 16 & 0xff, 15, "receives");
    assert_eq!(a & 0xff, 36, "bytes of a region");
    assert_eq!(a >> 24, 0x80, "flags: atomics");
    assert_eq!(c >> 16 & 0xfff, 128, "blocks of queue pairs");
    assert_eq!((c >> 28, d), (1, 0), "congestion control, local key");
}

// Breaks if Alibaba's driver refuses the firmware: it takes 0.2.x, as bytes.
#[test]
fn firmware_version() {
    let mut lab = Lab::started(1);
    assert_eq!(lab.command(0, Request::new(1, 2)), (0, [0x0225, 0, 0, 0]));
    lab.set(0, |settings| settings.limits.firmware_patch = 36);
    assert_eq!(lab.command(0, Request::new(1, 2)), (0, [0x0224, 0, 0, 0]));
}

// Breaks if commands of 128 bytes are not distinguished from those of 64, also where the ring wraps.
#[test]
fn both_lengths_in_one_ring() {
    let mut lab = Lab::started(1);
    for round in 0..20 {
        let request = Request::new(1, 3).u32(8, 1500);
        let request = if round % 3 == 0 { request.long() } else { request };
        assert_eq!(status(&mut lab, request), 0);
    }
}

// Breaks if commands that only later drivers have are refused.
#[test]
fn later_commands() {
    let mut lab = Lab::started(1);
    for number in [3, 5, 7, 10] {
        assert_eq!(status(&mut lab, Request::new(1, number)), 0, "1.{number}");
    }
    let at = lab.allocate(0, 4096);
    for (number, len) in [(4, 104), (11, 28)] {
        lab.poke(0, at, &[0xee; 256]);
        assert_eq!(status(&mut lab, Request::new(1, number).u64(16, at).u32(24, 256)), 0, "1.{number}");
        let answer = lab.peek(0, at, 256);
        assert_eq!(answer[..2], [0x66, 0x55]);
        assert_eq!(answer[len - 1], 0);
        assert!(answer[len..].iter().all(|byte| *byte == 0xee), "1.{number}");
    }
    // Never more than the driver has room for.
    lab.poke(0, at, &[0xee; 256]);
    assert_eq!(status(&mut lab, Request::new(1, 4).u64(16, at).u32(24, 1)), 0);
    assert_eq!(lab.peek(0, at, 2), [0x66, 0xee]);
    assert_eq!(status(&mut lab, Request::new(1, 4).u64(16, 0).u32(24, 256)), INVALID, "nowhere to write to");
}

#[test]
fn unknown_commands_are_refused() {
    let mut lab = Lab::started(1);
    for (module, number) in [(0, 7), (0, 10), (0, 11), (0, 12), (0, 255), (1, 6), (1, 12), (2, 0), (3, 3)] {
        assert_eq!(status(&mut lab, Request::new(module, number)), UNSUPPORTED, "{module}.{number}");
    }
}

#[test]
fn event_queues() {
    let mut lab = Lab::started(1);
    let base = lab.allocate(0, 4096);
    assert_eq!(status(&mut lab, create_eq(base, 2, 2, 4)), 0);
    assert_eq!(status(&mut lab, create_eq(base, 2, 2, 4)), OBJECT, "twice");
    assert_eq!(status(&mut lab, create_eq(base, 0, 0, 4)), OBJECT, "the command queue's");
    assert_eq!(status(&mut lab, create_eq(base, 32, 2, 4)), INVALID, "no doorbell");
    assert_eq!(status(&mut lab, create_eq(base, 3, 32, 4)), INVALID, "no vector");
    assert_eq!(status(&mut lab, create_eq(base, 3, 3, 16)), INVALID, "too long");
    assert_eq!(status(&mut lab, create_eq(base, 3, 3, 64)), INVALID, "longer than a number can express");
    assert_eq!(status(&mut lab, create_eq(base, 3, 3, 255)), INVALID, "as long as the field can express");
    let destroy = |eqn: u32| Request::new(1, 1).u32(16, eqn << 8);
    assert_eq!(status(&mut lab, destroy(2)), 0);
    assert_eq!(status(&mut lab, destroy(2)), OBJECT, "gone");
    assert_eq!(status(&mut lab, destroy(0)), OBJECT, "the command queue's");
}

#[test]
fn completion_queues() {
    let mut lab = Lab::started(1);
    let base = lab.allocate(0, 4096);
    assert_eq!(status(&mut lab, create_cq(7, base, 7, 1)), 0);
    assert_eq!(status(&mut lab, create_cq(7, base, 7, 1)), OBJECT, "twice");
    assert_eq!(status(&mut lab, create_cq(8, base, 8, 1)), INVALID, "longer than its page");
    assert_eq!(status(&mut lab, create_cq(8, base, 21, 1)), INVALID, "beyond the limit");
    assert_eq!(status(&mut lab, create_cq(8, base, 255, 1)), INVALID, "beyond all limits");
    assert_eq!(status(&mut lab, create_cq(8, base, 7, 0)), OBJECT, "the command queue's events");
    assert_eq!(status(&mut lab, create_cq(8, base, 7, 9)), OBJECT, "no such event queue");
    assert_eq!(status(&mut lab, create_cq(0xf_ffff, base, 7, 1)), INVALID, "number beyond the limit");
    let offset = create_cq(8, base, 7, 1).u32(32, 32);
    assert_eq!(status(&mut lab, offset), INVALID, "its end is beyond its page");
    let table = create_cq(8, 0, 8, 1).u32(20, 2 << 16 | 1 << 15 | 1);
    assert_eq!(status(&mut lab, table), INVALID, "its table is nowhere");
    let destroy = |cqn| Request::new(0, 5).u32(8, cqn);
    lab.create_qp(0, 7, DOMAIN);
    assert_eq!(status(&mut lab, destroy(7)), OBJECT, "in use");
    assert_eq!(status(&mut lab, destroy(8)), OBJECT, "never made");
}

#[test]
fn queue_pairs() {
    let mut lab = Lab::started(1);
    let cq = lab.create_cq(0, 6).cqn;
    let base = lab.allocate(0, 4096);
    assert_eq!(status(&mut lab, create_qp(5, cq, DOMAIN, base, base)), 0);
    assert_eq!(status(&mut lab, create_qp(5, cq, DOMAIN, base, base)), OBJECT, "twice");
    let wrong = |request: Request| request;
    for (request, expected, why) in [
        (create_qp(0, cq, DOMAIN, base, base), INVALID, "number 0"),
        (create_qp(128 * 1024, cq, DOMAIN, base, base), INVALID, "number beyond the limit"),
        (create_qp(6, cq + 1, DOMAIN, base, base), OBJECT, "no such completion queue"),
        (create_qp(6, cq, DOMAIN, base, base).u32(20, cq + 1), OBJECT, "no such completion queue to receive"),
        (create_qp(6, cq, DOMAIN, base, base).u32(8, 8 << 20 | 6), INVALID, "sends beyond its page"),
        (create_qp(6, cq, DOMAIN, base, base).u32(8, 16 << 20 | 6), INVALID, "sends beyond all limits"),
        (create_qp(6, cq, DOMAIN, base, base).u32(8, 4095 << 20 | 6), INVALID, "sends beyond any number"),
        (create_qp(6, cq, DOMAIN, base, base).u32(12, 16 << 20), INVALID, "receives beyond the limit"),
        (create_qp(6, cq, DOMAIN, base, base).u32(40, 0), INVALID, "no pages"),
        (create_qp(6, cq, DOMAIN, base, base).u32(40, 4096 | 1 << 1), INVALID, "offset beyond its page"),
        (create_qp(6, cq, DOMAIN, 0, base).u32(40, 1 << 1 | 1), INVALID, "its table is nowhere"),
    ] {
        assert_eq!(status(&mut lab, wrong(request)), expected, "{why}");
    }
    let destroy = |qpn| Request::new(0, 2).u32(8, qpn);
    assert_eq!(status(&mut lab, destroy(6)), OBJECT, "never made");
    assert_eq!(status(&mut lab, destroy(5)), 0);
    assert_eq!(status(&mut lab, destroy(5)), OBJECT, "gone");
}

// Breaks if a queue pair can be connected twice, or after its end.
#[test]
fn states() {
    let mut lab = Lab::started(1);
    let cq = lab.create_cq(0, 6).cqn;
    let qp = lab.create_qp(0, cq, DOMAIN);
    let rts = || modify_to_rts(qp.qpn, 1, (1, 1), (2, 2));
    for state in [0, 1, 6, 7, 255] {
        assert_eq!(status(&mut lab, modify(qp.qpn, state)), INVALID, "state {state}");
    }
    assert_eq!(status(&mut lab, rts()), 0);
    assert_eq!(status(&mut lab, rts()), INVALID, "twice");
    for state in [3, 5, 4] {
        assert_eq!(status(&mut lab, modify(qp.qpn, state)), 0, "state {state}");
    }
    assert_eq!(status(&mut lab, rts()), INVALID, "after the end");
    assert_eq!(status(&mut lab, modify(qp.qpn + 1, 5)), OBJECT, "never made");
}

#[test]
fn regions() {
    let mut lab = Lab::started(1);
    let page = lab.allocate(0, 4096);
    let inline = |index, len: u32| reg_mr(index, ALL, DOMAIN).u64(16, 0x7000_0100).u32(24, len).u64(32, page);
    let good = |index| inline(index, 100).u32(28, 12 << 27 | 1);
    assert_eq!(status(&mut lab, good(5)), 0);
    assert_eq!(status(&mut lab, good(5)), OBJECT, "twice");
    for (request, why) in [
        (good(128 * 2048), "number beyond the limit"),
        (inline(6, 0).u32(28, 12 << 27 | 1), "empty"),
        (inline(6, 4000).u32(28, 12 << 27 | 1), "longer than its pages"),
        (inline(6, 100).u32(28, 12 << 27), "no pages"),
        (inline(6, 100).u32(28, 12 << 27 | 5), "more pages than there is room"),
        (inline(6, 100).u32(28, 11 << 27 | 1), "pages too small"),
        (inline(6, 100).u32(28, 12 << 27 | 2 << 20 | 1), "a list of two levels"),
        (inline(6, 100).u32(28, 12 << 27 | 1 << 20 | 0xf_ffff), "its table is not all in memory"),
        (good(6).u64(16, u64::MAX - 50), "beyond the end of the address space"),
        (good(6).u32(8, 6), "not valid"),
        (good(6).u32(12, DOMAIN << 12 | 3 << 6), "of no kind"),
        (good(6).u32(8, 6).u32(12, DOMAIN << 12 | 2 << 6), "all of memory, not valid"),
    ] {
        assert_eq!(status(&mut lab, request), INVALID, "{why}");
    }
    lab.set(0, |settings| settings.limits.log_max_mr_size = 6);
    assert_eq!(status(&mut lab, good(6)), INVALID, "longer than the limit");
    let deregister = |word| Request::new(0, 9).u32(8, word);
    assert_eq!(status(&mut lab, deregister(6)), OBJECT, "never made");
    assert_eq!(status(&mut lab, deregister(1 << 20 | 5)), OBJECT, "another key");
    assert_eq!(status(&mut lab, deregister(5)), 0);
    assert_eq!(status(&mut lab, deregister(5)), OBJECT, "gone");
}

// Breaks if a guest, which needs one table for that, can make the device keep lists of pages without a bound.
#[test]
fn lists_of_pages_are_bounded() {
    const EXHAUSTED: u8 = 4;
    let mut lab = Lab::started(1);
    let (pages, table) = (1 << 19, lab.allocate(0, 4 << 20));
    let large = |index| {
        let request = reg_mr(index, ALL, DOMAIN).u64(16, 0).u32(24, 1 << 20).u64(32, table);
        request.u32(28, 12 << 27 | 1 << 20 | pages)
    };
    for index in 0..32 {
        assert_eq!(status(&mut lab, large(index)), 0, "{index}");
    }
    assert_eq!(status(&mut lab, large(32)), EXHAUSTED);
    assert_eq!(status(&mut lab, Request::new(0, 9).u32(8, 5)), 0);
    assert_eq!(status(&mut lab, large(32)), 0);
}

// Breaks if a doorbell beyond the end of the command queue is accepted, or a command that claims more blocks than were
// posted reads blocks that were not.
#[test]
fn the_command_queue_is_bounded() {
    let mut lab = Lab::started(1);
    let refused = lab.fabric.counters(0).doorbells_refused;
    lab.doorbell(0, 0x200, 2 + 17);
    assert_eq!(lab.fabric.counters(0).doorbells_refused, refused + 1);
    assert_eq!(lab.poll_command(0), None);
    assert_eq!(status(&mut lab, Request::new(1, 3)), 0, "it still works");
}
