//! The outputs of a result: table, JSON, plot.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::args::CommonArgs;
use super::error::BenchError;
use super::plot;
use super::quiet::warn;
use super::result::Report;
use super::table;

const STANDARD: &str = "-";

/// Checks before the measurements, not after them, that a result can be written.
pub(crate) fn check_outputs(args: &CommonArgs) -> Result<(), BenchError> {
    args.plot.as_deref().map_or(Ok(()), plot::check)?;
    [&args.json, &args.plot].into_iter().flatten().try_for_each(|file| check_directory(file))
}

/// Checks that there is a directory for a file.
pub(crate) fn check_directory(file: &Path) -> Result<(), BenchError> {
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    if dir.is_dir() {
        return Ok(());
    }
    Err(BenchError::Usage(format!("{}: there is no directory {}", file.display(), dir.display())))
}

/// Writes an object into a file, or to standard output.
pub(crate) fn write_object(object: &impl Serialize, file: &Path) -> Result<(), BenchError> {
    let json = serde_json::to_string_pretty(object).expect("it has nothing that JSON cannot hold") + "\n";
    let written = if file.as_os_str() == STANDARD {
        io::stdout().lock().write_all(json.as_bytes())
    } else {
        fs::write(file, json)
    };
    written.map_err(BenchError::io(format!("writing {}", file.display())))
}

/// Writes a result according to the arguments. With `--json -` only the object goes to standard output.
pub(crate) fn give_out(report: &Report, args: &CommonArgs) -> Result<(), BenchError> {
    let table = table::render(report);
    let json_to_stdout = args.json.as_deref().is_some_and(|file| file.as_os_str() == STANDARD);
    if json_to_stdout {
        eprint!("{table}");
    } else {
        print!("{table}");
        // Warnings are in the table; a user who has redirected that must still see them.
        report.warnings.iter().for_each(|warning| warn(&format!("netacc bench: WARNING: {warning}")));
    }
    args.json.as_deref().map_or(Ok(()), |file| write_object(report, file))?;
    args.plot.as_deref().map_or(Ok(()), |file| plot::draw(report, file))
}
