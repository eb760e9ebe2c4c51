//! How long a device's commands take: making and unmaking a queue pair, and registering memory, as links do it.
//!
//! Calibrations of simulated devices measure this. Nothing is connected, so the time of the changes of state beyond INIT is not
//! in it.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use netacc_device::DeviceError;

use crate::device::{cap, VerbsDevice};
use crate::device_cq::DeviceCq;
use crate::ffi::{enter, CmId, Mr, Pd};

/// The time of each command, one entry a round.
#[derive(Clone, Debug, Default)]
pub struct CommandTimes {
    /// Protection domain, completion queue and queue pair, up to INIT.
    pub create_queue_pair: Vec<Duration>,
    /// The end of all three.
    pub destroy_queue_pair: Vec<Duration>,
    /// Mapping and registering so many bytes.
    pub register: Vec<(usize, Duration)>,
    /// The end of a registration of so many bytes, and of its mapping.
    pub deregister: Vec<(usize, Duration)>,
}

impl VerbsDevice {
    /// Times each command `rounds` times, in turns; registrations with each of `lengths`.
    ///
    /// # Errors
    /// Fails with the first command that does.
    pub fn time_commands(&self, rounds: usize, lengths: &[usize]) -> Result<CommandTimes, DeviceError> {
        let os = |operation| move |source| DeviceError::Os { operation, source };
        let mut times = CommandTimes::default();
        for _ in 0..rounds {
            let (made, unmade) = self.time_queue_pair().map_err(os("making a queue pair"))?;
            times.create_queue_pair.push(made);
            times.destroy_queue_pair.push(unmade);
            for len in lengths {
                let (registered, ended) = self.time_registration(*len).map_err(os("ibv_reg_mr"))?;
                times.register.push((*len, registered));
                times.deregister.push((*len, ended));
            }
        }
        Ok(times)
    }

    fn time_queue_pair(&self) -> io::Result<(Duration, Duration)> {
        let _call = enter();
        let mut cm = CmId::new(&self.channel)?;
        cm.bind(SocketAddr::new(self.address.ip(), 0))?;
        let begun = Instant::now();
        let pd = Pd::new(self.context)?;
        let device_cq = DeviceCq::new(self.context, self.completion_entries, self.comp_vector)?;
        cm.create_qp(&pd, &device_cq.cq, cap(&self.shape))?;
        let made = begun.elapsed();
        let begun = Instant::now();
        cm.destroy_qp();
        drop(device_cq);
        drop(pd);
        Ok((made, begun.elapsed()))
    }

    fn time_registration(&self, len: usize) -> io::Result<(Duration, Duration)> {
        let _call = enter();
        let pd = Pd::new(self.context)?;
        let begun = Instant::now();
        let region = Mr::new(&pd, len)?;
        let registered = begun.elapsed();
        let begun = Instant::now();
        drop(region);
        Ok((registered, begun.elapsed()))
    }
}
