//! The result as a picture: throughput, latency and server CPU, a bar for each path.
//!
//! SVG only: text stays text, so no font is needed to write it and it is sharp at any size.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::error::BenchError;
use super::result::{PathResult, Paths, Report};
use super::stats::Ratio;
use super::table::{figure, thousands};

/// The size of one row of panels; there is a row for each test.
const ROW: (u32, u32) = (1080, 340);
const TITLE_HEIGHT: u32 = 44;
const FOOTER_HEIGHT: u32 = 26;
const FONT: &str = "sans-serif";

/// Distinguishable for people who see few colours, and on paper.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x7f, 0x8c, 0x9b),
    RGBColor(0xe0, 0x9f, 0x3e),
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0x2a, 0x9d, 0x6f),
    RGBColor(0x9b, 0x5d, 0xb8),
    RGBColor(0xc4, 0x4e, 0x52),
];

/// Checks that a picture of this name can be drawn.
pub(crate) fn check(file: &Path) -> Result<(), BenchError> {
    match file.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("svg") => Ok(()),
        _ => Err(BenchError::Usage(format!("--plot {}: the picture is SVG, so name it .svg", file.display()))),
    }
}

/// Draws a result.
pub(crate) fn draw(report: &Report, file: &Path) -> Result<(), BenchError> {
    // Drawn in memory first: an error leaves no half a picture.
    let mut svg = String::new();
    draw_into(report, &mut svg).map_err(|error| BenchError::Plot { file: file.to_owned(), what: error.to_string() })?;
    std::fs::write(file, svg).map_err(BenchError::io(format!("writing {}", file.display())))
}

type Drawn = Result<(), Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One bar and what is written above it.
struct Bar {
    label: String,
    value: f64,
    captions: Vec<String>,
    colour: RGBColor,
    /// Paler: the second bar of a pair.
    pale: bool,
}

