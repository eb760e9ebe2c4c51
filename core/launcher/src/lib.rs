//! `netacc_run`: starts a program with the library preloaded and the flags in its environment.
//!
//! It replaces itself with the program, so process id, exit status, signals and descriptors are the program's own. It
//! checks only its flags strictly (status 2). It reports all other problems in one line each: errors of the
//! configuration file or of the environment, a library that cannot be found, or a program into which nothing can be
//! preloaded. The program then starts all the same, on TCP if necessary.
//!
//! Every start of a program pays for this one's start, too. So it is a crate of its own with few dependencies, and the
//! build links it with musl: the start of a program with glibc executes about eighty `cpuid` instructions, and each of
//! these takes microseconds in a virtual machine.
//!
//! Page faults take most of what is left. So the build puts it at fixed addresses, which needs no relocation, and memory
//! comes from an [`arena`].

pub mod arena;
mod args;
mod elf;
mod environment;
mod executable;
mod library;
mod program;
mod sanitizer;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use netacc_config::{Config, Loader, CONFIG_PATH_VARIABLE, KEYS, REPORTED_VARIABLE};
use netacc_loader::{PROGRAM_VARIABLE, REPORT_VARIABLE};
use nix::errno::Errno;

use args::{Invocation, Request, HELP};
use environment::Environment;
use executable::Executable;

/// The library's path, if it is not in the usual places.
pub const LIBRARY_VARIABLE: &str = "NETACC_PRELOAD";

/// Runs files that the kernel cannot execute, as the C library's.
const SHELL: &str = "/bin/sh";

const USAGE_STATUS: u8 = 2;
const NOT_EXECUTABLE_STATUS: u8 = 126;
const NOT_FOUND_STATUS: u8 = 127;

/// Runs netacc_run with these arguments, the program's own name first, and these strings of the environment. Returns an
/// exit status only if it cannot become the program.
pub fn run(arguments: impl IntoIterator<Item = OsString>, environment: impl IntoIterator<Item = &'static CStr>) -> u8 {
    match args::parse(arguments) {
        Ok(Invocation::Help) => {
            print!("{HELP}");
            0
        }
        Ok(Invocation::Version) => {
            println!("netacc_run {}", env!("CARGO_PKG_VERSION"));
            0
        }
        Ok(Invocation::Run(request)) => launch(&request, Environment::new(environment)),
        Err(args::ArgsError::NoCommand) => {
            eprint!("{HELP}");
            USAGE_STATUS
        }
        Err(error) => {
            warn(&error);
            USAGE_STATUS
        }
    }
}

fn launch(request: &Request, mut environment: Environment) -> u8 {
    let config = match prepare(&mut environment, request) {
        Ok(config) => config,
        Err(status) => return status,
    };
    let found = program::find(&request.command, environment.get("PATH"));
    let file = found.as_deref().and_then(|path| Some((path, Executable::open(path)?)));
    let obstacle = file.as_ref().and_then(|(path, file)| program::obstacle(path, file));
    // A program that could not even start with the library gets no preload.
    let is_fatal = obstacle.as_ref().is_some_and(program::Obstacle::is_fatal);
    let sanitizer = file.map(|(path, file)| sanitizer::of(path, &file)).unwrap_or_default();
    let library = if is_fatal { None } else { preload(&mut environment, &sanitizer) };
    let is_static = config.static_programs && obstacle.as_ref().is_some_and(program::Obstacle::is_static_program);
    let loader = library.filter(|_| is_static).and_then(|library| library::static_loader(&library));
    if let Some(obstacle) = obstacle.filter(|_| loader.is_none()) {
        warn(&obstacle);
    }
    if let (Some(loader), Some(program)) = (loader, &found) {
        become_static_program(request, environment.clone(), &loader, program);
    }
    let errno = become_program(request, &environment, found.as_deref());
    let command = request.command.to_string_lossy();
    if found.is_none() && errno == Errno::ENOENT {
        warn(&format_args!("{command:?}: command not found"));
        NOT_FOUND_STATUS
    } else {
        warn(&format_args!("{command:?}: cannot be executed: {}", errno.desc()));
        NOT_EXECUTABLE_STATUS
    }
}

