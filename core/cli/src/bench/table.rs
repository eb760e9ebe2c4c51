//! The result as a table for people.

use comfy_table::{presets, Cell, CellAlignment, Table};

use super::paths::REFERENCE;
use super::result::{PathResult, Paths, Report};
use super::stats::Ratio;

/// The whole result, one table per test, with the settings of the measurement and the doubts about its figures.
pub(crate) fn render(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = String::new();
    for (test, paths) in report.by_test() {
        let title = if test == report.bench { test.to_owned() } else { format!("{} {test}", report.bench) };
        let rounds = paths.values().map(|path| path.runs.len()).max().unwrap_or(0);
        text += &format!("netacc bench {title}: {}; median of {rounds} interleaved rounds\n", settings(report));
        text += &table(report.counted(), paths).to_string();
        text.push('\n');
    }
    let [load, ..] = machine.loadavg;
    text += &format!(
        "{} cores of {}, Linux {}, {}, load average before: {load}\n",
        machine.cores, machine.cpu, machine.kernel, machine.date
    );
    for (path, reason) in &report.skipped {
        text += &format!("not measured: {path} ({reason})\n");
    }
    for warning in &report.warnings {
        text += &format!("WARNING: {warning}\n");
    }
    text
}

fn settings(report: &Report) -> String {
    let hidden = ["pairs", "paths", "run_args", "tests", "redis_server", "memcached", "persistence", "length"];
    let Some(params) = report.params.as_object() else {
        return String::new();
    };
    let shown = params.iter().filter(|(name, value)| !hidden.contains(&name.as_str()) && !value.is_null());
    let shown: Vec<_> = shown.map(|(name, value)| format!("{name} {}", value.to_string().trim_matches('"'))).collect();
    shown.join(", ")
}

fn table(counted: &str, paths: &Paths) -> Table {
    let bulk = paths.values().any(|path| path.bytes_per_s.is_some());
    let linked = paths.values().any(|path| path.link_share.is_some());
    let rate = format!("{counted}/s");
    let mut header = vec!["path", if bulk { "GiB/s" } else { &rate }, "to TCP (spread)"];
    header.extend(["p50 µs", "p99 µs", "p99.9 µs", "max µs"]);
    header.extend(if bulk { ["server CPU s/GiB", "client CPU s/GiB"] } else { ["server CPU s/M", "client CPU s/M"] });
    if linked {
        header.push("on link");
    }
    let many = paths.values().any(|path| path.crowd.is_some());
    if many {
        header.extend(["server KiB each", "client KiB each", "on links after 2 s", "statistics ms"]);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    for (name, path) in paths {
        table.add_row(row(name, path, bulk, linked).into_iter().chain(crowd(path)));
    }
    table
}

fn row(name: &str, path: &PathResult, bulk: bool, linked: bool) -> Vec<Cell> {
    let latency = path.latency_us;
    let other = name != REFERENCE;
    let gib_per_s = path.bytes_per_s.unwrap_or(0.0) / f64::from(1 << 30);
    let cpu = if bulk {
        [path.server_cpu_s_per_gib.unwrap_or(0.0), path.client_cpu_s_per_gib.unwrap_or(0.0)]
    } else {
        [path.server_cpu_s_per_million, path.client_cpu_s_per_million]
    };
    let mut cells = vec![
        if bulk { format!("{gib_per_s:.2}") } else { thousands(path.requests_per_s) },
        spread(path.ratio_to_tcp.filter(|_| other)),
        beside(figure(latency.p50), path.ratio_p50_to_tcp.filter(|_| other)),
        beside(figure(latency.p99), path.ratio_p99_to_tcp.filter(|_| other)),
        figure(latency.p999),
        figure(latency.max),
        beside(format!("{:.3}", cpu[0]), path.ratio_server_cpu_to_tcp.filter(|_| other)),
        beside(format!("{:.3}", cpu[1]), path.ratio_client_cpu_to_tcp.filter(|_| other)),
    ];
    if linked {
        cells.push(path.link_share.map_or_else(String::new, |share| format!("{:.1} %", share * 100.0)));
    }
    let cells = cells.into_iter().map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
    std::iter::once(Cell::new(name)).chain(cells).collect()
}

/// What many connections take.
fn crowd(path: &PathResult) -> Vec<Cell> {
    let Some(crowd) = path.crowd else { return Vec::new() };
    let texts = [
        figure(crowd.server_bytes / 1024.0),
        figure(crowd.client_bytes / 1024.0),
        crowd.linked.map_or_else(String::new, |share| format!("{:.2} %", share * 100.0)),
        crowd.statistics_ms.map_or_else(String::new, figure),
    ];
    texts.map(|text| Cell::new(text).set_alignment(CellAlignment::Right)).into()
}

/// "2.31x (2.20..2.40)"
fn spread(ratio: Option<Ratio>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{:.2}x ({:.2}..{:.2})", ratio.median, ratio.min, ratio.max))
}

/// "12.3 (0.45x)"
fn beside(figure: String, ratio: Option<Ratio>) -> String {
    ratio.map_or(figure.clone(), |ratio| format!("{figure} ({:.2}x)", ratio.median))
}

/// About four digits, whatever the size.
pub(crate) fn figure(value: f64) -> String {
    match value {
        value if value >= 1000.0 => thousands(value),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// "1,234,567"
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(thousands(1_234_567.8), "1,234,568");
        assert_eq!(thousands(999.4), "999");
        assert_eq!(thousands(0.0), "0");
        assert_eq!([0.456, 12.34, 123.4, 12_345.0].map(figure), ["0.46", "12.3", "123", "12,345"]);
        let ratio = Ratio { median: 2.0, min: 1.5, max: 2.25 };
        assert_eq!(spread(Some(ratio)), "2.00x (1.50..2.25)");
        assert_eq!(spread(None), "");
        assert_eq!(beside("9".into(), Some(ratio)), "9 (2.00x)");
    }
}
