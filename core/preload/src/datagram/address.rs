//! Addresses as the kernel and programs write them.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{sockaddr, socklen_t};

use crate::os::real;

/// Bytes of the longest.
const LONGEST: usize = size_of::<libc::sockaddr_in6>();

/// A `sockaddr` of IPv4 or IPv6, byte by byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Address {
    /// None.
    pub const UNKNOWN: Address = Address { bytes: [0; LONGEST], len: 0 };

    /// Of the first bytes of a buffer.
    pub fn new(bytes: &[u8]) -> Address {
        let mut address = Address { bytes: [0; LONGEST], len: bytes.len().min(LONGEST) };
        address.bytes[..address.len].copy_from_slice(&bytes[..address.len]);
        if address.family() == libc::AF_INET {
            // Only padding follows the address.
            address.len = address.len.min(size_of::<libc::sockaddr_in>());
            address.bytes[8..].fill(0);
        }
        address
    }

    /// Of an address that the program passes. `None` if there is none there, or one that the kernel must judge.
    ///
    /// # Safety
    /// As the C functions that take an address.
    pub unsafe fn of_program(addr: *const sockaddr, len: socklen_t) -> Option<Address> {
        let len = (len as usize).min(LONGEST);
        if addr.is_null() || len < size_of::<libc::sockaddr_in>() {
            return None;
        }
        let mut bytes = [0u8; LONGEST];
        if crate::os::access::readable(addr.cast::<u8>(), len) < len {
            return None;
        }
        // SAFETY: readable; any bytes are bytes.
        unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), bytes.as_mut_ptr(), len) };
        let address = Address::new(&bytes[..len]);
        address.socket_addr().map(|_| address)
    }

    /// Of an address as the kernel gives it to a socket of its family.
    pub fn from(address: SocketAddr) -> Address {
        let mut bytes = [0; LONGEST];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address.ip() {
            IpAddr::V4(ip) => {
                bytes[4..8].copy_from_slice(&ip.octets());
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            IpAddr::V6(ip) => {
                bytes[8..24].copy_from_slice(&ip.octets());
                (libc::AF_INET6, LONGEST)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Address { bytes, len }
    }

    /// The same one at another port.
    pub fn at_port(mut self, port: u16) -> Address {
        self.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        self
    }

    fn family(&self) -> c_int {
        c_int::from(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]))
    }

    /// Whether IPv4 carries datagrams to there.
    pub fn is_v4(&self) -> bool {
        self.family() == libc::AF_INET || self.bytes[8..20] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// As an address and a port, an IPv4 address that is written as one of IPv6 as what it is.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes([self.bytes[2], self.bytes[3]]);
        match (self.family(), self.len) {
            (libc::AF_INET, 16..) => {
                let ip: [u8; 4] = self.bytes[4..8].try_into().ok()?;
                Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port))
            }
            (libc::AF_INET6, 24..) => {
                let ip: [u8; 16] = self.bytes[8..24].try_into().ok()?;
                Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port))
            }
            _ => None,
        }
    }
}

/// The address that a socket is bound to.
pub fn local_address(fd: c_int) -> Option<SocketAddr> {
    name_of(fd, real::getsockname)
}

/// The address that a socket is connected to.
pub fn peer_address(fd: c_int) -> Option<SocketAddr> {
    name_of(fd, real::getpeername)
}

fn name_of(
    fd: c_int,
    name: unsafe fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int,
) -> Option<SocketAddr> {
    let mut bytes = [0u8; size_of::<libc::sockaddr_in6>()];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: a buffer of that length.
    let rc = unsafe { name(fd, bytes.as_mut_ptr().cast(), &mut len) };
    (rc == 0).then(|| Address::new(&bytes[..(len as usize).min(bytes.len())]).socket_addr()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_kernel() {
        let v4 = [2, 0, 0, 53, 127, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9];
        let address = Address::new(&v4);
        assert_eq!(address.socket_addr(), Some("127.0.0.1:53".parse().unwrap()));
        assert_eq!(address.bytes().len(), 16);
        let mut padded = v4;
        padded[8..].fill(0);
        assert_eq!(address, Address::new(&padded), "padding does not count");
        let mut mapped = [0u8; 28];
        mapped[0] = 10;
        mapped[3] = 53;
        mapped[18..24].copy_from_slice(&[255, 255, 127, 0, 0, 1]);
        assert_eq!(Address::new(&mapped).socket_addr(), Some("127.0.0.1:53".parse().unwrap()));
        assert_eq!(Address::new(&[1, 0, 47]).socket_addr(), None);
        let mut six = mapped;
        six[18] = 0;
        for written in ["127.0.0.1:53", "[fd99::2]:4433"].map(|text| text.parse::<SocketAddr>().unwrap()) {
            assert_eq!(Address::from(written).socket_addr(), Some(written));
        }
        assert_eq!(address.at_port(4433).socket_addr(), Some("127.0.0.1:4433".parse().unwrap()));
        assert_eq!([&v4[..], &mapped, &six].map(|bytes| Address::new(bytes).is_v4()), [true, true, false]);
    }
}
