//! From a scenario to what runs.

use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::Instant;
use netacc_host::{HostConfig, ProcessorConfig};
use netacc_rnic::{self as rnic, DcqcnConfig, NicConfig, NoReceive, RateConfig, Recovery};
use netacc_rpc::{Conversation, Recorded, Run, RunConfig, Sizes, StackConfig, Tcp};

use crate::scenario::{Arrival, Dcqcn, Group, Nic, Pause, Rate, Scenario, ScenarioError, SizeBin, Stack};

impl Scenario {
    /// The hosts and their conversations, with nothing said yet.
    ///
    /// # Errors
    /// A group that makes no sense, or a host without queues.
    pub fn run(&self) -> Result<Run, ScenarioError> {
        let rates = self.host_rates();
        let host = |(number, rate): (usize, u64)| self.host(rate, self.is_server(number as u32));
        let hosts = rates.into_iter().enumerate().map(host).collect();
        let Stack { ring_bytes, message_bytes, streams_per_link, receive_depth, promote_after, .. } = self.stack;
        let stack = StackConfig { ring_bytes, message_bytes, streams_per_link, receive_depth, promote_after };
        let mut conversations = Vec::new();
        for group in &self.groups {
            self.add_conversations(group, &mut conversations)?;
        }
        let tcp = match self.stack.tcp_buffer_bytes {
            0 => Tcp::Memory,
            bytes => Tcp::Simulated { buffer_bytes: bytes as usize },
        };
        let config = RunConfig { hosts, conversations, stack, promote: self.stack.promote, tcp, sampled: true };
        let senseless = "a group names a host that does not exist, or asks nothing, or never";
        Run::new(&config)?.ok_or_else(|| ScenarioError::Senseless(senseless.into()))
    }

    /// Whether some group asks a host.
    pub fn is_server(&self, host: u32) -> bool {
        self.groups.iter().flat_map(|g| &g.clients).any(|c| c.server == host)
    }

    /// How many conversations each group has, in order.
    pub fn group_sizes(&self) -> Vec<usize> {
        let count = |g: &Group| g.clients.iter().map(|c| c.connections as usize).sum();
        self.groups.iter().map(count).collect()
    }

    /// The rate of each host's link.
    fn host_rates(&self) -> Vec<u64> {
        let mut rates = vec![0; self.network.hosts as usize];
        for link in &self.network.links {
            for node in [link.a, link.b] {
                if let Some(rate) = rates.get_mut(node as usize) {
                    *rate = link.rate_bps;
                }
            }
        }
        rates
    }

    fn host(&self, line_rate_bps: u64, server: bool) -> HostConfig {
        let mut host = HostConfig::roce(nic_config(&self.nic, line_rate_bps));
        host.name = "host".into();
        // Connections that last were made before the run.
        host.commands_from = at(self.measure.warmup_ns);
        host.memory_limit_bytes = usize::try_from(self.nic.memory_limit_bytes).unwrap_or(usize::MAX);
        host.capabilities.max_inline = self.nic.max_inline_bytes;
        host.capabilities.rebind = self.nic.rebind;
        host.processor = self.processors.map(|p| ProcessorConfig {
            cores: p.cores,
            threads: if server { p.server_threads } else { p.client_threads },
            spin: Duration::from_nanos(p.spin_ns),
            wake_up: Duration::from_nanos(p.wake_up_ns),
            library_call: Duration::from_nanos(p.library_call_ns),
            system_call: Duration::from_nanos(p.system_call_ns),
            copy_ps_per_byte: p.copy_ps_per_byte,
            connection: Duration::from_nanos(p.connection_ns),
            link: Duration::from_nanos(p.link_ns),
            promotion: Duration::from_nanos(p.promotion_ns),
            segment: Duration::from_nanos(p.segment_ns),
            segment_bytes: p.segment_bytes,
        });
        host
    }

    fn add_conversations(&self, group: &Group, to: &mut Vec<Conversation>) -> Result<(), ScenarioError> {
        let empty = || ScenarioError::Senseless(format!("group {}: lengths without weight, or of 0", group.name));
        let request = sizes(&group.request).ok_or_else(empty)?;
        let response = sizes(&group.response).ok_or_else(empty)?;
        let total: u64 = group.clients.iter().map(|c| u64::from(c.connections)).sum();
        let until = at(self.measure.warmup_ns + self.measure.duration_ns);
        let mut number: u64 = 0;
        for client in &group.clients {
            for _ in 0..client.connections {
                // Each has its own sequence, whatever the others draw.
                let mut rng = SplitMix64::new(self.seed ^ ((to.len() as u64 + 1) << 20));
                let seed = rng.next_u64();
                // Spread evenly, and within its part anywhere: seeds differ though nothing else may be random.
                let part = group.start_spread_ns / total.max(1);
                let offset = part * number + rng.next_u64() % part.max(1);
                to.push(Conversation {
                    client: client.client,
                    server: client.server,
                    request: request.clone(),
                    response: response.clone(),
                    requests_per_connection: group.requests_per_connection,
                    arrival: arrival(&group.arrival),
                    start: at(group.start_ns + offset),
                    until: Some(until),
                    count: group.count,
                    seed,
                    service: Duration::from_nanos(group.service_ns),
                });
                number += 1;
            }
        }
        Ok(())
    }
}

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

