//! The command queue: what a driver asks of a NIC, one thing after the other.
//!
//! Making queue pairs and registering memory are commands of the driver to the device, each of which it waits for, unlike what
//! is posted. This queue says how long they take. What they do is done by the calls that do it ([`Nic::create_qp`],
//! [`Nic::register`] and so on): whoever makes those decides what waits for the end of a command.

use netacc_device::{Instant, QueuePairId};

use crate::commands::Command;
use crate::nic::Nic;

impl Nic {
    /// Has the command queue do something after what it was asked for before: when that is done.
    pub fn command(&mut self, now: Instant, command: Command) -> Instant {
        let done = self.commands_done_at.max(now) + self.config.commands.time(command);
        self.commands_done_at = done;
        done
    }

    /// What is posted on a queue pair from now on is not seen before `until`: whoever would post waits for a command.
    pub fn hold_posts(&mut self, id: QueuePairId, until: Instant) {
        if let Some(qp) = self.qps.get_mut(id) {
            qp.held_until = qp.held_until.max(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{CommandTimes, NicConfig, NodeId};

    // Breaks if two commands are done at a time, or a queue that was idle takes longer than one that was not.
    #[test]
    fn commands_wait_for_each_other() {
        let ns = Duration::from_nanos;
        let commands =
            CommandTimes { create_qp: ns(1), connect_qp: ns(20), destroy_qp: ns(300), ..CommandTimes::default() };
        let mut nic = Nic::new(NodeId(0), NicConfig { commands, ..NicConfig::ideal(1_000_000_000) });
        let at = Instant::from_nanos;
        assert_eq!(nic.command(at(100), Command::ConnectQueuePair), at(120));
        assert_eq!(nic.command(at(100), Command::DestroyQueuePair), at(420));
        assert_eq!(nic.command(at(1_000), Command::CreateQueuePair), at(1_001));
    }
}
