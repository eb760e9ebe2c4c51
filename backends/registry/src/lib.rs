//! Opens a backend by name: the only crate that names the backends, and that makes one device of two.
//!
//! The commands use the functions that iterate over all backends: [`examine`] and [`Check`] (`netacc doctor`),
//! [`within_host`] (`netacc bench`), [`sweep`] (`netacc_ss -c`).

mod backends;
mod device;
mod fabric;
mod health;
mod parts;
mod remote;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;

use netacc_config::{Backend, Config, RdmaProfile};
use netacc_device::{ConnectionManager, Device, DeviceError, Directory, PeerAddress};
use netacc_shm::{ShmConfig, ShmDevice};
use netacc_verbs::{CommandTimes, Profile, VerbsConfig, VerbsDevice};
use nix::net::if_::InterfaceFlags;

pub use crate::backends::{examine, sweep, within_host, Availability, Examination};
use crate::fabric::{Fabric, Parts};
pub use crate::health::{Check, Status};
use crate::parts::{BetweenHosts, WithinHost};
pub use netacc_shm::{without_file_size_signal, GiveBack};
/// The name of the threads that connect links. They come and go, and do not belong to the program.
pub use netacc_verbs::CONNECTING;
/// For the code that forks the process: the libraries that a backend may load must be prepared.
pub use netacc_verbs::{after_fork, before_fork};

/// An opened backend.
pub struct Opened {
    /// Its name.
    pub name: String,
    /// Queue pairs and memory.
    pub device: Arc<dyn Device>,
    /// Connecting.
    pub cm: Arc<dyn ConnectionManager>,
    /// Finding peers.
    pub directory: Arc<dyn Directory>,
    /// Descriptors that the backend keeps open, now.
    pub fds: Arc<dyn Fn() -> BackendFds + Send + Sync>,
    /// It may open others at any time, at any free numbers.
    pub opens_later: bool,
    /// To be called by a thread that ends when the process does: peers on this host then detect the end at once.
    pub end_with_this_thread: Arc<dyn Fn() + Send + Sync>,
    /// To be called when the process ends in good order: removes the entries that it would leave behind. Safe in a
    /// signal handler.
    pub leave: Arc<dyn Fn() + Send + Sync>,
    /// Closes descriptors of the backend for a program that has none left; returns their number.
    pub give_back: Arc<dyn Fn(GiveBack) -> usize + Send + Sync>,
}

/// Descriptors that a backend keeps open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendFds {
    /// Its own.
    pub own: Vec<RawFd>,
    /// Those of libraries that it has loaded, which use these numbers also in a forked child. In the child they must
    /// not be closed; they must refer to nothing.
    pub libraries: Vec<RawFd>,
}

