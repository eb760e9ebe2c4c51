//! Histograms of latency, from short traces.
//!
//! Between two traces the processes record nothing. The histograms grow until the exporter ends; those of a process end with it.
//! Processes choose the ports and reasons in their events, so the number of histograms is bounded.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use netacc_proto::Reason;
use netacc_trace::events::SavedWindow;
use netacc_trace::message::{Message, Messages, Path, Process, Window};
use netacc_trace::request::requests;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{exponential_buckets, Histogram};
use prometheus_client::registry::{Registry, Unit};

use super::metrics::Labels;
use crate::ss::accelerated;
use crate::trace::capture::{capture, Plan};

/// Histograms of each kind, at most: further ones are left out. Arbitrary.
const MOST: usize = 1000;
/// The upper bound of the first bucket, in seconds. Each bucket is twice as wide as the one before.
const SHORTEST: f64 = 250e-9;
/// Up to 131 milliseconds.
const BUCKETS: u16 = 20;

/// The histograms so far.
#[derive(Default)]
pub(super) struct Latency {
    messages: Histograms,
    requests: Histograms,
    /// Messages that did not end in their window.
    cut: Counter,
    /// Events that were overwritten before they were read.
    lost: Counter,
}

/// One kind of histogram, by labels.
struct Histograms {
    family: Family<Labels, Histogram, fn() -> Histogram>,
    known: Mutex<BTreeSet<Labels>>,
}

impl Default for Histograms {
    fn default() -> Histograms {
        let empty: fn() -> Histogram = || Histogram::new(exponential_buckets(SHORTEST, 2.0, BUCKETS));
        Histograms { family: Family::new_with_constructor(empty), known: Mutex::default() }
    }
}

impl Histograms {
    fn observe(&self, labels: Labels, nanoseconds: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MOST || known.contains(&labels) {
            self.family.get_or_create(&labels).observe(nanoseconds as f64 / 1e9);
            known.insert(labels);
        }
    }

    fn keep_only(&self, alive: &BTreeSet<String>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|labels| {
            let keep = labels.iter().any(|(name, value)| *name == "pid" && alive.contains(value));
            if !keep {
                self.family.remove(labels);
            }
            keep
        });
    }
}

impl Latency {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "From a call to send until the receiving program has the last byte, of traced messages";
        registry.register_with_unit("message", help, Unit::Seconds, self.messages.family.clone());
        let help = "From a client's request until it has the answer, of traced messages";
        registry.register_with_unit("request", help, Unit::Seconds, self.requests.family.clone());
        let help = "Traced messages that did not end in their window, and are in no histogram";
        registry.register("cut_messages", help, self.cut.clone());
        registry.register("lost_trace_events", "Events of traces that were lost", self.lost.clone());
    }

    /// Traces all accelerated processes, for one window.
    pub(super) fn trace(&self, window: Duration) {
        let found = accelerated().unwrap_or_default();
        self.keep_only(&found.iter().map(|(pid, _)| pid.to_string()).collect());
        let found = found.into_iter().map(|(pid, program)| Process { pid, program }).collect();
        let plan = Plan {
            duration: window,
            window,
            every: Duration::from_nanos(1),
            progress: false,
            patience: Duration::ZERO,
        };
        // Without a process there is nothing to trace; one that ends meanwhile, or has another trace, may be there the next
        // time.
        let Ok(captured) = capture(found, plan, &|_| Ok(()), &|| false) else { return };
        let windows: Vec<Window> = captured.trace.windows.into_iter().map(SavedWindow::counted).collect();
        self.lost.inc_by(captured.lost);
        self.add(&captured.trace.processes, &Messages::of(&windows));
    }

    fn keep_only(&self, alive: &BTreeSet<String>) {
        self.messages.keep_only(alive);
        self.requests.keep_only(alive);
    }

    fn add(&self, processes: &[Process], messages: &Messages) {
        self.cut.inc_by(messages.cut);
        for message in &messages.messages {
            let labels = labels(processes, message.sender.process, message);
            self.messages.observe(labels, message.stages.total());
        }
        for request in requests(&messages.messages) {
            let labels = labels(processes, request.answer.sender.process, request.answer);
            self.requests.observe(labels, request.total());
        }
    }
}

