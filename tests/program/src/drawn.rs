//! Programs from bytes, for fuzzers: `netacc_lab.strategies` draws the same from numbers.

use crate::generate::{generate, Mix, Shape};
use crate::program::{Config, Program};

/// Bytes before the decisions.
const HEADER: usize = 8;
/// Bytes of a decision: more than any decision uses (56 bits).
const DECISION: usize = 7;
/// Decisions of a program at most. Arbitrary; a fuzzer prefers short inputs anyway.
const MOST_DECISIONS: usize = 200;
/// By input: the number of faults in 1000 scheduler turns. The same as `netacc_lab.simulated` uses.
const FAULTS_PER_MILLE: [u32; 4] = [0, 1, 5, 30];
/// Settings of the library under test. The same as `netacc_lab.strategies.CONFIGS`, as each is a process tree of its own
/// for executors of real processes.
const CONFIGS: [Config; 5] = [
    Config { conn_per_qp: 1, ring_bytes: 65536, promote_after: 0, fault_per_mille: 0 },
    Config { conn_per_qp: 1, ring_bytes: 4096, promote_after: 0, fault_per_mille: 0 },
    Config { conn_per_qp: 8, ring_bytes: 16384, promote_after: 0, fault_per_mille: 0 },
    Config { conn_per_qp: 1, ring_bytes: 262_144, promote_after: 3, fault_per_mille: 0 },
    Config { conn_per_qp: 64, ring_bytes: 65536, promote_after: 1, fault_per_mille: 0 },
];

/// A program together with the data that it is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// The seed of the scheduler, for executors that have one.
    pub seed: u64,
    /// The frame of the program.
    pub shape: Shape,
    /// One number for each decision.
    pub decisions: Vec<u64>,
}

impl Drawn {
    /// Reads a program from bytes. Every list of bytes gives one; missing bytes are zero.
    pub fn from_bytes(bytes: &[u8]) -> Drawn {
        let header: [u8; HEADER] = std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0));
        let [processes, hosts, connections, mix, frame, config, faults, seed] = header.map(usize::from);
        let mixes = [Mix::Data, Mix::Readiness, Mix::Endings, Mix::Sharing, Mix::All];
        let config = Config {
            fault_per_mille: FAULTS_PER_MILLE[faults % FAULTS_PER_MILLE.len()],
            ..CONFIGS[config % CONFIGS.len()]
        };
        let shape = Shape {
            processes: 1 + (processes % 4) as u8,
            hosts: 1 + (hosts % 2) as u8,
            connections: 1 + (connections % 4) as u8,
            mix: mixes[mix % mixes.len()],
            warm: if frame % 2 == 0 { 12 } else { 0 },
            most_bytes: [100, 2000, 8000, 60000][frame / 2 % 4],
            threads: frame / 8 % 2 == 0,
            config,
        };
        let decisions = bytes.get(HEADER..).unwrap_or(&[]).chunks(DECISION).take(MOST_DECISIONS);
        let decisions = decisions.map(|chunk| {
            let mut number = [0; 8];
            number[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(number)
        });
        Drawn { seed: seed as u64, shape, decisions: decisions.collect() }
    }

    /// The program.
    pub fn program(&self) -> Program {
        generate(&self.shape, &self.decisions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if some bytes gave a program that executors refuse, or if bytes did not reach the program.
    #[test]
    fn all_bytes_are_sound_programs_and_different_ones() {
        let mut programs = std::collections::BTreeSet::new();
        for seed in 0..500u64 {
            let bytes: Vec<u8> = (0..200u64).map(|i| (((seed + 1) * (i * i + 7 * i + 11)) >> 3) as u8).collect();
            for bytes in [&bytes[..], &bytes[..9], &bytes[..3], &[]] {
                assert_eq!(Drawn::from_bytes(bytes).program().check(), Ok(()));
            }
            programs.insert(serde_json::to_string(&Drawn::from_bytes(&bytes).program()).unwrap_or_default());
        }
        assert!(programs.len() > 200, "{}", programs.len());
    }
}
