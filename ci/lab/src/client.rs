//! Running a command in a guest, from this side.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{sync_channel, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::error::LabError;
use crate::state::{HostFiles, PORTS};
use crate::wire::{self, encode, Answer, Frames, Kind, Request, MAX_PAYLOAD};

/// How often a wait checks whether to give up.
const GLANCE: Duration = Duration::from_millis(200);

/// A session on a port of a guest.
#[derive(Debug)]
pub(crate) struct Session {
    id: u64,
    stream: UnixStream,
    /// Held while we use the port, so that no other program does.
    _lock: Flock<File>,
}

/// The destination of a command's output.
pub(crate) trait Sink {
    /// A piece of output.
    fn write(&mut self, kind: OutputKind, bytes: &[u8]) -> io::Result<()>;
}

/// The output that a command wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputKind {
    Stdout,
    Stderr,
}

impl Session {
    /// Takes a free port.
    ///
    /// # Errors
    /// All are in use, or the machine is gone.
    pub(crate) fn open(files: &HostFiles) -> Result<Session, LabError> {
        for port in 0..PORTS {
            let path = files.port_lock(port);
            let lock = File::create(&path).map_err(LabError::file(&path))?;
            let Ok(lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else {
                continue;
            };
            let socket = files.port(port);
            let stream = UnixStream::connect(&socket).map_err(LabError::file(&socket))?;
            return Ok(Session { id: RandomState::new().build_hasher().finish(), stream, _lock: lock });
        }
        Err(LabError::Usage(format!("{PORTS} commands run on that host already")))
    }

    /// Requests the state of the guest's setup. Calls `give_up` from time to time.
    pub(crate) fn report(self, mut give_up: impl FnMut() -> Option<LabError>) -> Result<Option<String>, LabError> {
        self.send(&Request::Report)?;
        self.stream.set_read_timeout(Some(GLANCE)).map_err(LabError::io("waiting for a guest"))?;
        match self.converse(&mut Discard, None, &mut give_up)? {
            Answer::Report { problem } => Ok(problem),
            other => Err(unexpected(&other)),
        }
    }

    /// Requests that the guest writes all data back and switches off, and waits for its end, at most `grace`.
    pub(crate) fn power_off(self, grace: Duration) -> Result<(), LabError> {
        self.send(&Request::PowerOff)?;
        let waiting = LabError::io("waiting for a guest's end");
        // Hanging up at once could overtake the request. The guest sends no answer: the machine's end is the answer.
        match self.stream.set_read_timeout(Some(grace)).and_then(|()| io::copy(&mut &self.stream, &mut io::sink())) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(waiting(error)),
        }
    }

