//! One conversation: its two ends, their progress, and the unanswered requests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::loopback::anchor::{anchor_pair, AnchorConfig, AnchorWire, InMemoryAnchor};
use netacc_device::loopback::DeliveryMode;
use netacc_device::{FourTuple, Instant};
use netacc_driver::{Endpoint, PromotionSchedule, StreamCell};
use netacc_host::ProcessorConfig;
use netacc_proto::Role;

use crate::config::Tcp;
use crate::process::{Chunk, Direction, End};
use crate::stages::Underway;
use crate::workload::{Calls, Conversation, Source};

/// A request that was made and not answered.
pub(crate) struct Exchange {
    pub(crate) begun: Instant,
    pub(crate) request_bytes: u32,
    pub(crate) response_bytes: u32,
    /// Where it ends among the requests' bytes.
    pub(crate) request_end: u64,
    /// Where its response ends among the responses' bytes.
    pub(crate) response_end: u64,
}

/// One side's socket: the stream, and the anchor under it.
pub(crate) struct Socket {
    pub(crate) cell: Arc<StreamCell>,
    pub(crate) anchor: InMemoryAnchor,
}

/// The identity of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// The conversation whose plan it follows.
    pub(crate) conversation: u32,
    /// Among those that there are.
    pub(crate) number: u32,
    /// Among all that ever were.
    pub(crate) serial: u64,
}

/// When the client of a connection asks for a link.
#[derive(Debug)]
pub(crate) struct PromotionAttempts {
    pub(crate) schedule: PromotionSchedule,
    /// Calls on TCP so far.
    pub(crate) operations: u32,
    /// It is on a link, or was when it was last used.
    pub(crate) linked: bool,
}

impl PromotionAttempts {
    /// First after so many calls.
    pub(crate) fn new(first: u32) -> PromotionAttempts {
        PromotionAttempts { schedule: PromotionSchedule::new(first), operations: 0, linked: false }
    }
}

/// State of a short connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    pub(crate) begun: Instant,
    pub(crate) connected: Option<Instant>,
    pub(crate) answered: u32,
    /// By side: since when it is being closed, or closed.
    pub(crate) closing: [Option<Instant>; 2],
}

pub(crate) struct Connection {
    /// The conversation whose plan it follows.
    pub(crate) conversation: u32,
    /// Makes its bytes others than those of any other connection.
    pub(crate) salt: u64,
    pub(crate) client: u32,
    pub(crate) server: u32,
    pub(crate) source: Source,
    /// Client's, then server's; `None` once it is closed.
    pub(crate) sockets: [Option<Socket>; 2],
    /// Requests, then responses.
    pub(crate) directions: [Direction; 2],
    /// In the order in which they were made.
    pub(crate) exchanges: VecDeque<Exchange>,
    /// Of those at the front of `exchanges`, how many the server has read.
    pub(crate) served: usize,
    /// Bytes of all requests, and of all responses to them.
    pub(crate) ends: [u64; 2],
    /// When its host will be woken for the next request.
    pub(crate) wake_at: Option<Instant>,
    /// It has been on a link.
    pub(crate) was_linked: bool,
    /// It asks for links. Else it stays on TCP.
    pub(crate) promoted: bool,
    /// What each of its calls moves.
    pub(crate) calls: Calls,
    /// The costs of its calls, if they are others than its hosts'.
    pub(crate) costs: Option<Arc<ProcessorConfig>>,
    /// When its client asks for a link.
    pub(crate) attempts: PromotionAttempts,
    /// By side: its process has done something with it.
    pub(crate) was_used: [bool; 2],
    /// Additional state of a short connection.
    pub(crate) short: Option<Short>,
    /// By side: a write stopped for want of room.
    pub(crate) blocked: [bool; 2],
    /// By side: bytes of TCP whose softirqs have come.
    pub(crate) received: [u64; 2],
    /// Requests that the server has answered.
    pub(crate) answers: u32,
    /// Answers that the client has taken.
    pub(crate) answered: u32,
    /// Of these, those since it last made requests.
    pub(crate) new_answers: u32,
    /// It lasts, and the run waits for its end.
    pub(crate) is_open: bool,
    /// Application work for each request, at the server.
    pub(crate) service: Duration,
    /// Application work for each answer, at the client.
    pub(crate) client_service: Duration,
    /// More of its work, after it has written.
    pub(crate) client_after_write: Duration,
    /// More of it for a round that begins with this connection's turn, at the server and at the client.
    pub(crate) round_service: Duration,
    pub(crate) client_round_service: Duration,
    /// More of it for a turn that finds the connection's state displaced from the caches, at the server and at the client.
    pub(crate) cold_service: Duration,
    pub(crate) client_cold_service: Duration,
    pub(crate) wire: AnchorWire,
    /// Its messages, if they are traced.
    pub(crate) traced: Option<Box<Underway>>,
}

