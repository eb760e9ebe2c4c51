//! `netacc bench datagrams`: UDP by the kernel alone and under the library, in turns: packets delivered in one direction, with
//! what was lost, and round trips with their deviation. These are UDPDK's two measurements.

use std::time::Duration;

use comfy_table::{presets, Table};
use indicatif::ProgressBar;
use serde::Serialize;

use super::args::DatagramsArgs;
use super::busy::{BusyLoops, Others};
use super::error::BenchError;
use super::link::Sample;
use super::machine::Machine;
use super::paths::{this_program, Launcher, Path};
use super::peer::datagrams::{Packets, RoundTrips};
use super::process::{clean_up_on_interrupt, Proc, Workdir};
use super::quiet::{busy_with, is_busy, warn};
use super::report;
use super::rounds::progress_bar;
use super::stats::{median, ratio, tidy, Ratio};

/// For a peer to start, and to answer beyond the length of the measurement.
const PATIENCE: Duration = Duration::from_secs(20);
/// The greatest datagram of UDP over IPv4.
const MAX_SIZE: u64 = 65_507;
/// Shorter messages could be taken for the end.
const MIN_SIZE: u64 = 4;

/// One measurement in each direction of a round, on one path.
#[derive(Debug, Clone, Copy, Serialize)]
struct Measured {
    round: u32,
    /// Datagrams that arrived in a second.
    packets_per_s: f64,
    gbit_per_s: f64,
    /// The share of the datagrams that did not arrive.
    lost: f64,
    round_trip_us: RoundTrips,
    /// The share of the datagrams of both measurements that took a ring; `None` without the library.
    on_link: Option<f64>,
    /// Processors that others kept busy meanwhile.
    other_processors: Option<f64>,
}

/// All rounds of a path, and its medians' ratios to the kernel's.
#[derive(Debug, Serialize)]
struct PathRounds {
    packets_ratio: Option<Ratio>,
    round_trip_ratio: Option<Ratio>,
    deviation_ratio: Option<Ratio>,
    rounds: Vec<Measured>,
}

/// One size.
#[derive(Debug, Serialize)]
struct OfSize {
    size: u64,
    udp: PathRounds,
    library: PathRounds,
}

/// The whole result.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    machine: Machine,
    flows: u32,
    /// Datagrams in a call.
    batch: u32,
    seconds: f64,
    busy: u32,
    sizes: Vec<OfSize>,
    warnings: Vec<String>,
}

/// Runs `netacc bench datagrams`.
pub(crate) fn run(args: &DatagramsArgs) -> Result<(), BenchError> {
    if let Some(size) = args.sizes.iter().find(|size| !(MIN_SIZE..=MAX_SIZE).contains(*size)) {
        return Err(BenchError::Usage(format!("--sizes: {size} is not between {MIN_SIZE} and {MAX_SIZE}")));
    }
    args.json.as_deref().map_or(Ok(()), report::check_directory)?;
    clean_up_on_interrupt();
    let launcher = Launcher::of_datagrams(&args.run_arg)?;
    let stage = Stage { launcher, workdir: Workdir::new(args.keep_logs)?, args };
    let machine = Machine::here();
    let mut warnings = Vec::new();
    if let Some(busy) = machine.busy_processors.filter(|busy| is_busy(*busy)) {
        warnings.push(format!("{} before", busy_with(busy, machine.cores)));
    }
    warnings.iter().for_each(|warning| warn(&format!("netacc bench: {warning}")));
    let loops = BusyLoops::start(args.busy);
    let progress = progress_bar(2 * args.sizes.len() * args.pairs as usize, args.quiet);
    let sizes = args.sizes.iter().map(|size| stage.of_size(*size, &progress)).collect::<Result<Vec<_>, _>>()?;
    drop(loops);
    progress.finish_and_clear();
    let others = sizes.iter().flat_map(|size| [&size.udp, &size.library]).flat_map(|path| &path.rounds);
    let most = others.filter_map(|round| round.other_processors).fold(0.0, f64::max);
    if is_busy(most) {
        warnings.push(format!("{} at most meanwhile", busy_with(most, machine.cores)));
    }
    let DatagramsArgs { flows, batch, seconds, busy, .. } = *args;
    let report = Report { bench: "datagrams", machine, flows, batch, seconds, busy, sizes, warnings };
    let to_stdout = args.json.as_deref().is_some_and(|file| file.as_os_str() == "-");
    match to_stdout {
        true => eprint!("{}", render(&report)),
        false => print!("{}", render(&report)),
    }
    args.json.as_deref().map_or(Ok(()), |file| report::write_object(&report, file))
}

