//! Schedules that once failed, as the checker (or a reader) found them. Each ends in a settled world.

use crate::check::{is_complete, quiescent};
use crate::world::{Bounds, Step, Step::*, World};

/// Takes `steps`, as far as the world still offers them, and then everything that happens by itself.
fn replay(bounds: Bounds, steps: &[Step]) -> World {
    let mut world = World::new(&bounds);
    let take = |world: &mut World, step| {
        if let Some(next) = world.after(&bounds, step) {
            *world = next;
        }
        assert_eq!(world.error, None, "after {step:?}: {world:#?}");
    };
    for &step in steps {
        let mut offered = Vec::new();
        world.internal_steps(&bounds, &mut offered);
        world.reading_steps(&mut offered);
        world.free_steps(&bounds, &mut offered);
        if offered.contains(&step) {
            take(&mut world, step);
        }
    }
    while !quiescent(&bounds, &world) {
        let mut steps = Vec::new();
        world.internal_steps(&bounds, &mut steps);
        world.reading_steps(&mut steps);
        steps.into_iter().for_each(|step| take(&mut world, step));
    }
    assert!(is_complete(&world), "{world:#?}");
    world
}

/// The opener's CLOSE after a marker was taken for that of a cancelled attempt, and the marker read as data.
#[test]
fn close_after_a_marker_that_is_not_read_yet() {
    let steps = [
        Write(0),
        Open,
        Deliver(1, 0),
        Deliver(0, 0),
        Write(1),
        Peek(0),
        Deliver(1, 0),
        Deliver(1, 0),
        Read(1),
        Peek(1),
    ];
    replay(Bounds::default(), &steps);
}

/// An attempt that ended while the marker was half written sent CLOSE before the other half.
#[test]
fn attempt_ends_while_the_marker_is_half_written() {
    let bounds = Bounds { lazy_anchor: true, split: true, ..Bounds::default() };
    let steps =
        [Open, Deliver(1, 0), Deliver(0, 0), WriteHalf(0), Write(1), Peek(0), Deliver(1, 0), Peek(1), WriteAnchor(0)];
    let world = replay(bounds, &steps);
    assert!(world.side.iter().all(|s| s.stream.is_plain()));
}

/// A marker was written behind bytes that its reader had not taken: when the socket was made plain and given to another
/// process, that process's application received the marker.
#[test]
fn nothing_is_written_behind_unread_bytes() {
    let steps = [Write(0), Write(1), Open, Deliver(1, 0)];
    let world = replay(Bounds::default(), &steps);
    assert!(world.links[0].to[0].is_empty(), "the acceptor has not read the bytes before the pledge");
    let read = [Write(0), Write(1), Open, Deliver(1, 0), Read(1), Deliver(0, 0)];
    let world = replay(Bounds::default(), &read);
    assert!(!world.side[0].stream.has_record(), "the opener has not read either");
}

/// A closed stream that had sent CLOSE replayed from memory that its peer had freed on that CLOSE.
#[test]
fn memory_is_kept_for_the_replay_of_a_closed_peer() {
    let steps = [
        Open,
        Deliver(1, 0),
        Deliver(0, 0),
        Deliver(1, 0),
        Demote(1),
        Peek(1),
        Peek(0),
        Write(0),
        Deliver(1, 0),
        Close(0),
        Deliver(0, 0),
        Deliver(1, 0),
        Deliver(1, 0),
        Peek(1),
        Peek(0),
    ];
    replay(Bounds { demotes: [0, 1], closes: [true, false], ..Bounds::default() }, &steps);
}

/// FIN and CLOSE that came before the marker was read left the reader on the link for ever, and its peer lingering.
#[test]
fn fin_and_close_before_the_marker_is_read() {
    let steps = [
        Open,
        Deliver(1, 0),
        Deliver(0, 0),
        Deliver(1, 0),
        Peek(1),
        Deliver(0, 0),
        Close(1),
        Deliver(0, 0),
        Deliver(0, 0),
        Peek(0),
        Read(0),
    ];
    let world = replay(Bounds { closes: [false, true], ..Bounds::default() }, &steps);
    assert!(world.side[0].eof && world.side[1].anchor_closed);
}

