//! Epoll instances that the library does not follow: the program was started with them.

use std::ffi::c_int;

use crate::holders::socket_number;
use crate::os::inside::Inside;
use crate::table;

/// Whether `fd` is an epoll instance: the kernel has no call for that.
pub fn is_instance(fd: c_int) -> bool {
    let _inside = Inside::enter();
    std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]")
}

/// Whether one of these instances watches the socket `fd`: waits on it do not look at rings.
pub fn watches(fd: c_int) -> bool {
    let Some(number) = socket_number(fd) else { return false };
    let names = netacc_descriptors::read_names("/proc/self/fd").unwrap_or_default();
    let fds = names.iter().filter_map(|name| name.to_str()?.parse::<c_int>().ok());
    fds.filter(|fd| table::get(*fd).is_none() && is_instance(*fd)).any(|instance| {
        let info = netacc_descriptors::read_text(format!("/proc/self/fdinfo/{instance}")).unwrap_or_default();
        names_file(&info, number)
    })
}

/// Whether the kernel's description of an instance has a registration of the file with this number. See proc(5).
fn names_file(info: &str, number: u64) -> bool {
    let files = info.split_ascii_whitespace().filter_map(|word| word.strip_prefix("ino:"));
    files.filter_map(|ino| u64::from_str_radix(ino, 16).ok()).any(|ino| ino == number)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Breaks if a socket had rings although the program waits for it on an instance with which it was started.
    #[test]
    fn an_instance_that_is_not_followed_is_found() {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the event is readable; the descriptor is this test's.
        let instance = unsafe {
            let instance = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            assert_eq!(libc::epoll_ctl(instance, libc::EPOLL_CTL_ADD, one.as_raw_fd(), &raw mut event), 0);
            instance
        };
        assert!(is_instance(instance) && !is_instance(one.as_raw_fd()));
        assert!(watches(one.as_raw_fd()) && !watches(other.as_raw_fd()));
        // SAFETY: as above.
        unsafe { libc::close(instance) };
        assert!(!watches(one.as_raw_fd()));
    }
}
