//! Arguments of `netacc_ss`, and the sections that can be requested.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};
use netacc_config::stats::Snapshot;

/// The original's text, with our `--json` and the list in it.
pub(super) const HELP: &str = "\
Usage:
 netacc_ss: [-p] <pid> [options]...
 Show monitoring information of specified netacc process

Options:
 -c   clear unused sock file
 -h   display this help
 -s   display specified monitoring metric[s]. [all|cfg|cnt|mem|qp|sock]
      all: all monitoring information
      cfg: configuration information
      cnt: counter information[default]
      mem: memory information
      qp : queue pair information
      sock: socket information, of TCP and UDP
 -v   display netacc version
 --json  display as JSON
 --record <dir>  keep the metrics as a time series in a new folder, until
      <pid> ends or Ctrl-C (netacc report <dir> shows it); with
      --every <time> [1s] and --for <time>, as in 100ms, 10s, 5min

Without <pid>, lists the accelerated processes that you may query.

Examples:
 netacc_ss -p 12345 -s mem,cnt
 netacc_ss -p 12345 --record counters --every 1s --for 1min
";

/// The request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Invocation {
    Help,
    Version,
    Clear,
    List { json: bool },
    Show { pid: u32, sections: Sections, json: bool },
    Record(Recording),
}

/// A time series to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recording {
    pub(super) pid: u32,
    pub(super) sections: Sections,
    pub(super) folder: PathBuf,
    pub(super) every: Duration,
    /// Without it, until the process ends or the user interrupts.
    pub(super) length: Option<Duration>,
}

/// Between two samples, if the user does not say.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(super) enum ArgsError {
    #[error("{0}; see netacc_ss -h")]
    Syntax(#[from] lexopt::Error),
    #[error("{0:?} is not a process id")]
    BadPid(String),
    #[error("more than one process id; see netacc_ss -h")]
    TwoPids,
    #[error("-s {0:?}: not allowed; allowed: all, or a list of cfg,cnt,mem,qp,sock")]
    BadSection(String),
    #[error("-s needs a process id: netacc_ss -p PID -s ...")]
    SectionWithoutPid,
    #[error("-c takes no other option")]
    ClearWithOthers,
    #[error("{0} {1:?} is not a time above 0, such as 100ms or 10s")]
    BadTime(&'static str, String),
    #[error("--record needs a process id, and takes no --json: netacc_ss -p PID --record DIR")]
    RecordAlone,
    #[error("--every and --for belong to --record: netacc_ss -p PID --record DIR --every 1s")]
    TimeWithoutRecord,
}

/// Parts of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sections {
    cfg: bool,
    cnt: bool,
    mem: bool,
    qp: bool,
    sock: bool,
}

impl Sections {
    const ALL: Self = Self { cfg: true, cnt: true, mem: true, qp: true, sock: true };

    /// The default sections.
    const COUNTERS: Self = Self { cnt: true, cfg: false, mem: false, qp: false, sock: false };

    fn parse(list: &str) -> Result<Self, ArgsError> {
        let mut sections = Self::default();
        for name in list.split(',') {
            match name.trim() {
                "all" => sections = Self::ALL,
                "cfg" => sections.cfg = true,
                "cnt" => sections.cnt = true,
                "mem" => sections.mem = true,
                "qp" => sections.qp = true,
                "sock" => sections.sock = true,
                _ => return Err(ArgsError::BadSection(list.to_owned())),
            }
        }
        Ok(sections)
    }

    /// In the protocol's form: `all`, or a comma list.
    pub(super) fn request(self) -> String {
        if self == Self::ALL {
            return "all".to_owned();
        }
        let Self { cfg, cnt, mem, qp, sock } = self;
        let parts = [(cfg, "cfg"), (cnt, "cnt"), (mem, "mem"), (qp, "qp"), (sock, "sock")];
        let names: Vec<_> = parts.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        names.join(",")
    }

    /// Removes sections that were sent without being requested.
    pub(super) fn keep_only(self, snapshot: &mut Snapshot) {
        if !self.cfg {
            snapshot.cfg = None;
            snapshot.problems.clear();
        }
        if !self.cnt {
            snapshot.cnt = None;
            snapshot.reasons = None;
        }
        if !self.mem {
            snapshot.mem = None;
        }
        if !self.qp {
            snapshot.qp = None;
        }
        if !self.sock {
            snapshot.sock = None;
            snapshot.udp = None;
        }
    }
}

