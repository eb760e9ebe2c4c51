//! The flows of the process, as the helper thread makes and ends them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use netacc_device::{ConnectionId, QueuePairId};
use netacc_driver::{Endpoint, ReceivingFlow, SendingFlow};
use netacc_proto::FlowProof;
use parking_lot::Mutex;

use super::{Address, Datagram, Origin};
use crate::probes;

/// A ring that is to be requested.
pub struct Wanted {
    /// The socket that sends.
    pub socket: Weak<Datagram>,
    /// A descriptor of it.
    pub fd: c_int,
    /// The destination.
    pub to: Address,
}

/// A flow that is being made.
pub enum Pending {
    /// This process sends.
    Outgoing(Weak<Datagram>, Address),
    /// It receives, from there.
    Incoming(Weak<Datagram>, Box<Origin>),
}

/// A flow on a link that this process sends.
pub struct OnLink {
    /// The flow.
    pub flow: Arc<SendingFlow>,
    /// The socket that sends.
    pub socket: Weak<Datagram>,
    /// The destination.
    pub to: Address,
    /// It was open, and is counted.
    pub counted: bool,
}

/// A flow on a link that brings a socket datagrams, and whose source proves its address.
pub struct ToProve {
    /// The flow.
    pub flow: Arc<ReceivingFlow>,
    /// The socket that receives.
    pub socket: Weak<Datagram>,
    /// The source, as the kernel writes it for that socket.
    pub source: Address,
    /// It was proven, and is counted.
    pub counted: bool,
}

/// The end of a flow that has proven its address.
pub enum Proven {
    /// The source's: this process receives, and answers from `socket`.
    Source {
        /// The own proof.
        answer: FlowProof,
        /// The socket that receives.
        socket: Arc<Datagram>,
        /// The source, as the kernel writes it for that socket.
        address: Address,
    },
    /// The destination's: this process sends.
    Destination,
}

/// The flows of the process.
#[derive(Default)]
pub struct Flows {
    /// Those on links that it sends.
    pub(crate) on_links: Mutex<Vec<OnLink>>,
    /// Those on links that it receives.
    pub(crate) to_prove: Mutex<Vec<ToProve>>,
    /// Those that were granted for sockets that do not want them any more.
    pub(crate) unwanted: Mutex<Vec<Arc<ReceivingFlow>>>,
    /// One of them has changed.
    pub(crate) changed: AtomicBool,
    /// Sockets that peers can find, by number.
    sockets: Mutex<Vec<Weak<Datagram>>>,
    pub(crate) wanted: Mutex<Vec<Wanted>>,
    pub(crate) pending: Mutex<HashMap<ConnectionId, Pending>>,
    /// The socket of each flow.
    pub(crate) established: Mutex<HashMap<QueuePairId, Weak<Datagram>>>,
    /// Datagrams of closed sockets: sent on links, received from links, sent and received by the kernel, dropped, taken
    /// back.
    past: [AtomicU64; NAMES.len()],
    links: AtomicU64,
}

const NAMES: [&str; 6] = [
    "datagrams_sent_link",
    "datagrams_received_link",
    "datagrams_sent_kernel",
    "datagrams_received_kernel",
    "datagrams_dropped",
    "datagrams_taken_back",
];

impl Flows {
    /// Gives a socket a number. `None`: it has one.
    pub fn register(&self, socket: &Arc<Datagram>) -> Option<u32> {
        let mut sockets = self.sockets.lock();
        let free = sockets.iter().position(|old| old.strong_count() == 0).unwrap_or(sockets.len());
        let number = u32::try_from(free).ok()?;
        if !socket.set_number(number) {
            return None;
        }
        let weak = Arc::downgrade(socket);
        match sockets.get_mut(free) {
            Some(place) => *place = weak,
            None => sockets.push(weak),
        }
        Some(number)
    }

    /// The socket of a number.
    pub fn socket(&self, number: u32) -> Option<Arc<Datagram>> {
        self.sockets.lock().get(number as usize)?.upgrade()
    }

    /// The sockets that peers can find, with this address.
    pub fn at(&self, address: SocketAddr) -> Vec<Arc<Datagram>> {
        let sockets: Vec<_> = self.sockets.lock().iter().filter_map(Weak::upgrade).collect();
        sockets.into_iter().filter(|socket| socket.incoming().is_at(address)).collect()
    }

    /// The kernel has brought the library a datagram from `source`. `None`: it is no proof of a flow from or to there.
    pub fn handle_proof(&self, endpoint: &Endpoint, source: SocketAddr, bytes: &[u8]) -> Option<Proven> {
        //= spec §10.7.5
        //# The library of a side believes a proof only from the address of the other side's socket.
        {
            let on_links = self.on_links.lock();
            let mut to_there = on_links.iter().filter(|on_link| on_link.flow.addresses.remote == source);
            if to_there.any(|on_link| on_link.flow.handle_proof(bytes)) {
                return Some(Proven::Destination);
            }
        }
        let mut to_prove = self.to_prove.lock();
        let mut from_there = to_prove.iter_mut().filter(|to_prove| to_prove.flow.addresses.remote == source);
        from_there.find_map(|ToProve { flow, socket, source, counted }| {
            let answer = endpoint.handle_source_proof(flow, bytes)?;
            // As at the other end, not before: a flow that is never proven is made again.
            if !std::mem::replace(counted, true) {
                self.count_link();
                probes::flow(flow.addresses.remote.port(), false);
            }
            Some(Proven::Source { answer, socket: socket.upgrade()?, address: *source })
        })
    }

    /// A flow was made.
    pub fn count_link(&self) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the counts of a socket that is closed.
    pub fn absorb(&self, socket: &Datagram) {
        for (past, count) in self.past.iter().zip(numbers(socket)) {
            past.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Counts by name, with those of the sockets that are open.
    pub fn counted<'a>(&self, open: impl Iterator<Item = &'a Datagram>) -> Vec<(&'static str, u64)> {
        let mut sums: [u64; NAMES.len()] = std::array::from_fn(|i| self.past[i].load(Ordering::Relaxed));
        for socket in open {
            sums.iter_mut().zip(numbers(socket)).for_each(|(sum, count)| *sum += count);
        }
        let links = ("datagram_flows", self.links.load(Ordering::Relaxed));
        NAMES.into_iter().zip(sums).chain([links]).collect()
    }
}

fn numbers(socket: &Datagram) -> [u64; NAMES.len()] {
    let counts = socket.counts();
    let ways = [&counts.tx_link, &counts.rx_link, &counts.tx_kernel, &counts.rx_kernel];
    let all = [ways[0], ways[1], ways[2], ways[3], &counts.dropped, &counts.taken_back];
    all.map(|count| count.load(Ordering::Relaxed))
}
