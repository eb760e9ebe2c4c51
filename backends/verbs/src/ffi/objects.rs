//! Devices, protection domains, memory regions and completion queues, each freed once and after its dependants.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use netacc_device::Memory;

use super::abi;
use super::errno::errno;
use super::library::Library;
use super::mappings::{replace, FileId};
use super::wakeup::raised;

/// A device in the list of `ibv_get_device_list`.
#[derive(Clone, Debug)]
pub(crate) struct ListedDevice {
    pub(crate) name: String,
    pub(crate) iwarp: bool,
    pub(crate) attributes: Result<DeviceAttributes, i32>,
}

/// The attributes of `ibv_query_device`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceAttributes {
    pub(crate) firmware: String,
    pub(crate) vendor_id: u32,
    pub(crate) max_mr_size: u64,
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_cq: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_mr: u32,
    pub(crate) max_pd: u32,
}

/// All RDMA devices of this machine.
///
/// # Errors
/// Fails if the list cannot be read: usually because the kernel has no support.
pub(crate) fn device_list(library: &'static Library) -> io::Result<Vec<ListedDevice>> {
    // libibverbs reads files, and opens the devices.
    let _number = netacc_descriptors::borrow();
    let mut count = 0;
    // SAFETY: `count` is writable; the list is freed below, after its last use.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut devices = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries, each a device that lives as long as the list.
        let (device, listed) = unsafe {
            let device = *list.add(index);
            (device, &*device)
        };
        // SAFETY: the device is in the list.
        let context = unsafe { (library.ibv_open_device)(device) };
        let attributes = if context.is_null() {
            Err(io::Error::last_os_error().raw_os_error().unwrap_or(0))
        } else {
            let attributes = query(library, context);
            // SAFETY: opened above, and nothing was made of it.
            unsafe { (library.ibv_close_device)(context) };
            attributes
        };
        devices.push(ListedDevice {
            name: text(&listed.name),
            iwarp: listed.transport_type == abi::TRANSPORT_IWARP,
            attributes,
        });
    }
    // SAFETY: the list came from ibv_get_device_list.
    unsafe { (library.ibv_free_device_list)(list) };
    Ok(devices)
}

fn query(library: &Library, context: *mut abi::Context) -> Result<DeviceAttributes, i32> {
    let mut attributes = MaybeUninit::<abi::DeviceAttr>::zeroed();
    // SAFETY: the context is open; the structure is as large as the library's.
    let status = unsafe { (library.ibv_query_device)(context, attributes.as_mut_ptr()) };
    if status != 0 {
        return Err(errno(status));
    }
    // SAFETY: plain numbers, zeroed before and filled in now.
    let attributes = unsafe { attributes.assume_init() };
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    Ok(DeviceAttributes {
        firmware: text(&attributes.fw_ver),
        vendor_id: attributes.vendor_id,
        max_mr_size: attributes.max_mr_size,
        max_qp: count(attributes.max_qp),
        max_qp_wr: count(attributes.max_qp_wr),
        max_sge: count(attributes.max_sge),
        max_cq: count(attributes.max_cq),
        max_cqe: count(attributes.max_cqe),
        max_mr: count(attributes.max_mr),
        max_pd: count(attributes.max_pd),
    })
}

/// A C string in a fixed array.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A device opened by librdmacm, which keeps it open as long as this process lives.
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<abi::Context>,
}

// SAFETY: libibverbs allows every call on a context from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        self.raw == other.raw
    }
}

impl Context {
    pub(crate) fn attributes(&self) -> io::Result<DeviceAttributes> {
        query(self.library, self.raw.as_ptr()).map_err(io::Error::from_raw_os_error)
    }

