//! Both libraries, loaded at the first call of [`Library::get`].
//!
//! A program that was not linked with them therefore loads neither until a socket could use them, and where they are
//! absent everything stays on TCP.
//!
//! librdmacm keeps devices open, in a forked child too, where they are the parent's; and it has no function to close
//! them. So a child unloads it (its descriptors refer to nothing there by then: see [`VerbsDevice::library_fds`]) and
//! loads it afresh. The parent's objects of it are never used in the child.
//!
//! [`VerbsDevice::library_fds`]: crate::VerbsDevice::library_fds

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::abi::{
    AsyncEvent, CompChannel, CompletionQueue, Context, Device, DeviceAttr, MemoryRegion, PortAttr, QpAttr, QpInitAttr,
    QueuePair, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel,
};

/// The reason why the libraries could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoadError {
    /// No such library.
    Library(&'static str),
    /// It lacks a function.
    Symbol(&'static str),
}

impl LoadError {
    /// For human readers.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            LoadError::Library(what) | LoadError::Symbol(what) => what,
        }
    }
}

macro_rules! library {
    ($( $file:literal, $absent:literal { $( $name:ident: fn($($argument:ty),*) $(-> $result:ty)?; )* } )*) => {
        /// The functions that we use.
        pub(crate) struct Library {
            $( $( pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )* )*
            /// The handle of librdmacm, to be unloaded.
            handle: usize,
        }

        impl Library {
            fn load() -> Result<Library, LoadError> {
                let mut handles = Vec::new();
                $(
                    let handle = open($file).ok_or(LoadError::Library($absent))?;
                    $(
                        let $name = symbol(handle, cstr(concat!(stringify!($name), "\0")))
                            .ok_or(LoadError::Symbol(concat!($absent, " (", stringify!($name), ")")))?;
                        // SAFETY: the library documents this prototype for the symbol.
                        let $name = unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>($name)
                        };
                    )*
                    handles.push(handle as usize);
                )*
                Ok(Library { $( $( $name, )* )* handle: handles.pop().unwrap_or_default() })
            }
        }
    };
}

