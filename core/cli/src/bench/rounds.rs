//! The interleaving: every path once per round, round after round.

use std::time::Duration;

use indexmap::IndexMap;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use serde_json::{json, Value};

use super::args::CommonArgs;
use super::busy::{BusyLoops, Others};
use super::distance;
use super::error::BenchError;
use super::link;
use super::machine::Machine;
use super::paths::{Launcher, Path};
use super::process::{clean_up_on_interrupt, remove_on_interrupt, Workdir};
use super::quiet::{busy_with, is_busy, warn};
use super::recording;
use super::report;
use super::result::{summarise, Kind, Paths, Report, Run};
use super::stats::tidy;
use crate::record::{Draft, During};

/// The length of a measurement if neither `--requests` nor `--seconds` is given.
const DEFAULT_SECONDS: f64 = 2.0;

/// The environment of a load: where to start processes, and how long to wait for them.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) launcher: Launcher,
    pub(crate) workdir: Workdir,
    /// For one measurement.
    pub(crate) timeout: Duration,
    pub(crate) length: Length,
}

/// How long a measurement is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Length {
    /// The same number of requests on every path.
    Requests(u64),
    /// About this long on every path.
    Seconds(f64),
}

impl Length {
    /// For the result's parameters.
    pub(crate) fn describe(self) -> Value {
        match self {
            Length::Requests(requests) => json!({"requests": requests}),
            Length::Seconds(seconds) => json!({"seconds": seconds}),
        }
    }
}

impl Stage {
    pub(crate) fn new(args: &CommonArgs) -> Result<Self, BenchError> {
        report::check_outputs(args)?;
        clean_up_on_interrupt();
        raise_open_files();
        let launcher = Launcher::new(args)?;
        let length = match args.requests {
            Some(requests) => Length::Requests(requests),
            None => Length::Seconds(args.seconds.unwrap_or(DEFAULT_SECONDS)),
        };
        let timeout = Duration::from_secs_f64(args.timeout);
        Ok(Stage { launcher, workdir: Workdir::new(args.keep_logs)?, timeout, length })
    }
}

/// A load that can be put on any path.
pub(crate) trait Load {
    /// The load's name in results.
    fn name(&self) -> &'static str;
    /// The measurements, in their order.
    fn tests(&self) -> Vec<String>;
    /// Its figures.
    fn kind(&self) -> Kind;
    /// Whether most bytes must go over the link for a backend's figures to count.
    fn needs_link(&self) -> bool;
    /// Starts the server for a path. Called once per path, before anything else.
    fn start(&mut self, path: &Path) -> Result<(), BenchError>;
    /// Runs the load briefly, without measuring. Called once per path and test.
    fn warm_up(&mut self, test: &str, path: &Path) -> Result<(), BenchError>;
    /// One measurement. The round is filled in by the caller.
    fn measure(&mut self, test: &str, path: &Path) -> Result<Run, BenchError>;
}

/// Measures a load on all paths, and writes the result according to the arguments.
pub(crate) fn run(
    load: &mut dyn Load,
    paths: &Launcher,
    args: &CommonArgs,
    mut params: Value,
) -> Result<(), BenchError> {
    let draft = args.record.as_deref().map(Draft::begin).transpose()?;
    draft.iter().for_each(|draft| remove_on_interrupt(draft.folder()));
    let machine = Machine::here();
    let mut warnings = Vec::new();
    if let Some(busy) = machine.busy_processors.filter(|busy| is_busy(*busy)) {
        warnings.push(format!("{} before", busy_with(busy, machine.cores)));
    }
    warnings.iter().for_each(|warning| warn(&format!("netacc bench: {warning}")));
    if args.busy > 0 {
        params["busy"] = json!(args.busy);
    }
    let _loops = BusyLoops::start(args.busy);
    for (path, reason) in &paths.skipped {
        eprintln!("netacc bench: skipping {path}: {reason}");
    }
    let tests = load.tests();
    let steps = paths.paths.len() * (1 + tests.len() * (1 + args.pairs as usize));
    let progress = progress_bar(steps, args.quiet);
    for path in &paths.paths {
        progress.set_message(format!("starting the server for {}", path.name()));
        load.start(path)?;
        progress.inc(1);
    }
    let mut results: IndexMap<String, Paths> = IndexMap::new();
    for test in &tests {
        let runs = measure_test(load, test, paths, args.pairs, &progress)?;
        let summary = summarise(runs, load.kind());
        if load.needs_link() {
            warnings.extend(doubts(test, &summary, &paths.paths));
        }
        results.insert(test.clone(), summary);
    }
    progress.finish_and_clear();
    let others = during(results.values());
    if let Some(During { busy_processors, .. }) = others.filter(|others| is_busy(others.busy_processors)) {
        warnings.push(format!("{} meanwhile", busy_with(busy_processors, machine.cores)));
    }
    let runs = results.values().flat_map(Paths::values).flat_map(|path| &path.runs);
    warnings.extend(distance::moved(runs.filter_map(|run| run.transfer_ns)));
    let (test, first) = results.first().map(|(test, paths)| (test.clone(), paths.clone())).unwrap_or_default();
    let report = Report {
        bench: load.name().to_owned(),
        test,
        params,
        machine,
        paths: first,
        tests: if results.len() > 1 { results } else { IndexMap::new() },
        skipped: paths.skipped.clone(),
        warnings,
    };
    if let Some(draft) = draft {
        recording::write(draft, &report, others)?;
    }
    report::give_out(&report, args)
}