    pub(crate) fn name(&self) -> String {
        // SAFETY: a context's device lives as long as the context.
        unsafe { text(&(*self.raw.as_ref().device).name) }
    }

    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ref().device).transport_type == abi::TRANSPORT_IWARP }
    }

    /// The descriptors of its commands and its asynchronous events.
    pub(crate) fn fds(&self) -> [RawFd; 2] {
        // SAFETY: the context is open.
        unsafe { [self.raw.as_ref().cmd_fd, self.raw.as_ref().async_fd] }
    }

    /// Makes its asynchronous events readable without ever blocking.
    pub(crate) fn watch_trouble(&self) -> io::Result<()> {
        never_block(self.fds()[1])
    }

    /// Releases the kernel's device; no object of ours is left on it. librdmacm keeps contexts open, and a device that
    /// is taken away would stay half there because of them; so its descriptors refer to nothing from now on. They stay
    /// its own: their numbers must not become the program's. Mappings hold
    /// the device, too: eRDMA's provider maps its doorbells for as long as it has the context, and its driver waits for them.
    pub(crate) fn abandon(&self) {
        let Ok(nothing) = std::fs::File::open("/dev/null") else { return };
        let device = FileId::of(self.fds()[0]);
        for fd in self.fds() {
            // SAFETY: both are descriptors that we hold. The system call itself, as libc's function may be interposed.
            unsafe { libc::syscall(libc::SYS_dup3, nothing.as_raw_fd(), fd, libc::O_CLOEXEC) };
        }
        // Without, the device waits for the end of this process, as it did before.
        let _ = device.map(replace);
    }

    /// Whether a port has lost its network. A port that cannot be queried, because its device is gone, has not.
    pub(crate) fn is_cut_off(&self, port: u8) -> bool {
        self.port(port).is_some_and(|port| port.state != abi::PORT_ACTIVE)
    }

    /// Payload bytes of a full packet on a port. The library has them as a code: 1 is 256 bytes, and each next one twice that.
    pub(crate) fn active_mtu(&self, port: u8) -> Option<u32> {
        let code = u32::try_from(self.port(port)?.active_mtu).ok()?;
        (1..=5).contains(&code).then(|| 128 << code)
    }

    fn port(&self, port: u8) -> Option<abi::PortAttr> {
        let mut attributes = MaybeUninit::<abi::PortAttr>::zeroed();
        // SAFETY: the context is open; the structure is no shorter than the library's.
        let status = unsafe { (self.library.ibv_query_port)(self.raw.as_ptr(), port, attributes.as_mut_ptr()) };
        // SAFETY: plain numbers, zeroed before.
        (status == 0).then(|| unsafe { attributes.assume_init() })
    }

    pub(crate) fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open.
        u32::try_from(unsafe { self.raw.as_ref().num_comp_vectors }).unwrap_or(0)
    }
}

/// A protection domain: a process with a key of one cannot reach the memory of another.
pub(crate) struct Pd {
    pub(super) context: Context,
    pub(super) raw: NonNull<c_void>,
}

