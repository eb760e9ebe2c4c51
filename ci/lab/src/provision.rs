//! QEMU, the tools and the kernel: found, or installed and downloaded.
//!
//! Programs are installed as Debian packages, which needs root. The kernel is only unpacked into a cache of the user's:
//! this machine's own boot files are not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::error::{find_program, output, LabError};
use crate::setup::Rdma;

/// A kernel that a guest can boot.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) version: String,
    pub(crate) image: PathBuf,
    /// `.../lib/modules/VERSION`.
    pub(crate) tree: PathBuf,
}

pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// The driver without which a kernel is of no use here.
const RXE: &str = "kernel/drivers/infiniband/sw/rxe";

/// Programs, and files, with the Debian packages that have them.
const PROGRAMS: [(&str, &str); 7] = [
    (QEMU, "qemu-system-x86"),
    ("modprobe", "kmod"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("rdma", "iproute2"),
    ("ldd", "libc-bin"),
    ("xz", "xz-utils"),
];
const LIBRARIES: [(&str, &str); 3] =
    [("libibverbs.so.1", "libibverbs1"), ("librdmacm.so.1", "librdmacm1"), ("libibverbs", "ibverbs-providers")];
const LIBRARY_FOLDER: &str = "/usr/lib/x86_64-linux-gnu";

/// Finds or makes the parts that a lab needs. One process at a time provisions.
#[derive(Debug)]
pub(crate) struct Provision {
    pub(crate) cache: PathBuf,
    install: bool,
    quiet: bool,
    _lock: Flock<fs::File>,
}

impl Provision {
    /// Opens the cache. Nothing is installed or downloaded unless `install`.
    pub(crate) fn open(install: bool, quiet: bool) -> Result<Provision, LabError> {
        let cache = cache_folder()?;
        fs::create_dir_all(&cache).map_err(LabError::file(&cache))?;
        let path = cache.join("lock");
        // A complete cache of another user, as in an image, need not be writable.
        let file = fs::File::open(&path).or_else(|_| fs::File::create(&path)).map_err(LabError::file(&path))?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((file, _)) => {
                if !quiet {
                    eprintln!("netacc lab: waiting until another netacc lab is prepared");
                }
                Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| LabError::file(&path)(errno.into()))?
            }
        };
        Ok(Provision { cache, install, quiet, _lock: lock })
    }

    pub(crate) fn report(&self, what: &str) {
        if !self.quiet {
            eprintln!("netacc lab: {what}");
        }
    }

    /// Whether packages may be installed and downloaded.
    pub(crate) fn may_install(&self) -> bool {
        self.install
    }

    /// The bytes of all files in the cache.
    pub(crate) fn cached_bytes(&self) -> u64 {
        bytes_below(&self.cache)
    }

    /// Programs and libraries, and `others`. Installs what is missing: all at once, so that a user who has to get them
    /// installed by somebody else does so once.
    pub(crate) fn programs(&self, rdma: Rdma, others: &[String]) -> Result<(), LabError> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(LabError::Missing {
                what: format!("no lab for {} yet", std::env::consts::ARCH),
                fix: "use an x86-64 machine".into(),
            });
        }
        // For eRDMA functions the installed QEMU may be too old anyway: `emulator` chooses one.
        let needed = |name: &str| name != QEMU || rdma != Rdma::Erdma;
        let mut missing: Vec<&str> = PROGRAMS
            .iter()
            .filter(|(name, _)| needed(name) && find_program(name).is_none())
            .map(|(_, package)| *package)
            .collect();
        if rdma != Rdma::None {
            let absent = |name: &str| !Path::new(LIBRARY_FOLDER).join(name).exists();
            missing.extend(LIBRARIES.iter().filter(|(name, _)| absent(name)).map(|(_, package)| *package));
        }
        missing.dedup();
        missing.extend(others.iter().map(String::as_str));
        self.install(&missing)
    }

    /// Installs Debian packages.
    pub(crate) fn install(&self, packages: &[&str]) -> Result<(), LabError> {
        if packages.is_empty() {
            return Ok(());
        }
        let list = packages.join(" ");
        let by_hand = || LabError::Missing {
            what: format!("these Debian packages are missing: {list}"),
            fix: format!("{}apt-get install {list}, as root", if listed() { "" } else { "apt-get update && " }),
        };
        let mut apt = as_root("apt-get").filter(|_| self.install).ok_or_else(by_hand)?;
        self.package_lists()?;
        self.report(&format!("installing Debian packages: {list}"));
        apt.args(["install", "-y", "-qq", "-o", "Dpkg::Use-Pty=0", "--no-install-recommends"]).args(packages);
        output(apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null())).map(drop)
    }

    fn package_lists(&self) -> Result<(), LabError> {
        match as_root("apt-get") {
            Some(mut apt) if !listed() => {
                self.report("fetching the lists of Debian packages");
                output(apt.args(["update", "-qq"]).stdin(Stdio::null())).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Downloads a package as a file, and returns the file. It is not installed.
    pub(crate) fn download(&self, package: &str, into: &Path) -> Result<PathBuf, LabError> {
        if !self.install || find_program("apt-get").is_none() {
            return Err(LabError::Missing {
                what: format!("the Debian package {package} is not in {}", self.cache.display()),
                fix: "run 'netacc lab setup' on a Debian machine with its package lists".into(),
            });
        }
        self.package_lists()?;
        self.report(&format!("downloading {package}"));
        fs::create_dir_all(into).map_err(LabError::file(into))?;
        output(Command::new("apt-get").args(["download", "-qq", package]).current_dir(into))?;
        let files = fs::read_dir(into).map_err(LabError::file(into))?;
        let deb =
            files.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "deb"));
        deb.ok_or_else(|| LabError::file(into)(std::io::ErrorKind::NotFound.into()))
    }

    /// A kernel with SoftRoCE: of `wanted` version, or this machine's own, or the cached one, or the distribution's.
    pub(crate) fn kernel(&self, wanted: Option<&str>) -> Result<Kernel, LabError> {
        match self.known_kernel(wanted) {
            Some(kernel) => Ok(kernel),
            None => self.fetch_kernel(wanted),
        }
    }

    /// The version of the kernel that [`kernel`](Self::kernel) would download; `None` without package lists.
    pub(crate) fn next_version(&self, wanted: Option<&str>) -> Option<String> {
        wanted.map(str::to_owned).or_else(|| newest_kernel().ok())
    }

    /// The kernel that [`kernel`](Self::kernel) returns without a download.
    pub(crate) fn known_kernel(&self, wanted: Option<&str>) -> Option<Kernel> {
        let usable = |kernel: &Kernel| wanted.is_none_or(|wanted| kernel.version == wanted);
        let below = |root: &Path| newest(kernels_below(root).into_iter().filter(usable).collect());
        below(Path::new("/")).or_else(|| below(&self.cache.join("kernel")))
    }

    fn fetch_kernel(&self, wanted: Option<&str>) -> Result<Kernel, LabError> {
        let version = match wanted {
            Some(version) => version.to_owned(),
            None => {
                self.package_lists()?;
                newest_kernel()?
            }
        };
        let parts = self.cache.join("download");
        let _ = fs::remove_dir_all(&parts);
        let deb = self.download(&format!("linux-image-{version}"), &parts)?;
        self.report(&format!("unpacking Linux {version}"));
        let unpacked = parts.join("kernel");
        output(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&unpacked))?;
        output(Command::new(find_program("depmod").unwrap_or("depmod".into())).arg("-b").arg(&unpacked).arg(&version))?;
        // Moved into place in one step: a process that is killed before leaves no folder that looks complete.
        let place = self.cache.join("kernel");
        let _ = fs::remove_dir_all(&place);
        fs::rename(&unpacked, &place).map_err(LabError::file(&place))?;
        let _ = fs::remove_dir_all(&parts);
        newest(kernels_below(&place)).ok_or_else(|| LabError::Missing {
            what: format!("linux-image-{version} has no SoftRoCE"),
            fix: "name another kernel with --kernel".into(),
        })
    }
}

