//! The executor `ns3`: programs of socket operations, under the scheduler of `netacc_harness`, on a simulator's network.
//!
//! A request is an object with `program`, and maybe `expect` (the oracle's trace), `seed`, `mutant`, and `tcp`: "simulated" (the
//! simulator's own TCP carries the connections) or "memory" (the scheduler does, as on the plain network). The answer has the
//! `trace`, the promise that was `broken`, the streams' `state` where a step was given up, `network`: a hash over what was
//! delivered to NICs and when, and `tcp_bytes`: the bytes that the simulator's TCP has carried. Programs of datagram calls have
//! [a protocol of their own](crate::datagrams).

use cxx::UniquePtr;
use netacc_device::Instant;
use netacc_harness::{DrivenProgram, Mutant, NetworkPlan};
use netacc_modelled::{HostId, Simulator};
use netacc_program::{Program, Trace};
use serde::{Deserialize, Serialize};

use crate::ffi::{Network, ProgramNetwork};
use crate::fleet::{Carried, Fleet};

/// A program, and the configuration that its seed draws.
pub(crate) struct ProgramRun {
    program: Program,
    expect: Option<Trace>,
    /// Until it runs.
    driven: Option<DrivenProgram>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    program: serde_json::Value,
    #[serde(default)]
    expect: Option<Trace>,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    mutant: Option<String>,
    #[serde(default)]
    tcp: ProgramsTcp,
}

/// The carrier of the connections' TCP.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ProgramsTcp {
    #[default]
    Simulated,
    Memory,
}

#[derive(Serialize)]
struct Answer {
    trace: Trace,
    broken: Option<String>,
    state: String,
    network: Option<String>,
    tcp_bytes: u64,
}

/// An error in a request.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// Not JSON, or not of this form.
    Form(serde_json::Error),
    /// The program is not valid.
    Program(String),
    /// No such deliberate fault.
    Mutant(String),
    /// The program has run already.
    Again,
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestError::Form(error) => write!(f, "request: {error}"),
            RequestError::Program(error) => write!(f, "program: {error}"),
            RequestError::Mutant(name) => write!(f, "there is no deliberate fault {name:?}"),
            RequestError::Again => f.write_str("a program runs once"),
        }
    }
}

impl From<serde_json::Error> for RequestError {
    fn from(error: serde_json::Error) -> RequestError {
        RequestError::Form(error)
    }
}

pub(crate) fn new_program_run(request: &str) -> Result<Box<ProgramRun>, RequestError> {
    let Request { program, expect, seed, mutant, tcp } = serde_json::from_str(request)?;
    let program = Program::parse(&program.to_string()).map_err(|e| RequestError::Program(e.to_string()))?;
    let find = |name: String| {
        let found = Mutant::ALL.into_iter().find(|m| format!("{m:?}") == name);
        found.ok_or(RequestError::Mutant(name))
    };
    let mutant = mutant.map(find).transpose()?;
    let driven = Some(DrivenProgram::new(&program, seed, mutant, tcp == ProgramsTcp::Simulated));
    Ok(Box::new(ProgramRun { program, expect, driven }))
}

impl ProgramRun {
    pub(crate) fn network(&self) -> ProgramNetwork {
        described(self.driven.as_ref().map(|driven| &driven.network))
    }

    pub(crate) fn fleet(&self) -> Box<Fleet> {
        let driven = self.driven.as_ref();
        let carried = driven.and_then(|d| d.tcp.clone()).map_or(Carried::Nothing, Carried::Tcp);
        Box::new(Fleet::of_hosts(driven.map(|d| d.cluster.clone()), carried))
    }

    pub(crate) fn run(&mut self, network: UniquePtr<Network>) -> Result<String, RequestError> {
        let driven = self.driven.take().ok_or(RequestError::Again)?;
        let tcp = driven.tcp.clone();
        let run = driven.run(&self.program, self.expect.as_ref(), Box::new(Driver(network)));
        let network = run.network_trace.map(|hash| format!("{hash:016x}"));
        let tcp_bytes = tcp.map_or(0, |tcp| tcp.delivered_bytes());
        let answer = Answer { trace: run.trace, broken: run.broken, state: run.state, network, tcp_bytes };
        Ok(serde_json::to_string(&answer)?)
    }
}

/// `None`: a network without hosts.
pub(crate) fn described(network: Option<&NetworkPlan>) -> ProgramNetwork {
    let none = ProgramNetwork {
        hosts: 0,
        rate_bps: 0,
        delay_ns: 0,
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        reorder_delay_ns: 0,
        buffer_bytes: 0,
        seed: 0,
    };
    network.map_or(none, |network| ProgramNetwork {
        hosts: network.hosts.len() as u32,
        rate_bps: network.link.rate_bps,
        delay_ns: network.link.delay.as_nanos() as u64,
        loss_ppm: network.link.loss_ppm,
        duplicate_ppm: network.link.duplicate_ppm,
        reorder_ppm: network.link.reorder_ppm,
        reorder_delay_ns: network.link.reorder_delay.as_nanos() as u64,
        buffer_bytes: network.switch.buffer_bytes,
        seed: network.seed,
    })
}

/// The simulator's half, as the harness wants it.
pub(crate) struct Driver(pub(crate) UniquePtr<Network>);

impl Simulator for Driver {
    fn step(&mut self) -> Option<Instant> {
        let at = self.0.pin_mut().step();
        (at != u64::MAX).then(|| Instant::from_nanos(at))
    }

    fn set_cut(&mut self, HostId(host): HostId, cut: bool) {
        self.0.pin_mut().set_cut(host, cut);
    }
}
