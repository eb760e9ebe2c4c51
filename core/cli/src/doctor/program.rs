//! How one program will run under `netacc_run`, and why.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netacc_loader::elf::Elf;
use netacc_loader::plan::Plan;
use netacc_loader::{is_go, Refusal};
use netacc_registry::{Check, Status};

const NAME: &str = "program";

/// The finding about a program, named by its path or to be found in `PATH`. `static_programs`: `NACC_STATIC`.
pub(super) fn examine(program: &Path, static_programs: bool) -> Check {
    let path = find(program);
    let shown = path.display();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) => return Check::not(Status::Fail, NAME, format!("{shown}: {error}"), "the path of a program"),
    };
    if bytes.starts_with(b"#!") {
        return Check::ok(NAME, format!("{shown} is a script: its interpreter decides"));
    }
    if std::fs::metadata(&path).is_ok_and(|metadata| metadata.mode() & 0o6000 != 0) {
        let finding = format!("{shown} gains privileges when run, so it stays on TCP unless its owner runs it");
        return Check::not(Status::Warn, NAME, finding, "run a copy without setuid and setgid");
    }
    let elf = match Elf::parse_static(&bytes) {
        Ok(elf) => elf,
        Err(Refusal::Dynamic) => return dynamic(&path, &bytes, static_programs),
        Err(refusal) => return stays(&path, &refusal),
    };
    if !static_programs {
        let finding = format!("{shown} is statically linked, and NACC_STATIC=0: it stays on TCP");
        return Check::not(Status::Warn, NAME, finding, "NACC_STATIC=1");
    }
    match elf.linking().and_then(|_| Plan::new(&elf)) {
        Ok(plan) => {
            let kind = if plan.is_go { "Go" } else { "statically linked" };
            let count = plan.patches.len();
            Check::ok(NAME, format!("{shown} is {kind}: netacc-loader runs it, with {count} system calls replaced"))
        }
        Err(refusal) => stays(&path, &refusal),
    }
}

fn stays(path: &Path, refusal: &Refusal) -> Check {
    let finding = format!("{} stays on TCP, because {refusal}", path.display());
    Check::not(Status::Warn, NAME, finding, "link it dynamically with glibc")
}

/// The library is preloaded into it, if its C library is glibc.
fn dynamic(path: &Path, bytes: &[u8], static_programs: bool) -> Check {
    const MUSL: &[u8] = b"/ld-musl-";
    let shown = path.display();
    if bytes.windows(MUSL.len()).take(64 << 10).any(|part| part == MUSL) {
        let finding = format!("{shown} uses musl as a shared library, so it stays on TCP");
        return Check::not(Status::Warn, NAME, finding, "link it statically, or with glibc");
    }
    if !is_go(bytes) {
        return Check::ok(NAME, format!("{shown} is dynamically linked: the library is preloaded"));
    }
    if Elf::parse(bytes).is_ok_and(|elf| elf.is_shared_library()) {
        let finding = format!(
            "{shown} is a shared library in Go: its Go code stays on TCP in any program, because it begins to run when it is \
             loaded, before it could be changed"
        );
        return Check::not(Status::Warn, NAME, finding, "make the connections in a program that is Go itself, or in C");
    }
    if static_programs {
        let finding =
            format!("{shown} is Go with C: the library is preloaded, and replaces its system calls at the start");
        return Check::ok(NAME, finding);
    }
    let finding = format!("{shown} is Go with C, and NACC_STATIC=0: its Go code stays on TCP");
    Check::not(Status::Warn, NAME, finding, "NACC_STATIC=1")
}

fn find(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let places = std::env::var_os("PATH").unwrap_or_default();
    let candidates = std::env::split_paths(&places).map(|place| place.join(program));
    candidates.into_iter().find(|path| path.is_file()).unwrap_or_else(|| program.to_owned())
}
