//! Ping-pong on a queue pair of its own: the device and our binding of it, and nothing else of ours.
//!
//! The peer's requests and data are untrusted: they decide how long this side waits, and nothing more.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netacc_config::Config;
use netacc_device::{
    CmEvent, Completion, CompletionQueueId, ConnectionId, ConnectionManager, Device, Operation, Payload, PeerAddress,
    PostError, QueuePairId, Receives, Region, RemoteRegion, WorkCompletion, WorkRequest, WorkRequestId,
};
use netacc_registry::{open_raw, raw_peer_address, Raw};
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use super::measured::Latencies;
use super::{LatError, MAX_SIZE};

/// No answer takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The number of polls of memory or completions between two checks of the clock and of the link.
const SPINS: u32 = 1 << 14;

/// The number of polls after which this thread yields the processor: a software device needs it, too.
const TURN: u32 = 1 << 7;

/// How long the end of a link may go unnoticed while this side has nothing to do.
const LOOK_AGAIN_MS: u8 = 100;

/// Posted receives. One message is in flight at a time.
const RECEIVES: u32 = 16;

/// Round trips that are not measured, at most, and about the bytes that they may have.
const WARM_UP: u32 = 100;
const WARM_UP_BYTES: u32 = 64 << 20;

/// The way in which the peer notices a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It polls its memory.
    Write = 1,
    /// It takes a completion.
    Message = 2,
    /// It takes a completion, and each message is placed in the memory of its receive.
    Send = 3,
    /// It does nothing: the client has several messages in flight and takes their completions.
    Writes = 4,
}

impl Kind {
    fn receives(self) -> Receives {
        match self {
            Kind::Write | Kind::Message | Kind::Writes => Receives::Empty,
            Kind::Send => Receives::FirstRegion,
        }
    }
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) kind: Kind,
    pub(super) size: u32,
    pub(super) count: u32,
}

impl Task {
    fn encode(self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[0] = self.kind as u8;
        bytes[1..5].copy_from_slice(&self.size.to_le_bytes());
        bytes[5..9].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Task> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let kind = match bytes.first()? {
            1 => Kind::Write,
            2 => Kind::Message,
            3 => Kind::Send,
            4 => Kind::Writes,
            _ => return None,
        };
        let task = Task { kind, size: word(1)?, count: word(5)? };
        ((1..=MAX_SIZE).contains(&task.size) && (1..=100_000_000).contains(&task.count)).then_some(task)
    }

    /// Round trips before the first that is measured.
    fn warm_up(self) -> u64 {
        u64::from((WARM_UP_BYTES / self.size).clamp(1, WARM_UP))
    }

    /// Bytes of a region: whole words. The last word shows that a message is complete.
    fn region_len(self) -> usize {
        (self.size as usize).next_multiple_of(8)
    }
}

/// The client, and its request.
type Client = (ConnectionId, Task);

/// The client whose turn is next. Most often it is the one that is being answered, with its next task: it has ended the
/// last one, and the event for that may not have arrived.
#[derive(Default)]
struct Waiting(Cell<Option<Client>>);

impl Waiting {
    /// Handles events of clients other than the one that is being answered.
    fn handle_other(&self, cm: &dyn ConnectionManager, event: &CmEvent) {
        match event {
            CmEvent::Request { id, private_data, .. } => match Task::decode(private_data) {
                Some(task) if self.0.get().is_none() => self.0.set(Some((*id, task))),
                _ => cm.reject(*id),
            },
            CmEvent::Failed { id, .. } if self.0.get().is_some_and(|(waiting, _)| waiting == *id) => self.0.set(None),
            _ => {}
        }
    }
}

/// A queue pair, which ends with this.
struct Pair<'a> {
    raw: &'a Raw,
    qp: QueuePairId,
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        self.raw.device.destroy_qp(self.qp);
    }
}

