//! From a TCP connection to the 64-bit key of the rendezvous table.

use std::net::{IpAddr, SocketAddr};

use netacc_device::FourTuple;

/// The two halves of an address: IPv4 as IPv4-mapped IPv6, so that both spellings of a connection agree.
fn halves(addr: SocketAddr) -> [u64; 2] {
    match addr.ip() {
        IpAddr::V4(v4) => [0, 0xffff << 32 | u64::from(v4.to_bits())],
        IpAddr::V6(v6) => [(v6.to_bits() >> 64) as u64, v6.to_bits() as u64],
    }
}

/// Whether both ends must be on this host (in this network namespace).
#[inline]
pub(crate) fn same_host(tuple: &FourTuple) -> bool {
    if let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (tuple.local, tuple.remote) {
        return local.ip() == remote.ip() || local.ip().is_loopback() && remote.ip().is_loopback();
    }
    same_host_of_any(tuple)
}

fn same_host_of_any(tuple: &FourTuple) -> bool {
    let loopback = |a: SocketAddr| a.ip().to_canonical().is_loopback();
    loopback(tuple.local) && loopback(tuple.remote)
        || tuple.local.ip().to_canonical() == tuple.remote.ip().to_canonical()
}

/// Whether the addresses mean something within one network namespace only: both ends are in it, or an address is that of
/// a link, of which there may be one in each.
pub(crate) fn is_local(tuple: &FourTuple) -> bool {
    let of_link = |a: SocketAddr| match a.ip().to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let loopback = |a: SocketAddr| a.ip().to_canonical().is_loopback();
    let either = |of: &dyn Fn(SocketAddr) -> bool| of(tuple.local) || of(tuple.remote);
    same_host(tuple) || either(&loopback) || either(&of_link)
}

/// The key of the end that sees the connection as `tuple`. Never 0. Equal keys are a hint only: the core compares
/// the whole tuple later. `network` distinguishes equal tuples of different network namespaces; 0 in a table of one
/// namespace.
pub(crate) fn key(tuple: &FourTuple, network: u64) -> u64 {
    let ([local_high, local_low], [remote_high, remote_low]) = (halves(tuple.local), halves(tuple.remote));
    let ports = u64::from(tuple.local.port()) << 16 | u64::from(tuple.remote.port());
    let words = [local_high, local_low, remote_high, remote_low, ports];
    // Multiply-and-fold: plenty for a hint, and cheap.
    let mut h: u64 = 0x9e37_79b9_7f4a_7c15 ^ network.wrapping_mul(0xe703_7ed1_a0b4_28db);
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
        assert_eq!(key(&v4, 0), key(&mapped, 0));
        assert_ne!(key(&v4, 0), key(&v4.reversed(), 0));
        assert!(same_host(&mapped));
    }

    #[test]
    fn other_hosts_are_not_served() {
        assert!(same_host(&tuple("10.0.0.1:1", "10.0.0.1:2")));
        assert!(same_host(&tuple("[::1]:1", "[::1]:2")));
        assert!(!same_host(&tuple("10.0.0.1:1", "10.0.0.2:2")));
        assert!(!same_host(&tuple("127.0.0.1:1", "10.0.0.2:2")));
    }

    /// Breaks if a connection within one network namespace could be taken for one of another with the same addresses.
    #[test]
    fn addresses_of_one_namespace_are_recognised() {
        for (local, remote) in [
            ("127.0.0.1:1", "127.0.0.1:2"),
            ("10.0.0.1:1", "10.0.0.1:2"),
            ("0.0.0.0:0", "0.0.0.0:53"),
            ("169.254.0.1:1", "10.0.0.1:2"),
            ("[fe80::1]:1", "[fe80::2]:2"),
            ("[::ffff:127.0.0.1]:1", "10.0.0.1:2"),
        ] {
            assert!(is_local(&tuple(local, remote)) && is_local(&tuple(remote, local)), "{local} {remote}");
        }
        assert!(!is_local(&tuple("10.0.0.1:1", "10.0.0.2:2")) && !is_local(&tuple("[fd00::1]:1", "[fd00::2]:2")));
        let within = tuple("127.0.0.1:1", "127.0.0.1:2");
        assert_ne!(key(&within, 7), key(&within, 8));
    }

    #[test]
    fn keys_spread() {
        let keys: std::collections::HashSet<u64> = (1..=20_000u16)
            .map(|p| FourTuple { local: ([127, 0, 0, 1], 6379).into(), remote: ([127, 0, 0, 1], p).into() })
            .map(|tuple| key(&tuple, 0) >> 47)
            .collect();
        assert!(keys.len() > 15_000, "{} of 20000 distinct in 17 bits", keys.len());
    }
}
