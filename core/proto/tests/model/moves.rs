//! The steps of the world: the model's replacement for the driver, the device and the kernel.

use netacc_device::RemoteKey;
use netacc_proto::{
    AnchorWrite, Control, ControlMessage, Failure, Markers, MessageKind, Phase, Reason, Record, RecordKind,
    RecordVerdict, Refuse, Rest, RingDescriptor, RxSource, TxSink, WireTuple, RECORD_LEN,
};

use crate::mutants::Mutant;
use crate::world::{Bounds, Link, Message, Region, Symbol, Trust, World, OPENER, RING};

impl World {
    pub(crate) fn open(&mut self, bounds: &Bounds) {
        self.attempts += 1;
        let k = match self.links.last() {
            Some(link) if !link.dead => self.links.len() - 1,
            // The opener learns of a death before it connects anew.
            Some(link) if !link.notified[OPENER] => self.links.len() - 1,
            _ => {
                self.links.push(Link::default());
                self.links.len() - 1
            }
        };
        self.side[OPENER].link = Some(k);
        let attempt = self.attempts;
        self.side[OPENER].region = Region { attempt, ..Region::default() };
        self.side[OPENER].outgoing = 0;
        let tuple = WireTuple { local: ([0; 16], 0), remote: ([0; 16], 0) };
        self.side[OPENER].stream.open(0, tuple, 0, [attempt; 16], ring(attempt), markers(bounds));
    }

    pub(crate) fn deliver(&mut self, bounds: &Bounds, s: usize, k: usize, message: Message) {
        let registered = self.side[s].link == Some(k);
        match message {
            Message::Control(ControlMessage::Open(open)) => {
                let attempt = open.ring.rkey.0 as u8;
                let side = &mut self.side[s];
                let nonce = [0x80 | attempt; 16];
                let result = match side.link {
                    _ if side.crashed => return,
                    _ if side.closed => Err(Reason::UnknownStream),
                    Some(_) => Err(Reason::PeerBusy),
                    None => side.stream.accept(&open, 0, nonce, ring(attempt), markers(bounds)),
                };
                match result {
                    Ok(()) => {
                        side.link = Some(k);
                        side.region = Region { attempt, ..Region::default() };
                        side.outgoing = attempt;
                    }
                    Err(reason) => {
                        let refuse = Refuse { peer_slot: open.slot, reason: reason as u16, redirect_port: 0 };
                        self.post(bounds, s, k, Message::Control(ControlMessage::Refuse(refuse)));
                    }
                }
            }
            // Crossed our CLOSE.
            _ if !registered || self.side[s].crashed => {}
            Message::Control(ControlMessage::Accept(accept)) => {
                self.side[s].outgoing = accept.ring.rkey.0 as u8;
                if bounds.trust == Trust::Sleeper {
                    self.side[s].stream.require_marker();
                }
                self.side[s].stream.handle_accept(&accept);
            }
            Message::Control(ControlMessage::Refuse(refuse)) => {
                self.side[s].stream.handle_refuse(Reason::from_code(refuse.reason));
            }
            // The link's, and those of flows of datagrams: a stream sends none.
            Message::Control(
                ControlMessage::Hello(_)
                | ControlMessage::Proof(_)
                | ControlMessage::Flow(_)
                | ControlMessage::Grant(_),
            ) => {}
            Message::Data { rewind } => self.side[s].stream.handle_data(1, rewind),
            Message::Signal(kind) => {
                self.side[s].stream.handle_signal(kind);
                if kind == MessageKind::CreditGive {
                    let word = self.side[s].region.word;
                    self.side[s].stream.handle_consumed(u64::from(word));
                    if std::mem::take(&mut self.side[s].asleep) && self.side[s].stream.free() == 0 {
                        self.error = Some("credit given, but none is there");
                    }
                }
            }
        }
    }

    /// Sends on a link: lost if it is dead.
    fn post(&mut self, bounds: &Bounds, s: usize, k: usize, message: Message) {
        if bounds.mutant.is_some_and(|m| m.drops(message)) {
            return;
        }
        let link = &mut self.links[k];
        if !link.dead {
            link.to[1 - s].push_back(message);
            if let Some(m) = bounds.mutant {
                m.disturb(&mut link.to[1 - s]);
            }
        }
    }

