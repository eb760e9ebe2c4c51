//! The sending half: fetches requests, makes messages of them, and completes them in order.

use crate::completions::{Completion, Kind};
use crate::context::Context;
use crate::device::{Device, MAX_MESSAGE};
use crate::events::AsyncEvent;
use crate::host::Host;
use crate::pages::Pages;
use crate::queue_pair::Pending;
use crate::region::{Access, Mapping, Range, Rights, Violation};
use crate::settings::Completes;
use crate::status::Status;
use crate::wire::{Action, Message, Reply};
use crate::work::{decode, Header, MapPages, MapRegion, Segment, Source, Work, MAX_BLOCKS, MAX_BYTES};

/// Requests of a queue pair in flight. Arbitrary: the driver's limit for READs (erdma_verbs.h: `ERDMA_MAX_ORD`).
const MAX_PENDING: usize = 128;

/// Payload of a queue pair in flight; a single message may be longer. Arbitrary: it bounds the memory of this process.
const MAX_PENDING_BYTES: u64 = 16 << 20;

/// The result of fetching a request.
enum Fetched {
    /// It is sent; an answer's data goes to that place.
    Message(Action, Option<(Segment, bool)>),
    /// It was done here.
    Local,
}

impl Device {
    /// The next message of a queue pair. `None`: none now; call again after a doorbell or an answer.
    pub(crate) fn next_message(&mut self, cx: &mut Context<impl Host>, qpn: u32) -> Option<Message> {
        loop {
            let qp = self.queue_pairs.get(&qpn).filter(|qp| qp.is_ready())?;
            let send = &qp.send;
            let full = send.pending.len() >= MAX_PENDING || send.pending_bytes >= MAX_PENDING_BYTES;
            // A request that failed waits for older ones; later requests are not sent.
            let failed = send.pending.iter().any(|p| p.outcome.is_some_and(|status| status != Status::Success));
            if send.posted == send.fetched || full || failed || !self.budget.has_room(qpn) {
                return None;
            }
            let index = send.fetched;
            let mut bytes = [0; MAX_BYTES];
            let read = send.ring.read(&cx.host, u32::from(index), &mut bytes[..32]);
            let header = Header::new(&bytes);
            if header.fenced() && !send.pending.is_empty() {
                return None;
            }
            let blocks = header.blocks();
            let whole = blocks <= MAX_BLOCKS && blocks <= send.posted.wrapping_sub(index);
            let bytes = &mut bytes[..usize::from(blocks.min(MAX_BLOCKS)) * 32];
            let fetched = if read.is_ok() && whole && send.ring.read(&cx.host, u32::from(index), bytes).is_ok() {
                self.fetch(cx, qpn, bytes)
            } else {
                Err(Status::SendFormat)
            };
            let message = self.begin(cx, qpn, (index, header), fetched);
            self.complete_done(cx, qpn);
            if message.is_some() {
                return message;
            }
        }
    }

    /// Enters a request that was fetched.
    fn begin(
        &mut self,
        cx: &mut Context<impl Host>,
        qpn: u32,
        (index, header): (u16, Header),
        fetched: Result<Fetched, Status>,
    ) -> Option<Message> {
        let qp = self.queue_pairs.get_mut(&qpn)?;
        let left = qp.send.posted.wrapping_sub(index);
        qp.send.fetched = index.wrapping_add(header.blocks().min(MAX_BLOCKS).min(left));
        let (opcode, signaled) = (header.opcode(), header.signaled());
        let mut pending = Pending {
            id: None,
            index,
            opcode,
            signaled,
            len: 0,
            sink: None,
            done_when_sent: false,
            reported: false,
            outcome: None,
        };
        match fetched {
            Ok(Fetched::Message(action, sink)) => {
                let message = Message { id: qp.next_id, solicited: header.solicited(), action };
                qp.next_id += 1;
                pending.id = Some(message.id);
                pending.len = sink.map_or(message.len(), |(segment, _)| segment.len);
                pending.sink = sink;
                pending.done_when_sent = cx.settings.completes == Completes::Sent && sink.is_none();
                cx.counters.tx_requests += 1;
                cx.counters.tx_bytes += u64::from(message.len());
                self.budget.take_payload(u64::from(pending.len));
                qp.send.push(pending);
                Some(message)
            }
            Ok(Fetched::Local) => {
                qp.send.push(Pending { outcome: Some(Status::Success), ..pending });
                None
            }
            Err(status) => {
                qp.send.push(Pending { outcome: Some(status), ..pending });
                None
            }
        }
    }

