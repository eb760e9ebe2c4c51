//! `netacc lab`.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use crate::accel::AccelChoice;
use crate::client::{CommandLine, Input, OutputKind, Session, Sink};
use crate::error::LabError;
use crate::lab::{DeviceArgs, Lab, Parts, Plan, GRACE};
use crate::provision::Provision;
use crate::setup::{Impairment, Rdma};
use crate::state::{LabFolder, Record, MAX_HOSTS};
use crate::terminal::{self, Raw};
use crate::{erdma, local, machine, probe};

/// Arguments of `netacc lab`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

const EXAMPLES: &str = "\
A host of the lab is the distribution's kernel in a small virtual machine, with the file system of this machine inside:
installed and built programs run there. Files that a command writes are lost with the machine, except below folders that
are given with --rw.

Commands find in their environment: NETACC_LAB_HOST (1 or 2), NETACC_LAB_HOSTS, NETACC_LAB_ADDRESS, NETACC_LAB_PEER (the
other host's address) and NETACC_LAB_DEVICE (rxe0, siw0 or erdma_0).

Examples:
  netacc lab run -- ibv_devinfo                          the RDMA device of a machine
  netacc lab run --hosts 2 --rdma siw -- rdma link       on both hosts, with soft-iWARP
  netacc lab shell                                       a shell on a host
  netacc lab up --hosts 2 --loss 1% --delay 1ms          two hosts that stay, on a bad link
  netacc lab exec 1 -- rping -s -C 3 & netacc lab exec 2 -- rping -c -a lab1 -C 3 -v
  netacc lab fabric --delay 5ms                          another link, while they run
  netacc lab down

  netacc lab run --rdma erdma -- ibv_devinfo -v          an emulated eRDMA function, its true driver and provider

Exit status: the command's own, 128 + the signal that ended it, or 126/127 if it could not be started; 124 if --timeout
is over; 125 if the lab itself failed; 2 if the arguments are wrong.";

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Boot a lab, run a command in it, and switch it off
    Run(RunArgs),
    /// A shell in a lab: in a new one, or in one that is up
    Shell(ShellArgs),
    /// Boot a lab that stays
    Up(UpArgs),
    /// Run a command in a lab that is up
    Exec(ExecArgs),
    /// Change the loss, delay and bandwidth of the link between the hosts, and the functions of --rdma erdma
    Fabric(FabricArgs),
    /// Switch a lab off
    Down(NameArgs),
    /// List the labs that are up
    Status(StatusArgs),
    /// Install and download the parts that labs need, and list what was found
    Setup(SetupArgs),
}

