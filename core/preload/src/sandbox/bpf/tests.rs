//! The interpreter against hand-made filters, and against the kernel's on generated ones.

use super::*;

fn load(word: u32) -> Instruction {
    Instruction { code: 0x20, jt: 0, jf: 0, k: 4 * word }
}

fn ret(k: u32) -> Instruction {
    Instruction { code: 0x06, jt: 0, jf: 0, k }
}

fn if_equal(k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code: 0x15, jt, jf, k }
}

fn program(instructions: &[Instruction]) -> Program {
    Program::new(instructions).expect("a filter that the kernel accepts")
}

#[test]
fn an_allow_list_permits_its_entries() {
    let list = program(&[load(0), if_equal(7, 1, 0), ret(SECCOMP_RET_ERRNO | 38), ret(SECCOMP_RET_ALLOW)]);
    assert!(list.permits(&Call::new(1, 7)));
    assert!(!list.permits(&Call::new(1, 8)));
    assert_eq!(list.answers(&Call::new(1, 8)), [Answer::Fails(38)]);
}

#[test]
fn a_call_is_permitted_only_if_every_argument_is() {
    // Argument 2 must be 3.
    let filter = program(&[load(8), if_equal(3, 1, 0), ret(SECCOMP_RET_KILL_THREAD), ret(SECCOMP_RET_ALLOW)]);
    let call = Call::new(1, 9);
    assert!(!filter.permits(&call), "the argument may be anything");
    assert!(filter.permits(&call.with_argument(2, 3)));
    assert!(!filter.permits(&call.with_argument(2, 1)));
    assert!(filter.permits(&call.with_argument(2, 3 | 1 << 32)), "the filter looks at the lower half only");
}

#[test]
fn an_unknown_returned_value_permits_nothing() {
    let filter = program(&[load(4), Instruction { code: 0x16, jt: 0, jf: 0, k: 0 }]);
    assert_eq!(filter.answers(&Call::new(1, 9)), [Answer::Catches]);
    assert!(filter.permits(&Call::new(1, 9).with_argument(0, SECCOMP_RET_ALLOW.into())));
}

#[test]
fn division_by_zero_ends_the_filter() {
    let divide_by_index = Instruction { code: 0x3c, jt: 0, jf: 0, k: 0 };
    let filter = program(&[divide_by_index, ret(SECCOMP_RET_ALLOW)]);
    assert_eq!(filter.answers(&Call::new(1, 9)), [Answer::Catches]);
}

#[test]
fn a_program_that_the_kernel_refuses_is_invalid() {
    let allow = ret(SECCOMP_RET_ALLOW);
    let with = |code, k| [Instruction { code, jt: 0, jf: 0, k }, allow];
    assert!(Program::new(&[]).is_none());
    assert!(Program::new(&[load(0)]).is_none(), "it does not end");
    assert!(Program::new(&vec![allow; MAX_INSTRUCTIONS + 1]).is_none());
    assert!(Program::new(&[if_equal(0, 1, 0), allow]).is_none(), "a jump past the end");
    assert!(Program::new(&with(0x20, 64)).is_none() && Program::new(&with(0x20, 2)).is_none());
    assert!(Program::new(&with(0x34, 0)).is_none(), "division by the constant 0");
    assert!(Program::new(&with(0x64, 32)).is_none(), "a shift by 32");
    assert!(Program::new(&with(0x02, 16)).is_none(), "there are 16 cells");
    assert!(Program::new(&with(0x94, 3)).is_none(), "modulo");
    assert!(Program::new(&with(0x05, u32::MAX)).is_none());
    assert!(Program::new(&with(0x05, 0)).is_some());
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }

    /// A number that is an interesting operand of conditions and operators.
    fn number(&mut self) -> u32 {
        match self.below(3) {
            0 => self.below(8),
            1 => u32::MAX - self.below(8),
            _ => self.next(),
        }
    }
}

/// The call that generated filters judge: it has no effect. Every other one passes.
const PROBE: u32 = libc::SYS_getuid as u32;