    fn fetch(&mut self, cx: &mut Context<impl Host>, qpn: u32, bytes: &[u8]) -> Result<Fetched, Status> {
        let domain = self.queue_pairs.get(&qpn).map(|qp| qp.domain).ok_or(Status::General)?;
        let work = decode(bytes, qpn, cx.settings.limits.atomics).map_err(|_| Status::SendFormat)?;
        Ok(match work {
            Work::Write { source, address, key, imm } => {
                let data = self.gather(cx, domain, source)?;
                Fetched::Message(Action::Write { key, address, imm, data }, None)
            }
            Work::Send { source, extra } => {
                let data = self.gather(cx, domain, source)?;
                Fetched::Message(Action::Send { extra, data }, None)
            }
            Work::Read { local, address, key, invalidate } => {
                self.check_sink(domain, local)?;
                Fetched::Message(Action::Read { key, address, len: local.len }, Some((local, invalidate)))
            }
            Work::Atomic { local, address, key, change } => {
                self.check_sink(domain, local)?;
                Fetched::Message(Action::Atomic { key, address, change }, Some((local, false)))
            }
            Work::MapRegion(map) => {
                self.map_region(cx, domain, map).map_err(Violation::at_requester)?;
                Fetched::Local
            }
            Work::LocalInvalidate { key } => {
                self.invalidate(domain, key).map_err(Violation::at_requester)?;
                Fetched::Local
            }
        })
    }

    /// The payload of a request.
    fn gather(&self, cx: &Context<impl Host>, domain: u32, source: Source) -> Result<Vec<u8>, Status> {
        let mut segments = match source {
            Source::Inline(data) => return Ok(data),
            Source::Segments(segments) => segments,
        };
        // An empty piece has no memory, and its key no meaning.
        segments.retain(|segment| segment.len > 0);
        let len: u64 = segments.iter().map(|segment| u64::from(segment.len)).sum();
        if len > MAX_MESSAGE {
            return Err(Status::LocalBounds);
        }
        // All are checked before memory is allocated for any.
        for segment in &segments {
            let access = local(domain, segment, Rights::LOCAL_READ);
            let permitted = self.region(&access).and_then(|region| region.permits(&access, u64::from(segment.len)));
            permitted.map_err(Violation::at_requester)?;
        }
        let mut data = vec![0; len as usize];
        let mut rest = &mut data[..];
        for segment in &segments {
            let (piece, behind) = rest.split_at_mut(segment.len as usize);
            let access = local(domain, segment, Rights::LOCAL_READ);
            let read = self.region(&access).and_then(|region| region.read(&cx.host, &access, piece));
            read.map_err(Violation::at_requester)?;
            rest = behind;
        }
        Ok(data)
    }

    fn check_sink(&self, domain: u32, sink: Segment) -> Result<(), Status> {
        if u64::from(sink.len) > MAX_MESSAGE {
            return Err(Status::LocalBounds);
        }
        let access = local(domain, &sink, Rights::LOCAL_WRITE);
        let permitted = self.region(&access).and_then(|region| region.permits(&access, u64::from(sink.len)));
        permitted.map_err(Violation::at_requester)
    }

    fn map_region(&mut self, cx: &Context<impl Host>, domain: u32, map: MapRegion) -> Result<(), Violation> {
        let region = self.regions.get_mut(&(map.key >> 8)).ok_or(Violation::Key)?;
        let fast = region.fast.ok_or(Violation::Right)?;
        if region.domain != domain {
            return Err(Violation::Domain);
        }
        if region.mapping != Mapping::Unmapped {
            return Err(Violation::Key);
        }
        let pages = match map.pages {
            MapPages::Inline(pages) => Some(pages),
            MapPages::Table(count) if count <= fast.capacity => {
                Pages::read_table(&cx.host, fast.address, count, map.shift)?
            }
            MapPages::Table(_) => None,
        };
        let range =
            pages.and_then(|pages| Range::new(map.start, u64::from(map.len), pages)).ok_or(Violation::Bounds)?;
        let mapping = Mapping::Range(range);
        self.budget.take_pages(mapping.pages()).map_err(|_| Violation::Bounds)?;
        // The request gives the region the key for its use.
        region.key = map.key as u8;
        region.rights = map.rights;
        region.mapping = mapping;
        Ok(())
    }