fn draw_into(report: &Report, svg: &mut String) -> Drawn {
    let tests = report.by_test();
    let height = ROW.1 * tests.len() as u32 + TITLE_HEIGHT + FOOTER_HEIGHT;
    let root = SVGBackend::with_string(svg, (ROW.0, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (title, rest) = root.split_vertically(TITLE_HEIGHT);
    let (rows, footer) = rest.split_vertically(height - TITLE_HEIGHT - FOOTER_HEIGHT);
    write(&title, (ROW.0 as i32 / 2, 26), 20, &BLACK, &headline(report))?;
    let machine = &report.machine;
    let rounds = report.paths.values().map(|path| path.runs.len()).max().unwrap_or(0);
    let place = format!(
        "medians of {rounds} interleaved rounds; x: ratio to tcp within a round; {} cores of {}, Linux {}, {}",
        machine.cores, machine.cpu, machine.kernel, machine.date
    );
    write(&footer, (ROW.0 as i32 / 2, 10), 12, &RGBColor(0x66, 0x66, 0x66), &place)?;
    for (row, (test, paths)) in rows.split_evenly((tests.len(), 1)).iter().zip(tests) {
        let panels = row.split_evenly((1, 3));
        let prefix = if test == report.bench { String::new() } else { format!("{}: ", test.to_uppercase()) };
        let (unit, bars) = throughput(report.counted(), paths);
        panel(&panels[0], &format!("{prefix}{unit}"), &bars)?;
        panel(&panels[1], &format!("{prefix}latency in µs: p50, and p99 (pale)"), &latency(paths))?;
        let (unit, bars) = server_cpu(report.counted(), paths);
        panel(&panels[2], &format!("{prefix}{unit}"), &bars)?;
    }
    root.present()?;
    Ok(())
}

fn headline(report: &Report) -> String {
    let shown = ["clients", "size", "threads", "mode", "streams", "pipeline", "exchange", "requests_per_connection"];
    let settings: Vec<_> = shown
        .iter()
        .filter_map(|name| Some(format!("{name} {}", report.params.get(name)?.to_string().trim_matches('"'))))
        .collect();
    let doubt = if report.warnings.is_empty() { "" } else { "  (with warnings!)" };
    format!("netacc bench {}: {}{doubt}", report.bench, settings.join(", "))
}

fn throughput(counted: &str, paths: &Paths) -> (String, Vec<Bar>) {
    let bulk = paths.values().any(|path| path.bytes_per_s.is_some());
    let value = |path: &PathResult| match path.bytes_per_s {
        Some(bytes) => bytes / f64::from(1 << 30),
        None => path.requests_per_s,
    };
    let write = |value: f64| {
        if bulk {
            format!("{value:.2}")
        } else {
            thousands(value)
        }
    };
    let unit = if bulk { "GiB per second".to_owned() } else { format!("{counted} per second") };
    (unit, bars(paths, value, write, |path| path.ratio_to_tcp))
}

fn server_cpu(counted: &str, paths: &Paths) -> (String, Vec<Bar>) {
    let value = |path: &PathResult| path.server_cpu_s_per_gib.unwrap_or(path.server_cpu_s_per_million);
    let bulk = paths.values().any(|path| path.server_cpu_s_per_gib.is_some());
    let unit = if bulk { "server CPU s per GiB".to_owned() } else { format!("server CPU s per million {counted}") };
    (unit, bars(paths, value, |value| format!("{value:.2}"), |path| path.ratio_server_cpu_to_tcp))
}

fn latency(paths: &Paths) -> Vec<Bar> {
    let p50 = bars(paths, |path| path.latency_us.p50, figure, |path| path.ratio_p50_to_tcp);
    let p99 = bars(paths, |path| path.latency_us.p99, figure, |path| path.ratio_p99_to_tcp);
    let p99 = p99.into_iter().map(|bar| Bar { pale: true, label: String::new(), ..bar });
    p50.into_iter().zip(p99).flat_map(|(one, other)| [one, other]).collect()
}

fn bars(
    paths: &Paths,
    value: impl Fn(&PathResult) -> f64,
    write: impl Fn(f64) -> String,
    ratio: impl Fn(&PathResult) -> Option<Ratio>,
) -> Vec<Bar> {
    let bar = |((name, path), colour): ((&String, &PathResult), &RGBColor)| {
        let value = value(path);
        let ratio = ratio(path).filter(|_| name != super::paths::REFERENCE);
        let captions = ratio.map(|ratio| format!("{:.2}x", ratio.median)).into_iter().chain([write(value)]).collect();
        Bar { label: name.clone(), value, captions, colour: *colour, pale: false }
    };
    paths.iter().zip(COLOURS.iter().cycle()).map(bar).collect()
}

/// Bars from zero, each with its figures above it. A label stands below its bar and the unlabelled
/// bars after it.
fn panel(area: &Area<'_>, title: &str, bars: &[Bar]) -> Drawn {
    const LINE: i32 = 16;
    let (width, height) = area.dim_in_pixel();
    let (width, height) = (width as i32, height as i32);
    let (left, right, top, bottom) = (24, width - 24, 84, height - 36);
    let highest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let grey = RGBColor(0x55, 0x55, 0x55);
    write(area, (width / 2, 20), 15, &grey, title)?;
    area.draw(&PathElement::new(vec![(left, bottom), (right, bottom)], grey))?;
    // A labelled bar begins a group; between groups there is a gap as wide as half a bar.
    let groups = bars.iter().filter(|bar| !bar.label.is_empty()).count().max(1);
    let unit = f64::from(right - left) / (bars.len() as f64 + 0.5 * (groups + 1) as f64);
    let mut x = f64::from(left);
    for (index, bar) in bars.iter().enumerate() {
        if !bar.label.is_empty() {
            x += unit / 2.0;
            let members = 1 + bars[index + 1..].iter().take_while(|bar| bar.label.is_empty()).count();
            let middle = x + unit * members as f64 / 2.0;
            write(area, (middle as i32, bottom + 16), 15, &BLACK, &bar.label)?;
        }
        let share = if highest > 0.0 { bar.value / highest } else { 0.0 };
        let y = bottom - (f64::from(bottom - top) * share) as i32;
        let corners = [((x + 2.0) as i32, y), ((x + unit - 2.0) as i32, bottom)];
        let colour = bar.colour.mix(if bar.pale { 0.5 } else { 1.0 });
        area.draw(&Rectangle::new(corners, colour.filled()))?;
        for (line, caption) in (0..).zip(bar.captions.iter().rev()) {
            let (size, colour) = if line == 0 { (12, &BLACK) } else { (13, &bar.colour) };
            write(area, ((x + unit / 2.0) as i32, y - 10 - LINE * line), size, colour, caption)?;
        }
        x += unit;
    }
    Ok(())
}

fn write(area: &Area<'_>, at: (i32, i32), size: i32, colour: &RGBColor, text: &str) -> Drawn {
    let style = (FONT, size).into_font().color(colour).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::machine::Machine;
    use crate::bench::result::{summarise, tests::run, Kind};
    use indexmap::IndexMap;
    use serde_json::json;

    #[test]
    fn the_picture_has_every_path_and_its_ratio() {
        let runs = IndexMap::from([("tcp".to_owned(), vec![run(1, 1000.0)]), ("shm".to_owned(), vec![run(1, 3140.0)])]);
        let report = Report {
            bench: "redis".into(),
            test: "set".into(),
            params: json!({"clients": 100}),
            machine: Machine::here(),
            paths: summarise(runs, Kind::Requests),
            tests: IndexMap::new(),
            skipped: IndexMap::new(),
            warnings: Vec::new(),
        };
        let mut svg = String::new();
        draw_into(&report, &mut svg).expect("drawing into memory");
        for text in ["tcp", "shm", "3.14x", "3,140", "clients 100", "SET: requests per second"] {
            assert!(svg.contains(text), "no '{text}' in {svg}");
        }
    }

    #[test]
    fn only_svg() {
        assert!(check(Path::new("a/b.SVG")).is_ok());
        assert_eq!(check(Path::new("b.png")).expect_err("not SVG").exit_code(), 2);
    }
}
