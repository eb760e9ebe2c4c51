//! Two streams, with everything between them accessible to the test.

use std::collections::VecDeque;

use netacc_device::RemoteKey;
use netacc_proto::{
    AnchorWrite, Control, ControlMessage, Markers, MessageKind, Record, RecordKind, RecordVerdict, Rest,
    RingDescriptor, Role, RxSource, Stream, StreamConfig, WireTuple, RECORD_LEN,
};

pub(crate) const O: usize = 0;
pub(crate) const A: usize = 1;
pub(crate) const RING: u32 = 4096;
pub(crate) const NONCE: [[u8; 16]; 2] = [[1; 16], [2; 16]];

pub(crate) struct Pair {
    pub(crate) side: [Stream; 2],
    /// Messages to each side.
    pub(crate) link: [VecDeque<Control>; 2],
    /// Bytes on the anchor to each side.
    pub(crate) anchor: [VecDeque<u8>; 2],
    pub(crate) anchor_ended: [bool; 2],
    /// `shutdown(SHUT_RD)` has been applied to it.
    pub(crate) anchor_read_shut: [bool; 2],
    /// The bytes that each side keeps of its outgoing ring.
    kept: [Vec<u8>; 2],
    /// Whether the link allows them to be put off.
    pub(crate) markers: Markers,
}

impl Pair {
    pub(crate) fn new(trust_hints: bool) -> Pair {
        Pair {
            side: [Role::Opener, Role::Acceptor].map(|role| Stream::new(role, StreamConfig { trust_hints })),
            link: Default::default(),
            anchor: Default::default(),
            anchor_ended: [false; 2],
            anchor_read_shut: [false; 2],
            kept: [vec![0; RING as usize], vec![0; RING as usize]],
            markers: Markers::Written,
        }
    }

    /// On a link on which both sides put their markers off.
    pub(crate) fn without_markers() -> Pair {
        Pair { markers: Markers::PutOff, ..Pair::new(true) }
    }

    /// Both on the link.
    pub(crate) fn promoted() -> Pair {
        let mut p = Pair::new(false);
        p.open();
        p.run_until_idle();
        assert!(p.side[O].is_linked() && p.side[A].is_linked());
        p
    }

    pub(crate) fn open(&mut self) {
        let tuple = WireTuple { local: ([0; 16], 1), remote: ([0; 16], 2) };
        self.side[O].open(0, tuple, 7, NONCE[O], ring(), self.markers);
        self.flush();
    }

    /// Takes the records and messages that both sides want written and sent out of them.
    pub(crate) fn flush(&mut self) {
        for s in 0..2 {
            self.write_anchor(s);
            while let Some(control) = self.side[s].poll_control() {
                self.link[1 - s].push_back(control);
            }
        }
    }

    pub(crate) fn write_anchor(&mut self, s: usize) {
        while let Some(write) = self.side[s].poll_anchor_write() {
            let n = match write {
                AnchorWrite::Record(bytes, from) => {
                    self.anchor[1 - s].extend(&bytes[from..]);
                    RECORD_LEN - from
                }
                AnchorWrite::Replay(span) => {
                    let at = span.offset as usize;
                    self.anchor[1 - s].extend(&self.kept[s][at..at + span.len as usize]);
                    span.len as usize
                }
                AnchorWrite::Shutdown => {
                    self.anchor_ended[1 - s] = true;
                    0
                }
                AnchorWrite::ShutdownRead => {
                    self.anchor_read_shut[s] = true;
                    0
                }
            };
            self.side[s].anchor_written(n);
            if write == AnchorWrite::ShutdownRead {
                self.side[s].refuse_unread(self.anchor[s].len() as u64);
            }
        }
    }

    /// Delivers all messages in flight to `s`.
    pub(crate) fn deliver(&mut self, s: usize) {
        while let Some(control) = self.link[s].pop_front() {
            self.give(s, control);
        }
        self.flush();
    }

