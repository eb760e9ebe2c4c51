//! A lab: one machine, or two joined by a virtual Ethernet.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::accel::{Accel, AccelChoice};
use crate::error::LabError;
use crate::guest::GuestConfig;
use crate::machine::Machine;
use crate::probe;
use crate::provision::Provision;
use crate::qemu::{own_program, Hardware};
use crate::setup::{addresses, Impairment, Rdma};
use crate::siw;
use crate::state::{HostRecord, LabFolder, Record, PORTS};

/// How long a machine may take to write back and switch off.
pub(crate) const GRACE: Duration = Duration::from_secs(20);

/// What to make.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) hosts: u8,
    pub(crate) rdma: Rdma,
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

/// A lab that this process started. Dropped: its machines are killed and its folder removed.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) folder: LabFolder,
    pub(crate) record: Record,
    machines: Vec<Machine>,
    released: bool,
}

impl Lab {
    /// Boots the machines and waits until commands can run.
    pub(crate) fn start(plan: &Plan, folder: LabFolder, provision: &Provision) -> Result<Lab, LabError> {
        if plan.hosts == 1 && !plan.impairment.is_none() {
            return Err(LabError::Usage("--loss, --delay and --rate are about the link between --hosts 2".into()));
        }
        provision.programs(plan.rdma)?;
        let kernel = provision.kernel(plan.kernel.as_deref())?;
        let siw = if plan.rdma == Rdma::Siw { siw::module(provision, &kernel)? } else { None };
        let accel = probe::choose(plan.accel, provision, &kernel)?;
        folder.create()?;
        let began = Instant::now();
        let record = Record {
            name: folder.name.clone(),
            kernel: kernel.version.clone(),
            accel,
            rdma: plan.rdma,
            hosts: (1..=plan.hosts).map(|host| described(&folder, host)).collect(),
            boot_ms: 0,
        };
        let mut lab = Lab { folder, record, machines: Vec::new(), released: false };
        let hardware = Hardware {
            accel,
            cpus: plan.cpus,
            memory_mib: plan.memory_mib,
            real_time: plan.real_time,
            tied: plan.tied,
        };
        for host in 1..=plan.hosts {
            let config = GuestConfig {
                host,
                hosts: plan.hosts,
                rdma: plan.rdma,
                siw: siw.clone(),
                program: own_program()?,
                modules: 0,
                module_tree: kernel.tree.clone(),
                writable: plan.writable.clone(),
                impairment: plan.impairment.clone(),
                ports: PORTS,
            };
            let peer = (plan.hosts == 2).then(|| lab.folder.host(3 - host));
            let files = lab.folder.host(host);
            lab.machines.push(Machine::start(&kernel, &hardware, files, config, peer.as_ref())?);
        }
        provision.say(&format!(
            "booting {} under {}, Linux {}",
            if plan.hosts == 1 { "a machine".into() } else { format!("{} machines", plan.hosts) },
            match accel {
                Accel::Kvm => "KVM",
                Accel::Tcg => "software emulation",
            },
            kernel.version
        ));
        let deadline = began + plan.boot_timeout;
        for machine in &mut lab.machines {
            machine.wait_until_ready(deadline)?;
        }
        lab.record.boot_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        provision.say(&format!("up after {:.1} s", began.elapsed().as_secs_f64()));
        Ok(lab)
    }

    /// Leaves the machines running.
    pub(crate) fn release(mut self) -> Result<Record, LabError> {
        self.folder.write(&self.record)?;
        self.released = true;
        self.machines.drain(..).for_each(Machine::release);
        Ok(self.record.clone())
    }

    /// Switches the machines off, so that all that was written is there.
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
            self.folder.remove();
        }
    }
}

fn described(folder: &LabFolder, host: u8) -> HostRecord {
    let [address, address6] = addresses(host);
    HostRecord { host, name: format!("lab{host}"), address, address6, console: folder.host(host).console() }
}
