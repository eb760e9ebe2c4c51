//! The agent: sets the guest up and serves the ports.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{setrlimit, Resource, RLIM_INFINITY};
use nix::unistd::sethostname;

use super::init::AGENT_CONFIG;
use super::session::{Guest, Peer};
use super::{port_name, session, GuestConfig};
use crate::error::LabError;
use crate::setup::{self, Rdma};
use crate::wire::Frames;

const OPEN_FILES: u64 = 1 << 20;

pub(super) fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("netacc-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), LabError> {
    let bytes = fs::read(AGENT_CONFIG).map_err(LabError::file(Path::new(AGENT_CONFIG)))?;
    let config: GuestConfig = serde_json::from_slice(&bytes)
        .map_err(|error| LabError::Io { operation: AGENT_CONFIG.into(), source: error.into() })?;
    // The search path of the setup's commands, in Debian's folders.
    std::env::set_var("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    // Without ports no error can be reported, so these come first.
    setup::modprobe("virtio_console")?;
    let problem = set_up(&config).err().map(|error| error.to_string());
    let guest = Arc::new(Guest { config, problem });
    let ports: Vec<_> = (0..guest.config.ports)
        .map(|port| {
            let guest = Arc::clone(&guest);
            thread::spawn(move || serve_port(&guest, &port_name(port)))
        })
        .collect();
    for port in ports {
        match port.join() {
            Ok(result) => result?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    Ok(())
}

fn set_up(config: &GuestConfig) -> Result<(), LabError> {
    let limit = |resource, value| setrlimit(resource, value, value);
    // RDMA pins memory; the tests open many connections.
    limit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY)
        .and_then(|()| limit(Resource::RLIMIT_NOFILE, OPEN_FILES))
        .and_then(|()| sethostname(host_name(config.host)))
        .map_err(|errno| LabError::io("raising limits and naming the host")(errno.into()))?;
    name_hosts(config.hosts)?;
    setup::run("ip", &["link", "set", "lo", "up"])?;
    if config.hosts == 1 && config.rdma != Rdma::Erdma {
        setup::veth()?;
    } else {
        setup::modprobe("virtio_net")?;
        setup::run("ip", &["link", "set", "dev", &the_interface()?, "name", setup::INTERFACE])?;
    }
    setup::interface(config.host, &config.impairment)?;
    setup::rdma(config.rdma, config.module.as_deref())
}

fn host_name(host: u8) -> String {
    format!("lab{host}")
}

fn name_hosts(hosts: u8) -> Result<(), LabError> {
    let file = Path::new("/etc/hosts");
    let mut text = fs::read_to_string(file).unwrap_or_default();
    for host in 1..=hosts {
        // A name of its own for IPv6: programs that try IPv6 first would not reach those that listen on IPv4 alone.
        let [v4, v6] = setup::addresses(host);
        text.push_str(&format!("\n{v4} {0}\n{v6} {0}-v6", host_name(host)));
    }
    fs::write(file, text + "\n").map_err(LabError::file(file))
}

/// The virtual Ethernet card, under any name that the kernel gives it.
fn the_interface() -> Result<String, LabError> {
    let folder = Path::new("/sys/class/net");
    let entries = fs::read_dir(folder).map_err(LabError::file(folder))?;
    entries
        .flatten()
        .find(|entry| entry.path().join("device").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .ok_or_else(|| LabError::io("looking for the virtual Ethernet card")(io::ErrorKind::NotFound.into()))
}

fn serve_port(guest: &Guest, name: &str) -> Result<(), LabError> {
    let path = find_port(name)?;
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(LabError::file(&path))?;
    let attach = || -> io::Result<(File, Port)> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        epoll.add(file.as_fd(), EpollEvent::new(events, 0))?;
        Ok((file.try_clone()?, Port { file: file.try_clone()?, epoll }))
    };
    let (writer, port) = attach().map_err(LabError::file(&path))?;
    session::serve(guest, &Arc::new(Mutex::new(writer)), Frames::new(port)).map_err(LabError::file(&path))
}

fn find_port(name: &str) -> Result<PathBuf, LabError> {
    let folder = Path::new("/sys/class/virtio-ports");
    for entry in fs::read_dir(folder).map_err(LabError::file(folder))?.flatten() {
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|found| found.trim() == name) {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    Err(LabError::io(format!("port {name}"))(io::ErrorKind::NotFound.into()))
}

/// A port. While its other end is closed, it returns the end of the file once, and then sleeps until a client opens it.
///
/// The kernel reports "end of file" and "hang-up" all that time, so only the edge, when the other side opens, helps.
#[derive(Debug)]
pub(super) struct Port {
    file: File,
    epoll: Epoll,
}

impl Read for Port {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

impl Peer for Port {
    fn stays_away(&self, absence: Duration) -> io::Result<bool> {
        let begun = Instant::now();
        loop {
            let mut state = [PollFd::new(self.file.as_fd(), PollFlags::empty())];
            poll(&mut state, PollTimeout::ZERO)?;
            if !state[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP)) {
                return Ok(false);
            }
            let Some(left) = absence.checked_sub(begun.elapsed()) else { return Ok(true) };
            // Rounded up, or the last millisecond would be spent without sleeping.
            let left = EpollTimeout::try_from(left + Duration::from_millis(1)).map_err(io::Error::other)?;
            self.sleep(left)?;
        }
    }

    fn wait_for_peer(&self) -> io::Result<()> {
        self.sleep(EpollTimeout::NONE)
    }
}

impl Port {
    fn sleep(&self, timeout: EpollTimeout) -> io::Result<()> {
        let mut events = [EpollEvent::empty()];
        match self.epoll.wait(&mut events, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
