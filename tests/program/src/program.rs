//! The format of a program.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Version of the format.
pub const FORMAT: u32 = 1;
/// Processes of a program at most, forked ones included. Arbitrary.
pub const MAX_PROCESSES: usize = 8;
/// Connections of a program at most; the executor's shared ledger has room for so many. Arbitrary.
pub const MAX_CONNECTIONS: usize = 32;
/// Steps of a program at most. Arbitrary.
pub const MAX_STEPS: usize = 4096;
/// Bytes that one step moves at most. Arbitrary.
pub const MAX_BYTES: u32 = 1 << 24;

/// A list of steps, and the world that they are taken in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// [`FORMAT`].
    pub format: u32,
    /// A note for a reader who meets it as a regression.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The settings of the library under test. Kernel TCP ignores them.
    #[serde(default)]
    pub config: Config,
    /// The host of each process that is there from the beginning. On one machine a host is an address.
    pub hosts: Vec<u8>,
    /// In the order in which they begin.
    pub steps: Vec<Step>,
}

/// Settings of the library under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `NACC_SOR_CONN_PER_QP`.
    pub conn_per_qp: u32,
    /// `NACC_RING_SIZE`.
    pub ring_bytes: u32,
    /// `NACC_PROMOTE_AFTER`.
    pub promote_after: u32,
    /// Links that die: the number of faults in 1000 scheduler steps. Only executors that can inject faults use it.
    pub fault_per_mille: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config { conn_per_qp: 1, ring_bytes: 65536, promote_after: 0, fault_per_mille: 0 }
    }
}

/// One operation of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The process.
    pub p: u8,
    /// Run it in a thread of its own and continue; the number is for [`Op::Join`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<u32>,
    /// The operation.
    #[serde(flatten)]
    pub op: Op,
}

/// The system call that sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SendCall {
    /// `send`
    #[default]
    Send,
    /// `write`, which takes no flags.
    Write,
    /// `writev` of three pieces, which takes no flags.
    Writev,
    /// `sendmsg` of two pieces.
    Sendmsg,
    /// `sendto` without an address.
    Sendto,
}

/// The system call that receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecvCall {
    /// `recv`
    #[default]
    Recv,
    /// `read`, which takes no flags.
    Read,
    /// `readv` into three pieces, which takes no flags.
    Readv,
    /// `recvmsg` into two pieces.
    Recvmsg,
    /// `recvfrom`.
    Recvfrom,
}

/// Flags of a send; SIGPIPE is counted, not suppressed, unless `nosignal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SendFlags {
    /// MSG_DONTWAIT
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dontwait: bool,
    /// MSG_MORE
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// MSG_NOSIGNAL
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nosignal: bool,
}

/// Flags of a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecvFlags {
    /// MSG_DONTWAIT
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dontwait: bool,
    /// MSG_PEEK
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub peek: bool,
    /// MSG_WAITALL
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub waitall: bool,
    /// MSG_TRUNC: the bytes are discarded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trunc: bool,
}

/// The direction that `shutdown` ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// SHUT_WR
    #[default]
    Write,
    /// SHUT_RD
    Read,
    /// SHUT_RDWR
    Both,
}

/// A socket option, or a property that is set like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Option_ {
    /// TCP_NODELAY
    Nodelay,
    /// TCP_CORK
    Cork,
    /// TCP_QUICKACK
    Quickack,
    /// SO_KEEPALIVE
    Keepalive,
    /// SO_LINGER: on with that many seconds, or off if negative.
    Linger,
    /// SO_RCVTIMEO in milliseconds.
    Rcvtimeo,
    /// SO_SNDTIMEO in milliseconds.
    Sndtimeo,
    /// SO_RCVLOWAT
    Rcvlowat,
    /// SO_ERROR, to get only.
    Error,
    /// SO_TYPE, to get only.
    Type,
    /// `getpeername`, to get only: 1, or its error.
    Peer,
    /// The state in TCP_INFO, to get only: the state once acknowledgements in flight have come.
    State,
    /// SO_REUSEADDR
    Reuseaddr,
    /// O_NONBLOCK by `fcntl`.
    Nonblock,
    /// O_NONBLOCK by `ioctl(FIONBIO)`.
    Fionbio,
}

