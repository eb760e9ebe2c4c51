#![expect(unsafe_code, reason = "the terminal's size is read by ioctl")]
//! Our own terminal, while a shell in a guest uses it.

use std::io;
use std::os::fd::AsRawFd;

use nix::pty::Winsize;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{cfmakeraw, tcgetattr, tcsetattr, SetArg, Termios};

nix::ioctl_read_bad!(read_size, libc::TIOCGWINSZ, Winsize);

const USUAL: (u16, u16) = (24, 80);

/// Rows and columns; the usual ones where there is no terminal.
pub(crate) fn size() -> (u16, u16) {
    let mut size = Winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is writable and lives through the call; anything but a terminal is refused by the kernel.
    match unsafe { read_size(io::stdin().as_raw_fd(), &raw mut size) } {
        Ok(_) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row, size.ws_col),
        _ => USUAL,
    }
}

/// Switches the terminal to raw mode, until this is dropped.
#[derive(Debug)]
pub(crate) struct Raw(Termios);

impl Raw {
    /// `None` if stdin is no terminal. Blocks SIGWINCH in this thread and those that it starts, for the thread that
    /// follows the size.
    pub(crate) fn enter() -> Option<Raw> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).ok()?;
        let mut window = SigSet::empty();
        window.add(Signal::SIGWINCH);
        let _ = window.thread_block();
        Some(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}
