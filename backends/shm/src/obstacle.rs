//! Why no process of the rendezvous holds the other end of a connection within the host: asks the kernel for the holder
//! of its socket.
//!
//! Control path. One request to the kernel returns the socket's user, and whether it was accepted. For a socket of the
//! same user, the descriptors of processes that run the library are searched for it. The search is bounded, and made at
//! most every [`INTERVAL`]; in between the last answer for the same service is used, or none.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use netacc_device::{FourTuple, Obstacle};
use parking_lot::Mutex;

use crate::names::Names;
use crate::sys;

/// The time between two searches of the descriptors of other processes. Arbitrary.
const INTERVAL: Duration = Duration::from_millis(20);
/// Processes that are searched, and descriptors of each. Arbitrary.
const MAX_PROCESSES: usize = 256;
const MAX_DESCRIPTORS: usize = 4096;

/// The kernel's socket of a connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelSocket {
    /// The user who has it.
    pub uid: u32,
    /// The number of its file; 0 if no program has accepted it.
    pub inode: u32,
}

/// The last search of descriptors.
struct Search {
    at: Instant,
    service: SocketAddr,
    found: Option<Obstacle>,
}

static LAST: Mutex<Option<Search>> = Mutex::new(None);

/// The obstacle of the process that holds the end which sees the connection as `peer`. `None`: it does not run the
/// library, or this cannot be determined. `admits_group`: users are distinguished by their group, not by their number.
/// `own`: the names of the processes in this one's directory.
pub(crate) fn find(peer: &FourTuple, admits_group: bool, own: &Names) -> Option<Obstacle> {
    let socket = sys::socket_of(&request(peer)).ok().and_then(|answer| parse(&answer))?;
    if socket.inode == 0 {
        return Some(Obstacle::NotAccepted);
    }
    if socket.uid != sys::euid() && !admits_group {
        return Some(Obstacle::OtherUser);
    }
    let mut last = LAST.lock();
    if let Some(search) = last.as_ref().filter(|search| search.at.elapsed() < INTERVAL) {
        return search.found.filter(|_| search.service == peer.local);
    }
    let found = search(socket.inode, own);
    *last = Some(Search { at: Instant::now(), service: peer.local, found });
    found
}

/// Whether a process that runs the library has the socket, and why the directory did not find it.
fn search(inode: u32, own: &Names) -> Option<Obstacle> {
    let text = netacc_descriptors::read_text("/proc/net/unix").ok()?;
    let listeners = Listeners::of(&text);
    let others = listeners.running.iter().copied().filter(|pid| *pid != sys::pid()).take(MAX_PROCESSES);
    let holder = others.into_iter().find(|pid| holds(*pid, inode))?;
    Some(listeners.obstacle(holder, own.place().as_deref()))
}

/// Processes by the abstract addresses at which they listen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Listeners<'a> {
    /// They run the library.
    running: Vec<u32>,
    /// They accept links from the processes that join a table at the same place.
    linking: Vec<(u32, &'a str)>,
}

impl Listeners<'_> {
    /// From the text of `/proc/net/unix`, in which any process may have put any name: a hint.
    fn of(text: &str) -> Listeners<'_> {
        let mut listeners = Listeners::default();
        for name in text.lines().filter_map(|line| line.split_ascii_whitespace().nth(7)) {
            if let Some(pid) = name.strip_prefix("@netacc-ss/").and_then(|pid| pid.parse().ok()) {
                listeners.running.push(pid);
            } else if let Some(rest) = name.strip_prefix("@netacc-shm/") {
                let mut parts = rest.split('/');
                let (pid, _token, place) = (parts.next(), parts.next(), parts.next());
                let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
                listeners.linking.extend(pid.zip(place));
            }
        }
        listeners
    }

    /// Why `holder`, which runs the library, has not offered a connection in the table at `place`, or in a shared folder. A
    /// process listens before it is in its table, and may be in no table yet, or no longer, so the place at which it
    /// listens decides.
    fn obstacle(&self, holder: u32, place: Option<&str>) -> Obstacle {
        let mut places = self.linking.iter().filter(|(pid, _)| *pid == holder).map(|(_, place)| *place).peekable();
        let is_apart = places.peek().is_some() && !places.any(|other| Some(other) == place);
        if is_apart {
            Obstacle::Apart
        } else {
            Obstacle::NotOffered
        }
    }
}

/// Whether a process has a descriptor of the socket.
fn holds(pid: u32, inode: u32) -> bool {
    let wanted = format!("socket:[{inode}]");
    let _number = netacc_descriptors::borrow();
    let Ok(folder) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let targets = folder.take(MAX_DESCRIPTORS).filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    targets.into_iter().any(|target| target.as_os_str() == wanted.as_str())
}

/// Length of `struct nlmsghdr`, and of `struct inet_diag_req_v2`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;