struct Stage<'a> {
    launcher: Launcher,
    workdir: Workdir,
    args: &'a DatagramsArgs,
}

impl Stage<'_> {
    fn of_size(&self, size: u64, progress: &ProgressBar) -> Result<OfSize, BenchError> {
        let paths = [Path::Udp, Path::Backend("shm".into())];
        let mut rounds = [const { Vec::new() }; 2];
        for round in 1..=self.args.pairs {
            for (path, rounds) in paths.iter().zip(&mut rounds) {
                progress.set_message(format!("{size} B, round {round} of {}, {}", self.args.pairs, path.name()));
                rounds.push(self.measure(path, size, round)?);
                progress.inc(1);
            }
        }
        let [udp, library] = rounds;
        let reference = udp.clone();
        Ok(OfSize { size, udp: summarise(udp, &reference), library: summarise(library, &reference) })
    }

    fn measure(&self, path: &Path, size: u64, round: u32) -> Result<Measured, BenchError> {
        let others = Others::watch();
        let (sent, arrived, one_way) = self.one_way(path, size)?;
        let (round_trip_us, there_and_back) = self.round_trips(path, size)?;
        let packets_per_s = arrived.packets as f64 / arrived.seconds.max(1e-9);
        let [link, kernel] = [one_way[0] + there_and_back[0], one_way[1] + there_and_back[1]];
        Ok(Measured {
            round,
            packets_per_s: tidy(packets_per_s),
            gbit_per_s: tidy(packets_per_s * size as f64 * 8e-9),
            lost: tidy(1.0 - arrived.packets as f64 / sent.packets.max(1) as f64),
            round_trip_us,
            on_link: path.is_backend().then(|| tidy(link as f64 / (link + kernel).max(1) as f64)),
            other_processors: others.busy_processors().map(tidy),
        })
    }

    /// What was sent, what has arrived, and how many of these on links and by the kernel.
    fn one_way(&self, path: &Path, size: u64) -> Result<(Packets, Packets, [u64; 2]), BenchError> {
        let batch = self.args.batch.to_string();
        let (mut sink, pid, to) = self.server(path, "sink", &["--size", &size.to_string(), "--batch", &batch])?;
        let more = [("--flows", self.args.flows.to_string()), ("--batch", batch)];
        let mut source = self.client(path, "source", &to, size, &more)?;
        let timeout = PATIENCE + Duration::from_secs_f64(self.args.seconds);
        let sent = result(&mut source, timeout)?;
        let arrived = result(&mut sink, PATIENCE)?;
        let counted = Sample::of(pid).map_or([0; 2], |sample| sample.datagrams());
        sink.send_line("BYE")?;
        source.send_line("BYE")?;
        source.finish(PATIENCE)?;
        sink.finish(PATIENCE)?;
        Ok((sent, arrived, counted))
    }

    fn round_trips(&self, path: &Path, size: u64) -> Result<(RoundTrips, [u64; 2]), BenchError> {
        let (_server, pid, to) = self.server(path, "echo", &[])?;
        let mut client = self.client(path, "ask", &to, size, &[])?;
        let timeout = PATIENCE + Duration::from_secs_f64(self.args.seconds);
        let measured = result(&mut client, timeout)?;
        let counted = Sample::of(pid).map_or([0; 2], |sample| sample.datagrams());
        client.send_line("BYE")?;
        client.finish(PATIENCE)?;
        Ok((measured, counted))
    }

    /// A started server, its number and its address.
    fn server(&self, path: &Path, role: &str, words: &[&str]) -> Result<(Proc, u32, String), BenchError> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let mut proc = self.spawn(path, role, &words)?;
        let ready = proc.expect("READY", PATIENCE)?;
        let invalid = |proc: &Proc| proc.error(format!("wrote an invalid READY line: '{ready}'"));
        let Some((pid, address)) = ready.split_once(' ') else { return Err(invalid(&proc)) };
        let pid = pid.parse().map_err(|_| invalid(&proc))?;
        Ok((proc, pid, address.to_owned()))
    }

    fn client(
        &self,
        path: &Path,
        role: &str,
        to: &str,
        size: u64,
        more: &[(&str, String)],
    ) -> Result<Proc, BenchError> {
        let mut words = vec!["--to".to_owned(), to.to_owned(), "--size".into(), size.to_string()];
        words.extend(["--seconds".to_owned(), self.args.seconds.to_string()]);
        words.extend(more.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]));
        self.spawn(path, role, &words)
    }

    fn spawn(&self, path: &Path, role: &str, words: &[String]) -> Result<Proc, BenchError> {
        let mut command = self.launcher.command(path, this_program());
        command.args(["bench-peer", "datagrams", role]).args(words);
        Proc::spawn(command, &format!("{role} {}", path.name()), self.workdir.path())
    }
}

