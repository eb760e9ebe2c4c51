//! Two in-memory devices as a fixture.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::conformance::{Fixture, Side};
use crate::loopback::{DeliveryMode, Fabric, LoopbackConfig, LoopbackDevice};
use crate::middleware::SplitMix64;
use crate::{ConnectionManager, Device, Directory};

pub(super) struct LoopbackFixture {
    fabric: Fabric,
    plain: [Arc<LoopbackDevice>; 2],
    devices: [Arc<dyn Device>; 2],
    rng: Option<SplitMix64>,
}

impl LoopbackFixture {
    pub(super) fn new(mode: DeliveryMode, config: LoopbackConfig) -> LoopbackFixture {
        let fabric = Fabric::new(mode);
        let plain = [fabric.open(config.clone()), fabric.open(config)];
        LoopbackFixture { fabric, devices: [plain[0].clone(), plain[1].clone()], plain, rng: None }
    }

    /// Makes each `progress` deliver once, picked by a generator.
    pub(super) fn step_by_seed(&mut self, seed: u64) {
        self.rng = Some(SplitMix64::new(seed));
    }

    pub(super) fn wrap(&mut self, side: Side, wrap: &dyn Fn(Arc<dyn Device>) -> Arc<dyn Device>) {
        let device = &mut self.devices[side as usize];
        *device = wrap(device.clone());
    }
}

impl Fixture for LoopbackFixture {
    fn device(&self, side: Side) -> Arc<dyn Device> {
        self.devices[side as usize].clone()
    }

    fn connection_manager(&self, side: Side) -> Option<Arc<dyn ConnectionManager>> {
        Some(self.plain[side as usize].clone())
    }

    fn directory(&self, side: Side) -> Option<Arc<dyn Directory>> {
        Some(self.plain[side as usize].clone())
    }

    fn progress(&mut self) {
        match &mut self.rng {
            None => {
                self.fabric.deliver_all();
            }
            Some(rng) => {
                self.fabric.step(rng.next_u64());
            }
        }
    }
}

/// A writer whose bytes can be read while it is in use.
#[derive(Clone, Default)]
pub(super) struct SharedLog(Arc<Mutex<Vec<u8>>>);

impl SharedLog {
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().clone()
    }
}

impl Write for SharedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
