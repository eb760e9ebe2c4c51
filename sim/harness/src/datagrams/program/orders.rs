//! The calls of a program: orders as JSON, and answers as `tests/properties/datagram_host.py` gives them for the kernel's sockets.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{json, Value};

use super::super::host::{Bound, Received, Wired};
use super::{hex, DatagramProgram, PATIENCE, PATIENCE_WITH_FAULTS};
use crate::{Broken, Check, What};

/// Datagrams that one call may split its bytes into (UDP_MAX_SEGMENTS of kernels since 6.9; programs are far from any limit).
const MOST_PIECES: usize = 128;

/// Length of the pieces of a send that is split, as in `datagram_host.py`.
const PIECE: usize = 64;

/// The value of TTL or TOS of a send that names one.
const NAMED: u8 = 8;

const SOL_SOCKET: u8 = 1;
const SO_TIMESTAMP: u8 = 29;
const SO_TIMESTAMPNS: u8 = 35;
const SO_TIMESTAMPING: u8 = 37;
const IPPROTO_IP: u8 = 0;
const IPPROTO_IPV6: u8 = 41;
/// The index of the loopback interface.
const LOOPBACK: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// IPv4, at 127.0.0.1.
    Bound,
    /// IPv4, at all addresses.
    Any,
    /// IPv6 and IPv4, at all addresses.
    Dual,
    /// At `::1`.
    Six,
}

/// A control message that a socket wants with each datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Want {
    Destination,
    Lifetime,
    Service,
    Micros,
    Nanos,
    Times,
}

/// A program's socket.
pub(super) struct ProgramSocket {
    /// Its number among the host's.
    at: usize,
    kind: Kind,
    wants: BTreeSet<Want>,
    ttl: u8,
    tos: u8,
    /// Length of the pieces that a send is split into; 0: it is not.
    split: usize,
    /// A datagram that waiting or peeking has found, which the next call takes.
    front: Option<Received>,
    port: u16,
    /// Its process has had a child.
    shared: bool,
}

/// An answer, or the name of an error.
type Answer = Result<Value, &'static str>;

impl DatagramProgram {
    /// Carries out an order: a list of the process's number, the call, and its arguments. Returns the answer. `["finish"]` ends the run.
    ///
    /// # Errors
    /// A promise was broken, or the order makes no sense.
    pub fn order(&mut self, line: &str) -> Check<String> {
        let wrong = || Broken::new(What::Misuse, format!("not an order: {line}"));
        let order: Vec<Value> = serde_json::from_str(line).map_err(|_| wrong())?;
        if order == [json!("finish")] {
            return Ok(self.finish()?.to_string());
        }
        let answer = self.call(&order).unwrap_or_else(|| Err(wrong()))?;
        // Between any two calls.
        for _ in 0..self.rng.below(12) {
            self.turn()?;
        }
        Ok(answer.unwrap_or_else(|error| json!(error)).to_string())
    }

    /// `None`: an argument is missing, or is not what it should be.
    fn call(&mut self, order: &[Value]) -> Option<Check<Answer>> {
        let [process, what, name, more @ ..] = order else { return None };
        let process = process.as_u64().filter(|number| *number < self.hosts.len() as u64)? as usize;
        let (what, name) = (what.as_str()?, name.as_str()?);
        let key = (process, name.to_owned());
        if what == "new" {
            return Some(Ok(Ok(self.open(key, more.first()?.as_str()?)?)));
        }
        let socket = self.sockets.get_mut(&key)?;
        Some(match (what, more) {
            ("send", [how, data, ip, port]) => {
                let data = unhex(data.as_str()?)?;
                let to = SocketAddr::new(ip.as_str()?.parse().ok()?, u16::try_from(port.as_u64()?).ok()?);
                self.send_call(&key, how.as_str()?, &data, to)
            }
            ("receive", [how]) => self.receive_call(&key, how.as_str()?).map(|found| found.ok_or("EAGAIN")),
            ("drain", [expected]) => {
                expected.as_u64()?;
                self.drain(&key).map(Ok)
            }
            ("wait", [_]) => self.waits(&key).map(|there| Ok(json!(there))),
            ("inform", [want, on]) => {
                self.inform(&key, want.as_str()?, on.as_bool()?)?;
                Ok(Ok(Value::Null))
            }
            ("option", [option, value]) => {
                let value = value.as_u64()?;
                match option.as_str()? {
                    "lifetime" => socket.ttl = u8::try_from(value).ok()?,
                    "service" => socket.tos = u8::try_from(value).ok()?,
                    "split" => socket.split = usize::try_from(value).ok()?,
                    // It may join datagrams, and need not.
                    "join" => {}
                    _ => return None,
                }
                Ok(Ok(Value::Null))
            }
            ("duplicate", []) => Ok(Ok(Value::Null)),
            ("fork", [how]) => self.fork(&key, how.as_str()?).map(Ok),
            ("close", []) => Ok(Ok(Value::Null)),
            _ => return None,
        })
    }