/// A connected queue pair, with the memory and counters to send and receive on it.
struct Link<'a> {
    pair: Pair<'a>,
    cq: CompletionQueueId,
    task: Task,
    local: Region,
    remote: RemoteRegion,
    /// The memory of messages that are not sent inline.
    staging: Region,
    waiting: &'a Waiting,
    /// Messages that have arrived and were not awaited yet: any poll may find them.
    arrived: Cell<u32>,
    /// Completions of messages that were sent, which were not awaited yet.
    sent: Cell<u32>,
}

/// Measures, from our address `from`.
pub(super) fn measure(config: &Config, from: IpAddr, server: SocketAddr, task: Task) -> Result<Latencies, LatError> {
    measure_on(open_raw(config, from, 0)?, raw_peer_address(server), task)
}

fn measure_on(raw: Raw, server: PeerAddress, task: Task) -> Result<Latencies, LatError> {
    let nobody = Waiting::default();
    let link = connect(&raw, raw.device.create_cq()?, server, task, &nobody)?;
    let mut latencies = Latencies::default();
    if task.kind == Kind::Write {
        link.greet()?;
    }
    for number in 1..=u64::from(task.count) + task.warm_up() {
        let begun = Instant::now();
        link.send(number)?;
        link.await_message(number)?;
        if number > task.warm_up() {
            latencies.record_round_trip(begun.elapsed());
        }
    }
    Ok(latencies)
}

fn connect<'a>(
    raw: &'a Raw,
    cq: CompletionQueueId,
    server: PeerAddress,
    task: Task,
    nobody: &'a Waiting,
) -> Result<Link<'a>, LatError> {
    let id = raw.cm.connect_with(server, cq, task.region_len(), &task.encode(), task.kind.receives())?;
    establish(raw, cq, (id, task), nobody)
}

/// Measures `count` connections, one after the other: each from resolving the address until it can send.
pub(super) fn connections(
    config: &Config,
    from: IpAddr,
    server: SocketAddr,
    count: u32,
) -> Result<Latencies, LatError> {
    connections_on(&open_raw(config, from, 0)?, raw_peer_address(server), count)
}

fn connections_on(raw: &Raw, server: PeerAddress, count: u32) -> Result<Latencies, LatError> {
    let cq = raw.device.create_cq()?;
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let begun = Instant::now();
        connect(raw, cq, server, Task { kind: Kind::Writes, size: 8, count: 1 }, &Waiting::default())?;
        latencies.record(begun.elapsed());
    }
    Ok(latencies)
}

/// Writes without an answer, up to a number of them in flight.
#[derive(Debug)]
pub(super) struct Writes {
    /// The calls that posted them.
    pub(super) posts: Latencies,
    /// From the first post to the last completion.
    pub(super) elapsed: Duration,
}

/// Measures `task.count` writes, from our address `from`.
pub(super) fn writes(
    config: &Config,
    from: IpAddr,
    server: SocketAddr,
    task: Task,
    depth: u32,
) -> Result<Writes, LatError> {
    writes_on(&open_raw(config, from, 0)?, raw_peer_address(server), task, depth)
}

fn writes_on(raw: &Raw, server: PeerAddress, task: Task, depth: u32) -> Result<Writes, LatError> {
    let nobody = Waiting::default();
    let link = connect(raw, raw.device.create_cq()?, server, task, &nobody)?;
    link.greet()?;
    link.pour(task.warm_up(), depth, &mut Latencies::default())?;
    let mut posts = Latencies::default();
    let begun = Instant::now();
    link.pour(u64::from(task.count), depth, &mut posts)?;
    Ok(Writes { posts, elapsed: begun.elapsed() })
}

/// Answers one client after the other, for ever.
pub(super) fn serve(config: &Config, address: SocketAddr) -> Result<Infallible, LatError> {
    let raw = open_raw(config, address.ip(), address.port())?;
    println!("raw links at {address}");
    serve_on(&raw, |error| eprintln!("netacc lat: a client: {error}"))
}

