//! The command line of `netacc bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Load on kernel TCP, a Unix socket and each available backend, interleaved in one run.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Which load.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// The loads.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// An unmodified redis-server under redis-benchmark
    Redis(RedisArgs),
    /// An unmodified memcached under the client of our ping-pong
    Memcached(MemcachedArgs),
    /// Ping-pong between two processes: round-trip latency
    Echo(EchoArgs),
    /// Many connections at a time: rate, share on links, memory for each connection
    Many(ManyArgs),
    /// One-way bulk transfer: bytes per second
    Stream(StreamArgs),
    /// Connections opened and closed per second
    Connect(ConnectArgs),
    /// UDP by the kernel and under the library: packets delivered, and round trips
    Datagrams(DatagramsArgs),
    /// What keeps processors from their work: times between two readings of the clock, as JSON
    Noise(NoiseArgs),
    /// How long a sleeping thread takes until it runs, as JSON
    Wake(WakeArgs),
}

/// What all loads share.
#[derive(Debug, Clone, Args)]
pub struct CommonArgs {
    /// Paths to compare: tcp, unix, udp (echo only), and backends by name (shm, ...) [default: tcp, unix and all
    /// backends that work here]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub paths: Vec<String>,
    /// Interleaved rounds: each path is measured once per round
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub pairs: u32,
    /// Requests per measurement, the same for every path
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "seconds")]
    pub requests: Option<u64>,
    /// Length of one measurement in seconds [default: 2]
    #[arg(long, value_name = "S", value_parser = positive_seconds)]
    pub seconds: Option<f64>,
    /// Write the result as one JSON object ("-" is standard output; the table then goes to standard
    /// error)
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Keep the result with whole histograms as a record, in a new folder (netacc report DIR shows it)
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// Draw the result as an SVG picture
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Keep the directory with the logs of all processes, and print its path
    #[arg(long)]
    pub keep_logs: bool,
    /// Switch the library's spinning off on backend paths (netacc_run -P 0)
    #[arg(long)]
    pub no_spin: bool,
    /// A further argument for netacc_run on backend paths; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub run_arg: Vec<String>,
    /// Let this many threads compute beside the measurements
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
    pub busy: u32,
    /// Give up on a measurement after this many seconds
    #[arg(long, default_value_t = 300.0, value_name = "S", value_parser = positive_seconds)]
    pub timeout: f64,
    /// No progress bar
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `netacc bench redis`.
#[derive(Debug, Clone, Args)]
pub struct RedisArgs {
    /// What all loads share.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Parallel connections
    #[arg(long, short, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub clients: u32,
    /// Bytes in a value (512, 4KiB, ...)
    #[arg(long, short = 'd', default_value = "512", value_parser = parse_size)]
    pub size: u64,
    /// Threads of redis-benchmark; 1 is its plain single-threaded mode
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub threads: u32,
    /// Tests by their redis-benchmark names; each is measured by itself
    #[arg(long, short, value_delimiter = ',', default_value = "set", value_name = "LIST")]
    pub tests: Vec<String>,
    /// Requests in flight per connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub pipeline: u32,
    /// Random keys out of this many, instead of one key (redis-benchmark -r)
    #[arg(long, value_name = "N")]
    pub keyspace: Option<u64>,
    /// The redis-server to use
    #[arg(long, default_value = "redis-server", value_name = "PROGRAM")]
    pub redis_server: PathBuf,
    /// The redis-benchmark to use
    #[arg(long, default_value = "redis-benchmark", value_name = "PROGRAM")]
    pub redis_benchmark: PathBuf,
}

/// A measurement of memcached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MemcachedTest {
    /// Stores the value
    Set,
    /// Reads it
    Get,
}

impl MemcachedTest {
    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            MemcachedTest::Set => "set",
            MemcachedTest::Get => "get",
        }
    }
}

/// Arguments of `netacc bench memcached`.
#[derive(Debug, Clone, Args)]
pub struct MemcachedArgs {
    /// What all loads share.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Parallel connections
    #[arg(long, short, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    /// Bytes in a value (512, 4KiB, ...)
    #[arg(long, short = 'd', default_value = "512", value_parser = parse_size)]
    pub size: u64,
    /// Worker threads of memcached (its -t)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// Tests; each is measured by itself
    #[arg(long, short, value_enum, value_delimiter = ',', default_value = "set", value_name = "LIST")]
    pub tests: Vec<MemcachedTest>,
    /// Requests in flight per connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pipeline: u32,
    /// The memcached to use
    #[arg(long, default_value = "memcached", value_name = "PROGRAM")]
    pub memcached: PathBuf,
}

/// The way in which the two ends of `echo` wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Non-blocking sockets, one thread waiting in epoll_wait
    Epoll,
    /// Non-blocking sockets, one thread waiting in poll
    Poll,
    /// Blocking recv; one thread for each connection
    Blocking,
    /// Non-blocking recv in a loop: both ends stay awake
    Spin,
}

impl Mode {
    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Epoll => "epoll",
            Mode::Poll => "poll",
            Mode::Blocking => "blocking",
            Mode::Spin => "spin",
        }
    }
}

