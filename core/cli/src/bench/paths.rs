//! The paths that are compared, and how programs are started on each.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;

use indexmap::IndexMap;
use netacc_registry::{within_host, Availability};

use super::args::CommonArgs;
use super::error::BenchError;

/// The reference path of ratios.
pub(crate) const REFERENCE: &str = "tcp";

/// One way for the bytes between the two programs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Path {
    /// Kernel TCP over loopback.
    Tcp,
    /// A Unix stream socket.
    Unix,
    /// UDP over loopback: of messages that are datagrams, so only if it is named.
    Udp,
    /// TCP in the program, a backend's link in fact: both programs run under `netacc_run`.
    Backend(String),
}

impl Path {
    /// The name used on the command line and in results.
    pub(crate) fn name(&self) -> &str {
        match self {
            Path::Tcp => REFERENCE,
            Path::Unix => "unix",
            Path::Udp => "udp",
            Path::Backend(name) => name,
        }
    }

    /// Whether there must be proof that bytes went over a link.
    pub(crate) fn is_backend(&self) -> bool {
        matches!(self, Path::Backend(_))
    }
}

/// Our own programs and library, as found beside this one.
#[derive(Debug, Clone)]
pub struct Tools {
    /// `netacc_run`.
    pub netacc_run: Option<PathBuf>,
    /// `netacc_ss`.
    pub netacc_ss: Option<PathBuf>,
    /// `libnetacc-preload.so`.
    pub preload: Option<PathBuf>,
}

impl Tools {
    /// Searches beside this executable, as in a build directory, and then in the directories of `make install`.
    pub fn find() -> Self {
        let exe = env::current_exe().unwrap_or_default();
        let here = exe.parent().map(FilePath::to_owned).unwrap_or_default();
        // Test executables live in target/*/deps, one level below the programs.
        let multiarch = format!("../lib/{}-linux-gnu", env::consts::ARCH);
        let dirs = ["", "..", "../lib", "../lib64", "../lib/netacc", &multiarch].map(|dir| here.join(dir));
        let beside = |name: &str| dirs.iter().map(|dir| dir.join(name)).find(|file| file.is_file());
        // As netacc_run does.
        let named = env::var_os("NETACC_PRELOAD").map(PathBuf::from);
        Tools {
            netacc_run: beside("netacc_run").or_else(|| in_path("netacc_run")),
            netacc_ss: beside("netacc_ss").or_else(|| in_path("netacc_ss")),
            preload: named.filter(|file| file.is_file()).or_else(|| beside("libnetacc-preload.so")),
        }
    }

    /// The missing part of a backend path, if any.
    fn missing(&self) -> Option<&'static str> {
        match self {
            Tools { netacc_run: None, .. } => Some("netacc_run is neither beside netacc nor in PATH (make build)"),
            Tools { preload: None, .. } => Some("libnetacc-preload.so is not beside netacc (make build)"),
            _ => None,
        }
    }
}

/// The file that a shell would start for this name.
pub(crate) fn in_path(program: impl AsRef<FilePath>) -> Option<PathBuf> {
    let program = program.as_ref();
    let executable = |file: &FilePath| {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.components().count() > 1 {
        return executable(program).then(|| program.to_owned());
    }
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(program)).find(|file| executable(file))
}

/// Starts programs on paths. Has the list of chosen paths, and the reasons why others were left out.
#[derive(Debug)]
pub(crate) struct Launcher {
    /// The chosen paths, in the order in which they are measured.
    pub(crate) paths: Vec<Path>,
    /// Backends left out because they do not work here, with the reason.
    pub(crate) skipped: IndexMap<String, String>,
    tools: Tools,
    run_args: Vec<String>,
}

