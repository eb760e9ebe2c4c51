//! `netacc enable SERVICE` and `netacc disable SERVICE`: whether a systemd service runs with the library.
//!
//! The only state is one file, a drop-in of the service. No running process changes: the user reloads systemd and restarts the
//! service.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::bench::Tools;

/// A failure of the system; wrong arguments have clap's 2.
const FAILED: u8 = 1;

/// The folder of drop-ins that the administrator writes.
const UNITS: &str = "etc/systemd/system";

/// Which service, and where.
#[derive(Debug, Args)]
#[command(after_help = "\
Then: systemctl daemon-reload && systemctl restart SERVICE

The drop-in sets LD_PRELOAD of the service. A service that sets LD_PRELOAD itself needs both libraries in one line: write the
drop-in by hand then.

Exit status: 0 done, or nothing to do; 1 the system refused; 2 wrong usage")]
pub struct ServiceArgs {
    /// The service, with or without .service
    #[arg(value_name = "SERVICE", value_parser = unit)]
    service: String,

    /// The root folder of the system in which the service is
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,

    /// The library's path in that system, if it is not the one that belongs to this program
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Why a service was not changed.
#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error("libnetacc-preload.so is not beside netacc: name it with --library")]
    NoLibrary,
    #[error("{}: neither systemd nor LD_PRELOAD takes this path", .0.display())]
    Unspeakable(PathBuf),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

fn unit(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if text.is_empty() || text.starts_with('.') || !text.chars().all(allowed) {
        return Err(format!("{text:?} is no name of a service"));
    }
    Ok(format!("{}.service", text.strip_suffix(".service").unwrap_or(text)))
}

/// `netacc enable`.
pub fn enable(args: &ServiceArgs) -> ExitCode {
    finish("enable", write(args))
}

/// `netacc disable`.
pub fn disable(args: &ServiceArgs) -> ExitCode {
    finish("disable", remove(args))
}

fn finish(name: &str, result: Result<(), ServiceError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netacc {name}: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn path(args: &ServiceArgs) -> PathBuf {
    args.root.join(UNITS).join(format!("{}.d", args.service)).join("netacc.conf")
}

fn drop_in(library: &Path) -> Result<String, ServiceError> {
    let text = library.to_str().filter(|text| text.starts_with('/') && !text.contains(special));
    let text = text.ok_or_else(|| ServiceError::Unspeakable(library.to_owned()))?;
    Ok(format!("# Written by netacc enable; netacc disable removes it.\n[Service]\nEnvironment=LD_PRELOAD={text}\n"))
}

/// What separates entries of `LD_PRELOAD`, or words of systemd, or has a meaning to it.
fn special(c: char) -> bool {
    c.is_whitespace() || c.is_control() || ":%\"'\\$".contains(c)
}

fn write(args: &ServiceArgs) -> Result<(), ServiceError> {
    let library = args.library.clone().or_else(|| Tools::find().preload?.canonicalize().ok());
    let text = drop_in(&library.ok_or(ServiceError::NoLibrary)?)?;
    let path = path(args);
    if args.dry_run {
        println!("# {}\n{text}", path.display());
        return Ok(());
    }
    let failed = |source| ServiceError::Io { path: path.clone(), source };
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    fs::write(&path, text).map_err(failed)?;
    println!("wrote {}\n{}", path.display(), next(args));
    Ok(())
}

fn remove(args: &ServiceArgs) -> Result<(), ServiceError> {
    let path = path(args);
    if args.dry_run {
        println!("# would remove {}", path.display());
        return Ok(());
    }
    match fs::remove_file(&path) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            println!("{} does not exist: nothing to do", path.display());
            return Ok(());
        }
        other => other.map_err(|source| ServiceError::Io { path: path.clone(), source })?,
    }
    // It stays if it has other drop-ins.
    path.parent().map(fs::remove_dir);
    println!("removed {}\n{}", path.display(), next(args));
    Ok(())
}

fn next(args: &ServiceArgs) -> String {
    format!("next: systemctl daemon-reload && systemctl restart {}", args.service)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(root: &Path, dry_run: bool) -> ServiceArgs {
        let library = Some(PathBuf::from("/usr/lib64/libnetacc-preload.so"));
        ServiceArgs { service: "redis.service".into(), root: root.to_owned(), library, dry_run }
    }

    #[test]
    fn a_service_is_enabled_and_disabled() {
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let drop_in = folder.path().join("etc/systemd/system/redis.service.d/netacc.conf");
        write(&args(folder.path(), true)).expect("nothing is written");
        assert!(!drop_in.exists());
        write(&args(folder.path(), false)).expect("writable");
        let text = fs::read_to_string(&drop_in).expect("it is there");
        assert!(text.ends_with("[Service]\nEnvironment=LD_PRELOAD=/usr/lib64/libnetacc-preload.so\n"), "{text}");
        remove(&args(folder.path(), true)).expect("nothing is removed");
        assert!(drop_in.exists());
        remove(&args(folder.path(), false)).expect("it is there");
        assert!(!drop_in.parent().expect("it has one").exists());
        remove(&args(folder.path(), false)).expect("nothing to do");
    }

    // Breaks if an argument could name a file elsewhere, or write a second line into the drop-in.
    #[test]
    fn names_and_paths_are_checked() {
        assert_eq!(unit("redis").as_deref(), Ok("redis.service"));
        assert_eq!(unit("getty@.service").as_deref(), Ok("getty@.service"));
        assert!(["", "../x", "a/b", "a b", ".x"].into_iter().all(|bad| unit(bad).is_err()));
        assert!(["n.so", "/a b", "/a:b", "/a%i", "/a\nb"].into_iter().all(|bad| drop_in(Path::new(bad)).is_err()));
    }
}
