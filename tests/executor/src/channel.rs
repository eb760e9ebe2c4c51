//! Messages between the coordinator and its workers: JSON in packets of a Unix socket, with descriptors beside them.

use std::io;

use netacc_program::{Outcome, Step};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::sys::{self, Fd};

/// A request of the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Steps, with their index and the oracle's outcome.
    Run(Vec<(usize, Step, Option<Outcome>)>),
    /// The same for the exchanges of `warm`: the reply has the bytes that the kernel has delivered to the slot.
    Warm { s: u32, receive: bool, send: bool },
    /// Fork a worker that has the same slots.
    Fork,
    /// Go through `execve`.
    Exec,
    /// Send the descriptor of a slot over the descriptor that came with this.
    Give { s: u32 },
    /// Take a descriptor from the one that came with this.
    Take { to: u32, c: u32, side: u8 },
    /// `_exit`.
    Exit,
    /// Forget the program: close everything.
    Reset,
}

/// A worker's answer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reply {
    /// Outcomes by step.
    pub(crate) outcomes: Vec<(usize, Outcome)>,
    /// For `Warm`.
    pub(crate) kernel_bytes: u64,
    /// For `Fork`, with the new worker's channel beside it.
    pub(crate) pid: i32,
    /// For `Give`: the connection and side of the slot.
    pub(crate) end: Option<(u32, u8)>,
}

impl Reply {
    /// With one outcome, of a step whose number the coordinator has.
    pub(crate) fn of(outcome: Outcome) -> Reply {
        Reply { outcomes: vec![(0, outcome)], ..Reply::default() }
    }
}

/// The largest packet; the kernel's default send buffer takes it.
const MAX_PACKET: usize = 160 * 1024;

/// One end.
pub(crate) struct Channel {
    pub(crate) fd: Fd,
}

impl Channel {
    pub(crate) fn pair() -> io::Result<(Channel, Channel)> {
        let (a, b) = sys::packet_pair()?;
        Ok((Channel { fd: a }, Channel { fd: b }))
    }

    pub(crate) fn send(&self, message: &impl Serialize, beside: Option<Fd>) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        sys::send_packet(self.fd, &bytes, beside)
    }

    /// `None` at the end.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Option<Fd>)>> {
        let mut buffer = vec![0; MAX_PACKET];
        let (n, beside) = sys::receive_packet(self.fd, &mut buffer)?;
        if n == 0 {
            return Ok(None);
        }
        Ok(Some((serde_json::from_slice(&buffer[..n])?, beside)))
    }

    pub(crate) fn close(self) {
        let _ = sys::close(self.fd);
    }
}
