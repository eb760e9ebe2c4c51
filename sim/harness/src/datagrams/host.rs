//! A host with a device and sockets, as the library would use them.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use netacc_device::middleware::{Fault, FaultConfig, SplitMix64};
use netacc_device::{Device, FourTuple, Instant, PeerAddress};
use netacc_driver::{Endpoint, LinkDatagram, Readiness, ReadySink, ReceivingFlow, SendingFlow, StreamCell};
use netacc_proto::{FlowProof, Reason};
use parking_lot::Mutex;

use crate::network::{Net, Port};
use crate::plan::Plan;
use crate::{Broken, Check, What};

/// Datagrams that a socket of the kernel holds; it drops others.
const KERNEL_ROOM: usize = 24;

/// Where the library of each host receives proofs, at the host's address.
const PROOF_PORT: u16 = 4000;

/// A datagram that a program receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) from: SocketAddr,
    pub(super) bytes: Vec<u8>,
    pub(super) by_link: bool,
}

/// A datagram on the kernels' network.
#[derive(Clone, Debug)]
pub(super) struct Wired {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
}

/// What the owner of the endpoint's flows knows.
#[derive(Default)]
struct Known {
    /// Datagrams that the kernel has brought a socket of this host, by the socket and their source.
    sources: BTreeMap<(SocketAddr, SocketAddr), u64>,
    receiving: Vec<Arc<ReceivingFlow>>,
}

struct Owner(Arc<Mutex<Known>>);

impl ReadySink for Owner {
    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, _: bool) {}

    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        true
    }

    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }

    fn moved(&self, _: &Arc<StreamCell>) {}

    fn takes_flows(&self) -> bool {
        true
    }

    fn flow_offered(&self, addresses: &FourTuple) -> Result<u16, Reason> {
        let is_known = self.0.lock().sources.contains_key(&(addresses.local, addresses.remote));
        is_known.then_some(PROOF_PORT).ok_or(Reason::SourceUnknown)
    }

    fn flow_granted(&self, flow: &Arc<ReceivingFlow>) {
        let mut known = self.0.lock();
        let FourTuple { local, remote } = flow.addresses;
        flow.start(known.sources.get(&(local, remote)).copied().unwrap_or(0));
        known.receiving.push(flow.clone());
    }
}

/// A socket, and what its program does.
pub(super) struct Socket {
    pub(super) address: SocketAddr,
    /// The program has the library.
    pub(super) accelerated: bool,
    kernel: VecDeque<Wired>,
    /// Its program sleeps in the kernel.
    pub(super) asleep: bool,
    sending: BTreeMap<SocketAddr, Arc<SendingFlow>>,
    /// Datagrams to each destination by the kernel: a flow is opened after some.
    sent: BTreeMap<SocketAddr, u64>,
}

/// See the module documentation.
pub(super) struct Host {
    pub(super) port: Port,
    pub(super) endpoint: Endpoint,
    known: Arc<Mutex<Known>>,
    pub(super) sockets: Vec<Socket>,
    /// The datagrams that the kernel has brought the library.
    proofs: VecDeque<Wired>,
    /// The datagrams that its kernel is to send.
    pub(super) outgoing: Vec<Wired>,
    pub(super) dropped: Vec<Wired>,
    pub(super) opened: Vec<Arc<SendingFlow>>,
}

