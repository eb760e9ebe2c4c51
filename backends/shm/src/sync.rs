//! The atomics and futexes that threads and processes share: the machine's, or their replacements in loom (`--cfg
//! loom`) and in Miri, so that the models (`models`) run the very code of the data path. Costs nothing: in a normal
//! build these are other names.
//!
//! Control words that no model uses stay `std`'s.

#[cfg(not(any(loom, miri)))]
pub(crate) use self::machine::*;
#[cfg(any(loom, miri))]
pub(crate) use self::model::*;

use std::sync::atomic::Ordering::SeqCst;

/// A SeqCst read-modify-write is a full barrier on x86-64, for the accesses before and after it. Elsewhere, and for
/// loom and Miri, it need not be.
#[inline]
pub(crate) fn full_barrier_after_rmw() {
    if cfg!(any(loom, miri)) || !cfg!(target_arch = "x86_64") {
        fence(SeqCst);
    }
}

#[cfg(not(any(loom, miri)))]
mod machine {
    pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64};

    pub(crate) use crate::sys::{futex_wait, futex_wake};
}

#[cfg(any(loom, miri))]
mod model {
    use std::collections::HashMap;
    #[cfg(miri)]
    pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64};
    #[cfg(miri)]
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{fence, AtomicU32, AtomicU64};
    #[cfg(loom)]
    use loom::sync::{Condvar, Mutex};

    use super::SeqCst;

    /// Wake-ups so far of each word. The lock is the kernel's: comparing and going to sleep are one step.
    #[derive(Default)]
    struct Futexes {
        wakes: Mutex<HashMap<usize, u32>>,
        woken: Condvar,
    }

    #[cfg(loom)]
    loom::lazy_static! {
        static ref FUTEXES: Futexes = Futexes::default();
    }
    #[cfg(miri)]
    static FUTEXES: std::sync::LazyLock<Futexes> = std::sync::LazyLock::new(Futexes::default);

    fn key(word: &AtomicU32) -> usize {
        std::ptr::from_ref(word) as usize
    }

    /// For ever if no thread wakes it, which is reported as a deadlock.
    pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, _: Option<Duration>) -> Result<(), i32> {
        let mut wakes = FUTEXES.wakes.lock().unwrap();
        if word.load(SeqCst) != seen {
            return Err(libc::EAGAIN);
        }
        let before = wakes.get(&key(word)).copied();
        while wakes.get(&key(word)).copied() == before {
            wakes = FUTEXES.woken.wait(wakes).unwrap();
        }
        Ok(())
    }

    pub(crate) fn futex_wake(word: &AtomicU32) {
        *FUTEXES.wakes.lock().unwrap().entry(key(word)).or_default() += 1;
        FUTEXES.woken.notify_all();
    }
}
