//! `netacc bench echo|many|stream|connect`: our own two peers on each path; `memcached`: our client, and memcached.
//!
//! The server is started once per path, the client once per measurement. They exchange lines with this process on
//! standard input and output (see [`super::peer`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::args::{CommonArgs, ConnectArgs, EchoArgs, ManyArgs, MemcachedArgs, Mode, StreamArgs};
use super::cpu;
use super::error::BenchError;
use super::link::{LinkBytes, Sample};
use super::memcached::Memcached;
use super::memory;
use super::paths::{this_program, Path};
use super::peer::{LoadName, Outcome};
use super::process::Proc;
use super::result::{Crowd, Kind, Run, Waits};
use super::rounds::{self, Length, Load, Stage};
use super::stats::tidy;

/// How long a peer may take until it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Connections that `connect` measures by default: few enough for the kernel's ephemeral ports (28232), because a
/// closed connection may keep its port for a minute.
const DEFAULT_CONNECTIONS: u64 = 10_000;

/// When connections that have been used are to be on links.
const SETTLING: Duration = Duration::from_secs(2);

/// Runs `netacc bench echo`.
pub(crate) fn run_echo(args: &EchoArgs) -> Result<(), BenchError> {
    at_least_one_byte(args.size)?;
    let EchoArgs { size, mode, clients, wakes, rewatch, .. } = *args;
    if (wakes || rewatch) && mode != Mode::Epoll {
        return Err(BenchError::Usage("--wakes and --rewatch: only with --mode epoll".into()));
    }
    if wakes && args.common.paths.iter().any(|path| path == "udp") {
        return Err(BenchError::Usage("--wakes: not on udp".into()));
    }
    let histogram = args.histogram || args.common.record.is_some();
    let load = LoadArgs {
        load: LoadName::Echo,
        size,
        mode,
        clients,
        processes: 1,
        pipeline: 1,
        histogram,
        wakes,
        rewatch,
        requests_per_connection: 0,
    };
    let params = json!({"size": size, "mode": mode.name(), "clients": clients, "rewatch": rewatch});
    run(&args.common, "echo", load, Kind::PingPong, params, ServerProgram::Peer)
}

/// Runs `netacc bench many`.
pub(crate) fn run_many(args: &ManyArgs) -> Result<(), BenchError> {
    at_least_one_byte(args.size)?;
    if args.clients < args.processes {
        return Err(BenchError::Usage("--processes: at most as many as --clients".into()));
    }
    let ManyArgs { size, clients, processes, .. } = *args;
    let histogram = args.common.record.is_some();
    let load = LoadArgs {
        load: LoadName::Echo,
        size,
        mode: Mode::Epoll,
        clients,
        processes,
        pipeline: 1,
        histogram,
        wakes: false,
        rewatch: false,
        requests_per_connection: 0,
    };
    let params = json!({"size": size, "clients": clients, "processes": processes});
    run(&args.common, MANY, load, Kind::PingPong, params, ServerProgram::Peer)
}

/// Runs `netacc bench stream`.
pub(crate) fn run_stream(args: &StreamArgs) -> Result<(), BenchError> {
    at_least_one_byte(args.size)?;
    let load = LoadArgs {
        load: LoadName::Stream,
        size: args.size,
        mode: Mode::Blocking,
        clients: args.streams,
        processes: 1,
        pipeline: 1,
        histogram: args.common.record.is_some(),
        wakes: false,
        rewatch: false,
        requests_per_connection: 0,
    };
    let params = json!({"size": args.size, "streams": args.streams});
    run(&args.common, "stream", load, Kind::Bulk, params, ServerProgram::Peer)
}

