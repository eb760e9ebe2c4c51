//! The control protocol: one JSON object a line in, one a line out. `README.md` describes it.

use std::collections::BTreeSet;
use std::time::Duration;

use netacc_device::Instant;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::events::AsyncEvent;
use crate::fabric::Fabric;
use crate::host::Host;
use crate::settings::{Completes, EmptyReceiveQueue, Flushes, Settings};
use crate::wire::modelled::{WireSettings, MILLION};

/// Far beyond every device, and far from where numbers overflow.
const MAX_RATE_GBIT: f64 = 10_000.0;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Set(Box<Change>),
    Get(Query),
    Fault(Fault),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Query {
    Counters,
    Settings,
    QueuePairs,
}

/// Absent settings stay as they are.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Change {
    /// Absent: all functions.
    function: Option<usize>,
    completes: Option<Completes>,
    empty_receive_queue: Option<EmptyReceiveQueue>,
    flushes: Option<Flushes>,
    stall_transmit: Option<bool>,
    stall_receive: Option<bool>,
    /// 0: none.
    retry_limit_ms: Option<u64>,
    command_mute: Option<bool>,
    command_delay_us: Option<u64>,
    create_qp_us: Option<u64>,
    connect_qp_us: Option<u64>,
    destroy_qp_us: Option<u64>,
    register_us: Option<u64>,
    register_mib_us: Option<u64>,
    deregister_us: Option<u64>,
    failing_commands: Option<Vec<CommandNumber>>,
    lose_interrupts: Option<u64>,
    duplicate_interrupts: Option<bool>,
    qp_blocks: Option<u16>,
    log_max_cqe: Option<u8>,
    log_max_recv_wr: Option<u8>,
    log_max_mr_size: Option<u8>,
    atomics: Option<bool>,
    firmware_patch: Option<u8>,
    /// From 0 to 1, as are the other shares.
    loss: Option<f64>,
    duplicate: Option<f64>,
    delay_us: Option<u64>,
    /// 0: without a limit.
    rate_gbit: Option<f64>,
    mtu_bytes: Option<u32>,
    retry_timeout_us: Option<u64>,
    retry_count: Option<u8>,
}

/// As "submodule.opcode".
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct CommandNumber(u8, u8);

impl TryFrom<String> for CommandNumber {
    type Error = String;

