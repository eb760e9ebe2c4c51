//! A flow on a link between two sockets of this process, whose devices are loopback devices: its proofs, and its end.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_datagram::Marks;
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::{FourTuple, Instant};
use netacc_driver::{Endpoint, EndpointConfig, Readiness, ReadySink, ReceivingFlow, SendingFlow, Sharing, StreamCell};
use netacc_proto::{CacheConfig, FlowProof, Reason};
use parking_lot::Mutex;

use super::*;

/// Where the libraries receive proofs: the source's, and the destination's.
const PROOF_PORTS: [u16; 2] = [901, 902];

#[derive(Clone, Default)]
struct Owner(Arc<Mutex<Vec<Arc<ReceivingFlow>>>>);

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

    fn flow_offered(&self, _: &FourTuple) -> Result<u16, Reason> {
        Ok(PROOF_PORTS[1])
    }

    fn flow_granted(&self, flow: &Arc<ReceivingFlow>) {
        self.0.lock().push(flow.clone());
    }
}

fn endpoint(fabric: &Fabric, owner: Owner) -> &'static Endpoint {
    let device = fabric.open(LoopbackConfig::erdma());
    let config = EndpointConfig {
        ring_len: 4096,
        message_len: 1024,
        sharing: Sharing::UpTo(4),
        receive_depth: 64,
        cache: CacheConfig { expire: Some(Duration::from_secs(1)), max_all: 4, max_per: 4 },
        trust_hints: true,
        key: None,
        stall_patience: None,
        idle_after: netacc_driver::IDLE_AFTER,
    };
    static NONCE: AtomicU64 = AtomicU64::new(1);
    let draw = Box::new(|| u128::from(NONCE.fetch_add(1, Ordering::Relaxed)).to_le_bytes());
    let made = Endpoint::new(device.clone(), device.clone(), device, config, Arc::new(owner), Box::new(|| {}), draw);
    Box::leak(Box::new(made.expect("a loopback device has queues")))
}

fn run(endpoint: &Endpoint) {
    endpoint.progress(Instant::from_nanos(1));
    endpoint.poll(endpoint.default_cq());
}

/// One end of the flow.
struct End {
    kernel: UdpSocket,
    socket: Arc<Datagram>,
    endpoint: &'static Endpoint,
    flows: Flows,
}

impl End {
    fn new(endpoint: &'static Endpoint) -> End {
        let kernel = UdpSocket::bind("127.0.0.1:0").expect("an address");
        kernel.set_nonblocking(true).expect("a socket");
        End { kernel, socket: Arc::default(), endpoint, flows: Flows::default() }
    }

    fn address(&self) -> SocketAddr {
        self.kernel.local_addr().expect("it is bound")
    }

    fn fd(&self) -> c_int {
        self.kernel.as_raw_fd()
    }

    /// The next datagram of the kernel's.
    fn receive(&self) -> Option<(Vec<u8>, SocketAddr)> {
        let mut bytes = [0; 100];
        self.kernel.recv_from(&mut bytes).ok().map(|(n, from)| (bytes[..n].to_vec(), from))
    }
}

struct Ends {
    source: End,
    destination: End,
    sending: Arc<SendingFlow>,
    receiving: Arc<ReceivingFlow>,
}

/// A flow that is granted.
fn granted() -> Ends {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let owner = Owner::default();
    let source = End::new(endpoint(&fabric, Owner::default()));
    let destination = End::new(endpoint(&fabric, owner.clone()));
    let addresses = FourTuple { local: source.address(), remote: destination.address() };
    let sending = source.endpoint.open_flow(destination.endpoint.cm().address(), addresses, PROOF_PORTS[0], 0);
    for _ in 0..20 {
        run(source.endpoint);
        run(destination.endpoint);
    }
    let receiving = owner.0.lock().pop().expect("granted");
    let (to, from) = (Address::from(destination.address()), Address::from(source.address()));
    let socket = Arc::downgrade(&source.socket);
    source.flows.on_links.lock().push(OnLink { flow: sending.clone(), socket, to, counted: false });
    let link = Linked::new(receiving.clone(), destination.endpoint, Origin { source: from, messages: None });
    assert!(destination.socket.attach_link(link));
    let socket = Arc::downgrade(&destination.socket);
    destination.flows.to_prove.lock().push(ToProve { flow: receiving.clone(), socket, source: from });
    Ends { source, destination, sending, receiving }
}

impl Ends {
    fn to(&self) -> Address {
        Address::from(self.destination.address())
    }

    fn proof(&self) -> FlowProof {
        self.sending.poll_proof(Instant::from_nanos(1)).expect("due once it is granted")
    }

    /// Brings the destination's library a proof. The answer.
    fn prove_source(&self, source: SocketAddr, proof: &FlowProof) -> Option<FlowProof> {
        let End { flows, endpoint, .. } = &self.destination;
        match flows.handle_proof(endpoint, source, &proof.record)? {
            Proven::Source { answer, socket, address } => {
                assert!(Arc::ptr_eq(&socket, &self.destination.socket));
                assert_eq!(address.socket_addr(), Some(self.source.address()));
                Some(answer)
            }
            Proven::Destination => None,
        }
    }

    /// Brings the source's library an answer. Whether it is one.
    fn prove_destination(&self, destination: SocketAddr, answer: &FlowProof) -> bool {
        let End { flows, endpoint, .. } = &self.source;
        matches!(flows.handle_proof(endpoint, destination, &answer.record), Some(Proven::Destination))
    }

