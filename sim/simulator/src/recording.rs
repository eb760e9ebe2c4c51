//! What is kept of a run, and whether it gets anywhere.
//!
//! The folder of a run: `meta.json` (everything that was configured, and how it went), `samples.csv` (each answered request,
//! written while the run goes on), and for each group `latency-<group>.hdr`, a histogram of nanoseconds in HdrHistogram's V2
//! format, compressed. What counts for a histogram was made within the measured span.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use hdrhistogram::serialization::{Serializer, V2DeflateSerializeError, V2DeflateSerializer};
use hdrhistogram::Histogram;
use netacc_device::Instant;
use netacc_rpc::{Run, Sample};
use serde::Serialize;

use crate::scenario::Scenario;

/// What is to become of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It goes on.
    Going,
    /// Everything was asked and answered.
    Complete,
    /// Nobody has read a byte for too long, though somebody waits.
    Stalled,
    /// The time to answer the last requests is over.
    Unfinished,
    /// A byte was not the one written.
    Broken,
}

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

/// What ports and switches have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkCounts {
    /// Packets lost on links.
    pub lost: u64,
    /// Packets that found no room in a switch.
    pub dropped: u64,
    /// Packets that a switch has marked.
    pub marked: u64,
    /// Pauses that switches have sent.
    pub pauses: u64,
    /// The most bytes that ever waited at one port of a switch.
    pub max_queue_bytes: u64,
    /// TCP connections that could not be made, or broke.
    pub tcp_failed: u64,
}

/// Sums over all NICs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct NicCounts {
    data_sent: u64,
    data_repeated: u64,
    data_delivered: u64,
    timeouts: u64,
    not_ready_sent: u64,
    notifications_sent: u64,
    context_misses: u64,
    region_misses: u64,
    receive_overflows: u64,
    failed: u64,
}

/// Sums over the processors of some hosts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct ProcessorCounts {
    hosts: u32,
    /// Core time in calls and in the application.
    busy_ns: u64,
    /// Core time in polling for nothing.
    polling_ns: u64,
    /// How often a thread that slept was woken.
    wake_ups: u64,
}

/// Connections that do the same: what they measured.
struct Group {
    latency: Histogram<u64>,
    /// Answers that came within the measured span.
    answered: u64,
    /// Bytes of those requests and responses.
    bytes: u64,
}

/// What `meta.json` says of a group.
#[derive(Serialize)]
struct GroupMeta<'a> {
    name: &'a str,
    connections: usize,
    /// Requests made within the measured span and answered: what the histogram counts.
    samples: u64,
    /// Answers that came within the measured span, a second.
    answered_per_s: f64,
    /// Bytes of those requests and responses, a second.
    bytes_per_s: f64,
    mean_ns: f64,
    min_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

/// `meta.json`.
#[derive(Serialize)]
struct Meta<'a> {
    format: u32,
    status: Verdict,
    scenario: &'a Scenario,
    code_version: &'a str,
    ns3_version: &'a str,
    /// The delivery-trace hash: the same for the same scenario and code.
    trace_hash: String,
    deliveries: u64,
    simulated_ns: u64,
    events: u64,
    wall_s: f64,
    answered: u64,
    unanswered: u64,
    connections: usize,
    /// Connections that were on a link when the run ended.
    linked: usize,
    groups: Vec<GroupMeta<'a>>,
    network: NetworkCounts,
    nics: NicCounts,
    /// Of hosts that some group asks; nothing where calls take no time.
    servers: ProcessorCounts,
    /// Of the others.
    clients: ProcessorCounts,
}

/// Version of the folder's format: what `format` of `meta.json` says.
const FORMAT: u32 = 1;

/// Watches a run and writes its folder.
pub struct Recording {
    scenario: Scenario,
    folder: PathBuf,
    samples: Option<BufWriter<File>>,
    groups: Vec<Group>,
    /// By group: the number after its last conversation.
    ends: Vec<usize>,
    /// Bytes read, and since when no more were.
    progress: (u64, Instant),
    begun: std::time::Instant,
}

