//! The program's actions on signals. Beneath its handlers is one of this library, which lets a signal wait that comes in the
//! middle of a call (see [`deferral`]), and recovers touches that have faulted, by SIGSEGV and SIGBUS.
//!
//! [`install`] puts our handler beneath the program's actions, with the first descriptor of ours and not before. Invariants:
//! * The program sees its own action only. Calls that set or report one are interposed; inside each of them the program's
//!   action is the kernel's again (see [`with_the_programs`]), so flags, masks and old values are the kernel's own.
//! * The installed action has the flags and the mask of the program's, so a handler of the program runs on the stack,
//!   with the signals blocked, and with the restart of calls that it has requested. It gets the kernel's arguments.
//! * Without a handler of the program only SIGSEGV and SIGBUS have ours, and the process ends as it would have: the default
//!   action is put back, and the signal is sent again with what came with it.
//! * A signal that the program ignores is left alone, because others inherit that over `exec`. Then no touch can be recovered.
//! * The signals by which the C library acts on its threads are left alone.
//!
//! The library does not see an action that the program sets by its own system call. Such an action replaces ours.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{sigaction, siginfo_t, ucontext_t};

use crate::os::access::landing;
use crate::os::errno::{errno, set_errno};
use crate::os::signals::BlockedSignals;
use crate::os::{confinement, deferral, futex, real};

/// The program's action on a signal. Without a lock, because the handler reads it: a version is odd while the action is
/// written, and different afterwards.
struct Action {
    signal: c_int,
    version: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicU32,
    mask: AtomicU64,
}

/// The part of a `sigaction` that the program chooses. All signals fit in the first word of a mask.
#[derive(Clone, Copy)]
struct Wanted {
    handler: usize,
    flags: c_int,
    mask: u64,
}

const SIGNALS: usize = 64;

static ACTIONS: [Action; SIGNALS] = {
    let mut actions = [const { Action::new(0) }; SIGNALS];
    let mut i = 0;
    while i < SIGNALS {
        actions[i].signal = i as c_int + 1;
        i += 1;
    }
    actions
};
/// Signals whose actions the program has set, a bit for each: ours goes beneath these.
static SET: AtomicU64 = AtomicU64::new(bit(libc::SIGSEGV) | bit(libc::SIGBUS));
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The handler that the kernel calls, which calls ours; 0: ours itself.
static THROUGH: AtomicUsize = AtomicUsize::new(0);

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// The signals by which the C library cancels threads and changes their user.
const OF_C_LIBRARY: u64 = bit(32) | bit(33);

fn action_of(signal: c_int) -> Option<&'static Action> {
    let at = usize::try_from(signal).ok()?.checked_sub(1)?;
    ACTIONS.get(at).filter(|_| bit(signal) & OF_C_LIBRARY == 0)
}

/// Whether an instruction may cause the signal.
fn is_of_faults(signal: c_int) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS)
}

/// Whether an instruction of the thread has caused the signal, which cannot wait. Faults have positive codes; signals that
/// a process sends have others.
fn is_caused_here(signal: c_int, code: c_int) -> bool {
    let by_instruction = matches!(signal, libc::SIGILL | libc::SIGTRAP | libc::SIGFPE | libc::SIGSYS);
    code > 0 && (by_instruction || is_of_faults(signal))
}

impl Wanted {
    const DEFAULT: Wanted = Wanted { handler: libc::SIG_DFL, flags: 0, mask: 0 };

    fn of(action: &sigaction) -> Wanted {
        // SAFETY: a set of signals begins with a word.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
        Wanted { handler: action.sa_sigaction, flags: action.sa_flags, mask }
    }

    fn to_c(self) -> sigaction {
        // SAFETY: all-zero is a valid action, and its mask begins with a word.
        unsafe {
            let mut action: sigaction = std::mem::zeroed();
            action.sa_sigaction = self.handler;
            action.sa_flags = self.flags;
            (&raw mut action.sa_mask).cast::<u64>().write_unaligned(self.mask);
            action
        }
    }

