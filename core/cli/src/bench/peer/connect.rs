//! Short connections: open, perhaps some requests and their answers, close.
//!
//! The server closes first. The side that closes first keeps the connection's ports for a minute (TIME_WAIT): on the
//! server's side that costs nothing, because it has only one port, while the client would run out of ephemeral ports. But the
//! kernel searches for a port whose connection is over, for longer the more of a local address are not, and that search would
//! be most of what is measured. So a client has another local address for every few thousand connections.

use std::io::{self, Read, Write};
use std::process;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::socket::{no_delay, Address, PORTS_OF_ADDRESS};
use super::{ready, report, LengthArgs, LoadArgs, Meter, Stop, Tally};

/// Connections of the warm-up at most: they use up ports too.
const WARM_UP_CONNECTIONS: u64 = 200;

/// Accepts, answers all requests, and closes.
pub(super) fn serve(listener: &Socket, load: LoadArgs) -> io::Result<()> {
    let mut message = vec![0; load.size];
    loop {
        let (socket, _) = listener.accept()?;
        if load.requests_per_connection > 0 {
            no_delay(&socket)?;
        }
        for _ in 0..load.requests_per_connection {
            (&socket).read_exact(&mut message)?;
            (&socket).write_all(&message)?;
        }
    }
}

/// Measures. The latency is that of `connect`; with requests, that of `connect` until the last answer
/// is there. The rate counts whole connections, until both sides have closed.
pub(super) fn drive(address: &Address, load: LoadArgs, length: LengthArgs) -> io::Result<()> {
    let mut message = vec![b'x'; load.size];
    let requests = load.requests_per_connection;
    let end = Instant::now() + Duration::from_millis(200);
    let mut warm = 0;
    while warm < WARM_UP_CONNECTIONS && Instant::now() < end {
        once(address, warm, requests, &mut message)?;
        warm += 1;
    }
    ready()?;
    let mut tally = Tally::new();
    let meter = Meter::start();
    let stop = Stop::new(length, meter.start, 0, 1);
    let mut now = meter.start;
    while stop.goes_on(tally.count(), now) {
        tally.record(once(address, warm + tally.count(), requests, &mut message)?);
        now = Instant::now();
    }
    let used = meter.stop();
    report(&tally, used)
}

/// Makes connection number `index` of this process.
fn once(address: &Address, index: u64, requests: u32, message: &mut [u8]) -> io::Result<Duration> {
    let start = Instant::now();
    let socket = address.connect_as(group(index) * PORTS_OF_ADDRESS)?;
    if requests > 0 {
        no_delay(&socket)?;
    }
    for _ in 0..requests {
        (&socket).write_all(message)?;
        (&socket).read_exact(message)?;
    }
    let latency = start.elapsed();
    match (&socket).read(&mut [0])? {
        0 => Ok(latency),
        _ => Err(io::Error::other("an unexpected byte")),
    }
}

/// The number of the local address that a connection comes from: never 0, which is the kernel's choice. Processes begin at
/// different ones, because the connections of the last process are in TIME_WAIT still.
fn group(index: u64) -> usize {
    const GROUPS: usize = u8::MAX as usize;
    1 + (process::id() as usize + index as usize / PORTS_OF_ADDRESS) % GROUPS
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use super::super::super::args::Mode;
    use super::super::LoadName;
    use super::*;

    /// Breaks if a client makes another number of requests on a connection, or does not wait until the server has closed it.
    #[test]
    fn a_client_makes_all_requests_of_a_connection() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("server");
        let listener = UnixListener::bind(&path).expect("an unused name");
        let server = thread::spawn(move || -> io::Result<Vec<u8>> {
            let (mut socket, _) = listener.accept()?;
            let mut requests = Vec::new();
            for answer in 0..3 {
                let mut request = [0; 64];
                socket.read_exact(&mut request)?;
                requests.extend(request);
                socket.write_all(&[answer; 64])?;
            }
            socket.shutdown(std::net::Shutdown::Write)?;
            socket.read_to_end(&mut requests)?;
            Ok(requests)
        });
        let address = format!("unix:{}", path.display()).parse().expect("an address");
        let mut message = [b'x'; 64];
        once(&address, 0, 3, &mut message).expect("the server answers");
        assert_eq!(message, [2; 64], "the last answer came");
        let requests = server.join().expect("it does not panic").expect("it can read");
        assert_eq!(requests.len(), 3 * 64, "and nothing after them");
    }

    /// Breaks if a server answers another number of requests, or does not close the connection after the last one.
    #[test]
    fn a_server_answers_all_requests_and_closes() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("server");
        let address: Address = format!("unix:{}", path.display()).parse().expect("an address");
        let listener = address.listen().expect("an unused name");
        let load = LoadArgs {
            load: LoadName::Connect,
            size: 8,
            mode: Mode::Blocking,
            clients: 1,
            test: None,
            pipeline: 1,
            requests_per_connection: 3,
            rewatch: false,
            wakes: None,
        };
        // It serves until the test's process ends.
        thread::spawn(move || serve(&listener, load));
        for _ in 0..2 {
            let mut client = UnixStream::connect(&path).expect("it listens");
            client.write_all(&[b'y'; 3 * 8]).expect("there is room");
            let mut answers = Vec::new();
            client.read_to_end(&mut answers).expect("it answers");
            assert_eq!(answers, [b'y'; 3 * 8]);
        }
    }
}
