//! Opens a backend by name: the only place that knows which there are.

use std::os::fd::RawFd;
use std::sync::Arc;

use netacc_config::{Backend, Config};
use netacc_device::{ConnectionManager, Device, DeviceError, Directory};
use netacc_shm::{ShmConfig, ShmDevice};

/// Names of all backends that this build has, best first.
pub const BACKENDS: &[&str] = &["shm"];

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
    /// The backend does not work on this machine.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Opens the backend that `config` asks for, or the best one that works.
pub fn open(config: &Config) -> Result<Opened, OpenError> {
    match config.backend {
        Backend::None => Err(OpenError::Disabled),
        Backend::Auto | Backend::Shm => open_shm(config),
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
