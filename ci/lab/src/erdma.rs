//! The process with the eRDMA functions of a lab's hosts: its start, its control socket, its end.
//!
//! One process, `netacc-erdma`, has the functions of both hosts, because work requests of one host access memory of the
//! other. It listens on a socket for each function, to which that host's QEMU connects, and on one for control.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{kill, Signal};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;
use serde_json::json;

use crate::error::{find_program, last_lines, output, LabError};
use crate::provision::{Kernel, Provision};
use crate::qemu::{own_program, spawn_apart};
use crate::setup::{ErdmaDriver, Impairment};
use crate::state::LabFolder;
use crate::{drivers, machine};

const PROGRAM: &str = "netacc-erdma";

/// Names a built module of a driver other than the one in the kernel's source.
pub(crate) const MODULE_VARIABLE: &str = "NETACC_LAB_ERDMA_MODULE";

/// Binding a few sockets takes milliseconds. The limit is far above that, for busy machines.
const START_TIME: Duration = Duration::from_secs(20);

/// The process answers once it has finished its current work.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// The driver that the hosts of a lab with `--rdma erdma` load.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ErdmaArgs {
    /// The driver of --rdma erdma
    #[arg(long, value_enum, default_value_t = ErdmaDriver::Upstream)]
    pub(crate) driver: ErdmaDriver,

    /// Load this erdma.ko, built for the lab's kernel, instead of one that is built here (also: $NETACC_LAB_ERDMA_MODULE)
    #[arg(long, value_name = "FILE")]
    pub(crate) driver_module: Option<PathBuf>,
}

impl ErdmaArgs {
    /// The module that the user names.
    fn named(&self) -> Option<PathBuf> {
        let set = std::env::var_os(MODULE_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        self.driver_module.clone().or(set)
    }

    /// Whether the driver is built here.
    pub(crate) fn builds(&self) -> bool {
        self.driver == ErdmaDriver::Upstream && self.named().is_none()
    }
}

/// The module to load into `kernel`, or `None` if it has one of its own.
///
/// # Errors
/// The named module does not fit, or none can be built here: the reason.
pub(crate) fn module(provision: &Provision, kernel: &Kernel, args: &ErdmaArgs) -> Result<Option<PathBuf>, LabError> {
    match (args.driver, args.named()) {
        (_, Some(built)) => fits(kernel, &built).map(Some),
        (ErdmaDriver::Upstream, None) => drivers::module(provision, kernel, drivers::Driver::Erdma),
        (ErdmaDriver::Alibaba, None) => Err(LabError::Missing {
            what: "no package has Alibaba Cloud's driver".into(),
            fix: format!(
                "build its erdma.ko for Linux {} and name that file with --driver-module or {MODULE_VARIABLE}",
                kernel.version
            ),
        }),
    }
}

/// The guest would refuse a module for another kernel, without a reason.
fn fits(kernel: &Kernel, module: &Path) -> Result<PathBuf, LabError> {
    let path = module.canonicalize().map_err(LabError::file(module))?;
    let modinfo = find_program("modinfo").unwrap_or_else(|| "modinfo".into());
    let magic = output(Command::new(modinfo).args(["-F", "vermagic"]).arg(&path))?;
    let magic = String::from_utf8_lossy(&magic);
    let version = magic.split_whitespace().next().unwrap_or_default();
    if version == kernel.version {
        return Ok(path);
    }
    Err(LabError::Usage(format!(
        "{} is for Linux {version}, and the lab's kernel is {} (--kernel chooses another)",
        path.display(),
        kernel.version
    )))
}

/// The program beside this one, or in PATH.
///
/// # Errors
/// It is in neither.
pub(crate) fn program() -> Result<PathBuf, LabError> {
    let beside = own_program()?.with_file_name(PROGRAM);
    let found = if beside.is_file() { Some(beside) } else { find_program(PROGRAM) };
    found.ok_or_else(|| LabError::Missing {
        what: format!("{PROGRAM}, which has the emulated eRDMA functions, is neither beside netacc nor in PATH"),
        fix: "build it: cargo build --release -p netacc-erdma".into(),
    })
}

/// This program ends the process, or leaves it to others: its end is nothing to report.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The lab's handle of the process. Drop kills it, unless it was released.
#[derive(Debug)]
pub(crate) struct Functions {
    child: Option<Child>,
}

impl Functions {
    /// Starts the process and waits until its sockets exist. Reports if the process ends by itself.
    pub(crate) fn start(folder: &LabFolder, hosts: u8, driver: ErdmaDriver, tied: bool) -> Result<Functions, LabError> {
        let program = program()?;
        // A process that another lab left may have been ended before.
        ENDING.store(false, Ordering::Release);
        let mut command = Command::new(&program);
        for host in 1..=hosts {
            let socket = folder.host(host).function();
            command.arg("--function").arg(format!("{},mac={}", socket.display(), machine::mac(host)));
        }
        command.args(["--driver", driver.name(), "--control"]).arg(folder.control());
        let log = folder.functions_log();
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&log).map_err(LabError::file(&log))?);
        let mut child = spawn_apart(&mut command, false, tied).map_err(LabError::io(program.display().to_string()))?;
        let stdout = child.stdout.take().expect("piped");
        let functions = Functions { child: Some(child) };
        let (ready, is_ready) = sync_channel(1);
        let folder = folder.clone();
        thread::spawn(move || watch(stdout, &ready, &folder));
        match is_ready.recv_timeout(START_TIME) {
            Ok(Ok(())) => Ok(functions),
            Ok(Err(log)) => Err(problem("it ended as soon as it had started", &log)),
            Err(_) => Err(problem("it was not ready in time", "")),
        }
    }

    /// Lets it run on without this process.
    pub(crate) fn release(mut self) {
        ENDING.store(true, Ordering::Release);
        drop(self.child.take());
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        ENDING.store(true, Ordering::Release);
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn log_of(folder: &LabFolder) -> String {
    last_lines(&fs::read(folder.functions_log()).unwrap_or_default())
}

fn problem(why: &str, log: &str) -> LabError {
    LabError::Functions { why: why.into(), log: log.into() }
}

/// Reads the process's stdout to its end, which is the end of the process.
fn watch(stdout: impl Read, ready: &SyncSender<Result<(), String>>, folder: &LabFolder) {
    let mut came_up = false;
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if line == "ready" {
            came_up = true;
            let _ = ready.try_send(Ok(()));
        }
    }
    let log = log_of(folder);
    if !came_up {
        let _ = ready.try_send(Err(log));
    } else if !ENDING.load(Ordering::Acquire) {
        eprintln!("netacc lab: {}", problem(ENDED, &log));
    }
}

