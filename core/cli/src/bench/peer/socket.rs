//! Addresses and sockets, the same for TCP and Unix.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that may wait to be accepted: as many as the kernel's usual limit.
const BACKLOG: i32 = 4096;

/// Connections from one local address. Arbitrary: far fewer than the kernel has ephemeral ports.
pub(super) const PORTS_OF_ADDRESS: usize = 4096;

/// `tcp:127.0.0.1:7000`, `udp:127.0.0.1:7000` or `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// Where a listening socket can be reached.
    pub(super) fn of(listener: &Socket) -> io::Result<Self> {
        let address = listener.local_addr()?;
        if let Some(internet) = address.as_socket() {
            let is_datagram = listener.r#type()? == Type::DGRAM;
            return Ok(if is_datagram { Address::Udp(internet) } else { Address::Tcp(internet) });
        }
        match address.as_pathname() {
            Some(path) => Ok(Address::Unix(path.to_owned())),
            None => Err(io::Error::other("a listener without an address")),
        }
    }

    pub(super) fn listen(&self) -> io::Result<Socket> {
        let socket = self.socket()?;
        if let Address::Tcp(_) = self {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&self.sock_addr()?)?;
        match self {
            Address::Udp(_) => {}
            Address::Tcp(_) | Address::Unix(_) => socket.listen(BACKLOG)?,
        }
        Ok(socket)
    }

    pub(super) fn connect(&self) -> io::Result<Socket> {
        self.connect_as(0)
    }

    /// A client's connection number `index`. Each [`PORTS_OF_ADDRESS`] connections to the loopback have another local
    /// address: the kernel searches for a free port, for longer the more of an address are in use.
    pub(super) fn connect_as(&self, index: usize) -> io::Result<Socket> {
        let socket = self.socket()?;
        let group = u8::try_from(index / PORTS_OF_ADDRESS).unwrap_or(u8::MAX);
        if let Address::Tcp(SocketAddr::V4(to)) = self {
            if group > 0 && to.ip().is_loopback() {
                setsockopt(&socket, IpBindAddressNoPort, &true)?;
                socket.bind(&SockAddr::from(SocketAddr::from(([127, 0, 1, group], 0))))?;
            }
        }
        socket.connect(&self.sock_addr()?)?;
        Ok(socket)
    }

    fn socket(&self) -> io::Result<Socket> {
        match self {
            Address::Tcp(address) => Socket::new(Domain::for_address(*address), Type::STREAM, None),
            Address::Udp(address) => Socket::new(Domain::for_address(*address), Type::DGRAM, None),
            Address::Unix(_) => Socket::new(Domain::UNIX, Type::STREAM, None),
        }
    }

    fn sock_addr(&self) -> io::Result<SockAddr> {
        match self {
            Address::Tcp(address) | Address::Udp(address) => Ok(SockAddr::from(*address)),
            Address::Unix(path) => SockAddr::unix(path),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "tcp:{address}"),
            Address::Udp(address) => write!(f, "udp:{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let internet = |address: &str| address.parse().map_err(|error| format!("{address}: {error}"));
        match text.split_once(':') {
            Some(("tcp", address)) => internet(address).map(Address::Tcp),
            Some(("udp", address)) => internet(address).map(Address::Udp),
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
            _ => Err(format!("'{text}' is not tcp:ADDRESS:PORT, udp:ADDRESS:PORT or unix:PATH")),
        }
    }
}

/// Small messages are sent at once, as in every program that answers requests. Others do so anyway.
pub(super) fn no_delay(socket: &Socket) -> io::Result<()> {
    match socket.local_addr()?.as_socket() {
        Some(_) if socket.r#type()? == Type::STREAM => socket.set_tcp_nodelay(true),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_being_written_down() {
        for text in ["tcp:127.0.0.1:7000", "tcp:[::1]:7", "udp:127.0.0.1:9", "unix:/tmp/a:b"] {
            assert_eq!(text.parse::<Address>().expect("it is one").to_string(), text);
        }
        for bad in ["", "tcp:", "tcp:localhost", "unix:", "udp:1.2.3.4", "sctp:1.2.3.4:5"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
