//! `netacc bench noise`: what keeps processors from their work, by the "selfish detour" benchmark.
//!
//! A thread on each processor does the same again and again, and reads the clock each time. Where two readings are further apart than
//! usual by more than a threshold, something else had the processor: a tick, an interrupt, another thread, the hypervisor. Source:
//! P. Beckman, K. Iskra, K. Yoshii, S. Coghlan, A. Nataraj, "Benchmarking the effects of operating system interference on
//! extreme-scale parallel machines", Cluster Computing 11 (2008); Linux' own tracer `osnoise` measures the same way.
//!
//! By default the threads do nothing else. With [`Work::Tcp`] each sends messages to itself over the loopback, so that the kernel also
//! has its work for programs with connections: softirqs, and threads that free memory later.
//!
//! Before that, each thread copies within the first cache: how fast the processors are now. Where a core has two hardware threads, and
//! a virtual machine has one of them, a copy takes twice as long while another machine works on the other one. Nothing else here tells.
//!
//! How far apart the processors are is seen before that ([`distance`]).

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::Pid;
use serde_json::{json, Value};

use super::args::{NoiseArgs, Work};
use super::distance;
use super::error::BenchError;
use super::machine::Machine;
use super::processors::{allowed, keep_on, ns};
use super::recording;
use super::report;
use super::rounds::progress_bar;
use crate::record::{Draft, RecordError, Table};

/// Detours that are kept of a processor: one each microsecond of 100 ms. More are a threshold that is too low.
const MOST_DETOURS: usize = 100_000;

/// Bytes of a copy that tells how fast a processor is: both buffers fit into the first cache.
const COPIED: usize = 16 * 1024;

/// How often such a copy is timed, and how many copies are timed together. Arbitrary: a millisecond in all.
const COPY_SAMPLES: usize = 401;
const COPIES: u64 = 20;

/// Bytes of a message to itself, and of the answer. Arbitrary: a value of `netacc bench redis`, and Redis' answer.
const MESSAGE: usize = 512;
const ANSWER: usize = 5;

/// Turns before the first that counts. Arbitrary: the caches have all of it.
const WARM_TURNS: usize = 1000;

/// Times of turns that are told apart, in nanoseconds; longer ones count as this. Arbitrary: ten times a turn over TCP.
const LONGEST_USUAL_NS: usize = 1 << 16;

/// Steps of the progress bar.
const STEPS: u32 = 20;

/// Runs `netacc bench noise`.
pub(crate) fn run(args: &NoiseArgs) -> Result<(), BenchError> {
    report::check_directory(&args.json)?;
    let draft = args.record.as_deref().map(Draft::begin).transpose()?;
    let machine = Machine::here();
    let threshold_ns = args.threshold_ns.unwrap_or(args.work.threshold_ns());
    let processors = allowed().map_err(|errno| BenchError::io("sched_getaffinity")(errno.into()))?;
    let transfers =
        distance::transfers_ns(&processors).map_err(|errno| BenchError::io("sched_setaffinity")(errno.into()))?;
    let found = watch_all(args, Duration::from_nanos(threshold_ns), &processors)
        .map_err(BenchError::io("watching the processors"))?;
    if let Some((processor, _)) = processors.iter().zip(&found).find(|(_, watched)| watched.is_full) {
        let text =
            format!("--threshold-ns: processor {processor} has more than {MOST_DETOURS} detours; take a higher one");
        return Err(BenchError::Usage(text));
    }
    let of_processor = |((processor, watched), transfer_ns): ((&usize, &Watched), &Option<u64>)| json!({"processor": processor, "seconds": watched.seconds, "reading_ns": watched.least_ns, "usual_ns": watched.usual_ns, "copy_ns": watched.copy_ns, "transfer_ns": transfer_ns, "detours_ns": watched.detours});
    let each: Vec<Value> = processors.iter().zip(&found).zip(&transfers).map(of_processor).collect();
    let params = json!({"work": args.work.name(), "seconds": args.seconds, "threshold_ns": threshold_ns});
    let object = json!({"bench": "noise", "params": &params, "machine": &machine, "processors": each});
    if let Some(draft) = draft {
        let mut header = recording::header("netacc bench noise", &machine, params);
        header.tables.push(detours(&draft, &processors, &found)?);
        recording::finish(draft, header, &object)?;
    }
    report::write_object(&object, &args.json)
}

