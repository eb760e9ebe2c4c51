//! The time that peers take to answer, measured at the program's own calls. [`PathChoice`] compares these times.
//! [`bulk`](crate::bulk) measures streams without answers.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_config::{PathPolicy, PromotionConfig};
use netacc_device::{FourTuple, Instant};
use netacc_driver::{Path, PathChoice, Readiness, Verdict};
use parking_lot::Mutex;

use crate::bulk::{self, Run, Way};
use crate::os::clock::now;
use crate::os::inside::Inside;

/// Services that are measured, at most. Arbitrary; streams to further ones go onto links.
const MAX_SERVICES: usize = 1024;
/// On a link one answer of so many is measured, so that reading the clock does not slow the link down.
const ONE_OF: u32 = 8;

/// The services that this process has connected to.
pub struct Services {
    /// `None`: on this host.
    choices: Mutex<HashMap<SocketAddr, Option<Arc<Service>>>>,
    measured: bool,
    /// Promotion does not wait for anything.
    at_once: bool,
}

/// The choice for connections with requests and answers, and the one for connections with a long
/// transfer in one direction.
#[derive(Debug, Default)]
struct Service {
    answers: PathChoice,
    bulk: PathChoice,
    /// Links to it are shared memory although its address is another host's: it is in another container of this one. Nothing is
    /// measured any more.
    in_memory: AtomicBool,
}

impl Service {
    fn is_in_memory(&self) -> bool {
        self.in_memory.load(Ordering::Relaxed)
    }
}

impl Services {
    /// None so far.
    pub fn new(config: &PromotionConfig) -> Services {
        Services {
            choices: Mutex::default(),
            measured: config.path == PathPolicy::Measured,
            at_once: config.threshold() == 0,
        }
    }

    /// For a connection that this process has opened. `None` on one host, where a link is shared memory and the path
    /// is not chosen by measurement.
    pub fn answers(&self, tuple: &FourTuple) -> Option<Answers> {
        let remote = tuple.remote;
        if !self.measured || tuple.local.ip() == remote.ip() || remote.ip().is_loopback() {
            return None;
        }
        let mut choices = self.choices.lock();
        let known = choices.len();
        let service = match choices.entry(remote) {
            Entry::Occupied(service) => service.get().clone(),
            Entry::Vacant(_) if known >= MAX_SERVICES => None,
            Entry::Vacant(new) => new.insert((!is_own(remote.ip())).then(Arc::default)).clone(),
        }?;
        let (sent_at, answered) = (AtomicU64::new(0), AtomicU32::new(0));
        Some(Answers { service, at_once: self.at_once, sent_at, answered, run: Run::default() })
    }
}

/// Whether an address is one of this host's: binding another host's address fails.
fn is_own(ip: IpAddr) -> bool {
    let _inside = Inside::enter();
    UdpSocket::bind((ip, 0)).is_ok()
}

/// The measurements of one connection.
pub struct Answers {
    service: Arc<Service>,
    at_once: bool,
    /// When the last send returned, in nanoseconds, the lowest bit being the path; [`UNTIMED`] if its answer is not measured,
    /// and 0 if none is awaited.
    sent_at: AtomicU64,
    /// Answers on the link so far.
    answered: AtomicU32,
    run: Run,
}

const UNTIMED: u64 = u64::MAX;

impl Answers {
    /// Records that the program has sent so many bytes. Returns whether the stream is to leave its link.
    #[inline]
    pub fn record_sent(&self, now_at: Readiness, len: usize) -> bool {
        let Some(path) = path_of(now_at).filter(|_| !self.service.is_in_memory()) else {
            self.sent_at.store(0, Ordering::Relaxed);
            return false;
        };
        // Each send of a request, so that on either path the time counts from the last.
        let timed = path == Path::Anchor || self.answered.load(Ordering::Relaxed).is_multiple_of(ONE_OF);
        self.sent_at.store(if timed { stamp(now(), path) } else { UNTIMED }, Ordering::Relaxed);
        self.run.record(&self.service.bulk, (Way::Out, path), len, now)
    }

    /// Records that the program has received so many bytes. Returns whether the stream is to leave its link.
    #[inline]
    pub fn record_received(&self, now_at: Readiness, len: usize) -> bool {
        if self.service.is_in_memory() {
            return false;
        }
        let slower = path_of(now_at).is_some_and(|path| self.run.record(&self.service.bulk, (Way::In, path), len, now));
        self.record_answered(now_at) || slower
    }

