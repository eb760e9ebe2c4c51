//! `netacc bench redis`: an unmodified redis-server for each path, under redis-benchmark.
//!
//! All servers have the same settings and no persistence, so that no fork for a snapshot falls into
//! one side's tail. Each test is one redis-benchmark process, so that its CPU time is the test's.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use netacc_config::EXIT_STATS_VARIABLE;
use serde_json::json;

use super::args::RedisArgs;
use super::cpu;
use super::error::BenchError;
use super::link::Sample;
use super::paths::{in_path, Path};
use super::process::{free_port, Proc, Stream};
use super::redis_output::{self, RedisTest};
use super::result::{Kind, Run, Waits};
use super::rounds::{self, Length, Load, Stage};
use super::stats::tidy;

/// Requests of the first, unmeasured run on a path, which also shows how fast the path is.
const WARM_UP_REQUESTS: u64 = 20_000;

/// How often another port is tried when the chosen one is taken in the moment between choosing and
/// binding.
const PORT_ATTEMPTS: u32 = 3;

/// Runs `netacc bench redis`.
pub(crate) fn run(args: &RedisArgs) -> Result<(), BenchError> {
    let programs =
        [(&args.redis_server, "apt-get install redis-server"), (&args.redis_benchmark, "apt-get install redis-tools")];
    for (program, hint) in programs {
        if in_path(program).is_none() {
            return Err(BenchError::MissingProgram { program: program.display().to_string(), hint: hint.into() });
        }
    }
    if args.tests.iter().any(|test| test.trim().is_empty()) {
        return Err(BenchError::Usage("--tests: an empty name".into()));
    }
    let stage = Stage::new(&args.common)?;
    if stage.launcher.paths.contains(&Path::Udp) {
        return Err(BenchError::Usage("--paths: Redis does not listen for datagrams (udp)".into()));
    }
    let params = json!({
        "clients": args.clients,
        "size": args.size,
        "threads": args.threads,
        "tests": args.tests,
        "pipeline": args.pipeline,
        "keyspace": args.keyspace,
        "pairs": args.common.pairs,
        "length": stage.length.describe(),
        "spin": !args.common.no_spin,
        "run_args": args.common.run_arg,
        "paths": stage.launcher.paths.iter().map(Path::name).collect::<Vec<_>>(),
        "persistence": "off on all paths",
        "redis_server": version(&args.redis_server),
    });
    let mut load = RedisLoad { args, stage: &stage, servers: HashMap::new(), rates: HashMap::new() };
    rounds::run(&mut load, &stage.launcher, &args.common, params)
}

struct RedisLoad<'a> {
    args: &'a RedisArgs,
    stage: &'a Stage,
    servers: HashMap<Path, Server>,
    /// Requests per second of the warm-up, by test and path.
    rates: HashMap<(String, Path), f64>,
}

struct Server {
    _proc: Proc,
    /// As Redis itself reports, whatever was between this process and it.
    pid: u32,
    /// The options by which redis-benchmark reaches it.
    target: Vec<String>,
}

