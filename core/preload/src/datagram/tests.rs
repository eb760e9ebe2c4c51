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
use netacc_proto::{CacheConfig, Reason, RECORD_LEN};
use parking_lot::Mutex;

use super::*;

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

    fn flow_offered(&self, _: &FourTuple) -> Result<(), Reason> {
        Ok(())
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
    let nonce = AtomicU64::new(1);
    let draw = Box::new(move || u128::from(nonce.fetch_add(1, Ordering::Relaxed)).to_le_bytes());
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
    socket: Datagram,
    endpoint: &'static Endpoint,
}

impl End {
    fn new(endpoint: &'static Endpoint) -> End {
        let kernel = UdpSocket::bind("127.0.0.1:0").expect("an address");
        kernel.set_nonblocking(true).expect("a socket");
        End { kernel, socket: Datagram::default(), endpoint }
    }

    fn address(&self) -> SocketAddr {
        self.kernel.local_addr().expect("it is bound")
    }

    fn fd(&self) -> c_int {
        self.kernel.as_raw_fd()
    }

    fn take_proofs(&self) -> bool {
        self.socket.take_proofs(self.fd(), &self.socket.incoming()).expect("no error")
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
    let sending = source.endpoint.open_flow(destination.endpoint.cm().address(), addresses);
    for _ in 0..20 {
        run(source.endpoint);
        run(destination.endpoint);
    }
    let receiving = owner.0.lock().pop().expect("granted");
    source.socket.expect_proofs(Proven::Destination(sending.clone()));
    let origin = Origin { source: Address::from(source.address()), messages: None };
    let link = Linked::new(receiving.clone(), destination.endpoint, origin);
    assert!(destination.socket.attach_link(link, Proven::Source(destination.endpoint, receiving.clone())));
    Ends { source, destination, sending, receiving }
}

impl Ends {
    fn to(&self) -> Address {
        Address::from(self.destination.address())
    }

    fn send_proof(&self) -> [u8; RECORD_LEN] {
        let proof = self.sending.poll_proof(Instant::from_nanos(1)).expect("due once it is granted");
        proofs::send(self.source.fd(), &self.to(), &proof);
        proof
    }

    /// Datagrams take it.
    fn open(&self) {
        self.send_proof();
        assert!(self.destination.take_proofs());
        assert!(self.source.take_proofs());
        self.destination.endpoint.keep_awake(&self.receiving);
        run(self.source.endpoint);
        let mut outgoing = self.source.socket.outgoing();
        let to = self.to();
        while self.send(&mut outgoing, b"") != Way::KernelThenRequest {}
        assert!(outgoing.place_on_link(&to, self.source.endpoint, &self.sending));
    }

    fn send(&self, outgoing: &mut Outgoing, bytes: &[u8]) -> Way {
        let pieces = std::iter::once((bytes.as_ptr(), bytes.len()));
        // SAFETY: readable.
        unsafe { outgoing.send(&self.to(), (pieces, bytes.len()), Marks { ttl: 64, tos: 0 }, 1) }
    }
}

// Breaks if a program sees a proof, does not see a datagram that is none, or if a proof is not answered.
#[test]
fn proofs_are_taken_and_answered() {
    let ends = granted();
    let proof = ends.send_proof();
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("an address");
    for bytes in [&b"a datagram"[..], &[7; RECORD_LEN]] {
        ends.source.kernel.send_to(bytes, ends.destination.address()).expect("sent");
    }
    stranger.send_to(&proof, ends.destination.address()).expect("sent");
    assert!(ends.destination.take_proofs());
    assert!(!ends.destination.take_proofs(), "a datagram is in front");
    let source = ends.source.address();
    assert_eq!(ends.destination.receive(), Some((b"a datagram".to_vec(), source)));
    assert!(!ends.destination.take_proofs(), "of a proof's length");
    assert_eq!(ends.destination.receive(), Some((vec![7; RECORD_LEN], source)));
    assert!(!ends.destination.take_proofs(), "from another address");
    assert_eq!(ends.destination.receive().map(|(bytes, _)| bytes), Some(proof.to_vec()));
    assert!(!ends.sending.is_open());
    assert!(ends.source.take_proofs());
    assert_eq!(ends.source.receive(), None);
    run(ends.source.endpoint);
    assert!(ends.sending.is_open());
}

// Breaks if a program with little room sees a part of a proof, or a datagram that begins otherwise is taken for one.
#[test]
fn parts_of_proofs_are_recognised() {
    let ends = granted();
    let proof = ends.send_proof();
    let from = Address::from(ends.source.address());
    let recognise = |bytes: &[u8], len| ends.destination.socket.incoming().recognise(&from, &Suspect { bytes, len });
    assert_eq!(recognise(&proof[..2], RECORD_LEN), Some(Proof::Taken));
    assert_eq!(recognise(&proof[..2], RECORD_LEN - 1), None);
    assert_eq!(recognise(&[!proof[0], proof[1]], RECORD_LEN), None);
    assert!(matches!(recognise(&proof, RECORD_LEN), Some(Proof::Answered(_))));
}

// Breaks if the helper takes what a thread is about to receive, or leaves a proof to a program that does not receive.
#[test]
fn proofs_are_dropped_for_a_program_that_does_not_receive() {
    let ends = granted();
    let End { socket, kernel, .. } = &ends.destination;
    let fd = kernel.as_raw_fd();
    ends.send_proof();
    socket.drop_proofs(fd);
    socket.may_prove();
    let receiving = socket.receive_alone();
    socket.drop_proofs(fd);
    drop(receiving);
    assert!(ends.destination.take_proofs(), "it is still there");
    let again = ends.sending.poll_proof(Instant::from_nanos(u64::MAX / 2)).expect("it is repeated");
    proofs::send(ends.source.fd(), &ends.to(), &again);
    socket.drop_proofs(fd);
    assert_eq!(ends.destination.receive(), None);
    proofs::send(ends.source.fd(), &ends.to(), &[1; RECORD_LEN]);
    socket.drop_proofs(fd);
    assert!(ends.destination.receive().is_some(), "a datagram of the program's");
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
