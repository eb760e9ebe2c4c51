//! The processes that may hold a UDP socket. Flows are for a socket that this process alone holds: several processes could
//! receive from another one, and a ring has one receiver.
//!
//! | from | event | to |
//! | --- | --- | --- |
//! | a socket that this process makes | | [`Alone`](State::Alone) |
//! | a socket that came in a message, or with which the program was started | | [`Shared`](State::Shared); [`Given`](KernelOnly::Given) if its sender is in another namespace of process numbers |
//! | `Alone`, `Shared`, [`SharedWatched`](State::SharedWatched) | [a fork](Sharing::share): the child is entered in the [`family`] | `SharedWatched` if an epoll instance watches the socket, or else `Shared` |
//! | the same | a fork: the child cannot be entered | `Given` |
//! | the same | [a program is started](Sharing::lend) that inherits the socket | `Shared`, or `SharedWatched` as before |
//! | the same | a message carries it (SCM_RIGHTS): no search finds it before it is received | `Given`, for all |
//! | `Shared`, `SharedWatched` | [this process is found to be the only holder](Sharing::end), and the kernel's socket has nothing that rings lack | `Alone` |
//! | the same | only the kernel can do what the program wants | [`Kernel`](State::Kernel), [here](Sharing::keep) or [for all](Sharing::keep_for_all) |
//! | `Kernel` | | none: the first reason stays |
//!
//! A forked child begins with its parent's state, `Shared` or `Kernel`. If that is `SharedWatched`, the child has
//! `Kernel(Watched)`: it inherits the epoll instance, and its waits on that do not look at rings.
//!
//! The other holders are processes of the family, whose lists show when they have left the socket; and programs that are
//! entered nowhere, for which the helper thread searches ([`holders`](crate::holders)). A program's thread looks at both after
//! some datagrams, and again after as many more as there were ([`Sharing::is_lookup_due`]).

use std::sync::atomic::{AtomicU32, Ordering};

use crate::family::{self, Id, Others};
use crate::holders::{Loans, Sender};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// This process alone holds it: flows may be made.
    Alone,
    /// Other processes may hold it.
    Shared,
    /// Other processes may hold it, and a child that is being forked inherits an epoll instance that watches it.
    SharedWatched,
    /// Only the kernel's socket counts, for good.
    Kernel(KernelOnly),
}

/// Why a socket has no flows, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelOnly {
    /// Other processes may hold it, and nothing shows when they do not any more.
    Given = 3,
    /// An option that only the kernel can honour.
    Option,
    /// `SO_REUSEPORT`: the kernel chooses among several sockets.
    ReusePort,
    /// A wait that only the kernel can end: a nested or one-shot interest of epoll, or an io_uring.
    Watched,
    /// There is no device within the host, or `NACC_DATAGRAMS` is 0.
    Off,
    /// The program has confined itself.
    Confined,
    /// It was shut down or closed.
    Ended,
}

impl KernelOnly {
    const ALL: [KernelOnly; 7] = [
        KernelOnly::Given,
        KernelOnly::Option,
        KernelOnly::ReusePort,
        KernelOnly::Watched,
        KernelOnly::Off,
        KernelOnly::Confined,
        KernelOnly::Ended,
    ];
}

impl State {
    fn code(self) -> u32 {
        match self {
            State::Alone => 0,
            State::Shared => 1,
            State::SharedWatched => 2,
            State::Kernel(why) => why as u32,
        }
    }

    fn of(word: u32) -> State {
        match word & STATE {
            0 => State::Alone,
            1 => State::Shared,
            2 => State::SharedWatched,
            code => State::Kernel(
                KernelOnly::ALL.into_iter().find(|why| *why as u32 == code).expect("only codes of states are stored"),
            ),
        }
    }

    /// Why there are no flows, as `netacc_ss` shows it; `None` if they may be made.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            State::Alone => None,
            State::Shared | State::SharedWatched | State::Kernel(KernelOnly::Given) => Some("shared"),
            State::Kernel(KernelOnly::Option) => Some("kernel-option"),
            State::Kernel(KernelOnly::ReusePort) => Some("reuse-port"),
            State::Kernel(KernelOnly::Watched) => Some("kernel-wait"),
            State::Kernel(KernelOnly::Off) => Some("switched-off"),
            State::Kernel(KernelOnly::Confined) => Some("sandboxed"),
            State::Kernel(KernelOnly::Ended) => Some("ended"),
        }
    }

    /// The state once another process may hold the socket, too, in `shared` of the states.
    fn and(self, shared: State) -> State {
        match self {
            State::Kernel(_) => self,
            _ => shared,
        }
    }
}

/// A state in the low bits, and above it the number of times that the socket was given to other processes, in steps of
/// [`SHARE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u32);

const SHARE: u32 = 1 << 8;
const STATE: u32 = SHARE - 1;