/// Whether apt has lists of packages.
fn listed() -> bool {
    fs::read_dir("/var/lib/apt/lists")
        .is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_string_lossy().contains("_Packages")))
}

/// The bytes of the files below a folder. Links are not followed.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Kernels that this user can read and that have SoftRoCE.
fn kernels_below(root: &Path) -> Vec<Kernel> {
    let Ok(entries) = fs::read_dir(root.join("boot")) else {
        return Vec::new();
    };
    let kernel = |image: PathBuf| {
        let version = image.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
        let tree = root.join("lib/modules").join(&version);
        let usable = fs::File::open(&image).is_ok() && tree.join(RXE).is_dir() && tree.join("modules.dep").exists();
        usable.then_some(Kernel { version, image, tree })
    };
    entries.flatten().filter_map(|entry| kernel(entry.path())).collect()
}

fn newest(kernels: Vec<Kernel>) -> Option<Kernel> {
    kernels.into_iter().max_by(|a, b| in_order(&a.version).cmp(&in_order(&b.version)))
}

/// The sort key of versions: their numbers, as numbers, and the text before each.
fn in_order(version: &str) -> Vec<(&str, u64)> {
    let mut rest = version;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(digits);
        let (number, behind) = after.split_at(after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len()));
        parts.push((word, number.parse().unwrap_or(0)));
        rest = behind;
    }
    parts
}

