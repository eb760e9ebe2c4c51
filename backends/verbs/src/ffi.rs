#![expect(unsafe_code, reason = "this module is the boundary to libibverbs and librdmacm")]
//! libibverbs and librdmacm: the parts that we use, as owned objects.
//!
//! `abi` has the structures, with their offsets asserted; `library` loads both libraries at their first use; `objects`
//! wraps each handle so that it is freed once and after its dependants; `requests` posts. Code outside this module sees
//! none of their pointers.

pub(crate) mod abi;
mod cm;
mod errno;
mod library;
mod mappings;
mod objects;
mod pinning;
mod requests;
mod threads;
mod trouble;
mod wakeup;

pub(crate) use cm::{CmId, ConnectParameters, Event, EventChannel, EventKind, Key};
pub use library::{after_fork, before_fork};
pub(crate) use library::{enter, Library};
pub(crate) use objects::{device_list, CompletionChannel, Context, Cq, DeviceAttributes, Mr, Pd};
pub(crate) use pinning::is_limited;
pub(crate) use requests::{Chain, QueuePair, RawRecv, RawSend, SendKind};
pub(crate) use threads::with_signals_blocked;
pub(crate) use trouble::Trouble;
pub(crate) use wakeup::{is_any_readable, sleep_on, Sleep, UnlinkWatch};
pub use wakeup::{EventFd, EventSet, TimerFd};
