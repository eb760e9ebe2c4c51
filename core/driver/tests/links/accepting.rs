//! Streams are to be promoted before the peer's program has accepted their connections.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig};
use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig, LoopbackDevice};
use netacc_device::middleware::Event;
use netacc_device::{Directory, DirectoryError, FourTuple, Instant, Obstacle, PeerAddress};
use netacc_driver::{Endpoint, StreamCell};
use netacc_proto::{Reason, Role};

use crate::common::{connect, run, tuple, Deaf};
use crate::endpoints::{endpoint, finding};

/// Counts the lookups. Whoever is not found has not accepted.
struct Counting {
    device: Arc<LoopbackDevice>,
    lookups: AtomicU32,
    /// What other threads do during the next lookup.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Counting {
    fn endpoint(fabric: &Fabric) -> (Endpoint, Arc<Counting>) {
        let device = fabric.open(LoopbackConfig::shm());
        let directory =
            Arc::new(Counting { device: device.clone(), lookups: AtomicU32::new(0), meanwhile: Mutex::default() });
        (finding(device, Some(directory.clone()), |_: &Event| {}, Deaf), directory)
    }

    /// Those since the last call.
    fn take(&self) -> u32 {
        self.lookups.swap(0, Ordering::Relaxed)
    }
}

impl Directory for Counting {
    fn publish(&self, tuple: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
        self.device.publish(tuple, stream)
    }
    fn withdraw(&self, tuple: &FourTuple, stream: u32) {
        self.device.withdraw(tuple, stream);
    }
    fn lookup(&self, tuple: &FourTuple) -> Option<(PeerAddress, u32)> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let meanwhile = self.meanwhile.lock().expect("no test panics here").take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        self.device.lookup(tuple)
    }
    fn obstacle(&self, _: &FourTuple, _: bool) -> Option<Obstacle> {
        Some(Obstacle::NotAccepted)
    }
}

/// Connections that no program has accepted: the openers' streams.
fn unaccepted(client: &Endpoint, ports: std::ops::Range<u16>) -> Vec<Arc<StreamCell>> {
    let open = |port| client.adopt(Role::Opener, tuple(port), Box::new(anchor_pair(AnchorConfig::default()).0));
    ports.map(open).collect()
}

fn accept(server: &Endpoint, port: u16) -> Arc<StreamCell> {
    let (_, far, _wire) = anchor_pair(AnchorConfig::default());
    let cell = server.adopt(Role::Acceptor, tuple(port).reversed(), Box::new(far));
    server.publish(&cell);
    cell
}

/// Calls `progress` each time that it wants to be called, up to `end`. Returns how often.
fn pass_time(client: &Endpoint, begin: Instant, end: Instant) -> u32 {
    let next = |at: &Instant| client.progress(*at).filter(|next| *next <= end);
    std::iter::successors(Some(begin), next).count() as u32
}

fn backlog(client: &Endpoint, kind: &str) -> usize {
    client.backlog().into_iter().find(|(name, _)| *name == kind).expect("one of the lists").1
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

/// Breaks if a connection stayed on TCP because its program asked too early, until it asks again.
#[test]
fn a_stream_gets_its_link_once_its_connection_is_accepted() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, directory), server) = (Counting::endpoint(&fabric), endpoint(&fabric));
    let (a, b, _wire) = anchor_pair(AnchorConfig::default());
    let near = &client.adopt(Role::Opener, tuple(41_000), Box::new(a));
    assert_eq!(client.promote(near), Err(Reason::PeerNotAccepted));
    assert_eq!(client.promote(near), Err(Reason::PeerNotAccepted), "it waits already");
    pass_time(&client, at(0), at(500));
    // Ever more rarely.
    assert!((5..20).contains(&directory.take()));
    assert_eq!((backlog(&client, "unaccepted"), backlog(&client, "waiting")), (1, 0));
    let far = server.adopt(Role::Acceptor, tuple(41_000).reversed(), Box::new(b));
    server.publish(&far);
    pass_time(&client, at(500), at(1100));
    run([&client, &server]);
    assert!(near.lock(&client).proto().is_linked() && far.lock(&server).proto().is_linked());
    assert_eq!((backlog(&client, "unaccepted"), backlog(&client, "waiting")), (0, 0));
}