    /// Runs a command and returns its status. `deadline`: when it is killed.
    ///
    /// # Errors
    /// The machine is gone, or the time is up.
    pub(crate) fn run(
        self,
        command: &CommandLine,
        input: Input,
        sink: &mut dyn Sink,
        deadline: Option<(Instant, u64)>,
    ) -> Result<u8, LabError> {
        self.send(&command.request())?;
        let writing = || -> io::Result<UnixStream> {
            self.stream.set_read_timeout(deadline.map(|_| GLANCE))?;
            self.stream.try_clone()
        };
        let stream = writing().map_err(LabError::io("communicating with a guest"))?;
        let id = self.id;
        let (taken, may_send) = sync_channel(1);
        if command.terminal.is_some() {
            follow_size(stream.try_clone().map_err(LabError::io("communicating with a guest"))?, id);
        }
        match input {
            Input::Stdin => drop(thread::spawn(move || send_stdin(&stream, id, &may_send))),
            Input::Nothing => {
                let end = encode(id, Kind::Stdin, &[]);
                (&stream).write_all(&end).map_err(LabError::io("communicating with a guest"))?;
            }
        }
        let mut give_up =
            || deadline.filter(|(when, _)| Instant::now() >= *when).map(|(_, seconds)| LabError::TimedOut(seconds));
        let mut acknowledged = || {
            let _ = taken.try_send(());
        };
        let answer = self.converse(sink, Some(&mut acknowledged), &mut give_up);
        // Threads that wait for input, or for the terminal's size, hold the connection as well, and a port has only one
        // connection at a time. The next client would wait for them.
        let _ = self.stream.shutdown(Shutdown::Both);
        match answer? {
            Answer::Ended { status } => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    fn send(&self, request: &Request) -> Result<(), LabError> {
        wire::open(&mut &self.stream, self.id, request).map_err(LabError::io("communicating with a guest"))
    }

    fn converse(
        &self,
        sink: &mut dyn Sink,
        mut acknowledged: Option<&mut dyn FnMut()>,
        give_up: &mut dyn FnMut() -> Option<LabError>,
    ) -> Result<Answer, LabError> {
        let mut frames = Frames::new(&self.stream);
        loop {
            if let Some(reason) = give_up() {
                // The guest sees the hang-up and kills the command.
                let _ = self.stream.shutdown(Shutdown::Both);
                return Err(reason);
            }
            let frame = match frames.next_frame() {
                Ok(Some(frame)) if frame.session == self.id => frame,
                Ok(Some(_)) => continue,
                Ok(None) => return Err(LabError::io("the guest is gone")(io::ErrorKind::UnexpectedEof.into())),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => continue,
                Err(error) => return Err(LabError::io("communicating with a guest")(error)),
            };
            let written = match frame.kind {
                Kind::Stdout => sink.write(OutputKind::Stdout, &frame.payload),
                Kind::Stderr => sink.write(OutputKind::Stderr, &frame.payload),
                Kind::StdinTaken => {
                    acknowledged.iter_mut().for_each(|acknowledge| acknowledge());
                    Ok(())
                }
                Kind::Answer => {
                    return serde_json::from_slice(&frame.payload)
                        .map_err(|error| LabError::io("reading a guest's answer")(error.into()));
                }
                _ => Ok(()),
            };
            written.map_err(LabError::io("writing the command's output"))?;
        }
    }
}

fn unexpected(answer: &Answer) -> LabError {
    let why = match answer {
        Answer::Refused { why } => why.clone(),
        other => format!("{other:?}"),
    };
    LabError::io("reading a guest's answer")(io::Error::other(why))
}

/// A command for a guest: as it would run here, in this folder and with this environment.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    pub(crate) argv: Vec<OsString>,
    pub(crate) terminal: Option<(u16, u16)>,
}

/// The command's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Stdin,
    Nothing,
}

impl CommandLine {
    fn request(&self) -> Request {
        let bytes = |text: &OsStr| text.as_bytes().to_vec();
        Request::Run {
            argv: self.argv.iter().map(|argument| bytes(argument)).collect(),
            env: std::env::vars_os().map(|(name, value)| (bytes(&name), bytes(&value))).collect(),
            cwd: bytes(std::env::current_dir().unwrap_or_else(|_| "/".into()).as_os_str()),
            terminal: self.terminal,
        }
    }
}

struct Discard;

impl Sink for Discard {
    fn write(&mut self, _: OutputKind, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// Sends our stdin piece by piece: each one when the command has taken the last.
fn send_stdin(mut stream: &UnixStream, session: u64, may_send: &Receiver<()>) {
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        let count = match io::stdin().read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other.unwrap_or(0),
        };
        let sent = stream.write_all(&encode(session, Kind::Stdin, &buffer[..count]));
        if count == 0 || sent.is_err() || may_send.recv().is_err() {
            return;
        }
    }
}

/// Sends the guest each new size of our terminal. SIGWINCH is blocked in all threads by now.
fn follow_size(mut stream: UnixStream, session: u64) {
    thread::spawn(move || {
        let mut changed = nix::sys::signal::SigSet::empty();
        changed.add(nix::sys::signal::Signal::SIGWINCH);
        while changed.wait().is_ok() {
            let (rows, columns) = crate::terminal::size();
            let payload = [rows.to_le_bytes(), columns.to_le_bytes()].concat();
            if stream.write_all(&encode(session, Kind::Resize, &payload)).is_err() {
                return;
            }
        }
    });
}