/// A peer's RESULT line.
fn result<T: serde::de::DeserializeOwned>(proc: &mut Proc, timeout: Duration) -> Result<T, BenchError> {
    let line = proc.expect("RESULT", timeout)?;
    serde_json::from_str(&line).map_err(|error| proc.error(format!("wrote an invalid result: {error}: '{line}'")))
}

fn summarise(rounds: Vec<Measured>, reference: &[Measured]) -> PathRounds {
    let of = |value: fn(&Measured) -> f64| {
        let values = |rounds: &[Measured]| rounds.iter().map(value).collect::<Vec<_>>();
        ratio(&values(&rounds), &values(reference))
    };
    PathRounds {
        packets_ratio: of(|round| round.packets_per_s),
        round_trip_ratio: of(|round| round.round_trip_us.mean),
        deviation_ratio: of(|round| round.round_trip_us.deviation),
        rounds,
    }
}

fn render(report: &Report) -> String {
    let mut table = Table::new();
    let header = ["size", "path", "packets/s", "to UDP (spread)", "lost", "round trip µs", "to UDP (spread)"];
    let header = header.into_iter().chain(["deviation µs", "p50", "p99", "on rings"]);
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    for of_size in &report.sizes {
        for (name, path) in [("kernel UDP", &of_size.udp), ("library", &of_size.library)] {
            table.add_row(row(of_size.size, name, path));
        }
    }
    let Machine { cores, cpu, kernel, date, loadavg: [load, ..], .. } = &report.machine;
    let rounds = report.sizes.first().map_or(0, |size| size.udp.rounds.len());
    let mut text = format!(
        "netacc bench datagrams: flows {}, datagrams in a call {}, busy {}; median of {rounds} interleaved rounds of {} s\n{table}\n",
        report.flows, report.batch, report.busy, report.seconds
    );
    text += &format!("{cores} cores of {cpu}, Linux {kernel}, {date}, load average before: {load}\n");
    report.warnings.iter().for_each(|warning| text += &format!("WARNING: {warning}\n"));
    text
}

fn row(size: u64, name: &str, path: &PathRounds) -> Vec<String> {
    let middle = |value: fn(&Measured) -> f64| median(path.rounds.iter().map(value)).unwrap_or(f64::NAN);
    let spread = |ratio: &Option<Ratio>| match ratio {
        Some(Ratio { median, min, max }) if name == "library" => format!("{median:.2} ({min:.2} to {max:.2})"),
        _ => String::new(),
    };
    let on_link = median(path.rounds.iter().filter_map(|round| round.on_link));
    vec![
        format!("{size} B"),
        name.to_owned(),
        format!("{:.0}", middle(|round| round.packets_per_s)),
        spread(&path.packets_ratio),
        format!("{:.1} %", 100.0 * middle(|round| round.lost)),
        format!("{:.2}", middle(|round| round.round_trip_us.mean)),
        spread(&path.round_trip_ratio),
        format!("{:.2}", middle(|round| round.round_trip_us.deviation)),
        format!("{:.2}", middle(|round| round.round_trip_us.p50)),
        format!("{:.2}", middle(|round| round.round_trip_us.p99)),
        on_link.map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share)),
    ]
}
