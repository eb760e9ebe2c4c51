//! Rings that the program makes and enters by system calls of its own, as a static liburing does.
//!
//! The library sees no call, but the ring's memory is mapped, and its submissions stay there until others take their
//! places. So reading them shows how the ring has been used. A ring that has submitted only operations on files costs
//! no connection its link. Any other could be meant for connections: as long as there is one, none goes onto a link.
//!
//! The helper reads them ([`search`]), when it is awake and for a hundredth of its time at most; all other threads use
//! its result ([`verdict`]). Invariant: nothing is read through pointers into the program's memory, which may be
//! unmapped at any time; the kernel copies it.
//!
//! Not seen: rings that are not mapped (`NO_MMAP`); rings on a kernel that gives all of them one inode (before 5.16), once the
//! program has another ring that is seen; the use of a ring for the first time while a connection is on a link.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};

use linux_raw_sys::io_uring as uring;
use linux_raw_sys::io_uring::{io_uring_op as Op, io_uring_sqe};
use netacc_device::Instant;

use super::{Does, Submission};
use crate::os::clock::now;
use crate::os::own;
use crate::table::{self, Entry};

/// The possible uses of the program's own rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Verdict {
    /// There is none, or all have been used for files only.
    Files,
    /// There is one that has not been used, or whose submissions cannot be read.
    Unknown,
    /// One has used sockets.
    Sockets,
}

/// The latest result of [`search`].
static FOUND: AtomicU8 = AtomicU8::new(Verdict::Files as u8);
/// No other search before this time.
static NEXT_SEARCH: AtomicU64 = AtomicU64::new(0);
/// A thread has asked for the verdict since the last search.
static REQUESTED: AtomicBool = AtomicBool::new(false);
/// After a search, none begins for so many times as long as it took.
const PAUSE: u64 = 100;

/// Inodes of rings that are seen. Only the last ones are kept; an older one is then taken for a ring of the program's
/// own.
static SEEN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
static SEEN_COUNT: AtomicU32 = AtomicU32::new(0);

/// The result of the last search. If that was before a connection came to depend on it, there is another search:
/// [`next_check`].
pub fn verdict() -> Verdict {
    REQUESTED.store(true, Ordering::Relaxed);
    match FOUND.load(Ordering::Relaxed) {
        found if found == Verdict::Files as u8 => Verdict::Files,
        found if found == Verdict::Unknown as u8 => Verdict::Unknown,
        _ => Verdict::Sockets,
    }
}

/// The submissions of the ring behind `fd` are seen.
pub fn record_seen(fd: c_int) {
    if let Some(stat) = stat_of(fd) {
        let at = SEEN_COUNT.fetch_add(1, Ordering::Relaxed) as usize % SEEN.len();
        SEEN[at].store(stat.st_ino, Ordering::Relaxed);
    }
}

/// The list of this process's mappings, for [`search`]. A forked child needs one of its own.
pub fn open_mappings() -> Option<c_int> {
    // SAFETY: a C string.
    own::keep(|| unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) })
}

/// Reads the process's rings by the list of its mappings, unless that has been done lately. Returns the verdict if it
/// has changed.
pub fn search(mappings: c_int) -> Option<Verdict> {
    let begun = now().as_nanos();
    if begun < NEXT_SEARCH.load(Ordering::Relaxed) {
        return None;
    }
    REQUESTED.store(false, Ordering::Relaxed);
    let maps = read_all(mappings);
    let found = judge_rings(&maps, |inode| SEEN.iter().any(|seen| seen.load(Ordering::Relaxed) == inode), read_memory);
    let done = now().as_nanos();
    NEXT_SEARCH.store(done + (done - begun) * PAUSE, Ordering::Relaxed);
    (FOUND.swap(found as u8, Ordering::Relaxed) != found as u8).then_some(found)
}

/// When the helper must be awake for the next search; `None` if there is no need.
pub fn next_check() -> Option<Instant> {
    REQUESTED.load(Ordering::Relaxed).then(|| Instant::from_nanos(NEXT_SEARCH.load(Ordering::Relaxed)))
}

/// All that can be read of a file from its beginning.
fn read_all(fd: c_int) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chunk = [0u8; 4096];
    loop {
        // SAFETY: the buffer is writable.
        let n = unsafe { libc::pread(fd, chunk.as_mut_ptr().cast(), chunk.len(), bytes.len() as libc::off_t) };
        match usize::try_from(n) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&chunk[..n.min(chunk.len())]),
            _ => return bytes,
        }
    }
}

