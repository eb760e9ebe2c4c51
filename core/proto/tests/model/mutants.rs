//! Broken worlds: each must make the checker report a counterexample, or the check proves nothing.

use std::collections::VecDeque;

use netacc_proto::{MessageKind, Record, RecordKind};

use crate::world::{Bounds, Message, Trust};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// RESUME is never written.
    NoResume,
    /// RESUME claims one byte more than was consumed.
    ResumeAhead,
    /// RESUME claims one byte less.
    ResumeBehind,
    /// The marker names another position.
    MarkerElsewhere,
    /// The application writes although a pledge is out, and the pledge is not voided.
    SilentVoid,
    /// Consumption is never announced.
    NoCredit,
    /// FIN overtakes data.
    FinFirst,
    /// A DATA message is lost on a link that lives.
    LoseData,
    /// SWITCHED is not sent, so that CLOSE after a marker looks like a cancelled attempt.
    NoSwitched,
    /// CLOSE is never sent.
    NoClose,
    /// Markers are put off on a link that dies with messages that were posted before.
    LossyLink,
    /// Markers are put off on a link that does not refuse messages after its death.
    BlindSender,
    /// A side that waits for UNMARKED takes the anchor's end for the stream's before it has handled every message.
    HastyEnd,
    /// An opener that had put its marker off does not write it when the link dies.
    NoMarker,
}

impl Mutant {
    pub(crate) const ALL: [Mutant; 14] = [
        Mutant::NoResume,
        Mutant::ResumeAhead,
        Mutant::ResumeBehind,
        Mutant::MarkerElsewhere,
        Mutant::SilentVoid,
        Mutant::NoCredit,
        Mutant::FinFirst,
        Mutant::LoseData,
        Mutant::NoSwitched,
        Mutant::NoClose,
        Mutant::LossyLink,
        Mutant::BlindSender,
        Mutant::HastyEnd,
        Mutant::NoMarker,
    ];

    /// Bounds within which the fault shows.
    pub(crate) fn bounds(self) -> Bounds {
        let bounds = Bounds { mutant: Some(self), writes: [2, 1], shutdowns: [false; 2], ..Bounds::default() };
        match self {
            Mutant::NoCredit => Bounds { writes: [6, 0], deaths: 0, ..bounds },
            Mutant::FinFirst | Mutant::LoseData => Bounds { writes: [2, 0], shutdowns: [true; 2], deaths: 0, ..bounds },
            Mutant::NoClose => Bounds { deaths: 0, demotes: [1, 0], ..bounds },
            Mutant::LossyLink | Mutant::BlindSender | Mutant::HastyEnd => {
                Bounds { crash: Some(1), gentle: false, lazy_anchor: true, ..bounds }
            }
            _ => bounds,
        }
    }

    /// Where the fault may show.
    pub(crate) fn trusts(self) -> &'static [Trust] {
        match self {
            Mutant::LossyLink | Mutant::BlindSender | Mutant::HastyEnd | Mutant::NoMarker => &[Trust::Link],
            _ => &Trust::ALL,
        }
    }

    /// Whether the message is lost on sending.
    pub(crate) fn drops(self, message: Message) -> bool {
        match (self, message) {
            (Mutant::NoSwitched, Message::Signal(MessageKind::Switched | MessageKind::Unmarked))
            | (Mutant::NoClose, Message::Signal(MessageKind::Close)) => true,
            (Mutant::LoseData, Message::Data { rewind }) => !rewind,
            _ => false,
        }
    }

    /// Changes a queue after sending.
    pub(crate) fn disturb(self, queue: &mut VecDeque<Message>) {
        let n = queue.len();
        if self == Mutant::FinFirst && n >= 2 && queue[n - 1] == Message::Signal(MessageKind::Fin) {
            queue.swap(n - 1, n - 2);
        }
    }

    /// Whether the record is not written.
    pub(crate) fn omits(self, kind: RecordKind) -> bool {
        matches!((self, kind), (Mutant::NoResume, RecordKind::Resume) | (Mutant::NoMarker, RecordKind::Marker))
    }

    /// Changes a record on writing.
    pub(crate) fn forge(self, record: Record) -> Record {
        let position = match (self, record.kind) {
            (Mutant::ResumeAhead, RecordKind::Resume) => record.position + 1,
            (Mutant::ResumeBehind, RecordKind::Resume) => record.position.saturating_sub(1),
            (Mutant::MarkerElsewhere, RecordKind::Marker) => record.position + 1,
            _ => record.position,
        };
        Record { position, ..record }
    }
}