    /// Datagrams take it.
    fn open(&self) {
        let answer = self.prove_source(self.source.address(), &self.proof()).expect("the source's");
        assert!(self.prove_destination(self.destination.address(), &answer));
        self.destination.endpoint.keep_awake(&self.receiving);
        run(self.source.endpoint);
        let mut outgoing = self.source.socket.outgoing();
        let to = self.to();
        while self.send(&mut outgoing, b"") != Way::KernelThenRequest {}
        assert!(outgoing.place_on_link(&to, self.source.endpoint, |_| self.sending.clone()).is_some());
    }

    fn send(&self, outgoing: &mut Outgoing, bytes: &[u8]) -> Way {
        let pieces = std::iter::once((bytes.as_ptr(), bytes.len()));
        // SAFETY: readable.
        unsafe { outgoing.send(&self.to(), (pieces, bytes.len()), Marks { ttl: 64, tos: 0 }, 1) }
    }
}

//= spec §10.7.5
//= type=test
//# The library of a side believes a proof only from the address of the other side's socket.
// Breaks if a process proves an address that it does not have, or a flow that is not its own.
#[test]
fn proofs_are_believed_from_the_flows_addresses_only() {
    let ends = granted();
    let proof = ends.proof();
    assert_eq!(proof.port, PROOF_PORTS[1]);
    let (source, destination) = (ends.source.address(), ends.destination.address());
    let stranger = SocketAddr::new(source.ip(), 9);
    let guess = FlowProof { record: [7; 48], ..proof };
    assert_eq!(ends.prove_source(stranger, &proof), None, "from another address");
    assert_eq!(ends.prove_source(source, &guess), None, "without the nonce");
    let answer = ends.prove_source(source, &proof).expect("the source's");
    assert_eq!(answer.port, PROOF_PORTS[0]);
    run(ends.source.endpoint);
    for (from, answer) in [(stranger, &answer), (destination, &proof), (destination, &guess)] {
        assert!(!ends.prove_destination(from, answer));
        assert!(!ends.sending.is_open());
    }
    assert!(ends.prove_destination(destination, &answer));
    assert!(ends.sending.is_open());
}

//= spec §10.6.6
//= type=test
//# So it keeps its socket until then, unless the receiver does not answer.
// Breaks if a datagram is lost, or doubled, that is under way when its sender closes its socket.
#[test]
fn what_is_under_way_at_the_end_of_a_socket_is_sent_again() {
    for (sleeps, answers) in [(true, true), (false, true), (false, false)] {
        let ends = granted();
        ends.open();
        let mut outgoing = ends.source.socket.outgoing();
        assert_eq!(ends.send(&mut outgoing, b"last"), Way::Link);
        drop(outgoing);
        let far = ends.destination.endpoint;
        let ended = AtomicBool::new(!answers);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.sending.is_closed() {}
                if sleeps {
                    assert!(far.let_sleep(&ends.receiving), "it has not seen the datagram");
                }
                while !ended.load(Ordering::Relaxed) {
                    run(far);
                }
            });
            ends.source.socket.leave_to_kernel(KernelOnly::Ended, ends.source.fd());
            ended.store(true, Ordering::Relaxed);
        });
        run(far);
        let by_kernel = ends.destination.receive().map(|(bytes, _)| bytes);
        let by_link = far.receive_datagram(&ends.receiving).map(|datagram| datagram.bytes);
        let last = Some(b"last".to_vec());
        assert_eq!((by_kernel, by_link), if sleeps { (last, None) } else { (None, last) });
    }
}

/// Breaks if a socket had rings again although it was given away once more, or is the kernel's for another reason, or for good.
#[test]
fn a_shared_socket_comes_back_if_nothing_else_keeps_it_in_the_kernel() {
    let shared = |family| {
        let socket = Datagram::default();
        socket.share(family, false);
        socket
    };
    let socket = shared(Some(7));
    let seen = socket.shares().expect("the others may leave it");
    socket.share(Some(7), false);
    assert!(!socket.unshare(seen), "one more has got it");
    let seen = socket.shares().expect("as before");
    assert!(socket.unshare(seen) && !socket.is_kernel_only());
    assert_eq!(socket.shares(), None, "it is not shared");

    let confined = shared(Some(7));
    let seen = confined.shares().expect("as before");
    drop(confined.leave_to_kernel(KernelOnly::Confined, -1));
    assert!(!confined.unshare(seen) && confined.shares().is_none());
    assert_eq!(confined.kernel_only(), Some(KernelOnly::Confined));
    confined.share(Some(7), false);
    assert_eq!(confined.kernel_only(), Some(KernelOnly::Confined), "that stays");

    assert_eq!(shared(None).shares(), None, "processes that are entered nowhere may have it");
    assert!(Datagram::inherited_from(&shared(Some(7))).shares().is_some());
    let watched = shared(Some(7));
    watched.share(Some(7), true);
    assert_eq!(Datagram::inherited_from(&watched).shares(), None, "an inherited instance watches it");
}

/// Breaks if the holders were looked up at each datagram, or never again.
#[test]
fn the_holders_are_looked_up_after_as_many_datagrams_again() {
    let socket = Datagram::default();
    socket.share(Some(7), false);
    let mut at = Vec::new();
    for call in 1..=20_000 {
        if socket.count_kernel_call() {
            socket.postpone_lookup();
            at.push(call);
        }
    }
    assert_eq!(at, [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 12_288, 16_384]);
}
