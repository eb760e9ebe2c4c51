//! Many connections, many threads: any thread of the server serves any of them.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::sys::{self, Epoll};
use crate::Options;

/// The longest message.
const LONGEST: usize = 9000;

/// Bytes of message `turn` on connection `number`.
fn message(number: usize, turn: usize) -> Vec<u8> {
    let len = [16, 700, LONGEST][(number + turn) % 3];
    (0..len).map(|i| (i * 7 + number * 31 + turn * 13) as u8).collect()
}

/// Connects, and exchanges messages on each connection: each thread has those of its own number, two at a time.
pub(crate) fn connect(to: &(impl Fn() -> io::Result<TcpStream> + Sync), options: &Options) -> io::Result<u64> {
    let threads = usize::from(options.threads);
    thread::scope(|s| {
        let running: Vec<_> = (0..threads)
            .map(|own| {
                s.spawn(move || {
                    let numbers: Vec<_> = (own..options.sockets).step_by(threads).collect();
                    numbers.chunks(2).map(|pair| exchange(to, pair, options.messages)).sum::<io::Result<u64>>()
                })
            })
            .collect();
        running.into_iter().map(|t| t.join().expect("a client did not panic")).sum()
    })
}

fn exchange(to: &impl Fn() -> io::Result<TcpStream>, numbers: &[usize], messages: usize) -> io::Result<u64> {
    let mut sockets = numbers.iter().map(|_| to()).collect::<io::Result<Vec<_>>>()?;
    let mut moved = 0;
    for turn in 0..messages {
        for (socket, number) in sockets.iter_mut().zip(numbers) {
            socket.write_all(&message(*number, turn))?;
        }
        for (socket, number) in sockets.iter_mut().zip(numbers) {
            let sent = message(*number, turn);
            let mut echoed = vec![0; sent.len()];
            socket.read_exact(&mut echoed)?;
            assert!(echoed == sent, "message {turn} of connection {number} came back as it was");
            moved += 2 * sent.len() as u64;
        }
    }
    Ok(moved)
}

/// Echoes on as many connections as the client makes. One-shot events: a connection is in the hands of one thread at a
/// time, and of another one the next time.
pub(crate) fn serve(listener: &TcpListener, options: &Options) -> io::Result<u64> {
    let epoll = Epoll::new()?;
    let stop = sys::eventfd()?;
    listener.set_nonblocking(true)?;
    epoll.control(libc::EPOLL_CTL_ADD, listener, libc::EPOLLIN | libc::EPOLLONESHOT)?;
    epoll.control(libc::EPOLL_CTL_ADD, &stop, libc::EPOLLIN)?;
    let open: Mutex<HashMap<i32, Arc<TcpStream>>> = Mutex::default();
    let (accepted, ended) = (Mutex::new(0), AtomicUsize::new(0));
    let work = || -> io::Result<u64> {
        let mut moved = 0;
        loop {
            let Some(fd) = epoll.wait(-1)? else { continue };
            if fd == stop.as_raw_fd() {
                return Ok(moved);
            }
            if fd == listener.as_raw_fd() {
                let mut accepted = accepted.lock().expect("no thread panicked");
                // Later bytes belong to the next conversation.
                if *accepted < options.sockets && accept(listener, &open, &epoll)? {
                    *accepted += 1;
                }
                if *accepted < options.sockets {
                    epoll.control(libc::EPOLL_CTL_MOD, listener, libc::EPOLLIN | libc::EPOLLONESHOT)?;
                }
                continue;
            }
            let Some(socket) = open.lock().expect("no thread panicked").get(&fd).cloned() else { continue };
            let (n, over) = echo(&socket)?;
            moved += n;
            if over {
                epoll.control(libc::EPOLL_CTL_DEL, &*socket, 0)?;
                open.lock().expect("no thread panicked").remove(&fd);
                drop(socket);
                if ended.fetch_add(1, Ordering::AcqRel) + 1 == options.sockets {
                    sys::ring(&stop)?;
                }
            } else {
                epoll.control(libc::EPOLL_CTL_MOD, &*socket, libc::EPOLLIN | libc::EPOLLONESHOT)?;
            }
        }
    };
    let moved = thread::scope(|s| {
        let running: Vec<_> = (0..options.threads).map(|_| s.spawn(|| work().inspect_err(report))).collect();
        running.into_iter().map(|t| t.join().expect("a server did not panic")).sum::<io::Result<u64>>()
    })?;
    listener.set_nonblocking(false)?;
    Ok(moved)
}

/// The others go on without the thread that has failed, for ever perhaps.
fn report(error: &io::Error) {
    eprintln!("a thread has failed: {error}");
}

/// Accepts a connection, if there is one.
fn accept(listener: &TcpListener, open: &Mutex<HashMap<i32, Arc<TcpStream>>>, epoll: &Epoll) -> io::Result<bool> {
    match listener.accept() {
        Ok((socket, _)) => {
            socket.set_nonblocking(true)?;
            let socket = Arc::new(socket);
            open.lock().expect("no thread panicked").insert(socket.as_raw_fd(), socket.clone());
            epoll.control(libc::EPOLL_CTL_ADD, &*socket, libc::EPOLLIN | libc::EPOLLONESHOT)?;
            Ok(true)
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    }
}

/// Sends back everything that is there. Returns the bytes moved, and whether that was the end.
fn echo(mut socket: &TcpStream) -> io::Result<(u64, bool)> {
    let mut buffer = [0; LONGEST];
    let mut moved = 0;
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return Ok((moved, true)),
            Ok(n) => {
                let mut rest = &buffer[..n];
                while !rest.is_empty() {
                    match socket.write(rest) {
                        Ok(sent) => rest = &rest[sent..],
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                            sys::poll(socket, libc::POLLOUT, -1)?;
                        }
                        Err(e) => return Err(e),
                    }
                }
                moved += 2 * n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok((moved, false)),
            Err(e) => return Err(e),
        }
    }
}
