//! One connected queue pair: message credit, control slots, and the slots of its streams.
//!
//! A message is anything that consumes a receive of the peer. On some devices a message without a posted receive kills
//! the connection, so the sender counts: it may have at most as many unconsumed messages as the peer keeps receives
//! posted. A few are kept for control, so that data never starves CLOSE or CREDIT_GIVE.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use netacc_device::Instant;

use crate::admission::{Admission, Side, Transcript};
use crate::reason::Reason;
use crate::ring::Violation;
use crate::silence::{LifeSigns, Silence, SilenceWatch};
use crate::wire::{ControlMessage, Credential, Hello, ProofBytes, CONTROL_SLOTS, INITIAL_MESSAGE_CREDIT, VERSION};

/// The part of a link's message credit that is for control messages only.
const CONTROL_RESERVE: u64 = 4;

/// How long a link may take to become ready for streams. Arbitrary: far longer than an emulated device needs.
pub const SETUP_LIMIT: core::time::Duration = core::time::Duration::from_secs(10);

/// How long an accepting side keeps a link on which no stream was ever opened. Arbitrary: the connector opens a stream
/// at once.
pub const UNUSED_LIMIT: core::time::Duration = core::time::Duration::from_secs(60);

/// A stream's slot on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u16);

/// Settings of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// Streams this side admits (`NACC_SOR_CONN_PER_QP`).
    pub max_streams: u16,
    /// Receives this side keeps posted.
    pub receive_depth: u32,
    /// Announce consumed messages to the peer after this many (1: every time, where writes are cheap).
    pub credit_interval: u32,
    /// This side connects; the other one accepts.
    pub connector: bool,
    /// This side accepts flows of datagrams.
    pub datagrams: bool,
}

/// The reason why a link cannot do an operation now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkError {
    /// All stream slots are taken.
    Full,
    /// The peer speaks another version.
    Version(u16),
    /// The peer broke the protocol.
    Violation(&'static str),
    /// The peer does not have the same pre-shared key.
    Refused(Reason),
}

/// State of one link. See the module documentation.
///
/// Invariant: `peer_consumed <= sent <= peer_consumed + credit`.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    /// With a pre-shared key.
    admission: Option<Admission>,
    /// The peer has proven that it has the key, or there is none.
    admitted: bool,
    /// One side refuses the link.
    refused: bool,
    /// The peer has broken the protocol.
    violated: bool,
    peer: Option<Hello>,
    /// Messages that the peer keeps receives posted for.
    peer_depth: u64,
    sent: u64,
    peer_consumed: u64,
    received: u64,
    announced: u64,
    controls: u64,
    /// Message numbers of control messages whose slot the peer may not have read.
    outstanding_controls: VecDeque<u64>,
    slots: Vec<bool>,
    used: u16,
    peer_wants: bool,
    we_want: bool,
    /// The range of message numbers in which all messages were LINK_GIVE.
    gives: (u64, u64),
    silence: SilenceWatch,
}

impl Link {
    /// A link that has just been connected.
    pub fn new(config: LinkConfig, admission: Option<Admission>) -> Link {
        Link {
            config,
            admitted: admission.is_none(),
            admission,
            refused: false,
            violated: false,
            peer: None,
            peer_depth: u64::from(INITIAL_MESSAGE_CREDIT),
            sent: 0,
            peer_consumed: 0,
            received: 0,
            announced: 0,
            controls: 0,
            outstanding_controls: VecDeque::with_capacity(CONTROL_SLOTS),
            slots: Vec::new(),
            used: 0,
            peer_wants: false,
            we_want: false,
            gives: (0, 0),
            silence: SilenceWatch::default(),
        }
    }

    /// The connecting side's first message.
    pub fn hello(&self) -> ControlMessage {
        ControlMessage::Hello(self.own_hello())
    }

    fn own_hello(&self) -> Hello {
        let credential = self.admission.as_ref().map(|a| Credential { nonce: a.nonce, proof: [0; 32] });
        Hello {
            version: VERSION,
            receive_depth: self.config.receive_depth,
            max_streams: self.config.max_streams,
            credential,
            datagrams: self.config.datagrams,
        }
    }

