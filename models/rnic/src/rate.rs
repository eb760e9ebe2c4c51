//! Rate control of queue pairs: one trait, and its implementations.
//!
//! Time comes in with every call, and there are no timers here: their effects are caught up with when a rate is next
//! needed. Arithmetic is on integers, so that every machine gets the same. `models/rnic/README.md` explains how to add one.

mod dcqcn;
mod hpcc;
mod swift;
mod timely;

use std::fmt;
use std::time::Duration;

use netacc_device::Instant;

use crate::telemetry::Telemetry;

pub use dcqcn::{DcqcnChanges, DcqcnConfig};
pub use hpcc::HpccConfig;
pub use swift::SwiftConfig;
pub use timely::TimelyConfig;

use dcqcn::Dcqcn;
use hpcc::Hpcc;
use swift::Swift;
use timely::Timely;

/// The rate control of a NIC's queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateConfig {
    /// As fast as the port.
    Unlimited,
    /// At most so many bytes unacknowledged, counted in full packets, at least one.
    FixedWindow {
        /// Bytes of payload.
        bytes: u64,
    },
    /// DCQCN: needs switches that mark.
    Dcqcn(DcqcnConfig),
    /// TIMELY: a rate by the gradient of round trips.
    Timely(TimelyConfig),
    /// After Swift: a window by the distance of round trips from a target.
    Swift(SwiftConfig),
    /// HPCC: a window by the telemetry of the path.
    Hpcc(HpccConfig),
}

impl RateConfig {
    /// The rate control of a queue pair whose port has this rate, and whose full packets carry so many bytes.
    pub(crate) fn build(&self, line_rate_bps: u64, mtu_bytes: u32) -> Box<dyn RateControl> {
        match self {
            RateConfig::Unlimited => Box::new(FixedWindow { bytes: u64::MAX }),
            RateConfig::FixedWindow { bytes } => Box::new(FixedWindow { bytes: *bytes }),
            RateConfig::Dcqcn(config) => Box::new(Dcqcn::new(config.clone(), line_rate_bps)),
            RateConfig::Timely(config) => Box::new(Timely::new(config.clone(), line_rate_bps)),
            RateConfig::Swift(config) => Box::new(Swift::new(config.clone(), mtu_bytes)),
            RateConfig::Hpcc(config) => Box::new(Hpcc::new(config.clone(), line_rate_bps, mtu_bytes)),
        }
    }

    /// Whether responders notify requesters of packets that a switch has marked.
    pub(crate) fn notifies(&self) -> bool {
        matches!(self, RateConfig::Dcqcn(_))
    }

    /// Whether packets of data collect telemetry, which acknowledgements bring back.
    pub(crate) fn collects(&self) -> bool {
        matches!(self, RateConfig::Hpcc(_))
    }

    /// Whether requesters measure round trips.
    pub(crate) fn measures(&self) -> bool {
        matches!(self, RateConfig::Timely(_) | RateConfig::Swift(_))
    }
}

/// Progress of a queue pair, as an acknowledgement reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Packets that are acknowledged for the first time; at least one.
    pub packets: u64,
    /// From when the last of them was given to the port until now. `None` if it was sent more than once, if it did not ask
    /// for the acknowledgement, or if the configuration has no use for it.
    pub round_trip: Option<Duration>,
    /// The path's, if packets collect it.
    pub telemetry: Option<Telemetry>,
    /// All packets below this number are acknowledged.
    pub acknowledged: u64,
    /// The number of the next packet that was not sent before.
    pub next: u64,
}

/// The reaction point of a queue pair.
pub trait RateControl: fmt::Debug + Send {
    /// Bytes of payload that may be unacknowledged. At least one packet always may.
    fn window_bytes(&self) -> u64;

    /// Bits per second on the wire, if bounded below the port's rate.
    fn rate_bps(&mut self, now: Instant) -> Option<u64>;

    /// A packet was handed to the port.
    fn handle_sent(&mut self, _now: Instant, _wire_bytes: u32) {}

    /// The peer has notified us of congestion.
    fn handle_congestion(&mut self, _now: Instant) {}

    /// The peer has acknowledged packets.
    fn handle_progress(&mut self, _now: Instant, _progress: Progress) {}

    /// No progress for the retry timeout: everything unacknowledged is sent again.
    fn handle_timeout(&mut self, _now: Instant) {}
}

/// A window and no pacing.
#[derive(Debug)]
struct FixedWindow {
    bytes: u64,
}

impl RateControl for FixedWindow {
    fn window_bytes(&self) -> u64 {
        self.bytes
    }

    fn rate_bps(&mut self, _: Instant) -> Option<u64> {
        None
    }
}

/// Parts of a whole in parameters that are shares.
const MILLION: u32 = 1_000_000;