    pub(crate) fn send_control(&mut self, bounds: &Bounds, s: usize) {
        let Some(control) = self.side[s].stream.poll_control() else { return };
        let Some(k) = self.side[s].link else { return };
        let message = match control {
            Control::Message(m) => Message::Control(m),
            Control::Signal(_) if self.side[s].stream.peer_slot().is_none() => return,
            Control::Signal(kind) => Message::Signal(kind),
        };
        self.post(bounds, s, k, message);
    }

    fn put_on_anchor(&mut self, s: usize, symbol: Symbol) {
        let (us, peer) = (&self.side[s], &self.side[1 - s]);
        if us.anchor_closed || us.crashed {
            self.error = Some("write on a closed anchor");
        } else if peer.anchor_closed || peer.crashed {
            // The kernel answers with RST.
            if self.anchor[s].back() != Some(&Symbol::Rst) {
                self.anchor[s].push_back(Symbol::Rst);
            }
        } else {
            self.anchor[1 - s].push_back(symbol);
        }
    }

    pub(crate) fn write_anchor(&mut self, bounds: &Bounds, s: usize, len: usize) {
        let Some(write) = self.side[s].stream.poll_anchor_write() else { return };
        match write {
            AnchorWrite::Record(bytes, from) => {
                let record = Record::decode(&bytes).expect("our own record");
                let n = len.min(RECORD_LEN - from);
                self.side[s].stream.anchor_written(n);
                if bounds.mutant.is_some_and(|m| m.omits(record.kind)) {
                    return;
                }
                let record = bounds.mutant.map_or(record, |m| m.forge(record));
                if from + n < RECORD_LEN {
                    self.put_on_anchor(s, Symbol::Half(record));
                } else {
                    if from > 0 {
                        self.anchor[1 - s].pop_back();
                    }
                    self.put_on_anchor(s, Symbol::Record(record));
                }
            }
            AnchorWrite::Replay(span) => {
                let peer = &self.side[1 - s];
                // A dead link's memory is not used for anything else (SPEC §5.1.4).
                let alive = self.side[s].link.is_some_and(|k| !self.links[k].dead);
                if self.side[s].outgoing == 0 || alive && !peer.closed && peer.region.attempt != self.side[s].outgoing {
                    self.error = Some("replay from freed memory");
                }
                let byte = self.side[s].copy[span.offset as usize];
                self.put_on_anchor(s, Symbol::App(byte));
                self.side[s].stream.anchor_written(1);
            }
            AnchorWrite::Shutdown => {
                self.side[s].stream.anchor_written(0);
                self.put_on_anchor(s, Symbol::Fin);
            }
            AnchorWrite::ShutdownRead => self.side[s].stream.anchor_written(0),
        }
    }

    /// The driver peeks at the anchor where a record may be.
    pub(crate) fn peek(&mut self, bounds: &Bounds, s: usize) -> Option<()> {
        let stream = &mut self.side[s].stream;
        match stream.rx_source() {
            RxSource::Anchor(_) => return None,
            RxSource::Eof | RxSource::Failed(_) if stream.phase() != Phase::Linked => return None,
            _ => {}
        }
        match *self.anchor[s].front()? {
            Symbol::Half(_) if self.anchor[s].len() > 1 => {
                if !self.link_polled(s) {
                    return None;
                }
                self.side[s].stream.handle_anchor_end(true);
            }
            Symbol::Rst => stream.handle_anchor_end(true),
            Symbol::Fin => {
                let hasty = bounds.mutant == Some(Mutant::HastyEnd) && stream.expects_unmarked();
                if !hasty && !self.link_polled(s) {
                    return None;
                }
                self.end(bounds, s);
            }
            Symbol::Record(Record { kind: RecordKind::Resume, .. }) if !bounds.may_lose() && !self.link_polled(s) => {
                return None;
            }
            symbol => {
                if self.side[s].stream.handle_record(&bytes_of(symbol), Rest::Coming) == RecordVerdict::Consume {
                    self.anchor[s].pop_front();
                }
            }
        }
        Some(())
    }

