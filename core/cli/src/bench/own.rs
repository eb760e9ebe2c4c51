//! `netacc bench echo|stream|connect`: our own two peers on each path.
//!
//! The server is started once per path, the client once per measurement. They exchange lines with this process on
//! standard input and output (see [`super::peer`]).

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{json, Value};

use super::args::{CommonArgs, ConnectArgs, EchoArgs, Mode, StreamArgs};
use super::cpu;
use super::error::BenchError;
use super::link::Sample;
use super::paths::{this_program, Path};
use super::peer::{LoadName, Outcome};
use super::process::Proc;
use super::result::{Kind, Run};
use super::rounds::{self, Length, Load, Stage};
use super::stats::tidy;

/// How long a peer may take until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Connections that `connect` measures by default: few enough for the kernel's ephemeral ports (28232), because a
/// closed connection may keep its port for a minute.
const DEFAULT_CONNECTIONS: u64 = 10_000;

/// Runs `netacc bench echo`.
pub(crate) fn run_echo(args: &EchoArgs) -> Result<(), BenchError> {
    at_least_one_byte(args.size)?;
    let load = LoadArgs { load: LoadName::Echo, size: args.size, mode: args.mode, clients: args.clients };
    let params = json!({"size": args.size, "mode": args.mode.name(), "clients": args.clients});
    run(&args.common, load, Kind::PingPong, params)
}

/// Runs `netacc bench stream`.
pub(crate) fn run_stream(args: &StreamArgs) -> Result<(), BenchError> {
    at_least_one_byte(args.size)?;
    let load = LoadArgs { load: LoadName::Stream, size: args.size, mode: Mode::Blocking, clients: args.streams };
    run(&args.common, load, Kind::Bulk, json!({"size": args.size, "streams": args.streams}))
}

/// Runs `netacc bench connect`.
pub(crate) fn run_connect(args: &ConnectArgs) -> Result<(), BenchError> {
    let load = LoadArgs { load: LoadName::Connect, size: args.exchange, mode: Mode::Blocking, clients: 1 };
    let mut common = args.common.clone();
    if common.seconds.is_none() {
        common.requests.get_or_insert(DEFAULT_CONNECTIONS);
    }
    run(&common, load, Kind::Requests, json!({"exchange": args.exchange}))
}

fn at_least_one_byte(size: u64) -> Result<(), BenchError> {
    match size {
        0 => Err(BenchError::Usage("--size: at least 1 byte".into())),
        _ => Ok(()),
    }
}

fn run(common: &CommonArgs, load: LoadArgs, kind: Kind, mut params: Value) -> Result<(), BenchError> {
    let stage = Stage::new(common)?;
    params["pairs"] = json!(common.pairs);
    params["length"] = stage.length.describe();
    params["spin"] = json!(!common.no_spin);
    params["run_args"] = json!(common.run_arg);
    params["paths"] = stage.launcher.paths.iter().map(Path::name).collect();
    let mut load = OwnLoad { load, kind, stage: &stage, servers: HashMap::new() };
    rounds::run(&mut load, &stage.launcher, common, params)
}

/// The arguments of both peers.
#[derive(Debug, Clone, Copy)]
struct LoadArgs {
    load: LoadName,
    size: u64,
    mode: Mode,
    clients: u32,
}

struct OwnLoad<'a> {
    load: LoadArgs,
    kind: Kind,
    stage: &'a Stage,
    servers: HashMap<Path, Server>,
}

struct Server {
    _proc: Proc,
    pid: u32,
    /// The address on which it listens, in the client's syntax.
    address: String,
}

