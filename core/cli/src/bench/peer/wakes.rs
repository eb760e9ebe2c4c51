//! The two parts of waking a server's thread: the waker's time, and the time until the thread runs.
//!
//! The client never sleeps here. It lets the server fall asleep, and sends two messages at once: the first one wakes the server, and the
//! second one finds it awake. The first write takes longer by the waker's part. The server begins the second
//! answer when it has sent the first; the first one takes longer by the time until the server's thread runs. Both depend on how long
//! the server was idle: its processor takes a while to fall asleep, and only then an interrupt has to wake it.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use socket2::Socket;

use super::super::cpu;
use super::super::processors::{allowed, keep_on};
use super::super::result::{Wake, Wakes};
use super::Tally;

/// Pairs of messages with each pause. Arbitrary: enough for a 99th percentile.
const SAMPLES: u32 = 500;

/// How long the server has to fall asleep after its answer. Arbitrary: from less than that takes to several times as long, which is
/// about as long as the sleeps of ping-pongs.
const PAUSES_US: [u64; 9] = [1, 2, 3, 4, 6, 8, 12, 20, 40];

/// Measures on a connection without messages in flight, whose server answers each message of `size` bytes when it has come. The two
/// threads are kept apart meanwhile: on one processor, no interrupt wakes the server.
pub(super) fn measure(socket: &Socket, size: usize, server: Pid) -> io::Result<Wakes> {
    let _apart = Apart::keep(server)?;
    let mut message = vec![b'x'; size];
    let mut other = Tally::new();
    let cpu_s = || cpu::of_process(server.as_raw().unsigned_abs());
    let mut by_pause = Vec::new();
    for pause in PAUSES_US.map(Duration::from_micros) {
        let [mut waking, mut delay] = [Tally::new(), Tally::new()];
        let before = cpu_s();
        for _ in 0..SAMPLES {
            spin_for(pause);
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
        let pause_ns = pause.as_nanos() as u64;
        let server_cpu_ns = (cpu_s() - before) * 1e9 / f64::from(SAMPLES);
        let [waking_ns, delay_ns] = [&waking, &delay].map(|tally| recorded(&tally.0));
        by_pause.push(Wake { pause_ns, waking_ns, server_cpu_ns, delay_ns });
    }
    Ok(Wakes { other_ns: other.0.value_at_quantile(0.5), by_pause })
}

/// This thread and the first one of another process have a processor each, as long as this exists. On a machine with one processor
/// they share it.
struct Apart(Vec<(Pid, CpuSet)>);

impl Apart {
    fn keep(other: Pid) -> io::Result<Apart> {
        let mut apart = Apart(Vec::new());
        let processors = allowed()?;
        if processors.len() < 2 {
            return Ok(apart);
        }
        for (pid, processor) in [Pid::from_raw(0), other].into_iter().zip(processors) {
            let before = sched_getaffinity(pid)?;
            keep_on(pid, processor)?;
            apart.0.push((pid, before));
        }
        Ok(apart)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        for (pid, before) in &self.0 {
            // The server may have ended; nothing is left to do then.
            let _ = sched_setaffinity(*pid, before);
        }
    }
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
        let wakes = measure(&one, 64, Pid::this()).expect("the server answers");
        drop(one);
        let answers = server.join().expect("it does not panic").expect("it can write");
        let count = |of: &[(u64, u64)]| of.iter().map(|(_, count)| count).sum::<u64>();
        let counts: Vec<_> =
            wakes.by_pause.iter().map(|wake| (count(&wake.waking_ns), count(&wake.delay_ns))).collect();
        assert_eq!(counts, [(500, 500); PAUSES_US.len()]);
        assert_eq!(answers, 1000 * PAUSES_US.len() as u32);
        assert!(wakes.other_ns > 0);
    }
}