/// The reason why no backend could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration names none.
    #[error("no backend is wanted")]
    Disabled,
    /// The group to admit does not exist.
    #[error("NACC_SHM_GROUP: no such group")]
    Group,
    /// The group database could not be read.
    #[error("NACC_SHM_GROUP: {0}")]
    GroupLookup(#[source] std::io::Error),
    /// No network interface is up.
    #[error("no address of this machine could have an RDMA device")]
    NoAddress,
    /// Opening failed a moment ago.
    #[error("an RDMA device could not be opened a moment ago")]
    Paused,
    /// The backend does not work on this machine.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Opens the backend that `config` names, or the best that work.
pub fn open(config: &Config) -> Result<Opened, OpenError> {
    match config.backend {
        Backend::Shm => open_shm(config),
        Backend::Auto if !has_rdma_device() => open_shm(config),
        Backend::Auto => {
            let parts = parts(config)?;
            let name = if parts.near.is_some() { "shm+verbs" } else { "verbs" };
            Ok(combined(name, Fabric::new(config, parts, true)?))
        }
        Backend::Verbs => {
            // Shared memory carries no data then, but neighbours find each other in it.
            let fabric = Fabric::new(config, parts(config)?, false)?;
            fabric.open_far()?;
            Ok(combined("verbs", fabric))
        }
        _ => Err(OpenError::Disabled),
    }
}

/// Whether the kernel has an RDMA device. Loads nothing.
fn has_rdma_device() -> bool {
    let _number = netacc_descriptors::borrow();
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// The devices that the fabric is made of.
fn parts(config: &Config) -> Result<Parts<ShmDevice, VerbsDevice>, OpenError> {
    let near = ShmDevice::open(shm_config(config)?).ok();
    Ok(Parts { name: "shared memory and RDMA", near, open_far: open_rdma })
}

fn combined<N, F>(name: &str, fabric: Fabric<N, F>) -> Opened
where
    N: WithinHost + 'static,
    F: BetweenHosts + 'static,
{
    let fabric = Arc::new(fabric);
    let (fds, ending, giving, leaving) = (fabric.clone(), fabric.clone(), fabric.clone(), fabric.clone());
    Opened {
        name: name.into(),
        device: fabric.clone(),
        cm: fabric.clone(),
        directory: fabric,
        fds: Arc::new(move || fds.fds()),
        opens_later: true,
        end_with_this_thread: Arc::new(move || ending.end_with_this_thread()),
        leave: Arc::new(move || leaving.leave()),
        give_back: Arc::new(move |which| giving.give_back(which)),
    }
}

/// The configuration of the shared-memory backend.
pub fn shm_config(config: &Config) -> Result<ShmConfig, OpenError> {
    let group = match &config.shm.group {
        Some(group) => {
            group.resolve().map_err(OpenError::GroupLookup)?.map_or(Err(OpenError::Group), |gid| Ok(Some(gid)))?
        }
        None => None,
    };
    Ok(ShmConfig {
        group,
        folder: config.shm.folder.clone(),
        mr_min_inc_bytes: config.memory.mr_min_bytes as u64,
        mr_max_inc_bytes: config.memory.mr_max_bytes as u64,
        ..ShmConfig::default()
    })
}

fn open_shm(config: &Config) -> Result<Opened, OpenError> {
    let device = ShmDevice::open(shm_config(config)?)?;
    let (fds, ending, giving, leaving) = (device.clone(), device.clone(), device.clone(), device.clone());
    Ok(Opened {
        name: "shm".into(),
        device: device.clone(),
        cm: device.clone(),
        directory: device,
        fds: Arc::new(move || BackendFds { own: fds.fds(), libraries: Vec::new() }),
        opens_later: false,
        end_with_this_thread: Arc::new(move || ending.end_with_this_thread()),
        leave: Arc::new(move || leaving.leave()),
        give_back: Arc::new(move |which| giving.give_back(which)),
    })
}

/// The configuration of the verbs backend, for one address of ours.
pub fn verbs_config(config: &Config, address: IpAddr) -> VerbsConfig {
    let profile = match config.verbs.profile {
        RdmaProfile::Erdma => Profile::Erdma,
        RdmaProfile::Rxe => Profile::Rxe,
        RdmaProfile::Siw => Profile::Siw,
        RdmaProfile::Mlx5 => Profile::Mlx5,
        RdmaProfile::Portable => Profile::Portable,
        _ => Profile::Native,
    };
    VerbsConfig {
        profile,
        comp_vector: config.io.comp_vector,
        mr_min_inc_bytes: config.memory.mr_min_bytes,
        mr_max_inc_bytes: config.memory.mr_max_bytes,
        ..VerbsConfig::new(address)
    }
}

/// Opens the RDMA device of the configured address, or the first that works.
fn open_rdma(config: &Config) -> Result<Arc<VerbsDevice>, OpenError> {
    let mut last = OpenError::NoAddress;
    let addresses = config.verbs.address.map_or_else(own_addresses, |address| vec![address]);
    for address in &addresses {
        match VerbsDevice::open(&VerbsConfig { also: addresses.clone(), ..verbs_config(config, *address) }) {
            Ok(device) => return Ok(Arc::new(device)),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// An RDMA device without any layer of ours above it, for measuring the cost of those layers.
#[derive(Clone)]
pub struct Raw {
    /// Queue pairs and memory.
    pub device: Arc<dyn Device>,
    /// Connecting.
    pub cm: Arc<dyn ConnectionManager>,
}

/// Opens the RDMA device of one address of ours; links are accepted at `port`, or at any for 0.
///
/// # Errors
/// See [`VerbsDevice::open`].
pub fn open_raw(config: &Config, address: IpAddr, port: u16) -> Result<Raw, OpenError> {
    let device = Arc::new(VerbsDevice::open(&VerbsConfig { port, ..verbs_config(config, address) })?);
    Ok(Raw { device: device.clone(), cm: device })
}

/// The peer address of a process that accepts links at that address, for [`Raw::cm`].
pub fn raw_peer_address(address: SocketAddr) -> PeerAddress {
    VerbsDevice::peer_address(address)
}

/// The properties of an address's RDMA device that a simulated one is calibrated with.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// As `rdma link` names it.
    pub name: String,
    /// Payload bytes of a full packet; `None` if the device does not say.
    pub mtu: Option<u32>,
    /// Its commands' times.
    pub commands: CommandTimes,
}

/// Times the commands of the RDMA device of one address of ours, `rounds` times each; registrations with each of `lengths`.
///
/// # Errors
/// See [`VerbsDevice::open`] and [`VerbsDevice::time_commands`].
pub fn time_commands(
    config: &Config,
    address: IpAddr,
    rounds: usize,
    lengths: &[usize],
) -> Result<Calibrated, OpenError> {
    let device = VerbsDevice::open(&verbs_config(config, address))?;
    let commands = device.time_commands(rounds, lengths)?;
    Ok(Calibrated { name: device.name().to_owned(), mtu: device.mtu(), commands })
}

/// An address of ours that the RDMA device of this name serves.
pub fn address_of_device(config: &Config, name: &str) -> Option<IpAddr> {
    let named = |opened: &Result<String, OpenError>| opened.as_ref().is_ok_and(|found| found == name);
    open_rdma_at_each(config).into_iter().find(|(_, opened)| named(opened)).map(|(address, _)| address)
}

/// Tries to open an RDMA device at the configured address, or at each of this machine's; for human readers. Each is
/// closed again.
pub(crate) fn open_rdma_at_each(config: &Config) -> Vec<(IpAddr, Result<String, OpenError>)> {
    let addresses = config.verbs.address.map_or_else(own_addresses, |address| vec![address]);
    let open = |address| {
        let opened = VerbsDevice::open(&verbs_config(config, address));
        (address, opened.map(|device| device.name().to_owned()).map_err(OpenError::from))
    };
    addresses.into_iter().map(open).collect()
}

/// Addresses of this machine that a network device could serve: IPv4 first, which all RDMA devices support.
fn own_addresses() -> Vec<IpAddr> {
    let addresses = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let up = addresses.filter(|found| found.flags.contains(InterfaceFlags::IFF_UP));
    let mut addresses: Vec<IpAddr> = up
        .filter_map(|found| {
            let address = found.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
        })
        .filter(|ip| !ip.is_loopback() && !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_config::Loader;

    /// Breaks if a key for RDMA devices were read and then ignored.
    #[test]
    fn the_verbs_backend_gets_the_configured_values() {
        let set = [
            ("NACC_COMP_VECTOR", "3"),
            ("NACC_VERBS_PROFILE", "erdma"),
            ("NACC_RDMA_MR_MIN_INC_SIZE", "32768"),
            ("NACC_RDMA_MR_MAX_INC_SIZE", "1048576"),
        ];
        let (config, problems) = Loader::new().environment(set).load();
        assert!(problems.is_empty());
        let converted = verbs_config(&config, IpAddr::from([10, 99, 0, 1]));
        assert_eq!((converted.comp_vector, converted.profile, converted.port), (3, Profile::Erdma, 0));
        assert_eq!((converted.mr_min_inc_bytes, converted.mr_max_inc_bytes), (32 << 10, 1 << 20));
    }
}
