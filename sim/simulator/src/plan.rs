//! From a scenario to its hosts and conversations.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::Instant;
use netacc_host::{LoopKind, ProcessorConfig};
use netacc_modelled::HostConfig;
use netacc_rpc::{Conversation, Dependent, Received, Recorded, Run, RunConfig, Sizes, StackConfig, Tcp, Transport};

use crate::scenario::{
    self, Arrival, Calls, Datagrams, Group, Loop, Pause, Scenario, ScenarioError, SizeBin, Stack, Verb, Verbs,
};

impl Scenario {
    /// The hosts and their conversations, before the first request.
    ///
    /// # Errors
    /// A group that is not valid, or a host without queues.
    pub fn run(&self) -> Result<Run, ScenarioError> {
        let rates = self.host_rates();
        let host = |(number, rate): (usize, u64)| self.host(number as u32, rate);
        let hosts = rates.into_iter().enumerate().map(host).collect();
        let Stack { ring_bytes, message_bytes, streams_per_link, promote_after, .. } = self.stack;
        // As in the library: as many as the device has.
        let receive_depth = self.device.nic.receive_depth;
        let stack = StackConfig { ring_bytes, message_bytes, streams_per_link, receive_depth, promote_after };
        let mut conversations = Vec::new();
        for group in &self.groups {
            self.add_conversations(group, &mut conversations)?;
        }
        let tcp = match self.stack.tcp_buffer_bytes {
            0 => Tcp::Memory,
            bytes => Tcp::Simulated { buffer_bytes: bytes as usize },
        };
        let config = RunConfig { hosts, conversations, stack, tcp, sampled: true, traced: self.measure.stages };
        let invalid = "a group names a host that does not exist, has empty messages, or makes no request";
        Run::new(&config)?.ok_or_else(|| ScenarioError::Invalid(invalid.into()))
    }

    /// Whether a host is the server of a group.
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

    fn host(&self, number: u32, line_rate_bps: u64) -> HostConfig {
        let server = self.is_server(number);
        let mut host = HostConfig::roce(self.device.nic_config(line_rate_bps));
        host.name = "host".into();
        // Connections that last were made before the run.
        host.commands_from = at(self.measure.warmup_ns);
        let driver = &self.device.driver;
        host.memory_limit_bytes = driver.memory_limit_bytes;
        host.interrupts = self.device.interrupts(self.processors.as_ref().is_some_and(|p| p.costs.stack_thread));
        host.capabilities.max_inline = driver.max_inline_bytes;
        host.capabilities.rebind = driver.rebind;
        host.processor = self.processors.as_ref().map(|p| ProcessorConfig {
            cores: p.cores,
            threads: if server { p.server_threads } else { p.client_threads },
            loop_kind: match if server { p.server_loop } else { p.client_loop } {
                Loop::Turns => LoopKind::Turns,
                Loop::Rounds => LoopKind::Rounds,
                Loop::Batches => LoopKind::Batches,
                Loop::Deferred => LoopKind::Deferred,
            },
            seed: SplitMix64::new(self.seed ^ u64::from(number + 1) << 32).next_u64(),
            // Servers save.
            save_interval: if server { p.costs.save_interval } else { Duration::ZERO },
            ..p.costs.clone()
        });
        host
    }

    fn add_conversations(&self, group: &Group, to: &mut Vec<Conversation>) -> Result<(), ScenarioError> {
        let empty = || ScenarioError::Invalid(format!("group {}: lengths without weight, or of 0", group.name));
        let request = sizes(&group.request).ok_or_else(empty)?;
        let response = sizes(&group.response).ok_or_else(empty)?;
        let total: u64 = group.clients.iter().map(|c| u64::from(c.connections)).sum();
        let until = at(self.measure.warmup_ns + self.measure.duration_ns);
        let costs = group.costs.clone().map(Arc::new);
        let mut number: u64 = 0;
        let first = to.len() as u32;
        for client in &group.clients {
            for _ in 0..client.connections {
                // Each has its own sequence, so the draws of the others do not matter.
                let mut rng = SplitMix64::new(self.seed ^ ((to.len() as u64 + 1) << 20));
                let seed = rng.next_u64();
                // Spread evenly, and within its part anywhere: seeds differ though nothing else may be random.
                let part = group.start_spread_ns / total.max(1);
                let offset = part * number + rng.next_u64() % part.max(1);
                to.push(Conversation {
                    transport: transport(group),
                    promoted: group.promote,
                    calls: calls(group.calls),
                    costs: costs.clone(),
                    client: client.client,
                    server: client.server,
                    request: request.clone(),
                    response: response.clone(),
                    requests_per_connection: group.requests_per_connection,
                    arrival: arrival(&group.arrival, number as usize, first),
                    start: at(group.start_ns + offset),
                    until: Some(until),
                    count: group.count,
                    seed,
                    service: Duration::from_nanos(group.service_ns),
                    client_service: Duration::from_nanos(group.client_service_ns),
                    client_after_write: Duration::from_nanos(group.client_after_write_ns),
                    round_service: Duration::from_nanos(group.round_service_ns),
                    client_round_service: Duration::from_nanos(group.client_round_service_ns),
                    cold_service: Duration::from_nanos(group.cold_service_ns),
                    client_cold_service: Duration::from_nanos(group.client_cold_service_ns),
                });
                number += 1;
            }
        }
        Ok(())
    }
}

fn transport(group: &Group) -> Transport {
    match (group.verbs, group.datagrams) {
        (Some(Verbs { verb, answered }), _) => {
            let verb = match verb {
                Verb::Write => netacc_rpc::Verb::Write,
                Verb::Send => netacc_rpc::Verb::Send,
            };
            Transport::Verbs { verb, answered }
        }
        (None, Some(datagrams)) => Transport::Datagrams { answered: datagrams == Datagrams::Answered },
        (None, None) => Transport::Stream,
    }
}

fn calls(calls: Calls) -> netacc_rpc::Calls {
    match calls {
        Calls::Joined => netacc_rpc::Calls::Joined,
        Calls::Single => netacc_rpc::Calls::Single,
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

/// Of the connection with this number in its group, whose first conversation is `first`.
fn arrival(arrival: &Arrival, number: usize, first: u32) -> netacc_rpc::Arrival {
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
        Arrival::After { requests } => {
            let received = |(connection, requests): &(u32, u64)| Received {
                conversation: first + connection,
                requests: *requests,
            };
            let dependent = |of: &scenario::Dependent| Dependent {
                request_bytes: of.bytes,
                response_bytes: 1,
                after: of.after.iter().map(received).collect(),
            };
            netacc_rpc::Arrival::After(requests.get(number).into_iter().flatten().map(dependent).collect())
        }
        Arrival::Flows { flows } => {
            let recorded = |(ns, request_bytes): &(u64, u32)| Recorded {
                at: at(*ns),
                request_bytes: *request_bytes,
                response_bytes: 1,
            };
            netacc_rpc::Arrival::Trace(flows.get(number).map(recorded).into_iter().collect())
        }
    }
}
