//! The memory of one queue pair: slabs, each registered as a whole, and the regions that are parts of them.
//!
//! Registering is a command of the device, which executes them one by one, and devices have few registrations (eRDMA:
//! two for each queue pair). So memory is registered in slabs that grow: the first of [`Growth::min_bytes`], each next
//! one twice as long up to [`Growth::max_bytes`]. If the device can, a slab is long enough for two regions of the
//! requested length: a stream has a ring, and a copy of its peer's, so a link that carries one stream has two
//! registrations. A slab belongs to one queue pair, and is registered in its protection domain: a peer's stray write
//! can only hit that peer's other streams.
//!
//! A slab without a used part is deregistered at once: memory that is likely to be used again is not given back to the
//! device in the first place (the core keeps it with its link). The regions of a link have few lengths, far from powers
//! of two (a ring and a line), so the shared-memory backend's buddies would pin twice as much as is used; here parts
//! are taken where they fit best.
//!
//! Invariants: parts are multiples of [`LINE`] and do not overlap; beyond `fresh` a slab contains only zeros that we
//! wrote.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use netacc_device::{DeviceError, Memory};
use parking_lot::{Mutex, RwLock};
use range_alloc::RangeAllocator;

use crate::ffi::{is_limited, Mr, Pd};

/// Parts begin at multiples of this.
const LINE: usize = 64;

/// The kernel pins multiples of this.
const PAGE: usize = 4096;

/// How memory grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub(crate) min_bytes: usize,
    pub(crate) max_bytes: usize,
}

impl Growth {
    /// The length of the next slab of an owner of so many, for a part of `wanted` bytes and others like it.
    fn next_len(&self, slabs: usize, wanted: usize) -> usize {
        let step = self.min_bytes.saturating_mul(1 << slabs.min(31)).min(self.max_bytes);
        let parts = step.div_ceil(wanted).max(2);
        let fitting = if parts * wanted > self.max_bytes { self.max_bytes / wanted } else { parts };
        fitting.max(1) * wanted
    }
}

/// Registered memory, with its names for us, the peer and the device.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) memory: Memory,
    pub(crate) address: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// A registrar of memory.
pub(crate) trait Registrar {
    /// A registration, which ends when it is dropped.
    type Registration;

    /// Registers `len` zeroed bytes, which the peer may write.
    fn register(&self, len: usize) -> io::Result<(Self::Registration, Part)>;

    /// Whether this process's limit of locked memory bounds registrations.
    fn is_limited(&self) -> bool;
}

impl Registrar for Arc<Pd> {
    type Registration = Mr;

    fn register(&self, len: usize) -> io::Result<(Mr, Part)> {
        let mr = Mr::new(self, len)?;
        let part = Part { memory: mr.memory.clone(), address: mr.address, lkey: mr.lkey, rkey: mr.rkey };
        Ok((mr, part))
    }

    fn is_limited(&self) -> bool {
        is_limited()
    }
}

/// See the module documentation.
pub(crate) struct LinkMemory<R: Registrar> {
    registrar: R,
    growth: Growth,
    /// Held while more is made, so that two do not make it at once. Taken before `slabs`, which is not held meanwhile:
    /// each post takes that lock.
    growing: Mutex<()>,
    slabs: RwLock<Slabs<R::Registration>>,
}

struct Slabs<M> {
    /// The oldest first, and used first: so the youngest, which are the longest, are the ones that become empty.
    all: Vec<Slab<M>>,
    /// By address.
    used: BTreeMap<u64, Used>,
}

struct Slab<M> {
    _registration: M,
    whole: Part,
    free: RangeAllocator<usize>,
    fresh: usize,
}

struct Used {
    /// The address of its slab.
    slab: u64,
    place: Range<usize>,
    lkey: u32,
    rkey: u32,
}

impl<R: Registrar> LinkMemory<R> {
    pub(crate) fn new(registrar: R, growth: Growth) -> LinkMemory<R> {
        let slabs = RwLock::new(Slabs { all: Vec::new(), used: BTreeMap::new() });
        LinkMemory { registrar, growth, growing: Mutex::new(()), slabs }
    }