impl Load for RedisLoad<'_> {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn tests(&self) -> Vec<String> {
        self.args.tests.iter().map(|test| test.trim().to_ascii_lowercase()).collect()
    }

    fn kind(&self) -> Kind {
        Kind::Requests
    }

    fn needs_link(&self) -> bool {
        true
    }

    fn start(&mut self, path: &Path) -> Result<(), BenchError> {
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            match self.start_server(path) {
                Ok(server) => {
                    self.servers.insert(path.clone(), server);
                    return Ok(());
                }
                Err(error) if error.to_string().contains("Address already in use") => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.expect("at least one attempt was made"))
    }

    fn warm_up(&mut self, test: &str, path: &Path) -> Result<(), BenchError> {
        let requests = match self.stage.length {
            Length::Requests(requests) => requests.min(WARM_UP_REQUESTS),
            Length::Seconds(_) => WARM_UP_REQUESTS,
        };
        if test != "set" {
            // Reading missing keys would measure answers of five bytes. With three requests for each random key, one
            // key in twenty is missing.
            self.benchmark("set", path, requests.max(self.args.keyspace.unwrap_or(0).saturating_mul(3)))?.finish()?;
        }
        let result = self.benchmark(test, path, requests)?.finish()?;
        self.rates.insert((test.to_owned(), path.clone()), result.requests_per_s);
        Ok(())
    }

    fn measure(&mut self, test: &str, path: &Path) -> Result<Run, BenchError> {
        let rate = self.rates[&(test.to_owned(), path.clone())];
        let requests = match self.stage.length {
            Length::Requests(requests) => requests,
            Length::Seconds(seconds) => ((rate * seconds) as u64).max(u64::from(self.args.clients) * 10),
        };
        let pid = self.servers[path].pid;
        let before = path.is_backend().then(|| Sample::of(pid)).flatten();
        let server_before = cpu::of_process(pid);
        let clients_before = cpu::of_children();
        let sleeps_before = [cpu::sleeps_of_process(pid), cpu::sleeps_of_children()];
        let benchmark = self.benchmark(test, path, requests)?;
        let statistics = benchmark.statistics.clone();
        let result = benchmark.finish()?;
        let server_cpu_s = cpu::of_process(pid) - server_before;
        let client_cpu_s = cpu::of_children() - clients_before;
        let sleeps = [cpu::sleeps_of_process(pid), cpu::sleeps_of_children()];
        let each = |count: u64| tidy(count as f64 / result.requests.max(1) as f64);
        let [server_sleeps, client_sleeps] = [0, 1].map(|end| each(sleeps[end].saturating_sub(sleeps_before[end])));
        let after = before.as_ref().and_then(|_| Sample::of(pid));
        let served = before.as_ref().zip(after.as_ref());
        let client = path.is_backend().then(|| Sample::at_exit(&statistics)).flatten();
        let waits = Waits {
            client_asks: client.as_ref().map(|client| each(client.epoll_waits())),
            client_sleeps,
            client_spun_ns: client.as_ref().map(|client| each(client.spun_ns())),
            server_asks: served.map(|(before, after)| each(after.epoll_waits_since(before))),
            server_sleeps,
            server_spun_ns: served.map(|(before, after)| each(after.spun_ns_since(before))),
            interest_change_ns: None,
        };
        let bytes = before.zip(after.as_ref()).map(|(before, after)| after.bytes_since(&before));
        Ok(Run {
            round: 0,
            requests: result.requests,
            seconds: tidy(result.requests as f64 / result.requests_per_s),
            requests_per_s: result.requests_per_s,
            bytes_per_s: None,
            latency_us: result.latency_us,
            server_cpu_s: tidy(server_cpu_s),
            client_cpu_s: tidy(client_cpu_s),
            bytes_link: bytes.map(|bytes| bytes.link),
            bytes_tcp: bytes.map(|bytes| bytes.tcp),
            bytes_expected: path.is_backend().then(|| self.least_bytes(test, requests)),
            other_processors: None,
            transfer_ns: None,
            crowd: None,
            waits: Some(waits),
            wakes: None,
            histogram_ns: if self.args.common.record.is_some() { result.histogram_ns } else { Vec::new() },
            reasons: after.map(|sample| sample.describe_reasons()).unwrap_or_default(),
        })
    }
}

