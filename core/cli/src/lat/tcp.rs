//! Ping-pong over a TCP socket, accelerated or not: the program is the same.

use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use super::measured::{Latencies, Measured};
use super::{LatError, MAX_SIZE};
use crate::bench::link::Sample;

/// How long a process under the library may take to have its connection on a link. Devices are opened with the first
/// connection, which takes seconds in emulation.
const PROMOTION: Duration = Duration::from_secs(20);

/// No answer takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most round trips, and about the most bytes, between two checks whether the connection is on a link.
const ROUND: usize = 64;
const ROUND_BYTES: usize = 4 << 20;

/// Answers one connection after the other, and datagrams at the same port, until standard input ends.
pub(super) fn serve(address: SocketAddr) -> Result<(), LatError> {
    let listener = TcpListener::bind(address)?;
    let datagrams = UdpSocket::bind(listener.local_addr()?)?;
    println!("listening at {}", listener.local_addr()?);
    thread::spawn(move || super::udp::serve(&datagrams));
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // An error of one client does not affect the others. A client decides how long others wait, and nothing
            // more.
            let _ = answer(connection);
        }
    });
    let mut ignored = [0; 64];
    while std::io::stdin().read(&mut ignored).is_ok_and(|read| read > 0) {}
    Ok(())
}

/// Answers messages of the size that the client begins with, until it has ended the connection.
fn answer(mut connection: TcpStream) -> std::io::Result<Infallible> {
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut size = [0; 4];
    connection.read_exact(&mut size)?;
    let size = u32::from_le_bytes(size);
    if !(1..=MAX_SIZE).contains(&size) {
        return Err(ErrorKind::InvalidData.into());
    }
    // The whole message, as between devices: echoing its first parts would be a different measurement.
    let mut bytes = vec![0; size as usize];
    loop {
        connection.read_exact(&mut bytes)?;
        connection.write_all(&bytes)?;
    }
}

/// Measures `count` round trips. Under the library, once the connection is on a link, if it gets onto one.
pub(super) fn measure(server: SocketAddr, size: u32, count: u32) -> Result<Measured, LatError> {
    let mut connection = TcpStream::connect_timeout(&server, PATIENCE)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.write_all(&size.to_le_bytes())?;
    let size = size as usize;
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
        for _ in 0..(ROUND_BYTES / size).clamp(1, ROUND) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if both ends waited for the other to read, as with an echo of large messages by parts. Also breaks if a
    /// client that requests too much, or nothing, is answered, or makes others wait.
    #[test]
    fn messages_of_each_size_come_back_whole_and_no_larger_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("bound");
        let server = thread::spawn(move || {
            let mut outcomes = listener.incoming().flatten().map(|connection| answer(connection).unwrap_err().kind());
            outcomes.by_ref().take(5).collect::<Vec<_>>()
        });
        let wrong = |size: u32| {
            let mut connection = TcpStream::connect(address).expect("it listens");
            connection.write_all(&size.to_le_bytes()).expect("connected");
            connection.read(&mut [0])
        };
        assert_eq!(measure(address, MAX_SIZE, 2).expect("answered").histogram.count(), 2);
        assert!(matches!(wrong(MAX_SIZE + 1), Ok(0)));
        assert!(matches!(wrong(0), Ok(0)));
        assert_eq!(measure(address, 2, 3).expect("answered").histogram.count(), 3);
        drop(TcpStream::connect(address).expect("it listens"));
        let (ended, refused) = (ErrorKind::UnexpectedEof, ErrorKind::InvalidData);
        assert_eq!(server.join().expect("it ends"), [ended, refused, refused, ended, ended]);
    }
}
