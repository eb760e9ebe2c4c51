//! A lab: one machine, or two joined by a virtual Ethernet.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::accel::AccelChoice;
use crate::drivers::{self, Driver};
use crate::emulator::Emulator;
use crate::erdma::{self, ErdmaArgs, Functions};
use crate::error::LabError;
use crate::guest::GuestConfig;
use crate::machine::Machine;
use crate::probe;
use crate::provision::{Kernel, Provision};
use crate::qemu::{own_program, Hardware};
use crate::setup::{addresses, Impairment, Rdma};
use crate::state::{HostRecord, LabFolder, Record, PORTS};

/// How long a machine may take to write back and switch off.
pub(crate) const GRACE: Duration = Duration::from_secs(20);

/// The RDMA device of each host.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// The RDMA device of each host
    #[arg(long, value_enum, default_value_t = Rdma::Rxe)]
    pub(crate) rdma: Rdma,

    #[command(flatten)]
    pub(crate) erdma: ErdmaArgs,
}

/// The plan of a lab.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) hosts: u8,
    pub(crate) device: DeviceArgs,
    pub(crate) accel: AccelChoice,
    pub(crate) kernel: Option<String>,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    pub(crate) real_time: bool,
    pub(crate) writable: Vec<PathBuf>,
    pub(crate) impairment: Impairment,
    pub(crate) boot_timeout: Duration,
    /// End the machines when this process ends.
    pub(crate) tied: bool,
}

/// A lab that this process started. Drop kills its machines and removes its folder.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) folder: LabFolder,
    pub(crate) record: Record,
    functions: Option<Functions>,
    machines: Vec<Machine>,
    released: bool,
}

impl Lab {
    /// Boots the machines and waits until commands can run.
    pub(crate) fn start(plan: &Plan, folder: LabFolder, provision: &Provision) -> Result<Lab, LabError> {
        if plan.hosts == 1 && !plan.impairment.is_none() {
            return Err(LabError::Usage("--loss, --delay and --rate are about the link between --hosts 2".into()));
        }
        let Parts { kernel, module, emulator } = Parts::find(&plan.device, provision, plan.kernel.as_deref())?;
        let accel = probe::choose(plan.accel, provision, &kernel, &emulator)?;
        if !folder.is_alive() {
            // Its machines may have ended without it.
            erdma::end(&folder);
        }
        folder.create()?;
        let with_functions = plan.device.rdma == Rdma::Erdma;
        let began = Instant::now();
        let record = Record {
            name: folder.name.clone(),
            kernel: kernel.version.clone(),
            accel,
            rdma: plan.device.rdma,
            driver: with_functions.then_some(plan.device.erdma.driver),
            hosts: (1..=plan.hosts).map(|host| described(&folder, host)).collect(),
            boot_ms: 0,
        };
        let mut lab = Lab { folder, record, functions: None, machines: Vec::new(), released: false };
        let hardware = Hardware {
            accel,
            cpus: plan.cpus,
            memory_mib: plan.memory_mib,
            shared_memory: with_functions,
            real_time: plan.real_time,
            tied: plan.tied,
        };
        if with_functions {
            lab.start_functions(plan)?;
        }
        for host in 1..=plan.hosts {
            let config = GuestConfig {
                host,
                hosts: plan.hosts,
                rdma: plan.device.rdma,
                module: module.clone(),
                program: own_program()?,
                modules: 0,
                module_tree: kernel.tree.clone(),
                writable: plan.writable.clone(),
                impairment: plan.impairment.clone(),
                ports: PORTS,
            };
            let peer = (plan.hosts == 2).then(|| lab.folder.host(3 - host));
            let files = lab.folder.host(host);
            lab.machines.push(Machine::start(&kernel, &emulator, &hardware, files, config, peer.as_ref())?);
        }
        provision.report(&format!(
            "booting {} under {}, Linux {}",
            if plan.hosts == 1 { "a machine".into() } else { format!("{} machines", plan.hosts) },
            accel.describe(),
            kernel.version
        ));
        let deadline = began + plan.boot_timeout;
        for machine in &mut lab.machines {
            machine.wait_until_ready(deadline)?;
        }
        lab.record.boot_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        provision.report(&format!("up after {:.1} s", began.elapsed().as_secs_f64()));
        Ok(lab)
    }

    /// Starts the emulated eRDMA functions of all hosts.
    fn start_functions(&mut self, plan: &Plan) -> Result<(), LabError> {
        let functions = Functions::start(&self.folder, plan.hosts, plan.device.erdma.driver, plan.tied)?;
        self.functions = Some(functions);
        if !plan.impairment.is_none() {
            erdma::impair(&self.folder, &plan.impairment)?;
        }
        Ok(())
    }

    /// Leaves the machines running.
    pub(crate) fn release(mut self) -> Result<Record, LabError> {
        self.folder.write(&self.record)?;
        self.released = true;
        self.machines.drain(..).for_each(Machine::release);
        self.functions.take().into_iter().for_each(Functions::release);
        Ok(self.record.clone())
    }

    /// Switches the machines off in order, so that all written data is kept.
    pub(crate) fn stop(mut self) {
        for machine in &mut self.machines {
            machine.switch_off(GRACE);
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !self.released {
            self.machines.iter_mut().for_each(Machine::kill);
            self.functions = None;
            self.folder.remove();
        }
    }
}

/// The parts of a lab that are installed, downloaded and built.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) kernel: Kernel,
    /// The module that the hosts load, if their kernel has none of its own.
    pub(crate) module: Option<PathBuf>,
    pub(crate) emulator: Emulator,
}

impl Parts {
    /// Finds or makes them. `kernel`: the version, or the newest one.
    ///
    /// # Errors
    /// One is missing and cannot be had: the user's options.
    pub(crate) fn find(device: &DeviceArgs, provision: &Provision, kernel: Option<&str>) -> Result<Parts, LabError> {
        let built = match device.rdma {
            Rdma::Rxe | Rdma::None => None,
            Rdma::Siw => Some(Driver::Siw),
            Rdma::Erdma => device.erdma.builds().then_some(Driver::Erdma),
        };
        let for_driver = built.map_or_else(Vec::new, |driver| drivers::packages(provision, kernel, driver));
        provision.programs(device.rdma, &for_driver)?;
        let kernel = provision.kernel(kernel)?;
        let module = match device.rdma {
            Rdma::Rxe | Rdma::None => None,
            Rdma::Siw => drivers::module(provision, &kernel, Driver::Siw)?,
            Rdma::Erdma => erdma::module(provision, &kernel, &device.erdma)?,
        };
        let emulator = match device.rdma {
            Rdma::Erdma => Emulator::with_vfio_user(provision)?,
            Rdma::Rxe | Rdma::Siw | Rdma::None => Emulator::Installed,
        };
        Ok(Parts { kernel, module, emulator })
    }
}

fn described(folder: &LabFolder, host: u8) -> HostRecord {
    let [address, address6] = addresses(host);
    HostRecord { host, name: format!("lab{host}"), address, address6, console: folder.host(host).console() }
}
