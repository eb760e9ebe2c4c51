//! Uses of descriptors that the library may give back to the program: a number that was given back is the program's, so no
//! thread may use it any more.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::clock::now;

/// A use of a descriptor's number, which was looked up within it, until it is dropped.
pub struct Use(());

impl Use {
    /// Begins. Look the number up afterwards.
    pub fn begin() -> Use {
        USES.fetch_add(1, Ordering::SeqCst);
        Use(())
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        USES.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until every use that has begun is over. `false`: one takes too long, perhaps because a signal handler interrupts it.
pub fn await_uses() -> bool {
    let begun = now();
    while USES.load(Ordering::SeqCst) != 0 {
        if now().saturating_since(begun) > USE_PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// The longest time that the helper waits for uses of numbers to end. A use is a system call that does not block.
const USE_PATIENCE: Duration = Duration::from_millis(100);

static USES: AtomicU32 = AtomicU32::new(0);

/// The library has given back all its descriptors.
static OVER: AtomicBool = AtomicBool::new(false);

/// Whether the library has no descriptor, and gets none any more.
pub fn is_over() -> bool {
    OVER.load(Ordering::SeqCst)
}

/// The library has given back all its descriptors, and opens none any more.
pub fn end() {
    OVER.store(true, Ordering::SeqCst);
}

/// The child of a fork has its own descriptors, and one thread, which uses none of its parent's.
pub fn after_fork_child() {
    OVER.store(false, Ordering::SeqCst);
    USES.store(0, Ordering::SeqCst);
}
