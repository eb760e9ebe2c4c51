//! The directory: finds the process that holds a connection, within the host and on links to others.

use netacc_device::{Directory, DirectoryError, FourTuple, Obstacle, PeerAddress};

use crate::device::ShmDevice;
use crate::{obstacle, rendezvous, tuple};

impl ShmDevice {
    /// Whether it finds processes of other network namespaces of this host, too.
    pub fn spans_namespaces(&self) -> bool {
        self.config.folder.is_some()
    }

    /// The key of the end that sees the connection as `t`.
    fn key(&self, t: &FourTuple) -> u64 {
        tuple::key(t, if tuple::is_local(t) { self.rendezvous.network } else { 0 })
    }

    /// Whether both ends of a connection must be on this host (in this network namespace).
    pub fn is_within_host(t: &FourTuple) -> bool {
        tuple::same_host(t)
    }

    /// Announces to the processes of this user (or group) that we hold a connection to another host, as our stream
    /// `stream`. `false`: the table is full there.
    pub fn announce(&self, t: &FourTuple, stream: u32) -> bool {
        if self.descriptors.are_gone() {
            return false;
        }
        let r = &self.rendezvous;
        r.table.publish(self.key(t), r.slot, r.generation, stream)
    }

    /// Withdraws an announcement of [`announce`](ShmDevice::announce).
    pub fn retract(&self, t: &FourTuple, stream: u32) {
        let r = &self.rendezvous;
        r.table.withdraw(self.key(t), r.slot, r.generation, stream);
    }

    /// Announces to them the port at which we accept links from other hosts; 0: none.
    pub fn publish_link_port(&self, port: u16) {
        self.rendezvous.table.publish_link_port(self.rendezvous.slot, self.rendezvous.generation, port);
    }

    /// The port at which the process that has announced the connection accepts links from other hosts. `None`: no other
    /// process has announced it, or it accepts none. A hint, like everything in the table.
    pub fn link_port_of_holder(&self, t: &FourTuple) -> Option<u16> {
        let table = &self.rendezvous.table;
        let (process, _) = table.lookup(self.key(t)).filter(|(process, _)| process.slot != self.rendezvous.slot)?;
        table.link_port(process)
    }

    /// Whether another process has [announced](ShmDevice::publish_link_port) that it accepts links from other hosts.
    pub fn has_neighbour_with_links(&self) -> bool {
        self.rendezvous.table.has_link_port_beside(self.rendezvous.slot)
    }
}

impl Directory for ShmDevice {
    fn serves(&self, t: &FourTuple) -> bool {
        tuple::same_host(t) || self.spans_namespaces()
    }

    /// Processes of a shared folder may be in another PID namespace, from which they could not trace this one.
    fn trusts(&self, t: &FourTuple) -> bool {
        tuple::same_host(t) && !self.spans_namespaces()
    }

    fn shows_accepted(&self, t: &FourTuple) -> bool {
        tuple::same_host(t)
    }

    fn admits(&self, _: PeerAddress, t: &FourTuple) -> bool {
        self.serves(t)
    }

    fn publish(&self, t: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
        if !self.serves(t) {
            return Err(DirectoryError::NotServed);
        }
        if self.descriptors.are_gone() {
            return Err(DirectoryError::NoDescriptor);
        }
        if self.announce(t, stream) {
            Ok(())
        } else {
            Err(DirectoryError::Full)
        }
    }

    fn withdraw(&self, t: &FourTuple, stream: u32) {
        self.retract(t, stream);
    }

    fn lookup(&self, t: &FourTuple) -> Option<(PeerAddress, u32)> {
        let (process, stream) = self.rendezvous.table.lookup(self.key(&t.reversed()))?;
        self.is_at_address(&process, t).then_some(())?;
        Some((rendezvous::address(&process), stream))
    }