    /// `len` zeroed bytes.
    pub(crate) fn alloc(&self, len: u32) -> Result<Part, DeviceError> {
        let len = len as usize;
        let full = || DeviceError::Exhausted { what: "registered memory" };
        let wanted = len.max(1).next_multiple_of(LINE);
        let _growing = self.growing.lock();
        let taken = self.slabs.write().take(wanted);
        let (part, dirty) = match taken {
            Some(taken) => taken,
            None => {
                let slab = self.grow(wanted).map_err(|error| match error.kind() {
                    // The kernel returns this at the limit, and, where there is no limit, if it has no memory itself.
                    // Any other error comes from the device, or from a control group, and is about the number of
                    // registrations.
                    io::ErrorKind::OutOfMemory if self.registrar.is_limited() => {
                        DeviceError::MemoryLimit { wanted: len }
                    }
                    _ => full(),
                })?;
                let mut slabs = self.slabs.write();
                slabs.all.push(slab);
                slabs.take(wanted).ok_or_else(full)?
            }
        };
        let memory = part.memory.slice(0, len).filter(|memory| memory.zero(0, dirty.min(len))).ok_or_else(full)?;
        Ok(Part { memory, ..part })
    }

    fn grow(&self, wanted: usize) -> io::Result<Slab<R::Registration>> {
        let next = self.growth.next_len(self.slabs.read().all.len(), wanted);
        let register = |len: usize| self.registrar.register(len.next_multiple_of(PAGE));
        // A length for several parts may be too much where that for one is not.
        let (registration, whole) = register(next).or_else(|_| register(wanted))?;
        let free = RangeAllocator::new(0..whole.memory.len());
        Ok(Slab { _registration: registration, whole, free, fresh: 0 })
    }

    /// Gives a part back.
    pub(crate) fn free(&self, address: u64, rkey: u32) {
        let empty = self.slabs.write().give(address, rkey);
        // Deregistered while no thread waits for the lock.
        drop(empty);
    }

    /// The length of a part that is in use, and the device's key to it.
    pub(crate) fn find(&self, address: u64, rkey: u32) -> Option<(usize, u32)> {
        let slabs = self.slabs.read();
        let used = slabs.used.get(&address).filter(|used| used.rkey == rkey)?;
        Some((used.place.len(), used.lkey))
    }
}

impl<M> Slabs<M> {
    /// A part of so many bytes, and the number of its first bytes that may be other than zero.
    fn take(&mut self, wanted: usize) -> Option<(Part, usize)> {
        let (slab, place) = self.all.iter_mut().find_map(|slab| {
            let place = slab.free.allocate_range(wanted).ok()?;
            Some((slab, place))
        })?;
        let dirty = slab.fresh.clamp(place.start, place.end) - place.start;
        slab.fresh = slab.fresh.max(place.end);
        let Part { memory, address, lkey, rkey } = &slab.whole;
        let part = Part {
            memory: memory.slice(place.start, wanted)?,
            address: address + place.start as u64,
            lkey: *lkey,
            rkey: *rkey,
        };
        self.used.insert(part.address, Used { slab: *address, place, lkey: *lkey, rkey: *rkey });
        Some((part, dirty))
    }