/// A filter that computes a value from the arguments of [`PROBE`], and returns an errno made of some of its bits.
fn generate(random: &mut Random) -> Vec<Instruction> {
    const BODY: u32 = 24;
    let plain = |code, k| Instruction { code, jt: 0, jf: 0, k };
    let mut filter = vec![load(0), if_equal(PROBE, 1, 0), ret(SECCOMP_RET_ALLOW)];
    // The kernel refuses to load a cell that is not written on every path.
    filter.extend((0..16).map(|cell| plain(0x02, cell)));
    for at in 0..BODY {
        // The three instructions of the end can be jumped to.
        let left = BODY - at;
        filter.push(match random.below(12) {
            0 | 1 => load(4 + random.below(12)),
            2 => plain([0x00, 0x01][random.below(2) as usize], random.number()),
            3 => plain([0x60, 0x61, 0x02, 0x03][random.below(4) as usize], random.below(16)),
            4 => plain([0x07, 0x87, 0x84, 0x80, 0x81][random.below(5) as usize], 0),
            5 => plain([0x64, 0x74][random.below(2) as usize], random.below(32)),
            6 | 7 => {
                plain([0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0xa4][random.below(7) as usize], random.number().max(1))
            }
            8 => plain([0x0c, 0x1c, 0x2c, 0x4c, 0x5c, 0x6c, 0x7c, 0xac][random.below(8) as usize], 0),
            9 => plain(0x05, random.below(left)),
            _ => {
                let code = [0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d][random.below(8) as usize];
                let (jt, jf) = (random.below(left) as u8, random.below(left) as u8);
                Instruction { code, jt, jf, k: random.number() }
            }
        });
    }
    filter.push(plain(0x74, random.below(20)));
    filter.push(plain(0x54, 0x7ff));
    filter.push(plain(0x44, SECCOMP_RET_ERRNO));
    filter.push(plain(0x16, 0));
    filter
}

/// The result of the kernel's own machine for [`PROBE`] with each set of arguments: the errno. Runs in a child that
/// installs the filter.
fn run_in_kernel(filter: &[Instruction], arguments: &[[u64; 6]]) -> Vec<i32> {
    let mut pipe = [0; 2];
    // SAFETY: two writable ints.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut().cast() };
    // SAFETY: the child only makes system calls, with valid arguments, and ends.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let installed = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) == 0;
            for a in arguments {
                let rc = libc::syscall(PROBE.into(), a[0], a[1], a[2], a[3], a[4], a[5]);
                let errno = if rc < 0 { *libc::__errno_location() } else { 0 };
                libc::write(pipe[1], (&raw const errno).cast(), 4);
            }
            libc::_exit(i32::from(!installed));
        }
        libc::close(pipe[1]);
        let mut errnos = vec![-1i32; arguments.len()];
        errnos.iter_mut().for_each(|errno| {
            libc::read(pipe[0], (&raw mut *errno).cast(), 4);
        });
        libc::close(pipe[0]);
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        assert_eq!(status, 0, "the kernel did not take the filter {filter:?}");
        errnos
    }
}

/// Breaks if any instruction is evaluated differently than in the kernel, with known arguments; or if a verdict is
/// missing among those for unknown ones.
#[test]
fn generated_filters_answer_as_the_kernel_does() {
    let (mut distinct, seeds) = (std::collections::BTreeSet::new(), 1..=120);
    for seed in seeds {
        let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let filter = generate(&mut random);
        let mut argument = || u64::from(random.number()) << 32 | u64::from(random.number());
        let arguments: Vec<[u64; 6]> = (0..8).map(|_| std::array::from_fn(|_| argument())).collect();
        let ours = program(&filter);
        let unknown = Call::new(AUDIT_ARCH_OF_TESTS, PROBE);
        for (set, errno) in arguments.iter().zip(run_in_kernel(&filter, &arguments)) {
            let call = (0..6).fold(unknown, |call, i| call.with_argument(i, set[i]));
            let answer = Answer::Fails(errno as u16);
            assert_eq!(ours.answers(&call), [answer], "seed {seed}, arguments {set:x?}, filter {filter:x?}");
            // An unknown value counts as caught.
            let possible = ours.answers(&unknown);
            assert!(possible.contains(&answer) || possible.contains(&Answer::Catches), "seed {seed}: {possible:?}");
            distinct.insert(errno);
        }
    }
    assert!(distinct.len() > 100, "the filters hardly compute anything: {distinct:?}");
}

/// Generated filters do not read it.
const AUDIT_ARCH_OF_TESTS: u32 = 0;
