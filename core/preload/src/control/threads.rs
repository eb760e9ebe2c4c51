//! Starting the library's helper threads. They block all signals, so the program's handlers run in the program's threads.

use std::alloc::Layout;
use std::ffi::{c_int, c_void, CString};

use netacc_config::LogLevel;

use crate::os::work::Work;
use crate::os::{inside, kept, log};
use crate::runtime::Runtime;

/// The start of the threads' names in `ps -L`; the number follows.
const NAME: &str = "netacc-";

/// Starts helper thread `number`, with every signal blocked. `body` is counted as `work`.
///
/// # Errors
/// The kernel or the C library has no thread left, or no memory for its stack. Then `body` is gone.
pub(super) fn start(
    work: &'static Work,
    number: usize,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<libc::pthread_t> {
    let start = Box::into_raw(Box::new(Start { work, body: Box::new(body) }));
    // SAFETY: both sets are initialised by the calls; the mask is restored.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let started = start_thread(start);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        match started {
            Ok(thread) => {
                if let Ok(name) = CString::new(format!("{NAME}{number}")) {
                    libc::pthread_setname_np(thread, name.as_ptr());
                }
                Ok(thread)
            }
            Err(error) => {
                drop(Box::from_raw(start));
                Err(std::io::Error::from_raw_os_error(error))
            }
        }
    }
}

/// The task of a new thread.
struct Start {
    work: &'static Work,
    body: Box<dyn FnOnce() + Send>,
}

/// Stack space for the functions of a helper thread. The stack has no guard page, so it is several times as long as needed.
/// All of it counts for RLIMIT_DATA, whether it is touched or not.
const STACK_BYTES: usize = 512 << 10;

/// The length of a helper thread's stack: the C library puts the thread's variables there, too. Sanitizers have 900 KiB of them.
fn stack_bytes() -> usize {
    type LeastStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    // SAFETY: a C string. The function, which is glibc's own, has this type; it does not read the attributes.
    let least = unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr());
        let function = std::mem::transmute::<*mut c_void, Option<LeastStack>>(symbol);
        function.map_or(libc::PTHREAD_STACK_MIN, |function| function(std::ptr::null()))
    };
    (STACK_BYTES + least).next_multiple_of(4096)
}

/// Starts the thread on memory of the library's own. The C library keeps the thread's variables there too, and what they
/// refer to must stay reachable in a forked child, which has the memory but not the thread: a leak checker in the program
/// would report it there.
///
/// # Safety
/// `start` is a box, which the thread takes if it is started.
unsafe fn start_thread(start: *mut Start) -> Result<libc::pthread_t, c_int> {
    let check = |error: c_int| if error == 0 { Ok(()) } else { Err(error) };
    let layout = Layout::from_size_align(stack_bytes(), 4096).map_err(|_| libc::EINVAL)?;
    // SAFETY: the layout has a length. The memory is never freed. The attributes are initialised, used and destroyed here.
    unsafe {
        let stack = std::alloc::alloc(layout);
        if stack.is_null() {
            return Err(libc::ENOMEM);
        }
        kept::keep(stack);
        let mut attributes = std::mem::zeroed();
        check(libc::pthread_attr_init(&mut attributes))?;
        let mut thread = std::mem::zeroed();
        let started = check(libc::pthread_attr_setstack(&mut attributes, stack.cast(), layout.size())).and_then(|()| {
            let work = (*start).work;
            // On behalf of the thread, which takes locks of the C library and of a sanitizer before it calls `begin`.
            work.begin();
            check(libc::pthread_create(&mut thread, &attributes, begin, start.cast())).inspect_err(|_| work.end())
        });
        libc::pthread_attr_destroy(&mut attributes);
        started.map(|()| thread)
    }
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: `start_thread` passes a box, which nobody else takes.
    let Start { work, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    body();
    work.end();
    std::ptr::null_mut()
}

/// Called by each helper thread, first of all.
pub(super) fn prepare(rt: &Runtime) {
    inside::mark_thread();
    favour_wake_ups();
    bind(rt);
}

/// Keeps this thread, and those that it starts, on the processors that the configuration names.
fn bind(rt: &Runtime) {
    let cpus = rt.config.io.affinity.as_slice();
    if cpus.is_empty() {
        return;
    }
    let mut words = [0u64; CPU_WORDS];
    for cpu in cpus {
        words[*cpu as usize / 64] |= 1 << (cpu % 64);
    }
    // SAFETY: the set is readable, and has the given length.
    if unsafe { libc::sched_setaffinity(0, size_of_val(&words), words.as_ptr().cast()) } != 0 {
        let error = std::io::Error::last_os_error();
        log::append(&rt.config, LogLevel::Warn, &format!("NACC_SOR_AFFINITY {}: {error}", rt.config.io.affinity));
    }
}

/// Words of 64 processors in a set.
const CPU_WORDS: usize = netacc_config::CpuList::LIMIT as usize / 64;

/// Asks the scheduler for short slices: this thread runs for microseconds, but on a busy machine whole promotions wait
/// for it. Needs no privilege; an older kernel refuses, and nothing is lost. The thread keeps the program's policy and
/// priority: a thread of a real-time program that waited for a lesser one would wait for all others, too.
fn favour_wake_ups() {
    const LEN: u32 = size_of::<libc::sched_attr>() as u32;
    // SAFETY: all-zero is valid.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the attributes are writable, and of this length.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, LEN, 0) } == 0;
    if !known || attr.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    // 100 us, the shortest slice that the fair scheduler takes.
    attr.sched_runtime = 100_000;
    // SAFETY: the attributes are valid for the call.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if the helper of a program with a low or a real-time priority runs with the usual one.
    #[test]
    fn the_helper_keeps_the_programs_policy_and_priority() {
        for policy in [libc::SCHED_OTHER, libc::SCHED_BATCH] {
            let kept = std::thread::spawn(move || {
                let none = libc::sched_param { sched_priority: 0 };
                // SAFETY: a valid parameter; 0 is the calling thread. Less priority needs no privilege.
                unsafe {
                    assert_eq!(libc::sched_setscheduler(0, policy, &none), 0);
                    assert_eq!(libc::setpriority(libc::PRIO_PROCESS, 0, 5), 0);
                    favour_wake_ups();
                    (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0))
                }
            });
            assert_eq!(kept.join().expect("no panic"), (policy, 5));
        }
    }
}
