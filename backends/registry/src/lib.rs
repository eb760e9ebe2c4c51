//! Opens a backend by name: the only place that knows which there are.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use netacc_config::{Backend, Config, RdmaProfile};
use netacc_device::{ConnectionManager, Device, DeviceError, Directory};
use netacc_shm::{ShmConfig, ShmDevice};
use netacc_verbs::{Profile, VerbsConfig, VerbsDevice};
use nix::net::if_::InterfaceFlags;

/// Names of all backends that this build has, best first.
pub const BACKENDS: &[&str] = &["shm", "verbs"];

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
    /// Whoever can be found in the directory is known to be admitted: its word on the link may be trusted before
    /// its proof on the anchor has been read.
    pub trusted_peers: bool,
    /// Descriptors that the backend keeps open, now.
    pub fds: Arc<dyn Fn() -> Vec<RawFd> + Send + Sync>,
}

/// Why no backend could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration says none.
    #[error("no backend is wanted")]
    Disabled,
    /// The group that is to be admitted does not exist.
    #[error("NACC_SHM_GROUP: no such group")]
    Group,
    /// The group database could not be read.
    #[error("NACC_SHM_GROUP: {0}")]
    GroupLookup(#[source] std::io::Error),
    /// No network interface is up.
    #[error("no address of this machine could have an RDMA device")]
    NoAddress,
    /// The backend does not work on this machine.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Opens the backend that `config` asks for, or the best one that works.
pub fn open(config: &Config) -> Result<Opened, OpenError> {
    match config.backend {
        Backend::None => Err(OpenError::Disabled),
        Backend::Auto | Backend::Shm => open_shm(config),
        Backend::Verbs => open_verbs(config),
        _ => Err(OpenError::Disabled),
    }
}

/// What the shared-memory backend is told.
pub fn shm_config(config: &Config) -> Result<ShmConfig, OpenError> {
    let group = match &config.shm.group {
        Some(group) => {
            group.resolve().map_err(OpenError::GroupLookup)?.map_or(Err(OpenError::Group), |gid| Ok(Some(gid)))?
        }
        None => None,
    };
    Ok(ShmConfig {
        group,
        mr_min_inc_bytes: config.memory.mr_min_bytes as u64,
        mr_max_inc_bytes: config.memory.mr_max_bytes as u64,
        ..ShmConfig::default()
    })
}

fn open_shm(config: &Config) -> Result<Opened, OpenError> {
    let device = ShmDevice::open(shm_config(config)?)?;
    let fds = device.clone();
    Ok(Opened {
        name: "shm".into(),
        device: device.clone(),
        cm: device.clone(),
        directory: device,
        trusted_peers: true,
        fds: Arc::new(move || fds.fds()),
    })
}

/// What the verbs backend is told, for one address of ours.
pub fn verbs_config(config: &Config, address: IpAddr) -> VerbsConfig {
    let profile = match config.verbs.profile {
        RdmaProfile::Erdma => Profile::Erdma,
        RdmaProfile::Rxe => Profile::Rxe,
        RdmaProfile::Siw => Profile::Siw,
        RdmaProfile::Mlx5 => Profile::Mlx5,
        _ => Profile::Native,
    };
    VerbsConfig { profile, ..VerbsConfig::new(address) }
}

fn open_verbs(config: &Config) -> Result<Opened, OpenError> {
    let mut last = OpenError::NoAddress;
    for address in config.verbs.address.map_or_else(own_addresses, |address| vec![address]) {
        match VerbsDevice::open(&verbs_config(config, address)) {
            Ok(device) => {
                let device = Arc::new(device);
                let fds = device.clone();
                return Ok(Opened {
                    name: "verbs".into(),
                    device: device.clone(),
                    cm: device.clone(),
                    directory: device,
                    trusted_peers: false,
                    fds: Arc::new(move || fds.fds()),
                });
            }
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// Addresses of this machine that a network device could serve: IPv4 first, which all RDMA devices know.
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
