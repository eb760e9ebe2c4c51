#![expect(unsafe_code, reason = "a controlling terminal is taken between fork and exec")]
//! A command that runs in the guest.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::thread::{self, JoinHandle};

use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::pty::{openpty, Winsize};
use nix::sys::signal::{killpg, Signal};
use nix::unistd::Pid;

use super::writer::{send, send_answer, Writer};
use crate::local::shell_status;
use crate::wire::{Answer, Kind, MAX_PAYLOAD};

nix::ioctl_write_int_bad!(take_terminal, libc::TIOCSCTTY);
nix::ioctl_write_ptr_bad!(set_size, libc::TIOCSWINSZ, Winsize);

/// What to run.
#[derive(Debug)]
pub(super) struct Spawn {
    pub(super) argv: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) cwd: PathBuf,
    pub(super) terminal: Option<(u16, u16)>,
}

/// A command with an open session. Drop kills it, with its process group.
#[derive(Debug)]
pub(super) struct Running {
    session: u64,
    group: Pid,
    /// The command's input; `None` after its end.
    input: Option<SyncSender<Vec<u8>>>,
    terminal: Option<File>,
    pump: Option<JoinHandle<()>>,
}

/// The rest in a pipe when the command has ended is far below this; further output is from another process.
const LAST_READS: usize = 64;

impl Running {
    /// Starts it. Its output, and in the end its status, go to `writer`.
    ///
    /// # Errors
    /// A status as shells have it, and why.
    pub(super) fn start(spawn: Spawn, writer: Writer, session: u64) -> Result<Running, (u8, String)> {
        let Some((program, arguments)) = spawn.argv.split_first() else {
            return Err((126, "no command".into()));
        };
        if !spawn.cwd.is_dir() {
            return Err((126, format!("{} is no folder here", spawn.cwd.display())));
        }
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(spawn.env).current_dir(spawn.cwd);
        let failed = |error: io::Error| {
            let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            (status, format!("{}: {error}", program.to_string_lossy()))
        };
        let started = match spawn.terminal {
            Some(size) => with_terminal(&mut command, size),
            None => with_pipes(&mut command),
        };
        let Started { child, input, outputs, terminal } = started.map_err(failed)?;
        let group = Pid::from_raw(child.id() as i32);
        let (chunks, queue) = sync_channel(1);
        let acknowledge = Writer::clone(&writer);
        thread::spawn(move || feed(input, &queue, &acknowledge, session));
        let pump = thread::spawn(move || pump(child, outputs, &writer, session));
        Ok(Running { session, group, input: Some(chunks), terminal, pump: Some(pump) })
    }

    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// Input for the command; an empty piece is its end. A peer that sends more than was taken loses the surplus.
    pub(super) fn feed(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() {
            self.input = None;
        } else if let Some(input) = &self.input {
            let _ = input.try_send(bytes);
        }
    }

    /// Changes the size of the terminal.
    pub(super) fn resize(&self, rows: u16, columns: u16) {
        if let Some(terminal) = &self.terminal {
            let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            use std::os::fd::AsRawFd;
            // SAFETY: the descriptor is a terminal that we hold open, and `size` lives through the call.
            let _ = unsafe { set_size(terminal.as_raw_fd(), &size) };
        }
    }

