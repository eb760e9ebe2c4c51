//! A flow on a link between two sockets of this process, whose devices are loopback devices: its proofs, and its end. And what the
//! kernel's sockets show of datagrams that are sent again.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use netacc_datagram::{Marks, Reclaimed};
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::{FourTuple, Instant};
use netacc_driver::loopback;
use netacc_driver::{Endpoint, EndpointConfig, Readiness, ReadySink, ReceivingFlow, SendingFlow, StreamCell};
use netacc_proto::{FlowProof, Reason};
use parking_lot::Mutex;

use super::*;
use crate::os::{processor, sockopt};

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
    let config = EndpointConfig { stall_patience: None, ..loopback::config(4) };
    Box::leak(Box::new(loopback::open(fabric.open(LoopbackConfig::erdma()), config, owner)))
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
    destination.flows.to_prove.lock().push(ToProve { flow: receiving.clone(), socket, source: from, counted: false });
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
        unsafe { outgoing.send(&self.to(), (pieces, bytes.len()), MARKS, 1) }
    }

    /// All messages that both ends have posted arrive.
    fn run(&self) {
        for _ in 0..4 {
            run(self.source.endpoint);
            run(self.destination.endpoint);
        }
    }
}

/// As no socket has them by itself.
const MARKS: Marks = Marks { ttl: 9, tos: 4 };

/// The next datagram that the kernel has for a socket whose control messages are all wanted, with what its IP header said.
fn receive_with_marks(kernel: &UdpSocket) -> Option<(Vec<u8>, Marks)> {
    let (mut bytes, mut control) = ([0u8; 100], [0u64; 16]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: buffers of these lengths.
    let n = unsafe { libc::recvmsg(kernel.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
    let mut marks = Marks::default();
    // SAFETY: the kernel has written the header.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(&header) };
    // SAFETY: the messages are those of the kernel.
    while let Some(message) = unsafe { at.as_ref() } {
        // SAFETY: the kernel's values are at least a byte long, the lowest of an integer.
        let value = unsafe { *libc::CMSG_DATA(message) };
        match (message.cmsg_level, message.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => marks.ttl = value,
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => marks.tos = value,
            _ => {}
        }
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(&header, at) };
    }
    usize::try_from(n).ok().map(|n| (bytes[..n].to_vec(), marks))
}

/// The socket says what IP headers say.
fn want_marks(kernel: &UdpSocket) {
    let options = match kernel.local_addr().expect("it is bound") {
        SocketAddr::V4(_) => [(libc::IPPROTO_IP, libc::IP_RECVTTL), (libc::IPPROTO_IP, libc::IP_RECVTOS)],
        SocketAddr::V6(_) => {
            [(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT), (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)]
        }
    };
    options.into_iter().for_each(|(level, option)| sockopt::set_int(kernel.as_raw_fd(), level, option, 1));
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
            ends.source.socket.leave_to_kernel(ends.source.fd());
            ended.store(true, Ordering::Relaxed);
        });
        run(far);
        let by_kernel = ends.destination.receive().map(|(bytes, _)| bytes);
        let by_link = far.receive_datagram(&ends.receiving).map(|datagram| datagram.bytes);
        let last = Some(b"last".to_vec());
        assert_eq!((by_kernel, by_link), if sleeps { (last, None) } else { (None, last) });
    }
}

// Breaks if what is taken back from a ring goes by the kernel with another TTL or TOS than the program has asked for.
#[test]
fn what_is_taken_back_keeps_what_its_ip_header_says() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let [from, to] = [(); 2].map(|()| UdpSocket::bind(address).expect("an address"));
        want_marks(&to);
        let (outgoing, counts) = (Outgoing::default(), Counts::default());
        counts.tx_link.store(2, Ordering::Relaxed);
        let reclaimed = [b"a", b"b"].map(|bytes| Reclaimed { bytes: bytes.to_vec(), marks: MARKS });
        let address = Address::from(to.local_addr().expect("it is bound"));
        outgoing.resend(from.as_raw_fd(), &address, &reclaimed, &counts);
        for Reclaimed { bytes, marks } in reclaimed {
            assert_eq!(receive_with_marks(&to), Some((bytes, marks)));
        }
    }
}