    /// The anchor has ended, and every message that the peer sent before is handled.
    fn end(&mut self, bounds: &Bounds, s: usize) {
        let side = &mut self.side[s];
        if bounds.may_lose() {
            return side.stream.handle_anchor_end(false);
        }
        side.stream.handle_consumed(u64::from(side.region.word));
        side.stream.handle_last_end(0);
    }

    /// Whether `s` has handled everything that its peer sent on the link before.
    fn link_polled(&self, s: usize) -> bool {
        self.side[s].link.is_none_or(|k| self.links[k].to[s].is_empty() || self.links[k].notified[s])
    }

    /// The application reads one byte, or learns of the end. A closed side's driver discards bytes.
    pub(crate) fn read(&mut self, bounds: &Bounds, s: usize) -> Option<()> {
        match self.side[s].stream.rx_source() {
            RxSource::Anchor(limit) => match *self.anchor[s].front()? {
                Symbol::App(byte) => {
                    self.anchor[s].pop_front();
                    self.side[s].stream.anchor_received(1);
                    self.taken(s, byte);
                }
                Symbol::Record(_) | Symbol::Half(_) => self.error = Some("a record read as application data"),
                Symbol::Rst => {
                    self.side[s].stream.handle_anchor_end(true);
                    self.side[s].reset = true;
                }
                Symbol::Fin if limit == u64::MAX => self.side[s].eof = true,
                Symbol::Fin if self.link_polled(s) => self.end(bounds, s),
                Symbol::Fin => return None,
            },
            RxSource::Record => return None,
            RxSource::Link => {
                let span = self.side[s].stream.readable(0);
                if span.len == 0 {
                    return None;
                }
                if self.side[s].region.attempt == 0 {
                    self.error = Some("read of freed memory");
                }
                let byte = self.side[s].region.bytes[span.offset as usize];
                let credit = self.side[s].stream.consume(1);
                self.taken(s, byte);
                if credit.announce && bounds.mutant != Some(Mutant::NoCredit) {
                    self.write_credit(bounds, s, credit.consumed as u8);
                }
                if credit.give {
                    self.side[s].stream.give_credit();
                }
            }
            RxSource::Eof => self.side[s].eof = true,
            RxSource::Failed(_) => self.side[s].reset = true,
        }
        Some(())
    }

    fn taken(&mut self, s: usize, byte: u8) {
        if self.side[s].closed {
            return;
        }
        if byte != self.side[s].read {
            self.error = Some("a byte lost, doubled or out of order");
        }
        self.side[s].read += 1;
    }

    /// Writes the credit word in the peer's region.
    fn write_credit(&mut self, _: &Bounds, s: usize, consumed: u8) {
        let Some(k) = self.side[s].link else { return };
        let attempt = self.side[s].outgoing;
        let peer = &mut self.side[1 - s];
        if peer.region.attempt == attempt {
            peer.region.word = consumed;
        } else if !self.links[k].dead && !peer.crashed {
            self.error = Some("credit written to freed memory");
        }
    }

