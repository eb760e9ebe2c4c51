//! One connection, many threads.
//!
//! A byte names the thread that wrote it and that thread's count, so bytes of several writers may mix as they will: each
//! writer's come in order. One reader sees the order; of several nobody knows who read first, so what they have is counted.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::sys::{self, Epoll, CALLS};
use crate::Options;

/// The received bytes: how often each came.
type Census = [u64; 256];

/// Bits of a byte that are the count.
const COUNT: usize = 32;

/// Writes and reads at once until both ends have ended; the bytes that went both ways.
pub(crate) fn converse(socket: TcpStream, options: &Options, readers: u8) -> io::Result<u64> {
    let socket = &socket;
    let over = &AtomicBool::new(false);
    let census = thread::scope(|s| {
        let reading: Vec<_> = (0..readers).map(|i| s.spawn(move || read(socket, i, readers == 1))).collect();
        let bystanders = [s.spawn(move || duplicate(socket, over)), s.spawn(move || watch(socket, over))];
        let writing: Vec<_> =
            (0..options.threads).map(|tag| s.spawn(move || write(socket, tag, options.bytes))).collect();
        for thread in writing {
            thread.join().expect("a writer did not panic")?;
        }
        socket.shutdown(Shutdown::Write)?;
        let mut census = [0; 256];
        for thread in reading {
            let part = thread.join().expect("a reader did not panic")?;
            census.iter_mut().zip(part).for_each(|(all, n)| *all += n);
        }
        over.store(true, Ordering::Release);
        for thread in bystanders {
            thread.join().expect("a bystander did not panic")?;
        }
        Ok::<Census, io::Error>(census)
    })?;
    for (byte, n) in census.into_iter().enumerate() {
        let sent = if byte / COUNT < usize::from(options.threads) { times(byte % COUNT, options.bytes) } else { 0 };
        assert_eq!(n, sent, "how often byte {byte} came");
    }
    Ok(2 * u64::from(options.threads) * options.bytes as u64)
}

/// How often a writer of so many bytes sends this count.
fn times(count: usize, bytes: usize) -> u64 {
    (bytes / COUNT + usize::from(bytes % COUNT > count)) as u64
}

fn write(socket: &TcpStream, tag: u8, bytes: usize) -> io::Result<()> {
    let call = CALLS[usize::from(tag) % CALLS.len()];
    let pattern: Vec<u8> = (0..40_000 + COUNT).map(|i| tag * COUNT as u8 + (i % COUNT) as u8).collect();
    let (mut done, mut turn) = (0, usize::from(tag));
    while done < bytes {
        // Sizes from one byte to more than a message of the library, and to more than its ring may have room for.
        turn = turn.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        let len = [1, 100, 3000, 40_000][turn / 65_536 % 4].min(bytes - done);
        done += sys::send(socket, call, &pattern[done % COUNT..][..len])?;
    }
    Ok(())
}

fn read(socket: &TcpStream, index: u8, alone: bool) -> io::Result<Census> {
    let mut census = [0; 256];
    let mut next = [0; 8];
    let mut buffer = vec![0; 30_000];
    for turn in 0.. {
        // One that reads alone goes through all of them.
        let call = CALLS[if alone { turn % CALLS.len() } else { usize::from(index) % CALLS.len() }];
        let n = sys::receive(socket, call, &mut buffer)?;
        if n == 0 {
            break;
        }
        for &byte in &buffer[..n] {
            census[usize::from(byte)] += 1;
            if alone {
                let (tag, count) = (usize::from(byte) / COUNT, usize::from(byte) % COUNT);
                assert_eq!(count, next[tag], "bytes of writer {tag} come in order");
                next[tag] = (count + 1) % COUNT;
            }
        }
    }
    Ok(census)
}

/// Duplicates the socket and closes the copy, again and again.
fn duplicate(socket: &TcpStream, over: &AtomicBool) -> io::Result<()> {
    while !over.load(Ordering::Acquire) {
        let copy = socket.try_clone()?;
        sys::poll(&copy, libc::POLLIN | libc::POLLOUT, 1)?;
        sys::readable_bytes(&copy)?;
        drop(copy);
        thread::yield_now();
    }
    Ok(())
}

/// Watches the socket with an epoll instance, for a while each time.
fn watch(socket: &TcpStream, over: &AtomicBool) -> io::Result<()> {
    let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP;
    while !over.load(Ordering::Acquire) {
        let epoll = Epoll::new()?;
        for edge in [0, libc::EPOLLET] {
            epoll.control(libc::EPOLL_CTL_ADD, socket, events | edge)?;
            for _ in 0..20 {
                epoll.wait(1)?;
            }
            epoll.control(libc::EPOLL_CTL_MOD, socket, libc::EPOLLIN | edge)?;
            epoll.wait(1)?;
            epoll.control(libc::EPOLL_CTL_DEL, socket, 0)?;
        }
    }
    Ok(())
}
