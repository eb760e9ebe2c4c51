//! The client's end of memcached's text protocol: one request, or several at a time, with an answer of a length that is known.
//!
//! The client is the one of the ping-pong. All connections use one key, so what the server does for a request is the same
//! each time.

use std::io::{self, Read, Write};

use super::super::args::MemcachedTest;
use super::conversation::Conversation;
use super::socket::{no_delay, Address};

/// What the client stores and reads.
const KEY: &str = "netacc";

/// Stores the value that [`MemcachedTest::Get`] reads.
pub(super) fn store(address: &Address, size: usize) -> io::Result<()> {
    let mut socket = address.connect()?;
    no_delay(&socket)?;
    socket.write_all(&request(MemcachedTest::Set, size))?;
    let expected = answer(MemcachedTest::Set, size);
    let mut answer = vec![0; expected.len()];
    socket.read_exact(&mut answer)?;
    if answer == expected {
        return Ok(());
    }
    Err(io::Error::other(format!("memcached did not store the value: {}", String::from_utf8_lossy(&answer))))
}

/// One connection's conversation, with so many requests in a message.
pub(super) fn conversation(test: MemcachedTest, size: usize, pipeline: usize) -> Conversation {
    Conversation::asking(request(test, size).repeat(pipeline), answer(test, size).repeat(pipeline))
}

fn request(test: MemcachedTest, size: usize) -> Vec<u8> {
    match test {
        MemcachedTest::Set => [format!("set {KEY} 0 0 {size}\r\n").as_bytes(), &vec![b'x'; size], b"\r\n"].concat(),
        MemcachedTest::Get => format!("get {KEY}\r\n").into_bytes(),
    }
}

fn answer(test: MemcachedTest, size: usize) -> Vec<u8> {
    match test {
        MemcachedTest::Set => b"STORED\r\n".to_vec(),
        MemcachedTest::Get => {
            [format!("VALUE {KEY} 0 {size}\r\n").as_bytes(), &vec![b'x'; size], b"\r\nEND\r\n"].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a length is not that of the value: memcached would take its rest for a command.
    #[test]
    fn requests_and_answers_are_memcacheds() {
        assert_eq!(request(MemcachedTest::Set, 3), b"set netacc 0 0 3\r\nxxx\r\n");
        assert_eq!(request(MemcachedTest::Get, 3), b"get netacc\r\n");
        assert_eq!(answer(MemcachedTest::Get, 3), b"VALUE netacc 0 3\r\nxxx\r\nEND\r\n");
    }
}
