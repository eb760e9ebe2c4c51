//! Flows that bring a socket datagrams on links, from processes of other hosts.

use std::sync::Arc;

use netacc_device::{FourTuple, PeerAddress};
use netacc_driver::{Endpoint, LinkDatagram, ReceivingFlow};

use super::Origin;
use crate::os::clock::now;

/// A flow on a link that brings datagrams.
pub struct Linked {
    flow: Arc<ReceivingFlow>,
    endpoint: &'static Endpoint,
    origin: Origin,
    /// Taken from the link, and not received by the program yet.
    next: Option<LinkDatagram>,
    /// This end takes no more, but for what has come.
    ended: bool,
}

impl Linked {
    /// A new one.
    pub fn new(flow: Arc<ReceivingFlow>, endpoint: &'static Endpoint, origin: Origin) -> Linked {
        Linked { flow, endpoint, origin, next: None, ended: false }
    }

    /// Where it comes from.
    #[inline]
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The flow, and its endpoint, which polls it.
    pub(super) fn polled(&self) -> (&'static Endpoint, Arc<ReceivingFlow>) {
        (self.endpoint, self.flow.clone())
    }

    /// The process that sends.
    pub(super) fn peer(&self) -> PeerAddress {
        self.flow.peer
    }

    /// Whether it is the flow between these addresses.
    pub(super) fn is_of(&self, addresses: &FourTuple) -> bool {
        self.flow.addresses == *addresses
    }

    /// Whether no more comes.
    pub(super) fn is_over(&self) -> bool {
        (self.ended || self.flow.is_closed()) && !self.may_be_ready()
    }

    /// A cheap look, which counts what has to wait for the kernel.
    #[inline]
    pub(super) fn may_be_ready(&self) -> bool {
        self.next.is_some() || self.flow.has_more()
    }

    /// The datagram at the front, if it may be received now.
    #[inline]
    pub(super) fn front(&mut self) -> Option<&LinkDatagram> {
        if self.next.is_none() {
            self.next = self.endpoint.receive_datagram(&self.flow);
        }
        self.next.as_ref()
    }

    /// What [`front`](Linked::front) has found.
    #[inline]
    pub(super) fn found(&self) -> Option<&LinkDatagram> {
        self.next.as_ref()
    }

    /// The datagram at the front was received.
    #[inline]
    pub(super) fn release(&mut self) {
        self.next = None;
    }

    /// A number that changes when a datagram arrives.
    pub(super) fn arrivals(&self) -> u64 {
        self.flow.arrivals()
    }

    /// So many datagrams had come by the kernel from there before the flow.
    pub(super) fn start(&self, came_by_kernel: u64) {
        self.flow.start(came_by_kernel);
    }

    /// So many datagrams of the flow came by the kernel.
    pub(super) fn came_by_kernel(&self, count: u64) {
        (0..count).for_each(|_| self.flow.count_by_kernel());
    }

    /// The kernel had nothing.
    pub(super) fn kernel_was_empty(&self) {
        if self.flow.has_more() {
            self.flow.kernel_was_empty(now());
        }
    }

    #[inline]
    pub(super) fn stay_awake(&self) {
        if !self.ended {
            self.endpoint.keep_awake(&self.flow);
        }
    }

    /// A thread is about to sleep. `false`: there is a datagram.
    pub(super) fn fall_asleep(&self) -> bool {
        self.next.is_none() && self.endpoint.let_sleep(&self.flow)
    }

    /// Ends the flow for its sender. The program can still receive the datagrams that have come.
    pub(super) fn close(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.endpoint.keep_received(&self.flow);
        }
    }

    /// No more takes the link, and what has come goes by the kernel.
    pub(super) fn give_back(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.endpoint.give_back(&self.flow);
        }
    }

    /// Nobody receives any more.
    pub(super) fn abandon(&mut self) {
        self.ended = true;
        self.next = None;
        self.endpoint.close_receiving(&self.flow);
    }
}
