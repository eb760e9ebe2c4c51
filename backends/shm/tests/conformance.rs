//! The conformance suite on two devices of one process.

mod common;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use common::{config, emulator, poll_fd, Dir};
use netacc_device::conformance::{run, Fixture, Side};
use netacc_device::{ConnectionManager, Device, Directory};
use netacc_shm::ShmDevice;

struct TwoDevices([Arc<ShmDevice>; 2]);

impl Fixture for TwoDevices {
    fn device(&self, side: Side) -> Arc<dyn Device> {
        self.0[side as usize].clone()
    }

    fn connection_manager(&self, side: Side) -> Option<Arc<dyn ConnectionManager>> {
        Some(self.0[side as usize].clone())
    }

    fn directory(&self, side: Side) -> Option<Arc<dyn Directory>> {
        Some(self.0[side as usize].clone())
    }

    // Everything here happens at once.
    fn progress(&mut self) {}

    fn channel_readable(&mut self, fd: RawFd) -> Option<bool> {
        Some(poll_fd(fd, Duration::ZERO))
    }
}

#[test]
fn suite() {
    let dir = Dir::new("conformance");
    let open = || ShmDevice::open(config(&dir.0)).expect("device");
    let report = run(&mut TwoDevices([open(), open()]));
    for (name, reason) in report.skipped() {
        println!("skipped {name}: {reason}");
    }
    // QEMU emulates MADV_REMOVE for programs of other processors by doing nothing, so freed memory keeps its bytes.
    let known = |name: &str| !emulator().is_empty() && name == "regions_are_zeroed_and_separate";
    let failed: Vec<_> = report.failed().filter(|(name, _)| !known(name)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