/// Breaks if the cost of a turn grew with the number of connections that wait, or if connections that are accepted at once
/// were found one by one.
#[test]
fn a_turn_looks_up_few_that_were_not_accepted_and_all_that_were() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, directory), server) = (Counting::endpoint(&fabric), endpoint(&fabric));
    let crowd = unaccepted(&client, 42_000..42_500);
    crowd.iter().for_each(|near| client.enqueue_new(near));
    assert_eq!(directory.take(), 1, "the others come after it");
    client.progress(at(0));
    assert_eq!(directory.take(), 0, "that was just now");
    client.progress(at(1));
    assert_eq!(directory.take(), 4);
    let accepted: Vec<_> = (42_000..42_500).map(|port| accept(&server, port)).collect();
    client.progress(at(3));
    assert_eq!(directory.take(), 500);
    assert_eq!(backlog(&client, "unaccepted"), 0);
    assert_eq!((accepted.len(), backlog(&client, "waiting")), (500, 500));
}

/// Breaks if connections that are never accepted kept those behind them on TCP, whichever these are.
#[test]
fn connections_that_others_overtake_do_not_stop_them() {
    for ports in [43_020..43_040, 43_000..43_020] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let ((client, _), server) = (Counting::endpoint(&fabric), endpoint(&fabric));
        let crowd = unaccepted(&client, 43_000..43_040);
        crowd.iter().for_each(|near| client.enqueue_new(near));
        client.progress(at(0));
        let accepted: Vec<_> = ports.map(|port| accept(&server, port)).collect();
        pass_time(&client, at(1), at(100));
        assert_eq!((accepted.len(), backlog(&client, "waiting")), (20, 20));
        assert_eq!(backlog(&client, "unaccepted"), 20);
    }
}

/// Breaks if a process went on looking for a peer that does not accept, or for one of a connection that is closed.
#[test]
fn the_search_ends() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, directory), server) = (Counting::endpoint(&fabric), endpoint(&fabric));
    let crowd = unaccepted(&client, 44_000..44_020);
    crowd.iter().for_each(|near| client.enqueue_new(near));
    pass_time(&client, at(0), at(20_000));
    assert_eq!(backlog(&client, "unaccepted"), 0);
    assert!(directory.take() < 4 * 25);
    assert_eq!(client.progress(at(20_000)), None, "no timer is left");

    crowd.iter().for_each(|near| client.enqueue_new(near));
    crowd.iter().for_each(|near| client.forget(near));
    assert_eq!(backlog(&client, "unaccepted"), 0);
    drop(crowd);
    // Another one has the number of one that has gone.
    let (near, far) = connect(&client, &server, 44_100);
    server.forget(&far);
    client.enqueue_new(&near);
    directory.take();
    client.progress(at(20_001));
    client.progress(at(20_002));
    assert_eq!((directory.take(), backlog(&client, "unaccepted")), (1, 1));
}

/// Breaks if a connection that asks again, as its operations do, delayed the next lookup, or brought it forward; or if a new one
/// had to wait as long as those before it.
#[test]
fn the_next_lookup_is_soon_for_new_connections_alone() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, directory) = Counting::endpoint(&fabric);
    let crowd = unaccepted(&client, 45_000..45_003);
    assert_eq!(client.promote(&crowd[0]), Err(Reason::PeerNotAccepted));
    let begun = client.progress(at(0));
    assert_eq!(begun, Some(at(1)));
    let half = Instant::ZERO + Duration::from_micros(500);
    assert_eq!(client.promote(&crowd[1]), Err(Reason::PeerNotAccepted));
    assert_eq!(client.progress(half), begun, "it does not put the others off");
    pass_time(&client, at(1), at(5500));
    let late = client.progress(at(5500)).expect("they wait");
    assert!(late > at(5600), "{late:?}");
    directory.take();
    assert_eq!(client.promote(&crowd[1]), Err(Reason::PeerNotAccepted));
    assert_eq!(directory.take(), 1);
    assert_eq!(client.progress(at(5501)), Some(late), "it waits already");
    assert_eq!(client.promote(&crowd[2]), Err(Reason::PeerNotAccepted));
    assert_eq!(client.progress(at(5501)), Some(at(5502)), "it may be accepted in a moment");
    directory.take();
    client.progress(at(5502));
    assert_eq!(directory.take(), 3, "each once");
}