/// The possible uses of all unseen rings, by the process's mappings.
fn judge_rings(maps: &[u8], is_seen: impl Fn(u64) -> bool, read: impl Fn(Range<usize>) -> Option<Vec<u8>>) -> Verdict {
    const NAME: &[u8] = b"anon_inode:[io_uring]";
    let lines = maps.split(|byte| *byte == b'\n').filter(|line| line.trim_ascii_end().ends_with(NAME));
    let mut worst = Verdict::Files;
    let mut rings: Vec<(u64, bool)> = Vec::new();
    for mapping in lines.filter_map(Mapped::parse).filter(|mapping| !is_seen(mapping.inode)) {
        let is_queue = mapping.offset == u64::from(uring::IORING_OFF_SQES);
        match rings.iter_mut().find(|(inode, _)| *inode == mapping.inode) {
            Some((_, has_queue)) => *has_queue |= is_queue,
            None => rings.push((mapping.inode, is_queue)),
        }
        if is_queue {
            let submissions = read(mapping.range);
            worst = worst.max(submissions.map_or(Verdict::Unknown, |bytes| judge_submissions(&bytes)));
        }
    }
    let is_hidden = rings.iter().any(|(_, has_queue)| !has_queue);
    worst.max(if is_hidden { Verdict::Unknown } else { Verdict::Files })
}

/// A line of `/proc/self/maps`.
struct Mapped {
    range: Range<usize>,
    offset: u64,
    inode: u64,
}

impl Mapped {
    fn parse(line: &[u8]) -> Option<Mapped> {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        Some(Mapped { range, offset, inode: words.nth(1)?.parse().ok()? })
    }
}

/// More than the longest queue takes: 32768 submissions of 128 bytes.
const MAX_BYTES: usize = 1 << 22;

/// A copy of memory of this process; `None` if it cannot be read.
fn read_memory(range: Range<usize>) -> Option<Vec<u8>> {
    let mut bytes = vec![0u8; range.len().min(MAX_BYTES)];
    let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let from = libc::iovec { iov_base: range.start as *mut _, iov_len: bytes.len() };
    // SAFETY: the buffer is writable; the source need not be mapped.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    (copied == bytes.len() as isize).then_some(bytes)
}

/// The use of a ring, by its queue. A submission of 128 bytes counts as two: the second half has no effect on the
/// verdict, or makes it worse than it is.
fn judge_submissions(bytes: &[u8]) -> Verdict {
    let used = bytes.chunks_exact(size_of::<io_uring_sqe>()).filter(|chunk| chunk.iter().any(|byte| *byte != 0));
    let mut worst = None;
    for chunk in used {
        // SAFETY: as many bytes as a submission has; any are valid.
        let mut copy: io_uring_sqe = unsafe { chunk.as_ptr().cast::<io_uring_sqe>().read_unaligned() };
        let submission = Submission { at: NonNull::from(&mut copy), follows: false };
        worst = worst.max(judge(u32::from(copy.opcode), submission.does()));
    }
    worst.unwrap_or(Verdict::Unknown)
}

/// The verdict on a ring from one operation; `None`: no evidence.
fn judge(opcode: u32, does: Does) -> Option<Verdict> {
    match does {
        Does::Other | Does::Close(_) => None,
        Does::Watch(..) | Does::WaitFor(_) | Does::Register(..) | Does::SendMessage(..) => Some(Verdict::Sockets),
        Does::Use(..) if FOR_SOCKETS.iter().any(|op| *op as u32 == opcode) => Some(Verdict::Sockets),
        // A file of the ring's table, which may be a socket.
        Does::Use(None, _) => Some(Verdict::Sockets),
        Does::Use(Some(fd), other) => {
            let is_connection = [Some(fd), other].into_iter().flatten().any(may_be_connection);
            Some(if is_connection { Verdict::Sockets } else { Verdict::Files })
        }
    }
}

/// Operations that use sockets, or wait for them.
const FOR_SOCKETS: [Op; 12] = [
    Op::IORING_OP_POLL_ADD,
    Op::IORING_OP_RECVMSG,
    Op::IORING_OP_ACCEPT,
    Op::IORING_OP_CONNECT,
    Op::IORING_OP_SEND,
    Op::IORING_OP_RECV,
    Op::IORING_OP_SHUTDOWN,
    Op::IORING_OP_SEND_ZC,
    Op::IORING_OP_FIXED_FD_INSTALL,
    Op::IORING_OP_BIND,
    Op::IORING_OP_LISTEN,
    Op::IORING_OP_RECV_ZC,
];