    fn obstacle(&self, t: &FourTuple, _: bool) -> Option<Obstacle> {
        if tuple::same_host(t) {
            return obstacle::find(&t.reversed(), self.config.group.is_some(), &self.rendezvous.names);
        }
        self.spans_namespaces().then_some(Obstacle::Elsewhere)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{symlink, DirBuilderExt, PermissionsExt};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use netacc_device::ConnectionManager;

    use super::*;
    use crate::config::ShmConfig;

    /// A folder of one test, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, mode: u32) -> Folder {
            let path = PathBuf::from(format!("/dev/shm/pod-{}-{name}", std::process::id()));
            std::fs::DirBuilder::new().mode(0o700).create(&path).expect("a new folder");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("ours");
            Folder(path)
        }

        fn open(&self) -> Result<Arc<ShmDevice>, netacc_device::DeviceError> {
            ShmDevice::open(ShmConfig { folder: Some(self.0.clone()), ..ShmConfig::default() })
        }

        fn own(&self) -> PathBuf {
            self.0.join(crate::folder::name(None))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn tuple(local: &str, remote: &str) -> FourTuple {
        FourTuple { local: local.parse().expect("an address"), remote: remote.parse().expect("an address") }
    }

    fn files(path: &Path) -> usize {
        std::fs::read_dir(path).map_or(0, Iterator::count)
    }

    /// Gives both their turn, often enough for any number of packets between them.
    fn turns(devices: [&ShmDevice; 2]) {
        for _ in 0..200 {
            assert!(devices.iter().all(|device| device.poll_event().is_none()));
        }
    }

    /// Breaks if a peer were used before it is known to be at the address, or never.
    #[test]
    fn a_peer_of_a_folder_is_found_once_it_has_proven_its_address() {
        let folder = Folder::new("proof", 0o1777);
        let (one, other) = (folder.open().expect("a folder"), folder.open().expect("a folder"));
        let (here, beyond) = (tuple("127.0.0.1:80", "127.0.0.1:5000"), tuple("198.18.255.1:80", "198.18.255.2:5000"));
        for t in [&here, &beyond] {
            assert!(one.serves(t) && !one.trusts(t) && one.admits(other.address(), t));
            assert_eq!(one.shows_accepted(t), *t == here);
            assert_eq!(one.publish(t, 3), Ok(()));
            assert_eq!(other.lookup(&t.reversed()), None, "not yet");
        }
        turns([&one, &other]);
        assert_eq!(other.lookup(&here.reversed()), Some((one.address(), 3)));
        assert_eq!(one.lookup(&here), None, "nobody has announced that end");
        for _ in 0..3 {
            assert_eq!(other.lookup(&beyond.reversed()), None, "no address of ours");
            turns([&one, &other]);
        }
        assert_eq!(other.obstacle(&beyond.reversed(), false), Some(Obstacle::Elsewhere));
        assert_eq!(one.pairs.iter().map(|pair| pair.probe.load(std::sync::atomic::Ordering::Relaxed)).max(), Some(-1));
    }

    #[test]
    fn nothing_is_left_in_a_folder() {
        let folder = Folder::new("leave", 0o700);
        let devices = [folder.open().expect("a folder"), folder.open().expect("a folder")];
        assert_eq!(files(&folder.own()), 3, "a table and two sockets");
        let [first, last] = devices;
        drop(first);
        assert_eq!(files(&folder.own()), 2);
        drop(last);
        assert_eq!(files(&folder.0), 0);
    }

    /// Breaks if another user could replace what is in the folder, or lead this one out of it.
    #[test]
    fn folders_that_others_can_change_are_refused() {
        for (mode, fits) in [(0o777, false), (0o770, false), (0o702, false), (0o1777, true), (0o755, true)] {
            assert_eq!(Folder::new("mode", mode).open().is_ok(), fits, "{mode:o}");
        }
        let (folder, elsewhere) = (Folder::new("link", 0o1777), Folder::new("target", 0o700));
        // The device neither uses nor removes it: its directory has the next name.
        symlink(&elsewhere.0, folder.own()).expect("a link");
        drop(folder.open().expect("another name"));
        assert_eq!(files(&elsewhere.0), 0);
        std::fs::remove_file(folder.own()).expect("it is there");
        std::fs::write(folder.own(), "").expect("ours");
        drop(folder.open().expect("another name"));
        assert!(folder.own().is_file());
        let config = ShmConfig { folder: Some(folder.0.join("absent")), ..ShmConfig::default() };
        assert!(ShmDevice::open(config).is_err());
    }
}
