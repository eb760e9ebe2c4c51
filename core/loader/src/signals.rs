//! The program's signal handlers, and the masks of threads.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::block::{current, Frame, Role};
use crate::entry::{self, HANDLERS};
use crate::kernel;
use crate::library::pass_on;

/// The kernel's form of an action.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// `rt_sigaction`: the kernel gets [`entry::signal`] in place of the program's handlers.
pub(crate) fn set_action(frame: &Frame) -> i64 {
    let Some(slot) = usize::try_from(frame.rdi).ok().filter(|n| *n > 0).and_then(|n| HANDLERS.get(n)) else {
        return -i64::from(libc::EINVAL);
    };
    let ours = entry::signal as *const () as usize;
    let before = slot.load(Ordering::SeqCst);
    let mut old = Action::default();
    let new = (frame.rsi != 0).then(|| {
        // SAFETY: the program's action is readable, as for the kernel.
        let mut new = unsafe { *(frame.rsi as *const Action) };
        if new.handler != libc::SIG_DFL && new.handler != libc::SIG_IGN {
            slot.store(new.handler, Ordering::SeqCst);
            new.handler = ours;
        }
        new
    });
    let mut changed = *frame;
    changed.rsi = new.as_ref().map_or(0, |new| std::ptr::from_ref(new) as u64);
    changed.rdx = (&raw mut old) as u64;
    // SAFETY: the thread's own block.
    let result = if unsafe { (*current()).role } == Role::Vforked {
        // The library keeps the actions of its own process, whose memory this child shares.
        let Frame { rdi, rsi, rdx, r10, .. } = changed;
        // SAFETY: actions of this function, or of the program.
        unsafe { kernel::call(libc::SYS_rt_sigaction, [rdi, rsi, rdx, r10, 0]) }
    } else {
        pass_on(&changed)
    };
    if result == 0 && frame.rdx != 0 {
        // The handler is the kernel's only by name. SAFETY: filled by the kernel.
        let mut old = unsafe { std::ptr::read_volatile(&raw const old) };
        if old.handler == ours || old.handler == entry::fault as *const () as usize {
            old.handler = before;
        }
        // SAFETY: the program's action is writable, as for the kernel.
        unsafe { *(frame.rdx as *mut Action) = old };
    }
    result
}

/// The thread's mask is this one from now on; returns the old one. All 64 signals, also those that the C library keeps out of
/// its own masks.
pub(crate) fn set_mask(mask: u64) -> u64 {
    const BYTES: usize = 8;
    let mut old = 0u64;
    // SAFETY: both are masks of the length that the kernel has.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, c_int::from(2u8), &raw const mask, &raw mut old, BYTES) };
    old
}
