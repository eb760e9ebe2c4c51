//! Commands of a driver to a NIC, and their times. `command_queue` has the queue.

use std::time::Duration;

use netacc_parameters::parameters;

parameters! {
    /// How long each command takes. By default nothing.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CommandTimes {
        /// Making a queue pair, with its queues: RESET.
        create_queue_pair: Duration = Duration::ZERO;
        /// All changes of state until a queue pair can send: INIT, RTR, RTS.
        connect_queue_pair: Duration = Duration::ZERO;
        /// Unmaking a queue pair.
        destroy_queue_pair: Duration = Duration::ZERO;
        /// Registering memory, however long it is.
        register_memory: Duration = Duration::ZERO;
        /// Registering memory: the additional time of each 2^20 bytes, for pinning pages and describing them to the device.
        register_per_mib: Duration = Duration::ZERO;
        /// Ending a registration.
        deregister_memory: Duration = Duration::ZERO;
    }
}

/// A command of a driver to a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// To make a queue pair.
    CreateQueuePair,
    /// To take one from INIT to RTS.
    ConnectQueuePair,
    /// To unmake one.
    DestroyQueuePair,
    /// To register memory.
    Register {
        /// How much.
        bytes: u64,
    },
    /// To end that.
    Deregister,
}

impl CommandTimes {
    /// How long a command takes.
    pub fn time(&self, command: Command) -> Duration {
        match command {
            Command::CreateQueuePair => self.create_queue_pair,
            Command::ConnectQueuePair => self.connect_queue_pair,
            Command::DestroyQueuePair => self.destroy_queue_pair,
            Command::Register { bytes } => {
                let pinning = (self.register_per_mib.as_nanos() * u128::from(bytes)) >> 20;
                self.register_memory + Duration::from_nanos(u64::try_from(pinning).unwrap_or(u64::MAX))
            }
            Command::Deregister => self.deregister_memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> CommandTimes {
        let ns = Duration::from_nanos;
        CommandTimes {
            create_queue_pair: ns(1),
            connect_queue_pair: ns(20),
            destroy_queue_pair: ns(300),
            register_memory: ns(4_000),
            register_per_mib: ns(1 << 20),
            deregister_memory: ns(50_000),
        }
    }

    // Breaks if a command's time is another one's, or pinning is not by the byte.
    #[test]
    fn each_command_has_its_time() {
        let commands = [
            (Command::CreateQueuePair, 1),
            (Command::ConnectQueuePair, 20),
            (Command::DestroyQueuePair, 300),
            (Command::Register { bytes: 0 }, 4_000),
            (Command::Register { bytes: 70_000 }, 74_000),
            (Command::Deregister, 50_000),
        ];
        for (command, ns) in commands {
            assert_eq!(times().time(command), Duration::from_nanos(ns), "{command:?}");
            assert_eq!(CommandTimes::default().time(command), Duration::ZERO, "{command:?}");
        }
    }
}
