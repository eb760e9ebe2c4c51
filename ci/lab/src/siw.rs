//! Soft-iWARP for a kernel whose distribution leaves it out: built from the distribution's own kernel source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{output, LabError};
use crate::provision::{Kernel, Provision};

/// Counts what `repair` has been made to change: a module that was built before is not used.
const REPAIRS: u32 = 1;

/// The module to load into `kernel`, or `None` if it has one of its own.
///
/// # Errors
/// It cannot be built here: the reason.
pub(crate) fn module(provision: &Provision, kernel: &Kernel) -> Result<Option<PathBuf>, LabError> {
    if kernel.tree.join("kernel/drivers/infiniband/sw/siw").is_dir() {
        return Ok(None);
    }
    let place = provision.cache.join("siw").join(format!("{}-{REPAIRS}", kernel.version));
    let module = place.join("siw.ko");
    if !module.exists() {
        build(provision, kernel, &place)?;
    }
    Ok(Some(module))
}

fn build(provision: &Provision, kernel: &Kernel, place: &PathBuf) -> Result<(), LabError> {
    let version = &kernel.version;
    let headers = format!("linux-headers-{version}");
    let headers_folder = PathBuf::from("/usr/src").join(&headers);
    if !headers_folder.join("Makefile").exists() || which_make().is_none() {
        provision.install(&[&headers, "make"])?;
    }
    // 6.1.0-50-amd64 comes from linux-source-6.1, of the same package version as its headers.
    let series: String = version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    let package_version = output(Command::new("dpkg-query").args(["-W", "-f", "${Version}", &headers]))?;
    let package_version = String::from_utf8_lossy(&package_version).into_owned();
    let parts = provision.cache.join("download-siw");
    let _ = fs::remove_dir_all(&parts);
    let deb = provision.download(&format!("linux-source-{series}={package_version}"), &parts)?;
    provision.say(&format!("building soft-iWARP for Linux {version}"));
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
    let driver = format!("{tree}/drivers/infiniband/sw/siw");
    let unpacking = Command::new("tar")
        .args(["-xJ", &driver])
        .stdin(source.stdout.take().expect("piped"))
        .current_dir(&parts)
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
                "{} has no soft-iWARP ({})",
                deb.display(),
                String::from_utf8_lossy(&unpacking.stderr).trim()
            ),
            fix: "use --rdma rxe".into(),
        });
    }
    repair(&driver.join("siw_cm.c"))?;
    let folder = format!("M={}", driver.display());
    output(Command::new("make").arg("-C").arg(headers_folder).args([&folder, "CONFIG_RDMA_SIW=m", "modules"]))?;
    fs::create_dir_all(place).map_err(LabError::file(place))?;
    let built = place.join(".siw.ko.new");
    fs::copy(driver.join("siw.ko"), &built).map_err(LabError::file(&built))?;
    fs::rename(&built, place.join("siw.ko")).map_err(LabError::file(place))?;
    let _ = fs::remove_dir_all(&parts);
    Ok(())
}

/// A connection that has ended before it is accepted has its listener's callbacks still. Linux takes that for the end of the
/// listener, whose endpoint is freed while it is on a list: nobody gets a link any more, and the kernel stands still when the
/// process ends (Linux 6.1; later sources read the same). Elastic RDMA's driver, which has the same code, has this condition.
fn repair(source: &Path) -> Result<(), LabError> {
    const CLOSING: &str = "siw_cm_queue_work(cep, SIW_CM_WORK_PEER_CLOSE);";
    let text = fs::read_to_string(source).map_err(LabError::file(source))?;
    let mended = text.replace(CLOSING, &format!("if (cep->state != SIW_EPSTATE_LISTENING)\n\t\t\t{CLOSING}"));
    fs::write(source, mended).map_err(LabError::file(source))
}

fn which_make() -> Option<PathBuf> {
    crate::error::find_program("make")
}
