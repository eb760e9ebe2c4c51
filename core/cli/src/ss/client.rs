//! The client's half of the protocol. The listener is untrusted until SO_PEERCRED has shown its process, and its answer
//! is always untrusted.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netacc_config::stats::{Answer, Snapshot, VERSION};
use nix::errno::Errno;
use nix::sys::socket::{
    connect, getsockopt, sendmsg, setsockopt, socket, sockopt, AddressFamily, ControlMessage, MsgFlags, SockFlag,
    SockType, UnixAddr,
};
use nix::sys::time::TimeVal;
use nix::unistd::geteuid;

use super::containers::Contained;

/// An answer must be complete by then.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// No process has so many sockets.
pub(super) const ANSWER_LIMIT: usize = 64 << 20;

/// The reason why there is no snapshot. Prints as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// No process has this number.
    #[error("process {0} does not exist")]
    NoSuchProcess(u32),
    /// It runs without the library, or has only begun.
    #[error("process {0} is not accelerated: the NetACC library is not in it")]
    NotAccelerated(u32),
    /// It belongs to another user.
    #[error("process {pid} belongs to user {owner}: only that user and root may query it")]
    NotPermitted {
        /// The process.
        pid: u32,
        /// Its user.
        owner: u32,
    },
    /// Another process has taken its name.
    #[error("no request is sent to process {pid}: process {holder} of user {owner} listens in its name")]
    Impostor {
        /// The process meant.
        pid: u32,
        /// Who listens.
        holder: i32,
        /// The other process's user.
        owner: u32,
    },
    /// It listens, and is too busy or stopped.
    #[error("process {0} does not answer within {limit} s", limit = TIMEOUT.as_secs())]
    NoAnswer(u32),
    /// The answer has no end.
    #[error("process {0} answers with more than {limit} MiB", limit = ANSWER_LIMIT >> 20)]
    TooLong(u32),
    /// It has closed the connection.
    #[error("process {0} sent no answer: it has ended, or its library is of another version")]
    Unknown(u32),
    /// The answer is not a snapshot.
    #[error("process {pid} sent an invalid answer: {source}")]
    BadAnswer {
        /// The process.
        pid: u32,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The library in the process is of another version.
    #[error("process {pid} answers in version {version}, netacc_ss reads version {VERSION}: use the one that belongs to its library")]
    OtherVersion {
        /// The process.
        pid: u32,
        /// Of its answer.
        version: u64,
    },
    /// The system refused something.
    #[error("process {pid} cannot be queried: {source}")]
    Io {
        /// The process.
        pid: u32,
        /// The system's error.
        source: io::Error,
    },
    /// The table of Unix sockets cannot be read.
    #[error("/proc/net/unix cannot be read: {0}")]
    NoTable(#[source] io::Error),
}

impl FetchError {
    /// The exit status of this failure.
    pub fn status(&self) -> u8 {
        match self {
            Self::NoSuchProcess(_) => 1,
            Self::NotAccelerated(_) => 3,
            Self::NotPermitted { .. } | Self::Impostor { .. } => 4,
            _ => super::OTHER_STATUS,
        }
    }
}

/// Requests `sections` of process `pid`: `all`, or a comma list.
///
/// # Errors
/// See [`FetchError`]; none of them has a lasting effect on the process.
pub fn fetch(pid: u32, sections: &str) -> Result<Snapshot, FetchError> {
    let snapshot: Snapshot = query(pid, &format!("GET {sections}"))?;
    // The number of the request.
    Ok(Snapshot { pid, ..snapshot })
}

/// Sends process `pid` one line and reads its answer.
///
/// # Errors
/// See [`FetchError`].
pub fn query<T: Answer>(pid: u32, request: &str) -> Result<T, FetchError> {
    query_with(pid, request, None)
}

/// As [`query`], and passes the process a descriptor.
///
/// # Errors
/// See [`FetchError`].
pub fn query_with<T: Answer>(pid: u32, request: &str, passed: Option<BorrowedFd<'_>>) -> Result<T, FetchError> {
    let deadline = Instant::now() + TIMEOUT;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => FetchError::NoAnswer(pid),
        _ => FetchError::Io { pid, source: error },
    };
    let mut stream = UnixStream::from(reach(pid).map_err(|errno| match errno {
        Errno::ECONNREFUSED if process_directory(pid).exists() => FetchError::NotAccelerated(pid),
        Errno::ECONNREFUSED => FetchError::NoSuchProcess(pid),
        _ => failed(errno.into()),
    })?);
    check_listener(pid, &stream)?;
    let line = format!("{request}\n");
    let sent = pass(&stream, line.as_bytes(), passed).map_err(|errno| failed(errno.into()))?;
    stream.write_all(&line.as_bytes()[sent..]).map_err(failed)?;
    let answer = read_all(pid, &mut stream, deadline)?;
    if answer.is_empty() {
        return Err(FetchError::Unknown(pid));
    }
    decode(pid, &answer)
}