/// Watches all processors at once.
fn watch_all(args: &NoiseArgs, threshold: Duration, processors: &[usize]) -> io::Result<Vec<Watched>> {
    let length = Duration::from_secs_f64(args.seconds);
    let together = Barrier::new(processors.len() + 1);
    thread::scope(|scope| {
        let start = |processor: usize| {
            let together = &together;
            scope.spawn(move || {
                let ready = keep_on(Pid::from_raw(0), processor).map_err(io::Error::from);
                let ready = ready.and_then(|()| args.work.begin());
                together.wait();
                watch(length, threshold, ready?)
            })
        };
        let threads: Vec<_> = processors.iter().map(|processor| start(*processor)).collect();
        let progress = progress_bar(STEPS as usize, args.quiet);
        progress.set_message("reading the clock");
        together.wait();
        for _ in 0..STEPS {
            thread::sleep(length / STEPS);
            progress.inc(1);
        }
        progress.finish_and_clear();
        threads.into_iter().map(|thread| thread.join().expect("it cannot panic")).collect()
    })
}

/// A thread's work between two readings.
type Turn = Box<dyn FnMut() -> io::Result<()>>;

impl Work {
    /// The least detour that is none of the work's own. On a virtual machine, where a message to itself without an answer took 7.4 us,
    /// 800 to 7,000 a second took 1 to 2 us longer, 80 to 1,100 took 2 to 4, 5 to 28 took 4 to 8, and 45 to 93 took 8 to 16:
    /// interruptions begin there.
    fn threshold_ns(self) -> u64 {
        match self {
            Work::Clock => 1000,
            Work::Tcp => 4000,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Work::Clock => "clock",
            Work::Tcp => "tcp",
        }
    }

    /// Turns of this work, warm.
    fn begin(self) -> io::Result<Turn> {
        let mut turn: Turn = match self {
            Work::Clock => Box::new(|| Ok(())),
            Work::Tcp => {
                let mut connection = Loopback::connect()?;
                Box::new(move || connection.turn())
            }
        };
        for _ in 0..WARM_TURNS {
            turn()?;
        }
        Ok(turn)
    }
}

/// A connection of a thread to itself.
struct Loopback {
    near: TcpStream,
    far: TcpStream,
    epoll: Epoll,
    message: [u8; MESSAGE],
}

impl Loopback {
    fn connect() -> io::Result<Loopback> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        near.set_nodelay(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&far, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Loopback { near, far, epoll, message: [1; MESSAGE] })
    }

    /// Sends a message, waits for it, reads and answers it, and watches the connection anew as redis-benchmark does: the kernel frees
    /// later what that leaves behind, in a thread of its own. Without the answer TCP would wait for acknowledgements at times.
    fn turn(&mut self) -> io::Result<()> {
        self.near.write_all(&self.message)?;
        self.epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE)?;
        self.far.read_exact(&mut self.message)?;
        self.far.write_all(&self.message[..ANSWER])?;
        self.near.read_exact(&mut self.message[..ANSWER])?;
        self.epoll.delete(&self.far)?;
        Ok(self.epoll.add(&self.far, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }
}

/// The table of all detours.
fn detours(draft: &Draft, processors: &[usize], found: &[Watched]) -> Result<Table, RecordError> {
    let mut lines = draft.lines("detours.jsonl")?;
    for (processor, watched) in processors.iter().zip(found) {
        for (at_ns, length_ns) in &watched.detours {
            lines.add(&json!({"processor": processor, "at_ns": at_ns, "length_ns": length_ns}))?;
        }
    }
    Ok(lines.table("detours", "when each processor was taken from the thread on it, and for how long"))
}

/// A thread's view of its processor.
#[derive(Debug)]
struct Watched {
    seconds: f64,
    /// The least time between two readings.
    least_ns: u64,
    /// The median of these times.
    usual_ns: u64,
    /// The median time of a copy of [`COPIED`] bytes.
    copy_ns: u64,
    /// When each detour, or the turn with it, began, and how long it was.
    detours: Vec<(u64, u64)>,
    /// There were more.
    is_full: bool,
}

/// Copies, and then takes turns for so long.
fn watch(length: Duration, threshold: Duration, mut turn: impl FnMut() -> io::Result<()>) -> io::Result<Watched> {
    let copy_ns = median_copy_ns();
    let mut turns = Turns::new(ns(threshold));
    let start = Instant::now();
    let mut last = start;
    while last - start < length && !turns.is_full() {
        turn()?;
        let now = Instant::now();
        turns.add(ns(last - start), ns(now - last));
        last = now;
    }
    Ok(Watched {
        seconds: (last - start).as_secs_f64(),
        least_ns: turns.least_ns,
        usual_ns: turns.usual_ns(),
        copy_ns,
        is_full: turns.is_full(),
        detours: turns.detours(),
    })
}