/// Turns the flags into the variables that the library reads, and reports the problems of the rest of the
/// configuration, because the library has no terminal for them.
fn prepare(environment: &mut Environment, request: &Request) -> Result<Config, u8> {
    let mut loader = Loader::new().default_file().environment(environment.variables());
    if let Some(path) = &request.config_path {
        // The program, or a child of it, may load the library in another directory.
        let path = std::path::absolute(path).map_err(|error| {
            warn(&format_args!("-f {path:?}: {error}"));
            USAGE_STATUS
        })?;
        environment.set(CONFIG_PATH_VARIABLE, &path);
        loader = loader.file(path);
    }
    for (flag, value) in &request.settings {
        if let Some(key) = KEYS.iter().find(|key| key.flag == Some(*flag)) {
            environment.set(key.name, value);
            loader = loader.flag(*flag, value);
        }
    }
    let (config, problems) = loader.load();
    for problem in &problems {
        warn(problem);
    }
    environment.set(REPORTED_VARIABLE, "1");
    Ok(config)
}

/// Returns the library's path if it is found.
fn preload(environment: &mut Environment, sanitizer: &sanitizer::Sanitizer) -> Option<PathBuf> {
    let named = environment.get(LIBRARY_VARIABLE).filter(|path| !path.is_empty());
    let own_path = std::env::current_exe().ok();
    match library::find(named.map(Path::new), own_path.as_deref()) {
        Ok(path) => {
            let list = library::prepend(&path, environment.get("LD_PRELOAD"));
            environment.set("LD_PRELOAD", sanitizer.prepend(list));
            if let Some((name, value)) = sanitizer.variable(environment.get("TSAN_OPTIONS")) {
                environment.set(name, value);
            }
            Some(path)
        }
        Err(error) => {
            warn(&error);
            None
        }
    }
}

/// Replaces this process with the loader of static programs, which then is the program. Returns only if it fails.
fn become_static_program(request: &Request, mut environment: Environment, loader: &Path, program: &Path) {
    // A directory that the program changes to does not matter: the loader opens the program first.
    environment.set(PROGRAM_VARIABLE, program);
    environment.set(REPORT_VARIABLE, "1");
    replace(loader, [request.command.as_os_str()], &request.arguments, &environment);
}

/// Replaces this process with the program, whose file is `found`, as `execvp` of glibc would. Returns only if it fails.
fn become_program(request: &Request, environment: &Environment, found: Option<&Path>) -> Errno {
    // A path that names no file gets the kernel's reason; a name that is not in PATH has none.
    let file = match found {
        Some(file) => file,
        None if request.command.as_bytes().contains(&b'/') => Path::new(&request.command),
        None => return Errno::ENOENT,
    };
    match replace(file, [request.command.as_os_str()], &request.arguments, environment) {
        // A script without `#!`.
        Errno::ENOEXEC => {
            replace(Path::new(SHELL), [OsStr::new(SHELL), file.as_os_str()], &request.arguments, environment)
        }
        errno => errno,
    }
}

/// Returns only if it fails.
fn replace<const N: usize>(
    file: &Path,
    first: [&OsStr; N],
    arguments: &[OsString],
    environment: &Environment,
) -> Errno {
    let c_string = |text: &OsStr| CString::new(text.as_bytes());
    let all: Result<Vec<CString>, _> =
        first.into_iter().chain(arguments.iter().map(OsString::as_os_str)).map(c_string).collect();
    // Each came from a C string, so it has no zero byte.
    let (Ok(file), Ok(all)) = (c_string(file.as_os_str()), all) else {
        return Errno::EINVAL;
    };
    match nix::unistd::execve(&file, &all, environment.strings()) {
        Ok(never) => match never {},
        Err(errno) => errno,
    }
}

fn warn(message: &dyn std::fmt::Display) {
    use std::io::Write;
    // Standard error may be closed; that must not prevent the program's start.
    let _ = writeln!(std::io::stderr(), "netacc_run: {message}");
}

/// A path in the form of messages.
fn shown(path: impl AsRef<OsStr>) -> String {
    path.as_ref().to_string_lossy().escape_debug().to_string()
}
