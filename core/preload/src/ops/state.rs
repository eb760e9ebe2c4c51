//! The state of a connection, as TCP_INFO and `getpeername` report it.
//!
//! While a stream is on a link, its kernel socket stays established, whatever the two programs have done to the
//! connection. So the answer is the stream's own state, until the kernel's socket has the whole stream again.

use std::ffi::c_int;
use std::sync::Arc;

use libc::{sockaddr, socklen_t};
use netacc_driver::Readiness;
use netacc_proto::{RxSource, TcpState};

use crate::os::errno::fail;
use crate::os::real;
use crate::runtime::{self, Runtime};
use crate::socket::Socket;
use crate::table::Entry;

// The kernel's numbers of the states. linux/tcp_states.h.
const TCP_ESTABLISHED: u8 = 1;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;

/// `getpeername`.
///
/// # Safety
/// As the C function.
pub unsafe fn getpeername(entry: &Arc<Entry>, fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if let Entry::Stream(sock) = &**entry {
        if of_stream(sock) == Some(TcpState::Closed) {
            return fail(libc::ENOTCONN) as c_int;
        }
    }
    // SAFETY: passed on.
    unsafe { real::getpeername(fd, addr, len) }
}

/// The state that TCP_INFO reports; `None`: the kernel's.
pub fn number_of(sock: &Socket) -> Option<u8> {
    of_stream(sock).map(|state| match state {
        TcpState::Established => TCP_ESTABLISHED,
        TcpState::FinWait => TCP_FIN_WAIT2,
        TcpState::CloseWait => TCP_CLOSE_WAIT,
        TcpState::Closed => TCP_CLOSE,
    })
}

/// The state of a stream whose end the kernel's socket may not have; `None`: the kernel has the state.
fn of_stream(sock: &Socket) -> Option<TcpState> {
    sock.reclaim();
    let cell = sock.stream.as_ref()?;
    if cell.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
        return None;
    }
    let endpoint = runtime::get().and_then(Runtime::endpoint)?;
    cell.take_in(endpoint);
    let guard = cell.lock(endpoint);
    // Bytes that come again on the anchor have the peer's FIN behind them there, not on the link.
    let incoming_by_kernel = matches!(guard.rx_source(), RxSource::Anchor(_));
    (!incoming_by_kernel).then(|| guard.proto().tcp_state())
}
