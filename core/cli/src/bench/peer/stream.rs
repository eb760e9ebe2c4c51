//! Bulk: writes of one size go one way as fast as they can.
//!
//! The client ends its stream with a half-close, and the time runs until the server has confirmed how many bytes it has
//! read: bytes that are still in a buffer are not counted.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::socket::Address;
use super::{ready, report, LengthArgs, LoadArgs, Meter, Stop, Tally};

/// The most bytes of one read of the server: enough for any kernel buffer.
const READ_BYTES: usize = 1 << 20;

/// How long to warm up.
const WARM_UP: Duration = Duration::from_millis(100);

/// Reads all bytes on as many connections as a client opens, then waits for the next client.
pub(super) fn serve(listener: &Socket, load: LoadArgs) -> io::Result<()> {
    loop {
        if load.clients == 1 {
            let (socket, _) = listener.accept()?;
            swallow(&socket, load.size)?;
            continue;
        }
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for _ in 0..load.clients {
                let (socket, _) = listener.accept()?;
                threads.push(scope.spawn(move || swallow(&socket, load.size)));
            }
            threads.into_iter().try_for_each(join)
        })?;
    }
}

/// Measures.
pub(super) fn drive(address: &Address, load: LoadArgs, length: LengthArgs) -> io::Result<()> {
    let sockets = (0..load.clients).map(|_| address.connect()).collect::<io::Result<Vec<_>>>()?;
    let streams = sockets.len() as u64;
    let message = vec![b'x'; load.size];
    let (tally, used) = if let [socket] = &sockets[..] {
        let warm = warm_up(socket, &message)?;
        ready()?;
        let meter = Meter::start();
        let tally = pour(socket, &message, warm, Stop::new(length, meter.start, 0, 1))?;
        (tally, meter.stop())
    } else {
        let (warmed, go) = (Barrier::new(sockets.len() + 1), Barrier::new(sockets.len() + 1));
        thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&sockets)
                .map(|(index, socket)| {
                    let (message, warmed, go) = (&message, &warmed, &go);
                    scope.spawn(move || {
                        let warm = warm_up(socket, message);
                        warmed.wait();
                        go.wait();
                        pour(socket, message, warm?, Stop::new(length, Instant::now(), index, streams))
                    })
                })
                .collect();
            warmed.wait();
            let readiness = ready();
            let meter = Meter::start();
            go.wait();
            let mut tally = Tally::new();
            let mut outcome = readiness;
            for thread in threads {
                match join(thread) {
                    Ok(part) => tally.add(&part),
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
            let used = meter.stop();
            outcome.map(|()| (tally, used))
        })?
    };
    report(&tally, used)
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// Reads to the end, then sends back the number of bytes.
fn swallow(mut socket: &Socket, size: usize) -> io::Result<()> {
    let mut buffer = vec![0; size.clamp(4096, READ_BYTES)];
    let mut bytes: u64 = 0;
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    socket.write_all(&bytes.to_le_bytes())
}

/// Returns the writes made.
fn warm_up(mut socket: &Socket, message: &[u8]) -> io::Result<u64> {
    let end = Instant::now() + WARM_UP;
    let mut writes = 0;
    while Instant::now() < end {
        socket.write_all(message)?;
        writes += 1;
    }
    Ok(writes)
}

fn pour(mut socket: &Socket, message: &[u8], warm: u64, stop: Stop) -> io::Result<Tally> {
    let mut tally = Tally::new();
    let mut now = Instant::now();
    while stop.goes_on(tally.count(), now) {
        socket.write_all(message)?;
        let end = Instant::now();
        tally.record(end - now);
        now = end;
    }
    socket.shutdown(Shutdown::Write)?;
    let mut confirmed = [0; 8];
    socket.read_exact(&mut confirmed)?;
    let (confirmed, written) = (u64::from_le_bytes(confirmed), (warm + tally.count()) * message.len() as u64);
    if confirmed == written {
        Ok(tally)
    } else {
        Err(io::Error::other(format!("{written} bytes written, but {confirmed} arrived")))
    }
}