impl Recording {
    /// Begins. The folder is made; what is in it by these names is overwritten.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn new(scenario: Scenario, folder: &Path) -> Result<Recording, FinishError> {
        fs::create_dir_all(folder).map_err(|e| FinishError::Io(folder.into(), e))?;
        let samples = match scenario.measure.samples {
            false => None,
            true => {
                let path = folder.join("samples.csv");
                let file = File::create(&path).and_then(|file| {
                    let mut out = BufWriter::new(file);
                    out.write_all(b"end_ns,latency_ns,group,conversation,request_bytes,response_bytes\n")?;
                    Ok(out)
                });
                Some(file.map_err(|e| FinishError::Io(path, e))?)
            }
        };
        let mut end = 0;
        let sizes = scenario.group_sizes();
        let ends = sizes
            .iter()
            .map(|size| {
                end += size;
                end
            })
            .collect();
        let groups = sizes.iter().map(|_| Group { latency: histogram(), answered: 0, bytes: 0 }).collect();
        let progress = (0, Instant::ZERO);
        Ok(Recording {
            scenario,
            folder: folder.into(),
            samples,
            groups,
            ends,
            progress,
            begun: std::time::Instant::now(),
        })
    }

    /// Writes down what was answered since the last call, and says how the run stands.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn tick(&mut self, run: &mut Run, now: Instant) -> Result<Verdict, FinishError> {
        for sample in run.take_samples() {
            self.note(&sample).map_err(|e| FinishError::Io(self.folder.join("samples.csv"), e))?;
        }
        if let Some(out) = &mut self.samples {
            out.flush().map_err(|e| FinishError::Io(self.folder.join("samples.csv"), e))?;
        }
        if run.bytes_read() > self.progress.0 || !run.is_waiting() {
            self.progress = (run.bytes_read(), now);
        }
        let measure = &self.scenario.measure;
        let last = measure.warmup_ns.saturating_add(measure.duration_ns).saturating_add(measure.drain_ns);
        Ok(match () {
            () if run.broken().is_some() => Verdict::Broken,
            () if run.is_complete() => Verdict::Complete,
            () if now.as_nanos() - self.progress.1.as_nanos() >= measure.stall_ns => Verdict::Stalled,
            () if now.as_nanos() >= last => Verdict::Unfinished,
            () => Verdict::Going,
        })
    }

    /// A line of JSON that says how far the run is.
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

    /// Writes what is left, and `meta.json` last: a folder that has one is complete.
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
            let path = self.folder.join(format!("latency-{}.hdr", spec.name));
            let mut bytes = Vec::new();
            let written = V2DeflateSerializer::new().serialize(&group.latency, &mut bytes);
            written.map_err(|e| FinishError::Histogram(path.clone(), e))?;
            fs::write(&path, bytes).map_err(|e| FinishError::Io(path, e))?;
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
        }
        let [clients, servers] = processors;
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
            linked: run.linked(),
            groups: self.group_metas(),
            network,
            nics,
            servers,
            clients,
        };
        let path = self.folder.join("meta.json");
        let text = serde_json::to_vec_pretty(&meta).map_err(io::Error::from);
        text.and_then(|text| fs::write(&path, text)).map_err(|e| FinishError::Io(path, e))
    }

    fn note(&mut self, sample: &Sample) -> io::Result<()> {
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

    fn group_metas(&self) -> Vec<GroupMeta<'_>> {
        let seconds = self.scenario.measure.duration_ns as f64 / 1e9;
        let sizes = self.scenario.group_sizes();
        let named = self.groups.iter().zip(&self.scenario.groups).zip(sizes);
        let mut metas = Vec::new();
        for ((group, spec), connections) in named {
            let quantile = |q| group.latency.value_at_quantile(q);
            metas.push(GroupMeta {
                name: &spec.name,
                connections,
                samples: group.latency.len(),
                answered_per_s: group.answered as f64 / seconds,
                bytes_per_s: group.bytes as f64 / seconds,
                mean_ns: group.latency.mean(),
                min_ns: if group.latency.is_empty() { 0 } else { group.latency.min() },
                p50_ns: quantile(0.5),
                p90_ns: quantile(0.9),
                p99_ns: quantile(0.99),
                p999_ns: quantile(0.999),
                max_ns: group.latency.max(),
            });
        }
        metas
    }
}

impl NicCounts {
    fn add(&mut self, c: &netacc_rnic::Counters) {
        self.data_sent += c.data_sent;
        self.data_repeated += c.data_repeated;
        self.data_delivered += c.data_delivered;
        self.timeouts += c.timeouts;
        self.not_ready_sent += c.not_ready_sent;
        self.notifications_sent += c.notifications_sent;
        self.context_misses += c.context_misses;
        self.region_misses += c.region_misses;
        self.receive_overflows += c.receive_overflows;
        self.failed += c.failed;
    }
}

/// From a nanosecond to an hour, to three digits; what takes longer counts as an hour.
fn histogram() -> Histogram<u64> {
    const HOUR_NS: u64 = 3_600_000_000_000;
    Histogram::new_with_bounds(1, HOUR_NS, 3).expect("1 is at least 1, and an hour more than twice that")
}