    /// The peer's first message. Returns the message to send next, if any. If the link is
    /// [refused](LinkError::Refused), it is also [`refuse`](Link::refuse)d.
    pub fn handle_hello(&mut self, hello: &Hello) -> Result<Option<ControlMessage>, LinkError> {
        //= spec §2.3.2
        //# A second HELLO, another version, or a receive depth below the initial credit ends the link.
        if self.peer.is_some() || self.refused {
            return Err(LinkError::Violation("second HELLO"));
        }
        if hello.version != VERSION {
            return Err(LinkError::Version(hello.version));
        }
        if hello.receive_depth < INITIAL_MESSAGE_CREDIT || hello.max_streams == 0 {
            return Err(LinkError::Violation("HELLO out of range"));
        }
        //= spec §2.5.1
        //# A link of which one side alone has a key is refused (§2.5.4).
        if self.admission.is_some() != hello.credential.is_some() {
            return Err(LinkError::Refused(Reason::KeyMissing));
        }
        let mut answer = self.own_hello();
        self.peer = Some(*hello);
        self.peer_depth = u64::from(hello.receive_depth);
        if let (Some(admission), Some(theirs)) = (&self.admission, &hello.credential) {
            let transcript = self.transcript(admission, hello);
            //= spec §2.5.2
            //# The accepting side's HELLO carries its *proof*; the connecting side verifies that, and sends its own in PROOF
            //# before anything else.
            if self.config.connector {
                let proven = transcript.verify(&admission.key, Side::Accepting, &theirs.proof);
                let proof = transcript.prove(&admission.key, Side::Connecting);
                self.admitted = proven;
                return if proven {
                    Ok(Some(ControlMessage::Proof(proof)))
                } else {
                    Err(LinkError::Refused(Reason::KeyMismatch))
                };
            }
            let proof = transcript.prove(&admission.key, Side::Accepting);
            answer.credential = Some(Credential { nonce: admission.nonce, proof });
        }
        Ok((!self.config.connector).then_some(ControlMessage::Hello(answer)))
    }

    /// The connecting side's proof.
    pub fn handle_proof(&mut self, proof: &ProofBytes) -> Result<(), LinkError> {
        //= spec §2.5.3
        //# PROOF that is not expected is a violation, and ends the link.
        let (Some(admission), Some(hello), false) =
            (&self.admission, &self.peer, self.admitted || self.config.connector)
        else {
            return Err(LinkError::Violation("PROOF out of turn"));
        };
        if self.refused {
            return Err(LinkError::Violation("PROOF out of turn"));
        }
        if !self.transcript(admission, hello).verify(&admission.key, Side::Connecting, proof) {
            return Err(LinkError::Refused(Reason::KeyMismatch));
        }
        self.admitted = true;
        Ok(())
    }

    fn transcript(&self, admission: &Admission, theirs: &Hello) -> Transcript {
        let (mut hellos, mut ends) = ([self.own_hello(), *theirs], admission.ends);
        if !self.config.connector {
            hellos.reverse();
            ends.reverse();
        }
        Transcript { hellos, ends }
    }

    /// One side refuses the link: from now on it carries nothing. Returns false if it was refused already.
    pub fn refuse(&mut self) -> bool {
        !core::mem::replace(&mut self.refused, true)
    }

    /// Whether one side refuses the link.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// The peer has broken the protocol in a matter of the link itself. The end of the link counts it.
    pub fn record_violation(&mut self) {
        self.violated = true;
    }

    /// Whether the peer has broken the protocol.
    pub fn is_violated(&self) -> bool {
        self.violated
    }

    /// Whether the peer has shown that it has the key, or there is none.
    pub fn is_admitted(&self) -> bool {
        self.admitted && !self.refused
    }

    /// Whether streams can be opened: the peer's HELLO has come, and its proof where there is a key.
    pub fn is_ready(&self) -> bool {
        self.peer.is_some() && self.is_admitted()
    }

    /// Whether this side has a pre-shared key.
    pub fn has_key(&self) -> bool {
        self.admission.is_some()
    }

