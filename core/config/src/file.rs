//! Reads the file's format into settings with line numbers: `[section]`, `KEY=value`, `KEY="value"`,
//! comments after `#` or `;`, one byte-order mark, either line ending. There are no escapes and no
//! continuation lines.
//!
//! Written by hand because no maintained parser of such files both gives the line of every value and continues after an
//! error. Both are needed to report all problems of a file, one line each.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::problem::{Origin, Problem, ProblemKind};

/// A setting of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) line: usize,
    pub(crate) key: String,
    pub(crate) value: String,
}

/// Arbitrary, and far above any configuration; keeps a wrong path from costing memory and time.
const FILE_LIMIT: usize = 64 << 10;

/// Reads a file, which may be missing only if it was not requested.
///
/// # Errors
/// It cannot be read, is no regular file (nor /dev/null, the usual name for no file), or is too long.
pub(crate) fn read(path: &Path, must_exist: bool) -> Result<Vec<u8>, ProblemKind> {
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            return Ok(Vec::new());
        }
        other => other.map_err(ProblemKind::Unreadable)?,
    };
    if !metadata.is_file() && path != Path::new("/dev/null") {
        return Err(ProblemKind::NotAFile);
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_LIMIT as u64 + 1).read_to_end(&mut bytes))
        .map_err(ProblemKind::Unreadable)?;
    if bytes.len() > FILE_LIMIT {
        return Err(ProblemKind::TooLong { limit: FILE_LIMIT });
    }
    Ok(bytes)
}

/// Parses `bytes`. `path` is for the problems only.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> (Vec<Setting>, Vec<Problem>) {
    let mut settings = Vec::new();
    let mut problems = Vec::new();
    let mut section = Section::None;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    for (index, raw) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = index + 1;
        let mut report = |key: Option<&str>, value: &str, kind| {
            problems.push(Problem {
                origin: Origin::File { path: path.to_owned(), line },
                key: key.map(str::to_owned),
                value: Some(value.to_owned()),
                kind,
            });
        };
        match (classify(raw.trim_ascii()), section) {
            (Line::Nothing, _) => {}
            (Line::Section(name), _) if name.eq_ignore_ascii_case("netacc") => {
                section = Section::Ours;
            }
            (Line::Section(name), _) => {
                section = Section::Other;
                report(None, &format!("[{name}]"), ProblemKind::UnknownSection);
            }
            // Reported once, at the section's own line.
            (_, Section::Other) => {}
            (Line::Bad { key, text, kind }, _) => report(key, &text, kind),
            (Line::Setting { key, value }, Section::None) => {
                report(Some(key), value, ProblemKind::OutsideSection);
            }
            (Line::Setting { key, value }, Section::Ours) => {
                settings.push(Setting { line, key: key.to_owned(), value: value.to_owned() })
            }
        }
    }
    (settings, problems)
}

#[derive(Clone, Copy)]
enum Section {
    None,
    Ours,
    Other,
}

enum Line<'a> {
    Nothing,
    Section(&'a str),
    Setting { key: &'a str, value: &'a str },
    Bad { key: Option<&'a str>, text: String, kind: ProblemKind },
}

fn classify(raw: &[u8]) -> Line<'_> {
    // Before the encoding is checked, because comments are often in another one.
    if raw.is_empty() || is_comment(raw) {
        return Line::Nothing;
    }
    let Ok(text) = std::str::from_utf8(raw) else {
        let kind = ProblemKind::NotUtf8;
        let mut parts = raw.splitn(2, |&byte| byte == b'=');
        let key = parts.next().map(|key| std::str::from_utf8(key.trim_ascii()));
        let (key, text) = match (key, parts.next()) {
            (Some(Ok(key)), Some(value)) => (Some(key), value.trim_ascii()),
            _ => (None, raw),
        };
        let text = String::from_utf8_lossy(text).into_owned();
        return Line::Bad { key, text, kind };
    };
    if let Some(rest) = text.strip_prefix('[') {
        if let Some((name, after)) = rest.split_once(']') {
            if after.trim().is_empty() || is_comment(after.trim().as_bytes()) {
                return Line::Section(name.trim());
            }
        }
    }
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() && !text.starts_with('[') => setting(key.trim(), value.trim()),
        _ => Line::Bad { key: None, text: text.to_owned(), kind: ProblemKind::NotASetting },
    }
}

