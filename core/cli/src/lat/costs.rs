//! `netacc lat --costs`: what a calibration of a simulated device, and of the library on it, is fitted on and checked with, as
//! JSON. All loads are measured in turns, several times each: other work on a machine comes and goes, so it is not in all rounds
//! of a load.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netacc_config::Config;
use netacc_registry::{time_commands, Calibrated};
use serde::Serialize;

use super::measured::{Latencies, Measured, Round};
use super::{raw, tcp, through_the_stack, LatArgs, LatError, Role};
use crate::bench::{progress_bar, Machine, Others};

/// Of the JSON.
const VERSION: u32 = 1;

/// Bytes of messages that go there and back: one packet of most devices and less, and several.
const ECHO_SIZES: [u32; 6] = [64, 256, 1024, 4096, 16_384, 65_536];
/// Bytes of writes, several in flight: a stream of large ones, and rates of small ones.
const WRITE_SIZES: [u32; 5] = [64, 1024, 4096, 16_384, 65_536];
/// Bytes of messages on a socket, several in flight there and back. All of them fit into a ring.
const SOCKET_SIZES: [u32; 2] = [64, 1024];
/// Messages in flight.
pub(super) const DEPTH: u32 = 16;
/// Bytes of registrations, to tell what each costs from what its length costs.
const REGISTERED: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
/// How often each command is measured, and how many connections. Arbitrary: enough for a median, in a second.
const COMMANDS: usize = 20;
const CONNECTIONS: u32 = 10;
/// Of a measurement whose link ends. Arbitrary: a device that ends more of them is no device to calibrate with.
const ATTEMPTS: u32 = 5;

#[derive(Serialize)]
struct Costs {
    version: u32,
    machine: Machine,
    device: Device,
    commands: Commands,
    /// Calls that post a small write while nothing else is in flight.
    post: Latencies,
    echoes: Vec<Echo>,
    rates: Vec<Rate>,
    /// Processors that other work kept busy meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<f64>,
}

#[derive(Serialize)]
struct Device {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
}

/// Nanoseconds, one for each round.
#[derive(Serialize)]
struct Commands {
    create_queue_pair: Vec<u64>,
    destroy_queue_pair: Vec<u64>,
    /// Bytes, and nanoseconds.
    register: Vec<(usize, u64)>,
    deregister: Vec<(usize, u64)>,
    /// Whole connections, from resolving the address on.
    connect: Latencies,
}

#[derive(Serialize)]
struct Echo {
    path: &'static str,
    size: u32,
    rounds: Vec<EchoRound>,
}

#[derive(Serialize)]
struct EchoRound {
    /// Half round trips.
    half_ns: Latencies,
    /// The share of the bytes that went over a link; none of raw messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    link_share: Option<f64>,
}

#[derive(Clone, Serialize)]
struct Rate {
    path: &'static str,
    size: u32,
    depth: u32,
    rounds: Vec<Round>,
}

/// Measures all, and returns the JSON. `from`: our address that the device serves.
pub(super) fn measure(args: &LatArgs, from: IpAddr) -> Result<String, LatError> {
    let (config, _) = Config::load();
    let end = Ends { config: &config, from, args };
    let machine = Machine::here();
    let others = Others::watch();
    let mut echoes = echoes();
    let mut rates = rates();
    let progress = progress_bar(args.rounds as usize * (echoes.len() + rates.len()) + 2, false);
    let step = |what: String| {
        progress.set_message(what);
        progress.inc(1);
    };
    step("commands".to_owned());
    let (device, commands) = end.commands()?;
    step("posts".to_owned());
    let post = end.writes(64, 1)?.posts;
    for _ in 0..args.rounds {
        for echo in &mut echoes {
            let what = format!("{}, {} bytes", echo.path, echo.size);
            step(what.clone());
            echo.rounds.push(attempt(&what, || end.echo(echo.path, echo.size))?);
        }
        for rate in &mut rates {
            let what = format!("{}, {} messages of {} bytes in flight", rate.path, rate.depth, rate.size);
            step(what.clone());
            rate.rounds.push(attempt(&what, || end.rate(rate.path, rate.size))?);
        }
    }
    progress.finish_and_clear();
    let others = others.busy_processors();
    Ok(serde_json::to_string(&Costs { version: VERSION, machine, device, commands, post, echoes, rates, others })?)
}

