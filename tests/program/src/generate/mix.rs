//! Which decisions there are, and how often each is drawn.

use serde::{Deserialize, Serialize};

/// Which operations a program is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mix {
    /// Sending and receiving, one way and another.
    #[default]
    Data,
    /// `poll`, `select` and `epoll` besides.
    Readiness,
    /// `shutdown`, `close` and resets besides.
    Endings,
    /// `dup`, `fork`, `exec`, passing descriptors besides.
    Sharing,
    /// All of it.
    All,
}

/// What a decision may be. The order is that of plainness.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Send,
    HoldBack,
    Receive,
    Drain,
    Peek,
    Fionread,
    BlockedReceive,
    Transfer,
    FillDrain,
    Poll,
    EpollCtl,
    EpollWait,
    BlockedWait,
    Set,
    Get,
    Shutdown,
    Close,
    Abort,
    Dup,
    Connect,
    Fork,
    Pass,
    Exec,
    Leave,
    Pause,
}

pub(super) fn weights(mix: Mix) -> &'static [(Kind, usize)] {
    use Kind as K;
    match mix {
        Mix::Data => &[
            (K::Send, 28),
            (K::HoldBack, 2),
            (K::Receive, 25),
            (K::Drain, 4),
            (K::Peek, 8),
            (K::Fionread, 5),
            (K::BlockedReceive, 4),
            (K::Transfer, 3),
            (K::FillDrain, 1),
            (K::Poll, 4),
            (K::Set, 5),
            (K::Get, 2),
            (K::Pause, 1),
        ],
        Mix::Readiness => &[
            (K::Send, 23),
            (K::HoldBack, 1),
            (K::Receive, 18),
            (K::Drain, 4),
            (K::Peek, 3),
            (K::Fionread, 3),
            (K::BlockedReceive, 1),
            (K::FillDrain, 1),
            (K::Poll, 12),
            (K::EpollCtl, 12),
            (K::EpollWait, 16),
            (K::BlockedWait, 6),
            (K::Shutdown, 2),
            (K::Close, 1),
            (K::Pause, 1),
        ],
        Mix::Endings => &[
            (K::Send, 18),
            (K::HoldBack, 2),
            (K::Receive, 18),
            (K::Drain, 5),
            (K::Peek, 3),
            (K::Fionread, 3),
            (K::BlockedReceive, 2),
            (K::Poll, 8),
            (K::EpollCtl, 3),
            (K::EpollWait, 4),
            (K::Set, 3),
            (K::Get, 3),
            (K::Shutdown, 8),
            (K::Close, 6),
            (K::Abort, 2),
            (K::Connect, 4),
        ],
        Mix::Sharing => &[
            (K::Send, 22),
            (K::HoldBack, 2),
            (K::Receive, 20),
            (K::Drain, 4),
            (K::Peek, 3),
            (K::Fionread, 2),
            (K::BlockedReceive, 2),
            (K::Transfer, 1),
            (K::Poll, 4),
            (K::Set, 2),
            (K::Shutdown, 1),
            (K::Close, 6),
            (K::Dup, 6),
            (K::Connect, 2),
            (K::Fork, 3),
            (K::Pass, 4),
            (K::Exec, 2),
            (K::Leave, 1),
        ],
        Mix::All => &[
            (K::Send, 24),
            (K::HoldBack, 2),
            (K::Receive, 22),
            (K::Drain, 4),
            (K::Peek, 5),
            (K::Fionread, 4),
            (K::BlockedReceive, 3),
            (K::Transfer, 2),
            (K::FillDrain, 1),
            (K::Poll, 6),
            (K::EpollCtl, 5),
            (K::EpollWait, 7),
            (K::BlockedWait, 3),
            (K::Set, 3),
            (K::Get, 2),
            (K::Shutdown, 3),
            (K::Close, 3),
            (K::Abort, 1),
            (K::Dup, 3),
            (K::Connect, 2),
            (K::Fork, 1),
            (K::Pass, 1),
            (K::Exec, 1),
            (K::Pause, 1),
        ],
    }
}