impl RedisLoad<'_> {
    /// The least number of bytes that the requests carry.
    fn least_bytes(&self, test: &str, requests: u64) -> u64 {
        match test {
            "set" => requests * self.args.size,
            // Random keys may be missing.
            "get" if self.args.keyspace.is_none() => requests * self.args.size,
            _ => 0,
        }
    }

    fn start_server(&self, path: &Path) -> Result<Server, BenchError> {
        let name = format!("redis-server {}", path.name());
        let dir = self.stage.workdir.path();
        let socket = dir.join("redis.sock");
        let port = if *path == Path::Unix { 0 } else { free_port()? };
        let mut command = self.stage.launcher.command(path, &self.args.redis_server);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.arg("--dir").arg(dir).arg("--logfile").arg(dir.join(format!("redis-server-{}.log", path.name())));
        let target = if *path == Path::Unix {
            command.arg("--unixsocket").arg(&socket);
            vec!["-s".into(), socket.display().to_string()]
        } else {
            vec!["-h".into(), "127.0.0.1".into(), "-p".into(), port.to_string()]
        };
        let mut proc = Proc::spawn(command, &name, dir)?;
        let pid = proc.process_id(port, &socket, process_id)?;
        Ok(Server { _proc: proc, pid, target })
    }

    fn benchmark(&self, test: &str, path: &Path, requests: u64) -> Result<Benchmark, BenchError> {
        let args = self.args;
        // If it gets more answers than it was to make requests, as with the last pipeline, redis-benchmark may report that all
        // clients disconnected: by its timer, in the moment between the last client's end and its own.
        let requests = requests.next_multiple_of(u64::from(args.pipeline).max(1));
        let mut command = self.stage.launcher.command(path, &args.redis_benchmark);
        command.args(&self.servers[path].target);
        command.args(["-t", test, "--precision", "3"]);
        command.args(["-c", &args.clients.to_string(), "-n", &requests.to_string()]);
        command.args(["-d", &args.size.to_string(), "-P", &args.pipeline.to_string()]);
        if args.threads > 1 {
            command.args(["--threads", &args.threads.to_string()]);
        }
        if let Some(keyspace) = args.keyspace {
            command.args(["-r", &keyspace.to_string()]);
        }
        let dir = self.stage.workdir.path();
        let name = format!("redis-benchmark {}", path.name());
        let record = dir.join(format!("redis-benchmark-{}.out", path.name()));
        let statistics = dir.join(format!("redis-benchmark-{}.stats", path.name()));
        command.env(EXIT_STATS_VARIABLE, &statistics);
        let proc = Proc::spawn(command, &name, dir)?;
        Ok(Benchmark { proc, test: test.to_owned(), timeout: self.stage.timeout, record, statistics })
    }
}

/// A redis-benchmark that runs one test.
struct Benchmark {
    proc: Proc,
    test: String,
    timeout: Duration,
    /// The path of its output, for --keep.
    record: PathBuf,
    /// The path of the library's statistics at its end, under the library.
    statistics: PathBuf,
}

impl Benchmark {
    fn finish(self) -> Result<RedisTest, BenchError> {
        let lines = self.proc.finish(self.timeout)?;
        let record = OpenOptions::new().append(true).create(true).open(&self.record);
        let written = record.and_then(|mut file: File| writeln!(file, "{}", lines.join("\n")));
        written.map_err(BenchError::io(format!("writing {}", self.record.display())))?;
        let mut tests = redis_output::parse(lines.iter().map(String::as_str))?;
        match tests.len() {
            1 => Ok(tests.remove(0)),
            0 => Err(BenchError::Usage(format!("redis-benchmark has no test '{}'", self.test))),
            _ => {
                let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
                let (test, names) = (&self.test, names.join(", "));
                Err(BenchError::Usage(format!("'{test}' is several tests of redis-benchmark ({names}): name one")))
            }
        }
    }
}

/// Requests a server's process id, which also shows that it is ready.
fn process_id(stream: &mut dyn Stream) -> std::io::Result<u32> {
    stream.write_all(b"INFO server\r\n")?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer)?;
        answer.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&answer);
        let pid = text.split("\r\n").find_map(|line| line.strip_prefix("process_id:")?.parse().ok());
        // The line is complete once another has begun.
        match pid {
            Some(pid) if text.contains("tcp_port:") => return Ok(pid),
            _ if count == 0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
}

fn version(redis_server: &std::path::Path) -> String {
    let output = std::process::Command::new(redis_server).arg("--version").output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
