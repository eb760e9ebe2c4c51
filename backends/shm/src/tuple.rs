//! From a TCP connection to the 64-bit key of the rendezvous table.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use netacc_device::FourTuple;

/// IPv4 as IPv4-mapped IPv6, so that both spellings of a connection agree.
fn octets(addr: SocketAddr) -> ([u8; 16], u16) {
    let ip: Ipv6Addr = match addr.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    (ip.octets(), addr.port())
}

/// Whether both ends must be on this host (in this network namespace).
pub(crate) fn same_host(tuple: &FourTuple) -> bool {
    let loopback = |a: SocketAddr| a.ip().to_canonical().is_loopback();
    loopback(tuple.local) && loopback(tuple.remote)
        || tuple.local.ip().to_canonical() == tuple.remote.ip().to_canonical()
}

/// The key of the end that sees the connection as `tuple`. Never 0. Equal keys are a hint only: the core compares
/// the whole tuple later.
pub(crate) fn key(tuple: &FourTuple) -> u64 {
    let (local, local_port) = octets(tuple.local);
    let (remote, remote_port) = octets(tuple.remote);
    let half = |b: &[u8]| b.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    let words = [
        half(&local[..8]),
        half(&local[8..]),
        half(&remote[..8]),
        half(&remote[8..]),
        u64::from(local_port) << 16 | u64::from(remote_port),
    ];
    // Multiply-and-fold: plenty for a hint, and cheap.
    let mut h: u64 = 0x9e37_79b9_7f4a_7c15;
    for w in words {
        let m = u128::from(h ^ w) * 0xa076_1d64_78bd_642f_u128;
        h = (m as u64) ^ ((m >> 64) as u64) ^ w.rotate_left(31);
    }
    h.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(local: &str, remote: &str) -> FourTuple {
        FourTuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    #[test]
    fn spellings_agree_and_ends_differ() {
        let v4 = tuple("127.0.0.1:80", "127.0.0.1:5000");
        let mapped = tuple("[::ffff:127.0.0.1]:80", "127.0.0.1:5000");
        assert_eq!(key(&v4), key(&mapped));
        assert_ne!(key(&v4), key(&v4.reversed()));
        assert!(same_host(&mapped));
    }

    #[test]
    fn other_hosts_are_not_served() {
        assert!(same_host(&tuple("10.0.0.1:1", "10.0.0.1:2")));
        assert!(same_host(&tuple("[::1]:1", "[::1]:2")));
        assert!(!same_host(&tuple("10.0.0.1:1", "10.0.0.2:2")));
        assert!(!same_host(&tuple("127.0.0.1:1", "10.0.0.2:2")));
    }

    #[test]
    fn keys_spread() {
        let keys: std::collections::HashSet<u64> = (1..=20_000u16)
            .map(|p| key(&FourTuple { local: ([127, 0, 0, 1], 6379).into(), remote: ([127, 0, 0, 1], p).into() }) >> 47)
            .collect();
        assert!(keys.len() > 15_000, "{} of 20000 distinct in 17 bits", keys.len());
    }
}