library! {
    c"libibverbs.so.1", "libibverbs" {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
        ibv_free_device_list: fn(*mut *mut Device);
        ibv_open_device: fn(*mut Device) -> *mut Context;
        ibv_close_device: fn(*mut Context) -> c_int;
        ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
        ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
        ibv_alloc_pd: fn(*mut Context) -> *mut c_void;
        ibv_dealloc_pd: fn(*mut c_void) -> c_int;
        ibv_reg_mr: fn(*mut c_void, *mut c_void, usize, c_int) -> *mut MemoryRegion;
        ibv_dereg_mr: fn(*mut MemoryRegion) -> c_int;
        ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
        ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
        ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut CompletionQueue;
        ibv_destroy_cq: fn(*mut CompletionQueue) -> c_int;
        ibv_get_cq_event: fn(*mut CompChannel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut CompletionQueue, u32);
        ibv_get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
        ibv_ack_async_event: fn(*mut AsyncEvent);
        ibv_create_qp: fn(*mut c_void, *mut QpInitAttr) -> *mut QueuePair;
        ibv_destroy_qp: fn(*mut QueuePair) -> c_int;
        ibv_modify_qp: fn(*mut QueuePair, *mut QpAttr, c_int) -> c_int;
    }
    c"librdmacm.so.1", "librdmacm" {
        rdma_create_event_channel: fn() -> *mut RdmaEventChannel;
        rdma_destroy_event_channel: fn(*mut RdmaEventChannel);
        rdma_create_id: fn(*mut RdmaEventChannel, *mut *mut RdmaCmId, *mut c_void, c_int) -> c_int;
        rdma_destroy_id: fn(*mut RdmaCmId) -> c_int;
        rdma_bind_addr: fn(*mut RdmaCmId, *mut libc::sockaddr) -> c_int;
        rdma_listen: fn(*mut RdmaCmId, c_int) -> c_int;
        rdma_get_src_port: fn(*mut RdmaCmId) -> u16;
        rdma_resolve_addr: fn(*mut RdmaCmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route: fn(*mut RdmaCmId, c_int) -> c_int;
        rdma_create_qp: fn(*mut RdmaCmId, *mut c_void, *mut QpInitAttr) -> c_int;
        rdma_destroy_qp: fn(*mut RdmaCmId);
        rdma_connect: fn(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        rdma_accept: fn(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        rdma_reject: fn(*mut RdmaCmId, *const c_void, u8) -> c_int;
        rdma_set_option: fn(*mut RdmaCmId, c_int, c_int, *mut c_void, usize) -> c_int;
        rdma_disconnect: fn(*mut RdmaCmId) -> c_int;
        rdma_get_cm_event: fn(*mut RdmaEventChannel, *mut *mut RdmaCmEvent) -> c_int;
        rdma_ack_cm_event: fn(*mut RdmaCmEvent) -> c_int;
    }
}

impl Library {
    /// Both libraries; loads them if this process has not yet.
    pub(crate) fn get() -> Result<&'static Library, LoadError> {
        static LOADED: Mutex<Option<(u32, Result<&'static Library, LoadError>)>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        match &*loaded {
            Some((of, library)) if *of == process => return library.clone(),
            Some((_, Ok(parents))) => close(parents.handle),
            _ => {}
        }
        let library = Library::load().map(|library| &*Box::leak(Box::new(library)));
        *loaded = Some((process, library.clone()));
        library
    }
}

/// Held in calls that take locks of the libraries as a whole, and while the process is forked: otherwise the child
/// would have such a lock held for ever.
///
/// It is the standard library's, which is a number and nothing else. `parking_lot` keeps waiting threads in a table, in
/// the child too, where they do not exist; and it may hand a lock over to the thread that has waited longest.
static CALLS: Mutex<()> = Mutex::new(());

thread_local! {
    /// [`CALLS`], by the thread that is about to fork. No destructor: a program may fork in one of its own.
    static FORK_GUARD: Cell<Option<ManuallyDrop<MutexGuard<'static, ()>>>> = const { Cell::new(None) };
}

/// Until the result is dropped no fork begins, and no other such call.
pub(crate) fn enter() -> MutexGuard<'static, ()> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// To be called before each fork, and followed by [`after_fork`].
pub fn before_fork() {
    FORK_GUARD.set(Some(ManuallyDrop::new(enter())));
}

/// To be called after each fork, in parent and child, by the thread that has forked.
pub fn after_fork() {
    drop(FORK_GUARD.take().map(ManuallyDrop::into_inner));
}

fn close(handle: usize) {
    // SAFETY: the handle came from dlopen, and no function that it has is called any more: those of the parent's objects
    // are not used in a child.
    unsafe { libc::dlclose(handle as *mut c_void) };
}

fn open(file: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string; the library's own initialisation is what a program that links with it gets.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!handle.is_null()).then_some(handle)
}

fn symbol(handle: *mut c_void, name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: the handle came from dlopen; the name is a C string.
    let address = unsafe { libc::dlsym(handle, name) };
    (!address.is_null()).then_some(address)
}

const fn cstr(name: &'static str) -> *const c_char {
    name.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    // Breaks if the lock passes to a thread that waited for it in the parent, and does not exist in the child.
    #[test]
    fn a_waiting_parent_does_not_block_its_child() {
        static WAITER: AtomicI32 = AtomicI32::new(0);
        before_fork();
        let waiter = std::thread::spawn(|| {
            // SAFETY: no arguments.
            WAITER.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            drop(enter());
        });
        let asleep = || {
            let state = std::fs::read_to_string(format!("/proc/self/task/{}/wchan", WAITER.load(Ordering::SeqCst)));
            state.is_ok_and(|place| place.contains("futex"))
        };
        while !asleep() {
            std::thread::yield_now();
        }
        // SAFETY: the child calls nothing but what is tested.
        let child = unsafe { libc::fork() };
        after_fork();
        if child == 0 {
            let status = c_int::from(CALLS.try_lock().is_err());
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        waiter.join().unwrap();
        let mut status = -1;
        // SAFETY: one number is written.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
