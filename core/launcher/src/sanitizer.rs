//! Programs that are built with a sanitizer: its runtime must see the program's calls before the library does.
//!
//! The dynamic linker puts preloaded libraries before those that the program needs. AddressSanitizer refuses to run
//! then, and interceptors do not see the library's effects. So a shared runtime is preloaded too, and first. A runtime
//! that is linked into the program comes first anyway.
//!
//! A guess, as all of [`program`](super::program): an unreadable or unknown file counts as a program without a
//! sanitizer.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::{self, Dynamic};
use super::executable::Executable;

/// Between the runtime and the rest of `LD_PRELOAD`. The library removes the part before it for the programs that this
/// one starts; the dynamic linker skips the empty name.
const MARK: &str = "::";

const TSAN_VARIABLE: &str = "TSAN_OPTIONS";
/// The library is not instrumented, so the runtime does not see what synchronises its threads. And it has a thread,
/// also in a program with only one thread, and in each child of it.
const TSAN_OPTIONS: &[(&str, &str)] = &[("ignore_noninstrumented_modules", "1"), ("die_after_fork", "0")];

/// The sanitizers of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sanitizer {
    /// The shared runtime, as `LD_PRELOAD` has to name it.
    pub(super) runtime: Option<OsString>,
    /// It may be ThreadSanitizer, shared or linked into the program. ThreadSanitizer's options have no effect on
    /// others.
    pub(super) may_watch_threads: bool,
}

/// The sanitizers of the program at `path`, whose file this is.
pub(super) fn of(path: &Path, file: &Executable) -> Sanitizer {
    let dynamic = elf::dynamic(file).unwrap_or_default();
    let shared = dynamic.needed.iter().find(|name| is_runtime(name));
    Sanitizer {
        runtime: shared.map(|name| locate(name, &dynamic, path)),
        may_watch_threads: match shared {
            Some(name) => is_one_of(name, &["libtsan.so", "libclang_rt.tsan"]),
            // Linked into the program by GCC, it can hardly be distinguished from others.
            None => dynamic.has_name("__sanitizer_") || dynamic.has_name("__tsan_"),
        },
    }
}

impl Sanitizer {
    /// `LD_PRELOAD` with the runtime first.
    pub(super) fn prepend(&self, list: OsString) -> OsString {
        let Some(runtime) = &self.runtime else { return list };
        let mut result = runtime.clone();
        result.push(MARK);
        result.push(list);
        result
    }

    /// A further environment variable that the program needs, with its value: the user's value, with additions.
    pub(super) fn variable(&self, old: Option<&OsStr>) -> Option<(&'static str, OsString)> {
        let old = old.unwrap_or_default();
        let is_chosen = |name: &str| old.as_bytes().windows(name.len()).any(|part| part == name.as_bytes());
        if !self.may_watch_threads {
            return None;
        }
        let ours =
            TSAN_OPTIONS.iter().filter(|(name, _)| !is_chosen(name)).map(|(name, value)| format!("{name}={value}"));
        let mut value = OsString::from(ours.collect::<Vec<_>>().join(":"));
        if !old.is_empty() && !value.is_empty() {
            value.push(":");
        }
        value.push(old);
        Some((TSAN_VARIABLE, value))
    }
}

/// The names of GCC's and Clang's. UndefinedBehaviorSanitizer's and LeakSanitizer's own runtimes do not intercept
/// socket calls.
fn is_runtime(name: &[u8]) -> bool {
    is_one_of(
        name,
        &["libasan.so", "libtsan.so", "libhwasan.so", "libclang_rt.asan", "libclang_rt.tsan", "libclang_rt.hwasan"],
    )
}

fn is_one_of(name: &[u8], runtimes: &[&str]) -> bool {
    runtimes.iter().any(|runtime| name.starts_with(runtime.as_bytes()))
}

/// The file in one of the program's own library directories, because the linker does not search these for `LD_PRELOAD`;
/// or else the bare name.
fn locate(name: &[u8], dynamic: &Dynamic, program: &Path) -> OsString {
    let name = OsStr::from_bytes(name);
    let origin = program.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned)).unwrap_or_default();
    let expand = |directory: &[u8]| -> PathBuf {
        let text = String::from_utf8_lossy(directory).replace("${ORIGIN}", "$ORIGIN");
        text.replace("$ORIGIN", &origin.to_string_lossy()).into()
    };
    let directories = dynamic.search_path.split(|byte| *byte == b':').filter(|directory| !directory.is_empty());
    let found = directories.map(|directory| expand(directory).join(name)).find(|file| file.exists());
    let found = found.filter(|file| !file.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' ')));
    found.map_or_else(|| name.to_owned(), PathBuf::into_os_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_runtime(name: &str) -> Sanitizer {
        Sanitizer { runtime: Some(name.into()), may_watch_threads: name.contains("tsan") }
    }

    #[test]
    fn the_runtime_goes_first_with_a_mark_behind_it() {
        assert_eq!(with_runtime("libasan.so.8").prepend("/l/n.so:a.so".into()), "libasan.so.8::/l/n.so:a.so");
        assert_eq!(Sanitizer::default().prepend("/l/n.so".into()), "/l/n.so");
    }

    #[test]
    fn options_of_the_user_stay_and_win() {
        let tsan = with_runtime("libtsan.so.2");
        let value = |old: Option<&str>| tsan.variable(old.map(OsStr::new)).map(|(_, value)| value);
        assert_eq!(value(None), Some("ignore_noninstrumented_modules=1:die_after_fork=0".into()));
        assert_eq!(
            value(Some("verbosity=1:die_after_fork=1")),
            Some("ignore_noninstrumented_modules=1:verbosity=1:die_after_fork=1".into())
        );
        assert_eq!(with_runtime("libasan.so.8").variable(None), None);
    }

    #[test]
    fn runtimes_are_recognised_by_their_names() {
        assert!(is_runtime(b"libasan.so.8") && is_runtime(b"libclang_rt.tsan-x86_64.so"));
        assert!(!is_runtime(b"libubsan.so.1") && !is_runtime(b"libc.so.6") && !is_runtime(b"mylibasan.so"));
    }

    #[test]
    fn a_runtime_is_found_on_the_programs_search_path() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let root = dir.path().canonicalize().expect("it exists");
        let runtime = root.join("libclang_rt.asan-x86_64.so");
        std::fs::write(&runtime, "").expect("writable");
        std::fs::write(root.join("program"), "").expect("writable");
        let find = |path: &str| {
            let dynamic = Dynamic { search_path: path.as_bytes().to_vec(), ..Dynamic::default() };
            locate(b"libclang_rt.asan-x86_64.so", &dynamic, &root.join("program"))
        };
        assert_eq!(find("/nowhere:$ORIGIN"), runtime.clone().into_os_string());
        assert_eq!(find("${ORIGIN}/."), root.join("./libclang_rt.asan-x86_64.so").into_os_string());
        assert_eq!(find(""), "libclang_rt.asan-x86_64.so");
    }

    #[test]
    fn this_very_program_has_none() {
        let own = std::env::current_exe().expect("it runs");
        let file = Executable::open(&own).expect("it is readable");
        assert_eq!(of(&own, &file), Sanitizer::default());
    }
}
