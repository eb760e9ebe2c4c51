//! Ping-pong over a UDP socket, accelerated or not: the program is the same.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::measured::{Latencies, Measured};
use super::LatError;
use crate::bench::link::Sample;

/// The longest datagram over IPv4.
const LONGEST: usize = 65_507;
/// The first byte of a question and that of its answer. A server answers questions alone, so that two of them cannot be made
/// to answer each other for ever.
const QUESTION: u8 = 0x5a;
const ANSWER: u8 = 0xa5;
/// Until a question is repeated, which the network or a full buffer has lost.
const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// Questions that are repeated in a row.
const MOST_REPEATS: u32 = 10;
/// Round trips before those that are measured, under the library as many again until there are flows.
const WARMING: u32 = 64;
/// How long a process under the library may take to have flows.
const FLOWS: Duration = Duration::from_secs(20);

/// The address of ours from which the server is reached.
pub(super) fn own_address_towards(server: SocketAddr) -> Result<IpAddr, LatError> {
    let any: IpAddr = if server.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Sends nothing: the kernel looks up the route.
    socket.connect(server)?;
    Ok(socket.local_addr()?.ip())
}

/// Answers questions for ever.
pub(super) fn serve(socket: &UdpSocket) -> ! {
    let mut bytes = vec![0; LONGEST];
    loop {
        // An error is that of an earlier answer, whose client has gone.
        let Ok((len, client)) = socket.recv_from(&mut bytes) else { continue };
        if let Some(first @ &mut QUESTION) = bytes[..len].first_mut() {
            *first = ANSWER;
            let _ = socket.send_to(&bytes[..len], client);
        }
    }
}

/// Measures `count` round trips. Under the library, once there are flows, if there are any.
pub(super) fn measure(server: SocketAddr, size: u32, count: u32) -> Result<Measured, LatError> {
    let size = usize::try_from(size).ok().filter(|size| *size <= LONGEST).ok_or(LatError::TooLong)?;
    let own = own_address_towards(server)?;
    let socket = UdpSocket::bind((own, 0))?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(REPEAT_AFTER))?;
    let mut bytes = vec![QUESTION; size];
    let pid = std::process::id();
    let begun = Instant::now();
    let before = loop {
        for _ in 0..WARMING {
            ping(&socket, &mut bytes)?;
        }
        match Sample::of(pid) {
            Some(sample) if sample.datagrams()[0] == 0 && begun.elapsed() < FLOWS => {}
            other => break other,
        }
    };
    let mut histogram = Latencies::default();
    for _ in 0..count {
        histogram.record_round_trip(ping(&socket, &mut bytes)?);
    }
    let link_share = before.zip(Sample::of(pid)).map(|(before, after)| {
        let [link, kernel] = [0, 1].map(|way| after.datagrams()[way].saturating_sub(before.datagrams()[way]));
        link as f64 / (link + kernel).max(1) as f64
    });
    Ok(Measured { histogram, link_share })
}

/// One round trip. One whose question or answer is lost begins anew.
fn ping(socket: &UdpSocket, bytes: &mut [u8]) -> Result<Duration, LatError> {
    for _ in 0..MOST_REPEATS {
        bytes[0] = QUESTION;
        let begun = Instant::now();
        socket.send(bytes)?;
        match socket.recv(bytes) {
            Ok(_) => return Ok(begun.elapsed()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(LatError::Silent(u64::from(MOST_REPEATS) * REPEAT_AFTER.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if an answer is answered, or a datagram that asks for nothing.
    #[test]
    fn questions_are_answered_and_nothing_else() {
        let server = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        let address = server.local_addr().expect("bound");
        std::thread::spawn(move || serve(&server));
        assert_eq!(measure(address, LONGEST as u32, 3).expect("answered").histogram.count(), 3);
        assert!(matches!(measure(address, LONGEST as u32 + 1, 1), Err(LatError::TooLong)));
        let client = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        for datagram in [&[][..], &[ANSWER, 1], &[0], &[QUESTION, 7]] {
            client.send_to(datagram, address).expect("sent");
        }
        let mut answer = [0; 4];
        assert_eq!(client.recv(&mut answer).expect("answered"), 2);
        assert_eq!(answer[..2], [ANSWER, 7], "the only question");
    }
}
