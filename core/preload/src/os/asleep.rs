//! Sleeps within a call of this library: the handlers of signals run meanwhile. See [`deferral`].

use std::marker::PhantomData;

use super::deferral;
use super::signals::BlockedSignals;

/// The thread sleeps within a call, or is about to, until this is dropped. Handlers run meanwhile.
#[must_use]
pub struct Asleep {
    /// Its depth before.
    depth: u32,
    /// Keeps the value in its thread.
    _thread: PhantomData<*const ()>,
}

impl Asleep {
    /// The thread holds no lock until the result is dropped.
    pub fn begin() -> Asleep {
        Asleep { depth: deferral::pause(), _thread: PhantomData }
    }

    /// Lets the handlers of signals that wait run. Whether one of them ends the call, which must then not sleep any more.
    /// `restarts`: the call is one that SA_RESTART restarts.
    pub fn is_interrupted(&self, restarts: bool) -> bool {
        deferral::waits() && BlockedSignals::all().interrupts(restarts)
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        deferral::go_on(self.depth);
    }
}

/// Makes a call of the kernel's that may block, within a call of this library.
pub fn asleep<R>(call: impl FnOnce() -> R) -> R {
    let asleep = Asleep::begin();
    // As if they had come just before.
    let _ = asleep.is_interrupted(true);
    call()
}