/// The actions that one end of a conversation can take now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moves {
    pub(crate) read: u64,
    pub(crate) written: u64,
    /// Requests that the server answers; answers that the client takes.
    pub(crate) served: u32,
}

impl Connection {
    /// The host of a side.
    pub(crate) fn host(&self, side: usize) -> usize {
        [self.client as usize, self.server as usize][side]
    }

    /// Whether a side is closed, or about to be: then it does nothing else.
    pub(crate) fn is_closing(&self, side: usize) -> bool {
        self.short.is_some_and(|short| short.closing[side].is_some())
    }

    /// Every request is answered, and no more will be made.
    pub(crate) fn is_over(&self) -> bool {
        self.exchanges.is_empty() && self.source.is_over()
    }

    /// Makes the requests that are due, as far as the next call takes them.
    pub(crate) fn make_requests(&mut self, now: Instant) {
        while let Some(request) = self.source.take(now) {
            self.ends[0] += u64::from(request.request_bytes);
            self.ends[1] += u64::from(request.response_bytes);
            // A short connection's time to connect is measured apart.
            let begun = if self.short.is_some() { now } else { request.begun };
            self.exchanges.push_back(Exchange {
                begun,
                request_bytes: request.request_bytes,
                response_bytes: request.response_bytes,
                request_end: self.ends[0],
                response_end: self.ends[1],
            });
            if self.calls == Calls::Single {
                return;
            }
        }
    }

    /// The position up to which a side's next call reads.
    fn readable_until(&self, side: usize) -> u64 {
        if self.calls == Calls::Joined {
            return u64::MAX;
        }
        let next = match side {
            0 => self.exchanges.front().map(|exchange| exchange.response_end),
            _ => self.exchanges.get(self.served).map(|exchange| exchange.request_end),
        };
        next.unwrap_or(self.directions[1 - side].read)
    }

    /// Whether the last call of a side has left something for another one: bytes that came, or a request that is due.
    pub(crate) fn has_more(&self, side: usize, unread: u64, now: Instant) -> bool {
        self.calls == Calls::Single && (unread > 0 || side == 0 && self.source.due().is_some_and(|due| due <= now))
    }

    /// Where the response ends to the last request that the server has all of.
    pub(crate) fn answerable(&mut self) -> u64 {
        let read = self.directions[0].read;
        let whole = self.exchanges.iter().skip(self.served).take_while(|e| e.request_end <= read).count();
        self.served += whole;
        self.answers += whole as u32;
        match self.served.checked_sub(1) {
            Some(last) => self.exchanges[last].response_end,
            None => self.directions[1].written,
        }
    }

    /// A side's socket, unless it is closed.
    pub(crate) fn end<'a>(&'a mut self, endpoint: &'a Endpoint, side: usize) -> Option<End<'a>> {
        self.sockets[side].as_mut().map(|socket| End { endpoint, cell: &socket.cell, anchor: &mut socket.anchor })
    }

    /// Whether a side is on a link.
    pub(crate) fn is_linked(&self, endpoint: &Endpoint, side: usize) -> bool {
        self.sockets[side].as_ref().is_some_and(|socket| socket.cell.lock(endpoint).proto().is_linked())
    }

    /// Where a side's written bytes end, as the protocol counts them on its link.
    pub(crate) fn link_position(&self, endpoint: &Endpoint, side: usize) -> Option<u64> {
        self.sockets[side].as_ref().map(|socket| socket.cell.lock(endpoint).proto().positions().0)
    }

    /// A side reads the available bytes, as far as one call takes them.
    pub(crate) fn read(&mut self, endpoint: &Endpoint, side: usize, call: (Instant, &mut Chunk)) -> Result<(), u64> {
        let until = self.readable_until(side);
        let Some(socket) = &mut self.sockets[side] else { return Ok(()) };
        let mut end = End { endpoint, cell: &socket.cell, anchor: &mut socket.anchor };
        self.directions[1 - side].read(&mut end, self.salt + 1 - side as u64, until, call)
    }

