//! Child processes that never outlive the benchmark.
//!
//! Each child leads a process group of its own, so that stopping it also stops the processes that it started, and no
//! others. Children end when their [`Proc`] is dropped, on an error or at the end; on Ctrl-C, through the register of
//! running children; and by the kernel if this process is killed (`peer::guard`).

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{killpg, Signal};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::error::BenchError;

/// A server must answer within this time.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection to a server, of either family.
pub(crate) trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// How long a child may take to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// How much of a child's stderr goes into an error message.
const LOG_TAIL_BYTES: usize = 2000;

struct Living {
    groups: Vec<Pid>,
    dirs: Vec<PathBuf>,
}

static LIVING: Mutex<Living> = Mutex::new(Living { groups: Vec::new(), dirs: Vec::new() });

fn living() -> MutexGuard<'static, Living> {
    // The lists stay consistent if a thread panics.
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on SIGINT, SIGTERM and SIGHUP stop the children, remove the directories and end this
/// process with 130.
pub(crate) fn clean_up_on_interrupt() {
    // Fails only if a handler is there already: ours, when two loads run in one process.
    let _ = ctrlc::set_handler(|| {
        // Held to the end: no child may be started meanwhile.
        let living = living();
        for group in &living.groups {
            let _ = killpg(*group, Signal::SIGKILL);
        }
        for dir in &living.dirs {
            let _ = fs::remove_dir_all(dir);
        }
        eprintln!("\nnetacc bench: interrupted; everything that was started has been stopped");
        std::process::exit(130);
    });
}

/// From now on an interrupted process removes this directory, too, if it is still there.
pub(crate) fn remove_on_interrupt(dir: &Path) {
    living().dirs.push(dir.to_owned());
}

/// A directory for sockets and logs, removed at the end unless it is to be kept.
#[derive(Debug)]
pub(crate) struct Workdir {
    dir: Option<TempDir>,
    keep: bool,
}

impl Workdir {
    pub(crate) fn new(keep: bool) -> Result<Self, BenchError> {
        let dir = TempDir::with_prefix("netacc-bench-").map_err(BenchError::io("making a temporary directory"))?;
        if !keep {
            living().dirs.push(dir.path().to_owned());
        }
        Ok(Workdir { dir: Some(dir), keep })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.as_ref().expect("taken only when dropped").path()
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        let dir = self.dir.take().expect("dropped only once");
        if self.keep {
            eprintln!("logs kept in {}", dir.keep().display());
        } else {
            living().dirs.retain(|other| other != dir.path());
        }
    }
}

/// A port that is free now, low enough that port + 20000 (where NetACC's services listen) is a port
/// too, and below the range from which the kernel takes the ports of outgoing connections.
pub(crate) fn free_port() -> Result<u16, BenchError> {
    let start = 20_000 + (std::process::id() % 12_000) as u16;
    (start..32_000)
        .chain(20_000..start)
        // Starts at a different place each time, so that two processes do not choose the same port.
        .skip(NEXT_PORT.fetch_add(7, Ordering::Relaxed))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .ok_or_else(|| BenchError::Io {
            what: "looking for a free port on 127.0.0.1".into(),
            source: std::io::ErrorKind::AddrInUse.into(),
        })
}

static NEXT_PORT: AtomicUsize = AtomicUsize::new(0);