    /// An answer came.
    pub(crate) fn handle_reply(&mut self, cx: &mut Context<impl Host>, qpn: u32, id: u64, reply: Reply) {
        let Some(qp) = self.queue_pairs.get_mut(&qpn).filter(|qp| qp.is_ready()) else { return };
        let position = qp.send.pending.iter().position(|pending| pending.id == Some(id));
        let sink = position.and_then(|position| qp.send.pending.get(position)?.sink);
        let domain = qp.domain;
        let terminated = matches!(reply, Reply::Terminated(_));
        let status = match (reply, sink) {
            (Reply::Done, None) => Status::Success,
            (Reply::Data(data), Some((sink, invalidate))) if data.len() == sink.len as usize => {
                match self.place(cx, domain, sink, invalidate, &data) {
                    Ok(()) => Status::Success,
                    Err(violation) => violation.at_requester(),
                }
            }
            (Reply::Terminated(status), _) => status,
            (Reply::Done | Reply::Data(_), _) => Status::General,
        };
        let pending = position.and_then(|position| self.queue_pairs.get_mut(&qpn)?.send.pending.get_mut(position));
        if let Some(pending) = pending {
            pending.outcome = Some(status);
        }
        self.complete_done(cx, qpn);
        if terminated {
            self.fail(cx, qpn, AsyncEvent::QpFatal, false);
        }
    }

    fn place(
        &mut self,
        cx: &mut Context<impl Host>,
        domain: u32,
        sink: Segment,
        invalidate: bool,
        data: &[u8],
    ) -> Result<(), Violation> {
        let access = local(domain, &sink, Rights::LOCAL_WRITE);
        let region = self.regions.get(&(access.key >> 8)).ok_or(Violation::Key)?;
        region.write(&mut cx.host, &access, data)?;
        if invalidate {
            self.invalidate(domain, sink.key)?;
        }
        Ok(())
    }

    /// The wire has given up: the oldest request ends with `status`, and the queue pair fails.
    pub(crate) fn give_up(&mut self, cx: &mut Context<impl Host>, qpn: u32, status: Status) {
        let Some(qp) = self.queue_pairs.get_mut(&qpn).filter(|qp| qp.is_ready()) else { return };
        if qp.send.pending.is_empty() && qp.send.posted != qp.send.fetched {
            let index = qp.send.fetched;
            let mut first = [0; 8];
            let read = qp.send.ring.read(&cx.host, u32::from(index), &mut first).is_ok();
            let status = if read { status } else { Status::SendFormat };
            self.begin(cx, qpn, (index, Header::new(&first)), Err(status));
        } else if let Some(oldest) = qp.send.unreported() {
            oldest.outcome = Some(status);
        }
        self.complete_done(cx, qpn);
        self.fail(cx, qpn, AsyncEvent::QpFatal, false);
    }

    /// Completes the oldest requests as far as they are done, and forgets those that were answered.
    fn complete_done(&mut self, cx: &mut Context<impl Host>, qpn: u32) {
        while let Some(qp) = self.queue_pairs.get_mut(&qpn).filter(|qp| qp.is_ready()) {
            let cqn = qp.send.cqn;
            let Some(pending) = qp.send.unreported() else { break };
            let sent = pending.done_when_sent.then_some(Status::Success);
            let Some(status) = pending.outcome.or(sent) else { break };
            pending.reported = true;
            let completion = Completion {
                kind: Kind::Send,
                opcode: pending.opcode,
                status: status.code(),
                index: u32::from(pending.index),
                qpn,
                extra: [0; 4],
                len: pending.len,
                solicited: false,
            };
            if pending.signaled || status != Status::Success {
                self.complete(cx, cqn, &completion);
            }
            if status != Status::Success {
                self.fail(cx, qpn, AsyncEvent::QpFatal, false);
            }
        }
        while let Some(done) = self.queue_pairs.get_mut(&qpn).and_then(|qp| qp.send.take_done()) {
            self.budget.give_payload(u64::from(done.len));
        }
        self.feed(cx);
    }
}

fn local(domain: u32, segment: &Segment, right: Rights) -> Access {
    Access { domain, key: segment.key, address: segment.address, right }
}
