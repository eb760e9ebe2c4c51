//! Applies the policy for unseen I/O to a program that can use connections in ways that the library does not see.

use std::sync::atomic::{AtomicBool, Ordering};

use netacc_config::{LogLevel, UnseenIoPolicy};
use netacc_proto::Reason;

use super::start;
use crate::os::errno::{errno, set_errno};
use crate::os::log;
use crate::table::{self, Entry};
use crate::{leaving, runtime};

/// An epoll instance reports a registration that was made unseen. A program that relies on it would not learn of bytes
/// that arrive on a link.
#[cold]
pub fn unseen_registration() {
    static HANDLED: AtomicBool = AtomicBool::new(false);
    if !HANDLED.swap(true, Ordering::Relaxed) {
        let saved = errno();
        apply_policy("the program has registered a descriptor with an epoll instance unseen");
        set_errno(saved);
    }
}

/// Applies the policy for unseen I/O to a program that is about to do `what`, after which any of its I/O may be
/// unseen. Returns whether the program may do it.
pub fn apply_policy(what: &str) -> bool {
    let rt = start();
    let policy = if rt.endpoint().is_some() { rt.config.unseen_io } else { UnseenIoPolicy::Log };
    let allowed = match policy {
        UnseenIoPolicy::Log => true,
        UnseenIoPolicy::Error => false,
        UnseenIoPolicy::Abort => std::process::abort(),
        _ => {
            runtime::keep_on_kernel();
            for (fd, entry) in table::entries() {
                let Entry::Stream(sock) = &*entry else { continue };
                sock.record_reason(Reason::UnseenIo);
                leaving::surrender(fd, Reason::UnseenIo);
            }
            true
        }
    };
    log::append(&rt.config, LogLevel::Warn, &format!("{what}: {policy}"));
    allowed
}
