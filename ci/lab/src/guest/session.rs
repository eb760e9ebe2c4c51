//! Sessions on one port: a request, a running command, its answer.
//!
//! Invariant: a hang-up ends a session only if no client comes back. The guest's kernel gets hang-ups and bytes in
//! separate queues, so the end of a session is often seen in the middle of the next one's request, or after it.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::running::{Running, Spawn};
use super::writer::{send, send_answer, Writer};
use super::GuestConfig;
use crate::setup;
use crate::wire::{Answer, Frame, Frames, Kind, Request};

/// The context of the sessions.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) config: GuestConfig,
    /// The error of the guest's setup.
    pub(super) problem: Option<String>,
}

/// Requests beyond this are refused.
const MAX_REQUEST: usize = 8 << 20;

/// After a hang-up: how long the client may be away. Arbitrary: far above the time by which the queues differ, and a
/// short wait for a user who has interrupted a command.
const ABSENCE: Duration = Duration::from_secs(1);

/// A port's client, which comes and goes.
pub(super) trait Peer {
    /// After the end of the file: whether the other side stays away for so long.
    fn stays_away(&self, absence: Duration) -> io::Result<bool>;

    /// Sleeps until the other side may be back.
    fn wait_for_peer(&self) -> io::Result<()>;
}

/// Serves one port for ever.
pub(super) fn serve<P: Read + Peer>(guest: &Guest, writer: &Writer, mut frames: Frames<P>) -> io::Result<()> {
    let mut running: Option<Running> = None;
    let mut request = Vec::new();
    loop {
        let Some(frame) = frames.next_frame()? else {
            if frames.source().stays_away(ABSENCE)? {
                // There is no client for the command's further output.
                running = None;
                request.clear();
                frames.forget();
                frames.source().wait_for_peer()?;
            }
            continue;
        };
        match frame.kind {
            Kind::RequestPart if request.len() + frame.payload.len() <= MAX_REQUEST => {
                request.extend_from_slice(&frame.payload);
            }
            Kind::Request => {
                // A session that begins ends the one before it.
                drop(running.take());
                request.extend_from_slice(&frame.payload);
                running = answer(guest, writer, frame.session, &std::mem::take(&mut request))?;
            }
            _ => pass_on(running.as_mut(), &frame),
        }
    }
}

fn answer(guest: &Guest, writer: &Writer, session: u64, request: &[u8]) -> io::Result<Option<Running>> {
    let request = match serde_json::from_slice(request) {
        Ok(request) => request,
        Err(error) => {
            send_answer(writer, session, &Answer::Refused { why: error.to_string() })?;
            return Ok(None);
        }
    };
    match request {
        Request::Report => {
            send_answer(writer, session, &Answer::Report { problem: guest.problem.clone() })?;
            Ok(None)
        }
        // The first process sees the agent end and switches off.
        Request::PowerOff => std::process::exit(0),
        Request::Run { argv, env, cwd, terminal } => {
            let mut env: Vec<(OsString, OsString)> =
                env.into_iter().map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value))).collect();
            env.extend(described(guest));
            let argv = argv.into_iter().map(OsString::from_vec).collect();
            let spawn = Spawn { argv, env, cwd: PathBuf::from(OsString::from_vec(cwd)), terminal };
            match Running::start(spawn, Arc::clone(writer), session) {
                Ok(running) => Ok(Some(running)),
                Err((status, why)) => {
                    send(writer, session, Kind::Stderr, format!("netacc lab: {why}\n").as_bytes())?;
                    send_answer(writer, session, &Answer::Ended { status })?;
                    Ok(None)
                }
            }
        }
    }
}

