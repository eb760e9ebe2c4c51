//! The RDMA devices of this machine, and their attributes.

use netacc_device::DeviceError;
use serde::Serialize;

use crate::ffi::{device_list, Library};
use crate::profile::{Limits, Profile};

/// An RDMA device.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// As `rdma link` names it.
    pub name: String,
    /// Its transport is iWARP, not InfiniBand or RoCE.
    pub iwarp: bool,
    /// Its kind, if it is a known one.
    pub profile: Option<Profile>,
    /// The attributes that it reports, or the errno with which it could not be opened.
    pub attributes: Result<Attributes, i32>,
}

impl Found {
    /// The limits of its kind.
    pub fn limits(&self) -> Limits {
        Limits::of(self.profile, self.iwarp)
    }
}

/// The attributes that a device reports.
#[derive(Clone, Debug, Serialize)]
pub struct Attributes {
    /// Its firmware.
    pub firmware: String,
    /// IEEE number of its vendor.
    pub vendor_id: u32,
    /// Largest region in bytes.
    pub max_mr_bytes: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests of a queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of a request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
}

/// All devices. Loads the libraries.
///
/// # Errors
/// Fails if they are not installed, or the kernel has no RDMA.
pub fn discover() -> Result<Vec<Found>, DeviceError> {
    let library = library()?;
    let listed = device_list(library).map_err(|source| DeviceError::Os { operation: "ibv_get_device_list", source })?;
    Ok(listed
        .into_iter()
        .map(|device| Found {
            profile: device.attributes.as_ref().ok().and_then(|found| Profile::of_vendor(found.vendor_id)),
            name: device.name,
            iwarp: device.iwarp,
            attributes: device.attributes.map(|found| Attributes {
                firmware: found.firmware,
                vendor_id: found.vendor_id,
                max_mr_bytes: found.max_mr_size,
                max_qp: found.max_qp,
                max_qp_wr: found.max_qp_wr,
                max_sge: found.max_sge,
                max_cq: found.max_cq,
                max_cqe: found.max_cqe,
                max_mr: found.max_mr,
            }),
        })
        .collect())
}

pub(crate) fn library() -> Result<&'static Library, DeviceError> {
    Library::get().map_err(|error| DeviceError::Unavailable { what: error.what(), source: None })
}