    /// Takes a part back. Returns its slab, if no other part of that is used.
    fn give(&mut self, address: u64, rkey: u32) -> Option<Slab<M>> {
        self.used.get(&address).filter(|used| used.rkey == rkey)?;
        let used = self.used.remove(&address)?;
        let index = self.all.iter().position(|slab| slab.whole.address == used.slab)?;
        self.all[index].free.free_range(used.place);
        self.all[index].free.is_empty().then(|| self.all.remove(index))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use proptest::prelude::*;

    use super::*;

    const KIB: usize = 1 << 10;
    const RING: usize = 256 * KIB + 64;
    const GROWTH: Growth = Growth { min_bytes: 16 * KIB, max_bytes: 8 << 20 };

    /// Registers heap memory, up to a limit, and records the registrations.
    #[derive(Clone)]
    struct Registry {
        made: Arc<AtomicU32>,
        registered: Arc<Mutex<BTreeMap<u32, usize>>>,
        limit: usize,
        /// The error beyond the limit, and whether there is one for locked memory.
        refusal: (i32, bool),
    }

    struct Registration(Registry, u32);

    impl Drop for Registration {
        fn drop(&mut self) {
            self.0.registered.lock().remove(&self.1);
        }
    }

    impl Registrar for Registry {
        type Registration = Registration;

        fn register(&self, len: usize) -> io::Result<(Registration, Part)> {
            let mut registered = self.registered.lock();
            if registered.values().sum::<usize>() + len > self.limit {
                return Err(io::Error::from_raw_os_error(self.refusal.0));
            }
            let key = self.made.fetch_add(1, Ordering::Relaxed);
            registered.insert(key, len);
            let part = Part { memory: Memory::heap(len), address: u64::from(key) << 40, lkey: key, rkey: key };
            Ok((Registration(self.clone(), key), part))
        }

        fn is_limited(&self) -> bool {
            self.refusal.1
        }
    }

    fn memory(growth: Growth, limit: usize) -> (LinkMemory<Registry>, Registry) {
        refusing(growth, limit, (libc::ENOMEM, true))
    }

    fn refusing(growth: Growth, limit: usize, refusal: (i32, bool)) -> (LinkMemory<Registry>, Registry) {
        let registry = Registry { made: Arc::default(), registered: Arc::default(), limit, refusal };
        (LinkMemory::new(registry.clone(), growth), registry)
    }

    fn lengths(registry: &Registry) -> Vec<usize> {
        registry.registered.lock().values().copied().collect()
    }

    // Breaks if a setting had no effect: the first slab has the length of the one setting, the longest that of the
    // other.
    #[test]
    fn slabs_double_from_the_smallest_to_the_largest() {
        let (memory, registry) = memory(Growth { min_bytes: 16 * KIB, max_bytes: 128 * KIB }, usize::MAX);
        for _ in 0..(16 + 32 + 64 + 128 + 128) / 4 {
            memory.alloc(4 << 10).expect("there is no limit");
        }
        assert_eq!(lengths(&registry), [16, 32, 64, 128, 128].map(|len| len * KIB));
    }

    // Breaks if the memory of a link's streams were registered one by one, or if much more were pinned than they use.
    #[test]
    fn rings_share_slabs_and_fill_them() {
        for (growth, most) in [(GROWTH, 13), (Growth { min_bytes: 8 << 20, ..GROWTH }, 5)] {
            let (memory, registry) = memory(growth, usize::MAX);
            memory.alloc(4 << 10).expect("there is no limit");
            for _ in 0..128 {
                memory.alloc(RING as u32).expect("there is no limit");
            }
            let pinned = lengths(&registry);
            assert!(pinned.len() <= most, "{pinned:?}");
            assert!(pinned.iter().sum::<usize>() < 128 * RING + (growth.max_bytes + growth.min_bytes), "{pinned:?}");
        }
        let (memory, registry) = memory(GROWTH, usize::MAX);
        for len in [4096, 2112, 2112, RING as u32, RING as u32] {
            memory.alloc(len).expect("there is no limit");
        }
        let pages = (2 * RING).next_multiple_of(PAGE);
        assert_eq!(
            lengths(&registry),
            [16 * KIB, pages],
            "one stream pins only the memory that it uses, in two registrations"
        );
    }

    // Breaks if unused memory stays pinned, or if memory that is given back twice, or was never given out, harms
    // others.
    #[test]
    fn an_empty_slab_is_deregistered() {
        let (memory, registry) = memory(GROWTH, usize::MAX);
        let first = memory.alloc(64).expect("there is no limit");
        let parts: Vec<Part> = (0..40).map(|_| memory.alloc(RING as u32).expect("there is no limit")).collect();
        let most = lengths(&registry).len();
        for part in &parts {
            assert_eq!(memory.find(part.address, part.rkey), Some((RING, part.lkey)));
            memory.free(part.address, part.rkey ^ 1);
            memory.free(part.address + 64, part.rkey);
            memory.free(part.address, part.rkey);
            memory.free(part.address, part.rkey);
            assert_eq!(memory.find(part.address, part.rkey), None);
        }
        assert!(most > 1);
        assert_eq!(lengths(&registry), [16 * KIB]);
        assert!(memory.find(first.address, first.rkey).is_some());
        memory.alloc(20 << 10).expect("there is no limit");
        assert_eq!(lengths(&registry)[1], 40 * KIB, "it grows again as from the beginning");
        drop(memory);
        assert_eq!(lengths(&registry), [0; 0]);
    }

    // Breaks if a stream stays on TCP for lack of memory that is only for later streams.
    #[test]
    fn a_part_is_tried_where_a_slab_does_not_fit() {
        let (memory, registry) = memory(Growth { min_bytes: 1 << 20, ..GROWTH }, 300 * KIB);
        memory.alloc(RING as u32).expect("it is within the limit");
        assert_eq!(lengths(&registry), [RING.next_multiple_of(PAGE)]);
        let error = memory.alloc(RING as u32).err().expect("it is beyond the limit");
        assert!(matches!(error, DeviceError::MemoryLimit { wanted: RING }), "{error}");
        assert!(memory.alloc(u32::MAX).is_err());
    }

    // Breaks if a process that has run out of registrations gets the advice to raise a limit that it is far from, or
    // does not have.
    #[test]
    fn only_locked_memory_is_reported_as_a_memory_limit() {
        for (refusal, is_limit) in [
            ((libc::ENOMEM, true), true),
            ((libc::ENOMEM, false), false),
            ((libc::EAGAIN, true), false),
            ((libc::ENOSPC, true), false),
            ((libc::EINVAL, true), false),
        ] {
            let (memory, _) = refusing(GROWTH, 0, refusal);
            match memory.alloc(64).err().expect("nothing can be registered") {
                DeviceError::MemoryLimit { wanted: 64 } => assert!(is_limit, "{refusal:?}"),
                DeviceError::Exhausted { .. } => assert!(!is_limit, "{refusal:?}"),
                other => panic!("{refusal:?}: {other}"),
            }
        }
    }

    proptest! {
        /// Parts are zeroed, aligned, of the requested length, and disjoint.
        #[test]
        fn parts_are_zeroed_and_disjoint(ops in prop::collection::vec((any::<bool>(), 0u32..9000, any::<usize>()), 1..200)) {
            let (memory, _) = memory(Growth { min_bytes: 4 * KIB, max_bytes: 32 * KIB }, usize::MAX);
            let mut allocated: Vec<(Part, u8)> = Vec::new();
            for (turn, (alloc, len, pick)) in ops.into_iter().enumerate() {
                if alloc || allocated.is_empty() {
                    let part = memory.alloc(len).expect("there is no limit");
                    let len = len as usize;
                    prop_assert_eq!((part.memory.len(), part.address % LINE as u64), (len, 0));
                    let mut bytes = vec![1; len];
                    prop_assert!(part.memory.read(0, &mut bytes));
                    prop_assert!(bytes.iter().all(|byte| *byte == 0));
                    prop_assert!(part.memory.write(0, &vec![turn as u8; len]));
                    allocated.push((part, turn as u8));
                } else {
                    let (part, mark) = allocated.swap_remove(pick % allocated.len());
                    let mut bytes = vec![0; part.memory.len()];
                    prop_assert!(part.memory.read(0, &mut bytes));
                    prop_assert!(bytes.iter().all(|byte| *byte == mark));
                    memory.free(part.address, part.rkey);
                }
            }
        }
    }
}
