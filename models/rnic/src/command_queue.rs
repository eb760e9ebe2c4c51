//! The command queue: commands of a driver to its NIC, one after the other.
//!
//! Making queue pairs and registering memory are commands. The driver waits for the end of each, which it does not for posted
//! requests. This queue models their time only; [`Nic::create_qp`], [`Nic::register`] and so on have the effect at once. Their
//! caller decides which actions wait for the end of a command.

use netacc_device::{Instant, QueuePairId};

use crate::commands::Command;
use crate::nic::Nic;

impl Nic {
    /// Queues a command behind the earlier ones, and returns the time at which it is done.
    pub fn command(&mut self, now: Instant, command: Command) -> Instant {
        let done = self.commands_done_at.max(now) + self.config.commands.time(command);
        self.commands_done_at = done;
        done
    }

    /// The NIC does not see later posts on a queue pair before `until`: the process that posts waits for a command.
    pub fn defer_posts(&mut self, id: QueuePairId, until: Instant) {
        if let Some(qp) = self.qps.get_mut(id) {
            qp.deferred_until = qp.deferred_until.max(until);
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
        let commands = CommandTimes {
            create_queue_pair: ns(1),
            connect_queue_pair: ns(20),
            destroy_queue_pair: ns(300),
            ..CommandTimes::default()
        };
        let mut nic = Nic::new(NodeId(0), NicConfig { commands, ..NicConfig::ideal(1_000_000_000) });
        let at = Instant::from_nanos;
        assert_eq!(nic.command(at(100), Command::ConnectQueuePair), at(120));
        assert_eq!(nic.command(at(100), Command::DestroyQueuePair), at(420));
        assert_eq!(nic.command(at(1_000), Command::CreateQueuePair), at(1_001));
    }
}
