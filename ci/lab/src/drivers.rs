//! Drivers that the distribution leaves out, built from its own kernel source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{find_program, output, LabError};
use crate::provision::{Kernel, Provision};

/// A driver of the kernel's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Soft-iWARP.
    Siw,
    /// Elastic RDMA, the upstream driver.
    Erdma,
}

/// The place of a driver in the kernel's source, and how it is built.
struct Recipe {
    /// The module's name, and that of its folder in the cache.
    name: &'static str,
    /// Below `drivers/infiniband` of the source.
    folder: &'static str,
    option: &'static str,
    /// Counts the changes to `repair`: a module that was built before the last one is not used.
    repairs: u32,
    repair: fn(&Path) -> Result<(), LabError>,
}

const SIW: Recipe =
    Recipe { name: "siw", folder: "sw/siw", option: "CONFIG_RDMA_SIW=m", repairs: 1, repair: repair_siw };

/// Unchanged, because its users' kernels have it like this.
const ERDMA: Recipe =
    Recipe { name: "erdma", folder: "hw/erdma", option: "CONFIG_INFINIBAND_ERDMA=m", repairs: 0, repair: |_| Ok(()) };

impl Driver {
    fn recipe(self) -> &'static Recipe {
        match self {
            Driver::Siw => &SIW,
            Driver::Erdma => &ERDMA,
        }
    }
}

impl Recipe {
    /// Whether the kernel has the driver.
    fn is_in(&self, kernel: &Kernel) -> bool {
        kernel.tree.join("kernel/drivers/infiniband").join(self.folder).is_dir()
    }

    /// The folder in the cache with the module for a version of the kernel.
    fn place(&self, provision: &Provision, version: &str) -> PathBuf {
        provision.cache.join(self.name).join(format!("{version}-{}", self.repairs))
    }

    fn module(&self, place: &Path) -> PathBuf {
        place.join(format!("{}.ko", self.name))
    }
}

/// The module to load into `kernel`, or `None` if it has one of its own.
///
/// # Errors
/// It cannot be built here: the reason.
pub(crate) fn module(provision: &Provision, kernel: &Kernel, driver: Driver) -> Result<Option<PathBuf>, LabError> {
    let recipe = driver.recipe();
    if recipe.is_in(kernel) {
        return Ok(None);
    }
    let place = recipe.place(provision, &kernel.version);
    let module = recipe.module(&place);
    if !module.exists() {
        build(provision, kernel, recipe, &place)?;
    }
    Ok(Some(module))
}

/// The missing Debian packages with which [`module`] will build the driver, as far as the kernel is known before it is
/// downloaded.
pub(crate) fn packages(provision: &Provision, wanted: Option<&str>, driver: Driver) -> Vec<String> {
    let recipe = driver.recipe();
    let known = provision.known_kernel(wanted);
    if known.as_ref().is_some_and(|kernel| recipe.is_in(kernel)) {
        return Vec::new();
    }
    let version = known.map(|kernel| kernel.version).or_else(|| provision.next_version(wanted));
    version.map_or_else(Vec::new, |version| missing(provision, &version, recipe))
}

fn missing(provision: &Provision, version: &str, recipe: &Recipe) -> Vec<String> {
    if recipe.module(&recipe.place(provision, version)).exists() {
        return Vec::new();
    }
    let headers = (!headers_folder(version).join("Makefile").exists()).then(|| headers_package(version));
    let make = find_program("make").is_none().then(|| "make".to_owned());
    headers.into_iter().chain(make).collect()
}

fn headers_package(version: &str) -> String {
    format!("linux-headers-{version}")
}

fn headers_folder(version: &str) -> PathBuf {
    PathBuf::from("/usr/src").join(headers_package(version))
}

fn build(provision: &Provision, kernel: &Kernel, recipe: &Recipe, place: &Path) -> Result<(), LabError> {
    let Recipe { name, .. } = recipe;
    let version = &kernel.version;
    let missing = missing(provision, version, recipe);
    provision.install(&missing.iter().map(String::as_str).collect::<Vec<_>>())?;
    let parts = provision.cache.join(format!("download-{name}"));
    let _ = fs::remove_dir_all(&parts);
    let driver = source(provision, version, recipe, &parts)?;
    provision.report(&format!("building {name} for Linux {version}"));
    (recipe.repair)(&driver)?;
    let folder = format!("M={}", driver.display());
    output(Command::new("make").arg("-C").arg(headers_folder(version)).args([&folder, recipe.option, "modules"]))?;
    fs::create_dir_all(place).map_err(LabError::file(place))?;
    let built = place.join(format!(".{name}.ko.new"));
    let module = format!("{name}.ko");
    fs::copy(driver.join(&module), &built).map_err(LabError::file(&built))?;
    fs::rename(&built, place.join(&module)).map_err(LabError::file(place))?;
    let _ = fs::remove_dir_all(&parts);
    Ok(())
}

/// Downloads the kernel's source and unpacks the driver's folder from it below `parts`.
fn source(provision: &Provision, version: &str, recipe: &Recipe, parts: &Path) -> Result<PathBuf, LabError> {
    // 6.1.0-50-amd64 comes from linux-source-6.1, of the same package version as its headers.
    let series: String = version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    let package_version =
        output(Command::new("dpkg-query").args(["-W", "-f", "${Version}", &headers_package(version)]))?;
    let package_version = String::from_utf8_lossy(&package_version).into_owned();
    let deb = provision.download(&format!("linux-source-{series}={package_version}"), parts)?;
    let tree = format!("linux-source-{series}");
    let mut package = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(&deb)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(LabError::io("dpkg-deb"))?;
    let mut source = Command::new("tar")
        .args(["-xO", &format!("./usr/src/{tree}.tar.xz")])
        .stdin(package.stdout.take().expect("piped"))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(LabError::io("tar"))?;
    let driver = format!("{tree}/drivers/infiniband/{}", recipe.folder);
    let unpacking = Command::new("tar")
        .args(["-xJ", &driver])
        .stdin(source.stdout.take().expect("piped"))
        .current_dir(parts)
        .stderr(Stdio::piped())
        .spawn()
        .and_then(|child| child.wait_with_output())
        .map_err(LabError::io("tar"))?;
    for mut child in [package, source] {
        child.wait().map_err(LabError::io("unpacking the kernel's source"))?;
    }
    let driver = parts.join(driver);
    if !driver.join("Makefile").exists() {
        return Err(LabError::Missing {
            what: format!(
                "{} has no {} ({})",
                deb.display(),
                recipe.folder,
                String::from_utf8_lossy(&unpacking.stderr).trim()
            ),
            fix: "use --rdma rxe".into(),
        });
    }
    Ok(driver)
}

/// A connection that has ended before it is accepted still has its listener's callbacks. Linux takes that for the end
/// of the listener, and frees its endpoint while that is on a list. After that no client gets a link any more, and the
/// kernel hangs when the process ends (Linux 6.1; later sources are the same). Elastic RDMA's driver, which has the
/// same code, has this condition.
fn repair_siw(driver: &Path) -> Result<(), LabError> {
    const CLOSING: &str = "siw_cm_queue_work(cep, SIW_CM_WORK_PEER_CLOSE);";
    let source = &driver.join("siw_cm.c");
    let text = fs::read_to_string(source).map_err(LabError::file(source))?;
    let mended = text.replace(CLOSING, &format!("if (cep->state != SIW_EPSTATE_LISTENING)\n\t\t\t{CLOSING}"));
    fs::write(source, mended).map_err(LabError::file(source))
}