/// The state of a lab whose process with the functions is gone.
const ENDED: &str = "it has ended; the hosts run on, but their eRDMA devices do nothing any more. Boot the lab again";

/// The report on a lab whose process has ended. While the process runs, it accepts control connections.
pub(crate) fn loss(folder: &LabFolder) -> Option<LabError> {
    UnixStream::connect(folder.control()).is_err().then(|| problem(ENDED, &log_of(folder)))
}

/// Ends the process of a lab that another one started.
pub(crate) fn end(folder: &LabFolder) {
    ENDING.store(true, Ordering::Release);
    let Ok(control) = UnixStream::connect(folder.control()) else {
        return;
    };
    // The process that listens there, whatever its number was when the lab was started.
    if let Ok(credentials) = getsockopt(&control, PeerCredentials) {
        let _ = kill(Pid::from_raw(credentials.pid()), Signal::SIGKILL);
    }
}

/// Sends a request to the process, a JSON object, and returns its answer, another one.
///
/// # Errors
/// It is gone, or refuses.
pub(crate) fn control(folder: &LabFolder, request: &str) -> Result<String, LabError> {
    let path = folder.control();
    let exchange = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    };
    let answer = exchange().map_err(LabError::file(&path))?;
    match serde_json::from_str::<serde_json::Value>(&answer) {
        Ok(value) if value.get("error").is_none() => Ok(answer),
        _ => Err(LabError::Refused { command: request.into(), answer }),
    }
}

/// Makes the functions' fabric lose, delay and limit the data of each host, as netem does for packets. Effects that are
/// not requested are off.
pub(crate) fn impair(folder: &LabFolder, impairment: &Impairment) -> Result<(), LabError> {
    let set = json!({
        "loss": impairment.loss_share(), "delay_us": impairment.delay_us(), "rate_gbit": impairment.rate_gbit(),
    });
    control(folder, &json!({ "set": set }).to_string()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn folder() -> (tempfile::TempDir, LabFolder) {
        let root = tempfile::tempdir().expect("a folder");
        let folder = LabFolder { name: "test".into(), path: root.path().to_owned() };
        (root, folder)
    }

    /// Answers one request, and returns it.
    fn answering(folder: &LabFolder, answer: &'static str) -> thread::JoinHandle<String> {
        let listener = UnixListener::bind(folder.control()).expect("bound");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).expect("a line");
            stream.write_all(answer.as_bytes()).expect("written");
            request
        })
    }

    /// Breaks if a parameter that the process does not have counted as set.
    #[test]
    fn a_refusal_is_an_error_with_its_reason() {
        let (_root, folder) = folder();
        let process = answering(&folder, "{\"error\":\"unknown field\"}\n");
        let error = control(&folder, "{\"set\":{}}").expect_err("refused");
        assert_eq!(process.join().expect("answered"), "{\"set\":{}}\n");
        assert!(error.to_string().contains("unknown field"), "{error}");
    }

    #[test]
    fn the_link_is_set_as_a_whole() {
        let (_root, folder) = folder();
        let process = answering(&folder, "{\"ok\":true}\n");
        impair(&folder, &Impairment { delay: Some("2ms".into()), ..Impairment::default() }).expect("taken");
        let request = process.join().expect("answered");
        assert_eq!(request, "{\"set\":{\"delay_us\":2000,\"loss\":0.0,\"rate_gbit\":0.0}}\n");
    }

    /// Breaks if a process that dies before it is ready were waited for, or one that dies later went unnoticed.
    #[test]
    fn the_end_of_the_process_is_the_end_of_its_output() {
        let (_root, folder) = folder();
        fs::write(folder.functions_log(), "cannot bind\n").expect("written");
        let (ready, is_ready) = sync_channel(1);
        watch(&b""[..], &ready, &folder);
        assert_eq!(is_ready.recv().expect("an answer"), Err("\n  cannot bind".into()));
        watch(&b"ready\n"[..], &ready, &folder);
        assert_eq!(is_ready.recv().expect("an answer"), Ok(()));
        let loss = loss(&folder).expect("nobody listens").to_string();
        assert!(loss.contains("it has ended") && loss.contains("cannot bind"), "{loss}");
    }
}
