//! Runs on the plain network.

use std::cell::RefCell;
use std::rc::Rc;

use netacc_device::{DeviceError, Instant};
use netacc_rnic::network::{Network, Station, Topology};
use netacc_rnic::Packet;

use crate::config::RunConfig;
use crate::outcome::Outcome;
use crate::process::Broken;
use crate::run::Run;

/// One host of a run, as a station of the plain network.
struct Host {
    run: Rc<RefCell<Run>>,
    host: u32,
}

impl Station for Host {
    fn handle_packet(&mut self, now: Instant, packet: Packet) {
        self.run.borrow_mut().handle_packet(self.host, now, packet);
    }

    fn handle_timer(&mut self, now: Instant) {
        self.run.borrow_mut().handle_timer(self.host, now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        self.run.borrow_mut().poll_transmit(self.host, now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.run.borrow().next_deadline(self.host)
    }
}

/// Runs to the end, or to `most`, on the plain network. `None` if the configuration makes no sense.
///
/// # Errors
/// A byte that was not the one written; or a device without queues, as a message.
pub fn run_plain(
    config: &RunConfig,
    topology: &Topology,
    seed: u64,
    most: Instant,
) -> Result<Option<Result<Outcome, Broken>>, DeviceError> {
    let Some(run) = Run::new(config)? else { return Ok(None) };
    let run = Rc::new(RefCell::new(run));
    let count = config.hosts.len();
    let hosts = (0..count as u32).map(|host| Host { run: run.clone(), host }).collect();
    let mut net = Network::new(topology, hosts, seed);
    run.borrow_mut().start();
    // A shell around a NIC in a simulator does the same: it serves its own node, then all that need it.
    let serve_dirty = |net: &mut Network<Host>| loop {
        let dirty = run.borrow_mut().take_dirty();
        match dirty {
            Some(host) => net.kick(host as usize),
            None => return,
        }
    };
    for host in 0..count {
        net.kick(host);
        serve_dirty(&mut net);
    }
    while net.next_event().is_some_and(|at| at <= most) {
        net.step();
        while net.take_touched().is_some() {}
        serve_dirty(&mut net);
    }
    let outcome = run.borrow().outcome();
    Ok(Some(outcome))
}