impl Launcher {
    /// Chooses the paths.
    ///
    /// # Errors
    /// A path that was requested by name must exist and work. Other paths are only skipped.
    pub(crate) fn new(args: &CommonArgs) -> Result<Self, BenchError> {
        let tools = Tools::find();
        let backends = within_host();
        let problem =
            |backend: &Availability| tools.missing().map(str::to_owned).or_else(|| backend.problems.first().cloned());
        let mut paths = Vec::new();
        let mut skipped = IndexMap::new();
        if args.paths.is_empty() {
            paths.extend([Path::Tcp, Path::Unix]);
            for backend in &backends {
                match problem(backend) {
                    None => paths.push(Path::Backend(backend.name.into())),
                    Some(reason) => drop(skipped.insert(backend.name.to_owned(), reason)),
                }
            }
        }
        for name in &args.paths {
            let path = match name.trim() {
                REFERENCE => Path::Tcp,
                "unix" => Path::Unix,
                "udp" => Path::Udp,
                name => {
                    let Some(backend) = backends.iter().find(|backend| backend.name == name) else {
                        let known: Vec<_> = backends.iter().map(|backend| backend.name).collect();
                        let known = known.join(", ");
                        return Err(BenchError::Usage(format!(
                            "unknown path '{name}'; known: tcp, unix, udp, {known}"
                        )));
                    };
                    if let Some(reason) = problem(backend) {
                        return Err(BenchError::PathUnavailable { path: name.into(), reason });
                    }
                    Path::Backend(name.to_owned())
                }
            };
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        let mut run_args = args.run_arg.clone();
        if args.no_spin {
            run_args.extend(["-P".into(), "0".into()]);
        }
        Ok(Launcher { paths, skipped, tools, run_args })
    }

    /// For UDP by the kernel and under the library.
    ///
    /// # Errors
    /// The library must work here.
    pub(crate) fn of_datagrams(run_args: &[String]) -> Result<Self, BenchError> {
        let tools = Tools::find();
        let name = "shm";
        let backends = within_host();
        let problem =
            backends.iter().find(|backend| backend.name == name).and_then(|shm| shm.problems.first().cloned());
        if let Some(reason) = tools.missing().map(str::to_owned).or(problem) {
            return Err(BenchError::PathUnavailable { path: name.into(), reason });
        }
        Ok(Launcher { paths: Vec::new(), skipped: IndexMap::new(), tools, run_args: run_args.to_vec() })
    }

    /// A command that runs `program` on a path: the same program everywhere, with `netacc_run` in
    /// front of it on a backend path.
    pub(crate) fn command(&self, path: &Path, program: impl AsRef<OsStr>) -> Command {
        let mut command = guarded();
        // The variables of an accelerated shell must not accelerate the reference.
        if let Some(preload) = env::var_os("LD_PRELOAD") {
            if preload.to_string_lossy().contains("libnetacc-preload") {
                command.env_remove("LD_PRELOAD");
            }
        }
        if let Path::Backend(name) = path {
            let netacc_run = self.tools.netacc_run.as_ref().expect("new() lets no backend path through without it");
            command.env("NACC_BACKEND", name).arg(netacc_run).args(&self.run_args);
        }
        command.arg(program);
        command
    }
}

/// This executable as the wrapper that ends with its parent: see `peer::guard`.
fn guarded() -> Command {
    let mut command = Command::new(this_program());
    command.args(["bench-peer", "guard"]);
    command
}

/// The running `netacc`, even if its file has been replaced since.
pub(crate) fn this_program() -> PathBuf {
    env::current_exe().unwrap_or_else(|_| "netacc".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::args::{BenchArgs, BenchCommand};
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn launcher(args: &[&str]) -> Result<Launcher, BenchError> {
        let line = ["bench", "echo"].iter().chain(args);
        match Cli::try_parse_from(line).expect("the test's own arguments").bench.command {
            BenchCommand::Echo(args) => Launcher::new(&args.common),
            _ => unreachable!("echo was asked for"),
        }
    }

    #[test]
    fn named_paths_keep_their_order_and_lose_doubles() {
        let launcher = launcher(&["--paths", "unix,tcp,unix"]).expect("both always work");
        assert_eq!(launcher.paths, [Path::Unix, Path::Tcp]);
        assert!(launcher.skipped.is_empty());
    }

    #[test]
    fn unknown_path_is_a_usage_error() {
        let error = launcher(&["--paths", "tcp,warp"]).expect_err("there is no such path");
        assert_eq!(error.exit_code(), 2);
        let known = within_host();
        assert!(!known.is_empty() && known.iter().all(|backend| error.to_string().contains(backend.name)), "{error}");
    }

    #[test]
    fn by_default_everything_is_measured_or_skipped_with_a_reason() {
        let launcher = launcher(&[]).expect("nothing was asked for by name");
        assert_eq!(launcher.paths[..2], [Path::Tcp, Path::Unix]);
        assert_eq!(launcher.paths.len() - 2 + launcher.skipped.len(), within_host().len());
    }
}
