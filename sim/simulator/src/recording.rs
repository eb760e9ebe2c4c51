//! The recording of a run, and the watchdog for its progress.
//!
//! The folder of a run: `meta.json` (everything that was configured, and how it went), `samples.csv` (each answered request,
//! written while the run goes on), and for each group `latency-<group>.hdr`, a histogram of nanoseconds in HdrHistogram's V2
//! format, compressed. A group of short connections has `connections.csv` (each one that was closed), `connect-<group>.hdr` (until
//! it could be used) and `whole-<group>.hdr` (until its last answer) besides. Histograms count requests that were made within
//! the measured span. `messages.csv` has the stages of each message, if they are wanted.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use hdrhistogram::serialization::{Serializer, V2DeflateSerializeError, V2DeflateSerializer};
use hdrhistogram::Histogram;
use netacc_device::Instant;
use netacc_rpc::{Run, Sample, ShortConnection, TracedMessage};
use netacc_trace::stage::Stage;

use crate::meta::{
    GroupMeta, Latency, LinkCounts, Meta, NetworkCounts, NicCounts, ProcessorCounts, ShortMeta, Verdict,
};
use crate::scenario::{self, Scenario};

/// Why a recording could not be finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FinishError {
    /// A file could not be written.
    #[error("cannot write {path}: {error}", path = .0.display(), error = .1)]
    Io(PathBuf, io::Error),
    /// A histogram could not be written.
    #[error("cannot write {path}: {error}", path = .0.display(), error = .1)]
    Histogram(PathBuf, V2DeflateSerializeError),
}

/// Short connections of a group.
struct Short {
    /// From when it was begun until its client could write.
    connect: Histogram<u64>,
    /// From when it was begun until its last answer was there.
    whole: Histogram<u64>,
    /// Those that were begun and closed within the measured span.
    made: u64,
    promoted: u64,
    failed: u64,
}

/// The measurements of a group.
struct Group {
    latency: Histogram<u64>,
    short: Option<Short>,
    /// Answers that came within the measured span.
    answered: u64,
    /// Bytes of those requests and responses.
    bytes: u64,
}

/// Names of tables in a folder.
const SAMPLES: &str = "samples.csv";
const MESSAGES: &str = "messages.csv";
/// Before those of the stages.
const MESSAGE_COLUMNS: &str = "start_ns,group,conversation,from,to,path,bytes";
const CONNECTIONS: &str = "connections.csv";

/// Version of the folder's format: `format` of `meta.json`.
const FORMAT: u32 = 1;

/// Watches a run and writes its folder.
pub struct Recording {
    scenario: Scenario,
    folder: PathBuf,
    samples: Option<BufWriter<File>>,
    connections: Option<BufWriter<File>>,
    messages: Option<BufWriter<File>>,
    groups: Vec<Group>,
    /// By group: the number after its last conversation.
    ends: Vec<usize>,
    /// Bytes read, and since when no more were.
    progress: (u64, Instant),
    /// Promotions within the warm-up, once it is over.
    early_promotions: Option<u64>,
    begun: std::time::Instant,
}

