//! Conversations by datagrams: sockets of several hosts, the kernels' network between them, and flows on links.
//!
//! [`run_datagrams`] draws a world from a seed, lets its programs send, receive and sleep at random while the kernels' network
//! loses and reorders and links die, then stops the faults and drives everything to quiescence. It checks that
//! * each datagram is received at most once, by the socket that it was sent to, from the address that sent it, unchanged;
//! * one is missing only if the kernels' network or a full socket dropped it, or if it was on a link that died, also if its
//!   sender ends the flow at once; where no link dies, no sender counts one as lost;
//! * a program that sleeps in the kernel has no datagram from a link, and everything is received in the end;
//! * no datagram of a link overtakes those that were sent before it, where the kernels' network is in order;
//! * no socket of a program gets a proof, and no honest host is accused of a violation;
//! * in the end each flow's slot and region are given back.
//!
//! Core and driver are the ones that production runs. The sockets ([`host`]) and the kernels' network are models.

mod host;
mod program;
mod udp;
mod world;

pub use program::{DatagramProgram, DrivenDatagrams};
pub use udp::{ProgramUdp, UdpPacket};

use netacc_device::middleware::SplitMix64;

use self::world::{Rates, World};
use crate::network::Net;
use crate::plan::Plan;
use crate::{Broken, Check, Failure, Options, Preset};

/// The counts of a run without a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramSummary {
    /// Datagrams that programs have sent.
    pub sent: u64,
    /// Of those, received from links, and from the kernel.
    pub by_link: u64,
    /// See `by_link`.
    pub by_kernel: u64,
    /// Of those that were sent on links, those that came back because their receiver slept.
    pub returned: u64,
    /// Dropped by the kernels' network, or by full sockets.
    pub dropped: u64,
    /// Lost with links.
    pub lost: u64,
    /// Flows that were open.
    pub flows: u64,
}

impl std::ops::AddAssign for DatagramSummary {
    fn add_assign(&mut self, o: DatagramSummary) {
        self.sent += o.sent;
        self.by_link += o.by_link;
        self.by_kernel += o.by_kernel;
        self.returned += o.returned;
        self.dropped += o.dropped;
        self.lost += o.lost;
        self.flows += o.flows;
    }
}

/// Runs one seed from beginning to end.
///
/// # Errors
/// The first broken promise, with the data to replay it.
pub fn run_datagrams(seed: u64, options: &Options) -> Result<DatagramSummary, Box<Failure>> {
    let rng = &mut SplitMix64::new(seed ^ 0xda7a_96a3);
    let preset = options.preset.unwrap_or([Preset::Erdma, Preset::Rxe][rng.below(2)]);
    let mut plan = Plan::draw(seed, &Options { preset: Some(preset), ..options.clone() });
    let rates = Rates::draw(rng, preset);
    plan.processes = rates.hosts;
    let steps = options.steps.unwrap_or(plan.steps);
    let (net, simulator) = Net::new(seed, &plan);
    let described = format!("{rates:?} {plan:?}");
    let failure = |step, broken: Broken| {
        let (trace, state) = (Vec::new(), String::new());
        Box::new(Failure { seed, step, broken, trace, state, plan: described.clone() })
    };
    let world = World::new(&plan, rates, net, simulator, rng.next_u64());
    let mut world = world.map_err(|broken| failure(0, broken))?;
    let mut go = || -> Check {
        for _ in 0..steps {
            world.step()?;
        }
        world.drain()
    };
    match go() {
        Ok(()) => Ok(world.summary()),
        Err(broken) => Err(failure(world.steps(), broken)),
    }
}