/// The properties of the machines.
#[derive(Debug, Args)]
struct MachineArgs {
    /// Machines; two are joined by a virtual Ethernet
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_HOSTS)))]
    hosts: u8,

    #[command(flatten)]
    device: DeviceArgs,

    /// A folder in which writes are kept (may be repeated)
    #[arg(long = "rw", value_name = "FOLDER")]
    writable: Vec<PathBuf>,

    /// Processors of each host
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,

    /// Memory of each host
    #[arg(long, default_value_t = 768, value_name = "MIB", value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,

    /// Carry packets at real-time priority, for measuring round trips of hosts that poll: round trips are shorter, and
    /// throughput is lower. Needs CAP_SYS_NICE
    #[arg(long)]
    real_time: bool,

    /// How to run the machines
    #[arg(long, value_enum, default_value_t = AccelChoice::Auto)]
    accel: AccelChoice,

    /// Boot this version (such as 6.1.0-50-amd64) instead of the newest that is installed or cached
    #[arg(long, value_name = "VERSION")]
    kernel: Option<String>,

    /// Give up on a machine that is not ready after this many seconds
    #[arg(long, default_value_t = 180, value_name = "S")]
    boot_timeout: u64,

    #[command(flatten)]
    impairment: Impairment,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct CommonArgs {
    /// Fail rather than install or download anything
    #[arg(long)]
    no_install: bool,

    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// This machine itself if its kernel has the driver and the user is root, else a virtual machine
    Auto,
    /// A virtual machine
    Vm,
    /// This machine itself: the driver is loaded and an interface lab0 made, for as long as the command runs
    Host,
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    machine: MachineArgs,

    /// Where to run the command
    #[arg(long = "where", value_enum, default_value_t = Where::Auto)]
    place: Where,

    /// Kill the command after so many seconds
    #[arg(long, value_name = "S")]
    timeout: Option<u64>,

    /// The command; with --hosts 2 it runs on both hosts at once, its lines marked with the host
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct ShellArgs {
    #[command(flatten)]
    machine: MachineArgs,

    /// Use this lab, which is up, instead of a new one
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The host to log in to
    #[arg(long, default_value_t = 1)]
    on: u8,
}

#[derive(Debug, Args)]
struct UpArgs {
    #[command(flatten)]
    machine: MachineArgs,

    #[command(flatten)]
    name: NameArgs,

    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// The lab's name
    #[arg(long, default_value = "default")]
    name: String,
}

#[derive(Debug, Args)]
struct ExecArgs {
    #[command(flatten)]
    name: NameArgs,

    /// Kill the command after so many seconds
    #[arg(long, value_name = "S")]
    timeout: Option<u64>,

    /// The host
    host: u8,

    /// The command
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// With only a name, the link has no loss, delay or bandwidth limit any more.
#[derive(Debug, Args)]
struct FabricArgs {
    #[command(flatten)]
    name: NameArgs,

    #[command(flatten)]
    impairment: Impairment,

    /// Leave the link as it is, and send these requests to the process with the functions: JSON objects such as
    /// {"get":"counters"}, which models/erdma/README.md lists. Each answer is a line
    #[arg(long = "request", value_name = "JSON", conflicts_with_all = ["loss", "delay", "rate"])]
    requests: Vec<String>,
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// One JSON array instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct SetupArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// Prepare this version (such as 6.1.0-50-amd64) instead of the newest that is installed or cached
    #[arg(long, value_name = "VERSION")]
    kernel: Option<String>,

    /// One JSON object instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    common: CommonArgs,
}

/// Runs `netacc lab`.
pub fn run(args: LabArgs) -> ExitCode {
    let result = match args.command {
        LabCommand::Run(args) => run_command(&args),
        LabCommand::Shell(args) => shell(&args),
        LabCommand::Up(args) => up(&args),
        LabCommand::Exec(args) => exec(&args),
        LabCommand::Fabric(args) => fabric(&args),
        LabCommand::Down(args) => down(&args),
        LabCommand::Status(args) => status(&args),
        LabCommand::Setup(args) => setup(&args),
    };
    if INTERRUPTED.load(Ordering::Acquire) {
        // The command has failed because its machine was switched off by the signal handler, which ends this process.
        loop {
            thread::park();
        }
    }
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("netacc lab: {error}");
            ExitCode::from(error.status())
        }
    }
}

fn run_command(args: &RunArgs) -> Result<u8, LabError> {
    if on_this_machine(args)? {
        return local::run(args.machine.device.rdma, &args.command);
    }
    let lab = temporary(&args.machine)?;
    let command = CommandLine { argv: args.command.clone(), terminal: None };
    let deadline = args.timeout.map(|seconds| (Instant::now() + Duration::from_secs(seconds), seconds));
    let status = if args.machine.hosts == 1 {
        Session::open(&lab.folder.host(1))?.run(&command, Input::Stdin, &mut Plain, deadline)?
    } else {
        on_all(&lab, &command, deadline)?
    };
    lab.stop();
    Ok(status)
}

fn on_this_machine(args: &RunArgs) -> Result<bool, LabError> {
    let machine = &args.machine;
    let fits = machine.hosts == 1 && machine.impairment.is_none() && machine.device.rdma != Rdma::None;
    match args.place {
        Where::Vm => Ok(false),
        Where::Auto => Ok(fits && args.timeout.is_none() && local::obstacle(machine.device.rdma).is_none()),
        Where::Host if !fits || args.timeout.is_some() => {
            Err(LabError::Usage("--where host is for one host with an RDMA device, and no --timeout".into()))
        }
        Where::Host => Ok(true),
    }
}

