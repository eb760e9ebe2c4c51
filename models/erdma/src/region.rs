//! Memory regions, their keys and rights.
//!
//! Layouts: erdma_hw.h, `struct erdma_cmdq_reg_mr_req`, `struct erdma_reg_mr_sqe`; rights: erdma_verbs.h,
//! `ERDMA_MR_ACC_*`. In 6.1 the rights are four bits from bit 2 on, later five from bit 1 on, with that for atomics in
//! the new place: each right has the same bit in both.

use crate::host::{GuestMemory, OutsideMemory};
use crate::pages::Pages;
use crate::status::Status;

bitflags::bitflags! {
    /// The permitted uses of a region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Rights: u8 {
        const REMOTE_ATOMIC = 1 << 0;
        const LOCAL_READ = 1 << 1;
        const LOCAL_WRITE = 1 << 2;
        const REMOTE_READ = 1 << 3;
        const REMOTE_WRITE = 1 << 4;
    }
}

/// The reason why a region does not permit an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    Key,
    Bounds,
    Right,
    Domain,
    Wrap,
}

impl Violation {
    /// The status if the requester itself is at fault.
    pub(crate) fn at_requester(self) -> Status {
        match self {
            Violation::Key => Status::LocalKey,
            Violation::Bounds => Status::LocalBounds,
            Violation::Right => Status::LocalRight,
            Violation::Domain => Status::LocalDomain,
            Violation::Wrap => Status::LocalWrap,
        }
    }

    /// The status if the responder finds it.
    pub(crate) fn at_responder(self) -> Status {
        match self {
            Violation::Key => Status::RemoteKey,
            Violation::Bounds => Status::RemoteBounds,
            Violation::Right => Status::RemoteRight,
            Violation::Domain => Status::RemoteDomain,
            Violation::Wrap => Status::RemoteWrap,
        }
    }
}

// Pages that the guest has taken away count as outside of the region.
impl From<OutsideMemory> for Violation {
    fn from(_: OutsideMemory) -> Violation {
        Violation::Bounds
    }
}

/// The meaning of a region's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Physical addresses, all of them (`ERDMA_MR_TYPE_DMA`).
    Physical,
    /// A range of a process's addresses.
    Range(Range),
    /// None yet, or none any more; a request of the kernel's maps up to `capacity` pages, whose table is at `table`
    /// (`ERDMA_MR_TYPE_FRMR`).
    Unmapped,
}

impl Mapping {
    /// Entries of its list of pages.
    pub(crate) fn pages(&self) -> usize {
        match self {
            Mapping::Range(range) => range.pages.count(),
            Mapping::Physical | Mapping::Unmapped => 0,
        }
    }
}

/// Addresses from `start` on.
///
/// Invariant: `pages` has all of `lead + len` bytes, and `start + len` is not beyond 2^64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    start: u64,
    len: u64,
    /// Bytes of the first page before `start`.
    lead: u64,
    pages: Pages,
}

impl Range {
    /// `None`: empty, too long for its pages, or beyond the end of the address space.
    pub(crate) fn new(start: u64, len: u64, pages: Pages) -> Option<Range> {
        let lead = start & (pages.page_bytes() - 1);
        let fits = len > 0 && start.checked_add(len).is_some() && u128::from(lead) + u128::from(len) <= pages.len();
        fits.then_some(Range { start, len, lead, pages })
    }
}

/// The table of a region that the kernel maps anew with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FastTable {
    pub(crate) address: u64,
    pub(crate) capacity: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) domain: u32,
    /// The low byte of its key.
    pub(crate) key: u8,
    pub(crate) rights: Rights,
    pub(crate) mapping: Mapping,
    /// Only regions that the kernel maps have one.
    pub(crate) fast: Option<FastTable>,
}

/// A use of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) domain: u32,
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) right: Rights,
}

impl Region {
    fn check(&self, access: &Access, len: u64) -> Result<(), Violation> {
        if self.key != access.key as u8 || self.mapping == Mapping::Unmapped {
            return Err(Violation::Key);
        }
        if self.domain != access.domain {
            return Err(Violation::Domain);
        }
        if !self.rights.contains(access.right) {
            return Err(Violation::Right);
        }
        let end = access.address.checked_add(len).ok_or(Violation::Wrap)?;
        match &self.mapping {
            Mapping::Range(range) if access.address < range.start || end > range.start + range.len => {
                Err(Violation::Bounds)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn read(&self, memory: &impl GuestMemory, access: &Access, into: &mut [u8]) -> Result<(), Violation> {
        self.check(access, into.len() as u64)?;
        match &self.mapping {
            Mapping::Range(range) => range.pages.read(memory, range.lead + (access.address - range.start), into)?,
            Mapping::Physical | Mapping::Unmapped => memory.read(access.address, into)?,
        }
        Ok(())
    }

    pub(crate) fn write(&self, memory: &mut impl GuestMemory, access: &Access, bytes: &[u8]) -> Result<(), Violation> {
        self.check(access, bytes.len() as u64)?;
        match &self.mapping {
            Mapping::Range(range) => range.pages.write(memory, range.lead + (access.address - range.start), bytes)?,
            Mapping::Physical | Mapping::Unmapped => memory.write(access.address, bytes)?,
        }
        Ok(())
    }

    /// Checks a range without using it.
    pub(crate) fn permits(&self, access: &Access, len: u64) -> Result<(), Violation> {
        self.check(access, len)
    }

    /// The physical address of an aligned double word.
    pub(crate) fn double_word(&self, access: &Access) -> Result<u64, Violation> {
        self.check(access, 8)?;
        let address = match &self.mapping {
            Mapping::Range(range) => range.pages.double_word(range.lead + (access.address - range.start)),
            Mapping::Physical | Mapping::Unmapped => Some(access.address).filter(|address| address % 8 == 0),
        };
        address.ok_or(Violation::Bounds)
    }
}
