//! What a driver asks of a NIC's command queue, and how long that takes. `command_queue` has the queue.

use std::time::Duration;

/// How long each command takes. By default nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CommandTimes {
    /// Making a queue pair, with its queues: RESET.
    pub create_qp: Duration,
    /// All changes of state until a queue pair can send: INIT, RTR, RTS.
    pub connect_qp: Duration,
    /// Unmaking a queue pair.
    pub destroy_qp: Duration,
    /// Registering memory, however long it is.
    pub register: Duration,
    /// Registering memory: what each 2^20 bytes of it take besides, as pages are pinned and told to the device.
    pub register_mib: Duration,
    /// Ending a registration.
    pub deregister: Duration,
}

/// What a driver asks of a NIC.
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
            Command::CreateQueuePair => self.create_qp,
            Command::ConnectQueuePair => self.connect_qp,
            Command::DestroyQueuePair => self.destroy_qp,
            Command::Register { bytes } => {
                let pinning = (self.register_mib.as_nanos() * u128::from(bytes)) >> 20;
                self.register + Duration::from_nanos(u64::try_from(pinning).unwrap_or(u64::MAX))
            }
            Command::Deregister => self.deregister,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> CommandTimes {
        let ns = Duration::from_nanos;
        CommandTimes {
            create_qp: ns(1),
            connect_qp: ns(20),
            destroy_qp: ns(300),
            register: ns(4_000),
            register_mib: ns(1 << 20),
            deregister: ns(50_000),
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