/// The current dependency of the distribution's own kernel package.
fn newest_kernel() -> Result<String, LabError> {
    let meta = "linux-image-amd64";
    let listing = output(Command::new("apt-cache").args(["show", "--no-all-versions", meta]))?;
    let listing = String::from_utf8_lossy(&listing);
    let depends = listing.lines().find_map(|line| line.strip_prefix("Depends: linux-image-"));
    depends.and_then(|rest| rest.split([' ', ',']).next()).map(str::to_owned).ok_or_else(|| LabError::Missing {
        what: format!("the package lists have no {meta}"),
        fix: "run apt-get update, or name an installed kernel with --kernel".into(),
    })
}

/// A command that will run as root: directly, if this process is root, or by sudo if that needs no password.
fn as_root(program: &str) -> Option<Command> {
    find_program(program)?;
    if geteuid().is_root() {
        return Some(Command::new(program));
    }
    find_program("sudo")?;
    let needs_password =
        !Command::new("sudo").args(["-n", "true"]).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    (!needs_password).then_some(command)
}

fn cache_folder() -> Result<PathBuf, LabError> {
    let named = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = named("NETACC_LAB_CACHE") {
        return Ok(folder);
    }
    let cache = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    cache.map(|folder| folder.join("netacc-lab")).ok_or_else(|| LabError::Missing {
        what: "no folder to keep the kernel in".into(),
        fix: "set HOME, XDG_CACHE_HOME or NETACC_LAB_CACHE".into(),
    })
}

/// The modules that `wanted` need, in the order of loading, according to `modules.dep`.
pub(crate) fn module_order(kernel: &Kernel, wanted: &[&str]) -> Result<Vec<PathBuf>, LabError> {
    let path = kernel.tree.join("modules.dep");
    let listing = fs::read_to_string(&path).map_err(LabError::file(&path))?;
    Ok(order(&listing, wanted).into_iter().map(|module| kernel.tree.join(module)).collect())
}

/// A module that is not listed is built in.
fn order<'a>(listing: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let mut result: Vec<&str> = Vec::new();
    for name in wanted {
        let of = |line: &&str| {
            let file = line.split(':').next().unwrap_or_default().rsplit('/').next().unwrap_or_default();
            file.split('.').next() == Some(name)
        };
        let Some((module, needs)) = listing.lines().find(of).and_then(|line| line.split_once(':')) else {
            continue;
        };
        // Each line has all modules that a module needs, directly or not; the last one is loaded first.
        for module in needs.split_whitespace().rev().chain([module]) {
            if !result.contains(&module) {
                result.push(module);
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if versions were compared as text, which has 9 after 50.
    #[test]
    fn the_newest_kernel_is_the_one_of_the_highest_numbers() {
        let root = tempfile::tempdir().expect("a folder");
        let put = |version: &str| {
            let tree = root.path().join("lib/modules").join(version);
            fs::create_dir_all(tree.join(RXE)).expect("made");
            fs::create_dir_all(root.path().join("boot")).expect("made");
            fs::write(tree.join("modules.dep"), "").expect("written");
            fs::write(root.path().join("boot").join(format!("vmlinuz-{version}")), "").expect("written");
        };
        let found = || newest(kernels_below(root.path())).map(|kernel| kernel.version);
        assert_eq!(found(), None);
        for version in ["6.1.0-9-amd64", "6.1.0-50-amd64", "6.1.0-10-amd64", "5.10.0-99-amd64"] {
            put(version);
        }
        assert_eq!(found().as_deref(), Some("6.1.0-50-amd64"));
        put("6.12.9+bpo-amd64");
        put("6.9.12-amd64");
        assert_eq!(found().as_deref(), Some("6.12.9+bpo-amd64"));
        assert!(in_order("99999999999999999999-") < in_order("1"), "a number beyond all bounds is no number");
    }

    #[test]
    fn the_size_of_a_folder_is_that_of_its_files_without_those_behind_links() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("cache/below")).expect("made");
        fs::write(root.path().join("outside"), [0; 1000]).expect("written");
        fs::write(root.path().join("cache/one"), [0; 10]).expect("written");
        fs::write(root.path().join("cache/below/two"), [0; 20]).expect("written");
        assert_eq!(bytes_below(&root.path().join("cache")), 30);
        std::os::unix::fs::symlink(root.path(), root.path().join("cache/above")).expect("linked");
        let link = root.path().as_os_str().len() as u64;
        assert_eq!(bytes_below(&root.path().join("cache")), 30 + link);
        assert_eq!(bytes_below(&root.path().join("none")), 0);
    }

    #[test]
    fn modules_come_after_their_dependencies_and_once() {
        let listing =
            "k/9p.ko: k/9pnet.ko k/fscache.ko k/netfs.ko\nk/9pnet_virtio.ko.xz: k/9pnet.ko k/ring.ko\nk/netfs.ko:\n";
        let expected = ["k/netfs.ko", "k/fscache.ko", "k/9pnet.ko", "k/9p.ko", "k/ring.ko", "k/9pnet_virtio.ko.xz"];
        assert_eq!(order(listing, &["9p", "builtin", "9pnet_virtio"]), expected);
    }
}