    fn try_from(text: String) -> Result<CommandNumber, String> {
        let parts =
            text.split_once('.').and_then(|(module, number)| Some((module.parse().ok()?, number.parse().ok()?)));
        parts
            .map(|(module, number)| CommandNumber(module, number))
            .ok_or(format!("{text:?} is no command: 0.1, 1.4, ..."))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    function: usize,
    event: AsyncEvent,
    /// Absent: all queues of the event's kind.
    qp: Option<u32>,
    cq: Option<u32>,
}

/// The reason why a request was not executed.
#[derive(Debug, thiserror::Error)]
enum ControlError {
    #[error("{0}")]
    Syntax(#[from] serde_json::Error),
    #[error("there is no function {0}")]
    Function(usize),
    #[error("cq_error takes \"cq\", all other events take \"qp\"")]
    Target,
    #[error("function {0} has no such queue")]
    Queue(usize),
    #[error("{0} is out of range")]
    Range(&'static str),
}

/// Executes a request; the answer is one line without its end.
pub fn handle_line<H: Host>(fabric: &mut Fabric<H>, now: Instant, line: &str) -> String {
    let answer = serde_json::from_str(line).map_err(ControlError::from).and_then(|request| match request {
        Request::Set(change) => set(fabric, now, &change),
        Request::Get(query) => Ok(get(fabric, &query)),
        Request::Fault(fault) => inject(fabric, &fault),
    });
    answer.unwrap_or_else(|error| json!({ "error": error.to_string() })).to_string()
}

fn set<H: Host>(fabric: &mut Fabric<H>, now: Instant, change: &Change) -> Result<Value, ControlError> {
    let functions = match change.function {
        Some(function) if function >= fabric.len() => return Err(ControlError::Function(function)),
        Some(function) => function..function + 1,
        None => 0..fabric.len(),
    };
    let most = |value: Option<u8>, most: u8, name| match value {
        Some(value) if value > most => Err(ControlError::Range(name)),
        _ => Ok(()),
    };
    most(change.log_max_cqe, 24, "log_max_cqe")?;
    most(change.log_max_recv_wr, 15, "log_max_recv_wr")?;
    most(change.log_max_mr_size, 63, "log_max_mr_size")?;
    if change.qp_blocks.is_some_and(|blocks| blocks == 0 || blocks > 511) {
        return Err(ControlError::Range("qp_blocks"));
    }
    let wire = change.wire(fabric.wire_settings())?;
    fabric.set_wire(wire);
    for function in functions {
        fabric.change(now, function, |settings| change.apply(settings));
    }
    Ok(json!({ "ok": true }))
}

impl Change {
    fn wire(&self, settings: &WireSettings) -> Result<WireSettings, ControlError> {
        let share = |value: Option<f64>, now: u32, name| match value {
            None => Ok(now),
            Some(value) if (0.0..=1.0).contains(&value) => Ok((value * f64::from(MILLION)).round() as u32),
            Some(_) => Err(ControlError::Range(name)),
        };
        let rate_bps = match self.rate_gbit {
            None => settings.rate_bps,
            Some(rate) if (0.0..=MAX_RATE_GBIT).contains(&rate) => (rate * 1e9).round() as u64,
            Some(_) => return Err(ControlError::Range("rate_gbit")),
        };
        let mtu_bytes = self.mtu_bytes.unwrap_or(settings.mtu_bytes);
        if !(256..=65536).contains(&mtu_bytes) {
            return Err(ControlError::Range("mtu_bytes"));
        }
        if self.retry_timeout_us == Some(0) {
            return Err(ControlError::Range("retry_timeout_us"));
        }
        Ok(WireSettings {
            loss_ppm: share(self.loss, settings.loss_ppm, "loss")?,
            duplicate_ppm: share(self.duplicate, settings.duplicate_ppm, "duplicate")?,
            delay: self.delay_us.map_or(settings.delay, Duration::from_micros),
            rate_bps,
            mtu_bytes,
            retry_timeout: self.retry_timeout_us.map_or(settings.retry_timeout, Duration::from_micros),
            retry_count: self.retry_count.unwrap_or(settings.retry_count),
        })
    }

    fn apply(&self, settings: &mut Settings) {
        fn put<T: Clone>(to: &mut T, value: &Option<T>) {
            if let Some(value) = value {
                to.clone_from(value);
            }
        }
        let time = |to: &mut Duration, us: Option<u64>| put(to, &us.map(Duration::from_micros));
        put(&mut settings.completes, &self.completes);
        put(&mut settings.empty_receive_queue, &self.empty_receive_queue);
        put(&mut settings.flushes, &self.flushes);
        put(&mut settings.stall_transmit, &self.stall_transmit);
        put(&mut settings.stall_receive, &self.stall_receive);
        let limit = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
        put(&mut settings.retry_limit, &self.retry_limit_ms.map(limit));
        put(&mut settings.command_mute, &self.command_mute);
        time(&mut settings.command_delay, self.command_delay_us);
        let times = &mut settings.command_times;
        time(&mut times.create_queue_pair, self.create_qp_us);
        time(&mut times.connect_queue_pair, self.connect_qp_us);
        time(&mut times.destroy_queue_pair, self.destroy_qp_us);
        time(&mut times.register_memory, self.register_us);
        time(&mut times.register_per_mib, self.register_mib_us);
        time(&mut times.deregister_memory, self.deregister_us);
        if let Some(commands) = &self.failing_commands {
            settings.failing_commands =
                commands.iter().map(|CommandNumber(module, number)| (*module, *number)).collect::<BTreeSet<_>>();
        }
        put(&mut settings.lose_interrupts, &self.lose_interrupts);
        put(&mut settings.duplicate_interrupts, &self.duplicate_interrupts);
        let limits = &mut settings.limits;
        put(&mut limits.qp_blocks, &self.qp_blocks);
        put(&mut limits.log_max_cqe, &self.log_max_cqe);
        put(&mut limits.log_max_recv_wr, &self.log_max_recv_wr);
        put(&mut limits.log_max_mr_size, &self.log_max_mr_size);
        put(&mut limits.atomics, &self.atomics);
        put(&mut limits.firmware_patch, &self.firmware_patch);
    }
}

fn get<H: Host>(fabric: &Fabric<H>, query: &Query) -> Value {
    let each = |value: &dyn Fn(usize) -> Value| (0..fabric.len()).map(value).collect::<Vec<_>>();
    let functions = match query {
        Query::Counters => each(&|function| json!(fabric.counters(function))),
        Query::Settings => each(&|function| json!(View::new(fabric.settings(function)))),
        Query::QueuePairs => each(&|function| json!(fabric.queue_pairs(function))),
    };
    match query {
        Query::Settings => json!({ "functions": functions, "wire": WireView::new(fabric.wire_settings()) }),
        Query::Counters | Query::QueuePairs => json!({ "functions": functions }),
    }
}

/// The same for the wire.
#[derive(Serialize)]
struct WireView {
    loss: f64,
    duplicate: f64,
    delay_us: u128,
    rate_gbit: f64,
    mtu_bytes: u32,
    retry_timeout_us: u128,
    retry_count: u8,
}

impl WireView {
    fn new(settings: &WireSettings) -> WireView {
        WireView {
            loss: f64::from(settings.loss_ppm) / f64::from(MILLION),
            duplicate: f64::from(settings.duplicate_ppm) / f64::from(MILLION),
            delay_us: settings.delay.as_micros(),
            rate_gbit: settings.rate_bps as f64 / 1e9,
            mtu_bytes: settings.mtu_bytes,
            retry_timeout_us: settings.retry_timeout.as_micros(),
            retry_count: settings.retry_count,
        }
    }
}

/// Settings, by the names under which they are set.
#[derive(Serialize)]
struct View {
    completes: Completes,
    empty_receive_queue: EmptyReceiveQueue,
    flushes: Flushes,
    stall_transmit: bool,
    stall_receive: bool,
    retry_limit_ms: u128,
    command_mute: bool,
    command_delay_us: u128,
    create_qp_us: u128,
    connect_qp_us: u128,
    destroy_qp_us: u128,
    register_us: u128,
    register_mib_us: u128,
    deregister_us: u128,
    failing_commands: Vec<String>,
    lose_interrupts: u64,
    duplicate_interrupts: bool,
    qp_blocks: u16,
    log_max_cqe: u8,
    log_max_recv_wr: u8,
    log_max_mr_size: u8,
    atomics: bool,
    firmware_patch: u8,
}

impl View {
    fn new(settings: &Settings) -> View {
        let Settings { limits, command_times: times, .. } = settings;
        View {
            completes: settings.completes,
            empty_receive_queue: settings.empty_receive_queue,
            flushes: settings.flushes,
            stall_transmit: settings.stall_transmit,
            stall_receive: settings.stall_receive,
            retry_limit_ms: settings.retry_limit.map_or(0, |limit| limit.as_millis()),
            command_mute: settings.command_mute,
            command_delay_us: settings.command_delay.as_micros(),
            create_qp_us: times.create_queue_pair.as_micros(),
            connect_qp_us: times.connect_queue_pair.as_micros(),
            destroy_qp_us: times.destroy_queue_pair.as_micros(),
            register_us: times.register_memory.as_micros(),
            register_mib_us: times.register_per_mib.as_micros(),
            deregister_us: times.deregister_memory.as_micros(),
            failing_commands: settings
                .failing_commands
                .iter()
                .map(|(module, number)| format!("{module}.{number}"))
                .collect(),
            lose_interrupts: settings.lose_interrupts,
            duplicate_interrupts: settings.duplicate_interrupts,
            qp_blocks: limits.qp_blocks,
            log_max_cqe: limits.log_max_cqe,
            log_max_recv_wr: limits.log_max_recv_wr,
            log_max_mr_size: limits.log_max_mr_size,
            atomics: limits.atomics,
            firmware_patch: limits.firmware_patch,
        }
    }
}

fn inject<H: Host>(fabric: &mut Fabric<H>, fault: &Fault) -> Result<Value, ControlError> {
    let function = fault.function;
    if function >= fabric.len() {
        return Err(ControlError::Function(function));
    }
    let numbers = match (fault.event, fault.qp, fault.cq) {
        (AsyncEvent::CqError, None, Some(cq)) => vec![cq],
        (AsyncEvent::CqError, None, None) => fabric.completion_queues(function),
        (AsyncEvent::CqError, ..) | (_, _, Some(_)) => return Err(ControlError::Target),
        (_, Some(qp), None) => vec![qp],
        (_, None, None) => fabric.queue_pairs(function),
    };
    for number in &numbers {
        if !fabric.inject(function, fault.event, *number) {
            return Err(ControlError::Queue(function));
        }
    }
    Ok(json!({ "ok": true, "queues": numbers.len() }))
}