/// The variables that describe the lab to a command.
fn described(guest: &Guest) -> Vec<(OsString, OsString)> {
    let config = &guest.config;
    let peer = if config.hosts == 1 { 1 } else { 3 - config.host };
    let [address, _] = setup::addresses(config.host);
    let [peer_address, _] = setup::addresses(peer);
    let device = config.rdma.names().map_or("", |(device, _)| device);
    [
        ("NETACC_LAB_HOST", config.host.to_string()),
        ("NETACC_LAB_HOSTS", config.hosts.to_string()),
        ("NETACC_LAB_ADDRESS", address),
        ("NETACC_LAB_PEER", peer_address),
        ("NETACC_LAB_DEVICE", device.to_owned()),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .to_vec()
}

fn pass_on(running: Option<&mut Running>, frame: &Frame) {
    let Some(running) = running.filter(|running| running.session() == frame.session) else {
        return;
    };
    match (frame.kind, frame.payload.as_slice()) {
        (Kind::Stdin, bytes) => running.feed(bytes.to_vec()),
        (Kind::Resize, [a, b, c, d]) => running.resize(u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d])),
        (Kind::Signal, [number]) => running.signal(i32::from(*number)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::fs::File;
    use std::io::PipeReader;
    use std::os::fd::OwnedFd;
    use std::rc::Rc;
    use std::sync::Mutex;

    use super::*;
    use crate::wire::{encode, open};

    enum Step {
        Bytes(Vec<u8>),
        /// The client's hang-up arrives; the client is back already, unless this is the last step.
        HangUp,
        /// Nothing comes before a session is answered.
        Answered,
    }

    type Answers = Rc<RefCell<Vec<(u64, Answer)>>>;

    struct Scripted {
        steps: VecDeque<Step>,
        written: Frames<PipeReader>,
        answers: Answers,
    }

    impl Read for Scripted {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            loop {
                match self.steps.front_mut() {
                    None => return Ok(0),
                    Some(Step::HangUp) => {
                        self.steps.pop_front();
                        return Ok(0);
                    }
                    Some(Step::Bytes(bytes)) if !bytes.is_empty() => {
                        let count = bytes.len().min(out.len());
                        out[..count].copy_from_slice(&bytes[..count]);
                        bytes.drain(..count);
                        return Ok(count);
                    }
                    Some(Step::Bytes(_)) => {}
                    Some(Step::Answered) => {
                        let frame = self.written.next_frame()?.expect("an answer");
                        if frame.kind != Kind::Answer {
                            continue;
                        }
                        let answer = serde_json::from_slice(&frame.payload).expect("an answer");
                        self.answers.borrow_mut().push((frame.session, answer));
                    }
                }
                self.steps.pop_front();
            }
        }
    }

    impl Peer for Scripted {
        fn stays_away(&self, _: Duration) -> io::Result<bool> {
            Ok(self.steps.is_empty())
        }

        fn wait_for_peer(&self) -> io::Result<()> {
            Err(io::Error::other("the script is over"))
        }
    }

    fn answers(script: impl IntoIterator<Item = Step>) -> Vec<(u64, Answer)> {
        let config = GuestConfig {
            host: 1,
            hosts: 1,
            rdma: setup::Rdma::None,
            module: None,
            program: PathBuf::new(),
            modules: 0,
            module_tree: PathBuf::new(),
            writable: Vec::new(),
            impairment: Default::default(),
            ports: 1,
        };
        let (reader, writer) = io::pipe().expect("a pipe");
        let answers = Answers::default();
        let steps = script.into_iter().collect();
        let port = Scripted { steps, written: Frames::new(reader), answers: Rc::clone(&answers) };
        let writer = Arc::new(Mutex::new(File::from(OwnedFd::from(writer))));
        let ended = serve(&Guest { config, problem: None }, &writer, Frames::new(port));
        assert_eq!(ended.expect_err("the end of the script").to_string(), "the script is over");
        answers.take()
    }

    fn request_frame(session: u64, request: &Request) -> Vec<u8> {
        let mut bytes = Vec::new();
        open(&mut bytes, session, request).expect("writing memory");
        bytes
    }

    #[test]
    fn a_late_hang_up_does_not_cost_the_next_session_its_request() {
        let mut begin = request_frame(7, &Request::Report);
        let rest = begin.split_off(begin.len() - 3);
        let script = [Step::Bytes(begin), Step::HangUp, Step::Bytes(rest), Step::Answered];
        assert_eq!(answers(script), [(7, Answer::Report { problem: None })]);
    }

    #[test]
    fn nor_its_command() {
        let argv = ["sh", "-c", "read line; exit 5"].map(|word| word.as_bytes().to_vec()).to_vec();
        let env = vec![(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec())];
        let request = request_frame(7, &Request::Run { argv, env, cwd: b"/".to_vec(), terminal: None });
        let input = encode(7, Kind::Stdin, b"go\n");
        let script = [Step::Bytes(request), Step::HangUp, Step::Bytes(input), Step::Answered];
        assert_eq!(answers(script), [(7, Answer::Ended { status: 5 })]);
    }
}
