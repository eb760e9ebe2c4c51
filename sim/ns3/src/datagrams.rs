//! Programs of datagram calls on a simulator's network, under the scheduler of `netacc_harness`.
//!
//! A request is an object with `datagrams`: `seed`, and `fault_per_mille`, which is 0 for a network and links without faults. The
//! lines that follow are orders of the program ([`DatagramProgram::order`]), until one is `["finish"]`. Each has an object as answer,
//! with the `answer`, or with the promise that was `broken`, and then the run is over as well.

use cxx::UniquePtr;
use netacc_harness::{DatagramProgram, DrivenDatagrams};
use serde::Deserialize;
use serde_json::json;

use crate::ffi::{Network, ProgramNetwork};
use crate::fleet::{Carried, Fleet};
use crate::program::{described, Driver, RequestError};

/// A run of a program of datagram calls.
pub(crate) enum DatagramRun {
    /// The configuration that its seed draws.
    Drawn(Box<DrivenDatagrams>),
    /// It takes orders.
    Going(Box<DatagramProgram>),
    Over,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    datagrams: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    seed: u64,
    fault_per_mille: u32,
}

pub(crate) fn is_datagram_run(request: &str) -> bool {
    let request: Option<serde_json::Value> = serde_json::from_str(request).ok();
    request.is_some_and(|request| request.get("datagrams").is_some())
}

pub(crate) fn new_datagram_run(request: &str) -> Result<Box<DatagramRun>, RequestError> {
    let Request { datagrams: Settings { seed, fault_per_mille } } = serde_json::from_str(request)?;
    Ok(Box::new(DatagramRun::Drawn(Box::new(DrivenDatagrams::new(seed, fault_per_mille)))))
}

impl DatagramRun {
    pub(crate) fn network(&self) -> ProgramNetwork {
        match self {
            DatagramRun::Drawn(driven) => described(Some(&driven.network)),
            DatagramRun::Going(_) | DatagramRun::Over => described(None),
        }
    }

    pub(crate) fn fleet(&self) -> Box<Fleet> {
        Box::new(match self {
            DatagramRun::Drawn(driven) => {
                Fleet::of_hosts(Some(driven.cluster.clone()), Carried::Datagrams(driven.udp.clone()))
            }
            DatagramRun::Going(_) | DatagramRun::Over => Fleet::of_hosts(None, Carried::Nothing),
        })
    }

    pub(crate) fn start(&mut self, network: UniquePtr<Network>) -> Result<(), RequestError> {
        let DatagramRun::Drawn(driven) = std::mem::replace(self, DatagramRun::Over) else {
            return Err(RequestError::Again);
        };
        let program = driven.start(Box::new(Driver(network)));
        *self = DatagramRun::Going(Box::new(program.map_err(|broken| RequestError::Program(broken.detail))?));
        Ok(())
    }

    pub(crate) fn is_going(&self) -> bool {
        matches!(self, DatagramRun::Going(_))
    }

    pub(crate) fn order(&mut self, line: &str) -> Result<String, RequestError> {
        let DatagramRun::Going(program) = self else { return Err(RequestError::Again) };
        let (answer, ends) = match program.order(line) {
            Ok(answer) => {
                let answer: serde_json::Value = serde_json::from_str(&answer)?;
                (json!({ "answer": answer }), line.trim() == r#"["finish"]"#)
            }
            Err(broken) => (json!({ "broken": format!("{:?}: {}", broken.what, broken.detail) }), true),
        };
        if ends {
            *self = DatagramRun::Over;
        }
        Ok(answer.to_string())
    }
}
