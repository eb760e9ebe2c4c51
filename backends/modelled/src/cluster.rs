//! The cluster: the operations of the owner of a simulation, rather than of a simulated process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::tables::{NumberMap, QueueDepths, Refusal, StreamTable};
use netacc_device::{Instant, QueuePairId};
use netacc_rnic::network::{Network, Topology, TraceHash};
use netacc_rnic::{Counters, Nic, NicConfig, NodeId, Packet};
use parking_lot::Mutex;

use crate::config::HostConfig;
use crate::id::HostId;
use crate::net::{Driven, Net};
use crate::news::News;
use crate::state::{HostState, State};

/// Entries of the directory. Arbitrary.
const DIRECTORY_CAPACITY: usize = 1 << 20;

/// Hosts on a network. Clones are handles to the same cluster.
#[derive(Clone)]
pub struct Cluster {
    state: Arc<Mutex<State>>,
}

impl Cluster {
    /// Hosts joined by `topology`, each with its NIC. The seed decides which packets the network loses.
    pub fn new(topology: &Topology, hosts: Vec<HostConfig>, seed: u64) -> Cluster {
        let net = Network::new(topology, nics(&hosts), seed);
        Cluster::on(Net::Own(Box::new(net)), hosts)
    }

    /// Hosts whose network and time belong to a simulator. After each call, here or on a device, the simulator serves
    /// the hosts that [`take_dirty`](Cluster::take_dirty) returns: it calls [`poll_transmit`](Cluster::poll_transmit)
    /// if the port is free, and [`next_deadline`](Cluster::next_deadline) for the time of the next
    /// [`handle_timer`](Cluster::handle_timer).
    pub fn driven(hosts: Vec<HostConfig>) -> Cluster {
        Cluster::on(Net::Driven(Driven::new(nics(&hosts))), hosts)
    }

    fn on(net: Net, hosts: Vec<HostConfig>) -> Cluster {
        let hosts = hosts.into_iter().enumerate().map(|(i, config)| HostState::new(config, i as u32)).collect();
        let state = State {
            net,
            hosts,
            outgoing: NumberMap::default(),
            messages: BTreeMap::new(),
            attempts: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_number: 1,
            directory: StreamTable::new(DIRECTORY_CAPACITY),
        };
        Cluster { state: Arc::new(Mutex::new(state)) }
    }

    /// The number of hosts.
    pub fn len(&self) -> usize {
        self.with(|s| s.hosts.len())
    }

