//! Arguments of `netacc_run`, in getopt's manner: `-t 4`, `-t4`, `-dT`; options end at COMMAND.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser, ValueExt};
use netacc_config::KEYS;

/// The original's text, to the letter. Its "default 4" for `-t` contradicts the file's 1: without `-t` nothing is set,
/// and the file decides. For values that the text does not describe, see [`KEYS`].
pub(super) const HELP: &str = "\
Usage: netacc_run [ OPTIONS ] COMMAND

Run COMMAND using NetACC for TCP sockets

OPTIONS:
   -f <path>   set config file, default /etc/netacc.conf
   -p <num>    set max connections per QP, default 1
   -t <num>    set netacc io threads, default 4
   -s <num>    set netacc message size, default 16384
   -F <num>    fast connect mode, default 0
   -d          enable debug mode
   -T          use TCP first in connect
   -P <num>    polling cq time ms
   -A <str>    affinity CPU list, 0 | 1-3 | 1,3,4
   -i <num>    set cq comp_vector, default 0
   -h          display this message
   -v          display version info
";

/// The request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Invocation {
    Help,
    Version,
    Run(Request),
}

/// A program to run, and how.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    /// `-f`.
    pub(super) config_path: Option<PathBuf>,
    /// Flags that stand for keys, with values that those allow, in the order given.
    pub(super) settings: Vec<(char, String)>,
    pub(super) command: OsString,
    pub(super) arguments: Vec<OsString>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ArgsError {
    #[error("no COMMAND; see netacc_run -h")]
    NoCommand,
    #[error("{0}; see netacc_run -h")]
    Syntax(#[from] lexopt::Error),
    #[error("-{flag} {value:?}: not allowed; allowed: {allowed}")]
    BadValue { flag: char, value: String, allowed: String },
    #[error("-f needs the path of a file")]
    EmptyPath,
}

/// Parses arguments, the program's own name first.
pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, ArgsError> {
    // Collected because lexopt keeps what it has not parsed yet.
    let mut parser = Parser::from_iter(arguments.into_iter().collect::<Vec<_>>());
    let mut request = Request::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Invocation::Help),
            Arg::Short('v') | Arg::Long("version") => return Ok(Invocation::Version),
            Arg::Short('f') => {
                let path = parser.value()?;
                if path.is_empty() {
                    return Err(ArgsError::EmptyPath);
                }
                request.config_path = Some(path.into());
            }
            Arg::Short(flag @ ('d' | 'T')) => request.settings.push((flag, "1".to_owned())),
            Arg::Short(flag @ ('p' | 't' | 's' | 'F' | 'P' | 'A' | 'i')) => {
                let value = parser.value()?.string()?;
                check(flag, &value)?;
                request.settings.push((flag, value));
            }
            Arg::Value(command) => {
                request.command = command;
                request.arguments = parser.raw_args()?.collect();
                return Ok(Invocation::Run(request));
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Err(ArgsError::NoCommand)
}

fn check(flag: char, value: &str) -> Result<(), ArgsError> {
    match KEYS.iter().find(|key| key.flag == Some(flag)) {
        Some(key) if !key.accepts(value) => {
            Err(ArgsError::BadValue { flag, value: value.to_owned(), allowed: key.allowed() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Invocation, String> {
        let arguments = std::iter::once("netacc_run").chain(arguments.iter().copied());
        parse(arguments.map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_end_at_the_command() {
        let expected = Request {
            config_path: Some("a.conf".into()),
            settings: [('t', "4"), ('d', "1"), ('T', "1"), ('P', "-1"), ('p', "8")]
                .map(|(flag, value)| (flag, value.to_owned()))
                .into(),
            command: "prog".into(),
            arguments: ["-t", "x", "--", "-h"].map(OsString::from).into(),
        };
        let line = "-fa.conf -t 4 -dT -P -1 -p8 prog -t x -- -h";
        let arguments: Vec<_> = line.split(' ').collect();
        assert_eq!(parsed(&arguments), Ok(Invocation::Run(expected)));

        let after_dashes = parsed(&["--", "-prog", "a"]);
        let expected = Request { command: "-prog".into(), arguments: vec!["a".into()], ..Request::default() };
        assert_eq!(after_dashes, Ok(Invocation::Run(expected)));
    }

    #[test]
    fn every_flag_that_has_a_key_is_taken_and_checked() {
        for key in KEYS {
            let Some(flag) = key.flag else { continue };
            assert!(HELP.contains(&format!("\n   -{flag} ")), "-{flag} has no help");
            let flag = format!("-{flag}");
            if flag == "-d" || flag == "-T" {
                assert!(parsed(&[&flag, "true"]).is_ok());
            } else {
                let error = parsed(&[&flag, "bad", "true"]).expect_err("not a value");
                assert_eq!(error, format!("{flag} \"bad\": not allowed; allowed: {}", key.allowed()));
                assert!(parsed(&[&flag]).is_err(), "{flag} without a value");
            }
        }
    }

    #[test]
    fn invalid_arguments_are_reported() {
        assert!(matches!(parse(["netacc_run".into()]), Err(ArgsError::NoCommand)));
        assert_eq!(parsed(&["-h", "x"]), Ok(Invocation::Help));
        assert_eq!(parsed(&["-v"]), Ok(Invocation::Version));
        assert!(parsed(&["-x", "true"]).is_err_and(|error| error.contains("'-x'")));
        assert!(parsed(&["-f", "", "true"]).is_err());
        assert!(parsed(&["-t", "-2", "true"]).is_err_and(|error| error.contains("\"-2\"")));
    }
}