    pub(crate) fn write(&mut self, bounds: &Bounds, s: usize) -> Option<()> {
        if self.side[s].stream.tx_sink() == TxSink::Pledged && bounds.mutant != Some(Mutant::SilentVoid) {
            self.side[s].stream.void_pledge();
        }
        let byte = self.side[s].wrote;
        match self.side[s].stream.tx_sink() {
            TxSink::Anchor | TxSink::Pledged => {
                self.put_on_anchor(s, Symbol::App(byte));
                self.side[s].stream.anchor_sent(1);
            }
            TxSink::Link => {
                let word = self.side[s].region.word;
                self.side[s].stream.handle_consumed(u64::from(word));
                let k = self.side[s].link?;
                if self.links[k].dead && bounds.trust.is_certain() && bounds.mutant != Some(Mutant::BlindSender) {
                    // Refused: the write waits for the stream to leave the link.
                    return None;
                }
                let span = self.side[s].stream.claim(1);
                if span.len == 0 {
                    self.side[s].stream.stalled();
                    self.side[s].asleep = true;
                    return Some(());
                }
                let rewind = self.side[s].stream.commit(1);
                self.side[s].copy[span.offset as usize] = byte;
                let attempt = self.side[s].outgoing;
                let peer = &mut self.side[1 - s];
                if peer.region.attempt == attempt {
                    peer.region.bytes[span.offset as usize] = byte;
                } else if !self.links[k].dead && !peer.crashed {
                    self.error = Some("data written to freed memory");
                }
                self.post(bounds, s, k, Message::Data { rewind });
            }
            TxSink::Refused if !bounds.gentle => {
                self.side[s].stream.refuse_write(1);
                return Some(());
            }
            TxSink::Wait | TxSink::Closed | TxSink::Refused => return None,
        }
        self.side[s].wrote += 1;
        Some(())
    }

    /// The process is killed: the kernel closes its anchor, and its links die.
    pub(crate) fn crash(&mut self, s: usize) {
        self.side[s].crashed = true;
        self.end_anchor(s, false);
        if let Some(link) = self.links.last_mut() {
            link.dead = true;
            link.notified[s] = true;
            link.to[s].clear();
        }
    }

    /// The kernel closes the anchor.
    fn end_anchor(&mut self, s: usize, abort: bool) {
        let unread = self.anchor[s].iter().any(|x| !matches!(x, Symbol::Fin | Symbol::Rst));
        self.side[s].anchor_closed = true;
        self.anchor[s].clear();
        let peer = &self.side[1 - s];
        if !peer.anchor_closed && !peer.crashed {
            let end = if abort || unread { Symbol::Rst } else { Symbol::Fin };
            if self.anchor[1 - s].back() != Some(&end) {
                self.anchor[1 - s].push_back(end);
            }
        }
    }

    /// The work of a driver after every change.
    pub(crate) fn drive(&mut self, bounds: &Bounds, s: usize) {
        if self.side[s].crashed {
            return;
        }
        loop {
            let before = (self.side[s].stream.clone(), self.anchor[1 - s].len());
            if !bounds.lazy_anchor && !self.side[s].anchor_closed {
                self.write_anchor(bounds, s, RECORD_LEN);
            }
            if !bounds.lazy_control {
                self.send_control(bounds, s);
            }
            if before == (self.side[s].stream.clone(), self.anchor[1 - s].len()) {
                break;
            }
        }
        let side = &mut self.side[s];
        if side.closed && !side.anchor_closed && !side.stream.must_linger() {
            let abort = side.stream.failure().is_some() || side.stream.resets();
            self.end_anchor(s, abort);
        }
        let side = &mut self.side[s];
        side.asleep &= side.stream.tx_sink() == TxSink::Link;
        let queued = side.stream.has_control();
        if side.link.is_some() && !queued && !side.stream.uses_slot() && !side.stream.needs_memory() {
            side.link = None;
            side.region = Region::default();
            side.outgoing = 0;
            side.copy = [0; RING];
        }
        if matches!(side.stream.failure(), Some(Failure::Violation(_))) {
            self.error = Some("an honest peer was accused");
        }
    }
}

/// Whether the link allows markers to be put off.
fn markers(bounds: &Bounds) -> Markers {
    if bounds.trust.is_certain() {
        Markers::PutOff
    } else {
        Markers::Written
    }
}

fn ring(attempt: u8) -> RingDescriptor {
    RingDescriptor { rkey: RemoteKey(u32::from(attempt)), base: 0, ring_len: RING as u32 }
}

fn bytes_of(symbol: Symbol) -> Vec<u8> {
    match symbol {
        Symbol::App(byte) => vec![byte],
        Symbol::Record(record) => record.encode().to_vec(),
        Symbol::Half(record) => record.encode()[..RECORD_LEN / 2].to_vec(),
        Symbol::Fin | Symbol::Rst => Vec::new(),
    }
}
