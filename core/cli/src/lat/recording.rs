//! The record of a run: a series for each path and size.

use std::collections::BTreeMap;

use serde_json::json;

use super::measured::Latencies;
use super::report::{Path, Report};
use crate::bench::Machine;
use crate::record::{Draft, During, Header, Kind, RecordError, Run, Series, Status, DETAILS};

/// Writes the record. `others` is the processors that other programs kept busy meanwhile.
pub(super) fn write(
    draft: Draft,
    report: &Report,
    machine: &Machine,
    others: Option<f64>,
    warnings: Vec<String>,
) -> Result<(), RecordError> {
    let mut header = Header::new(Kind::Lat, "netacc lat: half round trips".to_owned(), machine);
    header.end(if report.is_whole() { Status::Complete } else { Status::Unfinished });
    header.parameters = json!({"count": report.count(), "sizes": report.sizes()});
    header.load.during = others.map(|busy| During { busy_processors: busy, most_busy_processors: busy });
    header.warnings = warnings;
    let many = report.sizes().len() > 1;
    for (size, path) in report.measured() {
        let name = if many { format!("{}, {size} B", path.path) } else { path.path.to_owned() };
        match (&path.histogram, &path.error) {
            (Some(histogram), _) => {
                let of = if many { format!("{size} B") } else { String::new() };
                header.series.push(series(&draft, name, of, path, histogram)?);
            }
            (None, error) => {
                header.warnings.push(format!("{name} was not measured: {}", error.as_deref().unwrap_or("no reason")));
            }
        }
    }
    draft.details(&report.object())?;
    header.details = Some(DETAILS);
    draft.publish(&header).map(drop)
}

fn series(draft: &Draft, name: String, of: String, path: &Path, histogram: &Latencies) -> Result<Series, RecordError> {
    let file = draft.histogram(&format!("latency-{name}"), &Vec::from(histogram.clone()))?;
    let run = Run { histograms: BTreeMap::from([("latency", file)]), ..Run::default() };
    Ok(Series { name, of, link_share: path.link_share, runs: vec![run] })
}
