//! Records on disk: the form that `netacc report` and `netacc_lab.analysis` read.
//!
//! A record is a folder with `record.json` ([`Header`]), whole histograms in HdrHistogram's V2 format, compressed, tables,
//! and the tool's own result. Its schema is that of `netacc_lab.records` (`netacc record schema`), and a test holds the
//! two to each other. Tables are JSON Lines here: a writer of Parquet would be larger than all of this program, and a line
//! can be appended while the measurement runs, so that a record which was killed keeps what it had.
//!
//! Invariant: a folder has its name only when it has a `record.json`. Until then it is a [`Draft`], beside its place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use hdrhistogram::Histogram;
use netacc_config::{Config, ConfigValue};
use serde::Serialize;
use serde_json::Value;

use crate::bench::Machine;

/// Of the schema: as `VERSION` in `netacc_lab.records.model`.
const VERSION: u32 = 1;

/// The file that makes a folder a record.
const HEADER: &str = "record.json";

/// The file with a tool's own result.
pub(crate) const DETAILS: &str = "result.json";

/// The reason why a record cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A record never replaces anything.
    #[error("{}: there is something already; name a new folder", .0.display())]
    Exists(PathBuf),
    /// The system refused something.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error, with its errno.
        source: io::Error,
    },
    /// A histogram that the format cannot hold.
    #[error("{}: {source}", .path.display())]
    Histogram {
        /// The file.
        path: PathBuf,
        /// The serialiser's error.
        source: hdrhistogram::serialization::V2DeflateSerializeError,
    },
}

impl RecordError {
    /// 2 for a place that is taken, as for other wrong arguments; 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            RecordError::Exists(_) => 2,
            _ => 1,
        }
    }

    fn io(path: &Path) -> impl FnOnce(io::Error) -> RecordError + '_ {
        move |source| RecordError::Io { path: path.to_owned(), source }
    }
}

/// `record.json`. The fields are explained in the schema.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Header {
    version: u32,
    pub(crate) kind: Kind,
    pub(crate) title: String,
    pub(crate) status: Status,
    pub(crate) began: String,
    pub(crate) ended: String,
    pub(crate) command: Vec<String>,
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) configuration: BTreeMap<String, ConfigValue>,
    pub(crate) parameters: Value,
    pub(crate) machines: Vec<MachinePart>,
    pub(crate) load: Load,
    pub(crate) paired: bool,
    pub(crate) warnings: Vec<String>,
    pub(crate) series: Vec<Series>,
    pub(crate) tables: Vec<Table>,
    pub(crate) details: Option<&'static str>,
}

/// The tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Bench,
    Lat,
    Ss,
    Trace,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Complete,
    Unfinished,
}

/// A machine, without its load.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MachinePart {
    cpu: String,
    cores: usize,
    kernel: String,
}

/// Load by other work.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Load {
    before: Before,
    pub(crate) during: Option<During>,
}

#[derive(Debug, Clone, Serialize)]
struct Before {
    loadavg: [f64; 3],
    busy_processors: Option<f64>,
}

/// While runs were measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct During {
    pub(crate) busy_processors: f64,
    pub(crate) most_busy_processors: f64,
}

/// Runs of the same thing.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) of: String,
    pub(crate) link_share: Option<f64>,
    pub(crate) runs: Vec<Run>,
}

/// One measurement.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Run {
    pub(crate) rate_per_s: Option<f64>,
    pub(crate) histograms: BTreeMap<&'static str, String>,
    pub(crate) percentiles_ns: BTreeMap<&'static str, f64>,
    pub(crate) figures: BTreeMap<&'static str, f64>,
}

/// A time series.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) form: &'static str,
    pub(crate) rows: Option<u64>,
    pub(crate) what: String,
}

impl Header {
    /// Of a measurement on this machine that began with `machine`, without results.
    pub(crate) fn new(kind: Kind, title: String, machine: &Machine) -> Header {
        let (config, _) = Config::load();
        Header {
            version: VERSION,
            kind,
            title,
            status: Status::Complete,
            began: machine.date.clone(),
            ended: String::new(),
            command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            versions: BTreeMap::from([("netacc".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]),
            configuration: config.values().map(|(name, value)| (name.to_owned(), value)).collect(),
            parameters: Value::Object(serde_json::Map::new()),
            machines: vec![MachinePart {
                cpu: machine.cpu.clone(),
                cores: machine.cores,
                kernel: machine.kernel.clone(),
            }],
            load: Load {
                before: Before { loadavg: machine.loadavg, busy_processors: machine.busy_processors },
                during: None,
            },
            paired: false,
            warnings: Vec::new(),
            series: Vec::new(),
            tables: Vec::new(),
            details: None,
        }
    }

    /// It has ended now.
    pub(crate) fn end(&mut self, status: Status) {
        self.status = status;
        self.ended = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    }

    /// Writes it into a folder; a reader sees the old one or the new one.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), RecordError> {
        let text = serde_json::to_string_pretty(self).expect("it has nothing that JSON cannot hold") + "\n";
        let (partial, file) = (folder.join(".record.json"), folder.join(HEADER));
        fs::write(&partial, text).map_err(RecordError::io(&partial))?;
        fs::rename(&partial, &file).map_err(RecordError::io(&file))
    }
}

/// A record that is being made, in a folder beside its place. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Draft {
    place: PathBuf,
    folder: PathBuf,
}

