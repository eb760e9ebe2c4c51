//! Datagram sockets: UDP, with the flows of datagrams that pass the kernel by.
//!
//! A socket stays the kernel's. Each flow from one socket to another may have a ring beside it
//! ([`netacc_datagram`]), which takes a datagram while the receiver is awake. All that wakes a receiver comes by the
//! kernel, so every way to wait works on a datagram socket as it always did; calls that wait only have to look at the
//! rings first, and to say so before they sleep ([`Datagram::sleep`]).
//!
//! Invariants:
//! * a ring is used only by the process that has made it. A socket that may have another holder is the kernel's alone from
//!   then on ([`Datagram::leave_to_kernel`]), and the datagrams in its rings are sent again by the kernel, by their senders
//!   ([`Outgoing::resend`]). [`Sharing`] has the states, and shows when it may have rings again;
//! * a flow's source address is one from which this socket has received a datagram of the kernel's;
//! * a receiver says that it is awake only while no thread of the process sleeps on the socket.
//!
//! This module has the state. The calls are in `ops::datagram`, and the making of flows is in `control::flows`.

mod address;
mod flows;
mod incoming;
mod linked;
mod messages;
mod origin;
mod outgoing;
mod resent;
mod sharing;
#[cfg(test)]
mod tests;
mod whereabouts;

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::QueuePairId;
use netacc_driver::{Endpoint, ReceivingFlow};
use parking_lot::Mutex;

pub use address::{local_address, peer_address, Address};
pub use flows::{Flows, OnLink, Pending, Proven, ToProve, Wanted};
pub use incoming::{Incoming, Ring, Taken};
pub use linked::Linked;
pub use messages::{add_dropped, joined, Control, Messages, Values, MOST as MOST_CONTROL};
pub use origin::Origin;
pub use outgoing::{Closing, Destination, Outgoing, Way};
use resent::Resent;
pub use sharing::{KernelOnly, Sharing, State};
use whereabouts::Whereabouts;

use crate::holders::Sender;
use crate::os::clock::{now, timespec};

/// A UDP socket of the program.
pub struct Datagram {
    /// Descriptors of this process that refer to it.
    pub descriptors: AtomicU32,
    /// The processes that may hold it.
    sharing: Sharing,
    /// It has, or may have, rings to receive from.
    linked: AtomicBool,
    /// The flows on links that bring it datagrams. A thread polls them without the lock of [`Datagram::incoming`], which the
    /// thread that handles their messages takes.
    polled: Mutex<Arc<Vec<Polled>>>,
    /// Threads that sleep in the kernel, and may wait for this socket.
    sleepers: AtomicU32,
    /// A receive would have waited when the socket was asked last.
    blocks: AtomicBool,
    /// Where its latest sender was.
    sender: Whereabouts,
    /// Datagrams that were received before the last [wait](Datagram::take_received).
    received_before: AtomicU64,
    /// Calls that have moved a datagram through the kernel.
    kernel_calls: AtomicU32,
    /// What the program wants to know of each datagram: bits of [`wants`].
    wants: AtomicU16,
    /// The kernel may give it several datagrams at a time (`UDP_GRO`).
    joins: AtomicBool,
    /// It receives at all addresses, so datagrams of one source may belong to several flows.
    any_address: AtomicBool,
    /// Its number in [`Flows`] plus one; 0 before it has one.
    number: AtomicU32,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
    counts: Counts,
}

