//! Seeds that found a bug, by the name of the bug. Each fails with its fix taken out (checked when it was added), except
//! where its text states that other fixes have covered it since. A change of the draws of plan or scheduler moves the bugs
//! to other seeds: then take the fix out and search again.

use netacc_harness::{run, Crowd, Options, Preset};

macro_rules! regressions {
    ($($(#[$doc:meta])* $name:ident: $($seed:literal),+;)*) => {
        $($(#[$doc])* #[test] fn $name() {
            for seed in [$($seed),+] {
                if let Err(failure) = run(seed, &Options::default()) {
                    panic!("{failure}\nreplay: cargo run -p netacc-harness -- --seed {seed} --trace");
                }
            }
        })*
    };
}

regressions! {
    /// The application closed a plain stream that waited for a link: it was opened afterwards, on a descriptor that may
    /// have been another connection's by then.
    closed_while_waiting_for_a_link: 18, 23, 25;
    /// Where peer memory is not mapped, the local copy of a ring was registered anew with each promotion and never freed.
    staging_is_given_back: 34, 35, 43;
    /// A link made for a stream that had gone meanwhile was neither used nor closed.
    a_link_nobody_needs_any_more: 5, 8, 9;
    /// A receive that could not be posted again was forgotten, and granted to the peer as credit all the same.
    receives_the_queue_had_no_room_for: 586, 1601, 1809;
    /// Message credit, and LINK_GIVE, that found the send queue full were never sent again.
    credit_the_queue_had_no_room_for: 387, 414, 595, 750;
    /// CREDIT_GIVE went out before the credit word it speaks of, where that is written only now and then.
    give_before_the_credit_word: 33, 88, 478;
    /// Replay that filled the anchor waited for room, and the anchor was not watched for it.
    replay_meets_a_full_anchor: 21, 126, 139;
    /// CLOSE that found the queue full counted as sent: the slot was freed, and CLOSE dropped.
    close_meets_a_full_queue: 195, 484, 715;
    /// A closed stream that had failed kept its duplicate of the descriptor until the peer's CLOSE, which waited for the
    /// connection to end.
    linger_ends_before_the_slot: 23, 321, 445;
    /// Out of message credit and nearly out of byte credit: only the former was asked for.
    starved_while_byte_credit_runs_out: 381, 497, 775;
    /// Work that `progress` itself left for later did not wake the helper.
    starved_link_recorded_by_progress_itself: 45, 60, 153;
    /// A stream failed with half a marker written: CLOSE waited for the other half.
    failed_with_half_a_marker: 12, 28, 16144;
    /// Sixteen control messages went out on a link with credit left: the peer's progress was never read, and no
    /// control slot was ever free again.
    sixteen_control_messages_with_credit_left: 167625;
    /// A replay through small socket buffers took longer than a closed stream may linger idly. (Covered since: it also
    /// goes faster now.)
    patience_with_a_lingering_replay: 152694, 154229;
    /// A peer died with a marker half written: its reader waited for the rest.
    a_torn_marker_at_the_end: 173697;
    /// The search for a record beyond unread bytes took an error of the anchor, and did not report it.
    an_error_seen_by_peeking: 11963;
    /// The anchor was reset while the link lived: CLOSE without RESET looked like a violation of the peer.
    a_broken_anchor_on_a_living_link: 2014, 3287, 3301;
    /// A poll that found nothing new announced an edge, for which the application polled again. (Covered since: time now
    /// passes in the drain.)
    edges_that_cause_themselves: 165824, 171442;
    /// An acceptor that closed in the middle of promotion did not wait for the marker: the kernel answered that with a
    /// reset.
    a_marker_after_close: 256, 1907, 20050;
    /// A stream that had waited for room on a link waited for it on the dead link too, and woke its owner for ever.
    no_room_on_a_dead_link: 13779;
    /// Bytes that a lingering stream replayed between two polls did not count: its time limit ended in the middle.
    a_lingering_replay_that_others_drive: 40985;
    /// An unreported error was left to a kernel that showed an end; and a closed stream wrote where its
    /// peer still read.
    given_back_too_early: 201918, 210564;
    /// The anchor was reset, the write of a record took the error, and the stream was demoted: its reader found an end.
    given_back_after_the_error_was_read: 19590;
}

/// The same on modelled NICs; and a reset that dropped bytes let the end through that waited behind them.
#[test]
fn false_ends_on_modelled_nics() {
    for seed in [1103, 1471, 11113, 17240] {
        if let Err(failure) = run(seed, &Options { preset: Some(Preset::Nic), ..Options::default() }) {
            panic!("{failure}\nreplay: cargo run -p netacc-harness -- --seed {seed} --trace --preset nic");
        }
    }
}

/// Links that fell silent, and left something: a stream that was closed, before its OPEN was answered or later; one whose
/// request met a full queue; a link whose only OPEN was refused; the slot of a claim that was given up.
#[test]
fn streams_on_links_that_fell_silent() {
    for seed in [50_018, 50_129, 51_076, 53_024, 57_593, 60_745, 63_364, 64_697, 65_385, 65_863] {
        if let Err(failure) = run(seed, &Options { preset: Some(Preset::Silent), ..Options::default() }) {
            panic!("{failure}\nreplay: cargo run -p netacc-harness -- --seed {seed} --trace --preset silent");
        }
    }
}

/// Many connections on shared links. A few bytes of a marker that the peer had promised, and then its reset because it was
/// killed, counted as its violation (619). The first bytes of a marker before a reset counted as the application's (10230
/// to 55928; 14498 and 15029 broken on the way). A side without link had FIN to send on it (2499). An opener whose anchor was
/// reset sent CLOSE alone to an acceptor that had switched (4279). FIN was sent although the bytes before it were to be replayed
/// (79284). A stream that was closed with a reset had left its link, and gave the memory of a ring back from which its peer was still
/// to read (59796).
#[test]
fn crowded_links() {
    const SEEDS: [(u64, Preset); 11] = [
        (619, Preset::Shm),
        (59_796, Preset::Shm),
        (10_230, Preset::Rxe),
        (14_498, Preset::Rxe),
        (15_029, Preset::Rxe),
        (25_840, Preset::Rxe),
        (55_928, Preset::Rxe),
        (2499, Preset::Erdma),
        (4279, Preset::Rxe),
        (11_981, Preset::Rxe),
        (79_284, Preset::Rxe),
    ];
    for (seed, preset) in SEEDS {
        if let Err(failure) =
            run(seed, &Options { preset: Some(preset), crowded: Some(Crowd::Configured), ..Options::default() })
        {
            panic!("{failure}\nreplay: netacc-harness --seed {seed} --trace --preset {} --crowded", preset.as_str());
        }
    }
}
