//! Ping-pong: messages of one size go there and back, one in flight on each connection.

use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use socket2::{Socket, Type};

use super::super::args::Mode;
use super::conversation::{Conversation, Phase, Progress};
use super::memcached;
use super::socket::{no_delay, Address};
use super::wait::Waiter;
use super::wakes;
use super::{ready, report, report_asking, send_line, Asked, LengthArgs, LoadArgs, Meter, Stop, Tally};

/// How long to warm up, unless [`WARM_UP_MESSAGES`] come first: by then a connection is on its
/// final path.
const WARM_UP: Duration = Duration::from_millis(150);

/// Messages of the warm-up at most, on each connection.
const WARM_UP_MESSAGES: u64 = 20_000;

/// Serves one client process after the other: takes as many connections as a client opens, then
/// answers until they are closed.
pub(super) fn serve(listener: &Socket, load: LoadArgs) -> io::Result<()> {
    if listener.r#type()? == Type::DGRAM {
        return serve_datagrams(listener, load);
    }
    loop {
        let sockets = accept_all(listener, load)?;
        if load.mode == Mode::Blocking {
            serve_blocking(sockets, load.size)?;
        } else {
            serve_ready(&sockets, load)?;
        }
    }
}

/// Measures.
pub(super) fn drive(address: &Address, load: LoadArgs, first: usize, length: LengthArgs) -> io::Result<()> {
    let sockets = connect_all(address, load, first)?;
    match (load.mode, &sockets[..]) {
        (Mode::Blocking, [socket]) => drive_one_blocking(socket, load.size, length),
        (Mode::Blocking, _) => drive_many_blocking(&sockets, load.size, length),
        _ => drive_ready(&sockets, load, length, || Conversation::new(load.size, Phase::Sending)),
    }
}

fn connect_all(address: &Address, load: LoadArgs, first: usize) -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::with_capacity(load.clients);
    for index in 0..load.clients {
        let socket = address.connect_as(first + index)?;
        no_delay(&socket)?;
        socket.set_nonblocking(load.mode != Mode::Blocking)?;
        sockets.push(socket);
    }
    Ok(sockets)
}

