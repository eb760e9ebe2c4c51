//! Short connections: open, perhaps one request and its answer, close.
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

/// Accepts, answers if there is a request, and closes.
pub(super) fn serve(listener: &Socket, load: LoadArgs) -> io::Result<()> {
    let mut message = vec![0; load.size];
    loop {
        let (socket, _) = listener.accept()?;
        if !message.is_empty() {
            no_delay(&socket)?;
            (&socket).read_exact(&mut message)?;
            (&socket).write_all(&message)?;
        }
    }
}

/// Measures. The latency is that of `connect`; with an exchange, that of `connect` until the answer
/// is there. The rate counts whole connections, until both sides have closed.
pub(super) fn drive(address: &Address, load: LoadArgs, length: LengthArgs) -> io::Result<()> {
    let mut message = vec![b'x'; load.size];
    let end = Instant::now() + Duration::from_millis(200);
    let mut warm = 0;
    while warm < WARM_UP_CONNECTIONS && Instant::now() < end {
        once(address, warm, &mut message)?;
        warm += 1;
    }
    ready()?;
    let mut tally = Tally::new();
    let meter = Meter::start();
    let stop = Stop::new(length, meter.start, 0, 1);
    let mut now = meter.start;
    while stop.goes_on(tally.count(), now) {
        tally.record(once(address, warm + tally.count(), &mut message)?);
        now = Instant::now();
    }
    let used = meter.stop();
    report(&tally, used)
}

/// Makes connection number `index` of this process.
fn once(address: &Address, index: u64, message: &mut [u8]) -> io::Result<Duration> {
    let start = Instant::now();
    let socket = address.connect_as(group(index) * PORTS_OF_ADDRESS)?;
    if !message.is_empty() {
        no_delay(&socket)?;
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