impl Host {
    pub(super) fn open(net: &Net, plan: &Plan, seed: u64, number: usize, accelerated: &[bool]) -> Check<Host> {
        let port = net.open(plan, number);
        let mut device: Arc<dyn Device> = port.device();
        if let Some(faults) = &plan.device_faults {
            device = Arc::new(Fault::new(device, FaultConfig { seed: faults.seed ^ seed, ..faults.clone() }));
        }
        let known = Arc::<Mutex<Known>>::default();
        let nonces = Mutex::new(SplitMix64::new(seed));
        let endpoint = Endpoint::new(
            device,
            port.connection_manager(),
            port.directory(),
            plan.endpoint.clone(),
            Arc::new(Owner(known.clone())),
            Box::new(|| {}),
            Box::new(move || {
                let mut rng = nonces.lock();
                let mut nonce = [0; 16];
                nonce[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
                nonce[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
                nonce
            }),
        );
        let endpoint = endpoint.map_err(|error| Broken::new(What::Panic, format!("endpoint: {error}")))?;
        let sockets = accelerated.iter().enumerate().map(|(i, accelerated)| Socket {
            address: address(number, i),
            accelerated: *accelerated,
            kernel: VecDeque::new(),
            asleep: false,
            sending: BTreeMap::new(),
            sent: BTreeMap::new(),
        });
        let sockets = sockets.collect();
        let (outgoing, dropped, opened) = (Vec::new(), Vec::new(), Vec::new());
        let proofs = VecDeque::new();
        Ok(Host { port, endpoint, known, sockets, proofs, outgoing, dropped, opened })
    }

    fn receiving(&self, socket: SocketAddr) -> Vec<Arc<ReceivingFlow>> {
        let known = self.known.lock();
        known.receiving.iter().filter(|flow| flow.addresses.local == socket).cloned().collect()
    }

    /// A program sends a datagram. `peer`: the process at the destination, if it has the library. Whether it took a link.
    pub(super) fn send(&mut self, socket: usize, to: SocketAddr, bytes: &[u8], peer: Option<PeerAddress>) -> bool {
        let from = self.sockets[socket].address;
        let flow = self.sockets[socket].sending.get(&to).cloned();
        if let Some(flow) = &flow {
            if self.endpoint.send_datagram(flow, bytes, 64, 0).is_ok() {
                return true;
            }
            self.send_returned(flow);
            flow.count_by_kernel();
        }
        self.outgoing.push(Wired { from, to, bytes: bytes.to_vec() });
        let state = &mut self.sockets[socket];
        let sent = state.sent.entry(to).or_default();
        *sent += 1;
        let wants_flow = flow.is_none_or(|flow| flow.is_closed()) && sent.is_power_of_two() && *sent > 1;
        if let Some(peer) = peer.filter(|_| wants_flow && state.accelerated) {
            let flow = self.endpoint.open_flow(peer, FourTuple { local: from, remote: to }, PROOF_PORT, *sent);
            state.sending.insert(to, flow.clone());
            self.opened.push(flow);
        }
        false
    }

    /// A program ends a flow right after it has sent something, as by closing its socket.
    pub(super) fn end_flow(&mut self, socket: usize, to: SocketAddr) {
        if let Some(flow) = self.sockets[socket].sending.get(&to) {
            self.endpoint.close_sending(flow);
        }
    }

    /// Datagrams that their receiver did not take before it slept go by the kernel.
    fn send_returned(&mut self, flow: &SendingFlow) {
        while let Some(LinkDatagram { bytes, .. }) = self.endpoint.take_returned(flow) {
            flow.count_by_kernel();
            self.outgoing.push(Wired { from: flow.addresses.local, to: flow.addresses.remote, bytes });
        }
    }

    /// A program receives without waiting; one that sleeps has to be woken by its kernel first.
    pub(super) fn receive(&mut self, socket: usize, now: Instant) -> Option<Received> {
        if self.sockets[socket].asleep {
            return None;
        }
        let flows = self.receiving(self.sockets[socket].address);
        for flow in &flows {
            self.endpoint.keep_awake(flow);
            if let Some(datagram) = self.endpoint.receive_datagram(flow) {
                return Some(Received { from: flow.addresses.remote, bytes: datagram.bytes, by_link: true });
            }
        }
        if let Some(Wired { from, to, bytes }) = self.sockets[socket].kernel.pop_front() {
            // The newest flow of a source: an earlier one is over.
            if let Some(flow) = flows.iter().rfind(|flow| flow.addresses.remote == from) {
                flow.count_by_kernel();
            }
            *self.known.lock().sources.entry((to, from)).or_default() += 1;
            return Some(Received { from, bytes, by_link: false });
        }
        flows.iter().for_each(|flow| flow.kernel_was_empty(now));
        None
    }

    /// The library receives proofs.
    fn handle_proofs(&mut self) {
        while let Some(Wired { from, bytes, .. }) = self.proofs.pop_front() {
            let receiving = self.known.lock().receiving.clone();
            let mut of_source = receiving.iter().filter(|flow| flow.addresses.remote == from);
            let answer = of_source
                .find_map(|flow| Some((flow.addresses.local, self.endpoint.handle_source_proof(flow, &bytes)?)));
            if let Some((local, FlowProof { record, port })) = answer {
                let to = SocketAddr::new(from.ip(), port);
                self.outgoing.push(Wired { from: local, to, bytes: record.to_vec() });
            } else {
                self.opened.iter().filter(|flow| flow.addresses.remote == from).any(|flow| flow.handle_proof(&bytes));
            }
        }
    }

    /// A program is about to sleep in the kernel.
    pub(super) fn sleep(&mut self, socket: usize) {
        let state = &self.sockets[socket];
        if !state.kernel.is_empty() || state.asleep {
            return;
        }
        let flows = self.receiving(state.address);
        let may = flows.iter().filter(|flow| !self.endpoint.let_sleep(flow)).count() == 0;
        self.sockets[socket].asleep = may;
    }

    /// The kernel has a datagram for a socket, or for the library.
    pub(super) fn arrive(&mut self, datagram: Wired) {
        if datagram.to.port() == PROOF_PORT {
            return self.proofs.push_back(datagram);
        }
        let Some(socket) = self.sockets.iter_mut().find(|socket| socket.address == datagram.to) else { return };
        if socket.kernel.len() >= KERNEL_ROOM {
            self.dropped.push(datagram);
            return;
        }
        socket.asleep = false;
        socket.kernel.push_back(datagram);
    }

    /// One turn of the helper thread.
    pub(super) fn help(&mut self, now: Instant) {
        self.endpoint.progress(now);
        self.endpoint.poll(self.endpoint.default_cq());
        self.handle_proofs();
        for flow in self.opened.clone() {
            if let Some(FlowProof { record, port }) = flow.poll_proof(now) {
                let FourTuple { local: from, remote } = flow.addresses;
                self.outgoing.push(Wired { from, to: SocketAddr::new(remote.ip(), port), bytes: record.to_vec() });
            }
            self.send_returned(&flow);
            if flow.is_closed() {
                self.endpoint.close_sending(&flow);
            }
        }
    }

    /// The programs close their sockets.
    pub(super) fn close(&mut self) {
        self.opened.iter().for_each(|flow| self.endpoint.close_sending(flow));
        self.known.lock().receiving.iter().for_each(|flow| self.endpoint.close_receiving(flow));
    }

    /// Whether a socket has datagrams that its program has not received: from the kernel, and from links.
    pub(super) fn waiting(&self, socket: usize) -> (bool, bool) {
        let state = &self.sockets[socket];
        (!state.kernel.is_empty(), self.receiving(state.address).iter().any(|flow| flow.has_more()))
    }
}

/// The address of a socket.
pub(super) fn address(host: usize, socket: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8 + 1], 5000 + socket as u16))
}
