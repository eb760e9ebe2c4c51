//! The program's threads. Each is a thread of the C library, because the library's code runs in it: its stack is the hook
//! stack, and the program's code runs on the stack that the program has made.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::block::{fs, install, Block, Frame, Request, Role};
use crate::{block, entry, signals};

/// The hook stack. Arbitrary: the library's deepest calls need a tenth of it.
const STACK: usize = 512 << 10;
/// The end of a stack that is left for frames that exist already, and for the C library's part of the thread.
const SPARE: u64 = 32 << 10;

/// The program's threads that have not ended.
static COUNT: AtomicUsize = AtomicUsize::new(1);

/// A new thread's registers and requests; on the stack of the thread that makes it, until `tid` is set.
struct Start {
    frame: Frame,
    fs: u64,
    mask: u64,
    /// Words of the program that get the thread's number: before the thread runs, which may end, and clear them, at once.
    set_tid: [*mut i32; 2],
    clear_tid: *mut i32,
    tid: AtomicI32,
}

/// A thread: its number.
pub(crate) fn make(frame: &Frame, request: &Request) -> i64 {
    let word = |flag, address: u64| if request.has(flag) { address as *mut i32 } else { std::ptr::null_mut() };
    // SAFETY: the thread's own block.
    let own_fs = unsafe { (*block::current()).guest_fs };
    let mask = signals::set_mask(u64::MAX);
    let mut start = Start {
        frame: Frame { rsp: request.stack, ..*frame },
        fs: if request.has(libc::CLONE_SETTLS) { request.tls } else { own_fs },
        mask,
        set_tid: [
            word(libc::CLONE_PARENT_SETTID, request.parent_tid),
            word(libc::CLONE_CHILD_SETTID, request.child_tid),
        ],
        clear_tid: word(libc::CLONE_CHILD_CLEARTID, request.child_tid),
        tid: AtomicI32::new(0),
    };
    COUNT.fetch_add(1, Ordering::SeqCst);
    let failed = create(&mut start);
    if failed != 0 {
        COUNT.fetch_sub(1, Ordering::SeqCst);
        signals::set_mask(mask);
        return -i64::from(failed);
    }
    let tid = loop {
        match start.tid.load(Ordering::Acquire) {
            0 => wait(&start.tid),
            tid => break tid,
        }
    };
    signals::set_mask(mask);
    tid.into()
}

/// The C library's error, or 0.
fn create(start: &mut Start) -> c_int {
    // SAFETY: an attribute is initialised before it is used; the new thread has done with `start` when it sets `tid`.
    unsafe {
        let mut attributes = std::mem::zeroed();
        let mut thread = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&mut attributes, STACK);
        let failed = libc::pthread_create(&mut thread, &attributes, run, (&raw mut *start).cast());
        libc::pthread_attr_destroy(&mut attributes);
        failed
    }
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: the other thread keeps it until `tid` is set.
    let start = unsafe { &*start.cast::<Start>() };
    let Start { frame, fs: guest_fs, mask, set_tid, clear_tid, .. } = *start;
    let frame = Frame { raw: frame.raw + 2, ..frame };
    let mut block = of_this_stack(guest_fs, Role::Other);
    block.clear_tid = clear_tid;
    block.own = &raw mut block;
    // SAFETY: the block lives as long as this function.
    unsafe { install(&raw mut block) };
    // SAFETY: no arguments.
    let tid = unsafe { libc::gettid() };
    for word in set_tid.into_iter().filter(|word| !word.is_null()) {
        // SAFETY: the program's word, as for the kernel.
        unsafe { *word = tid };
    }
    start.tid.store(tid, Ordering::Release);
    wake(&raw const start.tid);
    signals::set_mask(mask);
    // SAFETY: the block is complete, and the program goes on behind its system call.
    unsafe { entry::enter(&frame) };
    // All signals are blocked: see `exit`.
    // SAFETY: this thread's block.
    clear(unsafe { std::ptr::read_volatile(&raw const block.clear_tid) });
    std::ptr::null_mut()
}

/// A block for a thread whose hook stack is the one that this runs on.
fn of_this_stack(guest_fs: u64, role: Role) -> Block {
    let here = fs_free_top();
    Block {
        own: std::ptr::null_mut(),
        stack_top: (here - SPARE) & !63,
        stack_low: here - STACK as u64 + SPARE,
        stack_high: here,
        host_fs: fs(),
        guest_fs,
        busy: 1,
        exit_stack: 0,
        clear_tid: std::ptr::null_mut(),
        role,
    }
}

/// An address near the begin of the running function's frame.
#[inline(never)]
fn fs_free_top() -> u64 {
    let here = 0u8;
    (&raw const here) as u64
}

/// The first thread's block, with a hook stack of its own: the process's first stack is the program's.
pub(crate) fn first() -> Option<Block> {
    const FIRST_STACK: usize = 1 << 20;
    const GUARD: usize = 4096;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh anonymous mapping, whose first page is then closed.
    let low = unsafe { libc::mmap(std::ptr::null_mut(), FIRST_STACK, access, flags, -1, 0) };
    if low == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: as above.
    unsafe { libc::mprotect(low, GUARD, libc::PROT_NONE) };
    let (low, high) = (low as u64 + GUARD as u64, low as u64 + FIRST_STACK as u64);
    Some(Block {
        own: std::ptr::null_mut(),
        stack_top: high,
        stack_low: low,
        stack_high: high,
        host_fs: fs(),
        guest_fs: 0,
        busy: 1,
        exit_stack: 0,
        clear_tid: std::ptr::null_mut(),
        role: Role::First,
    })
}

/// `exit` of a thread. The last one ends the process.
pub(crate) fn exit(status: i32) -> ! {
    let block = block::current();
    // SAFETY: the thread's own block.
    let Block { role, clear_tid, .. } = unsafe { *block };
    if role == Role::Vforked {
        loop {
            // SAFETY: ends this process alone.
            unsafe { libc::syscall(libc::SYS_exit, status) };
        }
    }
    signals::set_mask(u64::MAX);
    if COUNT.fetch_sub(1, Ordering::SeqCst) == 1 {
        // SAFETY: ends the process, by the library, which takes the streams off their links first.
        unsafe { libc::_exit(status) };
    }
    if role == Role::Other {
        // SAFETY: the thread came by `enter`.
        unsafe { entry::leave() };
    }
    clear(clear_tid);
    loop {
        // The process's first thread is not to end before the others. SAFETY: no arguments.
        unsafe { libc::pause() };
    }
}

/// In a forked child: there is one thread.
pub(crate) fn after_fork() {
    COUNT.store(1, Ordering::SeqCst);
}

/// As the kernel does at a thread's end.
fn clear(word: *mut i32) {
    if !word.is_null() {
        // SAFETY: the program's word: it wants it cleared now.
        unsafe { AtomicI32::from_ptr(word) }.store(0, Ordering::SeqCst);
        wake(word.cast_const().cast());
    }
}

fn wait(word: &AtomicI32) {
    // SAFETY: a word that is there as long as the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 0, std::ptr::null::<u8>(), 0, 0) };
}

fn wake(word: *const AtomicI32) {
    // The kernel only needs the address. SAFETY: nothing is read or written there.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, c_int::MAX, 0, 0, 0) };
}
