//! The two parts of waking a server's thread: the waker's time, and the time until the thread runs.
//!
//! The client never sleeps here. It lets the server fall asleep, and sends two messages at once: the first one wakes the server, and the
//! second one finds it awake. The first write takes longer by the waker's part. The server begins the second
//! answer when it has sent the first; the first one takes longer by the time until the server's thread runs.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use socket2::Socket;

use super::super::result::Wakes;
use super::Tally;

/// Pairs of messages. Arbitrary: enough for a 99th percentile.
const SAMPLES: u32 = 1000;

/// How long the server has to fall asleep after its answer. Arbitrary: several times what that takes, and about as long as sleeps
/// are in ping-pongs, so that the processor's idle state is theirs.
const PAUSE: Duration = Duration::from_micros(40);

/// Measures on a connection without messages in flight, whose server answers each message of `size` bytes when it has come.
pub(super) fn measure(socket: &Socket, size: usize) -> io::Result<Wakes> {
    let mut message = vec![b'x'; size];
    let [mut waking, mut other, mut delay] = [Tally::new(), Tally::new(), Tally::new()];
    for _ in 0..SAMPLES {
        spin_for(PAUSE);
        let begun = Instant::now();
        send(socket, &message)?;
        let first = Instant::now();
        send(socket, &message)?;
        let second = Instant::now();
        receive(socket, &mut message)?;
        let answer = Instant::now();
        receive(socket, &mut message)?;
        let turn = answer.elapsed();
        waking.record(first - begun);
        other.record(second - first);
        delay.record((answer - begun).saturating_sub(turn));
    }
    Ok(Wakes { waking_ns: recorded(&waking.0), other_ns: other.0.value_at_quantile(0.5), delay_ns: recorded(&delay.0) })
}

fn spin_for(pause: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < pause {
        std::hint::spin_loop();
    }
}

fn send(mut socket: &Socket, message: &[u8]) -> io::Result<()> {
    match socket.write(message)? {
        count if count == message.len() => Ok(()),
        count => Err(io::Error::other(format!("only {count} bytes of a message were taken"))),
    }
}

fn receive(mut socket: &Socket, message: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < message.len() {
        match socket.read(&mut message[done..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn recorded(of: &Histogram<u64>) -> Vec<(u64, u64)> {
    of.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    /// Breaks if a message is lost between the parts, or one of them is not counted.
    #[test]
    fn each_pair_counts_once() {
        let (one, mut two) = UnixStream::pair().expect("a pair of sockets");
        one.set_nonblocking(true).expect("it can be set");
        let one = Socket::from(OwnedFd::from(one));
        let server = thread::spawn(move || -> io::Result<u32> {
            let mut message = [0; 64];
            let mut answers = 0;
            while two.read_exact(&mut message).is_ok() {
                two.write_all(&message)?;
                answers += 1;
            }
            Ok(answers)
        });
        let wakes = measure(&one, 64).expect("the server answers");
        drop(one);
        let answers = server.join().expect("it does not panic").expect("it can write");
        let count = |of: &[(u64, u64)]| of.iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!((answers, count(&wakes.waking_ns), count(&wakes.delay_ns)), (2 * SAMPLES, 1000, 1000));
        assert!(wakes.other_ns > 0);
    }
}
