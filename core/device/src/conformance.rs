//! One conformance suite that any backend runs.
//!
//! A backend implements [`Fixture`]: two devices in one process that can be connected. [`run`] checks every guarantee
//! of the traits, each capability together with the method behind it, and returns a [`Report`]. If a device may do
//! something in several ways (with a message without a receive, for example), each of them is accepted.
//!
//! The suite uses nothing but the public traits, so it runs on a bare device and through any middleware alike. It
//! never blocks: it waits by calling [`Fixture::progress`], at most [`Fixture::patience`] times.
//!
//! Side A always connects and sends first, as iWARP demands, except in checks of other orders.

mod bench;
mod completions;
mod connections;
mod failures;
mod memory;
mod queues;
mod report;
#[cfg(test)]
mod tests;
mod transfers;

use std::os::fd::RawFd;
use std::sync::Arc;

use bench::{Bench, Stop};

pub use bench::Established;
pub use report::{CheckReport, Outcome, Report};

use crate::{CompletionQueueId, ConnectionManager, Device, Directory};

/// The two devices of a fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that connects.
    A,
    /// The side that accepts.
    B,
}

impl Side {
    /// Both, in order.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// The other side.
    pub fn peer(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// Two devices that can reach each other, and the other needs of the suite. Both are fresh: no completion queue was
/// created on either.
pub trait Fixture {
    /// A device. The same one each time.
    fn device(&self, side: Side) -> Arc<dyn Device>;

    /// Its connection manager, if connecting goes through one. Otherwise [`connect`](Fixture::connect) is overridden.
    fn connection_manager(&self, side: Side) -> Option<Arc<dyn ConnectionManager>>;

    /// Its directory, if it has one.
    fn directory(&self, side: Side) -> Option<Arc<dyn Directory>>;

    /// Lets time pass: a simulation makes a delivery, a real device gets a moment (some 100 us at most).
    fn progress(&mut self);

    /// The number of calls of `progress` before giving up on an event that must happen.
    fn patience(&self) -> usize {
        1000
    }

    /// The number of calls of `progress` before concluding that an event does not happen.
    fn quiet_rounds(&self) -> usize {
        4
    }

    /// Whether a channel's descriptor is readable now (poll(2) with no timeout). `None`: it cannot be determined.
    fn channel_readable(&mut self, fd: RawFd) -> Option<bool> {
        let _ = fd;
        None
    }

    /// Connects a new queue pair of A to one of B, with first regions of `region_len` bytes.
    ///
    /// # Errors
    /// The error is a text for the report.
    fn connect(&mut self, cqs: [CompletionQueueId; 2], region_len: usize) -> Result<[Established; 2], String> {
        connections::connect(self, cqs, region_len)
    }
}

/// Runs all checks. Never panics when a device behaves wrongly, but a device that panics or blocks ends the run.
pub fn run(fixture: &mut dyn Fixture) -> Report {
    let device = fixture.device(Side::A).name().to_owned();
    let mut checks = Vec::new();
    let mut bench = match Bench::new(fixture) {
        Ok(bench) => bench,
        Err(stop) => return Report { device, checks: vec![CheckReport { name: "create_cq", outcome: stop.into() }] },
    };
    for (name, check) in CHECKS {
        let result = check(&mut bench);
        let outcome = match (result, bench.finish_check()) {
            (Ok(()), Ok(())) => Outcome::Passed,
            (Err(Stop::Skipped(_)), Err(stop)) | (Err(stop), _) | (Ok(()), Err(stop)) => stop.into(),
        };
        checks.push(CheckReport { name, outcome });
    }
    Report { device, checks }
}

type Check = fn(&mut Bench<'_>) -> Result<(), Stop>;

/// Every check, in order. The last one uses up all completion queues.
const CHECKS: &[(&str, Check)] = &[
    ("capabilities_are_consistent", memory::capabilities_are_consistent),
    ("connect_and_accept", connections::connect_and_accept),
    ("private_data_is_carried", connections::private_data_is_carried),
    ("private_data_is_bounded", connections::private_data_is_bounded),
    ("reject_is_reported", connections::reject_is_reported),
    ("who_sends_first", connections::who_sends_first),
    ("unreachable_is_reported", connections::unreachable_is_reported),
    ("connects_may_overlap", connections::connects_may_overlap),
    ("accept_is_for_open_requests", connections::accept_is_for_open_requests),
    ("directory_finds_the_other_end", connections::directory_finds_the_other_end),
    ("directory_withdraws_what_was_published", connections::directory_withdraws_what_was_published),
    ("write_with_imm_in_order", transfers::write_with_imm_in_order),
    ("write_with_imm_needs_capability", transfers::write_with_imm_needs_capability),
    ("send_in_order", transfers::send_in_order),
    ("sends_bring_bytes", connections::sends_bring_bytes),
    ("messages_both_ways", transfers::messages_both_ways),
    ("inline_limit", transfers::inline_limit),
    ("in_place_through_window", transfers::in_place_through_window),
    ("in_place_needs_capability", transfers::in_place_needs_capability),
    ("small_write_without_imm", transfers::small_write_without_imm),
    ("region_payload_is_bounded", transfers::region_payload_is_bounded),
    ("message_limit", transfers::message_limit),
    ("only_signaled_sends_complete", transfers::only_signaled_sends_complete),
    ("send_queue_full_and_recovery", queues::send_queue_full_and_recovery),
    ("receive_queue_full", queues::receive_queue_full),
    ("one_receive_per_message", queues::one_receive_per_message),
    ("receives_exhausted", queues::receives_exhausted),
    ("unpolled_completions_are_kept", queues::unpolled_completions_are_kept),
    ("pending_reports_once", completions::pending_reports_once),
    ("pending_with_little_room", completions::pending_with_little_room),
    ("poll_qp_with_little_room", completions::poll_qp_with_little_room),
    ("queues_do_not_mix", completions::queues_do_not_mix),
    ("arm_and_disarm", completions::arm_and_disarm),
    ("channel_fd_readiness", completions::channel_fd_readiness),
    ("rebind_moves_completions", completions::rebind_moves_completions),
    ("knock_calls_the_first_queue", completions::knock_calls_the_first_queue),
    ("qp_wait", completions::qp_wait),
    ("regions_are_zeroed_and_separate", memory::regions_are_zeroed_and_separate),
    ("window_descriptor_is_checked", memory::window_descriptor_is_checked),
    ("window_after_the_peer_has_ended", memory::window_after_the_peer_has_ended),
    ("discarded_memory_is_a_tail", memory::discarded_memory_is_a_tail),
    ("writes_outside_are_refused", memory::writes_outside_are_refused),
    ("freed_region_is_gone", memory::freed_region_is_gone),
    ("unknown_handles_are_refused", memory::unknown_handles_are_refused),
    ("fail_qp_disconnects_both", failures::fail_qp_disconnects_both),
    ("destroy_qp_disconnects_peer", failures::destroy_qp_disconnects_peer),
    ("failure_keeps_a_prefix", failures::failure_keeps_a_prefix),
    ("dead_qp_refuses_posts", failures::dead_qp_refuses_posts),
    ("queue_pairs_are_independent", failures::queue_pairs_are_independent),
    ("cq_limit", completions::cq_limit),
];
