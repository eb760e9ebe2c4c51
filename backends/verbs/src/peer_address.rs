//! The address of a host's RDMA endpoint: an IP address and a port, as the core's opaque [`PeerAddress`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netacc_device::PeerAddress;

/// An address as any other code sees it: sixteen bytes of IP, family and port, nothing.
pub(crate) fn encode(address: SocketAddr) -> PeerAddress {
    let (ip, family) = match address.ip() {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 4),
        IpAddr::V6(v6) => (u128::from(v6), 6),
    };
    PeerAddress([(ip >> 64) as u64, ip as u64, family << 16 | u64::from(address.port()), 0])
}

/// The host of an address: the address that [`encode`] would make with port 0.
pub(crate) fn host(PeerAddress([high, low, place, _]): PeerAddress) -> PeerAddress {
    PeerAddress([high, low, place >> 16 << 16, 0])
}

/// `None`: [`encode`] makes no such address from one where a process could listen.
pub(crate) fn decode(peer: PeerAddress) -> Option<SocketAddr> {
    let [high, low, place, rest] = peer.0;
    let port = place as u16;
    let ip: IpAddr = match place >> 16 {
        4 if high == 0 => Ipv4Addr::from(u32::try_from(low).ok()?).into(),
        6 => Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into(),
        _ => return None,
    };
    let usable = !ip.is_unspecified() && !ip.is_multicast() && port != 0 && rest == 0;
    usable.then_some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_and_nonsense_does_not() {
        for text in ["10.99.0.1:26379", "[fd99::2]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(decode(encode(address)), Some(address));
        }
        let real = encode("10.99.0.1:26379".parse().expect("an address")).0;
        for wrong in
            [[0; 4], [u64::MAX; 4], [1, real[1], real[2], 0], [0, 1 << 32, real[2], 0], [0, real[1], 4 << 16, 0]]
        {
            assert_eq!(decode(PeerAddress(wrong)), None, "{wrong:?}");
        }
    }

    /// Breaks if the two ends of a link had different names for it: no proof of the pre-shared key would fit.
    #[test]
    fn a_host_has_one_name_whatever_the_port() {
        let at = |text: &str| host(encode(text.parse().expect("an address")));
        assert_eq!(at("10.99.0.1:26379"), at("10.99.0.1:4791"));
        assert_ne!(at("10.99.0.1:26379"), at("10.99.0.2:26379"));
        assert_ne!(at("[::a63:1]:1"), at("10.99.0.1:1"), "another family");
    }
}
