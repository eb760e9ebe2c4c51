//! Devices that wrap a device: to disturb it ([`Fault`]), to watch it ([`Trace`]) or to record its calls ([`Record`]).
//!
//! Each wraps an `Arc<D>` with `D: Device`, or an `Arc<dyn Device>`, and is a [`Device`](crate::Device) again, so they
//! stack. With nothing switched on each passes the conformance suite of the device inside.

mod event;
mod fault;
mod forward;
mod record;
mod rng;
mod trace;

pub use event::{Event, PayloadKind, PostedOperation, PostedRequest};
pub use fault::{Fault, FaultConfig};
pub use record::{read_records, Header, ReadError, RecordLine, RecordReader, Recorder};
pub use rng::SplitMix64;
pub use trace::{Observer, Trace};

/// A device whose calls are recorded as JSON lines; see [`Recorder`].
pub type Record<D, W> = Trace<D, Recorder<W>>;