    /// Sends a signal to the command's process group.
    pub(super) fn signal(&self, number: i32) {
        // The group cannot be another's: its leader is waited for only by the pump, which is joined when we end.
        if let (Ok(signal), Some(false)) = (Signal::try_from(number), self.pump.as_ref().map(JoinHandle::is_finished)) {
            let _ = killpg(self.group, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        self.input = None;
        if let Some(pump) = self.pump.take() {
            // It ends when the last output is written, or dropped by a port without a client.
            let _ = pump.join();
        }
    }
}

struct Started {
    child: Child,
    input: File,
    outputs: Vec<(Kind, File)>,
    terminal: Option<File>,
}

fn with_pipes(command: &mut Command) -> io::Result<Started> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let input = File::from(OwnedFd::from(child.stdin.take().expect("piped")));
    let stdout = File::from(OwnedFd::from(child.stdout.take().expect("piped")));
    let stderr = File::from(OwnedFd::from(child.stderr.take().expect("piped")));
    Ok(Started { child, input, outputs: vec![(Kind::Stdout, stdout), (Kind::Stderr, stderr)], terminal: None })
}

fn with_terminal(command: &mut Command, (rows, columns): (u16, u16)) -> io::Result<Started> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pair = openpty(Some(&size), None)?;
    let slave = || pair.slave.try_clone().map(Stdio::from);
    command.stdin(slave()?).stdout(slave()?).stderr(slave()?);
    // SAFETY: the closure makes two system calls and touches nothing else, as is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            take_terminal(0, 0)?;
            Ok(())
        });
    }
    let child = command.spawn()?;
    let master = File::from(pair.master);
    Ok(Started {
        child,
        input: master.try_clone()?,
        outputs: vec![(Kind::Stdout, master.try_clone()?)],
        terminal: Some(master),
    })
}

/// Writes input to the command, and requests another piece after each.
fn feed(mut input: File, queue: &Receiver<Vec<u8>>, writer: &Writer, session: u64) {
    while let Ok(bytes) = queue.recv() {
        // A command that does not read to the end is no error; and its terminal is switched to non-blocking.
        if write_all(&mut input, &bytes).is_err() || send(writer, session, Kind::StdinTaken, &[0]).is_err() {
            return;
        }
    }
}

fn write_all(input: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match input.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(input.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Passes output on until the command has ended, then its status. Processes that it left running keep its pipes but are
/// not waited for.
fn pump(mut child: Child, mut outputs: Vec<(Kind, File)>, writer: &Writer, session: u64) {
    let status = (|| -> io::Result<ExitStatus> {
        for (_, output) in &outputs {
            let flags = OFlag::from_bits_truncate(fcntl(output, FcntlArg::F_GETFL)?);
            fcntl(output, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        }
        let (mut ended, ending) = io::pipe()?;
        let waiter = thread::spawn(move || {
            let status = child.wait();
            drop(ending);
            status
        });
        while !wait_for_output(&mut outputs, &mut ended)? {
            forward(&mut outputs, writer, session, 1)?;
        }
        forward(&mut outputs, writer, session, LAST_READS)?;
        waiter.join().unwrap_or_else(|_| Err(io::Error::other("waiting for the command")))
    })();
    let answer = match status {
        Ok(status) => Answer::Ended { status: shell_status(status) },
        Err(error) => Answer::Refused { why: error.to_string() },
    };
    // Fails only when the port is gone, and then there is no client to report it to.
    let _ = send_answer(writer, session, &answer);
}

/// Sleeps until there is output, or the command has ended: then true.
fn wait_for_output(outputs: &mut [(Kind, File)], ended: &mut PipeReader) -> io::Result<bool> {
    let mut watched: Vec<PollFd> =
        outputs.iter().map(|(_, output)| PollFd::new(output.as_fd(), PollFlags::POLLIN)).collect();
    watched.push(PollFd::new(ended.as_fd(), PollFlags::POLLIN));
    match poll(&mut watched, PollTimeout::NONE) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let last = watched.last().and_then(PollFd::revents).unwrap_or(PollFlags::empty());
    Ok(!last.is_empty())
}

/// Reads each output at most `reads` times; removes those at their end.
fn forward(outputs: &mut Vec<(Kind, File)>, writer: &Writer, session: u64, reads: usize) -> io::Result<()> {
    let mut buffer = vec![0; MAX_PAYLOAD];
    let mut result = Ok(());
    outputs.retain_mut(|(kind, output)| {
        for _ in 0..reads {
            match output.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    if let Err(error) = send(writer, session, *kind, &buffer[..count]) {
                        result = Err(error);
                        return false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // A terminal that no process holds open any more returns EIO.
                Err(_) => return false,
            }
        }
        true
    });
    result
}
