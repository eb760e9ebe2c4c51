//! For build scripts: links programs so that they run with [`OLDEST`] of glibc, on whichever newer one they are built.
//!
//! A linker takes the default version of each symbol that the machine's glibc has. For `dlopen` that is `GLIBC_2.34`, and older
//! systems have no such version, although their `dlopen` is the same. So the linker gets stand-ins for the shared objects of
//! glibc. Each one has the names, versions and kinds of symbols that glibc [`OLDEST`] had, and no code. The machine's own
//! glibc lists them, because it keeps every version that it ever had.
//!
//! Invariants:
//! * A strong reference to a symbol that is newer than [`OLDEST`] fails at link time, and the linker names the symbol.
//! * A weak reference to such a symbol is null, as it is on the old system.
//! * Functions that newer systems have in the C library, and older ones in an archive beside it, are in `src/compat.c`.
//! * Tests are linked plainly. So are builds for other targets than those of `dynamic_linker`, and other cross builds than those for
//!   aarch64, whose compiler brings a glibc of its own.

mod symbols;

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use symbols::{Symbol, Version};

/// The oldest glibc on which the programs run: that of Enterprise Linux 8, older than that of Alibaba Cloud Linux 3 (2.32).
pub const OLDEST: [u16; 3] = [2, 28, 0];

/// The shared objects that others were merged into or that are as they were, and the merged ones.
const OBJECTS: [(&str, &str); 6] = [
    ("c", "libc.so.6"),
    ("m", "libm.so.6"),
    ("pthread", "libpthread.so.0"),
    ("dl", "libdl.so.2"),
    ("rt", "librt.so.1"),
    ("util", "libutil.so.1"),
];

const COMPAT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/compat.c");

/// The name of the dynamic linker of a target for which the stand-ins can be made on `host`.
fn dynamic_linker(target: &str, host: &str) -> Option<&'static str> {
    match target {
        "x86_64-unknown-linux-gnu" if host == target => Some("ld-linux-x86-64.so.2"),
        "aarch64-unknown-linux-gnu" => Some("ld-linux-aarch64.so.1"),
        _ => None,
    }
}

/// What of a package is linked with the stand-ins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linked {
    /// Its programs.
    Programs,
    /// Its shared library.
    SharedLibrary,
}

/// Why there are no stand-ins.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StubError {
    /// A tool of the C compiler could not be run, or a file not be written.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A tool reported an error.
    #[error("{command}: {output}")]
    Tool {
        /// The command.
        command: String,
        /// What it printed.
        output: String,
    },
}

/// Called by a build script: makes the stand-ins below `OUT_DIR`, and lets cargo link with them.
///
/// # Panics
/// If the stand-ins cannot be made. A program that silently needs a newer glibc would be worse.
pub fn link(linked: Linked) {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={COMPAT}");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let Some(dynamic_linker) = dynamic_linker(&variable("TARGET"), &variable("HOST")) else { return };
    let folder = PathBuf::from(variable("OUT_DIR")).join("glibc");
    if let Err(error) = stubs(&folder, dynamic_linker) {
        panic!("no stand-ins for an old glibc: {error}");
    }
    let kind = match linked {
        Linked::Programs => "bins",
        Linked::SharedLibrary => "cdylib",
    };
    println!("cargo:rustc-link-arg-{kind}=-L{}", folder.display());
    // The machine's libgcc_s refers to the machine's glibc.
    println!("cargo:rustc-link-arg-{kind}=-Wl,--allow-shlib-undefined");
}

fn stubs(folder: &Path, dynamic_linker: &str) -> Result<(), StubError> {
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    let file_of = |object: &str| output(compiler().arg(format!("-print-file-name={object}")));
    let mut found: Vec<Symbol> = Vec::new();
    for (_, object) in &OBJECTS[..2] {
        let path = file_of(object)?;
        let listed = output(Command::new("readelf").args(["-W", "--dyn-syms"]).arg(path.trim()))?;
        found.extend(symbols::oldest(object, &listed, Version(OLDEST)));
    }
    for (name, object) in OBJECTS {
        let mine: Vec<_> = found.iter().filter(|symbol| symbol.object == object).collect();
        // The C library's file is a linker script, as that of glibc is.
        let file = folder.join(if name == "c" { object.to_owned() } else { format!("lib{name}.so") });
        stub(folder, &file, object, &mine)?;
    }
    cc::Build::new()
        .cargo_metadata(false)
        .out_dir(folder)
        .file(COMPAT)
        .flag("-fvisibility=hidden")
        .warnings(true)
        .compile("netacc_compat");
    let linker = file_of(dynamic_linker)?;
    let text = format!("GROUP({0}/libc.so.6 {0}/libnetacc_compat.a AS_NEEDED({1}))\n", folder.display(), linker.trim());
    let script = folder.join("libc.so");
    std::fs::write(&script, text).map_err(failed(&script))
}

/// A shared object with these symbols, and no code.
fn stub(folder: &Path, file: &Path, object: &str, symbols: &[&Symbol]) -> Result<(), StubError> {
    let assembly = folder.join(format!("{object}.s"));
    let versions = folder.join(format!("{object}.map"));
    std::fs::write(&assembly, symbols::assembly(symbols)).map_err(failed(&assembly))?;
    std::fs::write(&versions, symbols::version_script(symbols)).map_err(failed(&versions))?;
    let mut link = compiler();
    link.args(["-shared", "-nostdlib", "-nostartfiles", "-o"]).arg(file).arg(&assembly);
    link.arg(format!("-Wl,-soname,{object}"));
    if !symbols.is_empty() {
        link.arg(format!("-Wl,--version-script={}", versions.display()));
    }
    output(&mut link).map(drop)
}

fn compiler() -> Command {
    cc::Build::new().cargo_metadata(false).get_compiler().to_command()
}

fn output(command: &mut Command) -> Result<String, StubError> {
    let shown = format!("{command:?}");
    let done = command.output().map_err(|source| StubError::Io { what: shown.clone(), source })?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(StubError::Tool { command: shown, output: String::from_utf8_lossy(&done.stderr).into_owned() }),
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> StubError + '_ {
    |source| StubError::Io { what: path.display().to_string(), source }
}