    /// The action that is installed in its place; `None`: the program's own.
    fn beneath(self, signal: c_int) -> Option<Wanted> {
        let ours = installed_handler();
        match self.handler {
            libc::SIG_IGN => None,
            libc::SIG_DFL if !is_of_faults(signal) => None,
            libc::SIG_DFL => Some(Wanted { handler: ours, flags: libc::SA_SIGINFO | libc::SA_ONSTACK, mask: 0 }),
            _ => {
                // `on_signal` counts an action that runs once.
                let flags = (self.flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
                Some(Wanted { handler: ours, flags, ..self })
            }
        }
    }

    fn set(self, signal: c_int) {
        // SAFETY: a valid action.
        unsafe { real::sigaction(signal, &self.to_c(), std::ptr::null_mut()) };
    }

    /// The kernel's action.
    fn current(signal: c_int) -> Wanted {
        let mut action = Wanted::DEFAULT.to_c();
        // SAFETY: the struct is writable.
        unsafe { real::sigaction(signal, std::ptr::null(), &mut action) };
        Wanted::of(&action)
    }
}

/// Looks before a thread sleeps, and for how long it sleeps. Arbitrary: a change takes about a microsecond.
const SPINS: u32 = 1_000;
const PAUSE: Duration = Duration::from_micros(100);

impl Action {
    const fn new(signal: c_int) -> Action {
        Action {
            signal,
            version: AtomicU32::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicU32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn load(&self) -> Wanted {
        let mut looks = 0;
        loop {
            let before = self.version.load(Ordering::Acquire);
            let wanted = self.load_alone();
            std::sync::atomic::fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return wanted;
            }
            self.pause(&mut looks, before);
        }
    }

    /// Another thread changes the action, which takes a system call or two: spins at first, and then sleeps. A thread of
    /// a higher priority would otherwise never let that one go on if they share a processor.
    fn pause(&self, looks: &mut u32, version: u32) {
        *looks += 1;
        if *looks < SPINS || confinement::is_confined() {
            std::hint::spin_loop();
            return;
        }
        let saved = errno();
        futex::wait(&self.version, version, Some(PAUSE));
        set_errno(saved);
    }

    fn store(&self, wanted: Wanted) {
        self.handler.store(wanted.handler, Ordering::Relaxed);
        self.flags.store(wanted.flags as u32, Ordering::Relaxed);
        self.mask.store(wanted.mask, Ordering::Relaxed);
    }

    /// Runs `change` alone. Signals are blocked meanwhile, so that no handler of this thread waits for it.
    fn alone<R>(&self, change: impl FnOnce() -> R) -> R {
        let blocked_signals = BlockedSignals::all();
        let mut looks = 0;
        loop {
            let version = self.version.load(Ordering::Relaxed) & !1;
            let take = self.version.compare_exchange(version, version + 1, Ordering::AcqRel, Ordering::Relaxed);
            match take {
                Ok(_) => break,
                Err(seen) => self.pause(&mut looks, seen),
            }
        }
        let result = change();
        self.version.fetch_add(1, Ordering::AcqRel);
        let saved = errno();
        drop(blocked_signals);
        set_errno(saved);
        result
    }

    /// As [`load`](Action::load), of the thread that is [`alone`](Action::alone).
    fn load_alone(&self) -> Wanted {
        Wanted {
            handler: self.handler.load(Ordering::Relaxed),
            flags: self.flags.load(Ordering::Relaxed) as c_int,
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    /// As [`adopt`](Action::adopt), unless the kernel's action is ours.
    fn adopt_others(&self) {
        if !is_ours(Wanted::current(self.signal)) {
            self.adopt();
        }
    }

    /// Takes the kernel's current action as the program's, and installs ours beneath it.
    fn adopt(&self) {
        let wanted = Wanted::current(self.signal);
        self.store(wanted);
        if let Some(beneath) = wanted.beneath(self.signal) {
            beneath.set(self.signal);
        }
    }
}

/// Makes touches recoverable, and signals wait, from now on. Only the first call does anything; later ones cost a load.
#[inline]
pub fn install() {
    if !is_installed() {
        put_beneath();
    }
}

#[cold]
fn put_beneath() {
    let set = SET.load(Ordering::SeqCst);
    adopt_all(set);
    INSTALLED.store(true, Ordering::SeqCst);
    // Those that were set meanwhile, by calls that did not find it installed.
    adopt_all(SET.load(Ordering::SeqCst) & !set);
}

fn adopt_all(set: u64) {
    for action in ACTIONS.iter().filter(|action| set & bit(action.signal) != 0) {
        action.alone(|| action.adopt_others());
    }
}

/// Before the process is confined: the kernel has the program's own actions again. But for those of faults, which the library
/// may still have to recover from.
pub fn leave() {
    let set = SET.load(Ordering::SeqCst);
    for action in ACTIONS.iter().filter(|action| set & bit(action.signal) != 0 && !is_of_faults(action.signal)) {
        action.alone(|| {
            if is_ours(Wanted::current(action.signal)) {
                action.load_alone().set(action.signal);
            }
        });
    }
}

fn own_handler() -> usize {
    on_signal as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize
}

fn installed_handler() -> usize {
    match THROUGH.load(Ordering::Relaxed) {
        0 => own_handler(),
        through => through,
    }
}

/// From now on the kernel calls `handler`, which calls the handler that this returns: a static program has its own thread
/// pointer, without which our handler cannot run. Called before the first descriptor of ours, in the only thread.
pub fn go_through(handler: usize) -> usize {
    THROUGH.store(handler, Ordering::Relaxed);
    own_handler()
}

fn is_ours(wanted: Wanted) -> bool {
    wanted.handler == installed_handler()
}

/// Whether touches are recovered: as soon as there can be descriptors in the table, also those that a child has inherited.
#[inline]
pub fn is_installed() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// Whether the kernel's action on the signal may not be the program's.
pub fn is_guarded(signal: c_int) -> bool {
    is_installed() && action_of(signal).is_some()
}

/// Makes a call that sets or reports the program's action on `signal`, with that action in the kernel.
pub fn with_the_programs<R>(signal: c_int, call: impl FnOnce() -> R) -> R {
    let action = action_of(signal).filter(|_| !confinement::is_confined() || is_of_faults(signal));
    let Some(action) = action else { return call() };
    SET.fetch_or(bit(signal), Ordering::SeqCst);
    if !is_installed() {
        let result = call();
        if is_installed() {
            let saved = errno();
            action.alone(|| action.adopt_others());
            set_errno(saved);
        }
        return result;
    }
    action.alone(|| {
        if is_ours(Wanted::current(signal)) {
            action.load_alone().set(signal);
        }
        let result = call();
        let saved = errno();
        action.adopt();
        set_errno(saved);
        result
    })
}

/// As [`with_the_programs`], in a child that shares the memory of its parent and has actions of its own: the record is its
/// parent's and stays as it is. From then on the child's action is the program's, without ours beneath it.
pub fn in_child<R>(signal: c_int, call: impl FnOnce() -> R) -> R {
    let action = action_of(signal).filter(|_| is_installed());
    if let Some(action) = action.filter(|_| is_ours(Wanted::current(signal))) {
        action.load().set(signal);
    }
    call()
}

/// In a forked child: another thread of the parent may have been changing an action, and does not exist here.
pub fn after_fork_child() {
    for action in &ACTIONS {
        if action.version.load(Ordering::Relaxed) % 2 == 1 {
            action.version.fetch_add(1, Ordering::AcqRel);
            action.alone(|| action.adopt_others());
        }
    }
}

/// The handler of all these signals.
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's arguments.
    let (info_of, context_of) = unsafe { (&mut *info, &mut *context.cast::<ucontext_t>()) };
    if is_caused_here(signal, info_of.si_code) {
        if is_of_faults(signal) && lands(context_of) {
            return;
        }
    } else if deferral::defer(signal, info_of, context_of) {
        return;
    }
    let Some(action) = action_of(signal) else { return };
    let wanted = action.load();
    match wanted.handler {
        libc::SIG_DFL => end_by(signal, info),
        // Set since the signal came.
        libc::SIG_IGN => {}
        handler => {
            if wanted.flags & libc::SA_RESETHAND != 0 {
                reset(action);
            }
            // SAFETY: the program has set it for this signal. One that takes fewer arguments leaves the others alone.
            let handler: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
    }
}

/// Continues a touch that has faulted at its landing pad. Whether the fault is one.
fn lands(context: &mut ucontext_t) -> bool {
    #[cfg(target_arch = "x86_64")]
    let pc = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let pc = &mut context.uc_mcontext.pc;
    match landing(*pc as usize) {
        Some(landing) => {
            *pc = landing as _;
            true
        }
        None => false,
    }
}

/// A handler that runs once is about to.
fn reset(action: &Action) {
    let saved = errno();
    action.alone(|| {
        action.handler.store(libc::SIG_DFL, Ordering::Relaxed);
        Wanted::DEFAULT.beneath(action.signal).unwrap_or(Wanted::DEFAULT).set(action.signal);
    });
    set_errno(saved);
}

/// The default action, which takes effect when the signal comes again with the same information, at the same place,
/// once the handler returns. It is sent again because not every signal of the kernel would fault again.
fn end_by(signal: c_int, info: *mut siginfo_t) {
    Wanted::DEFAULT.set(signal);
    // SAFETY: sends this thread the signal that it has received.
    unsafe {
        let (pid, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        let number = libc::SYS_rt_tgsigqueueinfo;
        real::syscall(number, pid.into(), thread, signal.into(), info as c_long, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc;

    use super::*;

    /// How often the kernel has seen the thread go to sleep.
    fn sleeps(status: &PathBuf) -> u64 {
        let text = std::fs::read_to_string(status).expect("the thread is there");
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).expect("a count")
    }

    // Breaks if a thread spins until the change is over: with a higher priority and one processor, for ever.
    #[test]
    fn threads_sleep_while_another_one_changes_an_action() {
        let action = Action::new(libc::SIGBUS);
        for wait in [|action: &Action| _ = action.load(), |action: &Action| action.alone(|| ())] {
            std::thread::scope(|scope| {
                let (sender, receiver) = mpsc::channel();
                let slept = action.alone(|| {
                    let action = &action;
                    scope.spawn(move || {
                        // SAFETY: no arguments.
                        let thread = unsafe { libc::gettid() };
                        sender.send(PathBuf::from(format!("/proc/self/task/{thread}/status"))).expect("it waits");
                        wait(action);
                    });
                    let status = receiver.recv().expect("it has started");
                    let before = sleeps(&status);
                    (0..100_000).any(|_| sleeps(&status) > before + 10)
                });
                assert!(slept, "it spins");
            });
        }
    }
}