/// The events that an epoll instance or a poll requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Interest {
    /// EPOLLIN
    #[serde(rename = "in", skip_serializing_if = "std::ops::Not::not")]
    pub input: bool,
    /// EPOLLOUT
    #[serde(rename = "out", skip_serializing_if = "std::ops::Not::not")]
    pub output: bool,
    /// EPOLLRDHUP
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rdhup: bool,
    /// EPOLLET, for epoll only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub edge: bool,
    /// EPOLLONESHOT, for epoll only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub oneshot: bool,
}

/// The change of an epoll instance's interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EpollAction {
    /// EPOLL_CTL_ADD
    Add,
    /// EPOLL_CTL_MOD
    Mod,
    /// EPOLL_CTL_DEL
    Del,
}

/// A call with an invalid argument. None moves a byte, and none waits if there is a result to report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misuse {
    /// `send` from a bad address, as all these are.
    #[default]
    Send,
    /// `write`
    Write,
    /// `writev` of two elements, of which the second is bad.
    WritevElement,
    /// `writev` with a bad vector.
    WritevVector,
    /// `sendmsg` with a bad header.
    SendmsgHeader,
    /// `sendmsg` with a bad element.
    SendmsgElement,
    /// `sendto` with a bad name.
    SendtoName,
    /// `sendto` with a name that is too long.
    SendtoLength,
    /// `recv`, MSG_DONTWAIT.
    Recv,
    /// `recv`, MSG_DONTWAIT and MSG_PEEK.
    Peek,
    /// `read`
    Read,
    /// `readv` with a bad element, after one that is empty.
    ReadvElement,
    /// `readv` with a bad vector.
    ReadvVector,
    /// `recvmsg` with a bad header.
    RecvmsgHeader,
    /// `recvmsg` with a bad element, MSG_DONTWAIT.
    RecvmsgElement,
    /// `recvfrom` with a bad length of the name, MSG_DONTWAIT and MSG_PEEK.
    RecvfromLength,
    /// `recvfrom` with a negative length of the name, MSG_DONTWAIT and MSG_PEEK.
    RecvfromNegative,
    /// `ioctl(FIONREAD)`
    Fionread,
    /// `getsockopt` of SO_TYPE, whose value has a bad place.
    GetValue,
    /// `setsockopt` of SO_KEEPALIVE.
    SetValue,
    /// `poll`
    Poll,
    /// `sendfile` with a bad offset.
    Sendfile,
}

impl Misuse {
    /// All of them.
    pub const ALL: [Misuse; 22] = [
        Misuse::Send,
        Misuse::Write,
        Misuse::WritevElement,
        Misuse::WritevVector,
        Misuse::SendmsgHeader,
        Misuse::SendmsgElement,
        Misuse::SendtoName,
        Misuse::SendtoLength,
        Misuse::Recv,
        Misuse::Peek,
        Misuse::Read,
        Misuse::ReadvElement,
        Misuse::ReadvVector,
        Misuse::RecvmsgHeader,
        Misuse::RecvmsgElement,
        Misuse::RecvfromLength,
        Misuse::RecvfromNegative,
        Misuse::Fionread,
        Misuse::GetValue,
        Misuse::SetValue,
        Misuse::Poll,
        Misuse::Sendfile,
    ];

    /// Whether it waits, on a blocking descriptor, until there are bytes to read.
    pub fn waits(self) -> bool {
        matches!(self, Misuse::Read | Misuse::ReadvElement)
    }

    /// Whether it receives.
    pub fn receives(self) -> bool {
        self.waits()
            || matches!(
                self,
                Misuse::Recv
                    | Misuse::Peek
                    | Misuse::RecvmsgElement
                    | Misuse::RecvfromLength
                    | Misuse::RecvfromNegative
            )
    }
}

/// An address that can be neither read nor written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadAddress {
    /// Null.
    #[default]
    Null,
    /// Above null, where nothing is ever mapped.
    Low,
    /// A page that is reserved only.
    Reserved,
    /// Beyond the memory of programs.
    Beyond,
}

/// A resource that the process has used up. Both are its own limits, which are put back after the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// RLIMIT_NOFILE is 0: no descriptor can be opened, and `poll` is refused.
    #[default]
    Descriptors,
    /// RLIMIT_FSIZE is 0: no file can be written. Sockets are not files in this sense.
    FileSize,
}

/// A call with a [`Resource`] used up. None moves a byte, and none waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitedCall {
    /// `recv`, MSG_DONTWAIT and MSG_PEEK.
    #[default]
    Peek,
    /// `recv` with SO_RCVTIMEO of a millisecond and MSG_PEEK, from a descriptor that waits; 0 if the time limit had
    /// passed.
    PeekBriefly,
    /// `poll` for nothing, which is refused or not.
    Poll,
    /// `select` for all three, which is refused or not.
    Select,
    /// `dup`; the copy is closed again.
    Dup,
    /// `socket`; it is closed again.
    Socket,
}