/// Arguments of `netacc bench echo`.
#[derive(Debug, Clone, Args)]
pub struct EchoArgs {
    /// What all loads share.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Bytes in a message (64, 4KiB, ...)
    #[arg(long, short = 'd', default_value = "64", value_parser = parse_size)]
    pub size: u64,
    /// How both ends wait
    #[arg(long, short, value_enum, default_value_t = Mode::Epoll)]
    pub mode: Mode,
    /// Connections, each with one message in flight
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    /// Keep the histogram of round trips in the JSON
    #[arg(long)]
    pub histogram: bool,
    /// After each message the client stops watching its connection, and watches it anew, as redis-benchmark does (mode epoll). Idle
    /// processors whose kernel has to clean up soon sleep less deeply
    #[arg(long)]
    pub rewatch: bool,
    /// Before each measurement, time writes that wake the server's sleeping thread and writes that wake none (mode epoll; in the
    /// JSON)
    #[arg(long)]
    pub wakes: bool,
}

/// Arguments of `netacc bench many`.
#[derive(Debug, Clone, Args)]
pub struct ManyArgs {
    /// What all loads share.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Bytes in a message (64, 4KiB, ...)
    #[arg(long, short = 'd', default_value = "64", value_parser = parse_size)]
    pub size: u64,
    /// Connections of all clients together, each with one message in flight
    #[arg(long, short, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub clients: u32,
    /// Processes of clients, which share the connections; the server is one process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub processes: u32,
}

/// Arguments of `netacc bench stream`.
#[derive(Debug, Clone, Args)]
pub struct StreamArgs {
    /// What all loads share.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Bytes in a write (1MiB, 64KiB, ...)
    #[arg(long, short = 'd', default_value = "1MiB", value_parser = parse_size)]
    pub size: u64,
    /// Connections, each with its own thread at both ends
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub streams: u32,
}

/// Arguments of `netacc bench connect`. `--requests` is the number of connections of a measurement [default: 10000].
#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    /// What all loads share.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Exchange requests and answers of this many bytes on each connection; with 0, only connect and close. Latency is that of
    /// connect without an exchange, and otherwise of the whole connection, from connect to the last answer
    #[arg(long, default_value = "0", value_parser = parse_size, value_name = "BYTES")]
    pub exchange: u64,
    /// Requests on each connection, each after the answer to the one before; only with --exchange [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests_per_connection: Option<u32>,
}

/// Arguments of `netacc bench datagrams`.
#[derive(Debug, Clone, Args)]
pub struct DatagramsArgs {
    /// Bytes in a datagram; each is measured by itself
    #[arg(long, short = 'd', value_delimiter = ',', default_values = ["64", "512", "1472", "60000"], value_name = "LIST", value_parser = parse_size)]
    pub sizes: Vec<u64>,
    /// Sockets that send in turns, in the one-way measurement
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub flows: u32,
    /// Datagrams in a call, in the one-way measurement: with more than 1 by sendmmsg and recvmmsg
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: u32,
    /// Interleaved rounds: the kernel and the library are measured once per round
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub pairs: u32,
    /// Length of one measurement in seconds; a round has two on each path
    #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = positive_seconds)]
    pub seconds: f64,
    /// Write the result as one JSON object ("-" is standard output; the table then goes to standard
    /// error)
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// A further argument for netacc_run; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub run_arg: Vec<String>,
    /// Let this many threads compute beside the measurements
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=256))]
    pub busy: u32,
    /// Keep the directory with the logs of all processes, and print its path
    #[arg(long)]
    pub keep_logs: bool,
    /// No progress bar
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `netacc bench noise`.
#[derive(Debug, Clone, Args)]
pub struct NoiseArgs {
    /// Length of the measurement in seconds, on all processors at once
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = positive_seconds)]
    pub seconds: f64,
    /// The work of the thread on each processor between two readings
    #[arg(long, value_enum, default_value_t = Work::Clock)]
    pub work: Work,
    /// The least time beyond the usual one that makes a detour [default: 1000 for clock, 4000 for tcp]
    #[arg(long, value_name = "NS")]
    pub threshold_ns: Option<u64>,
    /// Where to write the JSON object ("-" is standard output)
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub json: PathBuf,
    /// Keep the result as a record, in a new folder (netacc report DIR shows it)
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// No progress bar
    #[arg(long, short)]
    pub quiet: bool,
}

/// The work of a thread whose processor is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Nothing
    Clock,
    /// Sends itself 512 bytes over the loopback by kernel TCP, and watches the connection anew: what the kernel does for that later,
    /// in threads of its own, is noise, too
    Tcp,
}

/// Arguments of `netacc bench wake`.
#[derive(Debug, Clone, Args)]
pub struct WakeArgs {
    /// Length of the measurement in seconds
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = positive_seconds)]
    pub seconds: f64,
    /// Where to write the JSON object ("-" is standard output)
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub json: PathBuf,
    /// Keep the result as a record, in a new folder (netacc report DIR shows it)
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
}

/// The largest message or write, so that a typing error does not use up the machine's memory.
const MAX_SIZE: u64 = 1 << 30;

/// Reads "512", "4k", "64KiB", "1MiB", "1GiB": powers of 1024, and at most 1 GiB.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| format!("'{text}' is not a size"))?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        unit => return Err(format!("unknown unit '{unit}'; allowed: KiB, MiB, GiB")),
    };
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes <= MAX_SIZE => Ok(bytes),
        _ => Err("more than 1 GiB".into()),
    }
}

fn positive_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("not a number of seconds between 0 and 86400".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert_eq!(parse_size("1 GiB"), Ok(1 << 30));
        assert!(parse_size("2GiB").is_err());
        assert!(parse_size("18446744073709551615g").is_err());
        assert!(parse_size("x").is_err());
        assert!(parse_size("1parsec").is_err());
    }

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(positive_seconds("0.5"), Ok(0.5));
        for bad in ["0", "-1", "nan", "inf", "x"] {
            assert!(positive_seconds(bad).is_err(), "{bad}");
        }
    }
}
