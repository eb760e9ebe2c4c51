//! Connections that one thread shuts down while others are blocked on them: all of them come back.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;

use crate::sys::{self, Call};

/// Connections, and threads of each kind on each of them.
const ROUNDS: usize = 8;
const EACH: usize = 3;
/// So many small messages before, that the connection is on a link if it can be.
const WARMUP: usize = 50;

/// The side whose threads are blocked.
pub(crate) fn connect(to: &impl Fn() -> io::Result<TcpStream>) -> io::Result<()> {
    for _ in 0..ROUNDS {
        let mut socket = to()?;
        for _ in 0..WARMUP {
            socket.write_all(&[1])?;
            socket.read_exact(&mut [0])?;
        }
        // Tells the other side that from now on nobody reads.
        socket.write_all(&[0])?;
        let (socket, begun) = (&socket, &Barrier::new(2 * EACH + 1));
        thread::scope(|s| {
            let readers: Vec<_> = (0..EACH)
                .map(|i| {
                    s.spawn(move || {
                        begun.wait();
                        let call = [Call::Plain, Call::Socket, Call::Polled][i % 3];
                        sys::receive(socket, call, &mut [0; 100])
                    })
                })
                .collect();
            let writers: Vec<_> = (0..EACH)
                .map(|i| {
                    s.spawn(move || {
                        begun.wait();
                        let call = [Call::Message, Call::Socket, Call::Polled][i % 3];
                        // The peer reads nothing, so this ends with an error only.
                        loop {
                            if let Err(e) = sys::send(socket, call, &[7; 30_000]) {
                                return e;
                            }
                        }
                    })
                })
                .collect();
            begun.wait();
            socket.shutdown(Shutdown::Both)?;
            for reader in readers {
                assert_eq!(reader.join().expect("a reader did not panic")?, 0, "an end was read");
            }
            for writer in writers {
                let error = writer.join().expect("a writer did not panic");
                assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "a write to what was shut down");
            }
            Ok::<(), io::Error>(())
        })?;
    }
    to()?;
    Ok(())
}

/// The other side: echoes, until it is told not to read.
pub(crate) fn serve(listener: &TcpListener) -> io::Result<()> {
    // Kept until all is over: closing them with bytes unread would be a reset.
    let mut kept = Vec::new();
    for _ in 0..ROUNDS {
        let (mut socket, _) = listener.accept()?;
        let mut byte = [1];
        while byte[0] != 0 {
            socket.read_exact(&mut byte)?;
            if byte[0] != 0 {
                socket.write_all(&byte)?;
            }
        }
        kept.push(socket);
    }
    listener.accept()?;
    Ok(())
}