/// Runs `netacc bench connect`.
pub(crate) fn run_connect(args: &ConnectArgs) -> Result<(), BenchError> {
    let requests = match (args.exchange, args.requests_per_connection) {
        (0, None) => 0,
        (0, Some(_)) => return Err(BenchError::Usage("--requests-per-connection: only with --exchange".into())),
        (_, requests) => requests.unwrap_or(1),
    };
    let load = LoadArgs {
        load: LoadName::Connect,
        size: args.exchange,
        mode: Mode::Blocking,
        clients: 1,
        processes: 1,
        pipeline: 1,
        histogram: args.common.record.is_some(),
        wakes: false,
        rewatch: false,
        requests_per_connection: requests,
    };
    let mut common = args.common.clone();
    if common.seconds.is_none() {
        common.requests.get_or_insert(DEFAULT_CONNECTIONS);
    }
    let measured = match requests {
        0 => "connect",
        1 => "connect to answer",
        _ => "connect to last answer",
    };
    let params = json!({"exchange": args.exchange, "requests_per_connection": requests, "latency": measured});
    run(&common, "connect", load, Kind::Requests, params, ServerProgram::Peer)
}

/// Runs `netacc bench memcached`.
pub(crate) fn run_memcached(args: &MemcachedArgs) -> Result<(), BenchError> {
    let MemcachedArgs { size, clients, workers, pipeline, .. } = *args;
    let server = Memcached { program: args.memcached.clone(), workers, clients };
    server.check()?;
    let load = LoadArgs {
        load: LoadName::Memcached,
        size,
        mode: Mode::Epoll,
        clients,
        processes: 1,
        pipeline,
        histogram: args.common.record.is_some(),
        wakes: false,
        rewatch: false,
        requests_per_connection: 0,
    };
    let tests: Vec<&'static str> = args.tests.iter().map(|test| test.name()).collect();
    let params = json!({
        "size": size, "clients": clients, "workers": workers, "pipeline": pipeline, "tests": tests,
        "memcached": server.version(),
    });
    run(&args.common, "memcached", load, Kind::Requests, params, ServerProgram::Memcached { server, tests })
}

fn at_least_one_byte(size: u64) -> Result<(), BenchError> {
    match size {
        0 => Err(BenchError::Usage("--size: at least 1 byte".into())),
        _ => Ok(()),
    }
}

fn run(
    common: &CommonArgs,
    name: &'static str,
    load: LoadArgs,
    kind: Kind,
    mut params: Value,
    program: ServerProgram,
) -> Result<(), BenchError> {
    let stage = Stage::new(common)?;
    if stage.launcher.paths.contains(&Path::Udp) {
        check_datagrams(name, load)?;
    }
    params["pairs"] = json!(common.pairs);
    params["length"] = stage.length.describe();
    params["spin"] = json!(!common.no_spin);
    params["run_args"] = json!(common.run_arg);
    params["paths"] = stage.launcher.paths.iter().map(Path::name).collect();
    let mut load = OwnLoad { name, load, kind, program, stage: &stage, servers: HashMap::new() };
    rounds::run(&mut load, &stage.launcher, common, params)
}

/// The greatest datagram of UDP over IPv4.
const MAX_DATAGRAM: u64 = 65_507;

/// Refuses a load that datagrams cannot carry.
fn check_datagrams(name: &str, load: LoadArgs) -> Result<(), BenchError> {
    let problem = match load.mode {
        _ if name != "echo" => format!("--paths: udp carries no {name}, only echo"),
        Mode::Blocking | Mode::Spin => format!("--mode: udp needs epoll or poll, not {}", load.mode.name()),
        _ if load.size > MAX_DATAGRAM => format!("--size: a datagram has at most {MAX_DATAGRAM} bytes"),
        _ => return Ok(()),
    };
    Err(BenchError::Usage(problem))
}

/// The arguments of both peers.
#[derive(Debug, Clone, Copy)]
struct LoadArgs {
    load: LoadName,
    size: u64,
    mode: Mode,
    /// Of all processes together.
    clients: u32,
    /// Processes of clients.
    processes: u32,
    /// Requests in a message.
    pipeline: u32,
    /// Whether the result has the histogram.
    histogram: bool,
    /// Whether it has the parts of wake-ups.
    wakes: bool,
    /// Whether clients watch a connection anew after each message.
    rewatch: bool,
    /// Of short connections.
    requests_per_connection: u32,
}