fn may_be_connection(fd: c_int) -> bool {
    let is_socket = stat_of(fd).is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFSOCK);
    is_socket || matches!(table::get_full(fd).as_deref(), Some(Entry::Epoll(_)))
}

fn stat_of(fd: c_int) -> Option<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the struct is writable; a wrong descriptor is an error.
    let rc = unsafe { libc::fstat(fd, stat.as_mut_ptr()) };
    // SAFETY: all-zero is valid, too.
    (rc == 0).then(|| unsafe { stat.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    fn queue(submissions: &[(Op, c_int)]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        for (chunk, (op, fd)) in bytes.chunks_exact_mut(size_of::<io_uring_sqe>()).zip(submissions) {
            chunk[0] = *op as u8;
            chunk[4..8].copy_from_slice(&fd.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_ring_is_judged_by_its_submissions() {
        let (file, socket) =
            (File::open("/dev/null").expect("it exists"), UdpSocket::bind("127.0.0.1:0").expect("loopback"));
        let (file, socket) = (file.as_raw_fd(), socket.as_raw_fd());
        let judged = |submissions: &[(Op, c_int)]| judge_submissions(&queue(submissions));
        assert_eq!(judged(&[]), Verdict::Unknown);
        assert_eq!(judged(&[(Op::IORING_OP_TIMEOUT, 0), (Op::IORING_OP_CLOSE, 7)]), Verdict::Unknown);
        assert_eq!(judged(&[(Op::IORING_OP_READV, file), (Op::IORING_OP_FSYNC, file)]), Verdict::Files);
        assert_eq!(judged(&[(Op::IORING_OP_READV, file), (Op::IORING_OP_READ, socket)]), Verdict::Sockets);
        assert_eq!(judged(&[(Op::IORING_OP_POLL_ADD, file), (Op::IORING_OP_READ, file)]), Verdict::Sockets);
        let mut fixed = queue(&[(Op::IORING_OP_READ, 0)]);
        fixed[1] = super::super::FIXED_FILE;
        assert_eq!(judge_submissions(&fixed), Verdict::Sockets);
    }

    const MAPS: &[u8] = b"\
00400000-00401000 r-xp 00000000 08:01 12345    /usr/bin/program
7f0000000000-7f0000001000 rw-s 10000000 00:10 7    anon_inode:[io_uring]
7f0000001000-7f0000002000 rw-s 00000000 00:10 7    anon_inode:[io_uring]
7f0000002000-7f0000003000 rw-s 00000000 00:10 8    anon_inode:[io_uring]
7f0000003000-7f0000004000 rw-s 10000000 00:10 9    anon_inode:[io_uring]
rubbish anon_inode:[io_uring]
";

    #[test]
    fn rings_are_found_among_mappings() {
        let files = |_: Range<usize>| Some(queue(&[(Op::IORING_OP_FSYNC, -1)]));
        let judged = |seen: &[u64]| judge_rings(MAPS, |inode| seen.contains(&inode), files);
        assert_eq!(judged(&[]), Verdict::Unknown, "the submissions of one are not mapped");
        assert_eq!(judged(&[8]), Verdict::Files);
        assert_eq!(judge_rings(MAPS, |inode| inode == 8, |_| None), Verdict::Unknown);
        let second = |range: Range<usize>| {
            let op = if range.start == 0x7f00_0000_3000 { Op::IORING_OP_RECV } else { Op::IORING_OP_FSYNC };
            Some(queue(&[(op, -1)]))
        };
        assert_eq!(judge_rings(MAPS, |inode| inode == 8, second), Verdict::Sockets);
        assert_eq!(judge_rings(MAPS, |inode| inode >= 8, second), Verdict::Files);
        assert_eq!(judge_rings(b"", |_| false, |_| None), Verdict::Files);
    }

    #[test]
    fn a_list_longer_than_a_chunk_is_read_to_its_end() {
        let bytes: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        // SAFETY: a C string, readable bytes, and a new descriptor.
        unsafe {
            let fd = libc::memfd_create(c"list".as_ptr(), 0);
            assert_eq!(libc::write(fd, bytes.as_ptr().cast(), bytes.len()), bytes.len() as isize);
            assert_eq!(read_all(fd), bytes);
            libc::close(fd);
        }
        assert!(read_all(-1).is_empty());
    }

    #[test]
    fn memory_that_is_not_there_is_not_read() {
        let bytes = [7u8; 100];
        let at = bytes.as_ptr() as usize;
        assert_eq!(read_memory(at..at + 100), Some(bytes.to_vec()));
        assert_eq!(read_memory(4096..8192), None);
    }
}
