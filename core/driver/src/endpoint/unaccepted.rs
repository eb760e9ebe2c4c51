//! Openers' streams whose peers' programs have not accepted the connection yet. The kernel has established it, so the
//! program may use it, but no process is found at its other end.
//!
//! Nothing announces that a program accepts. So the control path looks the streams up again: soon at first, and later the
//! more rarely, the longer nothing has been accepted. A kernel hands out the connections to a listener in the order in
//! which they came, so the streams to a service wait in a queue, and a turn ends at the first few that are not found. Its
//! cost does not depend on how many wait. Those that were not found go to the back, because a port may have several
//! listeners.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use netacc_device::{Backoff, Instant};

use crate::stream::Identity;
use crate::StreamCell;

/// The time between two turns while nothing is accepted. Arbitrary: a lookup takes less than a microsecond.
const PAUSE: Backoff = Backoff { first: Duration::from_millis(1), longest: Duration::from_secs(1) };

/// The streams to a service wait no longer once it has accepted none of them for so long: then their own operations look
/// them up. Arbitrary.
const LIMIT: Duration = Duration::from_secs(10);

/// Streams of a service that a turn does not find, at most. Arbitrary: few, because a lookup that finds nothing may touch a page
/// of the directory that nobody has used, and more than one because a port may have several listeners.
pub(super) const MISSES: usize = 4;

/// The streams that wait for their acceptors.
#[derive(Default)]
pub(super) struct Unaccepted {
    services: BTreeMap<SocketAddr, Service>,
    /// The tickets of the streams that wait.
    tickets: HashMap<Identity, u64>,
    next_ticket: u64,
    turns: Turns,
}

#[derive(Default)]
struct Service {
    /// Streams that have gone are still in it.
    waiting: VecDeque<Waiting>,
    /// Since when none has been found. `None`: until the next turn.
    since: Option<Instant>,
}

struct Waiting {
    stream: Weak<StreamCell>,
    ticket: u64,
}

/// When the streams are looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turns {
    /// None waits.
    #[default]
    None,
    /// A stream has begun to wait.
    Begin,
    At {
        at: Instant,
        pause: Duration,
    },
}

/// A stream to be looked up.
pub(super) struct Sought {
    pub(super) stream: Arc<StreamCell>,
    ticket: u64,
}

impl Unaccepted {
    /// `stream` waits until its connection is accepted, if it does not wait already.
    pub(super) fn add(&mut self, stream: &Arc<StreamCell>) {
        if self.tickets.contains_key(&stream.identity()) {
            return;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(stream.identity(), ticket);
        self.push(&Sought { stream: stream.clone(), ticket });
        if !matches!(self.turns, Turns::At { pause, .. } if pause == PAUSE.first) {
            self.turns = Turns::Begin;
        }
    }

    /// `stream` does not wait any more.
    pub(super) fn remove(&mut self, stream: &StreamCell) {
        if !self.tickets.is_empty() {
            self.tickets.remove(&stream.identity());
        }
    }

    /// Whether a stream to `service` waits. Then one that comes later has hardly been accepted before it.
    pub(super) fn has(&self, service: &SocketAddr) -> bool {
        self.services.contains_key(service)
    }

    /// The number of streams that wait.
    pub(super) fn count(&self) -> usize {
        self.tickets.len()
    }

    /// Begins a turn if one is due. Returns the services that have streams.
    pub(super) fn begin_turn(&mut self, now: Instant) -> Option<Vec<SocketAddr>> {
        match self.turns {
            Turns::At { at, .. } if at <= now => Some(self.services.keys().copied().collect()),
            Turns::Begin => {
                self.turns = Turns::At { at: now + PAUSE.first, pause: PAUSE.first };
                None
            }
            Turns::None | Turns::At { .. } => None,
        }
    }

    /// The stream to a service that has waited for longest.
    pub(super) fn take(&mut self, service: SocketAddr) -> Option<Sought> {
        let waiting = &mut self.services.get_mut(&service)?.waiting;
        std::iter::from_fn(|| waiting.pop_front()).find_map(|Waiting { stream, ticket }| {
            let identity = Identity::of(&stream);
            if self.tickets.get(&identity) != Some(&ticket) {
                return None;
            }
            let found = stream.upgrade();
            if found.is_none() {
                self.tickets.remove(&identity);
            }
            Some(Sought { stream: found?, ticket })
        })
    }

    /// The stream was not found: it waits for a later turn, unless it has gone meanwhile.
    pub(super) fn put_back(&mut self, sought: &Sought) {
        if self.is_waiting(sought) {
            self.push(sought);
        }
    }

    /// The stream needs no further lookup.
    pub(super) fn end(&mut self, sought: &Sought) {
        if self.is_waiting(sought) {
            self.tickets.remove(&sought.stream.identity());
        }
    }

    fn is_waiting(&self, sought: &Sought) -> bool {
        self.tickets.get(&sought.stream.identity()) == Some(&sought.ticket)
    }

    fn push(&mut self, Sought { stream, ticket }: &Sought) {
        let waiting = Waiting { stream: Arc::downgrade(stream), ticket: *ticket };
        self.services.entry(stream.tuple().remote).or_default().waiting.push_back(waiting);
    }

    /// The turn is over for a service.
    pub(super) fn end_service(&mut self, service: SocketAddr, found: usize, now: Instant) {
        let Some(entry) = self.services.get_mut(&service) else { return };
        let since = entry.since.get_or_insert(now);
        if found > 0 {
            *since = now;
        }
        if now.saturating_since(*since) >= LIMIT {
            let given_up: HashSet<u64> = entry.waiting.drain(..).map(|waiting| waiting.ticket).collect();
            self.tickets.retain(|_, ticket| !given_up.contains(ticket));
        }
        if entry.waiting.is_empty() {
            self.services.remove(&service);
        }
    }

    /// The turn is over, in which so many streams were found.
    pub(super) fn end_turn(&mut self, found: usize, now: Instant) {
        self.turns = match self.turns {
            _ if self.services.is_empty() => Turns::None,
            Turns::At { pause, .. } => {
                let pause = if found > 0 { PAUSE.first } else { PAUSE.after(Some(pause)) };
                Turns::At { at: now + pause, pause }
            }
            begun => begun,
        };
    }

    /// The time of the next turn.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.turns {
            Turns::At { at, .. } => Some(at),
            Turns::None | Turns::Begin => None,
        }
    }
}