/// See the module.
pub struct Sharing {
    /// A [`Seen`].
    word: AtomicU32,
    /// The socket's record in the [`family`]; 0 before a process has forked with it.
    family: AtomicU32,
    /// The holders that are entered nowhere.
    loans: Loans,
    /// The number of the kernel's calls at which the holders are looked up next.
    lookup_at: AtomicU32,
}

/// The holders are looked up again after as many calls as there were, and after no more than this. Arbitrary: a look reads a file
/// of `/proc` for each of them.
const MOST_BETWEEN_LOOKUPS: u32 = 4096;

impl Default for Sharing {
    fn default() -> Sharing {
        Sharing::begin(State::Alone)
    }
}

impl Sharing {
    fn begin(state: State) -> Sharing {
        Sharing {
            word: AtomicU32::new(state.code()),
            family: AtomicU32::new(0),
            loans: Loans::default(),
            lookup_at: AtomicU32::new(0),
        }
    }

    /// Of a socket that came from another process, or with which the program was started.
    pub(super) fn received(sender: Sender) -> Sharing {
        let sharing = Sharing::begin(match sender {
            // Nothing shows whether that process holds it.
            Sender::Process(0) => State::Kernel(KernelOnly::Given),
            Sender::Process(_) | Sender::Starter => State::Shared,
        });
        sharing.loans.add_received(sender);
        sharing
    }

    /// Of a forked child's copy. Takes no lock.
    pub(super) fn inherited_from(parent: &Sharing) -> Sharing {
        let sharing = Sharing::begin(match parent.state() {
            // It has not entered the child.
            State::Alone => State::Kernel(KernelOnly::Given),
            State::Shared => State::Shared,
            State::SharedWatched => State::Kernel(KernelOnly::Watched),
            kernel @ State::Kernel(_) => kernel,
        });
        sharing.family.store(parent.family(), Ordering::Relaxed);
        sharing.loans.take_over(&parent.loans);
        sharing
    }

    /// Whether only the kernel's socket counts now.
    #[inline]
    pub fn is_kernel_only(&self) -> bool {
        self.word.load(Ordering::Acquire) & STATE != 0
    }

    /// The state.
    pub fn state(&self) -> State {
        State::of(self.word.load(Ordering::Acquire))
    }

    /// Its record in the family; 0: none.
    pub fn family(&self) -> Id {
        self.family.load(Ordering::Acquire)
    }

    /// The holders that are entered nowhere.
    pub fn loans(&self) -> &Loans {
        &self.loans
    }

