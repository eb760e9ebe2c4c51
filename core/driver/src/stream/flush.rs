//! The effects of a change of the stream: messages and records that the protocol wants sent, events for the endpoint,
//! and readiness.

use std::sync::atomic::Ordering;

use netacc_device::PostError;
use netacc_proto::{Control, ControlMessage, Failure, MessageKind, RxSource};

use super::cell::Attachment;
use super::guard::LockedStream;
use super::inner::readiness_of;
use super::states::Listed;
use crate::{Counters, Readiness};

impl LockedStream<'_> {
    /// Sends the messages and records that the protocol wants sent, and publishes readiness. All messages and records
    /// of a stream that carry no data leave here. [`StreamGuard::change`](super::guard::StreamGuard::change) calls it
    /// after each change.
    #[inline]
    pub(crate) fn flush(&mut self) {
        let proto = &self.inner.proto;
        if !proto.is_steady() || proto.promotions() != self.inner.reported.promotions {
            self.send_pending();
        }
        if self.inner.sending.cork.is_pending() {
            self.track_corked();
        }
        self.publish();
        self.inner.reported.flow = self.flow();
    }

    /// After bytes of a steady stream were received: whether there is nothing to flush. That can fail the stream, give
    /// credit, and change whether it is readable. The stream is as it is published if it has nothing to read and could be
    /// written to before.
    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        let proto = &self.inner.proto;
        let published = self.cell.readiness().difference(Readiness::NOTICE);
        !self.arrived
            && !proto.has_control()
            && !proto.has_failed()
            && proto.available() == 0
            && published == Readiness::WRITABLE
    }

    /// Writes records, posts control messages, OPEN among them, and signals, as far as there is room.
    fn send_pending(&mut self) {
        // Before the peer can answer: see `publish`.
        self.publish();
        // An anchor write can produce a signal (SWITCHED), hence this order.
        self.write_anchor(None);
        let device = self.endpoint.device();
        while let Some(control) = self.inner.proto.poll_control() {
            let about_data = !matches!(control, Control::Signal(MessageKind::CreditGive));
            if about_data && !self.push_corked() {
                self.inner.proto.return_control(control);
                break;
            }
            let inner = &mut *self.inner;
            let Some(Attachment { link, outgoing, .. }) = inner.attached.as_deref() else { continue };
            let mut tx = link.tx.lock();
            self.endpoint.expect_answer(&mut tx);
            let announced = match (&control, outgoing) {
                // A signal to read the credit word is useless before the word is there.
                (Control::Signal(MessageKind::CreditGive), Some(out)) if out.staging.is_some() => {
                    let consumed = inner.proto.positions().1;
                    //= spec §5.2.4
                    //# The credit word is written before, also if it was written with the same position already.
                    if matches!(inner.proto.rx_source(), RxSource::Link) {
                        tx.credit_word(device, &out.ring, consumed).map(|()| inner.sending.announced = consumed)
                    } else {
                        Ok(())
                    }
                }
                _ => Ok(()),
            };
            let sent = match &control {
                _ if announced.is_err() => announced,
                Control::Message(message) => tx.control(device, message),
                Control::Signal(kind) => match inner.proto.peer_slot() {
                    Some(slot) => tx.signal(device, *kind, slot),
                    None => Ok(()),
                },
            };
            // Its reader may poll the link for other streams whenever it does anyway, or for this one when its program next uses
            // it. OPEN and UNMARKED cannot wait so long.
            let urgent = match &control {
                Control::Message(ControlMessage::Open(_)) => tx.proto.streams() > 1,
                Control::Signal(MessageKind::Unmarked) => true,
                _ => false,
            };
            let knocks = urgent && link.caps.knock;
            drop(tx);
            match sent {
                Ok(()) if knocks => device.knock(link.qp),
                Ok(()) => {}
                Err(PostError::QueueFull) => {
                    inner.proto.return_control(control);
                    self.wait_for_room();
                    break;
                }
                Err(_) => {
                    self.endpoint.enqueue_dead(link);
                    break;
                }
            }
        }
        self.after_change();
    }

    /// Bookkeeping of promotions, demotions and releases.
    fn after_change(&mut self) {
        self.update_low_water();
        let inner = &mut *self.inner;
        let counters = self.endpoint.counters();
        let opening = inner.proto.is_opening();
        let mut moved = self.cell.opening.swap(opening, Ordering::AcqRel) != opening;
        if inner.proto.promotions() != inner.reported.promotions {
            inner.reported.promotions = inner.proto.promotions();
            Counters::bump(&counters.streams_promoted);
            inner.reported.linked = true;
            moved = true;
        }
        if moved {
            if !opening {
                inner.attempt.opening = None;
            }
            self.endpoint.enqueue_moved(self.cell);
        }
        if matches!(inner.proto.failure(), Some(Failure::Violation(_))) && !inner.reported.violation {
            inner.reported.violation = true;
            Counters::bump(&counters.violations);
        }
        if inner.reported.linked && inner.proto.is_plain() {
            inner.reported.linked = false;
            if !inner.closing.is_closed() {
                Counters::bump(&counters.streams_demoted);
                counters.reason(inner.proto.reason());
                // A thread that polled its link for it may poll there no more.
                self.endpoint.enqueue_moved(self.cell);
            }
        }
        // Its program may never use it again; but the peer's program must see the end.
        if self.is_end_pending() && !self.inner.closing.is_closed() && self.inner.listed.add(Listed::BLOCKED) {
            self.endpoint.enqueue_blocked(self.cell);
        }
        let inner = &mut *self.inner;
        let has_resources = inner.attached.is_some() || inner.listed.contains(Listed::LINGERING);
        if has_resources && !inner.listed.contains(Listed::RELEASE) && inner.is_idle() {
            inner.listed.insert(Listed::RELEASE);
            self.endpoint.enqueue_release(self.cell);
        }
    }

    /// Publishes the readiness for readers without the stream's lock, and informs the owner.
    ///
    /// They check it after the kernel has reported the anchor readable, to distinguish application bytes from a record.
    /// So it must be right before anything is sent that the peer answers with a record.
    #[inline]
    pub(crate) fn publish(&mut self) {
        let now = readiness_of(&self.inner, self.cell.low_water());
        let before = self.cell.readiness().difference(Readiness::NOTICE);
        if now != before {
            // Only the thread that has the stream locked changes these bits; the owner's own bit stays as it is.
            self.cell.ready.fetch_xor((now ^ before).bits(), Ordering::AcqRel);
        }
        // Nobody waits until there is nothing to read: what a read takes from the link concerns its caller alone.
        if self.arrived || now != before.difference(Readiness::READABLE) && now != before {
            self.endpoint.sink().ready(self.cell, now, self.arrived);
            self.arrived = false;
        }
    }

    /// Where a record may come, the kernel must report fewer bytes than the program's low-water mark.
    pub(super) fn update_low_water(&mut self) {
        let inner = &mut *self.inner;
        let wanted = if matches!(inner.proto.rx_source(), RxSource::Anchor(_)) { self.cell.low_water() } else { 1 };
        if std::mem::replace(&mut inner.tcp.low_water, wanted) != wanted {
            inner.anchor.set_low_water(wanted);
        }
    }
}