impl Load for OwnLoad<'_> {
    fn name(&self) -> &'static str {
        self.load.load.name()
    }

    fn tests(&self) -> Vec<String> {
        vec![self.name().to_owned()]
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn needs_link(&self) -> bool {
        // A connection that is closed at once need not reach its link.
        self.load.load != LoadName::Connect
    }

    fn start(&mut self, path: &Path) -> Result<(), BenchError> {
        let socket = self.stage.workdir.path().join("peer.sock");
        let listen = match path {
            Path::Unix => format!("unix:{}", socket.display()),
            Path::Tcp | Path::Backend(_) => "tcp:127.0.0.1:0".to_owned(),
        };
        let mut proc = self.spawn("server", path, &["--listen".into(), listen])?;
        let ready = proc.expect("READY", START_TIMEOUT)?;
        let Some((pid, address)) = ready.split_once(' ') else {
            return Err(proc.error(format!("wrote an invalid READY line: '{ready}'")));
        };
        let pid = pid.parse().map_err(|_| proc.error(format!("wrote an invalid process id: '{pid}'")))?;
        let address = address.to_owned();
        self.servers.insert(path.clone(), Server { _proc: proc, pid, address });
        Ok(())
    }

    fn warm_up(&mut self, _test: &str, path: &Path) -> Result<(), BenchError> {
        let short = match self.stage.length {
            Length::Requests(requests) => Length::Requests(requests.min(1000)),
            Length::Seconds(seconds) => Length::Seconds(seconds.min(0.2)),
        };
        self.run_client(path, short).map(drop)
    }

    fn measure(&mut self, _test: &str, path: &Path) -> Result<Run, BenchError> {
        self.run_client(path, self.stage.length)
    }
}

impl OwnLoad<'_> {
    /// The bytes of the measured requests; the warm-up carried more.
    fn least_bytes(&self, requests: u64) -> u64 {
        match self.load.load {
            LoadName::Stream => requests * self.load.size,
            LoadName::Echo | LoadName::Connect => requests * self.load.size * 2,
        }
    }

    fn spawn(&self, role: &str, path: &Path, more: &[String]) -> Result<Proc, BenchError> {
        let LoadArgs { load, size, mode, clients } = self.load;
        let mut command = self.stage.launcher.command(path, this_program());
        command.args(["bench-peer", role, "--load", load.name(), "--mode", mode.name()]);
        command.args(["--size", &size.to_string(), "--clients", &clients.to_string()]).args(more);
        let name = format!("{} {role} {}", load.name(), path.name());
        Proc::spawn(command, &name, self.stage.workdir.path())
    }

    fn run_client(&self, path: &Path, length: Length) -> Result<Run, BenchError> {
        let server = &self.servers[path];
        let mut more = vec!["--connect".to_owned(), server.address.clone()];
        more.extend(match length {
            Length::Requests(requests) => ["--requests".to_owned(), requests.to_string()],
            Length::Seconds(seconds) => ["--seconds".to_owned(), seconds.to_string()],
        });
        let mut client = self.spawn("client", path, &more)?;
        // Connected and warm: what follows until RESULT is all measured, at both ends.
        let ready = client.expect("READY", self.stage.timeout)?;
        let pid = ready.parse().map_err(|_| client.error(format!("wrote an invalid process id: '{ready}'")))?;
        let server_before = cpu::of_process(server.pid);
        client.send_line("GO")?;
        let result = client.expect("RESULT", self.stage.timeout)?;
        let server_cpu_s = cpu::of_process(server.pid) - server_before;
        let outcome: Outcome = serde_json::from_str(&result)
            .map_err(|error| client.error(format!("wrote an invalid result: {error}: '{result}'")))?;
        // The client keeps its connections open until the parent ends it, so no counter is lost yet.
        let sample = path.is_backend().then(|| Sample::of(pid).or_else(|| Sample::of(server.pid))).flatten();
        client.send_line("BYE")?;
        client.finish(self.stage.timeout)?;
        let requests_per_s = outcome.requests as f64 / outcome.seconds;
        Ok(Run {
            round: 0,
            requests: outcome.requests,
            seconds: outcome.seconds,
            requests_per_s: tidy(requests_per_s),
            bytes_per_s: (self.kind == Kind::Bulk).then_some(requests_per_s * self.load.size as f64),
            latency_us: outcome.latency_us,
            server_cpu_s: tidy(server_cpu_s),
            client_cpu_s: tidy(outcome.cpu_s),
            bytes_link: sample.as_ref().map(|sample| sample.bytes().link),
            bytes_tcp: sample.as_ref().map(|sample| sample.bytes().tcp),
            bytes_expected: path.is_backend().then(|| self.least_bytes(outcome.requests)),
            reasons: sample.map(|sample| sample.describe_reasons()).unwrap_or_default(),
        })
    }
}
