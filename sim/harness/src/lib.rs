//! A seeded scheduler that runs whole conversations of many simulated processes on in-memory devices, with faults.
//!
//! [`run`] draws a world from a seed (processes, device preset, ring sizes, fault rates), lets applications and
//! scheduler do random things for a while, then stops the faults and drives everything to quiescence. All the way it
//! checks that
//! * every byte read is the one written at its position; the end of stream comes after the last byte; errors come only
//!   to connections that an end broke;
//! * no honest process is accused of a protocol violation;
//! * readiness is true, and an edge-triggered waiter gets each edge;
//! * nothing is used after close, and in the end nothing is left over: stream, link, slot, region, message.
//!
//! The core, the driver and what `core/socket` decides of a send and a receive are the ones that production runs. What else
//! the applications do ([`app`]), the epoll instance ([`epoll`]) and the helper thread ([`process`]) are models of the
//! library's.
//!
//! There is no thread, clock or sleep in a run, and nothing iterates in hash order: a seed replays exactly.

mod app;
mod connection;
mod datagrams;
mod delivery;
mod descriptor;
mod drain;
mod epoll;
mod io;
mod meter;
mod mutants;
mod network;
mod options;
mod plan;
mod process;
mod program;
mod scheduler;
mod tcp;
mod torn;
mod trace;
mod world;

use std::panic::{catch_unwind, AssertUnwindSafe};

pub use datagrams::{run_datagrams, DatagramProgram, DatagramSummary, DrivenDatagrams, ProgramUdp, UdpPacket};
pub use options::{Broken, Check, Crowd, Failure, Mutant, Options, Preset, Summary, What};

pub use network::NetworkPlan;
pub use program::{run_program, DrivenProgram, ProgramRun};
pub use tcp::ProgramTcp;

use world::World;

/// Runs one seed from beginning to end.
///
/// # Errors
/// The first broken promise, with the data to replay it.
pub fn run(seed: u64, options: &Options) -> Result<Summary, Box<Failure>> {
    let mut world = World::new(seed, options).map_err(|broken| {
        Box::new(Failure { seed, step: 0, broken, trace: Vec::new(), state: String::new(), plan: String::new() })
    })?;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        world.shuffle()?;
        world.drain()
    }));
    let (broken, panicked) = match outcome {
        Ok(Ok(())) => return Ok(std::mem::take(&mut world.summary)),
        Ok(Err(broken)) => (broken, false),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
            (Broken::new(What::Panic, text.unwrap_or_default()), true)
        }
    };
    // After a panic locks may be held for ever: do not look.
    let state = if panicked { String::new() } else { world.dump() };
    let failure = Failure {
        seed,
        step: world.summary.steps,
        broken,
        trace: world.tail().into(),
        state,
        plan: format!("{:?}", world.plan),
    };
    if panicked {
        std::mem::forget(world);
    }
    Err(Box::new(failure))
}
