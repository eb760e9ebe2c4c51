//! The only loop that connects the protocol core to a device.
//!
//! * [`Endpoint`]: everything of one process on one device. Finding peers, connecting and caching links, answering OPEN.
//! * [`LinkCell`]: a link, for the streams of this crate; [`LinkOf`] does not depend on them.
//! * [`StreamCell`]: one accelerated socket, shared by threads; [`StreamGuard`] is it while locked, and
//!   [`LockedStream`] while it changes.
//! * [`Flow`]: memory for datagrams that two processes share.
//! * [`SendingFlow`] and [`ReceivingFlow`]: datagrams that links carry.
//! * [`Copies`]: large copies that threads of the library share with those of the program.
//! * [`PathChoice`]: whether a link or the anchor is the faster path to a service.
//! * [`PromotionSchedule`]: the times at which a connection tries to get a link.
//! * [`Mark`]: points on the way of a stream's bytes, for a trace.
//! * [`Readiness`]: the result that `poll` would report for a stream, readable without a lock.
//! * [`loopback`]: endpoints on loopback devices, for tests.
//!
//! It has no thread and no clock of its own, and never blocks: the library calls it from the program's threads and from
//! a helper, the simulator from its scheduler.
//!
//! Lock order: `Link::rx` before `StreamCell` before `Link::tx`. No lock is held while calling the [`ReadySink`] except
//! a stream's.

// The streams are the program's.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod choice;
mod copying;
mod counted;
mod counters;
mod datagram;
mod endpoint;
mod flow;
mod link;
pub mod loopback;
mod mark;
mod readiness;
mod schedule;
mod sink;
mod stream;

pub use choice::{Path, PathChoice, Verdict};
pub use copying::{Copies, LEAST_SHARED};
pub use counted::Counted;
pub use counters::{Counters, StreamCounters};
pub use datagram::{FlowCounts, LinkDatagram, ReceivingFlow, SendingFlow};
pub use endpoint::contest::CONTEST_PATIENCE;
pub use endpoint::{Endpoint, EndpointConfig, HelperNeeded, Sharing, Spread};
pub use flow::{Flow, MAX_FLOW_REQUEST};
pub use link::{AnswerPatience, LinkOf, LinkSleep, LinkStatus};
pub use mark::{Mark, Marked};
pub use readiness::Readiness;
pub use schedule::{PromotionSchedule, Tries};
pub use sink::ReadySink;
pub use stream::{
    Addresses, AnchorEvent, AnchorProgress, LazyAnchor, LinkCell, LinkIo, LockedStream, Shutdown, StreamCell,
    StreamGuard, IDLE_AFTER, PLEDGE_PATIENCE, STALL_PATIENCE,
};