/// Parses arguments, the program's own name first.
pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, ArgsError> {
    // Collected because lexopt keeps what it has not parsed yet.
    let mut parser = Parser::from_iter(arguments.into_iter().collect::<Vec<_>>());
    let (mut pid, mut sections, mut json, mut clear) = (None, None, false, false);
    let (mut record, mut every, mut length) = (None, None, None);
    let mut set_pid = |text: String| match pid.replace(process_id(&text)?) {
        None => Ok(()),
        Some(_) => Err(ArgsError::TwoPids),
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Invocation::Help),
            Arg::Short('v') | Arg::Long("version") => return Ok(Invocation::Version),
            Arg::Short('c') => clear = true,
            Arg::Short('p') => set_pid(parser.value()?.string()?)?,
            Arg::Value(text) => set_pid(text.string()?)?,
            Arg::Short('s') => sections = Some(Sections::parse(&parser.value()?.string()?)?),
            Arg::Long("json") => json = true,
            Arg::Long("record") => record = Some(PathBuf::from(parser.value()?)),
            Arg::Long("every") => every = Some(time("--every", parser.value()?.string()?)?),
            Arg::Long("for") => length = Some(time("--for", parser.value()?.string()?)?),
            other => return Err(other.unexpected().into()),
        }
    }
    if let Some(folder) = record {
        let (Some(pid), false, false) = (pid, json, clear) else { return Err(ArgsError::RecordAlone) };
        let (sections, every) = (sections.unwrap_or(Sections::COUNTERS), every.unwrap_or(EVERY));
        return Ok(Invocation::Record(Recording { pid, sections, folder, every, length }));
    }
    if every.is_some() || length.is_some() {
        return Err(ArgsError::TimeWithoutRecord);
    }
    match (clear, pid, sections) {
        (true, None, None) if !json => Ok(Invocation::Clear),
        (true, ..) => Err(ArgsError::ClearWithOthers),
        (false, None, None) => Ok(Invocation::List { json }),
        (false, None, Some(_)) => Err(ArgsError::SectionWithoutPid),
        (false, Some(pid), sections) => {
            Ok(Invocation::Show { pid, sections: sections.unwrap_or(Sections::COUNTERS), json })
        }
    }
}

fn time(option: &'static str, text: String) -> Result<Duration, ArgsError> {
    match humantime::parse_duration(&text) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(ArgsError::BadTime(option, text)),
    }
}

fn process_id(text: &str) -> Result<u32, ArgsError> {
    match text.parse::<i32>() {
        Ok(pid @ 1..) if !text.starts_with('+') => Ok(pid.unsigned_abs()),
        _ => Err(ArgsError::BadPid(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Invocation, String> {
        let arguments = std::iter::once("netacc_ss").chain(line.split_ascii_whitespace());
        parse(arguments.map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_the_original_s() {
        let show = |sections, json| Ok(Invocation::Show { pid: 12, sections, json });
        assert_eq!(parsed("-p 12"), show(Sections::COUNTERS, false));
        assert_eq!(parsed("12"), show(Sections::COUNTERS, false), "-p may be left out");
        assert_eq!(parsed("-s all -p12 --json"), show(Sections::ALL, true));
        let some = Sections::parse("mem,cnt").expect("the example of the help");
        assert_eq!(parsed("-p 12 -s mem,cnt"), show(some, false));
        assert_eq!((some.request().as_str(), Sections::ALL.request().as_str()), ("cnt,mem", "all"));
        let kept = |every, length| {
            let (pid, sections, folder) = (12, Sections::COUNTERS, PathBuf::from("d"));
            Ok(Invocation::Record(Recording { pid, sections, folder, every, length }))
        };
        assert_eq!(parsed("-p 12 --record d"), kept(Duration::from_secs(1), None));
        let short = kept(Duration::from_millis(100), Some(Duration::from_secs(120)));
        assert_eq!(parsed("12 --record=d --every 100ms --for 2min"), short);
        assert_eq!(parsed(""), Ok(Invocation::List { json: false }));
        assert_eq!(parsed("-c"), Ok(Invocation::Clear));
        assert_eq!(parsed("-h"), Ok(Invocation::Help));
        assert_eq!(parsed("-v"), Ok(Invocation::Version));
    }

    #[test]
    fn invalid_arguments_are_reported() {
        for (line, message) in [
            ("-p 0", "\"0\" is not a process id"),
            ("-p redis", "\"redis\" is not a process id"),
            ("-p 1 2", "more than one process id; see netacc_ss -h"),
            ("-p 1 -s cpu", "-s \"cpu\": not allowed; allowed: all, or a list of cfg,cnt,mem,qp,sock"),
            ("-s sock", "-s needs a process id: netacc_ss -p PID -s ..."),
            ("-c -p 1", "-c takes no other option"),
            ("--record d", "--record needs a process id, and takes no --json: netacc_ss -p PID --record DIR"),
            (
                "-p 1 --record d --json",
                "--record needs a process id, and takes no --json: netacc_ss -p PID --record DIR",
            ),
            ("-p 1 --record d --every 0s", "--every \"0s\" is not a time above 0, such as 100ms or 10s"),
            ("-p 1 --record d --for x", "--for \"x\" is not a time above 0, such as 100ms or 10s"),
            ("-p 1 --for 1s", "--every and --for belong to --record: netacc_ss -p PID --record DIR --every 1s"),
        ] {
            assert_eq!(parsed(line), Err(message.to_owned()));
        }
        assert!(parsed("-x").is_err());
    }
}
