//! Datagrams: packets in one direction, and round trips. Calls on blocking sockets, as in UDPDK's two examples: plain ones, or
//! `sendmmsg` and `recvmmsg` with many packets each.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Subcommand;
use nix::sys::socket::{recvmmsg, sendmmsg, MsgFlags, MultiHeaders, SockaddrStorage};
use serde::{Deserialize, Serialize};

use super::{listen_to_parent, send_line, Tally};

/// Ends a server. Messages of loads have another length.
const END: &[u8] = b"END";
/// Packets between two readings of the clock.
const BATCH: u32 = 32;
/// Round trips before those that count: by then flows are made.
const WARM_UP: Duration = Duration::from_millis(200);
/// The client gives up on an answer after this long: the datagram was lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longer than any datagram.
const ROOM: usize = 1 << 16;

/// One end of a load of datagrams.
#[derive(Debug, Subcommand)]
pub(super) enum Datagrams {
    /// Counts what arrives
    Sink {
        #[arg(long)]
        size: usize,
        #[arg(long)]
        batch: usize,
    },
    /// Sends as fast as it can, from several sockets in turns
    Source {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        size: usize,
        #[arg(long)]
        seconds: f64,
        #[arg(long)]
        flows: usize,
        #[arg(long)]
        batch: usize,
    },
    /// Sends each datagram back
    Echo,
    /// Measures round trips
    Ask {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        size: usize,
        #[arg(long)]
        seconds: f64,
    },
}

/// The count of a sink, or of a source.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Packets {
    pub(crate) packets: u64,
    /// From the first to the last.
    pub(crate) seconds: f64,
}

/// Round trips, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundTrips {
    pub(crate) count: u64,
    pub(crate) lost: u64,
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

pub(super) fn run(role: &Datagrams) -> io::Result<()> {
    match *role {
        Datagrams::Sink { size, batch } => sink(size, batch),
        Datagrams::Source { to, size, seconds, flows, batch } => {
            source(to, flows, Duration::from_secs_f64(seconds), &mut Outlet::new(size, batch))
        }
        Datagrams::Echo => echo(),
        Datagrams::Ask { to, size, seconds } => ask(to, size, seconds),
    }
}

fn bound() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    send_line(&format!("READY {} {}", std::process::id(), socket.local_addr()?))?;
    Ok(socket)
}

fn result(result: &impl Serialize) -> io::Result<()> {
    send_line(&format!("RESULT {}", serde_json::to_string(result)?))?;
    // The parent reads the statistics before.
    listen_to_parent().map(drop)
}

/// Receives packets, one a call or many.
struct Inlet {
    rooms: Vec<Vec<u8>>,
    headers: MultiHeaders<SockaddrStorage>,
}

impl Inlet {
    fn new(size: usize, batch: usize) -> Inlet {
        Inlet { rooms: vec![vec![0; size]; batch], headers: MultiHeaders::preallocate(batch, None) }
    }

    /// Waits for packets: their number, and whether the last one was the end.
    fn receive(&mut self, socket: &UdpSocket) -> io::Result<(u64, bool)> {
        if let [room] = &mut self.rooms[..] {
            let (len, _) = socket.recv_from(room)?;
            let is_end = &room[..len] == END;
            return Ok((u64::from(!is_end), is_end));
        }
        let mut slices: Vec<_> = self.rooms.iter_mut().map(|room| [IoSliceMut::new(room)]).collect();
        let flags = MsgFlags::MSG_WAITFORONE;
        let received = recvmmsg(socket.as_raw_fd(), &mut self.headers, slices.iter_mut(), flags, None)?;
        let lengths: Vec<_> = received.map(|message| message.bytes).collect();
        let ends = lengths.iter().zip(&self.rooms).filter(|(len, room)| &room[..**len] == END).count();
        Ok(((lengths.len() - ends) as u64, ends > 0))
    }
}

/// Sends packets, one a call or many.
struct Outlet {
    message: Vec<u8>,
    batch: usize,
    headers: MultiHeaders<SockaddrStorage>,
}

impl Outlet {
    fn new(size: usize, batch: usize) -> Outlet {
        Outlet { message: vec![b'x'; size], batch, headers: MultiHeaders::preallocate(batch, None) }
    }