/// An error of a client ends that client, and is passed to `report`. Only an error of waiting for clients ends the
/// server.
fn serve_on(raw: &Raw, report: impl Fn(LatError)) -> Result<Infallible, LatError> {
    let cq = raw.device.create_cq()?;
    let waiting = Waiting::default();
    loop {
        let Some(client) = waiting.0.take() else {
            match raw.cm.poll_event() {
                Some(event) => waiting.handle_other(&*raw.cm, &event),
                None => sleep(&*raw.cm, PollTimeout::NONE)?,
            }
            continue;
        };
        match accept(raw, cq, client, &waiting).and_then(|link| link.answer()) {
            // All clients end like this once they have their result.
            Ok(()) | Err(LatError::Disconnected) => {}
            Err(error) => report(error),
        }
    }
}

fn accept<'a>(raw: &'a Raw, cq: CompletionQueueId, client: Client, waiting: &'a Waiting) -> Result<Link<'a>, LatError> {
    let (id, task) = client;
    // Rejected if it cannot be accepted: some devices leave that to the caller.
    raw.cm.accept_with(id, cq, task.region_len(), task.kind.receives()).inspect_err(|_| raw.cm.reject(id))?;
    establish(raw, cq, client, waiting)
}

/// Waits for the connection that was begun, or accepted.
fn establish<'a>(
    raw: &'a Raw,
    cq: CompletionQueueId,
    (wanted, task): Client,
    waiting: &'a Waiting,
) -> Result<Link<'a>, LatError> {
    loop {
        match raw.cm.poll_event() {
            Some(CmEvent::Established { id, qp, local, remote, .. }) if id == wanted => {
                let pair = Pair { raw, qp };
                let staging = raw.device.alloc_region(qp, task.region_len())?;
                raw.device.post_recv(qp, RECEIVES)?;
                if local.memory.len() < task.region_len() || (remote.len as usize) < task.region_len() {
                    return Err(LatError::Nonsense);
                }
                return Ok(Link {
                    pair,
                    cq,
                    task,
                    local,
                    remote,
                    staging,
                    waiting,
                    arrived: Cell::new(0),
                    sent: Cell::new(0),
                });
            }
            Some(CmEvent::Failed { id, error }) if id == wanted => return Err(error.into()),
            Some(event) => waiting.handle_other(&*raw.cm, &event),
            None => sleep(&*raw.cm, PollTimeout::NONE)?,
        }
    }
}

#[expect(unsafe_code, reason = "descriptors of the device are numbers to us")]
fn sleep(cm: &dyn ConnectionManager, longest: PollTimeout) -> Result<(), LatError> {
    let fds = cm.event_fds();
    // SAFETY: the connection manager, which is alive, keeps them open.
    let watched = fds.iter().map(|fd| PollFd::new(unsafe { BorrowedFd::borrow_raw(*fd) }, PollFlags::POLLIN));
    // A device in memory has none, and no events.
    let timeout = if fds.is_empty() { PollTimeout::from(1u8) } else { longest };
    match poll(&mut watched.collect::<Vec<_>>(), timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(std::io::Error::from(errno).into()),
    }
}