impl LimitedCall {
    /// Those that need no new descriptor.
    pub const WITHOUT: [LimitedCall; 4] =
        [LimitedCall::Peek, LimitedCall::PeekBriefly, LimitedCall::Poll, LimitedCall::Select];
    /// Those that open one.
    pub const OPENING: [LimitedCall; 2] = [LimitedCall::Dup, LimitedCall::Socket];
}

/// An operation. `s` is a slot: a name for a descriptor, of one process; the system chooses its number. A forked
/// process has its parent's slots. `c` is a connection, of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are the call's; the variants describe the rest")]
pub enum Op {
    /// `socket`
    Socket {
        s: u32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        v6: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        nonblock: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cloexec: bool,
    },
    /// `bind` to the address of the process's host and any port.
    Bind { s: u32 },
    /// `listen`; connections find the listener under the name `l`.
    Listen { s: u32, l: u32, backlog: u32 },
    /// `connect` to the listener `l`: the opening side of the new connection `c`.
    Connect { s: u32, l: u32, c: u32 },
    /// `accept4` on the listening slot `from`: the accepting side of `c`, which is the next that its opener connected.
    Accept {
        from: u32,
        s: u32,
        c: u32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        nonblock: bool,
    },
    /// Sends the next `n` bytes of the direction, once.
    Send {
        s: u32,
        n: u32,
        #[serde(default)]
        call: SendCall,
        #[serde(default)]
        flags: SendFlags,
    },
    /// Sends the next `n` bytes of the direction, as often as that takes, waiting with `poll` if need be.
    SendAll { s: u32, n: u32 },
    /// Receives up to `n` bytes, once.
    Recv {
        s: u32,
        n: u32,
        #[serde(default)]
        call: RecvCall,
        #[serde(default)]
        flags: RecvFlags,
    },
    /// Receives `n` bytes, as often as that takes, waiting with `poll` if need be.
    RecvAll { s: u32, n: u32 },
    /// Sends without blocking until there is no room.
    Fill { s: u32 },
    /// Receives all bytes that were sent and not received, and the end of stream if the peer has ended its direction.
    Drain { s: u32 },
    /// `shutdown`
    Shutdown { s: u32, how: How },
    /// `close`, also of a descriptor of an epoll instance.
    Close { s: u32 },
    /// `dup`, `dup3` onto the slot's old descriptor if it is open, by whatever name. Of an epoll instance: `dup`.
    Dup { s: u32, to: u32 },
    /// `setsockopt`, `fcntl` or `ioctl`.
    Set { s: u32, option: Option_, value: i32 },
    /// `getsockopt` or `fcntl`.
    Get { s: u32, option: Option_ },
    /// `ioctl(FIONREAD)`.
    Fionread { s: u32 },
    /// A call with an invalid argument.
    Misuse {
        s: u32,
        call: Misuse,
        #[serde(default)]
        at: BadAddress,
    },
    /// A call of a process that has used up a resource.
    Limited { s: u32, resource: Resource, call: LimitedCall },
    /// `poll` of several slots, some of which may be epoll instances; it waits until something is ready if `wait`.
    Poll {
        s: Vec<u32>,
        interest: Interest,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        wait: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        select: bool,
    },
    /// `epoll_create1`
    EpollCreate { e: u32 },
    /// `epoll_ctl`; `s` may be another epoll instance.
    EpollCtl {
        e: u32,
        s: u32,
        action: EpollAction,
        #[serde(default)]
        interest: Interest,
    },
    /// `epoll_wait` for up to `max` events; it waits until something is ready if `wait`.
    EpollWait {
        e: u32,
        #[serde(default = "sixteen")]
        max: u32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        wait: bool,
    },
    /// Bytes to and fro until the connection stays on its path, at most `rounds` times; from slot `s` of the step's
    /// process to slot `peer` of process `q`.
    Warm { s: u32, q: u8, peer: u32, rounds: u32 },
    /// Waits for the background step of that number.
    Join { of: u32 },
    /// A signal to the thread of the background step of that number: its handler has `SA_RESTART` or not. Without it,
    /// and for calls that are never restarted, signals are sent until the step has ended.
    Signal {
        of: u32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restart: bool,
    },
    /// `fork`: the child is process `child`.
    Fork { child: u8 },
    /// `execve` of the same program, which keeps the slots that are not close-on-exec.
    Exec,
    /// Passes a descriptor to process `q` with SCM_RIGHTS; it is slot `to` there.
    Pass { s: u32, q: u8, to: u32 },
    /// The process ends by `_exit`.
    Exit,
    /// SIGKILL, from outside.
    Kill,
    /// Time for the library's own work.
    Pause { us: u32 },
}

