//! Where the time of each message goes: from the events of traced processes to messages, stages and requests.
//!
//! * [`memory`]: the memory in which a process leaves its events, and its clock.
//! * [`stage`]: the names of the stages.
//! * [`message`]: the events of all processes, as messages with their stages.
//! * [`events`], [`clocks`]: the trace of one host in a file, and two of them with one clock.
//! * [`request`]: two messages in opposite directions, as a request and its answer.
//! * [`summary`]: the distribution of each stage.
//! * [`perfetto`]: a timeline for viewers of traces.
//!
//! Only [`memory`] touches a process. The others are functions of events, whether a process has left them or a simulation.
//!
//! Invariant: the stages of a message are consecutive, and their sum is the time from the sender's call to the
//! receiver's last byte.

pub mod clocks;
pub mod events;
pub mod memory;
pub mod message;
pub mod perfetto;
pub mod request;
pub mod stage;
pub mod summary;