/// The program that answers.
#[derive(Debug, Clone)]
enum ServerProgram {
    /// Our own peer.
    Peer,
    Memcached {
        server: Memcached,
        tests: Vec<&'static str>,
    },
}

/// The load that measures more than requests.
const MANY: &str = "many";

struct OwnLoad<'a> {
    name: &'static str,
    load: LoadArgs,
    kind: Kind,
    program: ServerProgram,
    stage: &'a Stage,
    servers: HashMap<Path, Server>,
}

struct Server {
    proc: Proc,
    pid: u32,
    /// The address on which it listens, in the client's syntax.
    address: String,
    /// Bytes that it had written before there were connections.
    memory: u64,
}

/// The clients of one measurement, connected and warm.
struct Clients {
    procs: Vec<Proc>,
    pids: Vec<u32>,
}

impl Load for OwnLoad<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn tests(&self) -> Vec<String> {
        match &self.program {
            ServerProgram::Peer => vec![self.name().to_owned()],
            ServerProgram::Memcached { tests, .. } => tests.iter().map(|test| (*test).to_owned()).collect(),
        }
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn needs_link(&self) -> bool {
        // A connection that is closed at once need not reach its link.
        self.load.load != LoadName::Connect
    }

    fn start(&mut self, path: &Path) -> Result<(), BenchError> {
        let (proc, pid, address) = match &self.program {
            ServerProgram::Peer => self.start_peer(path)?,
            ServerProgram::Memcached { server, .. } => server.start(self.stage, path)?,
        };
        let memory = memory::of_process(pid);
        self.servers.insert(path.clone(), Server { proc, pid, address, memory });
        Ok(())
    }

    fn warm_up(&mut self, test: &str, path: &Path) -> Result<(), BenchError> {
        let short = match self.stage.length {
            Length::Requests(requests) => Length::Requests(requests.min(1000)),
            Length::Seconds(seconds) => Length::Seconds(seconds.min(0.2)),
        };
        self.run_clients(test, path, short).map(drop)
    }

    fn measure(&mut self, test: &str, path: &Path) -> Result<Run, BenchError> {
        self.run_clients(test, path, self.stage.length)
    }
}