// SAFETY: libibverbs allows every call on a protection domain from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(context: Context) -> io::Result<Arc<Pd>> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw.as_ptr()) };
        Ok(Arc::new(Pd { context, raw: NonNull::new(raw).ok_or_else(io::Error::last_os_error)? }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated by us; all that was made of it holds the Arc, and so is gone.
        unsafe { (self.context.library.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Zeroed pages of our own.
#[derive(Debug)]
pub(crate) struct Mapping {
    raw: NonNull<c_void>,
    len: usize,
}

// SAFETY: plain memory; `Memory` controls all access to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let raw = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let raw = NonNull::new(raw).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mapping = Mapping { raw, len };
        // A child must not share the pages that the device writes: where the kernel copies pinned pages at fork this
        // is not needed, and does no harm.
        // SAFETY: the range is our own mapping.
        unsafe { libc::madvise(mapping.raw.as_ptr(), len, libc::MADV_DONTFORK) };
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and every `Memory` over it holds it alive.
        unsafe { libc::munmap(self.raw.as_ptr(), self.len) };
    }
}

/// Registered memory. Dropping it puts the memory out of the peer's and the device's reach; the bytes stay as long as a
/// `Memory` does.
pub(crate) struct Mr {
    pd: Arc<Pd>,
    raw: NonNull<abi::MemoryRegion>,
    pub(crate) memory: Memory,
    pub(crate) address: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

// SAFETY: libibverbs allows every call on a memory region from any thread.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// `len` zeroed bytes, which the peer may write.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize) -> io::Result<Mr> {
        let mapping = Arc::new(Mapping::new(len.max(1))?);
        let access = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE;
        let start = mapping.raw;
        // SAFETY: the range is our own mapping and outlives the registration: `memory` below holds it.
        let raw = unsafe { (pd.context.library.ibv_reg_mr)(pd.raw.as_ptr(), start.as_ptr(), len.max(1), access) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: a registered region's keys do not change.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        // SAFETY: the mapping is page-aligned, at least `len` long, lives as long as the Arc, and no code makes
        // a reference to it.
        let memory = unsafe { Memory::from_raw(start.cast(), len, mapping) };
        Ok(Mr { pd: Arc::clone(pd), raw, memory, address: start.as_ptr() as u64, lkey, rkey })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: registered by us, dropped once.
        unsafe { (self.pd.context.library.ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}

/// A completion channel: a descriptor that is readable when an armed queue has had a completion.
pub(crate) struct CompletionChannel {
    context: Context,
    raw: NonNull<abi::CompChannel>,
}

// SAFETY: libibverbs allows every call on a channel from any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A channel whose descriptor never blocks.
    pub(crate) fn new(context: Context) -> io::Result<Arc<CompletionChannel>> {
        let _number = netacc_descriptors::borrow();
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_create_comp_channel)(context.raw.as_ptr()) };
        let mut raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the channel is ours; libibverbs goes by this field, and the kernel by what it refers to.
        unsafe { raw.as_mut().fd = raised(raw.as_ref().fd) };
        let channel = CompletionChannel { context, raw };
        never_block(channel.fd())?;
        Ok(Arc::new(channel))
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { self.raw.as_ref().fd }
    }

    /// Takes one event and acknowledges it. `false`: there is none.
    pub(crate) fn take_event(&self) -> bool {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives and both places are writable. The event is acknowledged at once, so that a queue
        // can be destroyed at any time after; it is not destroyed meanwhile, as the caller holds its lock.
        unsafe {
            if (self.context.library.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut context) != 0 {
                return false;
            }
            (self.context.library.ibv_ack_cq_events)(cq, 1);
        }
        true
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: created by us; its queues hold the Arc, and so are gone.
        unsafe { (self.context.library.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

pub(super) fn never_block(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl on a descriptor that we hold.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0
            && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
            && libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) >= 0
    };
    if done {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A completion queue of the device.
pub(crate) struct Cq {
    channel: Arc<CompletionChannel>,
    pub(super) raw: NonNull<abi::CompletionQueue>,
}

// SAFETY: libibverbs allows every call on a completion queue from any thread.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// The completion vector of this number on a device that has so many: beyond the last it begins again.
fn vector_of(number: u32, available: u32) -> i32 {
    i32::try_from(number % available.max(1)).unwrap_or(0)
}

impl Cq {
    /// A queue of at least `depth` entries.
    pub(crate) fn new(channel: &Arc<CompletionChannel>, depth: u32, vector: u32) -> io::Result<Cq> {
        let context = channel.context;
        let depth = i32::try_from(depth).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let vector = vector_of(vector, context.completion_vectors());
        // SAFETY: context and channel live; the channel is kept by the queue.
        let raw = unsafe {
            (context.library.ibv_create_cq)(context.raw.as_ptr(), depth, ptr::null_mut(), channel.raw.as_ptr(), vector)
        };
        Ok(Cq { channel: Arc::clone(channel), raw: NonNull::new(raw).ok_or_else(io::Error::last_os_error)? })
    }

    /// Takes completions, oldest first; returns their number.
    pub(crate) fn poll(&self, out: &mut [abi::WorkCompletion]) -> usize {
        let room = i32::try_from(out.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue lives; `out` has `room` entries. The call goes through the context's table, as in the header.
        let count = unsafe {
            let context = self.raw.as_ref().context;
            ((*context).poll_cq)(self.raw.as_ptr(), room, out.as_mut_ptr())
        };
        usize::try_from(count).unwrap_or(0).min(out.len())
    }

    /// Its identity in events.
    pub(crate) fn address(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Requests an event at the next completion, solicited or not.
    pub(crate) fn arm(&self) {
        // SAFETY: as for `poll`.
        unsafe {
            let context = self.raw.as_ref().context;
            ((*context).req_notify_cq)(self.raw.as_ptr(), 0);
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: created by us; every event was acknowledged when it was taken; its queue pairs are gone, which
        // `QueuePair` makes sure of by holding its queue.
        unsafe { (self.channel.context.library.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::vector_of;

    /// Breaks if a vector that the device does not have were requested: no queue could be made then.
    #[test]
    fn vectors_begin_again_behind_the_last() {
        assert_eq!([0, 1, 2, 3, 4, u32::MAX].map(|number| vector_of(number, 4)), [0, 1, 2, 3, 0, 3]);
        assert_eq!(vector_of(7, 0), 0, "a device that reports no vectors");
    }
}