/// A closed side accused its peer, which had answered its CLOSE without having sent FIN.
#[test]
fn close_may_answer_close_without_fin() {
    let steps = [
        Open,
        Deliver(1, 0),
        Deliver(0, 0),
        Deliver(1, 0),
        Peek(1),
        Deliver(0, 0),
        Peek(0),
        Close(0),
        Deliver(1, 0),
        Deliver(1, 0),
        Deliver(0, 0),
    ];
    replay(Bounds { closes: [true, false], ..Bounds::default() }, &steps);
}

/// A side closed with bytes in the peer's ring, the link died, and no side was left to replay them.
#[test]
fn closed_with_unread_bytes_when_the_link_dies() {
    let steps = [
        Open,
        Deliver(1, 0),
        Deliver(0, 0),
        Deliver(1, 0),
        Peek(1),
        Peek(0),
        Write(0),
        Close(0),
        Die(0),
        Notify(0, 0),
        Notify(1, 0),
    ];
    let world = replay(Bounds { closes: [true, false], ..Bounds::default() }, &steps);
    assert!(world.side[1].eof && world.side[1].read == 1);
}

/// Closing with the peer's marker unread was a reset to the peer.
#[test]
fn closed_with_the_marker_unread() {
    let steps = [Open, Deliver(1, 0), Deliver(0, 0), Close(1)];
    let bounds = Bounds { lazy_anchor: true, closes: [false, true], ..Bounds::default() };
    let steps = [&steps[..3], &[WriteAnchor(0)], &steps[3..]].concat();
    let world = replay(bounds, &steps);
    assert!(world.side[0].eof && !world.side[0].reset);
}

/// A process that ended in the middle of a record kept its peer waiting for the other half.
#[test]
fn ended_in_the_middle_of_a_record() {
    let bounds = Bounds { lazy_anchor: true, split: true, crash: Some(0), gentle: false, ..Bounds::default() };
    for resumes in [false, true] {
        let steps = [
            Open,
            Deliver(1, 0),
            Deliver(0, 0),
            WriteAnchor(0),
            Peek(1),
            WriteAnchor(1),
            Peek(0),
            Die(0),
            Notify(0, 0),
        ];
        let steps = if resumes { &steps[..] } else { &steps[..3] };
        let world = replay(bounds.clone(), &[steps, &[WriteHalf(0), Crash(0)]].concat());
        assert!(world.side[1].reset && !world.side[1].eof);
    }
}

/// Bytes went to the link before the marker was on the anchor; then the process was killed, and the anchor ended cleanly.
#[test]
fn killed_before_the_marker_is_written() {
    let steps = [Open, Deliver(1, 0), Deliver(0, 0), WriteAnchor(0), Peek(1), Write(1), Crash(1)];
    replay(Bounds { lazy_anchor: true, crash: Some(1), gentle: false, ..Bounds::default() }, &steps);
}

/// A process killed between its RESUME and the end of its replay looked like a clean end of stream.
#[test]
fn killed_while_replaying() {
    let bounds = Bounds { crash: Some(0), lazy_anchor: true, gentle: false, demotes: [1, 0], ..Bounds::default() };
    let steps = [
        Open,
        Deliver(1, 0),
        Deliver(0, 0),
        WriteAnchor(0),
        Peek(1),
        WriteAnchor(1),
        Peek(0),
        Write(0),
        Deliver(1, 0),
        Demote(0),
        WriteAnchor(0),
        Peek(1),
        WriteAnchor(1),
        Peek(0),
        Crash(0),
    ];
    let world = replay(bounds, &steps);
    assert!(world.side[1].reset && !world.side[1].eof);
}

/// After the death of a link the stream is promoted again on another.
#[test]
fn promoted_again_on_another_link() {
    let promote = |k| [Open, Deliver(1, k), Deliver(0, k), Peek(1), Peek(0)];
    let resume = [Die(0), Notify(0, 0), Notify(1, 0), Peek(0), Peek(1)];
    let steps = [&promote(0)[..], &resume, &promote(1)].concat();
    let world = replay(Bounds { opens: 2, ..Bounds::default() }, &steps);
    assert!(world.side.iter().all(|s| s.stream.promotions() == 2 && s.stream.is_linked()), "{world:?}");
}
