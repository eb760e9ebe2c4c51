//! Sessions on one port: a request, a running command, its answer.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::agent::{Guest, Port};
use super::running::{Running, Spawn};
use crate::setup;
use crate::wire::{encode, Answer, Frame, Frames, Kind, Request, MAX_PAYLOAD};

/// The port's writing side. Each frame is written whole under the lock.
pub(super) type Writer = Arc<Mutex<File>>;

/// Requests beyond this are refused.
const MAX_REQUEST: usize = 8 << 20;

/// Serves one port for ever.
pub(super) fn serve(guest: &Guest, writer: &Writer, mut frames: Frames<Port>) -> io::Result<()> {
    let mut running: Option<Running> = None;
    let mut request = Vec::new();
    loop {
        let Some(frame) = frames.next_frame()? else {
            // Nobody is there to see what the command would still do.
            running = None;
            request.clear();
            frames.source().wait_for_peer()?;
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

/// What a command can know about the lab that it runs in.
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

pub(super) fn send(writer: &Writer, session: u64, kind: Kind, bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(MAX_PAYLOAD) {
        let frame = encode(session, kind, piece);
        writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame)?;
    }
    Ok(())
}

pub(super) fn send_answer(writer: &Writer, session: u64, answer: &Answer) -> io::Result<()> {
    send(writer, session, Kind::Answer, &serde_json::to_vec(answer)?)
}