fn accept_all(listener: &Socket, load: LoadArgs) -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::with_capacity(load.clients);
    for _ in 0..load.clients {
        let (socket, _) = listener.accept()?;
        no_delay(&socket)?;
        socket.set_nonblocking(load.mode != Mode::Blocking)?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Sends each datagram back to its sender. As a server that waits for readiness does, it takes all that are there.
fn serve_datagrams(listener: &Socket, load: LoadArgs) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let socket = UdpSocket::from(OwnedFd::from(listener.try_clone()?));
    let mut waiter = Waiter::new(load.mode, std::slice::from_ref(listener))?;
    let (mut ready, mut message) = (Vec::new(), vec![0; load.size]);
    loop {
        waiter.wait(&mut ready)?;
        loop {
            match socket.recv_from(&mut message) {
                Ok((count, from)) => drop(socket.send_to(&message[..count], from)?),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
}

fn serve_ready(sockets: &[Socket], load: LoadArgs) -> io::Result<()> {
    let mut waiter = Waiter::new(load.mode, sockets)?;
    let mut conversations: Vec<_> = sockets.iter().map(|_| Conversation::new(load.size, Phase::Receiving)).collect();
    let mut blocked = vec![false; sockets.len()];
    let mut open = sockets.len();
    let mut ready = Vec::with_capacity(sockets.len());
    let (mut waits, mut answers) = (0u64, 0u64);
    while open > 0 {
        waiter.wait(&mut ready)?;
        waits += 1;
        for &index in &ready {
            let conversation = &mut conversations[index];
            let progress = match advance(conversation, &sockets[index])? {
                // A request is complete: answer it at once.
                Advance::Turned => advance(conversation, &sockets[index])?,
                other => other,
            };
            match progress {
                Advance::Closed => {
                    waiter.forget(index)?;
                    open -= 1;
                    continue;
                }
                Advance::Returned => answers += 1,
                Advance::Turned | Advance::Blocked => {}
            }
            let writing = conversation.phase() == Phase::Sending;
            if blocked[index] != writing {
                blocked[index] = writing;
                waiter.watch(index, writing)?;
            }
        }
    }
    send_line(&format!("SERVED {answers} {waits}"))
}

/// The result of one step, in the terms of a ping-pong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Advance {
    /// A whole message has been received.
    Turned,
    /// A whole message has been sent.
    Returned,
    Blocked,
    Closed,
}

fn advance(conversation: &mut Conversation, socket: &Socket) -> io::Result<Advance> {
    let phase = conversation.phase();
    Ok(match (conversation.step(socket)?, phase) {
        (Progress::Complete, Phase::Receiving) => Advance::Turned,
        (Progress::Complete, Phase::Sending) => Advance::Returned,
        (Progress::Blocked, _) => Advance::Blocked,
        (Progress::Closed, _) => Advance::Closed,
    })
}

/// Measures as a client of memcached, whose conversations go on as those of a ping-pong.
pub(super) fn drive_memcached(address: &Address, load: LoadArgs, first: usize, length: LengthArgs) -> io::Result<()> {
    let test = load.test.ok_or_else(|| io::Error::other("--test is missing"))?;
    memcached::store(address, load.size)?;
    let sockets = connect_all(address, load, first)?;
    drive_ready(&sockets, load, length, || memcached::conversation(test, load.size, load.pipeline))
}

fn drive_ready(
    sockets: &[Socket],
    load: LoadArgs,
    length: LengthArgs,
    conversation: impl Fn() -> Conversation,
) -> io::Result<()> {
    let mut pump = Pump {
        sockets,
        waiter: Waiter::new(load.mode, sockets)?,
        conversations: sockets.iter().map(|_| conversation()).collect(),
        blocked: vec![false; sockets.len()],
        sent_at: vec![Instant::now(); sockets.len()],
        ready: Vec::with_capacity(sockets.len()),
        rewatches: load.rewatch,
        waits: 0,
    };
    let most = WARM_UP_MESSAGES * sockets.len() as u64;
    let end = Instant::now() + WARM_UP;
    let mut tally = Tally::new();
    // In pieces, so that the first limit that is reached ends it.
    while Instant::now() < end && tally.count() < most {
        pump.run(Stop::After(sockets.len() as u64 * 100), &mut tally)?;
    }
    // Before the server's time and sleeps are counted.
    let wakes = sockets.first().zip(load.wakes);
    let wakes = wakes.map(|(socket, server)| wakes::measure(socket, load.size, Pid::from_raw(server))).transpose()?;
    ready()?;
    let mut tally = Tally::new();
    pump.waits = 0;
    let meter = Meter::start();
    pump.run(Stop::new(length, meter.start, 0, 1), &mut tally)?;
    let used = meter.stop();
    let asked = Asked { waits: pump.waits, interest_change_ns: pump.waiter.time_interest_change()?, wakes };
    report_asking(&tally, used, asked)
}

/// All connections of a client that waits for readiness.
struct Pump<'a> {
    sockets: &'a [Socket],
    waiter: Waiter<'a>,
    /// Between runs all are in [`Phase::Sending`], with nothing sent.
    conversations: Vec<Conversation>,
    blocked: Vec<bool>,
    sent_at: Vec<Instant>,
    ready: Vec<usize>,
    /// Each connection is watched anew after each message.
    rewatches: bool,
    waits: u64,
}

impl Pump<'_> {
    /// Sends until it is time to stop, and returns when all answers have arrived.
    fn run(&mut self, stop: Stop, tally: &mut Tally) -> io::Result<()> {
        let mut sent = 0;
        let mut open = 0;
        let mut now = Instant::now();
        for index in 0..self.sockets.len() {
            if stop.goes_on(sent, now) {
                now = Instant::now();
                self.send(index, now)?;
                sent += 1;
                open += 1;
            }
        }
        while open > 0 {
            let mut ready = std::mem::take(&mut self.ready);
            self.waiter.wait(&mut ready)?;
            self.waits += 1;
            for &index in &ready {
                if self.conversations[index].phase() == Phase::Sending {
                    // Ready to continue writing; or, when spinning after the last request, not ready for anything.
                    if self.blocked[index] {
                        self.go_on_sending(index)?;
                    }
                    continue;
                }
                match advance(&mut self.conversations[index], &self.sockets[index])? {
                    Advance::Turned => {
                        // One reading of the clock ends a round trip and begins the next.
                        let now = Instant::now();
                        tally.record(now - self.sent_at[index]);
                        if stop.goes_on(sent, now) {
                            self.send(index, now)?;
                            sent += 1;
                        } else {
                            open -= 1;
                        }
                    }
                    Advance::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Advance::Returned | Advance::Blocked => {}
                }
            }
            self.ready = ready;
        }
        Ok(())
    }

    fn send(&mut self, index: usize, now: Instant) -> io::Result<()> {
        self.sent_at[index] = now;
        self.go_on_sending(index)?;
        if self.rewatches && !self.blocked[index] {
            self.waiter.rewatch(index)?;
        }
        Ok(())
    }

    fn go_on_sending(&mut self, index: usize) -> io::Result<()> {
        let blocked = advance(&mut self.conversations[index], &self.sockets[index])? == Advance::Blocked;
        if blocked != self.blocked[index] {
            self.blocked[index] = blocked;
            self.waiter.watch(index, blocked)?;
        }
        Ok(())
    }
}