/// The labels of a message, with those of one of the processes.
fn labels(processes: &[Process], process: usize, message: &Message) -> Labels {
    let (pid, program) = processes.get(process).map_or((0, ""), |process| (process.pid, process.program.as_str()));
    let service = if message.sender.opener { message.receiver.port } else { message.sender.port };
    let (path, reason) = match message.path {
        Path::Link => ("link", ""),
        Path::Anchor(reason) => ("tcp", Reason::from_code(reason).as_str()),
    };
    vec![
        ("pid", pid.to_string()),
        ("program", program.to_owned()),
        ("port", service.to_string()),
        ("path", path.to_owned()),
        ("reason", reason.to_owned()),
    ]
}

/// Traces in a thread of its own, for as long as the program runs.
pub(super) fn start(latency: Arc<Latency>, every: Duration, window: Duration) -> std::io::Result<()> {
    let endless = move || loop {
        latency.trace(window);
        std::thread::sleep(every);
    };
    std::thread::Builder::new().name("latency".into()).spawn(endless).map(drop)
}

#[cfg(test)]
mod tests {
    use netacc_trace::message::Party;
    use netacc_trace::stage::{Stage, Stages};

    use super::*;
    use crate::exporter::metrics;

    fn message(from: usize, ports: [u16; 2], path: Path, start: u64, duration: u64) -> Message {
        let party = |process, port| Party { process, port, opener: port >= 9000, ..Party::default() };
        let mut stages = Stages::default();
        stages.add(Stage::Wire, duration);
        Message {
            window: 0,
            connection: 1,
            sender: party(from, ports[0]),
            receiver: party(1 - from, ports[1]),
            path,
            length: 1,
            start,
            stages,
            hold: None,
        }
    }

    fn processes() -> Vec<Process> {
        [(7, "client"), (8, "server")].map(|(pid, program)| Process { pid, program: program.into() }).into()
    }

    // Breaks if the port of a request were the client's, or a request's time that of one message.
    #[test]
    fn messages_and_requests_are_counted_by_service() {
        let latency = Latency::default();
        let messages = vec![
            message(0, [9000, 6379], Path::Link, 0, 400),
            message(1, [6379, 9000], Path::Anchor(Reason::Shared as u16), 1000, 600),
        ];
        latency.add(&processes(), &Messages { messages, cut: 3 });
        let page = metrics::encode(&[], |registry| latency.register(registry)).expect("memory");
        for line in [
            r#"netacc_message_seconds_bucket{le="2.5e-7",pid="7",program="client",port="6379",path="link",reason=""} 0"#,
            r#"netacc_message_seconds_bucket{le="5e-7",pid="7",program="client",port="6379",path="link",reason=""} 1"#,
            r#"netacc_message_seconds_count{pid="8",program="server",port="6379",path="tcp",reason="shared"} 1"#,
            r#"netacc_request_seconds_sum{pid="8",program="server",port="6379",path="tcp",reason="shared"} 0.0000016"#,
            "netacc_cut_messages_total 3",
        ] {
            assert!(page.lines().any(|got| got == line), "{line}\n{page}");
        }
        latency.keep_only(&BTreeSet::from(["8".to_owned()]));
        let page = metrics::encode(&[], |registry| latency.register(registry)).expect("memory");
        let has = |program: &str| page.contains(&format!("program=\"{program}\""));
        assert!(!has("client") && has("server"), "{page}");
    }

    // Breaks if a process could fill the exporter's memory by the ports in its events.
    #[test]
    fn the_number_of_histograms_is_bounded() {
        let latency = Latency::default();
        let messages = (0..2000).map(|port| message(0, [9000, port], Path::Link, 0, 1)).collect();
        latency.add(&processes(), &Messages { messages, cut: 0 });
        let page = metrics::encode(&[], |registry| latency.register(registry)).expect("memory");
        let counts = page.lines().filter(|line| line.starts_with("netacc_message_seconds_count"));
        assert_eq!(counts.count(), MOST);
    }
}