impl Draft {
    /// Begins a record, before the measurement and not after it, so that a place which cannot be written costs none.
    ///
    /// # Errors
    /// There is something already, or the folder cannot be made.
    pub(crate) fn begin(place: &Path) -> Result<Draft, RecordError> {
        let is_empty = |folder: &Path| fs::read_dir(folder).is_ok_and(|mut files| files.next().is_none());
        if place.symlink_metadata().is_ok() && !is_empty(place) {
            return Err(RecordError::Exists(place.to_owned()));
        }
        let name = place.file_name().ok_or_else(|| RecordError::Exists(place.to_owned()))?;
        let folder = place.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
        fs::create_dir(&folder).map_err(RecordError::io(place))?;
        Ok(Draft { place: place.to_owned(), folder })
    }

    /// Where it is made.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a histogram of values in nanoseconds and their counts, and returns the name of its file.
    pub(crate) fn histogram(&self, stem: &str, pairs: &[(u64, u64)]) -> Result<String, RecordError> {
        let name = format!("{}.hdr", file_stem(stem));
        let path = self.folder.join(&name);
        let mut histogram: Histogram<u64> =
            Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds and digits are allowed");
        pairs.iter().for_each(|(value, count)| histogram.saturating_record_n(*value, *count));
        let mut bytes = Vec::new();
        let written = V2DeflateSerializer::new().serialize(&histogram, &mut bytes);
        written.map_err(|source| RecordError::Histogram { path: path.clone(), source })?;
        fs::write(&path, bytes).map_err(RecordError::io(&path))?;
        Ok(name)
    }

    /// Adds the tool's own result.
    pub(crate) fn details(&self, result: &impl Serialize) -> Result<(), RecordError> {
        let path = self.folder.join(DETAILS);
        let text = serde_json::to_string_pretty(result).expect("it has nothing that JSON cannot hold") + "\n";
        fs::write(&path, text).map_err(RecordError::io(&path))
    }

    /// Opens a file for a table.
    pub(crate) fn lines(&self, name: &str) -> Result<Lines, RecordError> {
        let path = self.folder.join(name);
        let file = File::create(&path).map_err(RecordError::io(&path))?;
        Ok(Lines { file, path, rows: 0 })
    }

    /// Gives the folder its name, and returns that.
    pub(crate) fn publish(mut self, header: &Header) -> Result<PathBuf, RecordError> {
        header.write(&self.folder)?;
        fs::rename(&self.folder, &self.place).map_err(RecordError::io(&self.place))?;
        self.folder = PathBuf::new();
        Ok(self.place.clone())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.folder.as_os_str().is_empty() {
            // The error that ended the measurement matters more than a folder that stays.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A table that grows, a line for each row.
#[derive(Debug)]
pub(crate) struct Lines {
    file: File,
    path: PathBuf,
    rows: u64,
}

impl Lines {
    /// Adds a row, in one write.
    pub(crate) fn add(&mut self, row: &impl Serialize) -> Result<(), RecordError> {
        let text = serde_json::to_string(row).expect("it has nothing that JSON cannot hold") + "\n";
        self.file.write_all(text.as_bytes()).map_err(RecordError::io(&self.path))?;
        self.rows += 1;
        Ok(())
    }

    /// For the header, when all rows are there.
    pub(crate) fn table(&self, name: &str, what: &str) -> Table {
        let file = self.path.file_name().expect("it was made with a name");
        Table {
            name: name.to_owned(),
            file: file.to_string_lossy().into_owned(),
            form: "jsonl",
            rows: Some(self.rows),
            what: what.to_owned(),
        }
    }
}

/// Letters, digits and dashes only.
fn file_stem(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header::new(Kind::Ss, "test".into(), &Machine::described())
    }

    /// Breaks if a record could replace something, or a measurement that failed left anything.
    #[test]
    fn a_folder_has_its_name_only_when_it_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("record");
        let entries = || fs::read_dir(folder.path()).expect("it exists").count();
        let draft = Draft::begin(&place).expect("nothing is there");
        draft.histogram("latency-shm: 1", &[(5, 2)]).expect("it can be written");
        drop(draft);
        assert_eq!(entries(), 0, "a draft that was given up is gone");
        let draft = Draft::begin(&place).expect("nothing is there");
        assert_eq!(draft.histogram("latency-shm: 1", &[(5, 2)]).expect("written"), "latency-shm--1.hdr");
        draft.publish(&header()).expect("it can be renamed");
        assert!(place.join(HEADER).exists() && place.join("latency-shm--1.hdr").exists() && entries() == 1);
        assert!(matches!(Draft::begin(&place), Err(RecordError::Exists(_))));
        assert!(matches!(Draft::begin(&folder.path().join("no/such")), Err(RecordError::Io { .. })));
        assert!(matches!(Draft::begin(Path::new("/")), Err(RecordError::Exists(_))));
    }

    #[test]
    fn rows_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let draft = Draft::begin(&folder.path().join("record")).expect("nothing is there");
        let mut lines = draft.lines("counters.jsonl").expect("it can be written");
        for number in 0..3 {
            lines.add(&serde_json::json!({"at_ns": number})).expect("it can be written");
        }
        let text = fs::read_to_string(&lines.path).expect("it exists");
        assert_eq!(
            (lines.table("counters", "").rows, text.as_str()),
            (Some(3), "{\"at_ns\":0}\n{\"at_ns\":1}\n{\"at_ns\":2}\n")
        );
    }
}
