//! Descriptors that the program must not use: those that the library keeps for itself.
//!
//! Programs call `epoll_ctl` for each message and `close` for each connection, and each link of a device has
//! descriptors. So a descriptor in the table, which is the program's, is not searched among those of the device.

use std::ffi::c_int;

use crate::{runtime, table};

/// Whether `fd` is one that the library keeps for itself.
#[inline]
pub fn is_protected(fd: c_int) -> bool {
    runtime::may_be_helper_fd(fd) && table::get(fd).is_none() && runtime::is_own(fd)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::os::own;
    use crate::ring::Ring;
    use crate::table::Entry;

    /// Breaks if each call with a connection searches all descriptors of the device.
    #[test]
    fn a_descriptor_in_the_table_is_the_programs() {
        let fd = own::new_eventfd().expect("an eventfd");
        assert!(is_protected(fd), "the library keeps it");
        table::insert(fd, Arc::new(Entry::Ring(Ring::OfLibrary)));
        assert!(!is_protected(fd));
        table::remove(fd);
        assert!(is_protected(fd));
        own::discard(fd);
    }
}
