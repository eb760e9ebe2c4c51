//! Whether the process may make only the program's own system calls: see the module `sandbox`, which confines it.

use std::sync::atomic::{AtomicU8, Ordering};

const FREE: u8 = 0;

/// A thread is confining the process: the library takes up no new connection.
const CONFINING: u8 = 1;

const CONFINED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(FREE);

/// Whether the process may make no system call of its own, besides those of the program.
#[inline]
pub fn is_confined() -> bool {
    STATE.load(Ordering::Relaxed) == CONFINED
}

/// Whether new sockets are the kernel's alone: the process is confined, or about to be.
#[inline]
pub fn leaves_new_sockets() -> bool {
    STATE.load(Ordering::Relaxed) != FREE
}

/// The calling thread confines the process. `false`: another thread does.
pub fn begin() -> bool {
    STATE.compare_exchange(FREE, CONFINING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// The process is confined from now on.
pub fn finish() {
    STATE.store(CONFINED, Ordering::SeqCst);
}
