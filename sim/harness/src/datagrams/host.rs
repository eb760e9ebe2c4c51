//! A host with a device and sockets, as the library would use them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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

/// Where the library of the first host receives proofs, at the host's address. Those of other hosts have the next ports.
const PROOF_PORT: u16 = 4000;

/// A datagram, and what its IP header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wired {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
    pub(super) ttl: u8,
    pub(super) tos: u8,
}

impl Wired {
    /// With the values of a socket whose program has set none.
    pub(super) fn plain(from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) -> Wired {
        Wired { from, to, bytes, ttl: 64, tos: 0 }
    }
}

/// A datagram that a program receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) datagram: Wired,
    pub(super) by_link: bool,
}

/// The addresses at which a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Its own.
    One,
    /// Any address of IPv4.
    Four,
    /// Any address.
    All,
}

/// What the owner of the endpoint's flows knows.
#[derive(Default)]
struct Known {
    /// Datagrams that the kernel has brought a socket of this host, by the socket and their source.
    sources: BTreeMap<(SocketAddr, SocketAddr), u64>,
    receiving: Vec<Arc<ReceivingFlow>>,
    /// Ports of the sockets that stay in the kernel.
    kernel_only: BTreeSet<u16>,
}

/// With the port of the library.
struct Owner(Arc<Mutex<Known>>, u16);

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
        let known = self.0.lock();
        if known.kernel_only.contains(&addresses.local.port()) {
            return Err(Reason::HostOption);
        }
        let is_known = known.sources.contains_key(&(addresses.local, addresses.remote));
        is_known.then_some(self.1).ok_or(Reason::SourceUnknown)
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
    bound: Bound,
    /// The program has the library, and may have flows from this socket.
    pub(super) accelerated: bool,
    kernel: VecDeque<Wired>,
    /// Its program sleeps in the kernel.
    pub(super) asleep: bool,
    sending: BTreeMap<SocketAddr, Arc<SendingFlow>>,
    /// Datagrams to each destination by the kernel: a flow is opened after some.
    sent: BTreeMap<SocketAddr, u64>,
}

impl Socket {
    pub(super) fn takes(&self, to: SocketAddr) -> bool {
        let is_any = match self.bound {
            Bound::One => false,
            Bound::Four => to.is_ipv4(),
            Bound::All => true,
        };
        to == self.address || is_any && to.port() == self.address.port()
    }
}

/// See the module documentation.
pub(super) struct Host {
    pub(super) port: Port,
    /// Where the library receives proofs.
    pub(super) proof_port: u16,
    /// Datagrams that a socket of the kernel holds; it drops others.
    kernel_room: usize,
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
    /// Without sockets. Each holds `kernel_room` datagrams of the kernel; the kernel drops others.
    pub(super) fn open(net: &Net, plan: &Plan, seed: u64, number: usize, kernel_room: usize) -> Check<Host> {
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
            Arc::new(Owner(known.clone(), PROOF_PORT + number as u16)),
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
        let (sockets, outgoing, dropped, opened) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (proofs, proof_port) = (VecDeque::new(), PROOF_PORT + number as u16);
        Ok(Host { port, proof_port, kernel_room, endpoint, known, sockets, proofs, outgoing, dropped, opened })
    }

    /// A program opens a socket. Its number.
    pub(super) fn add_socket(&mut self, address: SocketAddr, bound: Bound, accelerated: bool) -> usize {
        let (sending, sent) = (BTreeMap::new(), BTreeMap::new());
        self.sockets.push(Socket {
            address,
            bound,
            accelerated,
            kernel: VecDeque::new(),
            asleep: false,
            sending,
            sent,
        });
        self.sockets.len() - 1
    }

    fn receiving(&self, socket: usize) -> Vec<Arc<ReceivingFlow>> {
        let (known, socket) = (self.known.lock(), &self.sockets[socket]);
        known.receiving.iter().filter(|flow| socket.takes(flow.addresses.local)).cloned().collect()
    }