impl Link<'_> {
    fn device(&self) -> &dyn Device {
        &*self.pair.raw.device
    }

    /// On some devices the connector must send the first message, and a plain WRITE does not count: sends a message
    /// without bytes.
    fn greet(&self) -> Result<(), LatError> {
        let operation = Operation::Send { imm: None };
        let wr = WorkRequest { id: WorkRequestId(0), operation, payload: Payload::Inline(&[]), signaled: false };
        self.post(&wr)
    }

    /// Sends so many messages, `depth` in flight, and takes the completion of each.
    fn pour(&self, count: u64, depth: u32, posts: &mut Latencies) -> Result<(), LatError> {
        let mut in_flight = 0;
        for number in 1..=count {
            if in_flight == depth {
                self.await_sent()?;
                in_flight -= 1;
            }
            let begun = Instant::now();
            self.send(number)?;
            posts.record(begun.elapsed());
            in_flight += 1;
        }
        (0..in_flight).try_for_each(|_| self.await_sent())
    }

    fn answer(&self) -> Result<(), LatError> {
        if self.task.kind == Kind::Writes {
            return self.stand_by();
        }
        if self.task.kind == Kind::Write {
            self.await_receive()?;
        }
        for number in 1..=u64::from(self.task.count) + self.task.warm_up() {
            self.await_message(number)?;
            self.send(number)?;
        }
        // The client ends the link when it has the last message, because that would be lost if this side ended the
        // link.
        let begun = Instant::now();
        loop {
            self.take_completions()?;
            self.check_link_end(begun)?;
        }
    }

    /// Leaves the processor to the device until the client ends the link.
    fn stand_by(&self) -> Result<(), LatError> {
        let begun = Instant::now();
        loop {
            self.take_completions()?;
            self.check_link_end(begun)?;
            sleep(&*self.pair.raw.cm, PollTimeout::from(LOOK_AGAIN_MS))?;
        }
    }

    /// Sends the message with this number, which is in its last word.
    fn send(&self, number: u64) -> Result<(), LatError> {
        let len = self.task.region_len();
        let placed = self.staging.memory.write(len - 8, &number.to_le_bytes());
        let RemoteRegion { rkey, base: offset, .. } = self.remote;
        let operation = match self.task.kind {
            Kind::Write | Kind::Writes => Operation::Write { rkey, offset, imm: None },
            Kind::Message => Operation::Write { rkey, offset, imm: Some(number as u32) },
            Kind::Send => Operation::Send { imm: None },
        };
        let mut copy = [0; 512];
        let capabilities = self.device().capabilities_of(self.pair.qp);
        let inline = len <= copy.len().min(capabilities.max_inline as usize);
        if !placed || (inline && !self.staging.memory.read(0, &mut copy[..len])) {
            return Err(LatError::Nonsense);
        }
        let payload = if inline {
            Payload::Inline(&copy[..len])
        } else {
            Payload::Region { region: &self.staging, offset: 0, len: len as u32 }
        };
        // A queue of unsignaled requests may stay full for ever.
        let signaled =
            self.task.kind == Kind::Writes || number.is_multiple_of(u64::from((capabilities.max_send_wr / 4).max(1)));
        self.post(&WorkRequest { id: WorkRequestId(number), operation, payload, signaled })
    }

    fn post(&self, wr: &WorkRequest<'_>) -> Result<(), LatError> {
        let begun = Instant::now();
        loop {
            match self.device().post_send(self.pair.qp, &[*wr]) {
                Ok(1) => return Ok(()),
                // Sent requests complete soon, or never.
                Ok(_) | Err(PostError::QueueFull) => {
                    self.take_completions()?;
                    self.check_link_end(begun)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Spins until the message with this number is here.
    fn await_message(&self, number: u64) -> Result<(), LatError> {
        let word = self.local.memory.word(self.task.region_len() - 8).ok_or(LatError::Nonsense)?;
        if self.task.kind == Kind::Write {
            return self.spin_until(|| Ok(word.load(Ordering::Acquire) == number));
        }
        self.await_receive()?;
        // A measurement must not count messages without their bytes.
        if word.load(Ordering::Acquire) == number {
            Ok(())
        } else {
            Err(LatError::Nonsense)
        }
    }

    /// Spins until a message has come that takes a receive.
    fn await_receive(&self) -> Result<(), LatError> {
        self.await_one(&self.arrived)
    }

    /// Spins until a message that was sent has completed.
    fn await_sent(&self) -> Result<(), LatError> {
        self.await_one(&self.sent)
    }

    fn await_one(&self, counted: &Cell<u32>) -> Result<(), LatError> {
        self.spin_until(|| {
            self.take_completions()?;
            Ok(counted.get().checked_sub(1).map(|left| counted.set(left)).is_some())
        })
    }

    fn spin_until(&self, is_here: impl Fn() -> Result<bool, LatError>) -> Result<(), LatError> {
        let begun = Instant::now();
        loop {
            for spin in 1..=SPINS {
                if is_here()? {
                    return Ok(());
                }
                std::hint::spin_loop();
                if spin % TURN == 0 {
                    std::thread::yield_now();
                }
            }
            self.take_completions()?;
            self.check_link_end(begun)?;
        }
    }

    /// Takes completions, and counts the messages that have arrived.
    fn take_completions(&self) -> Result<(), LatError> {
        let mut out = [EMPTY; 8];
        let taken = self.device().poll_qp(self.pair.qp, &mut out);
        let mut messages = 0;
        for completion in &out[..taken] {
            match completion.completion {
                Completion::Receive { .. } => messages += 1,
                Completion::Disconnected => return Err(LatError::Disconnected),
                Completion::Send { .. } => self.sent.set(self.sent.get().saturating_add(1)),
            }
        }
        if messages > 0 {
            self.device().post_recv(self.pair.qp, messages)?;
            self.arrived.set(self.arrived.get().saturating_add(messages));
        }
        Ok(())
    }

    /// Lets the device detect the end of the link; an error if this has lasted too long.
    fn check_link_end(&self, begun: Instant) -> Result<(), LatError> {
        let cm = &*self.pair.raw.cm;
        while let Some(event) = cm.poll_event() {
            self.waiting.handle_other(cm, &event);
        }
        self.device().pending(self.cq, &mut [QueuePairId(0); 4]);
        if begun.elapsed() > PATIENCE {
            return Err(LatError::Silent(PATIENCE.as_secs()));
        }
        Ok(())
    }
}

const EMPTY: WorkCompletion = WorkCompletion {
    qp: QueuePairId(0),
    status: netacc_device::CompletionStatus::Success,
    completion: Completion::Disconnected,
};

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig, NoReceive};
    use netacc_device::CmError;

    use super::*;

    /// A device in memory with room for so many registered bytes.
    fn raw(fabric: &Fabric, memory_limit_bytes: usize) -> (Raw, PeerAddress) {
        let mut config = LoopbackConfig { memory_limit_bytes, ..LoopbackConfig::soft_roce() };
        config.capabilities.max_message = MAX_SIZE;
        let device = fabric.open(config);
        let address = device.address();
        (Raw { device: device.clone(), cm: device }, address)
    }

    /// Breaks if one client's effect on the server's device made all later clients fail, or if its queue pair kept its
    /// memory.
    #[test]
    fn a_client_that_goes_wrong_ends_alone() {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (served, address) = raw(&fabric, 100 << 10);
        let (report, reports) = mpsc::channel();
        thread::spawn(move || serve_on(&served, |error| report.send(error.to_string()).expect("the test listens")));
        let attempt = |task| measure_on(raw(&fabric, 1 << 30).0, address, task);
        for kind in [Kind::Write, Kind::Message, Kind::Send] {
            // There is room for the first region, but then not for one to send from.
            let failed = attempt(Task { kind, size: 64 << 10, count: 3 });
            assert!(matches!(failed, Err(LatError::Disconnected | LatError::Post(_))), "{failed:?}");
            let error = reports.recv_timeout(PATIENCE).expect("the server tells");
            assert!(error.contains("65536 bytes"), "{error}");
            // There is no room even for the first.
            let failed = attempt(Task { kind, size: 200 << 10, count: 3 });
            assert!(failed.is_err(), "{failed:?}");
            reports.recv_timeout(PATIENCE).expect("the server tells");
            // If the first client's memory were still taken, there would be room for only one of these.
            let latencies = attempt(Task { kind, size: 40 << 10, count: 3 }).expect("there is room");
            assert_eq!(latencies.count(), 3);
        }
        assert!(reports.try_recv().is_err(), "a client that ended well is not reported");
    }

    /// Breaks if the two ends had different warm-ups, or for sizes beyond inline data or one request.
    #[test]
    fn each_size_is_measured_on_each_path() {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (served, address) = raw(&fabric, 1 << 30);
        thread::spawn(move || serve_on(&served, |_| {}));
        for kind in [Kind::Write, Kind::Message, Kind::Send] {
            for size in [1, 2, 8, 512, 520, 1 << 20, MAX_SIZE] {
                let latencies = measure_on(raw(&fabric, 1 << 30).0, address, Task { kind, size, count: 3 });
                assert_eq!(latencies.expect("measured").count(), 3, "{kind:?} {size}");
            }
        }
    }

    /// Breaks if a write is not awaited, or counted twice, or if a server that does nothing meanwhile misses the client's end.
    #[test]
    fn writes_in_flight_all_complete_and_the_next_client_is_served() {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (served, address) = raw(&fabric, 1 << 30);
        thread::spawn(move || serve_on(&served, |_| {}));
        let task = |size| Task { kind: Kind::Writes, size, count: 50 };
        for (size, depth) in [(8, 1), (64, 16), (64 << 10, 16), (64, 50)] {
            let writes = writes_on(&raw(&fabric, 1 << 30).0, address, task(size), depth).expect("measured");
            assert_eq!(writes.posts.count(), 50, "{size} bytes, {depth} in flight");
        }
        assert_eq!(connections_on(&raw(&fabric, 1 << 30).0, address, 3).expect("measured").count(), 3);
        let ping = Task { kind: Kind::Message, size: 8, count: 3 };
        assert_eq!(measure_on(raw(&fabric, 1 << 30).0, address, ping).expect("measured").count(), 3);
    }

    /// Breaks if a measurement goes on while messages that it counts are still in flight.
    #[test]
    fn writes_end_with_their_last_completion() {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (served, address) = raw(&fabric, 1 << 30);
        thread::spawn(move || serve_on(&served, |_| {}));
        let (client, _) = raw(&fabric, 1 << 30);
        let nobody = Waiting::default();
        let task = Task { kind: Kind::Writes, size: 64, count: 20 };
        let cq = client.device.create_cq().expect("there is room");
        let link = connect(&client, cq, address, task, &nobody).expect("the server listens");
        link.greet().expect("connected");
        link.pour(20, 16, &mut Latencies::default()).expect("connected");
        link.take_completions().expect("connected");
        assert_eq!(link.sent.get(), 0, "each completion was awaited");
    }

    /// Breaks if a device without WRITE WITH IMMEDIATE, or without receives that take bytes, is measured as if it had
    /// them.
    #[test]
    fn a_path_is_measured_with_the_devices_operations() {
        let ends = |config: LoopbackConfig, kind| {
            let fabric = Fabric::new(DeliveryMode::Immediate);
            let [served, initiator] = [(); 2].map(|()| fabric.open(config.clone()));
            let address = served.address();
            thread::spawn(move || serve_on(&Raw { device: served.clone(), cm: served }, |_| {}));
            measure_on(Raw { device: initiator.clone(), cm: initiator }, address, Task { kind, size: 20, count: 300 })
        };
        let bare = || LoopbackConfig { no_receive: NoReceive::Wait, ..LoopbackConfig::send_only() };
        assert!(ends(bare(), Kind::Send).is_ok() && ends(bare(), Kind::Write).is_ok());
        let refused = ends(LoopbackConfig::shm(), Kind::Send);
        assert!(matches!(refused, Err(LatError::Connect(CmError::NoSends))), "{refused:?}");
        assert!(ends(LoopbackConfig::shm(), Kind::Message).is_ok());
    }

    #[test]
    fn tasks_arrive_and_nonsense_does_not() {
        let task = Task { kind: Kind::Message, size: 65, count: 1000 };
        let mut padded = task.encode().to_vec();
        padded.resize(32, 0);
        assert_eq!(Task::decode(&padded), Some(task));
        assert_eq!(task.region_len(), 72);
        for (kind, size, count) in
            [(0, 64, 1), (5, 64, 1), (1, 0, 1), (1, MAX_SIZE + 1, 1), (1, 64, 0), (1, 64, u32::MAX)]
        {
            let mut bytes = [0; 9];
            bytes[0] = kind;
            bytes[1..5].copy_from_slice(&u32::to_le_bytes(size));
            bytes[5..].copy_from_slice(&u32::to_le_bytes(count));
            assert_eq!(Task::decode(&bytes), None, "{kind} {size} {count}");
        }
        assert_eq!(Task::decode(&task.encode()[..8]), None);
    }
}
