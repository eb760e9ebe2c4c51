//! The arguments of `clone3`, and how a program's call of it is made: as `clone`, whose arguments are registers, where that
//! can do the same, and with memory of the child's own where it cannot.

use std::ffi::c_int;

/// The kernel's `struct clone_args`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// As those of `clone`, without the signal.
    pub flags: u64,
    /// Where the child's descriptor goes.
    pub pidfd: u64,
    /// A word of the child's memory for its number.
    pub child_tid: u64,
    /// A word of the parent's memory for the child's number.
    pub parent_tid: u64,
    /// Sent to the parent at the child's end.
    pub exit_signal: u64,
    /// The lowest address of the child's stack; 0 for the parent's stack.
    pub stack: u64,
    /// The stack's length.
    pub stack_size: u64,
    /// The child's thread pointer.
    pub tls: u64,
    /// Numbers that the child is to have, and how many.
    pub set_tid: [u64; 2],
    /// A descriptor of the child's control group.
    pub cgroup: u64,
}

/// How the call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As `clone` with the same flags.
    Clone,
    /// By the kernel's `clone3`, with [`Arguments::apart`]: the child has memory of its own.
    Apart,
}

/// `struct clone_args` of the first kernels with the call.
const SHORTEST: usize = 64;
const WORDS: usize = size_of::<Arguments>() / 8;
/// The longest that the kernel takes.
pub const LONGEST: usize = 4096;

const INTO_CGROUP: u64 = 0x2_0000_0000;
/// Those of `clone`, without the signal's byte.
const OF_CLONE: u64 = 0xffff_ff00;
/// The flags by which a child shares the memory of its parent.
const SHARED: u64 = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;

impl Arguments {
    /// From the program's memory: the bytes at the first argument, as many as the second argument says.
    ///
    /// # Errors
    /// The kernel's error: they are too short, or have parts that this version does not know.
    pub fn read(bytes: &[u8]) -> Result<Arguments, c_int> {
        if bytes.len() < SHORTEST {
            return Err(libc::EINVAL);
        }
        let (known, rest) = bytes.split_at(bytes.len().min(size_of::<Arguments>()));
        if bytes.len() > LONGEST || rest.iter().any(|byte| *byte != 0) {
            return Err(libc::E2BIG);
        }
        let mut words = [0; WORDS];
        for (word, part) in words.iter_mut().zip(known.chunks(8)) {
            let mut whole = [0; 8];
            whole[..part.len()].copy_from_slice(part);
            *word = u64::from_ne_bytes(whole);
        }
        let [flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, tids, count, cgroup] = words;
        let set_tid = [tids, count];
        Ok(Arguments { flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, cgroup })
    }

    /// Whether all of these flags are set.
    pub fn has(&self, flag: c_int) -> bool {
        self.flags & flag as u64 == flag as u64
    }

    /// The stack pointer with which the child begins; 0 for the parent's.
    pub fn stack_top(&self) -> u64 {
        self.stack.wrapping_add(self.stack_size)
    }

    /// How to make the call.
    ///
    /// # Errors
    /// ENOSYS: C libraries then use `clone`. Handlers cannot be reset in the child (`CLONE_CLEAR_SIGHAND`), because the
    /// library has some; and what `clone` lacks is not done for threads and for children that share the memory.
    pub fn way(&self) -> Result<Way, c_int> {
        let beyond = self.flags & !(OF_CLONE | INTO_CGROUP) != 0;
        let lacks = self.set_tid[1] != 0 || self.has(libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID);
        match (self.has(libc::CLONE_VM), self.flags & INTO_CGROUP != 0) {
            _ if beyond || self.has(libc::CLONE_THREAD) && (lacks || self.flags & INTO_CGROUP != 0) => {
                Err(libc::ENOSYS)
            }
            (true, false) if lacks => Err(libc::ENOSYS),
            (true, true) if !self.has(libc::CLONE_VFORK) => Err(libc::ENOSYS),
            (false, _) if lacks => Ok(Way::Apart),
            (_, true) => Ok(Way::Apart),
            _ => Ok(Way::Clone),
        }
    }

