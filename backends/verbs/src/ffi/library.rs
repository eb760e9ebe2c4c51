//! Both libraries, loaded at the first call of [`Library::get`] and never unloaded.
//!
//! A program that was not linked with them so loads neither until a socket could use them, and where they are absent
//! everything stays on TCP.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::OnceLock;

use super::abi::{
    CompChannel, CompletionQueue, Context, Device, DeviceAttr, MemoryRegion, QpAttr, QpInitAttr, QueuePair,
    RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel,
};

/// Why the libraries could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoadError {
    /// No such library.
    Library(&'static str),
    /// It lacks a function.
    Symbol(&'static str),
}

impl LoadError {
    /// For people.
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
        }

        impl Library {
            fn load() -> Result<Library, LoadError> {
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
                )*
                Ok(Library { $( $( $name, )* )* })
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
        rdma_disconnect: fn(*mut RdmaCmId) -> c_int;
        rdma_get_cm_event: fn(*mut RdmaEventChannel, *mut *mut RdmaCmEvent) -> c_int;
        rdma_ack_cm_event: fn(*mut RdmaCmEvent) -> c_int;
    }
}

impl Library {
    /// Both libraries; loads them if nobody did.
    pub(crate) fn get() -> Result<&'static Library, LoadError> {
        static LOADED: OnceLock<Result<Library, LoadError>> = OnceLock::new();
        LOADED.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }
}

fn open(file: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string; the library's own initialisation is what a program that links with it gets.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!handle.is_null()).then_some(handle)
}

fn symbol(handle: *mut c_void, name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: the handle came from dlopen and is never closed; the name is a C string.
    let address = unsafe { libc::dlsym(handle, name) };
    (!address.is_null()).then_some(address)
}

const fn cstr(name: &'static str) -> *const c_char {
    name.as_ptr().cast()
}
