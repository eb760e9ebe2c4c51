//! A program of many threads, which knows every byte: for the library under real concurrency, and for ThreadSanitizer.
//!
//! `netacc-threads serve PORT` and `netacc-threads connect PORT`, with the same options, have three conversations:
//! * *shared*: one connection, on each side several threads that write and several that read, by different calls, while
//!   others duplicate, close, watch and ask it; both ends send at once and then end their direction;
//! * *many*: many short connections; the server's threads share one listening socket and one epoll instance, the client's
//!   threads each have some of the connections;
//! * *ended*: connections on which threads are blocked, reading or writing, when another thread shuts them down.
//!
//! `netacc-threads both 0` has both ends in one process. Each prints one line, `done {...}`, when all was right, and then
//! waits for the end of its standard input, so that its counters can be asked for.

mod ended;
mod many;
mod shared;
mod sys;

use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use clap::{Parser, ValueEnum};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Serve,
    Connect,
    Both,
}

/// Many threads on one socket, many sockets on many threads.
#[derive(Parser)]
struct Options {
    role: Role,
    port: u16,
    /// Threads that write on one connection, at most 8; and threads of the conversation with many.
    #[arg(long, default_value_t = 4)]
    threads: u8,
    /// Threads that read from one connection.
    #[arg(long, default_value_t = 3)]
    readers: u8,
    /// The bytes that each of them writes.
    #[arg(long, default_value_t = 4 << 20)]
    bytes: usize,
    /// Connections of the conversation with many.
    #[arg(long, default_value_t = 64)]
    sockets: usize,
    /// Messages on each of them.
    #[arg(long, default_value_t = 50)]
    messages: usize,
}

fn main() -> io::Result<()> {
    let options = Options::parse();
    assert!((1..=8).contains(&options.threads) && options.readers > 0, "1 to 8 writers, and a reader");
    let begun = Instant::now();
    let payload = match options.role {
        Role::Serve => serve(&options, TcpListener::bind((Ipv4Addr::LOCALHOST, options.port))?)?,
        Role::Connect => connect(&options, options.port)?,
        Role::Both => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port))?;
            let port = listener.local_addr()?.port();
            std::thread::scope(|s| {
                let server = s.spawn(|| serve(&options, listener));
                let payload = connect(&options, port)?;
                Ok::<u64, io::Error>(payload + server.join().expect("the server did not panic")?)
            })?
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    let requests = options.sockets * options.messages;
    println!(r#"done {{"requests": {requests}, "payload_bytes": {payload}, "seconds": {seconds}}}"#);
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The bytes that were sent and received, all of them verified.
fn serve(options: &Options, listener: TcpListener) -> io::Result<u64> {
    let mut payload = 0;
    for readers in [1, options.readers] {
        payload += shared::converse(listener.accept()?.0, options, readers)?;
    }
    payload += many::serve(&listener, options)?;
    ended::serve(&listener)?;
    Ok(payload)
}

fn connect(options: &Options, port: u16) -> io::Result<u64> {
    let to = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let mut payload = 0;
    for readers in [1, options.readers] {
        payload += shared::converse(to()?, options, readers)?;
    }
    payload += many::connect(&to, options)?;
    ended::connect(&to)?;
    Ok(payload)
}
