//! The program, with a client in place of QEMU.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{json, Value};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::Client;

/// The address of the guest's memory, for the device.
const MEMORY: u64 = 0x10_0000;

/// Held while a process is started: until it runs its program, it holds a copy of each socket that is open here, and one
/// of [`Program::start`] would not be that of a dead process.
fn starting() -> MutexGuard<'static, ()> {
    static STARTING: Mutex<()> = Mutex::new(());
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Program {
    child: Child,
    folder: tempfile::TempDir,
}

impl Program {
    /// Two functions, ready to serve.
    fn start() -> Program {
        let folder = tempfile::tempdir().expect("a folder");
        let starting = starting();
        // Left by a dead process.
        drop(std::os::unix::net::UnixListener::bind(folder.path().join("b")).expect("a socket"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_netacc-erdma"));
        for (name, mac) in [("a", "52:54:00:99:00:01"), ("b", "52:54:00:99:00:02")] {
            command.arg("--function").arg(format!("{},mac={mac}", folder.path().join(name).display()));
        }
        command.arg("--control").arg(folder.path().join("control"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program");
        drop(starting);
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Program { child, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn exchange(&self, request: Value) -> Value {
        let mut socket = UnixStream::connect(self.path("control")).expect("connected");
        writeln!(socket, "{request}").expect("sent");
        let mut line = String::new();
        BufReader::new(socket).read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended already if a test waited for that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read32(client: &mut Client, region: u32, at: u64) -> u32 {
    let mut bytes = [0; 4];
    client.region_read(region, at, &mut bytes).expect("read");
    u32::from_le_bytes(bytes)
}

/// A guest with memory, an interrupt, and a driver that has set INIT.
fn boot(program: &Program, name: &str) -> (Client, File, File) {
    let mut client = Client::new(&program.path(name)).expect("a client");
    let memory = tempfile::tempfile().expect("memory");
    memory.set_len(1 << 20).expect("its length");
    client.dma_map(0, MEMORY, 1 << 20, memory.as_raw_fd()).expect("mapped");
    let (mut interrupt, theirs) = std::io::pipe().map(|(read, write)| (to_file(read), to_file(write))).expect("a pipe");
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, 0, 1, &[theirs.as_raw_fd()]).expect("set");
    for (at, value) in [(0x20, 0), (0x28, 0x1000), (0x38, 0x2000), (0x40, 0x3000)] {
        client.region_write(0, at, &(MEMORY + value).to_le_bytes()).expect("written");
    }
    for (at, value) in [(0x30, 16u32), (0x34, 8), (0x48, 8), (0x10, 2)] {
        client.region_write(0, at, &value.to_le_bytes()).expect("written");
    }
    assert_eq!(read32(&mut client, 0, 0x14), 2, "INIT is done");
    // Arms the command queue's completions, and runs QUERY_FW_INFO.
    client.region_write(0, 0x300, &(1u64 << 31).to_le_bytes()).expect("armed");
    let header = 1u64 << 52 | 1 << 24 | 2 << 16;
    memory.write_all_at(&header.to_le_bytes(), 0).expect("a command");
    client.region_write(0, 0x200, &2u64.to_le_bytes()).expect("rung");
    let mut entry = [0; 32];
    memory.read_exact_at(&mut entry, 0x1000).expect("read");
    assert_eq!(entry[..4], [0x80, 2, 2, 0], "its completion");
    assert_eq!(entry[8..12], 0x0002_0025u32.to_be_bytes(), "0.2.37, as Linux's own driver reads it");
    let mut count = [0; 8];
    interrupt.read_exact(&mut count).expect("an interrupt");
    assert_eq!(u64::from_ne_bytes(count), 1);
    (client, memory, interrupt)
}

fn to_file(pipe: impl Into<std::os::fd::OwnedFd>) -> File {
    File::from(pipe.into())
}

// Breaks if the driver finds no device, or a command's completion or interrupt does not reach the guest.
#[test]
fn a_guest_on_each_function() {
    let program = Program::start();
    for (name, mac) in [("a", 0x0099_0001), ("b", 0x0099_0002)] {
        let (mut client, _memory, _interrupt) = boot(&program, name);
        assert_eq!(read32(&mut client, VFIO_PCI_CONFIG_REGION_INDEX, 0), 0x107f_1ded);
        assert_eq!(read32(&mut client, 0, 0x18), mac);
        assert_eq!(client.region(0).map(|region| region.size), Some(512 << 10));
    }
    let answer = program.exchange(json!({ "get": "counters" }));
    assert_eq!(answer["functions"][0]["commands"], 1);
    assert_eq!(answer["functions"][1]["commands"], 1);
}

// Breaks if the next guest finds the state of the last one, or none is served after one that sent invalid messages.
#[test]
fn guests_come_and_go() {
    let program = Program::start();
    for _ in 0..2 {
        let (client, _memory, _interrupt) = boot(&program, "a");
        client.shutdown().expect("gone");
    }
    let mut nonsense = UnixStream::connect(program.path("a")).expect("connected");
    // A VERSION whose text has no end: 16 bytes of header, 4 of numbers.
    let mut message = [0u8; 24];
    message[2] = 1;
    message[4] = 24;
    message[20..].fill(b'x');
    nonsense.write_all(&message).expect("sent");
    drop(nonsense);
    boot(&program, "a");
}

// Breaks if the program does not end by itself, or leaves its sockets.
#[test]
fn it_ends_cleanly() {
    let mut program = Program::start();
    let pid = program.child.id().to_string();
    let starting = starting();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    drop(starting);
    assert_eq!(program.child.wait().expect("ended").code(), Some(0));
    for name in ["a", "b", "control"] {
        assert!(!program.path(name).exists(), "{name}");
    }
}

// Breaks if a socket in use is taken away, or the others stay.
#[test]
fn sockets_in_use_are_left_alone() {
    let program = Program::start();
    let (taken, free) = (program.path("a"), program.path("free"));
    let mac = "mac=52:54:00:99:00:03";
    let starting = starting();
    let output = Command::new(env!("CARGO_BIN_EXE_netacc-erdma"))
        .args(["--function", &format!("{},{mac}", free.display()), "--function", &format!("{},{mac}", taken.display())])
        .output()
        .expect("the program");
    drop(starting);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&taken.display().to_string()));
    assert!(!free.exists());
    boot(&program, "a");
}
