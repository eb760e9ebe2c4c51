//! Parameters of the network and of the hosts' devices. Those of NICs and processors are in `models/rnic` and `models/host`.

use std::time::Duration;

use netacc_host::ProcessorConfig;
use netacc_modelled::Interrupts;
use netacc_parameters::{choice, parameters, Parameter, Parameters};
use netacc_rnic::{
    CommandTimes, Costs, DcqcnChanges, DcqcnConfig, HpccConfig, NicConfig, RateConfig, SwiftConfig, TimelyConfig,
};
use serde::{Deserialize, Serialize};

parameters! {
    /// A switch that stores and forwards. Each parameter is an attribute of `ns3::RnicSwitch`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Switch {
        /// Bytes that wait at a port at most.
        port_buffer_bytes: u64 = 1 << 20;
        /// Bytes that wait in a switch at most; 0 for no such limit.
        shared_buffer_bytes: u64 = 0;
        /// With a shared buffer a port gets at most this many times the free bytes.
        alpha: f64 = 1.0;
        /// Mark packets that meet congestion.
        ecn: bool = false;
        /// Kmin: a shorter queue marks nothing.
        ecn_min_bytes: u64 = 5_000;
        /// Kmax: a queue of this length marks everything.
        ecn_max_bytes: u64 = 200_000;
        /// Pmax: the share of packets that are marked just below Kmax.
        ecn_probability_ppm: u32 = 10_000;
        /// Priority flow control: switches pause their neighbours and lose no data.
        pfc: bool = false;
        /// Bytes of an ingress above which its peer is paused.
        pfc_xoff_bytes: u64 = 100_000;
        /// Bytes of an ingress down to which it stays paused.
        pfc_xon_bytes: u64 = 80_000;
    }
}

choice! {
    /// The rate control of a NIC's queue pairs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RateControl {
        /// None.
        None = "none",
        /// A limit of unacknowledged bytes.
        FixedWindow = "fixed-window",
        /// DCQCN with the parameters of its paper.
        DcqcnPaper = "dcqcn-paper",
        /// DCQCN with the parameters of the HPCC authors.
        DcqcnHpcc = "dcqcn-hpcc",
        /// TIMELY: a rate by the gradient of round trips.
        Timely = "timely",
        /// After Swift: a window by the distance of round trips from a target.
        Swift = "swift",
        /// HPCC: a window by the telemetry of switches.
        Hpcc = "hpcc",
    }
}

parameters! {
    /// How a NIC paces its queue pairs.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Pacing {
        /// Rate control of each queue pair.
        rate_control: RateControl = RateControl::None;
        /// The window of fixed-window: bytes of payload that may be unacknowledged. The default is arbitrary.
        window_bytes: u64 = 65_536, at least 1;
    }
}

parameters! {
    /// Limits that a device's driver sets.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Driver {
        /// Bytes of payload that a request may carry in itself.
        max_inline_bytes: u32 = 96;
        /// A queue pair may change its completion queue.
        rebind: bool = true;
        /// Bytes that may be registered at once. The default is arbitrary: far above what a simulated process uses.
        memory_limit_bytes: usize = 8 << 30;
        /// The least time between two interrupts for packets of the kernel's TCP and UDP (interrupt moderation).
        interrupt_interval: Duration = Duration::ZERO;
    }
}

/// A device: NIC and driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The NIC.
    pub nic: NicConfig,
    /// Times of posted requests.
    pub costs: Costs,
    /// Times of commands.
    pub commands: CommandTimes,
    /// Pacing of queue pairs.
    pub pacing: Pacing,
    /// Changes of DCQCN's parameters.
    pub dcqcn: DcqcnChanges,
    /// Parameters of TIMELY.
    pub timely: TimelyConfig,
    /// Parameters of the control after Swift.
    pub swift: SwiftConfig,
    /// Parameters of HPCC.
    pub hpcc: HpccConfig,
    /// The driver.
    pub driver: Driver,
}

impl Device {
    /// The configuration of a NIC whose port has this rate.
    pub fn nic_config(&self, line_rate_bps: u64) -> NicConfig {
        let rate_control = match self.pacing.rate_control {
            RateControl::None => RateConfig::Unlimited,
            RateControl::FixedWindow => RateConfig::FixedWindow { bytes: self.pacing.window_bytes },
            RateControl::DcqcnPaper => RateConfig::Dcqcn(DcqcnConfig::paper().with(&self.dcqcn)),
            RateControl::DcqcnHpcc => RateConfig::Dcqcn(DcqcnConfig::hpcc(line_rate_bps).with(&self.dcqcn)),
            RateControl::Timely => RateConfig::Timely(self.timely.clone()),
            RateControl::Swift => RateConfig::Swift(self.swift.clone()),
            RateControl::Hpcc => RateConfig::Hpcc(self.hpcc.clone()),
        };
        let (costs, commands) = (self.costs.clone(), self.commands.clone());
        NicConfig { line_rate_bps, rate_control, costs, commands, ..self.nic.clone() }
    }
}

impl Device {
    /// How TCP's bytes and datagrams come from a process to another one: as messages of RDMA they take the times of both NICs. Each
    /// comes by an interrupt, unless a thread of the stack polls the NIC.
    pub fn interrupts(&self, polled: bool) -> Interrupts {
        let Costs { doorbell, request_fetch, payload_fetch, transmit_packet, .. } = &self.costs;
        let Costs { receive_packet, placement, completion, interrupt, .. } = &self.costs;
        let sending = *doorbell + *request_fetch + *payload_fetch + *transmit_packet;
        let delay = sending + *receive_packet + *placement + *completion;
        match polled {
            true => Interrupts { delay, interval: Duration::ZERO },
            false => Interrupts { delay: delay + *interrupt, interval: self.driver.interrupt_interval },
        }
    }
}

/// Parameters that are declared together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    /// The table of a scenario or of a profile that has them.
    pub table: &'static str,
    /// The object of the resolved form that has them.
    pub section: &'static str,
    /// Their declarations.
    pub parameters: Vec<Parameter>,
}

/// All declared parameters.
pub fn sections() -> Vec<Section> {
    fn of<T: Parameters>(table: &'static str, section: &'static str) -> Section {
        Section { table, section, parameters: T::declarations() }
    }
    vec![
        of::<NicConfig>("device", "nic"),
        of::<Costs>("device", "costs"),
        of::<CommandTimes>("device", "commands"),
        of::<Pacing>("device", "pacing"),
        of::<DcqcnChanges>("device", "dcqcn"),
        of::<TimelyConfig>("device", "timely"),
        of::<SwiftConfig>("device", "swift"),
        of::<HpccConfig>("device", "hpcc"),
        of::<Driver>("device", "driver"),
        of::<Switch>("switch", "switch"),
        of::<ProcessorConfig>("stack", "costs"),
    ]
}
