//! A trace of one host in a file, to be joined with that of another one.
//!
//! JSON Lines: a header, and then a line for the beginning of each window, followed by a line for each of its events: the
//! number of its process, its time in nanoseconds, and the other words of [`Event::encode`]. The file is from another host,
//! so nothing in it is trusted: numbers of processes are checked, and what does not decode ends the reading with the number
//! of its line.

use std::io::{self, BufRead, Write};

use netacc_config::trace::{Event, EVENT_WORDS};
use serde::{Deserialize, Serialize};

use crate::message::{Process, Stamped, Window};

/// Of the format.
const VERSION: u32 = 1;

/// A trace of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its name.
    pub host: String,
    /// The processes.
    pub processes: Vec<Process>,
    /// The windows, in the order of their times.
    pub windows: Vec<SavedWindow>,
}

/// A window of events, by the host's own CLOCK_MONOTONIC, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedWindow {
    /// The same for windows of the same time on all hosts.
    pub number: u64,
    /// Messages that begin before this time are counted.
    pub counted_until: u64,
    /// In any order.
    pub events: Vec<Stamped>,
}

impl SavedWindow {
    /// For [`crate::message::Messages`], which need no number.
    pub fn counted(self) -> Window {
        Window { counted_until: self.counted_until, events: self.events }
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    netacc_trace: u32,
    host: String,
    processes: Vec<(u32, String)>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Event(usize, [u64; EVENT_WORDS - 1]),
    Window { window: u64, counted_until: u64 },
}

/// The reason why a file is no trace. Prints as one line.
#[derive(Debug)]
pub enum Unreadable {
    /// The system's error.
    Io(io::Error),
    /// The line with this number is not what it should be.
    Line(usize),
    /// The file is of a later version.
    Version(u32),
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unreadable::Io(error) => error.fmt(f),
            Unreadable::Line(number) => write!(f, "line {number} is not of a trace, or was cut short"),
            Unreadable::Version(version) => {
                write!(f, "version {version} is later than {VERSION}, which this program reads")
            }
        }
    }
}

impl std::error::Error for Unreadable {}

impl Trace {
    /// Writes it.
    ///
    /// # Errors
    /// The writer's.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut line = |value: &dyn Fn(&mut Vec<u8>) -> serde_json::Result<()>| {
            let mut bytes = Vec::new();
            value(&mut bytes)?;
            bytes.push(b'\n');
            out.write_all(&bytes)
        };
        let processes = self.processes.iter().map(|process| (process.pid, process.program.clone())).collect();
        let header = Header { netacc_trace: VERSION, host: self.host.clone(), processes };
        line(&|bytes| serde_json::to_writer(bytes, &header))?;
        for window in &self.windows {
            let begin = Line::Window { window: window.number, counted_until: window.counted_until };
            line(&|bytes| serde_json::to_writer(bytes, &begin))?;
            for Stamped { time, process, event } in &window.events {
                let event = Line::Event(*process, Event { time: *time, ..*event }.encode());
                line(&|bytes| serde_json::to_writer(bytes, &event))?;
            }
        }
        Ok(())
    }

    /// Reads it.
    ///
    /// # Errors
    /// See [`Unreadable`].
    pub fn read(from: impl BufRead) -> Result<Trace, Unreadable> {
        let mut lines = from.lines().enumerate();
        let first = lines.next().ok_or(Unreadable::Line(1))?.1.map_err(Unreadable::Io)?;
        let header: Header = serde_json::from_str(&first).map_err(|_| Unreadable::Line(1))?;
        if header.netacc_trace != VERSION {
            return Err(Unreadable::Version(header.netacc_trace));
        }
        let processes = header.processes.into_iter().map(|(pid, program)| Process { pid, program }).collect();
        let mut trace = Trace { host: header.host, processes, windows: Vec::new() };
        for (number, line) in lines {
            let line = line.map_err(Unreadable::Io)?;
            let wrong = || Unreadable::Line(number + 1);
            match serde_json::from_str(&line).map_err(|_| wrong())? {
                Line::Window { window, counted_until } => {
                    trace.windows.push(SavedWindow { number: window, counted_until, events: Vec::new() });
                }
                Line::Event(process, words) => {
                    let event = Event::decode(&words).filter(|_| process < trace.processes.len()).ok_or_else(wrong)?;
                    let window = trace.windows.last_mut().ok_or_else(wrong)?;
                    window.events.push(Stamped { time: event.time, process, event });
                }
            }
        }
        Ok(trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_config::trace::Point;

    fn trace() -> Trace {
        let event = Event {
            time: 5,
            point: Point::Read,
            thread: 2,
            connection: u64::MAX,
            lower: true,
            local_port: 3,
            remote_port: 4,
            position: 6,
            amount: 7,
            opener: true,
            reason: 8,
        };
        let window =
            |number| SavedWindow { number, counted_until: 9, events: vec![Stamped { time: 5, process: 1, event }] };
        let processes = [(1, "a"), (2, "b")].map(|(pid, program)| Process { pid, program: program.into() });
        Trace { host: "here".into(), processes: processes.into(), windows: vec![window(1), window(2)] }
    }

    fn written() -> String {
        let mut bytes = Vec::new();
        trace().write(&mut bytes).expect("memory");
        String::from_utf8(bytes).expect("JSON is text")
    }

    fn error(text: &str) -> String {
        Trace::read(text.as_bytes()).expect_err("it is wrong").to_string()
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Trace::read(written().as_bytes()).expect("as written"), trace());
    }

    #[test]
    fn each_wrong_line_is_named() {
        let whole = written();
        assert_eq!(error(""), "line 1 is not of a trace, or was cut short");
        assert_eq!(error(&whole[..whole.len() - 5]), "line 5 is not of a trace, or was cut short");
        assert_eq!(error(&whole.replace("[1,[", "[2,[")), "line 3 is not of a trace, or was cut short");
        assert!(error(&whole.replacen("\"netacc_trace\":1", "\"netacc_trace\":2", 1)).starts_with("version 2 is later"));
        let without_window: Vec<&str> = whole.lines().filter(|line| !line.contains("window")).collect();
        assert_eq!(error(&without_window.join("\n")), "line 2 is not of a trace, or was cut short");
    }
}