fn serve_blocking(mut sockets: Vec<Socket>, size: usize) -> io::Result<()> {
    // A program with one connection needs no threads, and libraries may depend on how many there are.
    if sockets.len() == 1 {
        return answer(&sockets.remove(0), size);
    }
    let threads: Vec<_> = sockets.into_iter().map(|socket| thread::spawn(move || answer(&socket, size))).collect();
    threads.into_iter().try_for_each(join)
}

fn join<T>(thread: thread::JoinHandle<io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

fn answer(mut socket: &Socket, size: usize) -> io::Result<()> {
    let mut message = vec![0; size];
    loop {
        match socket.read_exact(&mut message) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        socket.write_all(&message)?;
    }
}

fn drive_one_blocking(socket: &Socket, size: usize, length: LengthArgs) -> io::Result<()> {
    warm_up_blocking(socket, size)?;
    ready()?;
    let meter = Meter::start();
    let tally = run_round_trips(socket, size, Stop::new(length, meter.start, 0, 1))?;
    let used = meter.stop();
    report(&tally, used)
}

fn drive_many_blocking(sockets: &[Socket], size: usize, length: LengthArgs) -> io::Result<()> {
    let clients = sockets.len() as u64;
    let (warm, go) = (Barrier::new(sockets.len() + 1), Barrier::new(sockets.len() + 1));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(sockets)
            .map(|(index, socket)| {
                let (warm, go) = (&warm, &go);
                scope.spawn(move || {
                    let warmed = warm_up_blocking(socket, size);
                    warm.wait();
                    go.wait();
                    warmed?;
                    run_round_trips(socket, size, Stop::new(length, Instant::now(), index, clients))
                })
            })
            .collect();
        warm.wait();
        let readiness = ready();
        let meter = Meter::start();
        go.wait();
        let mut tally = Tally::new();
        let mut outcome = readiness;
        for thread in threads {
            match thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))) {
                Ok(part) => tally.add(&part),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        let used = meter.stop();
        outcome?;
        report(&tally, used)
    })
}

fn warm_up_blocking(socket: &Socket, size: usize) -> io::Result<()> {
    let end = Instant::now() + WARM_UP;
    let mut sent = 0;
    while sent < WARM_UP_MESSAGES && Instant::now() < end {
        sent += run_round_trips(socket, size, Stop::After(50))?.count();
    }
    Ok(())
}

fn run_round_trips(mut socket: &Socket, size: usize, stop: Stop) -> io::Result<Tally> {
    let mut message = vec![b'x'; size];
    let mut tally = Tally::new();
    let mut now = Instant::now();
    while stop.goes_on(tally.count(), now) {
        socket.write_all(&message)?;
        socket.read_exact(&mut message)?;
        let end = Instant::now();
        tally.record(end - now);
        now = end;
    }
    Ok(tally)
}
