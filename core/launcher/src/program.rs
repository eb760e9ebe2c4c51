//! Examines the program before it runs: whether anything can be preloaded into it.
//!
//! A guess made in advance, for a message. The kernel and the dynamic linker decide, so an unreadable or unknown file
//! counts as no obstacle.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{access, getgid, getuid, AccessFlags};
use rustix::fs::{fstatvfs, StatVfsMountFlags};
use rustix::thread::no_new_privs;

use super::executable::Executable;
use super::shown;

/// The reason why a program stays on TCP; prints as one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    program: PathBuf,
    /// The interpreter of the program, if it is the obstacle.
    interpreter: Option<PathBuf>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Privileged,
    Static,
    /// It has an interpreter, and needs no library.
    Alone,
    OtherProcessor,
    Musl,
}

impl Obstacle {
    /// Whether the program itself, and not its interpreter, is static, and may be run: then `netacc-loader` can run it.
    pub(super) fn is_static_program(&self) -> bool {
        let may_run = || access(&self.program, AccessFlags::X_OK).is_ok();
        matches!(self.kind, Kind::Static | Kind::Alone) && self.interpreter.is_none() && may_run()
    }

    /// Whether the program would not even start with a library preloaded.
    pub(super) fn is_fatal(&self) -> bool {
        // musl's dynamic linker gives up over the symbols of glibc that the library needs.
        self.kind == Kind::Musl
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", shown(&self.program))?;
        if let Some(interpreter) = &self.interpreter {
            write!(f, "is run by {}, which ", shown(interpreter))?;
        }
        f.write_str(match self.kind {
            Kind::Privileged => "gains privileges when run (setuid, setgid or capabilities)",
            Kind::Static => "is statically linked",
            Kind::Alone => "uses no C library",
            Kind::OtherProcessor => "is built for another processor or word size",
            Kind::Musl => "uses musl instead of glibc",
        })?;
        f.write_str(", so nothing is preloaded into it: it stays on TCP")
    }
}

/// The file that `execvp` will take for `command`: an executable one if there is any.
pub(super) fn find(command: &OsStr, search_path: Option<&OsStr>) -> Option<PathBuf> {
    if command.is_empty() {
        return None;
    }
    if command.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(command)).filter(|path| path.exists());
    }
    // glibc's own choice when PATH is not set at all.
    let search_path = search_path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    let candidates = std::env::split_paths(search_path).map(|place| place.join(command));
    let files: Vec<_> = candidates.filter(|path| path.is_file()).collect();
    let executable = files.iter().find(|path| access(*path, AccessFlags::X_OK).is_ok());
    executable.or(files.first()).cloned()
}

/// The reason why the library cannot be preloaded into the program at `path`, whose file this is, if there is one.
pub(super) fn obstacle(path: &Path, file: &Executable) -> Option<Obstacle> {
    // As deep as the kernel follows scripts that run scripts.
    const DEPTH: usize = 5;
    let mut interpreter: Option<(PathBuf, Executable)> = None;
    for _ in 0..DEPTH {
        let (runner, file) = interpreter.as_ref().map_or((path, file), |(runner, file)| (runner, file));
        let kind = match read(file)? {
            Format::Script(next) => {
                let file = Executable::open(&next)?;
                interpreter = Some((next, file));
                continue;
            }
            Format::Elf(_) if gains_privileges(file, runner) => Kind::Privileged,
            Format::Elf(kind) => kind?,
        };
        return Some(Obstacle { program: path.to_owned(), interpreter: interpreter.map(|(runner, _)| runner), kind });
    }
    None
}

/// Whether the kernel will run it in the mode in which the dynamic linker ignores `LD_PRELOAD`. Scripts are not
/// checked: their mode bits mean nothing.
fn gains_privileges(file: &Executable, path: &Path) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID_AND_GROUP_EXECUTE: u32 = 0o2010;
    let metadata = file.metadata();
    let mode = metadata.mode();
    let other_user = mode & SETUID != 0 && metadata.uid() != getuid().as_raw();
    let other_group =
        mode & SETGID_AND_GROUP_EXECUTE == SETGID_AND_GROUP_EXECUTE && metadata.gid() != getgid().as_raw();
    // Capabilities of the file add nothing to root's own.
    let capabilities = !getuid().is_root() && rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64]).is_ok();
    let denied = || {
        no_new_privs().is_ok_and(|set| set)
            || fstatvfs(file.file()).is_ok_and(|place| place.f_flag.contains(StatVfsMountFlags::NOSUID))
    };
    (other_user || other_group || capabilities) && !denied()
}

/// The kind of a program, from its first bytes.
#[derive(Debug, PartialEq, Eq)]
enum Format {
    /// `#!` and its interpreter.
    Script(PathBuf),
    /// An ELF file, and its obstacle to preloading, if any.
    Elf(Option<Kind>),
}

fn read(file: &Executable) -> Option<Format> {
    let head = file.head();
    if let Some(line) = head[..head.len().min(SCRIPT_BYTES)].strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let name = line.split(|byte| *byte == b' ' || *byte == b'\t').next()?;
        return (!name.is_empty()).then(|| Format::Script(OsStr::from_bytes(name).into()));
    }
    head.starts_with(b"\x7fELF").then_some(())?;
    Some(Format::Elf(elf_obstacle(file)?))
}

