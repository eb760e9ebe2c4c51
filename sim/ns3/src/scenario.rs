//! Scenarios and their recordings, as the simulator's main program sees them.

use std::path::Path;

use netacc_device::Instant;
use netacc_simulator::{self as simulator, FinishError, NetworkCounts, ScenarioError, Verdict};

use crate::ffi::{NetworkFault, NetworkLink, NetworkSpec, NetworkTotals, RunState};
use crate::fleet::Fleet;
use crate::parameters::switch_settings;

/// A resolved scenario.
pub struct Scenario(simulator::Scenario);

pub(crate) fn read_scenario(text: &str) -> Result<Box<Scenario>, ScenarioError> {
    Ok(Box::new(Scenario(simulator::Scenario::parse(text)?)))
}

impl Scenario {
    pub(crate) fn network(&self) -> NetworkSpec {
        let simulator::Scenario { network, measure, .. } = &self.0;
        let stack = &self.0.stack;
        let link = |l: &simulator::Link| NetworkLink {
            a: l.a,
            b: l.b,
            rate_bps: l.rate_bps,
            delay_ns: l.delay_ns,
            loss_ppm: l.loss_ppm,
        };
        let fault = |f: &simulator::Fault| NetworkFault {
            at_ns: f.at_ns,
            link: f.link,
            rate_bps: f.rate_bps,
            loss_ppm: f.loss_ppm,
            reroute: f.reroute,
        };
        NetworkSpec {
            hosts: network.hosts,
            switches: network.switches,
            links: network.links.iter().map(link).collect(),
            faults: self.0.faults.iter().map(fault).collect(),
            switch_settings: switch_settings(&network.switch),
            seed: self.0.seed,
            tick_ns: measure.progress_ns,
            sample_ports: measure.ports,
            tcp_buffer_bytes: stack.tcp_buffer_bytes,
            tcp_mtu_bytes: stack.tcp_mtu_bytes,
        }
    }

    pub(crate) fn ring_bytes(&self) -> u32 {
        self.0.stack.ring_bytes
    }

    pub(crate) fn fleet(&self) -> Result<Box<Fleet>, ScenarioError> {
        Ok(Box::new(Fleet::of_run(self.0.run()?)))
    }
}

/// The recording of a run.
pub struct Recording(Option<simulator::Recording>);

pub(crate) fn new_recording(scenario: &Scenario, folder: &str) -> Result<Box<Recording>, FinishError> {
    let recording = simulator::Recording::new(scenario.0.clone(), Path::new(folder))?;
    Ok(Box::new(Recording(Some(recording))))
}

impl Recording {
    pub(crate) fn tick(&mut self, fleet: &mut Fleet, now_ns: u64) -> Result<RunState, FinishError> {
        // A recording that is finished, or a fleet that carries plain messages, has no progress to report.
        let (Some(recording), Some(run)) = (&mut self.0, fleet.run_mut()) else { return Ok(RunState::Complete) };
        Ok(match recording.tick(run, Instant::from_nanos(now_ns))? {
            Verdict::Going => RunState::Going,
            Verdict::Complete => RunState::Complete,
            Verdict::Stalled => RunState::Stalled,
            Verdict::Unfinished => RunState::Unfinished,
            Verdict::Broken => RunState::Broken,
        })
    }

    pub(crate) fn progress(&self, fleet: &Fleet, now_ns: u64, events: u64) -> String {
        let (Some(recording), Some(run)) = (&self.0, fleet.run()) else { return String::new() };
        recording.progress(run, Instant::from_nanos(now_ns), events)
    }

    pub(crate) fn finish(
        &mut self,
        fleet: &Fleet,
        state: RunState,
        totals: &NetworkTotals,
        code_version: &str,
        ns3_version: &str,
    ) -> Result<(), FinishError> {
        let (Some(recording), Some(run)) = (self.0.take(), fleet.run()) else { return Ok(()) };
        let verdict = match state {
            RunState::Complete => Verdict::Complete,
            RunState::Stalled => Verdict::Stalled,
            RunState::Unfinished => Verdict::Unfinished,
            RunState::Broken => Verdict::Broken,
            _ => Verdict::Going,
        };
        let NetworkTotals { lost, dropped, marked, pauses, max_queue_bytes, tcp_failed, events } = *totals;
        let counts = NetworkCounts { lost, dropped, marked, pauses, max_queue_bytes, tcp_failed };
        recording.finish(run, verdict, (events, counts), (code_version, ns3_version))
    }
}
