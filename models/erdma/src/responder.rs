//! The receiving half: checks messages, places their data, and consumes receives.

use crate::completions::{Completion, Kind};
use crate::context::Context;
use crate::device::Device;
use crate::events::AsyncEvent;
use crate::host::Host;
use crate::region::{Access, Rights, Violation};
use crate::settings::EmptyReceiveQueue;
use crate::status::Status;
use crate::wire::{Action, Message, Reply, SendExtra};
use crate::work::{opcode, Receive};

/// The reason why a message ends the connection.
struct Refusal {
    event: AsyncEvent,
    /// The status with which the request completes.
    at_requester: Status,
}

impl From<Violation> for Refusal {
    fn from(violation: Violation) -> Refusal {
        Refusal { event: AsyncEvent::AccessError, at_requester: violation.at_responder() }
    }
}

/// The result of handling a message.
enum Handled {
    Reply(Reply),
    /// It needs a receive.
    Waits,
}

impl Device {
    /// A message has arrived. [`handle_next`](Device::handle_next) handles it in its turn.
    pub(crate) fn deliver(&mut self, cx: &mut Context<impl Host>, qpn: u32, message: Message) {
        match self.queue_pairs.get_mut(&qpn).filter(|qp| qp.is_ready()) {
            // Bounded by the peer's messages in flight.
            Some(qp) => qp.receive.waiting.push_back(message),
            None => cx.counters.rx_drops += 1,
        }
    }

    /// Handles the oldest message that has arrived; returns the answer and the number of its message. `None`: there is
    /// none, or it waits.
    pub(crate) fn handle_next(&mut self, cx: &mut Context<impl Host>, qpn: u32) -> Option<(u64, Reply)> {
        if cx.settings.stall_receive {
            return None;
        }
        let qp = self.queue_pairs.get_mut(&qpn).filter(|qp| qp.is_ready())?;
        let message = qp.receive.waiting.pop_front()?;
        match self.handle(cx, qpn, &message) {
            Ok(Handled::Reply(reply)) => {
                cx.counters.rx_requests += 1;
                cx.counters.rx_bytes += u64::from(message.len());
                Some((message.id, reply))
            }
            Ok(Handled::Waits) => {
                self.queue_pairs.get_mut(&qpn)?.receive.waiting.push_front(message);
                None
            }
            Err(Refusal { event, at_requester }) => {
                cx.counters.rx_drops += 1;
                self.fail(cx, qpn, event, true);
                Some((message.id, Reply::Terminated(at_requester)))
            }
        }
    }