impl OwnLoad<'_> {
    fn start_peer(&self, path: &Path) -> Result<(Proc, u32, String), BenchError> {
        let socket = self.stage.workdir.path().join("peer.sock");
        let listen = match path {
            Path::Unix => format!("unix:{}", socket.display()),
            Path::Udp => "udp:127.0.0.1:0".to_owned(),
            Path::Tcp | Path::Backend(_) => "tcp:127.0.0.1:0".to_owned(),
        };
        let mut proc = self.spawn("server", path, self.load.clients, &["--listen".into(), listen])?;
        let ready = proc.expect("READY", START_TIMEOUT)?;
        let Some((pid, address)) = ready.split_once(' ') else {
            return Err(proc.error(format!("wrote an invalid READY line: '{ready}'")));
        };
        let pid = pid.parse().map_err(|_| proc.error(format!("wrote an invalid process id: '{pid}'")))?;
        let address = address.to_owned();
        Ok((proc, pid, address))
    }
    /// The bytes of the measured requests; the warm-up carried more.
    fn least_bytes(&self, requests: u64) -> u64 {
        match self.load.load {
            LoadName::Stream | LoadName::Memcached => requests * self.load.size,
            LoadName::Echo => requests * self.load.size * 2,
            LoadName::Connect => requests * u64::from(self.load.requests_per_connection) * self.load.size * 2,
        }
    }

    fn spawn(&self, role: &str, path: &Path, clients: u32, more: &[String]) -> Result<Proc, BenchError> {
        let LoadArgs { load, size, mode, requests_per_connection, .. } = self.load;
        let mut command = self.stage.launcher.command(path, this_program());
        command.args(["bench-peer", role, "--load", load.name(), "--mode", mode.name()]);
        command.args(["--size", &size.to_string(), "--clients", &clients.to_string()]).args(more);
        if load == LoadName::Connect {
            command.args(["--requests-per-connection", &requests_per_connection.to_string()]);
        }
        let name = format!("{} {role} {}", load.name(), path.name());
        Proc::spawn(command, &name, self.stage.workdir.path())
    }

    fn start_clients(&self, test: &str, path: &Path, length: Length) -> Result<Clients, BenchError> {
        let LoadArgs { clients, processes, pipeline, .. } = self.load;
        // The connections and requests of the clients before this one.
        let share = |all: u64, index: u32| all * u64::from(index) / u64::from(processes);
        let mut procs = Vec::new();
        for index in 0..processes {
            let part = |all: u64| share(all, index + 1) - share(all, index);
            let first = share(clients.into(), index).to_string();
            let mut more = vec!["--connect".to_owned(), self.servers[path].address.clone(), "--first".into(), first];
            more.extend(match length {
                Length::Requests(requests) => {
                    ["--requests".to_owned(), part(requests / u64::from(pipeline)).to_string()]
                }
                Length::Seconds(seconds) => ["--seconds".to_owned(), seconds.to_string()],
            });
            if self.load.wakes {
                more.extend(["--wakes".into(), self.servers[path].pid.to_string()]);
            }
            if self.load.rewatch {
                more.push("--rewatch".into());
            }
            if let ServerProgram::Memcached { .. } = self.program {
                more.extend(["--test".to_owned(), test.to_owned(), "--pipeline".to_owned(), pipeline.to_string()]);
            }
            let connections = part(clients.into()).try_into().expect("a part of a u32");
            procs.push(self.spawn("client", path, connections, &more)?);
        }
        let mut pids = Vec::new();
        for client in &mut procs {
            let ready = client.expect("READY", self.stage.timeout)?;
            let pid = ready.parse().map_err(|_| client.error(format!("wrote an invalid process id: '{ready}'")))?;
            pids.push(pid);
        }
        Ok(Clients { procs, pids })
    }

    /// Measures what the connections have after use: links, memory on both sides, and the time that the statistics take.
    fn count_crowd(&self, path: &Path, clients: &Clients) -> Crowd {
        let server = &self.servers[path];
        let mut crowd = Crowd { server_bytes: 0.0, client_bytes: 0.0, linked: None, statistics_ms: None };
        if path.is_backend() {
            std::thread::sleep(SETTLING);
            let begun = Instant::now();
            let sample = Sample::of(server.pid);
            crowd.statistics_ms = sample.is_some().then(|| tidy(begun.elapsed().as_secs_f64() * 1e3));
            crowd.linked = sample.and_then(|sample| sample.linked());
        }
        // Server and clients are the same program, which had as much memory before it had connections.
        let each = |pids: &[u32]| {
            let grown = pids.iter().map(|pid| memory::of_process(*pid).saturating_sub(server.memory)).sum::<u64>();
            tidy(grown as f64 / f64::from(self.load.clients))
        };
        crowd.server_bytes = each(&[server.pid]);
        crowd.client_bytes = each(&clients.pids);
        crowd
    }

    /// The asks of a server for each answer, once its client has gone; `None` of one that does not count them.
    fn server_asks(&mut self, path: &Path) -> Result<Option<f64>, BenchError> {
        let counts = self.load.load == LoadName::Echo && self.load.mode != Mode::Blocking && *path != Path::Udp;
        let Some(server) = self.servers.get_mut(path).filter(|_| counts) else { return Ok(None) };
        let served = server.proc.expect("SERVED", self.stage.timeout)?;
        let numbers: Vec<f64> = served.split(' ').filter_map(|number| number.parse().ok()).collect();
        match numbers[..] {
            [answers, asks] => Ok(Some(tidy(asks / answers.max(1.0)))),
            _ => Err(server.proc.error(format!("wrote an invalid SERVED line: '{served}'"))),
        }
    }

    /// The library's statistics of the server; `None` without the library.
    fn sample_of_server(&self, path: &Path) -> Option<Sample> {
        path.is_backend().then(|| Sample::of(self.servers[path].pid)).flatten()
    }

    fn run_clients(&mut self, test: &str, path: &Path, length: Length) -> Result<Run, BenchError> {
        let server = &self.servers[path];
        let server_pid = server.pid;
        let mut clients = self.start_clients(test, path, length)?;
        let crowd = (self.name == MANY).then(|| self.count_crowd(path, &clients));
        // Connected and warm: what follows until RESULT is all measured, at both ends.
        let server_before = cpu::of_process(server_pid);
        let sleeps_before = cpu::sleeps_of_process(server_pid);
        let before = self.sample_of_server(path);
        clients.procs.iter_mut().try_for_each(|client| client.send_line("GO"))?;
        let mut outcomes: Vec<Outcome> = Vec::new();
        for client in &mut clients.procs {
            let result = client.expect("RESULT", self.stage.timeout)?;
            let outcome = serde_json::from_str(&result);
            outcomes
                .push(outcome.map_err(|error| client.error(format!("wrote an invalid result: {error}: '{result}'")))?);
        }
        let server_cpu_s = cpu::of_process(server_pid) - server_before;
        let server_sleeps = cpu::sleeps_of_process(server_pid).saturating_sub(sleeps_before);
        let served = before.zip(self.sample_of_server(path));
        let outcome = Outcome::merge(outcomes).expect("there is at least one client");
        // The clients keep their connections open until the parent ends them, so no counter is lost yet.
        let samples: Vec<Sample> = match path.is_backend() {
            true => clients.pids.iter().filter_map(|pid| Sample::of(*pid)).collect(),
            false => Vec::new(),
        };
        for mut client in clients.procs {
            client.send_line("BYE")?;
            client.finish(self.stage.timeout)?;
        }
        let server_asks = self.server_asks(path)?;
        // A message has several requests.
        let requests = outcome.requests * u64::from(self.load.pipeline);
        let each = |count: u64| tidy(count as f64 / requests.max(1) as f64);
        let waits = matches!(self.load.load, LoadName::Echo | LoadName::Memcached).then(|| Waits {
            client_asks: Some(each(outcome.waits)),
            client_sleeps: each(outcome.sleeps),
            server_asks: server_asks
                .or_else(|| served.as_ref().map(|(before, now)| each(now.epoll_waits_since(before)))),
            server_sleeps: each(server_sleeps),
            server_spun_ns: served.as_ref().map(|(before, now)| each(now.spun_ns_since(before))),
            client_spun_ns: (!samples.is_empty()).then(|| each(samples.iter().map(Sample::spun_ns).sum())),
            interest_change_ns: (self.load.mode == Mode::Epoll).then(|| tidy(outcome.interest_change_ns)),
        });
        let requests_per_s = requests as f64 / outcome.seconds;
        let bytes = samples.iter().map(Sample::bytes).reduce(LinkBytes::and);
        Ok(Run {
            round: 0,
            requests,
            seconds: outcome.seconds,
            requests_per_s: tidy(requests_per_s),
            bytes_per_s: (self.kind == Kind::Bulk).then_some(requests_per_s * self.load.size as f64),
            latency_us: outcome.latency_us(),
            server_cpu_s: tidy(server_cpu_s),
            client_cpu_s: tidy(outcome.cpu_s),
            bytes_link: bytes.map(|bytes| bytes.link),
            bytes_tcp: bytes.map(|bytes| bytes.tcp),
            bytes_expected: path.is_backend().then(|| self.least_bytes(requests)),
            other_processors: None,
            transfer_ns: None,
            crowd,
            waits,
            histogram_ns: if self.load.histogram { outcome.histogram().to_vec() } else { Vec::new() },
            wakes: outcome.wakes,
            reasons: samples.iter().flat_map(Sample::describe_reasons).collect(),
        })
    }
}