    /// The new socket's port.
    fn open(&mut self, key: (usize, String), kind: &str) -> Option<Value> {
        let (kind, ip, bound) = match kind {
            "bound" => (Kind::Bound, IpAddr::V4(Ipv4Addr::LOCALHOST), Bound::One),
            "any" => (Kind::Any, IpAddr::V4(Ipv4Addr::LOCALHOST), Bound::Four),
            "dual" => (Kind::Dual, IpAddr::V4(Ipv4Addr::LOCALHOST), Bound::All),
            "six" => (Kind::Six, IpAddr::V6(Ipv6Addr::LOCALHOST), Bound::One),
            _ => return None,
        };
        let port = self.next_port;
        self.next_port += 1;
        let at = self.hosts[key.0].add_socket(SocketAddr::new(ip, port), bound, true);
        let wants = BTreeSet::new();
        let socket = ProgramSocket { at, kind, wants, ttl: 64, tos: 0, split: 0, front: None, port, shared: false };
        self.sockets.insert(key, socket);
        Some(json!(port))
    }

    fn send_call(&mut self, key: &(usize, String), how: &str, data: &[u8], to: SocketAddr) -> Check<Answer> {
        let socket = &self.sockets[key];
        let &ProgramSocket { at, port, kind, .. } = socket;
        if how == "send" {
            return Ok(Err("EDESTADDRREQ"));
        }
        if kind == Kind::Six && to.is_ipv4() {
            return Ok(Err("ENETUNREACH"));
        }
        let piece = if how == "split" { PIECE } else { socket.split };
        let piece = if piece == 0 { data.len().max(1) } else { piece };
        if data.len().div_ceil(piece) > MOST_PIECES {
            return Ok(Err("EINVAL"));
        }
        let from: IpAddr = match (kind, to) {
            (Kind::Dual | Kind::Six, SocketAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
            (_, SocketAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
            // Then it is sent to an address of IPv4 where there is nothing.
            _ => return Ok(Ok(json!(data.len()))),
        };
        let ttl = if how == "lived" { NAMED } else { socket.ttl };
        let tos = if how == "marked" { NAMED } else { socket.tos };
        let from = SocketAddr::new(from, port);
        let pieces: Vec<&[u8]> = if data.is_empty() { vec![data] } else { data.chunks(piece).collect() };
        for bytes in pieces {
            self.send(key.0, at, Wired { from, to, bytes: bytes.to_vec(), ttl, tos })?;
        }
        Ok(Ok(json!(data.len())))
    }

    /// Whether there is a datagram without any wait.
    fn look(&mut self, key: &(usize, String)) -> Check<bool> {
        let socket = &self.sockets[key];
        if socket.front.is_some() {
            return Ok(true);
        }
        let Some(received) = self.hosts[key.0].receive(socket.at, self.now) else { return Ok(false) };
        self.account(&received)?;
        if let Some(socket) = self.sockets.get_mut(key) {
            socket.front = Some(received);
        }
        Ok(true)
    }

    /// Waits for a datagram, as long as one is under way: in the kernel, if the library permits.
    fn waits(&mut self, key: &(usize, String)) -> Check<bool> {
        let at = self.sockets[key].at;
        let patience = if self.faults == 0 { PATIENCE } else { PATIENCE_WITH_FAULTS };
        for turn in 0..patience {
            if self.look(key)? {
                return Ok(true);
            }
            if !self.is_due(key.0, at) {
                break;
            }
            self.hosts[key.0].sleep(at);
            self.turn()?;
            if turn > patience / 4 {
                // Timers may have to fire first.
                self.now = self.now + std::time::Duration::from_millis(1);
            }
        }
        self.hosts[key.0].sockets[at].asleep = false;
        self.look(key)
    }

    fn take(&mut self, key: &(usize, String)) -> Option<Received> {
        self.sockets.get_mut(key)?.front.take()
    }

    fn receive_call(&mut self, key: &(usize, String), how: &str) -> Check<Option<Value>> {
        if !self.waits(key)? {
            return Ok(None);
        }
        let received = match how {
            "peek" => self.sockets[key].front.clone(),
            _ => self.take(key),
        };
        Ok(received.map(|received| self.shown(key, &received)))
    }

    /// All that there is, and that is under way.
    fn drain(&mut self, key: &(usize, String)) -> Check<Value> {
        let mut found = Vec::new();
        while self.waits(key)? {
            let received = self.take(key);
            found.extend(received.map(|received| self.shown(key, &received)));
        }
        Ok(json!(found))
    }

    fn fork(&mut self, key: &(usize, String), how: &str) -> Check<Value> {
        self.hosts[key.0].fork();
        self.collect();
        for ((process, _), socket) in &mut self.sockets {
            socket.shared |= *process == key.0;
        }
        if how == "receives" {
            return self.drain(key);
        }
        Ok(json!([]))
    }

    fn inform(&mut self, key: &(usize, String), want: &str, on: bool) -> Option<()> {
        let want = match want {
            "destination" => Want::Destination,
            "lifetime" => Want::Lifetime,
            "service" => Want::Service,
            "micros" => Want::Micros,
            "nanos" => Want::Nanos,
            "times" => Want::Times,
            // As long as none was dropped there is no message.
            "drops" => return Some(()),
            _ => return None,
        };
        let socket = self.sockets.get_mut(key)?;
        if matches!(want, Want::Micros | Want::Nanos) {
            // They replace each other.
            socket.wants.remove(&Want::Micros);
            socket.wants.remove(&Want::Nanos);
        }
        match on {
            true => drop(socket.wants.insert(want)),
            false => drop(socket.wants.remove(&want)),
        }
        // A record on a link has no time.
        let wants_time = [Want::Micros, Want::Nanos, Want::Times].iter().any(|time| socket.wants.contains(time));
        let (at, stays) = (socket.at, wants_time || socket.shared);
        self.hosts[key.0].keep_in_kernel(at, stays);
        Some(())
    }

    /// A datagram with its flags, the port of its source, and its control messages in the kernel's order.
    fn shown(&self, key: &(usize, String), received: &Received) -> Value {
        let socket = &self.sockets[key];
        let Wired { from, to, bytes, ttl, tos } = &received.datagram;
        let wants = |want| socket.wants.contains(&want);
        let mut messages = Vec::new();
        for (want, kind, len) in
            [(Want::Micros, SO_TIMESTAMP, 16), (Want::Nanos, SO_TIMESTAMPNS, 16), (Want::Times, SO_TIMESTAMPING, 48)]
        {
            if wants(want) {
                messages.push(json!([SOL_SOCKET, kind, true, len]));
            }
        }
        let mut message = |level: u8, kind: u8, data: &[u8]| messages.push(json!([level, kind, hex(data)]));
        let is_six = matches!(socket.kind, Kind::Dual | Kind::Six);
        if is_six && wants(Want::Destination) {
            let address = match to.ip() {
                IpAddr::V4(four) => four.to_ipv6_mapped(),
                IpAddr::V6(six) => six,
            };
            message(IPPROTO_IPV6, 50, &[&address.octets()[..], &[LOOPBACK, 0, 0, 0]].concat());
        }
        match to.ip() {
            IpAddr::V4(four) => {
                if wants(Want::Destination) {
                    message(IPPROTO_IP, 8, &[&[LOOPBACK, 0, 0, 0], &four.octets()[..], &four.octets()[..]].concat());
                }
                if wants(Want::Lifetime) {
                    message(IPPROTO_IP, 2, &[*ttl, 0, 0, 0]);
                }
                if wants(Want::Service) {
                    message(IPPROTO_IP, 1, &[*tos]);
                }
            }
            IpAddr::V6(_) => {
                if wants(Want::Lifetime) {
                    message(IPPROTO_IPV6, 52, &[*ttl, 0, 0, 0]);
                }
                if wants(Want::Service) {
                    message(IPPROTO_IPV6, 67, &[*tos, 0, 0, 0]);
                }
            }
        }
        json!([hex(bytes), 0, from.port(), messages])
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
