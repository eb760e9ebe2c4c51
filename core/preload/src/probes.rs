//! Probes for bpftrace, perf and SystemTap (USDT): one `nop` each in the code, and a note in the library's file that names it.
//! Their provider is `netacc`. Arguments are numbers; reasons are the codes of SPEC §9.
//!
//! | probe | when | arguments |
//! | --- | --- | --- |
//! | `moved` | a connection has got a link, or all of its bytes are in the kernel again | descriptor, 1 on a link and else 0, reason |
//! | `kept` | a connection stays in the kernel, by the first reason that is found | descriptor or -1, reason |
//! | `flow` | a UDP socket has got a ring | the port at the other end, 1 to send and 0 to receive |

use std::ffi::c_int;

use netacc_proto::Reason;

/// See `moved` in the table of this module.
#[cold]
#[inline(never)]
pub fn moved(fd: c_int, on_link: bool, reason: Reason) {
    probe::probe!(netacc, moved, i64::from(fd), i64::from(on_link), reason as i64);
}

/// See `kept`.
#[cold]
#[inline(never)]
pub fn kept(fd: c_int, reason: Reason) {
    probe::probe!(netacc, kept, i64::from(fd), reason as i64);
}

/// See `flow`.
#[cold]
#[inline(never)]
pub fn flow(port: u16, sends: bool) {
    probe::probe!(netacc, flow, i64::from(port), i64::from(sends));
}