/// The load by others in all runs; `None` if it is not known of one.
fn during<'a>(results: impl Iterator<Item = &'a Paths>) -> Option<During> {
    let runs = results.flat_map(|paths| paths.values()).flat_map(|path| &path.runs);
    let each = runs.map(|run| run.other_processors).collect::<Option<Vec<f64>>>().filter(|each| !each.is_empty())?;
    Some(During {
        busy_processors: tidy(each.iter().sum::<f64>() / each.len() as f64),
        most_busy_processors: each.iter().copied().fold(0.0, f64::max),
    })
}

fn measure_test(
    load: &mut dyn Load,
    test: &str,
    paths: &Launcher,
    rounds: u32,
    progress: &ProgressBar,
) -> Result<IndexMap<String, Vec<Run>>, BenchError> {
    let mut runs: IndexMap<String, Vec<Run>> = IndexMap::new();
    for path in &paths.paths {
        progress.set_message(format!("{test}: warming up {}", path.name()));
        load.warm_up(test, path)?;
        progress.inc(1);
    }
    for round in 1..=rounds {
        for path in &paths.paths {
            progress.set_message(format!("{test}: round {round} of {rounds}, {}", path.name()));
            let others = Others::watch();
            let run = load.measure(test, path)?;
            let other_processors = others.busy_processors().map(tidy);
            let transfer_ns = distance::first_transfer_ns();
            runs.entry(path.name().to_owned()).or_default().push(Run { round, other_processors, transfer_ns, ..run });
            progress.inc(1);
        }
    }
    Ok(runs)
}

/// Backend paths whose bytes did not go over the link, or without proof.
fn doubts(test: &str, results: &Paths, paths: &[Path]) -> Vec<String> {
    let mut doubts = Vec::new();
    for path in paths.iter().filter(|path| path.is_backend()) {
        let name = path.name();
        let result = &results[name];
        let mut reasons: Vec<&str> = result.runs.iter().flat_map(|run| &run.reasons).map(String::as_str).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        match result.link_share {
            None => doubts.push(format!(
                "{test} on {name}: NO PROOF that bytes went over the link: the processes did not \
                 answer netacc_ss"
            )),
            Some(share) if share < link::ENOUGH => doubts.push(format!(
                "{test} on {name}: only {:.1} % of the bytes went over the link{reasons}: these \
                 are not the figures of {name}",
                share * 100.0
            )),
            Some(_) => {}
        }
    }
    doubts
}

/// Thousands of clients need as many descriptors, at both ends; children inherit the limit.
fn raise_open_files() {
    // If the limit cannot be raised, the child that lacks descriptors reports its own error.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Progress of a long operation, on standard error if that is a terminal.
pub(crate) fn progress_bar(steps: usize, quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(4) };
    let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  (about {eta} left)");
    bar.with_style(style.expect("the template is a constant"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::result::tests::run;

    fn result_with(bytes: Option<(u64, u64)>) -> Paths {
        let mut run = run(1, 1.0);
        run.bytes_link = bytes.map(|bytes| bytes.0);
        run.bytes_tcp = bytes.map(|bytes| bytes.1);
        run.reasons = vec!["3 sockets: peer-silent".into()];
        summarise(IndexMap::from([("shm".into(), vec![run])]), Kind::Requests)
    }

    #[test]
    fn a_backend_must_prove_its_link() {
        let paths = [Path::Tcp, Path::Backend("shm".into())];
        assert!(doubts("set", &result_with(Some((95, 5))), &paths).is_empty());
        let low = doubts("set", &result_with(Some((50, 50))), &paths);
        assert!(low[0].contains("50.0 %") && low[0].contains("peer-silent"), "{low:?}");
        assert!(doubts("set", &result_with(None), &paths)[0].contains("NO PROOF"));
    }
}