/// The times of a thread's turns.
struct Turns {
    threshold_ns: u64,
    least_ns: u64,
    /// How many took each number of nanoseconds.
    counts: Vec<u64>,
    /// When each turn began that took longer than the least by more than the threshold, and how long it took. What is longer than
    /// the median by as much is among them.
    long: Vec<(u64, u64)>,
}

impl Turns {
    fn new(threshold_ns: u64) -> Turns {
        let counts = vec![0; LONGEST_USUAL_NS + 1];
        Turns { threshold_ns, least_ns: u64::MAX, counts, long: Vec::with_capacity(1024) }
    }

    fn is_full(&self) -> bool {
        self.long.len() == MOST_DETOURS
    }

    fn add(&mut self, begun_ns: u64, took_ns: u64) {
        self.least_ns = self.least_ns.min(took_ns);
        self.counts[usize::try_from(took_ns).unwrap_or(usize::MAX).min(LONGEST_USUAL_NS)] += 1;
        if took_ns - self.least_ns > self.threshold_ns {
            self.long.push((begun_ns, took_ns));
        }
    }

    /// The median.
    fn usual_ns(&self) -> u64 {
        let half = self.counts.iter().sum::<u64>().div_ceil(2);
        let mut below = 0;
        let reaches_half = |count: &u64| {
            below += count;
            below >= half
        };
        self.counts.iter().position(reaches_half).unwrap_or(0) as u64
    }

    /// When each detour began, and how much longer than usual its turn took.
    fn detours(&self) -> Vec<(u64, u64)> {
        let usual_ns = self.usual_ns();
        let longer = self.long.iter().map(|(begun_ns, took_ns)| (*begun_ns, took_ns.saturating_sub(usual_ns)));
        longer.filter(|(_, length_ns)| *length_ns > self.threshold_ns).collect()
    }
}

/// How long a copy takes within the first cache: the median.
fn median_copy_ns() -> u64 {
    let (from, mut to) = (vec![1u8; COPIED], vec![0u8; COPIED]);
    let mut times: Vec<u64> = (0..COPY_SAMPLES)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..COPIES {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            }
            ns(begun.elapsed()) / COPIES
        })
        .collect();
    times.sort_unstable();
    times[COPY_SAMPLES / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if a detour is missed, has the usual time in it, or a turn that varies counts as one.
    #[test]
    fn a_detour_is_what_a_turn_takes_longer_than_usual() {
        let mut turns = Turns::new(4_000);
        let times = [7_000, 7_400, 7_400, 7_500, 11_300, 11_401, 7_400, 8_000_000, 7_300];
        let mut begun = 0;
        for took in times {
            turns.add(begun, took);
            begun += took;
        }
        assert_eq!((turns.least_ns, turns.usual_ns()), (7_000, 7_400));
        assert_eq!(turns.detours(), [(40_600, 4_001), (59_401, 7_992_600)]);
        assert!(!turns.is_full());
    }

    /// Breaks if a threshold within the times of usual turns takes memory without limit.
    #[test]
    fn detours_are_bounded() {
        let mut turns = Turns::new(0);
        for turn in (0..).take_while(|turn| *turn <= MOST_DETOURS as u64) {
            assert!(!turns.is_full(), "{turn}");
            turns.add(turn * 10, 10 + turn.min(1));
        }
        assert!(turns.is_full());
    }

    /// Breaks if the time of a turn is not watched, or its error is lost.
    #[test]
    fn a_turn_that_is_kept_has_a_detour() {
        let kept = Duration::from_millis(50);
        for begin in [Work::Clock, Work::Tcp] {
            let (mut work, mut number) = (begin.begin().expect("a turn"), 0);
            let turn = || {
                number += 1;
                if number == 2 {
                    thread::sleep(kept);
                }
                work()
            };
            let seen = watch(kept * 4, Duration::from_millis(1), turn).expect("turns");
            let in_order = seen.detours.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0);
            assert!(in_order && 0 < seen.least_ns && seen.least_ns <= seen.usual_ns && seen.copy_ns > 0, "{seen:?}");
            let longest = seen.detours.iter().map(|(_, length_ns)| *length_ns).max().unwrap_or(0);
            assert!(longest >= 50_000_000 - seen.usual_ns, "{}: {longest}", begin.name());
        }
        let fails = watch(kept, kept, || Err(io::ErrorKind::ConnectionReset.into()));
        assert!(fails.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
    }
}
