//! `netacc-harness`: runs seeds, prints progress, and for a failure all that is needed to replay it.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use netacc_harness::{run, run_datagrams, Crowd, DatagramSummary, Failure, Mutant, Options, Preset, Summary};
use parking_lot::Mutex;

/// Runs simulated conversations from seeds.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    /// Seeds to run, as FROM..TO.
    #[arg(long, value_parser = parse_range, default_value = "0..5000")]
    seeds: Range<u64>,
    /// One seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Steps before the faults stop (default: drawn from the seed).
    #[arg(long)]
    steps: Option<u32>,
    /// Device preset: shm, erdma, rxe, silent or nic (default: one of the first three, drawn from the seed).
    #[arg(long, value_parser = |s: &str| Preset::parse(s).ok_or("one of shm, erdma, rxe, silent, nic"))]
    preset: Option<Preset>,
    /// Few processes with many short connections that share links, and that run short of descriptors.
    /// "automatic": these share links as without a setting.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "configured", value_parser = parse_crowd)]
    crowded: Option<Crowd>,
    /// Inject a deliberate fault that must be noticed, as DropData.
    #[arg(long, value_parser = parse_mutant)]
    mutant: Option<Mutant>,
    /// Print every event.
    #[arg(long)]
    trace: bool,
    /// Write the calls on each device to FILE.<process>.jsonl (with --seed).
    #[arg(long, value_name = "FILE", requires = "seed")]
    record: Option<PathBuf>,
    /// Seeds to run at the same time.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    jobs: usize,
    /// Go on after a failure, and list all failing seeds.
    #[arg(long)]
    keep_going: bool,
    /// Run conversations by datagrams.
    #[arg(long, conflicts_with_all = ["mutant", "record", "trace"])]
    datagrams: bool,
}

fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("expected FROM..TO")?;
    let number = |s: &str| s.parse::<u64>().map_err(|e| e.to_string());
    Ok(number(from)?..number(to)?)
}

fn parse_crowd(text: &str) -> Result<Crowd, &'static str> {
    Crowd::parse(text).ok_or("configured or automatic")
}

fn parse_mutant(text: &str) -> Result<Mutant, String> {
    let found = Mutant::ALL.into_iter().find(|m| format!("{m:?}") == text);
    found.ok_or_else(|| format!("one of {:?}", Mutant::ALL))
}

/// The command that replays a failure.
fn replay(failure: &Failure, options: &Options, datagrams: bool) -> String {
    let how = if datagrams { "--datagrams" } else { "--trace" };
    let mut command = format!("netacc-harness --seed {} {how}", failure.seed);
    if let Some(steps) = options.steps {
        command += &format!(" --steps {steps}");
    }
    if let Some(preset) = options.preset {
        command += &format!(" --preset {}", preset.as_str());
    }
    if let Some(crowd) = options.crowded {
        command += &format!(" --crowded={}", crowd.as_str());
    }
    if let Some(mutant) = options.mutant {
        command += &format!(" --mutant {mutant:?}");
    }
    command
}

/// The counts of runs, by what they ran.
#[derive(Default)]
struct Counts {
    streams: Summary,
    datagrams: DatagramSummary,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.streams += other.streams;
        self.datagrams += other.datagrams;
    }
}

fn run_one(seed: u64, options: &Options, datagrams: bool) -> Result<Counts, Box<Failure>> {
    if datagrams {
        return run_datagrams(seed, options).map(|datagrams| Counts { datagrams, ..Counts::default() });
    }
    run(seed, options).map(|streams| Counts { streams, ..Counts::default() })
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seeds = args.seed.map_or(args.seeds, |s| s..s + 1);
    let options = Options {
        steps: args.steps,
        preset: args.preset,
        crowded: args.crowded,
        mutant: args.mutant,
        trace: args.trace && args.seed.is_some(),
        record: args.record,
    };
    // A panic of the code under test is a finding like any other: the failure has its text.
    if args.seed.is_none() {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let bar = ProgressBar::new(seeds.end - seeds.start);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} seeds, {elapsed} elapsed, {eta} left {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let totals = Mutex::new((Counts::default(), Vec::<Box<Failure>>::new()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end || stop.load(Ordering::Relaxed) {
                    return;
                }
                let outcome = run_one(seed, &options, args.datagrams);
                bar.inc(1);
                let mut totals = totals.lock();
                match outcome {
                    Ok(counts) => totals.0.add(counts),
                    Err(failure) => {
                        totals.1.push(failure);
                        stop.store(!args.keep_going, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let (counts, mut failures) = totals.into_inner();
    let ran = (next.load(Ordering::Relaxed).min(seeds.end) - seeds.start) as f64;
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    println!("{ran} seeds in {:.1} s: {:.0} seeds per minute", minutes * 60.0, ran / minutes);
    match args.datagrams {
        true => println!("{:?}", counts.datagrams),
        false => println!("{:?}", counts.streams),
    }
    failures.sort_by_key(|f| f.seed);
    if args.keep_going {
        for f in &failures {
            println!("seed {}: {:?}: {}", f.seed, f.broken.what, f.broken.detail);
        }
    }
    let Some(failure) = failures.first() else { return ExitCode::SUCCESS };
    println!("{failure}\nreplay: {}", replay(failure, &options, args.datagrams));
    ExitCode::FAILURE
}
