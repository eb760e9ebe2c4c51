//! The stages of a message, in their order.

use serde::{Deserialize, Serialize};

/// A part of a message's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The sender's call, until the copy begins. On the anchor all of the call, in the kernel and before it.
    Call,
    /// The copy into the link's ring.
    Copy,
    /// The message waits at the sender: for credit, for room in the queue, or for more bytes.
    Held,
    /// Posting the message to the device, for a receiver that is awake.
    Post,
    /// The message is under way while the receiver polls for it. On shared memory, the time until the receiver's next look.
    Wire,
    /// The message has been posted, and the receiver is busy with other work. On a device, part of it passes on the wire.
    Completion,
    /// The receiver's thread was asleep: from the post, which wakes it, until it has handled the completion.
    Wake,
    /// On the anchor: the time in the kernels and between them, while the receiver does not sleep.
    Kernel,
    /// The completion is handled; the program has not called to receive yet.
    Ready,
    /// The receiver's call, until the program has the bytes.
    Read,
}

impl Stage {
    /// All stages, in the order in which a message passes them.
    pub const ALL: [Stage; 10] = [
        Stage::Call,
        Stage::Copy,
        Stage::Held,
        Stage::Post,
        Stage::Wire,
        Stage::Completion,
        Stage::Wake,
        Stage::Kernel,
        Stage::Ready,
        Stage::Read,
    ];

    /// The name, as tables and records have it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Call => "call",
            Stage::Copy => "copy",
            Stage::Held => "held",
            Stage::Post => "post",
            Stage::Wire => "wire",
            Stage::Completion => "completion",
            Stage::Wake => "wake",
            Stage::Kernel => "kernel",
            Stage::Ready => "ready",
            Stage::Read => "read",
        }
    }
}

/// The duration of each stage, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages([u64; Stage::ALL.len()]);

impl Stages {
    /// The duration of one.
    pub fn get(&self, stage: Stage) -> u64 {
        self.0[stage as usize]
    }

    /// Makes one longer.
    pub fn add(&mut self, stage: Stage, duration: u64) {
        self.0[stage as usize] += duration;
    }

    /// Makes one shorter.
    pub(crate) fn remove(&mut self, stage: Stage, duration: u64) {
        let left = self.get(stage).saturating_sub(duration);
        self.0[stage as usize] = left;
    }

    /// Of all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