/// Sends the first bytes, with the descriptor. Returns how many.
fn pass(stream: &UnixStream, bytes: &[u8], passed: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
    let fds = passed.map(|fd| fd.as_raw_fd());
    let rights = fds.as_ref().map(|fd| ControlMessage::ScmRights(std::slice::from_ref(fd)));
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(bytes)], rights.as_slice(), MsgFlags::MSG_NOSIGNAL, None)
}

/// Connects to a process, which may be in a container.
fn reach(pid: u32) -> Result<OwnedFd, Errno> {
    if let Some(contained) = Contained::find(pid) {
        return contained.reach(reach_name);
    }
    // The name with the namespace is there only if a process of another one has the other.
    let specific = pid_namespace().map(|namespace| reach_name(&format!("netacc-ss/{pid}/{namespace}")));
    match specific {
        Some(Ok(socket)) => Ok(socket),
        _ => reach_name(&format!("netacc-ss/{pid}")),
    }
}

/// Connects, waiting a bounded time for room in the listener's queue.
fn reach_name(name: &str) -> Result<OwnedFd, Errno> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let seconds = TIMEOUT.as_secs().try_into().unwrap_or(1);
    setsockopt(&socket, sockopt::SendTimeout, &TimeVal::new(seconds, 0))?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(socket)
}

/// The inode of this process's PID namespace.
pub(super) fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino())
}

/// Checks that the process itself listens, and belongs to a user whose processes this user may query.
fn check_listener(pid: u32, stream: &UnixStream) -> Result<(), FetchError> {
    let listener =
        getsockopt(stream, sockopt::PeerCredentials).map_err(|errno| FetchError::Io { pid, source: errno.into() })?;
    let own = geteuid();
    if u32::try_from(listener.pid()) != Ok(pid) {
        return Err(FetchError::Impostor { pid, holder: listener.pid(), owner: listener.uid() });
    }
    if !own.is_root() && listener.uid() != own.as_raw() {
        return Err(FetchError::NotPermitted { pid, owner: listener.uid() });
    }
    Ok(())
}

fn read_all(pid: u32, stream: &mut UnixStream, deadline: Instant) -> Result<Vec<u8>, FetchError> {
    let mut answer = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(FetchError::NoAnswer(pid));
        }
        // Set anew each time; otherwise a listener that sends single bytes would be read for ever.
        let read = stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut chunk));
        match read {
            Ok(0) => return Ok(answer),
            Ok(len) if answer.len() + len > ANSWER_LIMIT => return Err(FetchError::TooLong(pid)),
            Ok(len) => answer.extend_from_slice(&chunk[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(FetchError::NoAnswer(pid));
            }
            Err(source) => return Err(FetchError::Io { pid, source }),
        }
    }
}

/// Of 20,000 connections an answer has 13 MB, so it is read once. In another version its fields may differ.
fn decode<T: Answer>(pid: u32, answer: &[u8]) -> Result<T, FetchError> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u64,
    }
    let decoded: Result<T, _> = serde_json::from_slice(answer);
    let version = match &decoded {
        Ok(decoded) => u64::from(decoded.version()),
        Err(_) => serde_json::from_slice(answer).map_or(VERSION.into(), |Versioned { version }| version),
    };
    if version != u64::from(VERSION) {
        return Err(FetchError::OtherVersion { pid, version });
    }
    decoded.map_err(|source| FetchError::BadAnswer { pid, source })
}

/// The user of the process, if it exists and is visible.
pub(super) fn owner(pid: u32) -> Option<u32> {
    let metadata = std::fs::metadata(process_directory(pid)).ok()?;
    Some(metadata.uid())
}

fn process_directory(pid: u32) -> PathBuf {
    format!("/proc/{pid}").into()
}