/// The command on every host at once. The status of the first host whose command failed.
fn on_all(lab: &Lab, command: &CommandLine, deadline: Option<(Instant, u64)>) -> Result<u8, LabError> {
    let turn = Mutex::new(());
    let results: Vec<Result<u8, LabError>> = thread::scope(|scope| {
        let started: Vec<_> = (1..=lab.record.hosts.len() as u8)
            .map(|host| {
                let (turn, folder) = (&turn, &lab.folder);
                scope.spawn(move || {
                    let mut sink = Marked::new(host, turn);
                    let session = Session::open(&folder.host(host))?;
                    let status = session.run(command, Input::Nothing, &mut sink, deadline);
                    sink.finish().map_err(LabError::io("writing the command's output"))?;
                    status
                })
            })
            .collect();
        started
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut worst = 0;
    for status in results {
        let status = status?;
        if worst == 0 {
            worst = status;
        }
    }
    Ok(worst)
}

fn shell(args: &ShellArgs) -> Result<u8, LabError> {
    let own = match args.name {
        Some(_) => None,
        None => Some(temporary(&args.machine)?),
    };
    let (folder, record) = match (&own, &args.name) {
        (Some(lab), _) => (lab.folder.clone(), lab.record.clone()),
        (None, name) => {
            let folder = LabFolder::of(name.as_deref().unwrap_or_default())?;
            let record = folder.read()?;
            (folder, record)
        }
    };
    known_host(&record, args.on)?;
    let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let raw = Raw::enter();
    let terminal = raw.is_some().then(terminal::size);
    let command = CommandLine { argv: vec![shell], terminal };
    let status = Session::open(&folder.host(args.on))?.run(&command, Input::Stdin, &mut Plain, None);
    drop(raw);
    if let Some(lab) = own {
        lab.stop();
    }
    status
}

fn up(args: &UpArgs) -> Result<u8, LabError> {
    let provision = provision(&args.machine.common)?;
    let folder = LabFolder::of(&args.name.name)?;
    end_on_interrupt(&folder);
    let lab = Lab::start(&plan(&args.machine, false)?, folder, &provision)?;
    let record = lab.release()?;
    if args.json {
        println!("{}", json!(record));
    } else {
        print_lab(&record);
    }
    Ok(0)
}

fn exec(args: &ExecArgs) -> Result<u8, LabError> {
    let folder = LabFolder::of(&args.name.name)?;
    let record = folder.read()?;
    known_host(&record, args.host)?;
    let command = CommandLine { argv: args.command.clone(), terminal: None };
    let deadline = args.timeout.map(|seconds| (Instant::now() + Duration::from_secs(seconds), seconds));
    let status = Session::open(&folder.host(args.host))?.run(&command, Input::Stdin, &mut Plain, deadline);
    if let Some(loss) = lost_functions(&folder, &record) {
        eprintln!("netacc lab: {loss}");
    }
    status
}

fn lost_functions(folder: &LabFolder, record: &Record) -> Option<LabError> {
    if record.rdma == Rdma::Erdma {
        erdma::loss(folder)
    } else {
        None
    }
}

fn fabric(args: &FabricArgs) -> Result<u8, LabError> {
    let folder = LabFolder::of(&args.name.name)?;
    let record = folder.read()?;
    if let Some(loss) = lost_functions(&folder, &record) {
        return Err(loss);
    }
    if !args.requests.is_empty() {
        if record.rdma != Rdma::Erdma {
            return Err(LabError::Usage(format!("the lab '{}' has no functions (--rdma erdma)", record.name)));
        }
        for request in &args.requests {
            println!("{}", erdma::control(&folder, request)?);
        }
        return Ok(0);
    }
    if record.hosts.len() == 1 {
        return Err(LabError::Usage(format!("the lab '{}' has one host, and no link", record.name)));
    }
    if record.rdma == Rdma::Erdma {
        erdma::impair(&folder, &args.impairment)?;
    }
    let argv = ["sh", "-c", &args.impairment.replacement()].map(OsString::from).to_vec();
    for host in &record.hosts {
        let command = CommandLine { argv: argv.clone(), terminal: None };
        let status = Session::open(&folder.host(host.host))?.run(&command, Input::Nothing, &mut Plain, None)?;
        if status != 0 {
            return Ok(status);
        }
    }
    Ok(0)
}

fn down(args: &NameArgs) -> Result<u8, LabError> {
    let folder = LabFolder::of(&args.name)?;
    if !folder.is_alive() {
        erdma::end(&folder);
        folder.remove();
        return Err(LabError::NotRunning(args.name.clone()));
    }
    let off: Vec<bool> = thread::scope(|scope| {
        let hosts = (1..=MAX_HOSTS).map(|host| folder.host(host)).filter(|files| files.is_alive());
        let threads: Vec<_> = hosts.map(|files| scope.spawn(move || machine::switch_off(&files, GRACE))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(false)).collect()
    });
    if off.contains(&false) {
        return Err(LabError::io(format!("switching {} off", args.name))(io::ErrorKind::TimedOut.into()));
    }
    erdma::end(&folder);
    folder.remove();
    Ok(0)
}

fn status(args: &StatusArgs) -> Result<u8, LabError> {
    let known = LabFolder::all()?.into_iter().filter_map(|folder| folder.read().ok().map(|record| (folder, record)));
    let labs: Vec<(LabFolder, Record)> = known.collect();
    if args.json {
        let records: Vec<&Record> = labs.iter().map(|(_, record)| record).collect();
        println!("{}", json!(records));
    } else if labs.is_empty() {
        println!("no lab is up");
    } else {
        for (folder, record) in &labs {
            print_lab(record);
            if let Some(loss) = lost_functions(folder, record) {
                println!("  {loss}");
            }
        }
    }
    Ok(0)
}

fn print_lab(record: &Record) {
    println!("lab {}: Linux {}, {}", record.name, record.kernel, record.accel.describe());
    for host in &record.hosts {
        let device = record.rdma.names().map_or("no RDMA device", |(device, _)| device);
        println!("  host {} ({}): {device}, {}, {}", host.host, host.name, host.address, host.address6);
    }
}

fn setup(args: &SetupArgs) -> Result<u8, LabError> {
    let provision = provision(&args.common)?;
    let rdma = args.device.rdma;
    let Parts { kernel, module, emulator } = Parts::find(&args.device, &provision, args.kernel.as_deref())?;
    let functions = if rdma == Rdma::Erdma { Some(erdma::program()?) } else { None };
    let accel = probe::choose(AccelChoice::Auto, &provision, &kernel, &emulator)?;
    let own = local::obstacle(rdma);
    let qemu = emulator.program();
    if args.json {
        let found = json!({
            "qemu": qemu, "kernel": kernel.version, "image": kernel.image, "modules": kernel.tree, "accel": accel,
            "module": module, "functions": functions, "cache": provision.cache,
            "cache_bytes": provision.cached_bytes(), "own_kernel": own.is_none(), "own_kernel_obstacle": own,
        });
        println!("{found}");
    } else {
        println!("QEMU         {}", qemu.display());
        println!("kernel       {} ({})", kernel.version, kernel.image.display());
        println!("runs under   {}", accel.describe());
        if let Some(module) = module {
            println!("driver       {}", module.display());
        }
        if let Some(functions) = functions {
            println!("functions    {}", functions.display());
        }
        println!("downloads    {} ({} MB)", provision.cache.display(), provision.cached_bytes() / 1_000_000);
        println!(
            "own kernel   {}",
            own.as_deref().unwrap_or("has the driver: one host runs without a virtual machine")
        );
    }
    Ok(0)
}

fn known_host(record: &Record, host: u8) -> Result<(), LabError> {
    if record.hosts.iter().any(|known| known.host == host) {
        return Ok(());
    }
    Err(LabError::Usage(format!("the lab '{}' has no host {host}", record.name)))
}

fn provision(args: &CommonArgs) -> Result<Provision, LabError> {
    Provision::open(!args.no_install, args.quiet)
}

/// A lab for this process alone.
fn temporary(args: &MachineArgs) -> Result<Lab, LabError> {
    let provision = provision(&args.common)?;
    let folder = LabFolder::of(&format!("run-{}", std::process::id()))?;
    end_on_interrupt(&folder);
    Lab::start(&plan(args, true)?, folder, &provision)
}

/// A signal is ending this process.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// On SIGINT, SIGTERM and SIGHUP the machines of this process go with it, and so does their folder.
fn end_on_interrupt(folder: &LabFolder) {
    let folder = folder.clone();
    // Fails only if a handler is there already, and this is called once.
    let _ = ctrlc::set_handler(move || {
        INTERRUPTED.store(true, Ordering::Release);
        for host in (1..=MAX_HOSTS).map(|host| folder.host(host)).filter(|files| files.is_alive()) {
            machine::quit(&host);
        }
        erdma::end(&folder);
        machine::await_children(GRACE);
        folder.remove();
        eprintln!("netacc lab: interrupted");
        std::process::exit(130);
    });
}

fn plan(args: &MachineArgs, tied: bool) -> Result<Plan, LabError> {
    let writable = args.writable.iter().map(|folder| {
        let path = folder.canonicalize().map_err(LabError::file(folder))?;
        match path.is_dir() {
            true => Ok(path),
            false => Err(LabError::Usage(format!("--rw {}: no folder", folder.display()))),
        }
    });
    Ok(Plan {
        hosts: args.hosts,
        device: args.device.clone(),
        accel: args.accel,
        kernel: args.kernel.clone(),
        cpus: args.cpus,
        memory_mib: args.memory,
        real_time: args.real_time,
        writable: writable.collect::<Result<_, _>>()?,
        impairment: args.impairment.clone(),
        boot_timeout: Duration::from_secs(args.boot_timeout),
        tied,
    })
}

/// Unbuffered output.
struct Plain;

impl Sink for Plain {
    fn write(&mut self, kind: OutputKind, bytes: &[u8]) -> io::Result<()> {
        write_out(kind, bytes)
    }
}

fn write_out(kind: OutputKind, bytes: &[u8]) -> io::Result<()> {
    match kind {
        OutputKind::Stdout => {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        }
        OutputKind::Stderr => io::stderr().write_all(bytes),
    }
}

/// Output line by line, each marked with its host.
struct Marked<'a> {
    mark: String,
    turn: &'a Mutex<()>,
    rest: [Vec<u8>; 2],
}

impl<'a> Marked<'a> {
    fn new(host: u8, turn: &'a Mutex<()>) -> Self {
        let mark = if io::stdout().is_terminal() {
            format!("\x1b[3{}m{host}|\x1b[0m ", host + 1)
        } else {
            format!("{host}| ")
        };
        Marked { mark, turn, rest: [Vec::new(), Vec::new()] }
    }

    fn finish(&mut self) -> io::Result<()> {
        for kind in [OutputKind::Stdout, OutputKind::Stderr] {
            if !self.rest[kind as usize].is_empty() {
                self.write(kind, b"\n")?;
            }
        }
        Ok(())
    }
}

impl Sink for Marked<'_> {
    fn write(&mut self, kind: OutputKind, bytes: &[u8]) -> io::Result<()> {
        let rest = &mut self.rest[kind as usize];
        rest.extend_from_slice(bytes);
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |position| position + 1);
        let mut text = Vec::new();
        for line in rest[..whole].split_inclusive(|byte| *byte == b'\n') {
            text.extend_from_slice(self.mark.as_bytes());
            text.extend_from_slice(line);
        }
        rest.drain(..whole);
        let _turn = self.turn.lock();
        write_out(kind, &text)
    }
}