    fn change(&self, next: impl Fn(State) -> State) {
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let shares = (word & !STATE).wrapping_add(SHARE);
            Some(shares | next(State::of(word)).code())
        });
    }

    /// A process is about to fork. `known`: it has a place in the family. `is_watched`: an epoll instance that the child
    /// inherits watches the socket.
    pub fn share(&self, known: bool, is_watched: bool) {
        let may_return = known && !matches!(self.state(), State::Kernel(_));
        let entered = may_return.then(|| family::share(self.family())).flatten();
        if let Some(id) = entered {
            if self.family.swap(id, Ordering::AcqRel) != id && self.loans.count() > 0 {
                family::lend(id);
            }
        }
        if entered.is_none() {
            family::lend(self.family());
        }
        let shared = match (entered, is_watched) {
            (None, _) => State::Kernel(KernelOnly::Given),
            (Some(_), true) => State::SharedWatched,
            (Some(_), false) => State::Shared,
        };
        self.change(|state| state.and(shared));
    }

    /// A program that is entered nowhere is about to be started with the socket.
    pub fn lend(&self) {
        self.loans.add();
        family::lend(self.family());
        self.change(|state| match state {
            // Another thread may be forking.
            State::SharedWatched => state,
            _ => state.and(State::Shared),
        });
    }

    /// Only the kernel's socket counts from now on.
    pub fn keep(&self, why: KernelOnly) {
        self.change(|state| state.and(State::Kernel(why)));
    }

    /// As [`keep`](Sharing::keep), in every process of the family that holds the socket.
    pub fn keep_for_all(&self, why: KernelOnly) {
        family::keep(self.family(), why as u32);
        self.keep(why);
    }

    /// Why another process of the family keeps it in the kernel for all.
    pub fn kept_for_all(&self) -> Option<KernelOnly> {
        let code = family::kept(self.family());
        KernelOnly::ALL.into_iter().find(|why| *why as u32 == code)
    }

    /// Its state, if other processes may hold the socket now, and may leave it again. See [`end`](Sharing::end).
    pub fn seen(&self) -> Option<Seen> {
        let word = self.word.load(Ordering::Acquire);
        matches!(State::of(word), State::Shared | State::SharedWatched).then_some(Seen(word))
    }

    /// The other processes that may hold the socket.
    pub fn others(&self) -> Others {
        match (family::others(self.family()), self.loans.count()) {
            (Others::Absent, 1..) => Others::Unseen,
            (entered, _) => entered,
        }
    }

    /// This process alone holds the socket, as was found after [`seen`](Sharing::seen) had returned `seen`. `false`: it was given
    /// away since, or is the kernel's for good.
    pub fn end(&self, seen: Seen) -> bool {
        let alone = seen.0 & !STATE | State::Alone.code();
        self.word.compare_exchange(seen.0, alone, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// This process has closed its last descriptor.
    pub fn leave(&self) {
        family::leave(self.family());
    }

    /// Whether the holders are to be looked up, at so many calls of the kernel's.
    pub(super) fn is_lookup_due(&self, calls: u32) -> bool {
        calls >= self.lookup_at.load(Ordering::Relaxed) && self.seen().is_some()
    }

    /// The holders are being looked up, at so many calls.
    pub(super) fn postpone_lookup(&self, calls: u32) {
        self.lookup_at.store(calls.saturating_add(calls.min(MOST_BETWEEN_LOOKUPS)), Ordering::Relaxed);
    }

    /// No holder is left that is entered nowhere: the others are looked up at the next call.
    pub fn look_up_soon(&self) {
        self.lookup_at.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::Datagram;

    /// Entered in a family's record, as far as this module sees.
    fn shared(state: State) -> Sharing {
        Sharing::begin(state)
    }

    /// Breaks if a socket had rings again although it was given away once more, or is the kernel's for good.
    #[test]
    fn a_shared_socket_comes_back_if_nothing_else_keeps_it_in_the_kernel() {
        let sharing = Sharing::default();
        assert_eq!((sharing.seen(), sharing.is_kernel_only()), (None, false), "it is not shared");
        sharing.lend();
        let seen = sharing.seen().expect("the others may leave it");
        assert_eq!(sharing.others(), Others::Unseen);
        sharing.lend();
        assert!(!sharing.end(seen), "one more has got it");
        let seen = sharing.seen().expect("as before");
        assert!(sharing.end(seen) && !sharing.is_kernel_only());

        for why in KernelOnly::ALL {
            let sharing = shared(State::Shared);
            let seen = sharing.seen().expect("as before");
            sharing.keep(why);
            assert!(!sharing.end(seen) && sharing.seen().is_none(), "{why:?}");
            sharing.lend();
            sharing.share(true, true);
            sharing.keep(KernelOnly::Ended);
            assert_eq!(sharing.state(), State::Kernel(why), "the first reason stays");
        }
    }

    /// Breaks if a child had rings although its waits do not look at them, or missed that its parent's socket is the kernel's.
    #[test]
    fn a_child_begins_with_its_parents_state() {
        let kernel = State::Kernel;
        for (parent, child) in [
            (State::Alone, kernel(KernelOnly::Given)),
            (State::Shared, State::Shared),
            (State::SharedWatched, kernel(KernelOnly::Watched)),
            (kernel(KernelOnly::Given), kernel(KernelOnly::Given)),
            (kernel(KernelOnly::Option), kernel(KernelOnly::Option)),
        ] {
            assert_eq!(Sharing::inherited_from(&shared(parent)).state(), child);
        }
        let lent = Sharing::default();
        lent.lend();
        assert_eq!(Sharing::inherited_from(&lent).others(), Others::Unseen, "the child does not know of the program");
    }

    /// Breaks if a fork that cannot enter its child let the socket have rings beside it; or if a program that is started meanwhile
    /// hid from the child that an instance watches the socket.
    #[test]
    fn who_gets_the_socket_decides_its_state() {
        let sharing = Sharing::default();
        sharing.share(false, false);
        assert_eq!(sharing.state(), State::Kernel(KernelOnly::Given));
        let watched = shared(State::SharedWatched);
        watched.lend();
        assert_eq!(watched.state(), State::SharedWatched);
        let states =
            [Sender::Process(0), Sender::Process(1), Sender::Starter].map(|from| Sharing::received(from).state());
        assert_eq!(states, [State::Kernel(KernelOnly::Given), State::Shared, State::Shared]);
    }

    /// Breaks if the holders were looked up at each datagram, or never again, or late after a search.
    #[test]
    fn the_holders_are_looked_up_after_as_many_datagrams_again() {
        let socket = Datagram::default();
        socket.sharing().lend();
        let mut at = Vec::new();
        for call in 1..=20_000 {
            if call == 18_000 {
                socket.sharing().look_up_soon();
            }
            if socket.count_kernel_call() {
                socket.postpone_lookup();
                at.push(call);
            }
        }
        let by_themselves = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 12_288, 16_384];
        assert_eq!(at, [&by_themselves[..], &[18_000]].concat());
    }
}