/// Breaks if those that are accepted late, one after the other, were given up, or found only after the pause that grew meanwhile.
#[test]
fn a_service_that_accepts_slowly_is_not_given_up() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, directory), server) = (Counting::endpoint(&fabric), endpoint(&fabric));
    let crowd = unaccepted(&client, 46_000..46_003);
    crowd.iter().for_each(|near| client.enqueue_new(near));
    // Another service accepts none.
    let silent = FourTuple { remote: ([127, 0, 0, 1], 7000).into(), ..tuple(46_100) };
    let silent = client.adopt(Role::Opener, silent, Box::new(anchor_pair(AnchorConfig::default()).0));
    client.enqueue_new(&silent);
    let mut accepted = Vec::new();
    let mut begin = at(0);
    for (port, seconds) in (46_000..46_003).zip([6, 12, 18]) {
        pass_time(&client, begin, at(seconds * 1000));
        accepted.push(accept(&server, port));
        begin = at(seconds * 1000 + 1000);
        let found = accepted.len();
        let next = client.progress(begin);
        assert_eq!(backlog(&client, "waiting"), found, "{seconds}");
        let soon = Some(begin + Duration::from_millis(1));
        assert!(found == 3 || next == soon, "the next may have been accepted, too: {next:?}");
    }
    assert_eq!(backlog(&client, "unaccepted"), 0, "the other one was given up");
    pass_time(&client, begin, at(20_000));
    // Nobody is before a later one.
    directory.take();
    let later = unaccepted(&client, 46_003..46_004);
    client.enqueue_new(&later[0]);
    assert_eq!((directory.take(), backlog(&client, "unaccepted")), (1, 1));
}

/// Breaks if giving one service up gave up the connections to another one, or if one that accepts none delayed those to another.
#[test]
fn services_are_given_up_one_by_one() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, directory), server) = (Counting::endpoint(&fabric), endpoint(&fabric));
    let silent = FourTuple { remote: ([127, 0, 0, 1], 7000).into(), ..tuple(47_100) };
    let silent = client.adopt(Role::Opener, silent, Box::new(anchor_pair(AnchorConfig::default()).0));
    client.enqueue_new(&silent);
    pass_time(&client, at(0), at(6000));
    let crowd = unaccepted(&client, 47_000..47_001);
    directory.take();
    client.enqueue_new(&crowd[0]);
    assert_eq!(directory.take(), 1, "no other one of its service waits");
    pass_time(&client, at(6000), at(13_000));
    assert_eq!(backlog(&client, "unaccepted"), 1, "the first one alone is given up");
    let _far = accept(&server, 47_000);
    pass_time(&client, at(13_000), at(15_000));
    assert_eq!((backlog(&client, "unaccepted"), backlog(&client, "waiting")), (0, 1));
}

/// Breaks if a connection that is closed while it is looked up waited on.
#[test]
fn a_connection_may_be_closed_while_it_is_looked_up() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (client, directory) = Counting::endpoint(&fabric);
    let client: &'static Endpoint = Box::leak(Box::new(client));
    let [near] = &unaccepted(client, 48_000..48_001)[..] else { panic!("one was opened") };
    client.enqueue_new(near);
    client.progress(at(0));
    let closed = near.clone();
    *directory.meanwhile.lock().expect("no test panics there") = Some(Box::new(move || client.forget(&closed)));
    assert_eq!(client.progress(at(1)), None, "nothing is left to look up");
}