impl Recording {
    /// Begins a recording. Makes the folder; files of these names in it are overwritten.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn new(scenario: Scenario, folder: &Path) -> Result<Recording, FinishError> {
        fs::create_dir_all(folder).map_err(|e| FinishError::Io(folder.into(), e))?;
        let table = |wanted: bool, name: &str, head: &str| {
            let path = folder.join(name);
            let begin = || {
                let mut out = BufWriter::new(File::create(&path)?);
                writeln!(out, "{head}")?;
                Ok(out)
            };
            wanted.then(begin).transpose().map_err(|e| FinishError::Io(path.clone(), e))
        };
        let wanted = scenario.measure.samples;
        let short = scenario.groups.iter().any(|g| g.requests_per_connection.is_some());
        let samples = table(wanted, SAMPLES, "end_ns,latency_ns,group,conversation,request_bytes,response_bytes")?;
        let head = "end_ns,connect_ns,whole_ns,group,conversation,answered,failed,promoted";
        let connections = table(wanted && short, CONNECTIONS, head)?;
        let names = Stage::ALL.map(Stage::name).join(",");
        let messages = table(scenario.measure.stages, MESSAGES, &format!("{MESSAGE_COLUMNS},{names}"))?;
        let mut end = 0;
        let sizes = scenario.group_sizes();
        let ends = sizes
            .iter()
            .map(|size| {
                end += size;
                end
            })
            .collect();
        let group = |spec: &scenario::Group| {
            let short = || Short { connect: histogram(), whole: histogram(), made: 0, promoted: 0, failed: 0 };
            let short = spec.requests_per_connection.map(|_| short());
            Group { latency: histogram(), short, answered: 0, bytes: 0 }
        };
        let groups = scenario.groups.iter().map(group).collect();
        let progress = (0, Instant::ZERO);
        Ok(Recording {
            scenario,
            folder: folder.into(),
            samples,
            connections,
            messages,
            groups,
            ends,
            progress,
            early_promotions: None,
            begun: std::time::Instant::now(),
        })
    }

    /// Writes the requests that were answered since the last call, and returns the verdict.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn tick(&mut self, run: &mut Run, now: Instant) -> Result<Verdict, FinishError> {
        for sample in run.take_samples() {
            self.record(&sample).map_err(|e| FinishError::Io(self.folder.join(SAMPLES), e))?;
        }
        for connection in run.take_connections() {
            self.record_short(&connection).map_err(|e| FinishError::Io(self.folder.join(CONNECTIONS), e))?;
        }
        for message in run.take_messages() {
            self.record_message(&message).map_err(|e| FinishError::Io(self.folder.join(MESSAGES), e))?;
        }
        for (out, name) in
            [(&mut self.samples, SAMPLES), (&mut self.connections, CONNECTIONS), (&mut self.messages, MESSAGES)]
        {
            if let Some(out) = out {
                out.flush().map_err(|e| FinishError::Io(self.folder.join(name), e))?;
            }
        }
        if run.bytes_read() > self.progress.0 || !run.is_waiting() {
            self.progress = (run.bytes_read(), now);
        }
        let measure = &self.scenario.measure;
        if now.as_nanos() >= measure.warmup_ns && self.early_promotions.is_none() {
            self.early_promotions = Some(run.set_up().promoted);
        }
        let last = measure.warmup_ns.saturating_add(measure.duration_ns).saturating_add(measure.drain_ns);
        Ok(match () {
            () if run.broken().is_some() => Verdict::Broken,
            () if run.is_complete() => Verdict::Complete,
            () if now.as_nanos() - self.progress.1.as_nanos() >= measure.stall_ns => Verdict::Stalled,
            () if now.as_nanos() >= last => Verdict::Unfinished,
            () => Verdict::Going,
        })
    }

    /// The progress of the run, as a line of JSON.
    pub fn progress(&self, run: &Run, now: Instant, events: u64) -> String {
        let measure = &self.scenario.measure;
        serde_json::json!({
            "simulated_ns": now.as_nanos(),
            "end_ns": measure.warmup_ns.saturating_add(measure.duration_ns),
            "answered": run.answered(),
            "events": events,
            "wall_s": self.begun.elapsed().as_secs_f64(),
        })
        .to_string()
    }

    /// Writes the remaining files, `meta.json` last: a folder that has one is complete.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn finish(
        self,
        run: &Run,
        verdict: Verdict,
        (events, network): (u64, NetworkCounts),
        (code_version, ns3_version): (&str, &str),
    ) -> Result<(), FinishError> {
        for (group, spec) in self.groups.iter().zip(&self.scenario.groups) {
            let short = group.short.iter().flat_map(|short| [("connect", &short.connect), ("whole", &short.whole)]);
            for (what, histogram) in short.chain([("latency", &group.latency)]) {
                let path = self.folder.join(format!("{what}-{}.hdr", spec.name));
                let mut bytes = Vec::new();
                let written = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
                written.map_err(|e| FinishError::Histogram(path.clone(), e))?;
                fs::write(&path, bytes).map_err(|e| FinishError::Io(path, e))?;
            }
        }
        let trace = run.trace();
        let mut nics = NicCounts::default();
        for counters in (0..self.scenario.network.hosts).filter_map(|host| run.counters(host)) {
            nics.add(&counters);
        }
        let mut processors = [ProcessorCounts::default(); 2];
        for host in 0..self.scenario.network.hosts {
            let of = &mut processors[usize::from(self.scenario.is_server(host))];
            let Some(usage) = run.usage(host) else { continue };
            of.hosts += 1;
            of.busy_ns += usage.busy.as_nanos() as u64;
            of.polling_ns += usage.polling.as_nanos() as u64;
            of.wake_ups += usage.wake_ups;
            of.asks += usage.asks;
            of.interrupted_ns += usage.interrupted.as_nanos() as u64;
        }
        let [clients, servers] = processors;
        let links = LinkCounts::from(run.set_up());
        let promoted_late = links.promoted - self.early_promotions.unwrap_or(links.promoted);
        let meta = Meta {
            format: FORMAT,
            status: verdict,
            scenario: &self.scenario,
            code_version,
            ns3_version,
            trace_hash: format!("{:016x}", trace.value()),
            deliveries: trace.deliveries(),
            simulated_ns: run.now().as_nanos(),
            events,
            wall_s: self.begun.elapsed().as_secs_f64(),
            answered: run.answered(),
            unanswered: run.unanswered(),
            connections: self.ends.last().copied().unwrap_or(0),
            connections_left: run.connections_now(),
            linked: run.linked(),
            groups: self.group_metas(run),
            network,
            nics,
            links: LinkCounts { promoted_late, ..links },
            servers,
            clients,
        };
        let path = self.folder.join("meta.json");
        let text = serde_json::to_vec_pretty(&meta).map_err(io::Error::from);
        text.and_then(|text| fs::write(&path, text)).map_err(|e| FinishError::Io(path, e))
    }

    fn record(&mut self, sample: &Sample) -> io::Result<()> {
        let number = self.ends.partition_point(|end| *end <= sample.conversation as usize);
        let Some(group) = self.groups.get_mut(number) else { return Ok(()) };
        let latency_ns = sample.end.saturating_since(sample.begun).as_nanos() as u64;
        let measure = &self.scenario.measure;
        let span = measure.warmup_ns..=measure.warmup_ns + measure.duration_ns;
        if span.contains(&sample.begun.as_nanos()) {
            group.latency.saturating_record(latency_ns);
        }
        if span.contains(&sample.end.as_nanos()) {
            group.answered += 1;
            group.bytes += u64::from(sample.request_bytes) + u64::from(sample.response_bytes);
        }
        let Some(out) = &mut self.samples else { return Ok(()) };
        let Sample { conversation, end, request_bytes, response_bytes, .. } = sample;
        writeln!(out, "{},{latency_ns},{number},{conversation},{request_bytes},{response_bytes}", end.as_nanos())
    }

    /// Those that begin while it is measured.
    fn record_message(&mut self, message: &TracedMessage) -> io::Result<()> {
        let TracedMessage { conversation, is_request, on_link, bytes, begun, stages } = *message;
        let measure = &self.scenario.measure;
        let span = measure.warmup_ns..=measure.warmup_ns + measure.duration_ns;
        let Some(out) = self.messages.as_mut().filter(|_| span.contains(&begun.as_nanos())) else { return Ok(()) };
        let number = self.ends.partition_point(|end| *end <= conversation as usize);
        let (from, to) = if is_request { ("client", "server") } else { ("server", "client") };
        let path = if on_link { "link" } else { "anchor" };
        write!(out, "{},{number},{conversation},{from},{to},{path},{bytes}", begun.as_nanos())?;
        for stage in Stage::ALL {
            write!(out, ",{}", stages.get(stage))?;
        }
        writeln!(out)
    }

    fn record_short(&mut self, connection: &ShortConnection) -> io::Result<()> {
        let ShortConnection { conversation, begun, connected, end, answered, failed, promoted } = *connection;
        let number = self.ends.partition_point(|end| *end <= conversation as usize);
        let Some(short) = self.groups.get_mut(number).and_then(|group| group.short.as_mut()) else { return Ok(()) };
        let connect_ns = connected.map(|at| at.saturating_since(begun).as_nanos() as u64);
        let whole_ns = end.saturating_since(begun).as_nanos() as u64;
        let measure = &self.scenario.measure;
        if (measure.warmup_ns..=measure.warmup_ns + measure.duration_ns).contains(&begun.as_nanos()) {
            short.made += u64::from(!failed);
            short.failed += u64::from(failed);
            short.promoted += u64::from(promoted);
            if let Some(ns) = connect_ns {
                short.connect.saturating_record(ns);
            }
            if !failed {
                short.whole.saturating_record(whole_ns);
            }
        }
        let Some(out) = &mut self.connections else { return Ok(()) };
        let connect_ns = connect_ns.map(|ns| ns.to_string()).unwrap_or_default();
        let (failed, promoted) = (u8::from(failed), u8::from(promoted));
        let end_ns = end.as_nanos();
        writeln!(out, "{end_ns},{connect_ns},{whole_ns},{number},{conversation},{answered},{failed},{promoted}")
    }

    fn group_metas(&self, run: &Run) -> Vec<GroupMeta<'_>> {
        let seconds = self.scenario.measure.duration_ns as f64 / 1e9;
        let sizes = self.scenario.group_sizes();
        let named = self.groups.iter().zip(&self.scenario.groups).zip(sizes);
        let mut metas = Vec::new();
        let mut first = 0;
        let carried = run.carried();
        let mut carried = carried.iter();
        for ((group, spec), connections) in named {
            let (mut links, mut all) = (0, 0);
            for carried in carried.by_ref().take(connections) {
                links += carried.link_bytes;
                all += carried.link_bytes + carried.tcp_bytes;
            }
            let numbers = first..first + connections;
            first += connections;
            metas.push(GroupMeta {
                name: &spec.name,
                connections,
                lost: numbers.map(|number| run.lost(number)).sum(),
                samples: group.latency.len(),
                answered_per_s: group.answered as f64 / seconds,
                bytes_per_s: group.bytes as f64 / seconds,
                link_share: if all > 0 { links as f64 / all as f64 } else { 0.0 },
                latency: Latency::of(&group.latency),
                short: group.short.as_ref().map(|short| ShortMeta {
                    made: short.made,
                    failed: short.failed,
                    promoted: short.promoted,
                    made_per_s: short.made as f64 / seconds,
                    connect: Latency::of(&short.connect),
                    whole: Latency::of(&short.whole),
                }),
            });
        }
        metas
    }
}

/// From a nanosecond to an hour, to three digits; longer times count as an hour.
fn histogram() -> Histogram<u64> {
    const HOUR_NS: u64 = 3_600_000_000_000;
    Histogram::new_with_bounds(1, HOUR_NS, 3).expect("1 is at least 1, and an hour more than twice that")
}
