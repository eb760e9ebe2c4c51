//! Ping-pong over a TCP socket, accelerated or not: the program is the same.

use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use super::measured::{Latencies, Measured, Round};
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
    let mut client = Client::connect(server, size)?;
    let before = client.warm_up()?;
    let mut histogram = Latencies::default();
    for _ in 0..count {
        histogram.record_round_trip(client.ping()?);
    }
    Ok(Measured { histogram, link_share: link_share_since(before) })
}

/// Measures `count` messages there and back, `depth` of them in flight, in the same way. All in flight must fit into the buffers
/// between the ends: this end does not read while it writes.
pub(super) fn rate(server: SocketAddr, size: u32, count: u32, depth: u32) -> Result<Round, LatError> {
    let mut client = Client::connect(server, size)?;
    let before = client.warm_up()?;
    let begun = Instant::now();
    for number in 0..count {
        if number >= depth {
            client.read()?;
        }
        client.write()?;
    }
    (0..depth.min(count)).try_for_each(|_| client.read())?;
    Ok(Round { link_share: link_share_since(before), ..Round::new(count, begun.elapsed()) })
}

/// The connection of a client, and a message.
struct Client {
    connection: TcpStream,
    bytes: Vec<u8>,
}

impl Client {
    fn connect(server: SocketAddr, size: u32) -> Result<Client, LatError> {
        let mut connection = TcpStream::connect_timeout(&server, PATIENCE)?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.write_all(&size.to_le_bytes())?;
        Ok(Client { connection, bytes: vec![0x5a; size as usize] })
    }

    fn write(&mut self) -> Result<(), LatError> {
        Ok(self.connection.write_all(&self.bytes)?)
    }

    fn read(&mut self) -> Result<(), LatError> {
        Ok(self.connection.read_exact(&mut self.bytes)?)
    }

    fn ping(&mut self) -> Result<Duration, LatError> {
        let begun = Instant::now();
        self.write()?;
        self.read()?;
        Ok(begun.elapsed())
    }

    /// Under the library, until the connection is on a link, if it gets onto one. Returns the counters from which on to measure.
    fn warm_up(&mut self) -> Result<Option<Sample>, LatError> {
        let begun = Instant::now();
        loop {
            for _ in 0..(ROUND_BYTES / self.bytes.len()).clamp(1, ROUND) {
                self.ping()?;
            }
            match Sample::of(std::process::id()) {
                Some(sample) if sample.bytes().link == 0 && begun.elapsed() < PROMOTION => {}
                other => return Ok(other),
            }
        }
    }
}

fn link_share_since(before: Option<Sample>) -> Option<f64> {
    before.zip(Sample::of(std::process::id())).and_then(|(before, after)| after.bytes_since(&before).share(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a message in flight is left unread, or more are awaited than were sent.
    #[test]
    fn messages_in_flight_all_come_back() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("bound");
        thread::spawn(move || listener.incoming().flatten().for_each(|connection| drop(answer(connection))));
        for (size, count, depth) in [(64, 100, 16), (1024, 3, 16), (1, 1, 1)] {
            assert_eq!(rate(address, size, count, depth).expect("answered").messages, count);
        }
    }

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