fn sizes(bins: &[SizeBin]) -> Option<Sizes> {
    let bin = |b: &SizeBin| netacc_rpc::SizeBin { weight: b.weight, min_bytes: b.min_bytes, max_bytes: b.max_bytes };
    Sizes::new(bins.iter().map(bin).collect())
}

fn pause(pause: Pause) -> netacc_rpc::Pause {
    let mean = Duration::from_nanos(pause.mean_ns);
    match pause.exponential {
        true => netacc_rpc::Pause::Exponential(mean),
        false => netacc_rpc::Pause::Fixed(mean),
    }
}

fn arrival(arrival: &Arrival) -> netacc_rpc::Arrival {
    match arrival {
        Arrival::Closed { depth, think } => netacc_rpc::Arrival::Closed { depth: *depth, think: pause(*think) },
        Arrival::Open { interval } => netacc_rpc::Arrival::Open { interval: pause(*interval) },
        Arrival::Trace { requests } => {
            let recorded = |(ns, request_bytes, response_bytes): &(u64, u32, u32)| Recorded {
                at: at(*ns),
                request_bytes: *request_bytes,
                response_bytes: *response_bytes,
            };
            netacc_rpc::Arrival::Trace(requests.iter().map(recorded).collect())
        }
    }
}

fn nic_config(nic: &Nic, line_rate_bps: u64) -> NicConfig {
    let ns = Duration::from_nanos;
    let (costs, commands) = (&nic.costs, &nic.commands);
    NicConfig {
        mtu_bytes: nic.mtu_bytes,
        line_rate_bps,
        recovery: if nic.selective_repeat { Recovery::SelectiveRepeat } else { Recovery::GoBackN },
        ack_interval: nic.ack_interval,
        retry_timeout: ns(nic.retry_timeout_ns),
        retry_count: nic.retry_count,
        rnr_pause: ns(nic.rnr_pause_ns),
        rnr_retry: nic.rnr_retry,
        no_receive: if nic.no_receive_is_fatal { NoReceive::Fatal } else { NoReceive::Retry },
        max_in_flight: nic.max_in_flight,
        rate: rate(&nic.rate),
        notification_interval: ns(nic.notification_interval_ns),
        report_flushes: nic.report_flushes,
        max_qp: nic.max_qp,
        max_send_wr: nic.max_send_wr,
        max_recv_wr: nic.max_recv_wr,
        context_cache_entries: nic.context_cache_entries as usize,
        region_cache_entries: nic.region_cache_entries as usize,
        receive_buffer_packets: nic.receive_buffer_packets as usize,
        costs: rnic::Costs {
            doorbell: ns(costs.doorbell_ns),
            request_fetch: ns(costs.request_fetch_ns),
            payload_fetch: ns(costs.payload_fetch_ns),
            transmit_packet: ns(costs.transmit_packet_ns),
            receive_packet: ns(costs.receive_packet_ns),
            context_miss: ns(costs.context_miss_ns),
            region_miss: ns(costs.region_miss_ns),
            placement: ns(costs.placement_ns),
            completion: ns(costs.completion_ns),
            interrupt: ns(costs.interrupt_ns),
        },
        commands: rnic::CommandTimes {
            create_qp: ns(commands.create_qp_ns),
            connect_qp: ns(commands.connect_qp_ns),
            destroy_qp: ns(commands.destroy_qp_ns),
            register: ns(commands.register_ns),
            register_mib: ns(commands.register_mib_ns),
            deregister: ns(commands.deregister_ns),
        },
        ..NicConfig::ideal(line_rate_bps)
    }
}

fn rate(rate: &Rate) -> RateConfig {
    let ns = Duration::from_nanos;
    match rate {
        Rate::Unlimited {} => RateConfig::Unlimited,
        Rate::FixedWindow { bytes } => RateConfig::FixedWindow { bytes: *bytes },
        Rate::Dcqcn(Dcqcn {
            gain_shift,
            alpha_interval_ns,
            decrease_interval_ns,
            increase_interval_ns,
            increase_bytes,
            fast_recovery_steps,
            keeps_target,
            additive_bps,
            hyper_bps,
            min_rate_bps,
        }) => RateConfig::Dcqcn(DcqcnConfig {
            gain_shift: *gain_shift,
            alpha_interval: ns(*alpha_interval_ns),
            decrease_interval: ns(*decrease_interval_ns),
            increase_interval: ns(*increase_interval_ns),
            increase_bytes: *increase_bytes,
            fast_recovery_steps: *fast_recovery_steps,
            keeps_target: *keeps_target,
            additive_bps: *additive_bps,
            hyper_bps: *hyper_bps,
            min_rate_bps: *min_rate_bps,
        }),
    }
}