/// The kernel reads as much of a script's first line.
const SCRIPT_BYTES: usize = 256;

/// `None` if the file is too short to tell.
fn elf_obstacle(file: &Executable) -> Option<Option<Kind>> {
    const CLASS_64: u8 = 2;
    const ENTRY_BYTES: u16 = 56;
    const PT_INTERP: u32 = 3;
    let own_byte_order = if cfg!(target_endian = "little") { 1 } else { 2 };
    let head = file.head();
    if *head.get(4)? != CLASS_64 || *head.get(5)? != own_byte_order {
        return Some(Some(Kind::OtherProcessor));
    }
    if OWN_MACHINE.is_some_and(|own| read_u16(head, 18).is_some_and(|machine| machine != own)) {
        return Some(Some(Kind::OtherProcessor));
    }
    let table = read_u64(head, 32)?;
    let (entry_bytes, entries) = (read_u16(head, 54)?, read_u16(head, 56)?);
    if entry_bytes != ENTRY_BYTES {
        return None;
    }
    for index in 0..u64::from(entries) {
        let mut entry = [0u8; ENTRY_BYTES as usize];
        let at = table.checked_add(index * u64::from(ENTRY_BYTES))?;
        file.fill(&mut entry, at).then_some(())?;
        if entry[..4] != PT_INTERP.to_ne_bytes() {
            continue;
        }
        let mut name = [0u8; 256];
        let len = file.read_up_to(&mut name, read_u64(&entry, 8)?)?;
        let name = name[..len].split(|byte| *byte == 0).next().unwrap_or_default();
        let musl = name.windows(7).any(|part| part == b"ld-musl");
        let alone = || netacc_loader::is_static(|bytes, at| file.fill(bytes, at)).then_some(Kind::Alone);
        return Some(musl.then_some(Kind::Musl).or_else(alone));
    }
    Some(Some(Kind::Static))
}

/// `e_machine` of this program, where it is known.
const OWN_MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), bytes).expect("writable");
        file
    }

    /// A minimal ELF file of this machine: one program header, and behind it an interpreter's name.
    fn elf(header_type: u32, interpreter: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0u8; 64 + 56];
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[4] = 2;
        bytes[5] = if cfg!(target_endian = "little") { 1 } else { 2 };
        bytes[18..20].copy_from_slice(&OWN_MACHINE.unwrap_or(0).to_ne_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_ne_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_ne_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_ne_bytes());
        bytes[64..68].copy_from_slice(&header_type.to_ne_bytes());
        bytes[72..80].copy_from_slice(&120u64.to_ne_bytes());
        bytes.extend_from_slice(interpreter);
        bytes.push(0);
        bytes
    }

    fn obstacle_of(path: &Path) -> Option<Obstacle> {
        obstacle(path, &Executable::open(path).expect("it is readable"))
    }

    fn kind(bytes: &[u8]) -> Option<Kind> {
        obstacle_of(written(bytes).path()).map(|obstacle| obstacle.kind)
    }

    #[test]
    fn static_foreign_and_musl_programs_are_recognised() {
        assert_eq!(kind(&elf(3, b"/lib64/ld-linux-x86-64.so.2")), None);
        assert_eq!(kind(&elf(1, b"")), Some(Kind::Static));
        assert_eq!(kind(&elf(3, b"/lib/ld-musl-x86_64.so.1")), Some(Kind::Musl));
        let mut narrow = elf(3, b"/lib/ld-linux.so.2");
        narrow[4] = 1;
        assert_eq!(kind(&narrow), Some(Kind::OtherProcessor));
        assert_eq!(kind(&elf(3, b"x")[..100]), None, "cut off");
        assert_eq!(kind(b"\x7fELF"), None, "cut off");
        assert_eq!(kind(b""), None);
        assert_eq!(kind(b"echo a script for sh"), None);
    }

    #[test]
    fn this_very_program_is_no_obstacle() {
        let own = std::env::current_exe().expect("it runs");
        assert_eq!(obstacle_of(&own), None);
    }

    #[test]
    fn scripts_are_followed_to_their_interpreter_within_a_limit() {
        let runner = written(&elf(1, b""));
        let script = written(format!("#! {} -x\nbody", runner.path().display()).as_bytes());
        let found = obstacle_of(script.path()).expect("the runner is static");
        assert_eq!(found.interpreter.as_deref(), Some(runner.path()));
        assert_eq!(
            found.to_string(),
            format!(
                "{} is run by {}, which is statically linked, so nothing is preloaded into it: it stays on TCP",
                script.path().display(),
                runner.path().display()
            )
        );
        let own_name = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(own_name.path(), format!("#!{}\n", own_name.path().display())).expect("writable");
        assert_eq!(obstacle_of(own_name.path()), None);
        assert_eq!(kind(b"#!\n"), None);
    }

    #[test]
    fn commands_are_found_as_execvp_finds_them() {
        let found = |command: &str, path: &str| find(OsStr::new(command), Some(OsStr::new(path)));
        assert_eq!(found("sh", "/nowhere:/bin"), Some("/bin/sh".into()));
        assert_eq!(found("/bin/sh", ""), Some("/bin/sh".into()));
        assert_eq!(found("sh", "/nowhere"), None);
        assert_eq!(found("", "/bin"), None);
        assert_eq!(find(OsStr::new("sh"), None), Some("/bin/sh".into()));
    }
}