    /// Whether the peer accepts flows of datagrams.
    pub fn takes_datagrams(&self) -> bool {
        self.peer.is_some_and(|peer| peer.datagrams)
    }

    /// Whether another stream fits, by both sides' bounds.
    pub fn has_room(&self) -> bool {
        //= spec §2.3.3
        //# The number of streams on a link is bounded by the smaller of the two sides' bounds; an OPEN beyond it is
        //# refused.
        self.used < self.max_streams()
    }

    fn max_streams(&self) -> u16 {
        self.config.max_streams.min(self.peer.map_or(1, |p| p.max_streams))
    }

    /// Receives that this side keeps posted.
    pub fn receive_depth(&self) -> u32 {
        self.config.receive_depth
    }

    /// Streams on the link, closing ones included.
    pub fn streams(&self) -> u16 {
        self.used
    }

    /// Whether it has ever had a stream.
    pub fn was_used(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Takes a slot for a stream. `accepting`: for the peer's OPEN; the peer has checked its own bound.
    pub fn alloc_slot(&mut self) -> Result<SlotId, LinkError> {
        if !self.has_room() {
            return Err(LinkError::Full);
        }
        let i = match self.slots.iter().position(|used| !used) {
            Some(i) => i,
            None => {
                self.slots.push(false);
                self.slots.len() - 1
            }
        };
        self.slots[i] = true;
        self.used += 1;
        Ok(SlotId(i as u16))
    }

    /// Gives a slot back: both sides have sent CLOSE, or the OPEN was refused.
    pub fn free_slot(&mut self, slot: SlotId) {
        if let Some(used @ true) = self.slots.get_mut(usize::from(slot.0)) {
            *used = false;
            self.used -= 1;
        }
    }

    /// Takes credit for one message. `false`: none; read the peer's credit word, or call [`stalled`](Link::stalled).
    #[inline]
    pub fn take_credit(&mut self, control: bool) -> bool {
        //= spec §5.4.1
        //# A sender has at most as many unconsumed messages outstanding as its peer keeps receives posted.
        if !self.has_credit(control) {
            return false;
        }
        self.sent += 1;
        true
    }

    /// The message could not be posted after all.
    #[inline]
    pub fn return_credit(&mut self) {
        self.sent -= 1;
    }

    /// Whether `take_credit` would succeed. Control messages may use the reserve.
    #[inline]
    pub fn has_credit(&self, control: bool) -> bool {
        let reserve = if control { 0 } else { CONTROL_RESERVE };
        self.sent < self.peer_consumed + self.peer_depth - reserve
    }

    /// The control slot for the next control message, if the peer has read the slot's last message. After
    /// `take_credit(true)`.
    pub fn control_slot(&mut self) -> Option<usize> {
        //= spec §3.2.2
        //# The n-th control message lies in slot n mod 16; a slot is not reused before its message is consumed.
        while self.outstanding_controls.front().is_some_and(|&m| m < self.peer_consumed) {
            self.outstanding_controls.pop_front();
        }
        if self.outstanding_controls.len() >= CONTROL_SLOTS {
            return None;
        }
        let slot = (self.controls % CONTROL_SLOTS as u64) as usize;
        self.controls += 1;
        self.outstanding_controls.push_back(self.sent - 1);
        Some(slot)
    }

    /// The last control message could not be posted.
    pub fn return_control_slot(&mut self) {
        self.controls -= 1;
        self.outstanding_controls.pop_back();
    }

    /// Reads the peer's count of consumed messages.
    #[inline]
    pub fn handle_peer_consumed(&mut self, consumed: u64) -> Result<bool, Violation> {
        //= spec §5.4.3
        //# A count beyond the sent messages is a violation; one that goes back has no meaning.
        if consumed <= self.peer_consumed {
            return Ok(false);
        }
        if consumed > self.sent {
            self.record_violation();
            return Err(Violation("message count out of range"));
        }
        self.peer_consumed = consumed;
        Ok(true)
    }

    /// The number of messages that were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The number of messages that the peer has consumed, as far as it has announced.
    pub fn peer_consumed(&self) -> u64 {
        self.peer_consumed
    }

    /// Messages arrived and their receives were posted again. Returns the count to write into the peer's credit word,
    /// when a write is due.
    #[inline]
    pub fn handle_messages(&mut self, messages: u32) -> Option<u64> {
        //= spec §5.4.3
        //# A receiver writes how many messages it has consumed, and posted receives for again, into the credit word of
        //# the sender's link region.
        self.received += u64::from(messages);
        let fresh = self.received - self.announced;
        if fresh >= u64::from(self.config.credit_interval) || self.peer_wants && messages > 0 {
            self.announced = self.received;
            return Some(self.received);
        }
        None
    }

    /// The slot of the next control message, from the number of control messages received so far: `n mod
    /// CONTROL_SLOTS`.
    pub fn control_slot_of(n: u64) -> usize {
        (n % CONTROL_SLOTS as u64) as usize
    }

    /// Data waits for message credit, or a control message for a slot. Returns whether LINK_WANT should be sent now.
    pub fn stalled(&mut self) -> bool {
        //= spec §5.4.2
        //# A sender out of message credit, or of control slots, sends LINK_WANT once, from the control reserve, and waits for
        //# LINK_GIVE. Until that has come it sends no other.
        !core::mem::replace(&mut self.we_want, true)
    }

    /// LINK_GIVE came: a stream that still waits for credit requests it again.
    pub fn handle_give(&mut self) {
        self.we_want = false;
    }

    /// LINK_GIVE was sent.
    pub fn handle_give_sent(&mut self) {
        let from = if self.gives.1 == self.sent - 1 { self.gives.0 } else { self.sent - 1 };
        self.gives = (from, self.sent);
    }

    /// Whether the link has fallen silent. Called at intervals of [`PROBE_INTERVAL`](crate::PROBE_INTERVAL), when every
    /// arrived message is handled; then [`stalled`](Link::stalled) returns whether LINK_WANT is to be sent.
    pub fn check_silence(&mut self, now: Instant) -> Silence {
        //= spec §2.6.1
        //# LINK_GIVE that was sent last does not count.
        let last = if self.gives.1 == self.sent { self.gives.0 } else { self.sent };
        let signs = LifeSigns { received: self.received, consumed: self.peer_consumed };
        self.silence.check(now, signs, self.peer_consumed < last)
    }

    /// LINK_WANT could not be posted after all: [`stalled`](Link::stalled) requests it again.
    pub fn return_want(&mut self) {
        self.we_want = false;
    }

    /// The peer is out of message credit.
    pub fn handle_want(&mut self) {
        self.peer_wants = true;
    }

    /// After the completion queue has been drained: whether LINK_GIVE should be sent.
    #[inline]
    pub fn poll_give(&mut self) -> bool {
        core::mem::take(&mut self.peer_wants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(max_streams: u16, receive_depth: u32, credit_interval: u32) -> LinkConfig {
        LinkConfig { max_streams, receive_depth, credit_interval, connector: true, datagrams: false }
    }

    fn link() -> Link {
        let mut l = Link::new(config(2, 16, 4), None);
        l.handle_hello(&Hello {
            version: VERSION,
            receive_depth: 16,
            max_streams: 4,
            credential: None,
            datagrams: false,
        })
        .unwrap();
        l
    }

    #[test]
    fn data_leaves_the_reserve_to_control() {
        //= spec §5.4.1
        //= type=test
        let mut l = link();
        let data = (0..).take_while(|_| l.take_credit(false)).count();
        assert_eq!(data, 12);
        let control = (0..).take_while(|_| l.take_credit(true)).count();
        assert_eq!(control, 4);
        assert_eq!(l.handle_peer_consumed(16), Ok(true));
        assert!(l.take_credit(false));
        assert_eq!((l.handle_peer_consumed(15), l.peer_consumed()), (Ok(false), 16), "an old count takes nothing back");
        assert!(!l.is_violated());
        assert!(l.handle_peer_consumed(18).is_err() && l.is_violated());
    }

    // Breaks if a sender requests credit again for every message that its peer consumes: each request takes the place
    // of a DATA message, and two sides can go on so for ever.
    #[test]
    fn only_one_request_for_credit_is_under_way() {
        //= spec §5.4.2
        //= type=test
        let mut l = link();
        while l.take_credit(false) {}
        assert!(l.stalled() && l.take_credit(true) && !l.stalled());
        for consumed in 1..=13 {
            assert_eq!(l.handle_peer_consumed(consumed), Ok(true));
            while l.take_credit(false) {}
            assert!(!l.stalled(), "the answer to the first has not come");
        }
        l.handle_give();
        assert!(l.stalled() && !l.stalled());
        l.return_want();
        assert!(l.stalled());
    }

    #[test]
    fn slots_are_bounded_by_both_sides() {
        //= spec §2.3.3
        //= type=test
        let mut l = link();
        assert_eq!(l.alloc_slot(), Ok(SlotId(0)));
        assert_eq!(l.alloc_slot(), Ok(SlotId(1)));
        assert_eq!(l.alloc_slot(), Err(LinkError::Full));
        l.free_slot(SlotId(0));
        l.free_slot(SlotId(0));
        assert_eq!(l.streams(), 1);
        assert_eq!(l.alloc_slot(), Ok(SlotId(0)));
    }

    #[test]
    fn control_slots_wait_for_their_reader() {
        //= spec §3.2.2
        //= type=test
        let mut l = Link::new(config(1, 64, 1), None);
        l.handle_hello(&Hello {
            version: VERSION,
            receive_depth: 64,
            max_streams: 1,
            credential: None,
            datagrams: false,
        })
        .unwrap();
        for i in 0..CONTROL_SLOTS {
            assert!(l.take_credit(true));
            assert_eq!(l.control_slot(), Some(i));
        }
        assert!(l.take_credit(true));
        assert_eq!(l.control_slot(), None);
        l.return_credit();
        l.handle_peer_consumed(1).unwrap();
        assert!(l.take_credit(true));
        assert_eq!(l.control_slot(), Some(0));
    }

    #[test]
    fn credit_is_announced_at_intervals_or_on_want() {
        //= spec §5.4.3
        //= type=test
        let mut l = link();
        assert_eq!([(); 4].map(|()| l.handle_messages(1)), [None, None, None, Some(4)]);
        l.handle_want();
        assert_eq!(l.handle_messages(1), Some(5));
        assert!(l.poll_give() && !l.poll_give());
    }

    // Breaks if two idle ends went on probing each other: each answer would cause another probe.
    #[test]
    fn answers_are_no_reason_to_probe() {
        //= spec §2.6.1
        //= type=test
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        let mut l = link();
        assert!(l.take_credit(false));
        assert_eq!(l.check_silence(at(0)), Silence::Probe, "that message was not answered");
        l.handle_peer_consumed(1).unwrap();
        for i in 1..4 {
            assert!(l.take_credit(true));
            l.handle_give_sent();
            assert_eq!([0, 1].map(|s| l.check_silence(at(2 * i + s))), [Silence::None; 2]);
        }
        assert!(l.take_credit(false) && l.take_credit(true));
        l.handle_give_sent();
        assert_eq!(l.check_silence(at(10)), Silence::Probe, "there is a message before the answer");
        l.handle_peer_consumed(5).unwrap();
        assert_eq!([11, 12].map(|s| l.check_silence(at(s))), [Silence::None; 2]);
    }

    #[test]
    fn hello_is_checked() {
        //= spec §2.3.2
        //= type=test
        let fresh = || Link::new(config(2, 16, 4), None);
        let hello = Hello { version: VERSION, receive_depth: 16, max_streams: 1, credential: None, datagrams: false };
        assert!(fresh().handle_hello(&Hello { version: VERSION + 1, ..hello }).is_err());
        assert!(fresh().handle_hello(&Hello { receive_depth: INITIAL_MESSAGE_CREDIT - 1, ..hello }).is_err());
        assert!(fresh().handle_hello(&Hello { max_streams: 0, ..hello }).is_err());
        let mut link = fresh();
        assert!(!link.is_ready());
        link.handle_hello(&hello).unwrap();
        assert!(link.is_ready());
        assert!(link.handle_hello(&hello).is_err());
    }
}