/// Tries a measurement again whose link has ended: a device in software gives up on a peer that is kept from its processor.
fn attempt<T>(what: &str, mut measure: impl FnMut() -> Result<T, LatError>) -> Result<T, LatError> {
    let mut left = ATTEMPTS;
    loop {
        left -= 1;
        match measure() {
            Err(LatError::Disconnected) if left > 0 => {}
            found => return found.map_err(|error| LatError::During { what: what.to_owned(), error: Box::new(error) }),
        }
    }
}

/// This end and the other one.
struct Ends<'a> {
    config: &'a Config,
    from: IpAddr,
    args: &'a LatArgs,
}

impl Ends<'_> {
    fn links(&self) -> SocketAddr {
        SocketAddr::new(self.args.address, self.args.port + 1)
    }

    fn commands(&self) -> Result<(Device, Commands), LatError> {
        let Calibrated { name, mtu, commands } = time_commands(self.config, self.from, COMMANDS, &REGISTERED)?;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let each = |times: Vec<Duration>| times.into_iter().map(ns).collect();
        let by_len = |times: Vec<(usize, Duration)>| times.into_iter().map(|(len, time)| (len, ns(time))).collect();
        let connect = raw::connections(self.config, self.from, self.links(), CONNECTIONS)?;
        let commands = Commands {
            create_queue_pair: each(commands.create_queue_pair),
            destroy_queue_pair: each(commands.destroy_queue_pair),
            register: by_len(commands.register),
            deregister: by_len(commands.deregister),
            connect,
        };
        Ok((Device { name, mtu }, commands))
    }

    fn writes(&self, size: u32, depth: u32) -> Result<raw::Writes, LatError> {
        let task = raw::Task { kind: raw::Kind::Writes, size, count: self.args.count };
        raw::writes(self.config, self.from, self.links(), task, depth)
    }

    fn echo(&self, path: &str, size: u32) -> Result<EchoRound, LatError> {
        let kind = match path {
            "write" => raw::Kind::Write,
            "message" => raw::Kind::Message,
            "send" => raw::Kind::Send,
            _ => {
                let output = through_the_stack(self.args, Role::Client, size)?;
                let Measured { histogram: half_ns, link_share } = serde_json::from_slice(&output)?;
                return Ok(EchoRound { half_ns, link_share });
            }
        };
        let task = raw::Task { kind, size, count: self.args.count };
        Ok(EchoRound { half_ns: raw::measure(self.config, self.from, self.links(), task)?, link_share: None })
    }

    fn rate(&self, path: &str, size: u32) -> Result<Round, LatError> {
        match path {
            "write" => Ok(Round::new(self.args.count, self.writes(size, DEPTH)?.elapsed)),
            "tcp" => tcp::rate(SocketAddr::new(self.args.address, self.args.port), size, self.args.count, DEPTH),
            _ => Ok(serde_json::from_slice(&through_the_stack(self.args, Role::RateClient, size)?)?),
        }
    }
}

fn echoes() -> Vec<Echo> {
    let paths = |size| ["write", "message", "send", "stack"].map(|path| Echo { path, size, rounds: Vec::new() });
    ECHO_SIZES.into_iter().flat_map(paths).collect()
}

fn rates() -> Vec<Rate> {
    let of = |path, sizes: &[u32]| -> Vec<Rate> {
        sizes.iter().map(|size| Rate { path, size: *size, depth: DEPTH, rounds: Vec::new() }).collect()
    };
    [of("write", &WRITE_SIZES), of("stack", &SOCKET_SIZES), of("tcp", &SOCKET_SIZES)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if one link that ends costs a whole calibration, if one that always ends is tried for ever, or if the error does
    /// not say what was measured.
    #[test]
    fn a_measurement_whose_link_has_ended_is_tried_again() {
        let mut ended = 0;
        let found = attempt("a", || {
            ended += 1;
            if ended < ATTEMPTS {
                Err(LatError::Disconnected)
            } else {
                Ok(ended)
            }
        });
        assert!(matches!(found, Ok(ATTEMPTS)), "{found:?}");
        let mut attempts = 0;
        let mut fail = |error: fn() -> LatError| {
            attempts = 0;
            let failed = attempt("send, 64 bytes", || {
                attempts += 1;
                Err::<(), _>(error())
            });
            (failed.expect_err("it fails each time").to_string(), attempts)
        };
        assert_eq!(fail(|| LatError::Disconnected), ("send, 64 bytes: the link ended".to_owned(), ATTEMPTS));
        assert_eq!(fail(|| LatError::Silent(30)).1, 1, "a server that is silent stays so");
    }
}