    fn handle(&mut self, cx: &mut Context<impl Host>, qpn: u32, message: &Message) -> Result<Handled, Refusal> {
        let Some(qp) = self.queue_pairs.get(&qpn) else { return Ok(Handled::Waits) };
        let domain = qp.domain;
        let consumes =
            !matches!(message.action, Action::Write { imm: None, .. } | Action::Read { .. } | Action::Atomic { .. });
        if consumes && qp.receive.is_empty() {
            return match cx.settings.empty_receive_queue {
                EmptyReceiveQueue::Stall => Ok(Handled::Waits),
                // The request's own bytes have arrived: its sender sees success, and then the end.
                EmptyReceiveQueue::Fatal => {
                    Err(Refusal { event: AsyncEvent::EmptyReceiveQueue, at_requester: Status::Success })
                }
            };
        }
        let remote = |key: u32, address: u64, right: Rights| Access { domain, key, address, right };
        match &message.action {
            Action::Write { key, address, imm, data } => {
                if !data.is_empty() {
                    let access = remote(*key, *address, Rights::REMOTE_WRITE);
                    self.regions.get(&(key >> 8)).ok_or(Violation::Key)?.write(&mut cx.host, &access, data)?;
                }
                if let Some(imm) = imm {
                    self.receive(cx, qpn, message.solicited, |_, _| Arrived {
                        opcode: opcode::RECEIVE_WRITE_IMM,
                        extra: *imm,
                        len: message.len(),
                        status: Status::Success,
                    })?;
                }
            }
            Action::Send { extra, data } => {
                let (opcode, bytes) = match extra {
                    SendExtra::Nothing => (opcode::RECEIVE, [0; 4]),
                    SendExtra::Imm(imm) => (opcode::RECEIVE_SEND_IMM, *imm),
                    SendExtra::Invalidate(key) => {
                        self.invalidate(domain, *key)?;
                        (opcode::RECEIVE_INVALIDATE, key.to_be_bytes())
                    }
                };
                self.receive(cx, qpn, message.solicited, |device, cx| Arrived {
                    opcode,
                    extra: bytes,
                    len: message.len(),
                    status: device.place_in_receive(cx, qpn, domain, data),
                })?;
            }
            Action::Read { key, address, len } => {
                let access = remote(*key, *address, Rights::REMOTE_READ);
                if *len == 0 {
                    return Ok(Handled::Reply(Reply::Data(Vec::new())));
                }
                let region = self.region(&access)?;
                region.permits(&access, u64::from(*len))?;
                let mut data = vec![0; *len as usize];
                region.read(&cx.host, &access, &mut data)?;
                return Ok(Handled::Reply(Reply::Data(data)));
            }
            Action::Atomic { key, address, change } => {
                let access = remote(*key, *address, Rights::REMOTE_ATOMIC);
                let at = self.region(&access)?.double_word(&access)?;
                let old = cx.host.update(at, &mut |old| change.apply(old)).map_err(Violation::from)?;
                return Ok(Handled::Reply(Reply::Data(old.to_le_bytes().to_vec())));
            }
        }
        Ok(Handled::Reply(Reply::Done))
    }

    /// Consumes a receive. Precondition: there is one.
    fn receive<H: Host>(
        &mut self,
        cx: &mut Context<H>,
        qpn: u32,
        solicited: bool,
        arrive: impl FnOnce(&mut Device, &mut Context<H>) -> Arrived,
    ) -> Result<(), Refusal> {
        let Arrived { opcode, extra, len, status } = arrive(self, cx);
        let Some(qp) = self.queue_pairs.get_mut(&qpn) else { return Ok(()) };
        let (index, cqn) = (qp.receive.consumed, qp.receive.cqn);
        qp.receive.consumed = index.wrapping_add(1);
        let completion = Completion {
            kind: Kind::Receive,
            opcode,
            status: status.code(),
            index: u32::from(index),
            qpn,
            extra,
            len,
            solicited,
        };
        self.complete(cx, cqn, &completion);
        match status {
            Status::Success => Ok(()),
            // The receiver's own fault, or a message too long for it: the sender's bytes have arrived.
            _ => Err(Refusal { event: AsyncEvent::AccessError, at_requester: Status::Success }),
        }
    }

    fn place_in_receive(&mut self, cx: &mut Context<impl Host>, qpn: u32, domain: u32, data: &[u8]) -> Status {
        let Some(qp) = self.queue_pairs.get(&qpn) else { return Status::General };
        let mut entry = [0; 32];
        let read = qp.receive.ring.read(&cx.host, u32::from(qp.receive.consumed), &mut entry);
        let Ok(Receive { segment }) = read.map_err(|_| ()).and_then(|()| Receive::decode(&entry, qpn).map_err(|_| ()))
        else {
            return Status::ReceiveFormat;
        };
        if data.len() > segment.len as usize {
            return Status::RemoteBounds;
        }
        if data.is_empty() {
            return Status::Success;
        }
        let access = Access { domain, key: segment.key, address: segment.address, right: Rights::LOCAL_WRITE };
        let region = self.regions.get(&(access.key >> 8)).ok_or(Violation::Key);
        match region.and_then(|region| region.write(&mut cx.host, &access, data)) {
            Ok(()) => Status::Success,
            Err(violation) => violation.at_responder(),
        }
    }
}

/// A message that consumes a receive.
struct Arrived {
    opcode: u8,
    extra: [u8; 4],
    len: u32,
    status: Status,
}