    /// Returns how many were sent.
    fn send(&mut self, socket: &UdpSocket, to: SocketAddr) -> io::Result<u64> {
        if self.batch == 1 {
            return Ok(u64::from(socket.send_to(&self.message, to)? == self.message.len()));
        }
        let slices = vec![[IoSlice::new(&self.message)]; self.batch];
        let destinations = vec![Some(SockaddrStorage::from(to)); self.batch];
        let fd = socket.as_raw_fd();
        let sent = sendmmsg(fd, &mut self.headers, &slices, &destinations, [], MsgFlags::empty())?;
        Ok(sent.count() as u64)
    }
}

fn sink(size: usize, batch: usize) -> io::Result<()> {
    let socket = bound()?;
    let mut inlet = Inlet::new(size.max(END.len()), batch);
    let (mut packets, mut begun) = (0, Instant::now());
    let (mut last, mut at_last) = (begun, 0);
    loop {
        let (received, ended) = inlet.receive(&socket)?;
        if packets == 0 {
            begun = Instant::now();
        }
        packets += received;
        if packets - at_last >= u64::from(BATCH) {
            (last, at_last) = (Instant::now(), packets);
        }
        if ended {
            break;
        }
    }
    let seconds = last.saturating_duration_since(begun).as_secs_f64();
    result(&Packets { packets, seconds })
}

fn source(to: SocketAddr, flows: usize, time: Duration, outlet: &mut Outlet) -> io::Result<()> {
    let sockets = (0..flows).map(|_| UdpSocket::bind(("127.0.0.1", 0))).collect::<io::Result<Vec<_>>>()?;
    let begun = Instant::now();
    let end = begun + time;
    let mut packets = 0;
    let mut in_turns = sockets.iter().cycle();
    while Instant::now() < end {
        for socket in in_turns.by_ref().take(BATCH.div_ceil(outlet.batch as u32) as usize) {
            packets += outlet.send(socket, to)?;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    send_line(&format!("RESULT {}", serde_json::to_string(&Packets { packets, seconds })?))?;
    finish(&sockets[0], to)
}

/// Sends the end until the parent says that it has arrived: it may be lost.
fn finish(socket: &UdpSocket, to: SocketAddr) -> io::Result<()> {
    let (told, over) = mpsc::channel();
    std::thread::spawn(move || told.send(listen_to_parent()));
    loop {
        // The server may be gone.
        let _ = socket.send_to(END, to);
        if !matches!(over.recv_timeout(Duration::from_millis(5)), Err(RecvTimeoutError::Timeout)) {
            return Ok(());
        }
    }
}

fn echo() -> io::Result<()> {
    let socket = bound()?;
    let mut message = vec![0; ROOM];
    loop {
        let (len, from) = socket.recv_from(&mut message)?;
        socket.send_to(&message[..len], from)?;
    }
}

fn ask(to: SocketAddr, size: usize, seconds: f64) -> io::Result<()> {
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let (mut message, mut answer) = (vec![b'x'; size], vec![0; ROOM]);
    let mut lost = 0;
    let mut run = |until: Instant, tally: &mut Tally| -> io::Result<()> {
        let mut number = 0u32;
        let mut begun = Instant::now();
        while begun < until {
            number = number.wrapping_add(1);
            let head = size.min(4);
            message[..head].copy_from_slice(&number.to_le_bytes()[..head]);
            socket.send_to(&message, to)?;
            match socket.recv_from(&mut answer) {
                Ok((len, _)) if answer[..len] == message[..] => {}
                Ok(_) => return Err(io::Error::other("an answer to another datagram")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => lost += 1,
                Err(error) => return Err(error),
            }
            let now = Instant::now();
            tally.record(now - begun);
            begun = now;
        }
        Ok(())
    };
    run(Instant::now() + WARM_UP, &mut Tally::new())?;
    let mut tally = Tally::new();
    run(Instant::now() + Duration::from_secs_f64(seconds), &mut tally)?;
    let us = |ns: u64| ns as f64 / 1e3;
    result(&RoundTrips {
        count: tally.count(),
        lost,
        mean: tally.0.mean() / 1e3,
        deviation: tally.0.stdev() / 1e3,
        p50: us(tally.0.value_at_quantile(0.5)),
        p99: us(tally.0.value_at_quantile(0.99)),
    })
}
