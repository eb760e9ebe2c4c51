//! Regions: memory of our half that the peer of one queue pair may write, and windows onto the peer's memory.

#![expect(unsafe_code, reason = "hands out memory of the shared segment")]

use std::ptr::NonNull;
use std::sync::atomic::Ordering::*;

use netacc_device::{DeviceError, Memory, Region, RemoteKey, RemoteRegion};

use crate::alloc::UNIT;
use crate::layout::{KEYS, SLAB_OFFSET};
use crate::map;
use crate::pair::{Control, Here, PairSlot};
use crate::qp::QpLocal;

impl PairSlot {
    /// Allocates a region for the queue pair at `index`, which is in use.
    pub(crate) fn alloc_region(&self, control: &mut Control, index: u16, len: usize) -> Result<Region, DeviceError> {
        let limit = DeviceError::MemoryLimit { wanted: len };
        let unknown = DeviceError::Unknown { what: "queue pair" };
        let Ok(wanted) = u32::try_from(len) else { return Err(limit) };
        if control.qps.get(&index).is_none_or(|qp| qp.here != Here::Open) {
            return Err(unknown);
        }
        let (Some(backing), Some(buddy)) = (control.lease(index), &mut control.buddy) else { return Err(unknown) };
        let Some(block) = buddy.alloc(u64::from(wanted)) else { return Err(limit) };
        for (from, bytes) in buddy.take_dirty(block) {
            // SAFETY: a free part of the slab of our half; no peer was granted it.
            unsafe { std::ptr::write_bytes(self.slab(from).as_ptr(), 0, bytes as usize) };
        }
        let Some(key) = control.take_key() else {
            self.give_back(control, block);
            return Err(DeviceError::Exhausted { what: "region key" });
        };
        if let Some(qp) = control.qps.get_mut(&index) {
            qp.regions.insert(key, block);
        }
        let base = SLAB_OFFSET + block.offset;
        let entry = &self.rx().keys[key as usize % KEYS];
        entry.qp_base.store(u64::from(index) << 48 | base, Relaxed);
        entry.key_len.store(u64::from(key) << 32 | u64::from(wanted), Release);
        // SAFETY: the block lies in the mapping, which `backing` keeps; blocks are page-aligned; only raw accesses.
        let memory = unsafe { Memory::from_raw(self.slab(block.offset), len, backing) };
        Ok(Region { memory, remote: RemoteRegion { rkey: RemoteKey(key), base, len: wanted } })
    }

    /// See `Device::free_region`.
    pub(crate) fn free_region(&self, index: u16, local: &QpLocal, region: Region, idle_bytes: u64) {
        let mut control = self.control.lock();
        let Some(qp) = control.qps.get_mut(&index) else { return };
        let key = region.remote.rkey.0;
        let Some(block) = qp.regions.remove(&key) else { return };
        self.revoke(key);
        if self.has_ended(index.into(), local) && !qp.closed_there {
            // The peer may be in the middle of a write, and learn only later that it has no effect.
            qp.limbo.push(block);
        } else {
            self.give_back(&mut control, block);
        }
        control.release_key(key);
        self.trim(&mut control, idle_bytes);
    }

    /// See `Device::window`.
    pub(crate) fn window(&self, index: usize, local: &QpLocal, remote: RemoteRegion) -> Result<Region, DeviceError> {
        let unconnected = DeviceError::Unknown { what: "queue pair" };
        let backing = self.control.lock().lease(index as u16);
        let Some(backing) = backing else { return Err(unconnected) };
        let at = local.remote(index, remote.rkey.0, remote.base, u64::from(remote.len)).and_then(NonNull::new);
        let Some(at) = at.filter(|_| remote.base.is_multiple_of(64)) else {
            // The peer announces its end before it revokes its regions, so check in the other order.
            return Err(if self.has_ended(index, local) { unconnected } else { DeviceError::NotRegistered });
        };
        // SAFETY: `remote` checked that the range lies in the peer's half, which `backing` keeps; aligned as checked.
        let memory = unsafe { Memory::from_raw(at, remote.len as usize, backing) };
        Ok(Region { memory, remote })
    }

    /// See `Device::discard`.
    pub(crate) fn discard(&self, index: usize, local: &QpLocal, remote: RemoteRegion, from: u32) {
        let Some(first) = remote.base.checked_add(u64::from(from)) else { return };
        let Some(length) = remote.len.checked_sub(from) else { return };
        // Kept until the end, and the mapping with it.
        let Ok(_window) = self.window(index, local, remote) else { return };
        // Regions have whole pages: the rest of the last one belongs to no other.
        let end = (first + u64::from(length)).next_multiple_of(UNIT).min(self.half_bytes());
        let start = first.next_multiple_of(UNIT);
        if start < end {
            let half = NonNull::from(self.tx()).cast::<u8>();
            // SAFETY: `window` has found the region in the peer's half, which is mapped as long as this process has the
            // queue pair's end. The region is live, but none of its bytes there are needed, as the caller promises. If the
            // kernel refuses, the memory stays.
            let _ = unsafe { map::punch(half, start, end - start) };
        }
    }

    /// Whether either side has ended the queue pair at `index`, or its pair of processes has ended.
    fn has_ended(&self, index: usize, local: &QpLocal) -> bool {
        local.down.load(Acquire) != 0 || self.rx().qp(index).close.closed.load(Acquire) != 0
    }

    /// The peer's writes with this key fail from now on.
    pub(crate) fn revoke(&self, key: u32) {
        self.rx().keys[key as usize % KEYS].key_len.store(0, Release);
    }

    /// Returns idle memory above `idle_bytes` to the system.
    pub(crate) fn trim(&self, control: &mut Control, idle_bytes: u64) {
        let (Some(_live), Some(buddy)) = (&control.mapping, &mut control.buddy) else { return };
        if buddy.idle_bytes() <= idle_bytes {
            return;
        }
        for (from, len) in buddy.reclaim() {
            // SAFETY: the mapping is live (control holds it) and the range belongs to free blocks only.
            let punched = unsafe { map::punch(self.slab(from), 0, len) };
            if punched.is_err() {
                // SAFETY: as above. It must read as zero, even if the memory stays.
                unsafe { std::ptr::write_bytes(self.slab(from).as_ptr(), 0, len as usize) };
            }
        }
    }

    fn give_back(&self, control: &mut Control, block: crate::alloc::Block) {
        if let Some(buddy) = &mut control.buddy {
            buddy.free(block);
        }
    }

    fn slab(&self, offset: u64) -> NonNull<u8> {
        let half = NonNull::from(self.rx()).cast::<u8>();
        // SAFETY: callers pass offsets of blocks, which lie within the half.
        unsafe { half.add((SLAB_OFFSET + offset) as usize) }
    }
}