    fn give(&mut self, s: usize, control: Control) {
        match control {
            Control::Message(ControlMessage::Open(open)) => {
                if let Err(reason) = self.side[s].accept(&open, 0, NONCE[s], ring(), self.markers) {
                    self.side[1 - s].handle_refuse(reason);
                }
            }
            Control::Message(ControlMessage::Accept(accept)) => self.side[s].handle_accept(&accept),
            Control::Message(message) => panic!("not a stream's: {message:?}"),
            Control::Signal(kind) => self.side[s].handle_signal(kind),
        }
    }

    /// Lets `s` peek at the anchor where a record may be.
    pub(crate) fn peek(&mut self, s: usize) -> Option<RecordVerdict> {
        if matches!(self.side[s].rx_source(), RxSource::Anchor(_)) || self.anchor[s].is_empty() {
            return None;
        }
        let head: Vec<u8> = self.anchor[s].iter().copied().take(RECORD_LEN).collect();
        let verdict = self.side[s].handle_record(&head, if self.anchor_ended[s] { Rest::Ended } else { Rest::Coming });
        if verdict == RecordVerdict::Consume {
            self.anchor[s].drain(..RECORD_LEN);
        }
        self.flush();
        Some(verdict)
    }

    /// Everything that happens by itself.
    pub(crate) fn run_until_idle(&mut self) {
        for _ in 0..8 {
            for s in 0..2 {
                self.deliver(s);
                self.peek(s);
            }
        }
    }

    /// The application of `s` writes on the anchor.
    pub(crate) fn write_plain(&mut self, s: usize, bytes: &[u8]) {
        self.side[s].void_pledge();
        self.side[s].anchor_sent(bytes.len() as u64);
        self.anchor[1 - s].extend(bytes);
        self.flush();
    }

    /// The application of `s` writes on the link; the message arrives at once.
    pub(crate) fn write_linked(&mut self, s: usize, bytes: &[u8]) {
        let rewind = self.hold_back(s, bytes);
        self.side[1 - s].handle_data(bytes.len() as u32, rewind);
    }

    /// The application of `s` writes on the link; the message is not sent yet. Returns whether it will carry REWIND.
    pub(crate) fn hold_back(&mut self, s: usize, bytes: &[u8]) -> bool {
        let span = self.side[s].claim(bytes.len() as u32);
        assert_eq!(span.len as usize, bytes.len());
        let at = span.offset as usize;
        self.kept[s][at..at + bytes.len()].copy_from_slice(bytes);
        self.side[s].commit(span.len)
    }

    /// The application of `s` reads all that the anchor has for it.
    pub(crate) fn read_plain(&mut self, s: usize) -> Vec<u8> {
        let RxSource::Anchor(limit) = self.side[s].rx_source() else { panic!("{:?}", self.side[s].rx_source()) };
        let n = self.anchor[s].len().min(limit as usize);
        self.side[s].anchor_received(n as u64);
        self.anchor[s].drain(..n).collect()
    }

    /// The bytes on the anchor to `s`.
    pub(crate) fn bytes_to(&self, s: usize) -> Vec<u8> {
        self.anchor[s].iter().copied().collect()
    }

    /// Whether a record of this kind is the next thing on the anchor to `s`.
    pub(crate) fn record_to(&self, s: usize) -> Option<RecordKind> {
        let head: Vec<u8> = self.anchor[s].iter().copied().take(RECORD_LEN).collect();
        Record::decode(head.first_chunk()?).ok().map(|r| r.kind)
    }

    pub(crate) fn signals_to(&self, s: usize) -> Vec<MessageKind> {
        self.link[s].iter().filter_map(|c| if let Control::Signal(kind) = c { Some(*kind) } else { None }).collect()
    }
}

pub(crate) fn ring() -> RingDescriptor {
    RingDescriptor { rkey: RemoteKey(0), base: 0, ring_len: RING }
}