/// The request for the socket whose own end is `end.local`: `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(end: &FourTuple) -> [u8; HEADER + REQUEST] {
    let (local, remote) = (end.local.ip().to_canonical(), end.remote.ip().to_canonical());
    let mut bytes = [0; HEADER + REQUEST];
    bytes[0..4].copy_from_slice(&((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let body = &mut bytes[HEADER..];
    body[0] = if local.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 };
    body[1] = libc::IPPROTO_TCP as u8;
    // Every state.
    body[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    body[8..10].copy_from_slice(&end.local.port().to_be_bytes());
    body[10..12].copy_from_slice(&end.remote.port().to_be_bytes());
    let put = |to: &mut [u8], ip: IpAddr| match ip {
        IpAddr::V4(ip) => to[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => to[..16].copy_from_slice(&ip.octets()),
    };
    put(&mut body[12..28], local);
    put(&mut body[28..44], remote);
    // Any interface; no cookie.
    body[48..56].copy_from_slice(&u64::MAX.to_ne_bytes());
    bytes
}

/// `struct nlmsghdr` and `struct inet_diag_msg`; `None` for an error, or anything else.
fn parse(answer: &[u8]) -> Option<KernelSocket> {
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    (kind == SOCK_DIAG_BY_FAMILY).then_some(())?;
    Some(KernelSocket { uid: word(HEADER + 64)?, inode: word(HEADER + 68)? })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::config::ShmConfig;

    fn query(socket: &TcpStream) -> Option<KernelSocket> {
        let end = FourTuple { local: socket.peer_addr().ok()?, remote: socket.local_addr().ok()? };
        parse(&sys::socket_of(&request(&end)).expect("the kernel answers"))
    }

    #[test]
    fn the_kernel_reports_who_has_the_other_end_and_whether_it_was_accepted() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).expect("a port");
            let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
            assert_eq!(query(&client).expect("it waits there").inode, 0);
            let (server, _) = listener.accept().expect("it waits there");
            let stat = sys::fstat(server.as_raw_fd()).expect("open");
            let wanted = KernelSocket { uid: sys::euid(), inode: stat.st_ino as u32 };
            assert_eq!(query(&client), Some(wanted));
            assert!(holds(sys::pid(), wanted.inode) && !holds(sys::pid(), 1));
        }
        let nobody: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let answer = sys::socket_of(&request(&FourTuple { local: nobody, remote: nobody })).expect("an answer");
        assert_eq!(parse(&answer), None);
    }

    #[test]
    fn listeners_are_found_among_any_names() {
        let text = "Num RefCount Protocol Flags Type St Inode Path\n\
            0: 2 0 10000 0001 01 77 @netacc-ss/12\n0: 2 0 10000 0005 01 78 @netacc-shm/12/00ff/1a.1\n\
            0: 2 0 10000 0001 01 79 @netacc-ss/x\n0: 2 0 10000 0001 01 80\n0: 2 0 1 1 01 81 @netacc-ss/13\n\
            0: 2 0 10000 0005 01 82 @netacc-shm/12\n0: 2 0 10000 0005 01 83 @netacc-shm/x/0/1a.1\n";
        assert_eq!(Listeners::of(text), Listeners { running: vec![12, 13], linking: vec![(12, "1a.1")] });
        assert_eq!(Listeners::of(""), Listeners::default());
    }

    /// Breaks if a process that has joined no table yet, or has left it, were reported as one with another table.
    #[test]
    fn a_process_is_apart_if_it_listens_for_the_processes_of_another_place_alone() {
        let listeners =
            Listeners { running: vec![7, 8, 9], linking: vec![(7, "1a.1"), (8, "2b.1"), (9, "2b.1"), (9, "1a.1")] };
        let obstacles = [6, 7, 8, 9].map(|holder| listeners.obstacle(holder, Some("1a.1")));
        assert_eq!(obstacles, [Obstacle::NotOffered, Obstacle::NotOffered, Obstacle::Apart, Obstacle::NotOffered]);
        assert_eq!(listeners.obstacle(7, Some("1a.1.g5")), Obstacle::Apart);
        assert_eq!([6, 7].map(|holder| listeners.obstacle(holder, None)), [Obstacle::NotOffered, Obstacle::Apart]);
    }

    /// Breaks if the place were cut off a name, or could not be read from it.
    #[test]
    fn a_name_ends_in_the_place_of_its_table() {
        let directory = std::path::Path::new("/dev/shm/netacc-0-1");
        let config = ShmConfig { group: Some(u32::MAX), ..ShmConfig::default() };
        let names = Names::new(directory, &config, 0).expect("a folder");
        let token = [u64::from(sys::pid()), u64::MAX];
        let _listener = names.listen(token, None).expect("a free name");
        let text = netacc_descriptors::read_text("/proc/net/unix").expect("proc");
        assert!(Listeners::of(&text).linking.contains(&(sys::pid(), &names.place().expect("no folder"))));
    }

    #[test]
    fn short_answers_are_ignored() {
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[0; 88]), None);
        let mut answer = [0; 87];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert_eq!(parse(&answer), None);
    }
}