/// A running child whose standard output is read line by line.
#[derive(Debug)]
pub(crate) struct Proc {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Proc {
    /// Starts a child. Its stderr goes to `dir/name.log`; `name` also stands in error messages.
    pub(crate) fn spawn(mut command: Command, name: &str, dir: &Path) -> Result<Self, BenchError> {
        let log = dir.join(format!("{}.log", name.replace([' ', '/'], "-")));
        let failed = |what: &str| BenchError::io(format!("{what} {name}"));
        let stderr = File::options().append(true).create(true).open(&log).map_err(failed("opening the log of"))?;
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = {
            let mut living = living();
            let child = command.spawn().map_err(failed("starting"))?;
            living.groups.push(group(&child));
            child
        };
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, lines) = mpsc::channel();
        // Ends with the child: at end of file, or when the receiver is dropped.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Proc { name: name.to_owned(), child, stdin, lines, log })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until a server answers at a port of 127.0.0.1, or at `socket` if that is 0. `ask` requests its process id.
    pub(crate) fn process_id(
        &mut self,
        port: u16,
        socket: &Path,
        ask: impl Fn(&mut dyn Stream) -> io::Result<u32>,
    ) -> Result<u32, BenchError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let answer = if port == 0 {
                UnixStream::connect(socket).and_then(|mut stream| {
                    stream.set_read_timeout(Some(START_TIMEOUT))?;
                    ask(&mut stream)
                })
            } else {
                TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
                    stream.set_read_timeout(Some(START_TIMEOUT))?;
                    ask(&mut stream)
                })
            };
            match answer {
                Ok(pid) => return Ok(pid),
                Err(_) if self.has_ended() => return Err(self.error("ended at once")),
                Err(error) if Instant::now() > deadline => {
                    return Err(self.error(format!("does not answer: {error}")));
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The next line of its output.
    pub(crate) fn line(&mut self, timeout: Duration) -> Result<String, BenchError> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(self.timed_out(timeout)),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended_early()),
        }
    }

    /// The next line, which must begin with this word; returns what follows it.
    pub(crate) fn expect(&mut self, word: &str, timeout: Duration) -> Result<String, BenchError> {
        let line = self.line(timeout)?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(self.error(format!("said '{line}' where '{word}' was expected"))),
        }
    }

    /// Writes a line to its standard input.
    pub(crate) fn send_line(&mut self, line: &str) -> Result<(), BenchError> {
        let written = self.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}"));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(self.ended_early()),
        }
    }

    /// Closes its standard input, reads the rest of its output and waits for it; it must end with
    /// success.
    pub(crate) fn finish(mut self, timeout: Duration) -> Result<Vec<String>, BenchError> {
        self.stdin = None;
        let deadline = Instant::now() + timeout;
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(self.timed_out(timeout)),
            }
        }
        // Its output has ended, so it is ending too: this waits for milliseconds at most.
        while !self.has_ended() {
            if Instant::now() > deadline {
                return Err(self.timed_out(timeout));
            }
            thread::sleep(Duration::from_millis(1));
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(lines),
            _ => Err(self.ended_early()),
        }
    }

    /// An error about this child, with the end of its log.
    pub(crate) fn error(&self, what: impl Into<String>) -> BenchError {
        BenchError::Child { name: self.name.clone(), what: what.into(), log: self.log_tail() }
    }

    fn timed_out(&self, after: Duration) -> BenchError {
        BenchError::Timeout { name: self.name.clone(), after, log: self.log_tail() }
    }

    fn ended_early(&mut self) -> BenchError {
        // Its output is closed, so it is about to end. Waits a moment for its exit status.
        let deadline = Instant::now() + Duration::from_millis(200);
        while !self.has_ended() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        match self.child.try_wait() {
            Ok(Some(status)) => self.error(format!("ended early ({status})")),
            _ => self.error("closed its output early"),
        }
    }

    fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned()
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let group = group(&self.child);
        self.stdin = None;
        if !self.has_ended() {
            let _ = killpg(group, Signal::SIGTERM);
            let deadline = Instant::now() + GRACE;
            while !self.has_ended() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(2));
            }
        }
        // The remaining processes: the child, or those that it started.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
        living().groups.retain(|other| *other != group);
    }
}

fn group(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().expect("process ids are small"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, dir: &Path) -> Proc {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Proc::spawn(command, "a shell", dir).expect("there is a shell")
    }

    #[test]
    fn lines_are_read_and_written() {
        let dir = Workdir::new(false).expect("there is a temporary directory");
        let mut proc = shell("echo READY 7; read word; echo got $word", dir.path());
        assert_eq!(proc.expect("READY", GRACE).expect("it says so"), "7");
        proc.send_line("GO").expect("it listens");
        assert_eq!(proc.finish(GRACE).expect("it ends well"), ["got GO"]);
    }

    #[test]
    fn failure_carries_the_log() {
        let dir = Workdir::new(false).expect("there is a temporary directory");
        let error = shell("echo no such thing >&2; exit 3", dir.path()).finish(GRACE).expect_err("it fails");
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.contains("no such thing"), "{text}");
    }

    /// Breaks if only the child itself is stopped: the grandchild would run for a minute.
    #[test]
    fn dropping_stops_the_whole_group_and_the_directory_goes() {
        let dir = Workdir::new(false).expect("there is a temporary directory");
        let path = dir.path().to_owned();
        let mut proc = shell("sleep 60 & echo $!; wait", dir.path());
        let grandchild = proc.line(GRACE).expect("it names it");
        drop(proc);
        // Gone, or a zombie that its new parent has yet to reap. This takes little time, because a killed process ends
        // when it runs next.
        let stat = || fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_else(|_| "0 (sleep) Z".into());
        let begun = Instant::now();
        while !stat().contains(") Z") {
            assert!(begun.elapsed() < GRACE, "{}", stat());
            thread::yield_now();
        }
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn silence_is_an_error_in_time() {
        let dir = Workdir::new(false).expect("there is a temporary directory");
        let error = shell("sleep 60", dir.path()).line(Duration::from_millis(20)).expect_err("it says nothing");
        assert!(matches!(error, BenchError::Timeout { .. }));
    }
}