    #[inline]
    fn record_answered(&self, now_at: Readiness) -> bool {
        if self.sent_at.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let sent_at = self.sent_at.swap(0, Ordering::Relaxed);
        let Some(path) = path_of(now_at) else { return false };
        if path == Path::Link {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        if sent_at == UNTIMED {
            return false;
        }
        let now = now();
        // Another thread may have taken it. A stream that has moved meanwhile gives no sample of either path.
        if sent_at == 0 || sent_at & 1 != stamp(now, path) & 1 {
            return false;
        }
        self.service.answers.record(path, now.saturating_since(Instant::from_nanos(sent_at)), now)
    }

    /// The medians over TCP and on the link, in nanoseconds, where known.
    pub fn medians_ns(&self) -> (Option<u64>, Option<u64>) {
        let nanos = |median: Duration| median.as_nanos() as u64;
        let (tcp, link) = self.service.answers.medians();
        (tcp.map(nanos), link.map(nanos))
    }

    /// Bytes a second in one direction over TCP and on the link, where known.
    pub fn bulk_bytes_per_s(&self) -> (Option<u64>, Option<u64>) {
        let (tcp, link) = self.service.bulk.medians();
        (tcp.map(bulk::bytes_per_s), link.map(bulk::bytes_per_s))
    }

    /// Its link is shared memory: as on one address of this host, the path is not chosen by measurement.
    pub fn end(&self) {
        self.service.in_memory.store(true, Ordering::Relaxed);
    }

    /// Whether the connection is to be promoted, after so many operations.
    pub fn judge(&self, operations: u32) -> Verdict {
        if self.service.is_in_memory() {
            return Verdict::Promote;
        }
        let now = now();
        let answers = self.service.answers.judge(if self.at_once { u32::MAX } else { operations }, now);
        match self.run.judge(&self.service.bulk, now) {
            Verdict::Measure if self.at_once => answers,
            Verdict::Promote => answers,
            other => other,
        }
    }
}

fn path_of(now_at: Readiness) -> Option<Path> {
    let kernel = Readiness::KERNEL_RX | Readiness::KERNEL_TX;
    match now_at & kernel {
        at if at == kernel => Some(Path::Anchor),
        at if at.is_empty() => Some(Path::Link),
        _ => None,
    }
}

fn stamp(at: Instant, path: Path) -> u64 {
    at.as_nanos() & !1 | u64::from(path == Path::Link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_config::Config;

    const ON_LINK: Readiness = Readiness::empty();

    fn services() -> Services {
        Services::new(&Config::default().promotion)
    }

    fn to(remote: &str) -> FourTuple {
        let address = |text: &str| text.parse().expect("an address");
        FourTuple { local: address("10.0.0.1:40000"), remote: address(remote) }
    }

    #[test]
    fn each_service_is_measured_by_itself_and_this_host_is_not() {
        let services = services();
        assert!(services.answers(&to("10.0.0.1:6379")).is_none());
        assert!(services.answers(&to("127.0.0.7:6379")).is_none());
        assert!(is_own("127.0.0.7".parse().expect("an address")) && !is_own("192.0.2.1".parse().expect("an address")));
        let [first, again, other] = ["10.0.0.2:6379", "10.0.0.2:6379", "10.0.0.2:6380"]
            .map(|remote| services.answers(&to(remote)).expect("another host"));
        assert!(Arc::ptr_eq(&first.service, &again.service));
        assert!(!Arc::ptr_eq(&first.service, &other.service));
    }

    #[test]
    fn a_pinned_path_is_not_measured_and_services_are_bounded() {
        let mut config = Config::default().promotion;
        config.path = PathPolicy::Link;
        assert!(Services::new(&config).answers(&to("10.0.0.2:1")).is_none());
        let services = services();
        let measured = (1..2000).filter(|port| services.answers(&to(&format!("10.0.0.2:{port}"))).is_some());
        assert_eq!(measured.count(), MAX_SERVICES);
    }

    /// Breaks if a stream between containers left shared memory because its first answers, before anyone spins, were slow.
    #[test]
    fn a_service_that_is_reached_by_shared_memory_is_not_measured() {
        let services = services();
        let answers = services.answers(&to("10.0.0.2:6379")).expect("another host");
        answers.end();
        let (kernel, now) = (Readiness::KERNEL_RX | Readiness::KERNEL_TX, services.answers(&to("10.0.0.2:6379")));
        let again = now.expect("another host");
        for path in [kernel, ON_LINK] {
            for _ in 0..1000 {
                assert!(!again.record_sent(path, 1) && !again.record_received(path, 1));
            }
        }
        assert_eq!(again.medians_ns(), (None, None));
        assert_eq!(again.judge(0), Verdict::Promote);
    }

    #[test]
    fn an_answer_counts_once_and_only_for_the_path_it_came_by() {
        let kernel = Readiness::KERNEL_RX | Readiness::KERNEL_TX;
        let answers = services().answers(&to("10.0.0.2:1")).expect("another host");
        let talk = |sent, received| {
            for _ in 0..1000 {
                answers.record_sent(sent, 1);
                answers.record_received(received, 1);
            }
            let (anchor, link) = answers.service.answers.medians();
            (anchor.is_some(), link.is_some())
        };
        assert_eq!(talk(kernel, ON_LINK), (false, false));
        assert_eq!(talk(kernel, Readiness::KERNEL_RX), (false, false));
        assert_eq!(talk(Readiness::KERNEL_TX, kernel), (false, false));
        for _ in 0..1000 {
            answers.record_received(kernel, 1);
        }
        assert_eq!(answers.service.answers.medians(), (None, None), "nothing was asked");
        assert_eq!(talk(kernel, kernel), (true, false));
        // The number of the anchor's samples that remain depends on which path was slower.
        assert!(talk(ON_LINK, ON_LINK).1);
    }

    // Breaks if requests of several writes take longer on the link than on the anchor only for when the clock is read.
    #[test]
    fn one_answer_of_eight_is_timed_from_the_last_send() {
        let answers = services().answers(&to("10.0.0.2:1")).expect("another host");
        let mut timed = 0;
        for _ in 0..80 {
            answers.record_sent(ON_LINK, 1);
            let between = now().as_nanos();
            answers.record_sent(ON_LINK, 1);
            let sent_at = answers.sent_at.load(Ordering::Relaxed);
            if sent_at != UNTIMED {
                timed += 1;
                assert!(sent_at | 1 >= between);
            }
            answers.record_received(ON_LINK, 1);
        }
        assert_eq!(timed, 10);
    }

    #[test]
    fn fast_connect_promotes_without_measurement() {
        let mut config = Config::default().promotion;
        config.fast_connect = true;
        let answers =
            |config: &PromotionConfig| Services::new(config).answers(&to("10.0.0.2:1")).expect("another host");
        assert_eq!(answers(&config).judge(1), Verdict::Promote);
        config.fast_connect = false;
        assert_eq!(answers(&config).judge(1), Verdict::Measure);
    }
}