fn setting<'a>(key: &'a str, value: &'a str) -> Line<'a> {
    for quote in ['"', '\''] {
        let Some(rest) = value.strip_prefix(quote) else {
            continue;
        };
        return match rest.split_once(quote) {
            Some((inner, after)) if after.trim().is_empty() || is_comment(after.trim().as_bytes()) => {
                Line::Setting { key, value: inner }
            }
            _ => Line::Bad { key: Some(key), text: value.to_owned(), kind: ProblemKind::BadQuotes },
        };
    }
    // Without quotes a comment begins at a # or ; that starts a word, so that a path may have one.
    let mut after_space = true;
    let comment = value.char_indices().find(|&(_, c)| {
        let starts = after_space && (c == '#' || c == ';');
        after_space = c.is_whitespace();
        starts
    });
    let end = comment.map_or(value.len(), |(at, _)| at);
    Line::Setting { key, value: value[..end].trim_end() }
}

fn is_comment(text: &[u8]) -> bool {
    matches!(text.first(), Some(b'#' | b';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Vec<(usize, String, String)> {
        let (settings, problems) = parse(Path::new("f"), text.as_bytes());
        assert!(problems.is_empty(), "{problems:?}");
        settings.into_iter().map(|s| (s.line, s.key, s.value)).collect()
    }

    fn problems(bytes: &[u8]) -> Vec<String> {
        parse(Path::new("f"), bytes).1.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn settings_are_read_however_they_are_spaced_quoted_and_commented() {
        let text = "\u{feff}; intro\r\n  [ netacc ] # ours\r\n\r\nA = 1 # one\r\nB=\"a # b\" ; two\r\nC='x\"y'\nD=/a#b;c\nE=\nF==\n";
        let found = settings(text);
        let expected =
            [(4, "A", "1"), (5, "B", "a # b"), (6, "C", "x\"y"), (7, "D", "/a#b;c"), (8, "E", ""), (9, "F", "=")];
        let expected: Vec<_> = expected.iter().map(|(l, k, v)| (*l, (*k).to_owned(), (*v).to_owned())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn comments_in_any_encoding_are_passed_over() {
        assert!(problems(b"[netacc]\n# \xc8\xd5\xd6\xbe\n;\xff\n").is_empty());
    }

    #[test]
    fn every_bad_line_is_reported_once_with_its_number() {
        let reported = problems(b"A=1\n[other]\nB=2\nC\n[netacc]\nhello\n=3\nD=\"x\nE=\"x\" y\nF=\xff\n[netacc\n");
        assert_eq!(
            reported,
            [
                "f:1: A=\"1\": is outside a section, ignored; allowed: after the line [netacc]",
                "f:2: [other]: unknown section, ignored with its lines; allowed: [netacc]",
                "f:6: hello: not a setting, ignored; allowed: KEY=value, [netacc], # comment",
                "f:7: =3: not a setting, ignored; allowed: KEY=value, [netacc], # comment",
                "f:8: D=\"x: badly quoted, ignored; allowed: \"value\" with nothing but a comment after it",
                "f:9: E=\"x\" y: badly quoted, ignored; allowed: \"value\" with nothing but a comment after it",
                "f:10: F=\"\u{fffd}\": not UTF-8 text, ignored; allowed: UTF-8",
                "f:11: [netacc: not a setting, ignored; allowed: KEY=value, [netacc], # comment",
            ]
        );
    }
}
