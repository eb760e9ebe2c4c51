//! The state of conversations by UDP datagrams: that of a flow, and that of the datagrams on their way through a host.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use netacc_device::Instant;
use netacc_host::{DatagramQueue, Work};
use netacc_rnic::{Datagram, Packet};

use crate::workload::{Conversation, Request, Source, Transport};

/// How long a client waits for an answer, and this model for a datagram to be taken. Arbitrary: far longer than either takes.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// Datagrams that leave a host before calls that send wait. Arbitrary, of the order of a NIC's transmit ring.
const MAX_LEAVING: usize = 256;

/// A datagram that was sent and not answered, or without answers not taken.
pub(crate) struct Pending {
    pub(crate) begun: Instant,
    pub(crate) request_bytes: u32,
    pub(crate) response_bytes: u32,
}

/// The current work of a side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Take(Datagram),
    Send(Request),
}

/// A conversation by datagrams.
pub(crate) struct Flow {
    pub(crate) plan: Conversation,
    pub(crate) answered: bool,
    pub(crate) source: Source,
    pub(crate) sent: u64,
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// By side: what waits for its program.
    pub(crate) inboxes: [DatagramQueue<Datagram>; 2],
    pub(crate) actions: [Option<Action>; 2],
    /// When its host will be woken for the next datagram.
    pub(crate) wake_at: Option<Instant>,
    /// Whether a timer for `pending` runs.
    pub(crate) expiry_runs: bool,
    pub(crate) lost: u64,
    pub(crate) is_open: bool,
}

impl Flow {
    /// `None` for a conversation by a stream. `limits` are of the queues of client and server.
    pub(crate) fn new(plan: &Conversation, limits: [u32; 2]) -> Option<Flow> {
        let Transport::Datagrams { answered } = plan.transport else { return None };
        let source = Source::new(plan.clone());
        let is_open = source.due().is_some();
        Some(Flow {
            plan: plan.clone(),
            answered,
            source,
            sent: 0,
            pending: BTreeMap::new(),
            inboxes: limits.map(DatagramQueue::new),
            actions: [None; 2],
            wake_at: None,
            expiry_runs: false,
            lost: 0,
            is_open,
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(crate) fn unanswered(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Whether its client waits, for an answer or to be able to send.
    pub(crate) fn is_waiting(&self, now: Instant) -> bool {
        !self.pending.is_empty() || self.source.due().is_some_and(|due| due <= now)
    }

    pub(crate) fn side(&self, host: usize) -> usize {
        usize::from(host != self.plan.client as usize)
    }

    /// The next work of a side, if there is any.
    pub(crate) fn next_action(&mut self, side: usize, may_send: bool, now: Instant) -> Option<Action> {
        if let Some(datagram) = self.inboxes[side].pop() {
            return Some(Action::Take(datagram));
        }
        let request = (side == 0 && may_send).then(|| self.source.take(now)).flatten();
        request.map(Action::Send)
    }

    pub(crate) fn has_work(&self, side: usize, now: Instant) -> bool {
        !self.inboxes[side].is_empty() || side == 0 && self.source.due().is_some_and(|due| due <= now)
    }

    /// What an action costs: a call, a segment and a copy for each datagram, and the program's own work.
    pub(crate) fn price(&self, side: usize, action: &Action) -> Work {
        let (bytes, datagrams, service) = match *action {
            Action::Take(Datagram { bytes, wanted, .. }) if side == 1 => {
                (u64::from(bytes) + u64::from(wanted), 1 + u32::from(wanted > 0), self.plan.service)
            }
            Action::Take(Datagram { bytes, .. }) => (u64::from(bytes), 1, self.plan.client_service),
            Action::Send(request) => (u64::from(request.request_bytes), 1, Duration::ZERO),
        };
        Work { system_calls: datagrams, datagrams, bytes, service, ..Work::default() }
    }
}

/// The datagrams that are on their way through a host.
#[derive(Default)]
pub(crate) struct Port {
    /// In the stack's own thread, on their way out.
    pub(crate) passing: VecDeque<Packet>,
    /// For the NIC.
    pub(crate) leaving: VecDeque<Packet>,
    /// On their way to programs.
    pub(crate) arriving: VecDeque<Packet>,
    /// Flows whose calls wait because too many leave.
    pub(crate) blocked: Vec<usize>,
    /// Queue pairs have sent the last packet.
    pub(crate) is_turn: bool,
}

impl Port {
    pub(crate) fn is_full(&self) -> bool {
        self.passing.len() + self.leaving.len() >= MAX_LEAVING
    }
}
