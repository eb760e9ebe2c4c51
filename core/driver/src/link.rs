//! Links: their resources, how to post on them, and the order in which their streams wait.
//!
//! * [`cell`]: a link, shared by threads.
//! * [`tx`]: its sending half.
//! * [`waitlist`]: the order of the streams that wait for it.
//! * [`patience`]: how long writes wait for answers to OPEN.
//! * [`spare`]: memory for its next streams.

mod cell;
mod patience;
mod spare;
mod tx;
mod waitlist;

pub(crate) use cell::{FirstRegions, LinkLife, LinkRx};
pub use cell::{LinkOf, LinkSleep, LinkStatus};
pub use patience::AnswerPatience;
pub(crate) use tx::LinkTx;