    /// A program sends a datagram. `peer`: the process at the destination, if it has the library. Whether it took a link.
    pub(super) fn send(&mut self, socket: usize, datagram: Wired, peer: Option<PeerAddress>) -> bool {
        let (from, to) = (datagram.from, datagram.to);
        let flow = self.sockets[socket].sending.get(&to).cloned();
        if let Some(flow) = &flow {
            let Wired { bytes, ttl, tos, .. } = &datagram;
            if self.endpoint.send_datagram(flow, bytes, *ttl, *tos).is_ok() {
                return true;
            }
            self.send_returned(flow);
            flow.count_by_kernel();
        }
        self.outgoing.push(datagram);
        let state = &mut self.sockets[socket];
        let sent = state.sent.entry(to).or_default();
        *sent += 1;
        let wants_flow = flow.is_none_or(|flow| flow.is_closed()) && sent.is_power_of_two() && *sent > 1;
        if let Some(peer) = peer.filter(|_| wants_flow && state.accelerated) {
            let flow = self.endpoint.open_flow(peer, FourTuple { local: from, remote: to }, self.proof_port, *sent);
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
        let FourTuple { local: from, remote: to } = flow.addresses;
        while let Some(LinkDatagram { bytes, ttl, tos }) = self.endpoint.take_returned(flow) {
            flow.count_by_kernel();
            self.outgoing.push(Wired { from, to, bytes, ttl, tos });
        }
    }

    /// A socket stays in the kernel from now on, or may have flows to it again.
    pub(super) fn keep_in_kernel(&mut self, socket: usize, stays: bool) {
        let port = self.sockets[socket].address.port();
        match stays {
            true => drop(self.known.lock().kernel_only.insert(port)),
            false => drop(self.known.lock().kernel_only.remove(&port)),
        }
        if stays {
            self.receiving(socket).iter().for_each(|flow| self.endpoint.give_back(flow));
        }
    }

    /// A process gets a child, which has its sockets as well: they are in the kernel from now on.
    pub(super) fn fork(&mut self) {
        for flow in self.opened.clone() {
            self.endpoint.close_sending(&flow);
            self.send_returned(&flow);
        }
        for socket in 0..self.sockets.len() {
            self.sockets[socket].accelerated = false;
            self.keep_in_kernel(socket, true);
        }
    }

    /// A program receives without waiting; one that sleeps has to be woken by its kernel first.
    pub(super) fn receive(&mut self, socket: usize, now: Instant) -> Option<Received> {
        if self.sockets[socket].asleep {
            return None;
        }
        let flows = self.receiving(socket);
        for flow in &flows {
            self.endpoint.keep_awake(flow);
            if let Some(LinkDatagram { bytes, ttl, tos }) = self.endpoint.receive_datagram(flow) {
                let FourTuple { local: to, remote: from } = flow.addresses;
                return Some(Received { datagram: Wired { from, to, bytes, ttl, tos }, by_link: true });
            }
        }
        if let Some(datagram) = self.sockets[socket].kernel.pop_front() {
            let Wired { from, to, .. } = datagram;
            // The newest flow of a source: an earlier one is over.
            if let Some(flow) = flows.iter().rfind(|flow| flow.addresses.remote == from) {
                flow.count_by_kernel();
            }
            *self.known.lock().sources.entry((to, from)).or_default() += 1;
            return Some(Received { datagram, by_link: false });
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
                self.outgoing.push(Wired::plain(local, to, record.to_vec()));
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
        let flows = self.receiving(socket);
        let may = flows.iter().filter(|flow| !self.endpoint.let_sleep(flow)).count() == 0;
        self.sockets[socket].asleep = may;
    }

    /// The kernel has a datagram for a socket, or for the library.
    pub(super) fn arrive(&mut self, datagram: Wired) {
        if datagram.to.port() == self.proof_port {
            return self.proofs.push_back(datagram);
        }
        let Some(socket) = self.sockets.iter_mut().find(|socket| socket.takes(datagram.to)) else { return };
        if socket.kernel.len() >= self.kernel_room {
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
                self.outgoing.push(Wired::plain(from, SocketAddr::new(remote.ip(), port), record.to_vec()));
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
        (!state.kernel.is_empty(), self.receiving(socket).iter().any(|flow| flow.has_more()))
    }
}

/// The address of a socket.
pub(super) fn address(host: usize, socket: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8 + 1], 5000 + socket as u16))
}