    /// Whether there is no host at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.with(|s| s.net.now())
    }

    /// The time of the next event, if no device is called before.
    pub fn next_event(&self) -> Option<Instant> {
        self.with(|s| s.next_event())
    }

    /// Makes the next event happen. `false` if there will never be one.
    pub fn step(&self) -> bool {
        self.with(State::step)
    }

    /// Lets time pass, with all events until then.
    pub fn run_until(&self, end: Instant) {
        while self.next_event().is_some_and(|at| at <= end) {
            self.step();
        }
        self.with(|s| s.net.advance(end));
    }

    /// A hash over every delivered packet, whatever [TCP](Cluster::note_tcp) has brought, and their times.
    pub fn trace(&self) -> TraceHash {
        self.with(|s| s.net.trace().clone())
    }

    /// The simulator's own TCP has brought something now: it becomes a part of the trace.
    pub fn note_tcp(&self, words: &[u64]) {
        self.with(|s| s.net.note_tcp(words));
    }

    /// The counters of a host's NIC.
    pub fn counters(&self, host: HostId) -> Counters {
        self.with(|s| s.nic(host).counters())
    }

    /// The work that a host's NIC in software has got since the last call.
    pub fn take_device_work(&self, host: HostId) -> Duration {
        self.with(|s| s.nic(host).take_work())
    }

    /// Cuts the cable of a host, or repairs it.
    pub fn set_cut(&self, host: HostId, cut: bool) {
        self.with(|s| s.net.set_cut(host.0 as usize, cut));
    }

    /// A queue pair fails, as after an error of its device. `false` if it has already, or is not connected.
    pub fn kill(&self, host: HostId, qp: QueuePairId) -> bool {
        self.with(|s| {
            let now = s.net.now();
            let before = s.nic(host).counters().failed;
            s.nic(host).fail_qp(now, qp);
            s.collect_results(host);
            s.nic(host).counters().failed > before
        })
    }

    /// The process on a host dies: the kernel destroys its queue pairs and forgets its attempts and directory entries. Every
    /// call on its device fails from now on.
    pub fn crash(&self, host: HostId) {
        self.with(|s| {
            let mut qps: Vec<QueuePairId> = s.host(host).qps.keys().copied().collect();
            qps.sort_unstable();
            qps.into_iter().for_each(|qp| s.destroy(host, qp));
            s.forget_attempts(host);
            s.directory.forget(host);
            let state = s.host(host);
            state.crashed = true;
            state.events.clear();
            state.cqs.clear();
            s.collect_results(host);
        });
    }

    /// Makes a process refuse connections, or accept them again (`None`).
    pub fn refuse_connects(&self, host: HostId, refusal: Option<Refusal>) {
        self.with(|s| s.host(host).refusal = refusal);
    }

    /// Shrinks the queues of a device below its capabilities, or restores them (they never grow beyond). Posted
    /// requests stay.
    pub fn limit_queues(&self, host: HostId, depths: QueueDepths) {
        self.with(|s| {
            let state = s.host(host);
            state.depths = depths.within(&state.config.capabilities);
        });
    }

    /// From now on the process on a host gets each event of its connection manager when it is
    /// [released](Cluster::release_event): when the runner of its helper thread has given that the time.
    pub fn defer_events(&self, host: HostId) {
        self.with(|s| s.host(host).released = Some(0));
    }

    /// Whether the oldest held event includes the work of making a link; `None` if none is held.
    pub fn deferred_event(&self, host: HostId) -> Option<bool> {
        self.with(|s| {
            let host = s.host(host);
            host.events.get(host.released?).map(|(_, links)| *links)
        })
    }

    /// The process may get the oldest held event.
    pub fn release_event(&self, host: HostId) {
        self.with(|s| {
            let host = s.host(host);
            host.released = host.released.map(|released| (released + 1).min(host.events.len()));
        });
    }

    /// News that the processes of a host have not taken, and virtual time.
    pub fn news(&self, host: HostId) -> (Instant, News) {
        self.with(|s| (s.net.now(), s.host(host).news()))
    }

    /// Regions and queue pairs that a process has.
    pub fn holdings(&self, host: HostId) -> (usize, usize) {
        self.with(|s| (s.host(host).regions.len(), s.host(host).qps.len()))
    }

    /// The simulator delivers a packet to a host, and serves the host after this call. Returns the host's news: its process has
    /// not polled yet.
    pub fn handle_packet(&self, host: HostId, now: Instant, packet: Packet) -> News {
        self.with(|s| {
            s.net.handle_packet(host.0 as usize, now, packet);
            s.collect_results(host);
            s.net.clear_dirty(host.0 as usize);
            s.host(host).news()
        })
    }

    /// The deadline of [`next_deadline`](Cluster::next_deadline) has come. The simulator serves the host after this call. Returns the
    /// host's news.
    pub fn handle_timer(&self, host: HostId, now: Instant) -> News {
        self.with(|s| {
            s.net.handle_timer(host.0 as usize, now);
            s.handle_commands(host);
            s.collect_results(host);
            s.net.clear_dirty(host.0 as usize);
            s.host(host).news()
        })
    }

    /// The next packet of a host whose port is free.
    pub fn poll_transmit(&self, host: HostId, now: Instant) -> Option<Packet> {
        self.with(|s| s.net.poll_transmit(host.0 as usize, now))
    }

    /// The simulator's time, which may have passed without an event for a host.
    pub fn set_now(&self, now: Instant) {
        self.with(|s| s.net.advance(now));
    }

    /// The time at which a host's NIC must be called, has finished a command, or interrupts a sleeper.
    pub fn next_deadline(&self, host: HostId) -> Option<Instant> {
        self.with(|s| Instant::earliest([s.net.next_deadline(host.0 as usize), s.due(host)]))
    }

    /// A host that must be served again, in the order in which they became so.
    pub fn take_dirty(&self) -> Option<HostId> {
        self.with(|s| s.net.take_dirty().map(|host| HostId(host as u32)))
    }

    /// The simulator serves a host in any case, because it has called in for it.
    pub fn clear_dirty(&self, host: HostId) {
        self.with(|s| s.net.clear_dirty(host.0 as usize));
    }

    /// Runs `f` under the lock.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock())
    }
}

fn nics(hosts: &[HostConfig]) -> Vec<Nic> {
    let nic = |(i, host): (usize, &HostConfig)| {
        let (send_depth, receive_depth) = (host.capabilities.max_send_wr, host.capabilities.max_recv_wr);
        Nic::new(NodeId(i as u32), NicConfig { send_depth, receive_depth, ..host.nic.clone() })
    };
    hosts.iter().enumerate().map(nic).collect()
}
