//! The first file system of a guest: `netacc` itself as its first process, the libraries it is linked with, and the
//! modules that lead to the real root.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{output, LabError};

const FILE: u32 = 0o100_755;
const FOLDER: u32 = 0o040_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// The path of the guest's configuration, inside.
pub(crate) const CONFIG: &str = "/lab.json";

/// The path of `netacc`, inside.
pub(crate) const INIT: &str = "/netacc";

/// The folder of the modules, inside; each is named by its position in the order of loading.
pub(crate) const MODULES: &str = "/modules";

/// Writes the archive to `to`.
pub(crate) fn write(to: &Path, program: &Path, modules: &[PathBuf], config: &[u8]) -> Result<(), LabError> {
    let file = fs::File::create(to).map_err(LabError::file(to))?;
    let mut archive = Archive { out: io::BufWriter::new(file), inode: 0, folders: Vec::new() };
    let write = |result: io::Result<()>| result.map_err(LabError::file(to));
    for folder in ["dev", "proc", "sys", "lower", "upper", "new"] {
        write(archive.folder(Path::new(folder)))?;
    }
    // The kernel opens it for the first process.
    write(archive.entry("dev/console", CHARACTER_DEVICE, (5, 1), b""))?;
    let mut files = vec![(program.to_owned(), PathBuf::from(INIT))];
    files.extend(libraries(program)?.into_iter().map(|path| (path.clone(), path)));
    for (from, inside) in files {
        let bytes = fs::read(&from).map_err(LabError::file(&from))?;
        write(archive.file(&inside, &bytes))?;
    }
    for (position, module) in modules.iter().enumerate() {
        write(archive.file(&Path::new(MODULES).join(position.to_string()), &decompressed(module)?))?;
    }
    write(archive.file(Path::new(CONFIG), config))?;
    write(archive.finish())
}

/// The libraries that the dynamic linker loads for `program`, and the linker itself.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, LabError> {
    let listing = output(Command::new("ldd").arg(program))?;
    Ok(parse_ldd(&String::from_utf8_lossy(&listing)))
}

fn parse_ldd(listing: &str) -> Vec<PathBuf> {
    listing
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// A module as the kernel takes it.
fn decompressed(module: &Path) -> Result<Vec<u8>, LabError> {
    let tool = match module.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(module).map_err(LabError::file(module)),
    };
    output(Command::new(tool).args(["-d", "-c"]).arg(module))
}

/// A cpio archive in the kernel's format newc.
struct Archive<W> {
    out: W,
    inode: u32,
    folders: Vec<PathBuf>,
}

impl<W: Write> Archive<W> {
    /// A file, and the folders above it.
    fn file(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            self.folder(parent)?;
        }
        self.entry(&inside(path), FILE, (0, 0), bytes)
    }

    fn folder(&mut self, path: &Path) -> io::Result<()> {
        let path = PathBuf::from(inside(path));
        let above: Vec<PathBuf> = path.ancestors().map(PathBuf::from).collect();
        for folder in above.into_iter().rev().filter(|folder| !folder.as_os_str().is_empty()) {
            if !self.folders.contains(&folder) {
                self.entry(&folder.to_string_lossy(), FOLDER, (0, 0), b"")?;
                self.folders.push(folder);
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), bytes: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let size = u32::try_from(bytes.len()).map_err(|_| io::Error::other("a file beyond 4 GiB"))?;
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name.len() as u32 + 1, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(header.len() + name.len() + 1)?;
        self.out.write_all(bytes)?;
        self.pad(bytes.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..written.wrapping_neg() % 4])
    }

    fn finish(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, (0, 0), b"")?;
        self.out.flush()
    }
}

/// The path as the archive names it: from the root, without the slash.
fn inside(path: &Path) -> String {
    path.strip_prefix("/").unwrap_or(path).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_ldd_is_parsed() {
        let listing = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld-linux.so.2 (0x3)\n";
        assert_eq!(parse_ldd(listing), [PathBuf::from("/lib/x/libc.so.6"), PathBuf::from("/lib64/ld-linux.so.2")]);
    }

    #[test]
    fn folders_come_before_their_contents_and_once() {
        let mut archive = Archive { out: Vec::new(), inode: 0, folders: Vec::new() };
        archive.file(Path::new("/a/b/one"), b"1").expect("memory");
        archive.file(Path::new("/a/b/three"), b"333").expect("memory");
        let out = archive.out;
        assert_eq!(out.len() % 4, 0);
        let text = String::from_utf8(out).expect("these are letters");
        let names: Vec<&str> =
            text.split("070701").skip(1).map(|e| e[104..].split('\0').next().expect("name")).collect();
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/b/three"]);
        assert!(text.contains("1\0\0\0") && text.ends_with("333\0"));
    }
}