fn sixteen() -> u32 {
    16
}

/// The error in a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// It is not JSON, or not of this format.
    #[error("not a program: {0}")]
    Syntax(String),
    /// Another version of the format.
    #[error("format {0}, only {FORMAT} is known")]
    Format(u32),
    /// Too many of something, or a number that does not exist.
    #[error("step {step}: {what}")]
    Step {
        /// Its index.
        step: usize,
        /// The error.
        what: String,
    },
    /// No process, or too many.
    #[error("{0} processes")]
    Processes(usize),
}

impl Program {
    /// Reads and checks a program.
    ///
    /// # Errors
    /// Fails if it is not JSON, not of this format, or not sound.
    pub fn parse(text: &str) -> Result<Program, ProgramError> {
        let program: Program = serde_json::from_str(text).map_err(|e| ProgramError::Syntax(e.to_string()))?;
        program.check()?;
        Ok(program)
    }

    /// Whether executors can run it: bounds, and names that exist. A slot that is not open is fine, and an EBADF.
    ///
    /// # Errors
    /// The first error.
    pub fn check(&self) -> Result<(), ProgramError> {
        if self.format != FORMAT {
            return Err(ProgramError::Format(self.format));
        }
        if self.hosts.is_empty() || self.hosts.len() > MAX_PROCESSES || self.steps.len() > MAX_STEPS {
            return Err(ProgramError::Processes(self.hosts.len()));
        }
        let mut processes = self.hosts.len();
        let mut background = BTreeMap::new();
        let mut listeners = BTreeSet::new();
        for (index, step) in self.steps.iter().enumerate() {
            let wrong = |what: &str| Err(ProgramError::Step { step: index, what: what.into() });
            if usize::from(step.p) >= processes {
                return wrong("no such process");
            }
            if let Some(number) = step.background {
                if background.insert(number, step.p).is_some() {
                    return wrong("the background number is taken");
                }
                if !step.op.may_block() {
                    return wrong("only calls that may block can run in the background");
                }
            }
            match &step.op {
                Op::Connect { c, .. } | Op::Accept { c, .. } if *c as usize >= MAX_CONNECTIONS => {
                    return wrong("too many connections");
                }
                Op::Listen { l, .. } | Op::Connect { l, .. } if *l as usize >= MAX_CONNECTIONS => {
                    return wrong("too many listeners");
                }
                Op::Listen { l, .. } if !listeners.insert(*l) => return wrong("the listener's number is taken"),
                Op::Send { n, .. } | Op::SendAll { n, .. } | Op::Recv { n, .. } | Op::RecvAll { n, .. }
                    if *n > MAX_BYTES =>
                {
                    return wrong("too many bytes");
                }
                Op::Fork { child } if usize::from(*child) != processes || processes >= MAX_PROCESSES => {
                    return wrong("children are numbered in order, and few");
                }
                Op::Fork { .. } => processes += 1,
                Op::Warm { q, .. } | Op::Pass { q, .. } if usize::from(*q) >= processes => {
                    return wrong("no such peer process");
                }
                Op::Join { of: number } | Op::Signal { of: number, .. } if background.get(number) != Some(&step.p) => {
                    return wrong("that process has no such background step");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Op {
    /// The slot through which it sends bytes, or tries to.
    pub fn sends(&self) -> Option<u32> {
        match self {
            Op::Send { s, .. } | Op::SendAll { s, .. } | Op::Fill { s } => Some(*s),
            Op::Misuse { s, call, .. } if !call.receives() => Some(*s),
            _ => None,
        }
    }

    /// Whether it may wait for another step.
    pub fn may_block(&self) -> bool {
        matches!(
            self,
            Op::Send { .. }
                | Op::SendAll { .. }
                | Op::Recv { .. }
                | Op::RecvAll { .. }
                | Op::Drain { .. }
                | Op::Poll { .. }
                | Op::EpollWait { .. }
                | Op::Accept { .. }
        )
    }
}