    /// A side writes up to position `until`, as far as there is room.
    pub(crate) fn write(&mut self, endpoint: &Endpoint, side: usize, until: u64, call: (Instant, &mut Chunk)) {
        let Some(socket) = &mut self.sockets[side] else { return };
        let mut end = End { endpoint, cell: &socket.cell, anchor: &mut socket.anchor };
        self.directions[side].write(&mut end, self.salt + side as u64, until, call);
        self.blocked[side] = self.directions[side].written < until;
    }

    /// The actions of an end that has so many unread bytes, as far as they can be predicted.
    pub(crate) fn expect(&self, side: usize, unread: u64) -> Moves {
        let unread = unread.min(self.readable_until(side) - self.directions[1 - side].read);
        let read = self.directions[1 - side].read + unread;
        if side == 0 {
            let served = self.exchanges.iter().take_while(|e| e.response_end <= read).count() as u32;
            return Moves { read: unread, written: self.ends[0] - self.directions[0].written, served };
        }
        let whole = self.exchanges.iter().skip(self.served).take_while(|e| e.request_end <= read);
        let (served, last) = whole.fold((0, None), |(count, _), e| (count + 1, Some(e.response_end)));
        let until = last.or_else(|| self.served.checked_sub(1).map(|last| self.exchanges[last].response_end));
        let written = until.map_or(0, |until| until.saturating_sub(self.directions[1].written));
        Moves { read: unread, written, served }
    }

    /// The oldest request, if all of its response was read.
    pub(crate) fn take_answered(&mut self) -> Option<Exchange> {
        let read = self.directions[1].read;
        self.exchanges.front().filter(|e| e.response_end <= read)?;
        self.served -= 1;
        self.answered += 1;
        self.exchanges.pop_front()
    }
}

pub(crate) fn connect(
    endpoints: &[Endpoint],
    conversation: &Conversation,
    numbers: Numbers,
    tcp: Tcp,
    promote_after: u32,
) -> Connection {
    let Numbers { number, serial, .. } = numbers;
    // The addresses are arbitrary, but differ for each connection.
    let [.., turn, a, b, c] = serial.to_be_bytes();
    let port = |base: u16| SocketAddr::from(([10, a, b, c], base));
    let tuple = FourTuple { local: port(40_000 + u16::from(turn)), remote: port(6_379) };
    let config = match tcp {
        Tcp::Memory => AnchorConfig::default(),
        Tcp::Simulated { buffer_bytes } => {
            AnchorConfig { send_capacity: buffer_bytes, receive_capacity: buffer_bytes, mode: DeliveryMode::Explicit }
        }
    };
    let (near, far, wire) = anchor_pair(config);
    let anchors = [near.clone(), far.clone()];
    let server = &endpoints[conversation.server as usize];
    let far = server.adopt(Role::Acceptor, tuple.reversed(), Box::new(far));
    server.publish(&far);
    let near = endpoints[conversation.client as usize].adopt(Role::Opener, tuple, Box::new(near));
    [&near, &far].iter().for_each(|cell| cell.tag().store(number, std::sync::atomic::Ordering::Relaxed));
    let [near_anchor, far_anchor] = anchors;
    Connection {
        conversation: numbers.conversation,
        salt: serial * 2,
        client: conversation.client,
        server: conversation.server,
        source: Source::new(conversation.clone()),
        sockets: [Some(Socket { cell: near, anchor: near_anchor }), Some(Socket { cell: far, anchor: far_anchor })],
        directions: [Direction::default(); 2],
        exchanges: VecDeque::new(),
        served: 0,
        ends: [0; 2],
        wake_at: None,
        received: [0; 2],
        answers: 0,
        was_linked: false,
        promoted: conversation.promoted,
        calls: conversation.calls,
        costs: conversation.costs.clone(),
        attempts: PromotionAttempts::new(promote_after),
        was_used: [false; 2],
        short: None,
        blocked: [false; 2],
        answered: 0,
        new_answers: 0,
        is_open: false,
        service: conversation.service,
        client_service: conversation.client_service,
        client_after_write: conversation.client_after_write,
        round_service: conversation.round_service,
        client_round_service: conversation.client_round_service,
        cold_service: conversation.cold_service,
        client_cold_service: conversation.client_cold_service,
        wire,
        traced: None,
    }
}
