//! The errors of calls, as the kernel's numbers.

use libc::c_int;

/// An error of a call, as in `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    /// Nothing now, or the time limit has passed.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    /// A signal ended the wait.
    pub const INTERRUPTED: Errno = Errno(libc::EINTR);
    /// The program named an invalid address.
    pub const FAULT: Errno = Errno(libc::EFAULT);
    /// The peer has reset the connection.
    pub const RESET: Errno = Errno(libc::ECONNRESET);
    /// The outgoing direction has ended.
    pub const PIPE: Errno = Errno(libc::EPIPE);
}

/// The reason why the kernel moved nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// The call would have to wait.
    WouldBlock,
    /// The connection has ended. The kernel reports that once.
    Ended(Errno),
    /// An error of the call alone.
    Call(Errno),
}

impl From<Errno> for KernelError {
    #[inline]
    fn from(error: Errno) -> KernelError {
        match error.0 {
            libc::EAGAIN => KernelError::WouldBlock,
            libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::EPIPE
            | libc::ETIMEDOUT
            | libc::EHOSTUNREACH
            | libc::EHOSTDOWN
            | libc::ENETUNREACH
            | libc::ENETDOWN => KernelError::Ended(error),
            _ => KernelError::Call(error),
        }
    }
}