    /// For a child that has memory of its own and begins on its copy of the parent's stack, with the parent's thread pointer.
    #[must_use]
    pub fn apart(&self) -> Arguments {
        let flags = self.flags & !(SHARED | libc::CLONE_SETTLS as u64);
        Arguments { flags, stack: 0, stack_size: 0, tls: 0, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(flags: c_int, more: u64) -> Result<Way, c_int> {
        Arguments { flags: flags as u64 | more, ..Arguments::default() }.way()
    }

    // Breaks if a length of the program's is not checked, or a field is taken for another one.
    #[test]
    fn arguments_are_read_as_the_kernel_reads_them() {
        let words: Vec<u8> = (1..=11u64).flat_map(u64::to_ne_bytes).collect();
        let read = Arguments::read(&words).expect("all are known");
        assert_eq!((read.flags, read.pidfd, read.child_tid, read.parent_tid), (1, 2, 3, 4));
        assert_eq!((read.exit_signal, read.stack_top(), read.tls), (5, 6 + 7, 8));
        assert_eq!((read.set_tid, read.cgroup), ([9, 10], 11));
        assert_eq!(Arguments::read(&words[..64]).map(|short| (short.tls, short.cgroup)), Ok((8, 0)));
        assert_eq!(Arguments::read(&words[..63]), Err(libc::EINVAL));
        let with = |rest: &[u8]| Arguments::read(&[&words, rest].concat());
        assert_eq!(with(&[0; 40]), Ok(read), "from a later version, which asks for nothing more");
        assert_eq!(with(&[0, 1]), Err(libc::E2BIG));
        assert_eq!(with(&[0; LONGEST]), Err(libc::E2BIG));
    }

    #[test]
    fn calls_take_the_way_that_can_do_what_they_ask_for() {
        use libc::{CLONE_CHILD_SETTID, CLONE_PARENT_SETTID, CLONE_PIDFD, CLONE_THREAD, CLONE_VFORK, CLONE_VM};
        assert_eq!(way(0, 0), Ok(Way::Clone));
        assert_eq!(way(CLONE_VM | CLONE_THREAD | CLONE_PARENT_SETTID, 0), Ok(Way::Clone));
        assert_eq!(way(CLONE_VM | CLONE_VFORK | CLONE_PIDFD, 0), Ok(Way::Clone));
        assert_eq!(way(CLONE_PIDFD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID, 0), Ok(Way::Apart));
        assert_eq!(way(CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_PARENT_SETTID, 0), Err(libc::ENOSYS));
        assert_eq!(way(CLONE_VM | CLONE_VFORK, INTO_CGROUP), Ok(Way::Apart));
        assert_eq!(way(0, INTO_CGROUP), Ok(Way::Apart));
        assert_eq!(way(CLONE_VM, INTO_CGROUP), Err(libc::ENOSYS));
        assert_eq!(way(CLONE_VM | CLONE_THREAD | CLONE_VFORK, INTO_CGROUP), Err(libc::ENOSYS));
        assert_eq!(way(0, 0x1_0000_0000), Err(libc::ENOSYS), "CLONE_CLEAR_SIGHAND");
        let numbered = Arguments { set_tid: [1, 1], ..Arguments::default() };
        assert_eq!(numbered.way(), Ok(Way::Apart));
    }

    #[test]
    fn a_child_apart_shares_neither_memory_nor_stack() {
        let shared = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_SETTLS) as u64 | INTO_CGROUP;
        let asked = Arguments { flags: shared, stack: 1, stack_size: 2, tls: 3, cgroup: 4, ..Arguments::default() };
        assert_eq!(asked.apart(), Arguments { flags: INTO_CGROUP, cgroup: 4, ..Arguments::default() });
    }
}
