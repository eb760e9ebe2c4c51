//! Ping-pong over a TCP socket, accelerated or not: the program is the same.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::report::Latencies;
use super::LatError;
use crate::bench::link::Sample;

/// How long a process under the library may take to have its connection on a link. Devices are opened with the first
/// connection, which takes seconds in emulation.
const PROMOTION: Duration = Duration::from_secs(20);

/// No answer takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Round trips between two looks at whether the connection is on a link.
const ROUND: u32 = 64;

/// What a path has brought.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) histogram: Latencies,
    /// Of the bytes that were measured, the share that went over the link; nothing without the library.
    pub(crate) link_share: Option<f64>,
}

/// The address of ours from which the server is reached.
pub(super) fn own_address_towards(server: SocketAddr) -> Result<IpAddr, LatError> {
    let any: IpAddr = if server.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Sends nothing: the kernel looks up the way.
    socket.connect(server)?;
    Ok(socket.local_addr()?.ip())
}

/// Answers every connection in a thread of its own, until standard input ends.
pub(super) fn serve(address: SocketAddr) -> Result<(), LatError> {
    let listener = TcpListener::bind(address)?;
    println!("listening at {}", listener.local_addr()?);
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // A client that goes wrong is its own affair.
            thread::spawn(move || answer(connection));
        }
    });
    let mut ignored = [0; 64];
    while std::io::stdin().read(&mut ignored).is_ok_and(|read| read > 0) {}
    Ok(())
}

fn answer(mut connection: TcpStream) -> std::io::Result<()> {
    connection.set_nodelay(true)?;
    let mut bytes = vec![0; 64 << 10];
    loop {
        match connection.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(read) => connection.write_all(&bytes[..read])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Measures `count` round trips. Under the library, once the connection is on a link, if it gets onto one.
pub(super) fn ask(server: SocketAddr, size: usize, count: u32) -> Result<Measured, LatError> {
    let mut connection = TcpStream::connect_timeout(&server, PATIENCE)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = vec![0x5a; size];
    let mut ping = || -> Result<Duration, LatError> {
        let begun = Instant::now();
        connection.write_all(&bytes)?;
        connection.read_exact(&mut bytes)?;
        Ok(begun.elapsed())
    };
    let own = std::process::id();
    let begun = Instant::now();
    let before = loop {
        for _ in 0..ROUND {
            ping()?;
        }
        match Sample::of(own) {
            Some(sample) if sample.bytes().link == 0 && begun.elapsed() < PROMOTION => {}
            other => break other,
        }
    };
    let mut histogram = Latencies::default();
    for _ in 0..count {
        histogram.record_round_trip(ping()?);
    }
    let after = Sample::of(own);
    let link_share = before.zip(after).and_then(|(before, after)| after.bytes_since(&before).share(0));
    Ok(Measured { histogram, link_share })
}
