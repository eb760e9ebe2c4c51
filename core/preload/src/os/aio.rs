//! The kernel's asynchronous I/O, as programs and libaio pass it.

use std::ffi::c_int;

/// `struct iocb`, an operation of the kernel's asynchronous I/O, as far as its descriptor. linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Iocb {
    pub(crate) data: u64,
    pub(crate) key_and_flags: u64,
    pub(crate) opcode: u16,
    pub(crate) priority: i16,
    pub(crate) fd: c_int,
}