/// A flow on a link, and the endpoint that polls it.
pub type Polled = (&'static Endpoint, Arc<ReceivingFlow>);

/// Datagrams of a socket, by direction and way.
#[derive(Default)]
pub struct Counts {
    /// Sent on links.
    pub tx_link: AtomicU64,
    /// Received from links.
    pub rx_link: AtomicU64,
    /// Sent by the kernel.
    pub tx_kernel: AtomicU64,
    /// Received from the kernel.
    pub rx_kernel: AtomicU64,
    /// Dropped, because the receiver's ring was full.
    pub dropped: AtomicU64,
    /// Taken back from rings, and sent by the kernel.
    pub taken_back: AtomicU64,
}

impl Default for Datagram {
    fn default() -> Datagram {
        Datagram {
            descriptors: AtomicU32::new(1),
            sharing: Sharing::default(),
            linked: AtomicBool::new(false),
            polled: Mutex::default(),
            sleepers: AtomicU32::new(0),
            blocks: AtomicBool::new(false),
            sender: Whereabouts::default(),
            received_before: AtomicU64::new(0),
            kernel_calls: AtomicU32::new(0),
            wants: AtomicU16::new(0),
            joins: AtomicBool::new(false),
            any_address: AtomicBool::new(false),
            number: AtomicU32::new(0),
            incoming: Mutex::default(),
            outgoing: Mutex::default(),
            counts: Counts::default(),
        }
    }
}

/// What a program wants to know of each datagram, by the option that says so.
pub mod wants {
    /// `IP_PKTINFO`.
    pub const DESTINATION_V4: u16 = 1;
    /// `IPV6_RECVPKTINFO`.
    pub const DESTINATION_V6: u16 = 1 << 1;
    /// `IP_RECVTTL`.
    pub const TTL: u16 = 1 << 2;
    /// `IP_RECVTOS`.
    pub const TOS: u16 = 1 << 3;
    /// `IPV6_RECVHOPLIMIT`.
    pub const HOP_LIMIT: u16 = 1 << 4;
    /// `IPV6_RECVTCLASS`.
    pub const TRAFFIC_CLASS: u16 = 1 << 5;
    /// `SO_TIMESTAMP` and `SO_TIMESTAMPNS`, of which a socket has one.
    pub const TIME: u16 = 1 << 6;
    /// `SO_TIMESTAMPING`.
    pub const TIMES: u16 = 1 << 7;
    /// `SO_RXQ_OVFL`.
    pub const DROPS: u16 = 1 << 8;
}

/// A spin looks at the kernel once in so many looks at the rings. Arbitrary: a look takes as long as a system call.
pub const KERNEL_LOOKS: u32 = 32;

/// A process that moves fewer datagrams through a socket does not look for flows. Arbitrary.
const PUBLISH_AFTER: u32 = 4;

/// How long a receiver may delay the end of a socket that has sent to it on a link: a receiver whose process is stopped does not
/// answer. Arbitrary, much longer than a round trip.
const CLOSING_PATIENCE: Duration = Duration::from_millis(200);
/// How often the closing thread looks for the answers. Arbitrary, shorter than a round trip.
const CLOSING_INTERVAL: Duration = Duration::from_micros(20);

impl Datagram {
    /// A forked child's copy of its parent's socket. The child reads the program's options from the kernel once it holds the
    /// socket alone. Takes no lock.
    pub fn inherited_from(parent: &Datagram) -> Datagram {
        Datagram { sharing: Sharing::inherited_from(&parent.sharing), ..Datagram::default() }
    }

    /// A socket that came from another process, or with which the program was started.
    pub fn received(sender: Sender) -> Datagram {
        Datagram { sharing: Sharing::received(sender), ..Datagram::default() }
    }

    /// The processes that may hold it.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Whether only the kernel's socket counts.
    #[inline]
    pub fn is_kernel_only(&self) -> bool {
        self.sharing.is_kernel_only()
    }

    /// Whether it may have rings to receive from.
    #[inline]
    pub fn is_linked(&self) -> bool {
        self.linked.load(Ordering::Acquire)
    }

    /// Counts of datagrams.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Datagrams that were received since this was called last. A wait that has ended counts them as what it has brought: each
    /// way of waiting has its share of those that are found without a wait.
    pub fn take_received(&self) -> usize {
        let received = self.counts.rx_link.load(Ordering::Relaxed) + self.counts.rx_kernel.load(Ordering::Relaxed);
        (received - self.received_before.swap(received, Ordering::Relaxed)) as usize
    }

    /// Whether a receive waits, as far as is known; `asks` finds out. The kernel's receive decides.
    pub fn blocks(&self, asks: impl FnOnce() -> bool) -> bool {
        if !self.blocks.load(Ordering::Relaxed) {
            self.blocks.store(asks(), Ordering::Relaxed);
        }
        self.blocks.load(Ordering::Relaxed)
    }

    /// A receive that may wait has not: its mode may have changed.
    pub fn ask_again_whether_it_blocks(&self) {
        self.blocks.store(false, Ordering::Relaxed);
    }

    /// The kernel has brought it a datagram, whose sender ran on that processor, as far as is known.
    pub fn learn_sender(&self, processor: Option<u32>) {
        self.sender.learn(processor);
    }

    /// Whether its sender, as far as is known, cannot run while this thread spins.
    #[inline]
    pub fn stands_in_senders_way(&self) -> bool {
        self.sender.are_here()
    }

    /// Counts a datagram of the kernel's. Whether the socket is to be published: it is in use enough and is not yet, or its
    /// holders are to be looked up.
    #[inline]
    pub fn count_kernel_call(&self) -> bool {
        let calls = self.kernel_calls.load(Ordering::Relaxed).saturating_add(1);
        self.kernel_calls.store(calls, Ordering::Relaxed);
        if calls < PUBLISH_AFTER {
            return false;
        }
        if self.is_kernel_only() {
            return self.sharing.is_lookup_due(calls);
        }
        self.number.load(Ordering::Relaxed) == 0
    }

    /// The holders are being looked up.
    pub fn postpone_lookup(&self) {
        self.sharing.postpone_lookup(self.kernel_calls.load(Ordering::Relaxed));
    }

    /// Its number in [`Flows`]; `None` before it has one.
    pub fn number(&self) -> Option<u32> {
        self.number.load(Ordering::Acquire).checked_sub(1)
    }

    /// Whether it receives at all addresses.
    pub fn has_any_address(&self) -> bool {
        self.any_address.load(Ordering::Acquire)
    }

    /// It is announced under `local`.
    pub fn set_address(&self, local: SocketAddr) {
        self.any_address.store(local.ip().is_unspecified(), Ordering::Release);
    }

    /// Gives it a number. `false`: it has one.
    pub fn set_number(&self, number: u32) -> bool {
        self.number.compare_exchange(0, number + 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// What is received.
    #[inline]
    pub fn incoming(&self) -> parking_lot::MutexGuard<'_, Incoming> {
        self.incoming.lock()
    }

    /// What is sent.
    #[inline]
    pub fn outgoing(&self) -> parking_lot::MutexGuard<'_, Outgoing> {
        self.outgoing.lock()
    }

    /// Whether the program wants control messages.
    #[inline]
    pub fn gives_messages(&self) -> bool {
        self.wants.load(Ordering::Acquire) != 0
    }

    /// Whether the program wants what one of these [`wants`] says.
    #[inline]
    pub fn wants(&self, bits: u16) -> bool {
        self.wants.load(Ordering::Acquire) & bits != 0
    }

    /// The options are these: [`wants`], whether datagrams are joined, and the length of the parts of a send. Not while there are
    /// flows.
    pub fn set_options(&self, wants: u16, joins: bool, segment: u16) {
        self.wants.store(wants, Ordering::Release);
        self.set_joins(joins);
        self.incoming.lock().forget();
        self.outgoing.lock().segment = segment;
    }

    /// Whether the kernel may give it several datagrams at a time.
    pub fn joins(&self) -> bool {
        self.joins.load(Ordering::Acquire)
    }

    /// The kernel may do so from now on, or may not.
    pub fn set_joins(&self, joins: bool) {
        self.joins.store(joins, Ordering::Release);
    }

    /// An option, one of [`wants`], was set. Flows that there are may not fit any more.
    pub fn set_wants(&self, bit: u16, on: bool, fd: c_int, endpoint: Option<&Endpoint>) {
        let before = match on {
            true => self.wants.fetch_or(bit, Ordering::AcqRel),
            false => self.wants.fetch_and(!bit, Ordering::AcqRel),
        };
        // Times have several forms.
        if (before & bit != 0) != on || on && bit & (wants::TIME | wants::TIMES) != 0 {
            self.incoming.lock().forget();
            self.end_flows(fd, endpoint);
        }
    }

    /// Adds a ring to receive from. `false`: it does not fit any more.
    pub fn attach(&self, ring: Ring) -> bool {
        let mut incoming = self.incoming.lock();
        incoming.tells_flows_apart(!self.has_any_address());
        let fits = self.fits(&incoming, ring.origin());
        if fits {
            incoming.add(ring);
            self.linked.store(true, Ordering::Release);
        }
        fits
    }

    fn fits(&self, incoming: &Incoming, origin: &Origin) -> bool {
        !self.is_kernel_only() && origin.messages.is_some() == self.gives_messages() && incoming.admits(origin)
    }

    /// Adds a flow on a link to receive from. `false`: it does not fit any more.
    pub fn attach_link(&self, link: Linked) -> bool {
        let mut incoming = self.incoming.lock();
        let fits = self.fits(&incoming, link.origin()) && self.fits_links();
        if fits {
            incoming.add_link(link);
            self.update_linked(&incoming);
        }
        fits
    }

    /// Whether flows on links can serve it: a sender on another host does not say when it has sent.
    pub fn fits_links(&self) -> bool {
        !self.wants(wants::TIME | wants::TIMES)
    }

    /// The rings and links may have become others, or none.
    pub fn update_linked(&self, incoming: &Incoming) {
        self.linked.store(!incoming.is_empty(), Ordering::Release);
        let polled = incoming.polled();
        let mut known = self.polled.lock();
        if known.len() != polled.len() || !known.iter().zip(&polled).all(|(a, b)| Arc::ptr_eq(&a.1, &b.1)) {
            *known = Arc::new(polled);
        }
    }

    /// Handles what has come on the links of its flows. Not with the lock of [`Datagram::incoming`].
    #[inline]
    pub fn poll_links(&self) {
        if !self.is_linked() {
            return;
        }
        let polled = Arc::clone(&*self.polled.lock());
        for (endpoint, flow) in polled.iter() {
            endpoint.poll_receiving(flow);
        }
    }

    /// Whether a thread sleeps that may wait for this socket: its rings are not to be used.
    #[inline]
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
    }

    /// Whether a receive would find a datagram in a ring. A look for calls that wait.
    pub fn is_ready(&self) -> bool {
        self.poll_links();
        self.is_linked() && self.incoming.lock().is_ready()
    }

    /// A cheaper look, for a loop that spins; it may be wrong for a moment.
    #[inline]
    pub fn may_be_ready(&self) -> bool {
        self.poll_links();
        self.is_linked() && self.incoming.try_lock().is_some_and(|incoming| incoming.may_be_ready())
    }

    /// A number that changes when a datagram arrives in a ring.
    pub fn arrivals(&self) -> u64 {
        self.incoming.lock().arrivals()
    }

    /// A thread is about to sleep in the kernel, waiting for this socket, of which `fd` is a descriptor, among others. `None`: there is a datagram, and
    /// it must not sleep.
    pub fn sleep(&self, fd: c_int) -> Option<Asleep<'_>> {
        let alone = self.sleepers.fetch_add(1, Ordering::SeqCst) == 0;
        let asleep = Asleep { socket: self };
        self.poll_links();
        if self.is_linked() {
            let mut incoming = self.incoming.lock();
            incoming.begin_new(fd);
            if !incoming.fall_asleep(alone) {
                return None;
            }
        }
        Some(asleep)
    }

    /// Only the kernel's socket, of which `fd` is a descriptor, counts from now on: [`Sharing`] says why. Datagrams that are in
    /// rings can still be received. Returns the queue pairs of its flows, to be ended.
    pub fn leave_to_kernel(&self, fd: c_int) -> Vec<QueuePairId> {
        self.finish_links(fd);
        let mut flows = self.outgoing.lock().end_all(fd, &self.counts);
        let mut incoming = self.incoming.lock();
        flows.extend(incoming.close_all());
        self.update_linked(&incoming);
        flows
    }

    /// Other processes will hold it, too: what is in its rings comes by the kernel. Returns the queue pairs of its rings, to be
    /// ended.
    pub fn give_back(&self) -> Vec<QueuePairId> {
        self.incoming.lock().give_back_all()
    }

    /// Ends the flows on links that it sends, and sends by the kernel what their receivers do not take from them.
    fn finish_links(&self, fd: c_int) {
        let closing = self.outgoing.lock().close_links();
        let begun = now();
        while !self.have_finished(&closing, fd) && now().saturating_since(begun) < CLOSING_PATIENCE {
            // SAFETY: a valid time.
            unsafe { libc::nanosleep(&timespec(CLOSING_INTERVAL), std::ptr::null_mut()) };
        }
    }

    fn have_finished(&self, closing: &[Closing], fd: c_int) -> bool {
        // Without the lock, which the thread that handles the messages takes.
        closing.iter().for_each(|(endpoint, flow, _)| endpoint.poll_sending(flow));
        closing.iter().all(|(_, flow, to)| {
            self.outgoing.lock().follow_link(fd, to, flow, &self.counts);
            flow.is_drained()
        })
    }

    /// Ends its flows: it has been connected anew. Others may be made. `fd` is a descriptor of the socket.
    pub fn end_flows(&self, fd: c_int, endpoint: Option<&Endpoint>) {
        self.end_sending(fd, endpoint);
        let read = self.incoming.lock().close_all();
        if let Some(endpoint) = endpoint {
            read.into_iter().for_each(|qp| endpoint.end_flow(qp));
        }
    }

    /// As [`end_flows`](Datagram::end_flows), of the flows that it sends.
    pub fn end_sending(&self, fd: c_int, endpoint: Option<&Endpoint>) {
        self.finish_links(fd);
        let flows = self.outgoing.lock().end_all(fd, &self.counts);
        if let Some(endpoint) = endpoint {
            flows.into_iter().for_each(|qp| endpoint.end_flow(qp));
        }
    }
}

/// A thread that sleeps in the kernel.
pub struct Asleep<'a> {
    socket: &'a Datagram,
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.socket.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