/// A flow on which one datagram is under way, to a receiver that wants to know what IP headers say.
fn under_way() -> Ends {
    let ends = granted();
    want_marks(&ends.destination.kernel);
    ends.open();
    assert_eq!(ends.send(&mut ends.source.socket.outgoing(), b"first"), Way::Link);
    ends
}

// Breaks if a link loses what the sender says of a datagram's IP header.
#[test]
fn a_datagram_on_a_link_says_what_its_ip_header_would() {
    let ends = under_way();
    ends.run();
    let mut incoming = ends.destination.socket.incoming();
    let taken = incoming.take(false).expect("it has come");
    assert_eq!(incoming.values(&taken, || 0, None).marks, MARKS);
}

// Breaks if a datagram by the kernel overtakes one that a sleeper has returned, or if that is lost, or changed.
#[test]
fn what_a_sleeper_returns_goes_before_the_next_by_the_kernel() {
    let ends = under_way();
    assert!(ends.destination.endpoint.let_sleep(&ends.receiving), "it has not seen the datagram");
    ends.run();
    let (mut outgoing, counts, to) = (ends.source.socket.outgoing(), Counts::default(), ends.to());
    counts.tx_link.store(1, Ordering::Relaxed);
    assert_eq!(ends.send(&mut outgoing, b"second"), Way::Kernel);
    outgoing.resend_reclaimed(ends.source.fd(), &to, &counts);
    assert_eq!(receive_with_marks(&ends.destination.kernel), Some((b"first".to_vec(), MARKS)));
    assert_eq!(receive_with_marks(&ends.destination.kernel), None, "once");
    let moved = [&counts.tx_link, &counts.tx_kernel, &counts.taken_back].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(moved, [0, 1, 1]);
}

// Breaks if what is on a link to a socket that gets another holder is lost, or received by the former one as well.
#[test]
fn what_is_on_a_link_to_a_shared_socket_is_the_senders() {
    let ends = under_way();
    ends.run();
    assert_eq!(ends.destination.socket.give_back(), []);
    ends.run();
    let counts = Counts::default();
    counts.tx_link.store(1, Ordering::Relaxed);
    ends.source.socket.outgoing().follow_link(ends.source.fd(), &ends.to(), &ends.sending, &counts);
    assert_eq!(receive_with_marks(&ends.destination.kernel), Some((b"first".to_vec(), MARKS)));
    assert!(ends.destination.socket.incoming().take(false).is_none());
}

fn counted(flows: &Flows) -> u64 {
    let count = flows.counted(std::iter::empty()).into_iter().find(|(name, _)| *name == "datagram_flows");
    count.expect("a counter").1
}

// Breaks if a flow is counted that is granted, never proven, and so made again, or if one is counted for each of its proofs.
#[test]
fn a_flow_is_counted_once_it_is_proven() {
    let ends = granted();
    assert_eq!(counted(&ends.destination.flows), 0);
    let proof = ends.proof();
    for _ in 0..2 {
        assert!(ends.prove_source(ends.source.address(), &proof).is_some());
        assert_eq!(counted(&ends.destination.flows), 1);
    }
}

/// Lets the calling thread run on one processor only, and returns it.
fn stay_on_one_processor() -> u32 {
    let here = processor::current().expect("a processor");
    // SAFETY: all-zero is the empty set, and the rest has its length.
    unsafe {
        let mut only: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(here as usize, &mut only);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&only), &only), 0);
    }
    here
}

//= spec §10.4.5
//= type=test
//# A receiver on the same processor does not spin for the flow's next datagram, because the sender could not run
//# meanwhile.
#[test]
fn a_receiver_stands_in_the_way_of_a_sender_on_its_processor() {
    let here = stay_on_one_processor();
    let socket = Datagram::default();
    assert!(!socket.stands_in_senders_way());
    for (processor, stands) in [(Some(here), true), (Some(here + 1), false), (Some(here), true), (None, false)] {
        socket.learn_sender(processor);
        assert_eq!(socket.stands_in_senders_way(), stands, "{processor:?}");
    }
}
