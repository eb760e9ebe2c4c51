//! The processors of a host: cores that threads run on in turn.
//!
//! A thread waits for events. When one comes ([`Processors::wake`]) it becomes runnable: at once if it still polls, else
//! [`wake_up`](ProcessorConfig::wake_up) later. Runnable threads get cores in the order in which they became so
//! ([`Processors::poll_start`]); the caller sets how long its work takes ([`Processors::work`]), and polls for its end
//! ([`Processors::poll_done`]). Sans-IO like the NIC: called with the time, without callbacks.
//!
//! # Invariants
//! * At most `cores` threads run at a time, and none waits for a core while one is free.
//! * Threads do not interrupt each other's work: it takes microseconds, which no scheduler divides. The operating system's
//!   [interruptions](ProcessorConfig::noise) and [softirqs](Processors::softirq) do.
//! * Everything random comes from the seed, in integers. Costs that are constant take nothing from it.
//!
//! Not modelled: preferences of threads for cores, caches, frequencies, and a scheduler that moves a thread away from an interrupted
//! core. A thread that polls gives its core to one that has work, so polling costs counted time, but delays no other thread; and so does
//! a sleep.

#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::Instant;
use netacc_parameters::{parameters, Distribution};

mod datagram_queue;
mod event_loop;
mod interruptions;
mod saving;
mod stack_thread;

pub use datagram_queue::DatagramQueue;
pub use event_loop::{EventLoop, Found, LoopKind, Part, Step};
pub use saving::Saving;
pub use stack_thread::StackThread;

use interruptions::Interruptions;

parameters! {
    /// Processors of a host, and the costs of calls on them. By default calls cost nothing.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ProcessorConfig {
        /// How long a thread without work polls before it sleeps.
        spin: Duration = Duration::ZERO;
        /// From an event until a thread that polls sees it: the transfer of what it polls between the processors' caches.
        notice: Distribution = Distribution::ZERO;
        /// From an event until a sleeping thread runs: interrupt, scheduler, return of the call. No thread works meanwhile.
        wake_up: Distribution = Distribution::ZERO;
        /// A call that stays in the library: on a stream that is on a link.
        library_call: Distribution = Distribution::ZERO;
        /// Handing a message to the device, after its copy.
        post: Distribution = Distribution::ZERO;
        /// A call of the kernel: on a stream that is on TCP, and each sleep.
        system_call: Distribution = Distribution::ZERO;
        /// A core's time for a sleep, beside the call and the waker's part: putting the thread to sleep, and its return. What of that delays
        /// the thread is part of its wake-up: this only counts as the core's work.
        sleep: Distribution = Distribution::ZERO;
        /// How much longer a write takes that wakes a sleeping thread of its own machine: finding it, and the interrupt of an idle core.
        /// The sleeper has the bytes before, so this delays the writer only. Between machines an interrupt of the NIC wakes, and
        /// no writer pays. Only for a network that stands for the inside of one machine, as profiles of `netacc calibrate` assume.
        waker: Distribution = Distribution::ZERO;
        /// Copying 1024 bytes.
        copy_per_kib: Distribution = Distribution::ZERO;
        /// Bringing the stack's state of a connection into the caches, at each turn that finds it displaced by the states of others.
        cold: Distribution = Distribution::ZERO;
        /// Connections of a thread whose states the caches keep. With more the turns come in no order that caches foresee, so the
        /// share 1 - this / connections finds its state displaced; each turn pays that share. The default is arbitrary.
        warm_connections: u32 = 100, at least 1;
        /// Making and closing a connection, at each end, including its segments without data.
        connection: Distribution = Distribution::ZERO;
        /// Making a link, at each end: the time of the library's helper thread, without the device's own.
        link: Distribution = Distribution::ZERO;
        /// Taking a stream onto a link, at each end: the time of the helper thread.
        promotion: Distribution = Distribution::ZERO;
        /// The stack's work for one TCP segment that is sent or received.
        segment: Distribution = Distribution::ZERO;
        /// Bytes of such a segment; with segmentation offload (TSO) many times a packet's.
        segment_size_bytes: u32 = 1448, at least 1;
        /// Bytes of a received segment, of packets that receive offload (GRO) has joined; 0 for as many as of one that is sent.
        receive_segment_size_bytes: u32 = 0;
        /// The work for each received packet that receive offload does not save: the driver's, and joining.
        packet: Distribution = Distribution::ZERO;
        /// Bytes of payload of such a packet.
        packet_size_bytes: u32 = 1448, at least 1;
        /// The interrupt of a core does the work of received segments and packets of TCP before any thread has that core (softirq),
        /// and a program learns of the bytes after it. Else the thread does that reads them.
        softirq: bool = false;
        /// A thread of the stack does the work of segments, on a core of its own. Else the thread does that makes the call.
        stack_thread: bool = false;
        /// UDP datagrams that wait for a program at one socket, at most; more are dropped. The default is what Linux' buffer of
        /// 212,992 bytes (rmem_default) has of small ones, of 768 bytes each with what the kernel needs for them.
        datagram_queue: u32 = 277, at least 1;
        /// Between two ticks of a core's timer; 0 for none.
        tick_interval: Duration = Duration::ZERO;
        /// How long a tick keeps the core from a thread's work.
        tick: Distribution = Distribution::ZERO;
        /// The mean time, exponentially distributed, between other interruptions of a core: interrupts, the kernel's and others'
        /// work in the background; 0 for none.
        noise_interval: Duration = Duration::ZERO;
        /// How long one of them keeps the core.
        noise: Distribution = Distribution::ZERO;
        /// Between two saves of a server in the background, by the first of its threads (Redis' BGSAVE); 0 for none.
        save_interval: Duration = Duration::ZERO;
        /// How long the fork for a save keeps that thread.
        fork: Distribution = Distribution::ZERO;
        /// The processor time of a save's child.
        save: Duration = Duration::ZERO;
        /// How long the child has a core at a time. The default is Linux' least slice on eight and more processors.
        save_slice: Duration = Duration::from_millis(3), at least 1;
        /// Copying the page that a request is the first to write while a child saves, for each request that is served then.
        copy_on_write: Distribution = Distribution::ZERO;
    }
    beside {
        /// Cores; 0 for as many as there are threads.
        cores: u32 = 0;
        /// Threads of the process, which share its connections; at least 1.
        threads: u32 = 1;
        /// The order in which a thread of the process serves its connections.
        loop_kind: LoopKind = LoopKind::Turns;
        /// Decides what is random.
        seed: u64 = 0;
    }
}

impl ProcessorConfig {
    /// Processors that cost nothing.
    pub fn free() -> ProcessorConfig {
        ProcessorConfig::default()
    }

    /// Threads that do the program's work.
    fn workers(&self) -> usize {
        self.threads.max(1) as usize
    }

    /// The number of the thread that makes links in the background, after those that do the program's work. `None` if
    /// that takes no time, so that there is none.
    pub fn helper(&self) -> Option<u32> {
        let idle = self.link.is_zero() && self.promotion.is_zero();
        (!idle).then_some(self.workers() as u32)
    }

    /// The number of the child that saves, after all threads. `None` if the program does not save.
    pub fn saver(&self) -> Option<u32> {
        let threads = self.workers() + usize::from(self.helper().is_some());
        (!self.save_interval.is_zero()).then_some(threads as u32)
    }

    /// The share of turns that find their connection's state displaced, in millionths, with so many connections of the process.
    pub fn cold_ppm(&self, connections: u32) -> u32 {
        let each = connections.div_ceil(self.threads.max(1));
        let displaced = each.saturating_sub(self.warm_connections);
        // Below a million, since no more are displaced than there are.
        (u64::from(displaced) * 1_000_000 / u64::from(each.max(1))) as u32
    }

    /// The work of receiving so many bytes from TCP: their segments and packets.
    pub fn receiving(&self, bytes: u64, seed: u64) -> Duration {
        let received = Work { tcp_bytes: [bytes, 0], ..Work::default() };
        ProcessorConfig { softirq: false, ..self.clone() }.time(&received, seed)
    }

    /// The time that a core needs for work. The seed decides the random part of it: with the same seed, more work of a kind
    /// takes that much longer, and the rest as long.
    pub fn time(&self, work: &Work, seed: u64) -> Duration {
        let mut kinds = 0;
        let mut sum = |cost: &Distribution, count: u32| {
            kinds += 1;
            let mut random = SplitMix64::new(seed ^ kinds << 56);
            cost.sum(count, &mut || random.next_u64())
        };
        // Whole picoseconds a byte.
        let per_kib = sum(&self.copy_per_kib, 1).as_nanos();
        let copying = u128::from(work.bytes) * (per_kib * 1000 / 1024) / 1000;
        let [read, written] = work.tcp_bytes;
        let read = if self.softirq { 0 } else { read };
        let pieces = |bytes: u64, size: u32| bytes.div_ceil(u64::from(size.max(1)));
        let receive_size = match self.receive_segment_size_bytes {
            0 => self.segment_size_bytes,
            size => size,
        };
        let segments = pieces(read, receive_size) + pieces(written, self.segment_size_bytes);
        let (segments, packets) = match self.stack_thread {
            true => (0, 0),
            false => (segments + u64::from(work.datagrams), pieces(read, self.packet_size_bytes)),
        };
        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let part = |time: Duration, ppm: u32| time * ppm / 1_000_000;
        sum(&self.library_call, work.library_calls)
            + sum(&self.system_call, work.system_calls)
            + sum(&self.connection, work.connections)
            + sum(&self.link, work.links)
            + sum(&self.promotion, work.promotions)
            + sum(&self.segment, count(segments))
            + Duration::from_nanos(u64::try_from(copying).unwrap_or(u64::MAX))
            + work.service
            + sum(&self.waker, work.wakes)
            + sum(&self.packet, count(packets))
            + sum(&self.copy_on_write, work.copies)
            + sum(&self.post, work.posts)
            + part(sum(&self.cold, work.turns), work.cold_ppm)
            + part(work.cold_service, work.cold_ppm)
    }

    /// The interruptions of a core.
    fn interruptions(&self, core: usize) -> Interruptions {
        let mut interruptions = Interruptions::new(SplitMix64::new(self.seed ^ (core as u64 + 1) << 40).next_u64());
        interruptions.add_periodic(self.tick_interval, &self.tick);
        interruptions.add_random(self.noise_interval, &self.noise);
        interruptions
    }
}

/// The work of a thread between two waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Calls that stay in the library.
    pub library_calls: u32,
    /// Messages that are handed to the device.
    pub posts: u32,
    /// Calls of the kernel.
    pub system_calls: u32,
    /// Sleeping threads that its writes wake.
    pub wakes: u32,
    /// Connections that are made and closed.
    pub connections: u32,
    /// Links that are made.
    pub links: u32,
    /// Streams that are taken onto links.
    pub promotions: u32,
    /// Bytes that are copied.
    pub bytes: u64,
    /// Bytes that are read from the kernel's TCP, and written to it: never in one segment.
    pub tcp_bytes: [u64; 2],
    /// UDP datagrams that are sent or received, each a segment.
    pub datagrams: u32,
    /// Requests that are served while a child saves.
    pub copies: u32,
    /// The program's own work.
    pub service: Duration,
    /// The program's own work that follows its read or write, after the [time](ProcessorConfig::time) of the rest.
    pub after: Duration,
    /// Turns of connections.
    pub turns: u32,
    /// The program's own work for turns that find their connection's state displaced.
    pub cold_service: Duration,
    /// The share of turns that do, in millionths.
    pub cold_ppm: u32,
}

/// The use of processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Core time in calls, in the program, in softirqs, and of a child that saves.
    pub busy: Duration,
    /// Core time in polling without work.
    pub polling: Duration,
    /// The number of times that a sleeping thread was woken.
    pub wake_ups: u64,
    /// The number of times that a thread asked for what is ready, counted by the caller.
    pub asks: u64,
    /// Time for which work had to wait, for its core's interruptions.
    pub interrupted: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// Polls or sleeps since that time.
    Idle(Instant),
    /// Woken, or waiting for a core.
    Runnable,
    /// On that core.
    Running(usize),
}

/// A core.
#[derive(Debug)]
struct Core {
    is_free: bool,
    interruptions: Interruptions,
    /// The end of the softirqs that have come so far.
    softirq_until: Instant,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Processors {
    config: ProcessorConfig,
    threads: Vec<Thread>,
    cores: Vec<Core>,
    /// In the order in which they became runnable.
    ready: VecDeque<u32>,
    /// Threads that have been woken, by the time at which they can run, then in order.
    waking: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    /// Threads that run, by the time at which they finish, then in order.
    ends: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    number: u64,
    usage: Usage,
    random: SplitMix64,
}

impl Processors {
    /// Processors whose threads all sleep.
    pub fn new(config: ProcessorConfig) -> Processors {
        let count = config.workers() + usize::from(config.helper().is_some()) + usize::from(config.saver().is_some());
        let threads = vec![Thread::Idle(Instant::ZERO); count];
        let cores = if config.cores == 0 { count } else { config.cores as usize };
        let core =
            |number| Core { is_free: true, interruptions: config.interruptions(number), softirq_until: Instant::ZERO };
        Processors {
            cores: (0..cores).map(core).collect(),
            random: SplitMix64::new(config.seed),
            config,
            threads,
            ready: VecDeque::new(),
            waking: BinaryHeap::new(),
            ends: BinaryHeap::new(),
            number: 0,
            usage: Usage::default(),
        }
    }

    /// Their configuration.
    pub fn config(&self) -> &ProcessorConfig {
        &self.config
    }

    /// There is work for a thread (counted round). Without effect while it is runnable or runs: it will poll again.
    /// Returns whether it slept.
    pub fn wake(&mut self, now: Instant, thread: u32) -> bool {
        let index = thread as usize % self.threads.len();
        let Thread::Idle(since) = self.threads[index] else { return false };
        let (idle, thread) = (now.saturating_since(since), index as u32);
        self.threads[index] = Thread::Runnable;
        let spin = self.spin(index);
        self.usage.polling += idle.min(spin);
        self.number += 1;
        let random = &mut self.random;
        if idle <= spin {
            let notice = self.config.notice.draw(&mut || random.next_u64());
            self.usage.polling += notice;
            self.waking.push(Reverse((now + notice, self.number, thread)));
            return false;
        }
        self.usage.wake_ups += 1;
        let wake_up = self.config.wake_up.draw(&mut || random.next_u64());
        if self.config.saver() != Some(thread) {
            self.usage.busy += self.config.sleep.draw(&mut || random.next_u64());
        }
        self.waking.push(Reverse((now + wake_up, self.number, thread)));
        true
    }

    /// Whether a thread (counted round) sleeps, so that an event has to wake it.
    pub fn sleeps(&self, now: Instant, thread: u32) -> bool {
        let index = thread as usize % self.threads.len();
        match self.threads[index] {
            Thread::Idle(since) => now.saturating_since(since) > self.spin(index),
            Thread::Runnable | Thread::Running(_) => false,
        }
    }

    /// A thread whose work is [done](Processors::poll_done) right now keeps a core for so much longer. Call it before
    /// [`poll_start`](Processors::poll_start): its core is free until then.
    pub fn prolong(&mut self, now: Instant, thread: u32, time: Duration) {
        let Some(core) = self.cores.iter().position(|core| core.is_free) else {
            return debug_assert!(false, "its core");
        };
        self.threads[thread as usize] = Thread::Running(core);
        self.cores[core].is_free = false;
        self.work(now, thread, time);
    }

    /// A seed for the time of some [work](ProcessorConfig::time).
    pub fn seed(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// A thread that gets a core now. Give it [`work`](Processors::work) before anything else.
    pub fn poll_start(&mut self, now: Instant) -> Option<u32> {
        while let Some(Reverse((_, _, thread))) = self.waking.peek().filter(|Reverse((at, _, _))| *at <= now) {
            self.ready.push_back(*thread);
            self.waking.pop();
        }
        let core = self.cores.iter().position(|core| core.is_free)?;
        let thread = self.ready.pop_front()?;
        self.threads[thread as usize] = Thread::Running(core);
        self.cores[core].is_free = false;
        Some(thread)
    }

    /// The thread that has just got a core works for this time.
    pub fn work(&mut self, now: Instant, thread: u32, time: Duration) {
        let Thread::Running(core) = self.threads[thread as usize] else { return debug_assert!(false, "it has a core") };
        let begin = now.max(self.cores[core].softirq_until);
        let end = self.cores[core].interruptions.end_of_work(begin, time);
        self.usage.busy += time;
        self.usage.interrupted += end - now - time;
        self.number += 1;
        self.ends.push(Reverse((end, self.number, thread)));
    }

    /// A softirq of `time` on a core (counted round) before the threads' work: who runs there is done so much later. Returns when
    /// the softirq is done; one begins after the other.
    pub fn softirq(&mut self, now: Instant, core: u32, time: Duration) -> Instant {
        let index = core as usize % self.cores.len();
        let core = &mut self.cores[index];
        let done = core.softirq_until.max(now) + time;
        core.softirq_until = done;
        self.usage.busy += time;
        let runs_here = |entry: &Reverse<(Instant, u64, u32)>| {
            let Reverse((_, _, thread)) = *entry;
            self.threads[thread as usize] == Thread::Running(index)
        };
        if let Some(Reverse((end, number, thread))) = self.ends.iter().copied().find(runs_here) {
            self.ends.retain(|Reverse((_, other, _))| *other != number);
            let later = core.interruptions.end_of_work(end, time);
            self.usage.interrupted += later - end;
            self.ends.push(Reverse((later, number, thread)));
        }
        done
    }

    /// A thread whose work is done, and whose core is free.
    pub fn poll_done(&mut self, now: Instant) -> Option<u32> {
        let Reverse((_, _, thread)) = *self.ends.peek().filter(|Reverse((at, _, _))| *at <= now)?;
        self.ends.pop();
        let before = std::mem::replace(&mut self.threads[thread as usize], Thread::Idle(now));
        if let Thread::Running(core) = before {
            self.cores[core].is_free = true;
        }
        Some(thread)
    }

    /// The time of the next poll.
    pub fn next_deadline(&self) -> Option<Instant> {
        let end = self.ends.peek().map(|Reverse((at, _, _))| *at);
        let woken = self.waking.peek().map(|Reverse((at, _, _))| *at);
        end.into_iter().chain(woken).min()
    }

    /// The use until now; work that has begun counts completely.
    pub fn usage(&self, now: Instant) -> Usage {
        let polling = |(index, thread): (usize, &Thread)| match thread {
            Thread::Idle(since) => now.saturating_since(*since).min(self.spin(index)),
            _ => Duration::ZERO,
        };
        let waiting = self.threads.iter().enumerate().map(polling).sum::<Duration>();
        Usage { polling: self.usage.polling + waiting, ..self.usage }
    }

    /// How long a thread polls before it sleeps; the helper thread sleeps at once.
    fn spin(&self, index: usize) -> Duration {
        if index < self.config.workers() {
            self.config.spin
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// Jobs of `service` each come at these times to threads in turn; returns how long each waited for its turn.
    fn waits(config: ProcessorConfig, service: &Distribution, arrivals: &[Instant]) -> (Vec<Duration>, Usage, Instant) {
        let threads = config.threads;
        let mut all = Processors::new(config);
        let mut inbox: Vec<VecDeque<usize>> = (0..threads).map(|_| VecDeque::new()).collect();
        let mut waited = vec![Duration::ZERO; arrivals.len()];
        let (mut next, mut now) = (0, Instant::ZERO);
        let mut random = SplitMix64::new(23);
        loop {
            while let Some(thread) = all.poll_done(now) {
                if !inbox[thread as usize].is_empty() {
                    all.wake(now, thread);
                }
            }
            while let Some(arrival) = arrivals.get(next).filter(|a| **a <= now) {
                let thread = next as u32 % threads;
                inbox[thread as usize].push_back(next);
                all.wake(*arrival, thread);
                next += 1;
            }
            while let Some(thread) = all.poll_start(now) {
                let job = inbox[thread as usize].pop_front().expect("it was woken for work");
                waited[job] = now - arrivals[job];
                all.work(now, thread, service.draw(&mut || random.next_u64()));
            }
            let event = all.next_deadline().into_iter().chain(arrivals.get(next).copied()).min();
            let Some(event) = event else { return (waited, all.usage(now), now) };
            now = event;
        }
    }

    // Breaks if a sleep takes no core's time, delays what its wake-up does not, or a thread that only polled pays for one.
    #[test]
    fn a_sleep_passes_beside_its_wake_up() {
        let config =
            ProcessorConfig { spin: us(3), sleep: us(40).into(), wake_up: us(5).into(), ..ProcessorConfig::free() };
        let run = |event: u64| {
            let mut all = Processors::new(config.clone());
            let has_slept = all.wake(at(event), 0);
            let runs = (event..20).find(|now| all.poll_start(at(*now)).is_some()).expect("it was woken");
            let usage = all.usage(at(runs));
            (has_slept, runs, usage.busy, usage.wake_ups)
        };
        assert_eq!(run(3), (false, 3, us(0), 0));
        assert_eq!(run(4), (true, 9, us(40), 1));
    }

    // Breaks if a thread that polls sees an event at once, or counts as one that slept.
    #[test]
    fn a_poller_notices_later() {
        let config =
            ProcessorConfig { spin: us(50), notice: us(2).into(), wake_up: us(30).into(), ..ProcessorConfig::free() };
        let mut all = Processors::new(config);
        assert!(!all.wake(at(10), 0), "it polls");
        assert_eq!((all.poll_start(at(11)), all.next_deadline()), (None, Some(at(12))));
        assert_eq!(all.poll_start(at(12)), Some(0));
        all.work(at(12), 0, us(1));
        assert_eq!(all.poll_done(at(13)), Some(0));
        assert_eq!((all.usage(at(13)).polling, all.usage(at(13)).wake_ups), (us(12), 0));
        assert!(all.wake(at(64), 0), "it has polled for 50 us");
        assert_eq!(all.next_deadline(), Some(at(94)));
    }

    // Breaks if a thread that polls, is about to run or runs counts as asleep, or if one that is kept longer leaves its core before.
    #[test]
    fn a_waker_keeps_its_core() {
        let mut all = Processors::new(ProcessorConfig { cores: 1, threads: 2, spin: us(3), ..ProcessorConfig::free() });
        assert_eq!((all.sleeps(at(3), 1), all.sleeps(at(4), 1)), (false, true));
        all.wake(at(3), 0);
        assert!(!all.sleeps(at(10), 0));
        assert_eq!(all.poll_start(at(10)), Some(0));
        all.work(at(10), 0, us(5));
        assert!(!all.sleeps(at(14), 0) && all.wake(at(14), 1));
        assert_eq!(all.poll_done(at(15)), Some(0));
        all.prolong(at(15), 0, us(8));
        assert_eq!((all.poll_start(at(22)), all.poll_done(at(22)), all.next_deadline()), (None, None, Some(at(23))));
        assert_eq!((all.poll_done(at(23)), all.poll_start(at(23))), (Some(0), Some(1)));
        assert_eq!(all.usage(at(23)).busy, us(13));
    }

    // Breaks if a write that wakes nobody costs as one that does, or if wake-ups change what else is drawn.
    #[test]
    fn a_wake_up_has_its_own_cost() {
        let calls = ProcessorConfig { system_call: Distribution::exponential(us(2)), ..ProcessorConfig::free() };
        let waking = ProcessorConfig { waker: us(9).into(), ..calls.clone() };
        let work = |wakes| Work { system_calls: 4, wakes, ..Work::default() };
        assert_eq!(waking.time(&work(0), 5), calls.time(&work(3), 5));
        assert_eq!(waking.time(&work(3), 5), calls.time(&work(0), 5) + us(27));
    }

    // Breaks if a core does more than one job at a time, or idles while there is work.
    #[test]
    fn a_saturated_core_does_one_over_its_cost() {
        for (cores, threads) in [(1, 1), (1, 4), (2, 4), (0, 3)] {
            let config = ProcessorConfig { cores, threads, ..ProcessorConfig::free() };
            let (_, usage, end) = waits(config, &us(10).into(), &vec![at(1); 1200]);
            let at_once = if cores == 0 { threads } else { cores };
            assert_eq!(end, at(1 + 1200 * 10 / u64::from(at_once)), "{cores} cores, {threads} threads");
            assert_eq!(usage.busy, us(12_000));
        }
    }

    /// The mean wait of Poisson arrivals at one thread that always polls, so that only the queue remains, in nanoseconds.
    fn mean_wait(config: ProcessorConfig, service: &Distribution, interval_ns: f64) -> f64 {
        let mut rng = SplitMix64::new(11);
        let mut time = 0.0;
        let mut arrival = || {
            let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            time += -(1.0 - uniform).ln() * interval_ns;
            Instant::from_nanos(time as u64)
        };
        let arrivals: Vec<Instant> = (0..400_000).map(|_| arrival()).collect();
        let config = ProcessorConfig { cores: 1, spin: Duration::MAX, ..config };
        let (waited, ..) = waits(config, service, &arrivals);
        waited.iter().map(|w| w.as_nanos() as f64).sum::<f64>() / waited.len() as f64
    }

    // Breaks if work is not done in order, or waits for anything but the work before it: M/G/1, whose mean wait is load / (1 - load)
    // * E[S^2] / (2 E[S]) (Pollaczek and Khinchine), for constant, exponential and lognormal work and a mixture of short and long.
    #[test]
    fn poisson_arrivals_wait_as_mg1() {
        let square = 0.36f64.exp();
        let mixed = Distribution::mixture(vec![(9, us(5).into()), (1, us(55).into())]).expect("has weight");
        for (service, mean, second) in [
            (us(10).into(), 10.0, 100.0),
            (Distribution::exponential(us(10)), 10.0, 200.0),
            (Distribution::lognormal(us(10), 600_000), 10.0 * 0.18f64.exp(), 100.0 * square * square),
            (mixed, 10.0, 325.0),
        ] {
            for load in [0.3, 0.6] {
                let waited = mean_wait(ProcessorConfig::free(), &service, mean * 1e3 / load);
                let expected = load / (1.0 - load) * second / (2.0 * mean) * 1e3;
                assert!((waited / expected - 1.0).abs() < 0.05, "{service:?}, load {load}: {waited} ns for {expected}");
            }
        }
    }

    // Breaks if interruptions do not lengthen the queue: work with interruptions at rate n of length B is M/G/1 whose work is S + the
    // interruptions in it, compound Poisson, and which finds an interruption at its beginning now and then, while the core is idle.
    #[test]
    fn interruptions_lengthen_the_queue() {
        // 20 us each every 1 ms on average, work of 10 us, load 0.5.
        let noise_interval = us(1_000);
        let config = ProcessorConfig { noise_interval, noise: us(20).into(), ..ProcessorConfig::free() };
        let waited = mean_wait(config, &us(10).into(), 20_000.0);
        let (rate, noise, lambda) = (1e-3, 20.0, 0.05);
        let mean = 10.0 * (1.0 + rate * noise);
        let second = mean * mean + 10.0 * rate * noise * noise;
        let load = lambda * mean;
        // As customers with priority: preempt and resume (Kleinrock, Queueing systems II, 3.6), without the part that the work
        // itself is longer by.
        let residual = lambda * 100.0 / 2.0 + rate * noise * noise / 2.0;
        let expected = residual / ((1.0 - rate * noise) * (1.0 - rate * noise - lambda * 10.0)) * 1e3;
        assert!((waited / expected - 1.0).abs() < 0.06, "{waited} ns for {expected} (load {load}, second {second})");
        let silent = mean_wait(ProcessorConfig::free(), &us(10).into(), 20_000.0);
        assert!(waited > 1.03 * silent, "{waited} ns with, {silent} without");
    }

    // Breaks if a sleeper runs at once, a poller late, or polling counts as work.
    #[test]
    fn a_polling_thread_runs_at_once() {
        let config = ProcessorConfig { cores: 1, spin: us(50), wake_up: us(5).into(), ..ProcessorConfig::free() };
        let arrivals = [at(100), at(140), at(300)];
        let (waited, usage, end) = waits(config, &us(10).into(), &arrivals);
        // It has slept since it began, polls from 115 to 140 and from 150 to 200, and sleeps again.
        assert_eq!(waited, [us(5), us(0), us(5)]);
        assert_eq!(usage, Usage { busy: us(30), polling: us(50 + 25 + 50), wake_ups: 2, ..Usage::default() });
        assert_eq!(end, at(315));
    }

    // Breaks if a part of the work costs nothing, or is counted twice.
    #[test]
    fn work_is_the_sum_of_its_parts() {
        let config = ProcessorConfig {
            library_call: Duration::from_nanos(100).into(),
            system_call: Duration::from_nanos(300).into(),
            waker: us(90).into(),
            copy_per_kib: Duration::from_nanos(512).into(),
            connection: us(20).into(),
            link: us(300).into(),
            promotion: us(40).into(),
            segment: us(1).into(),
            segment_size_bytes: 1000,
            ..ProcessorConfig::free()
        };
        let calls = Work { library_calls: 2, system_calls: 3, wakes: 2, ..Work::default() };
        let links = Work { links: 1, promotions: 2, ..calls };
        let work = Work { connections: 2, bytes: 4000, tcp_bytes: [1001, 900], service: us(7), ..links };
        let expected = 200 + 900 + 180_000 + 2000 + 40_000 + 300_000 + 80_000 + 3000 + 7000;
        assert_eq!(config.time(&work, 1), Duration::from_nanos(expected));
        assert_eq!(ProcessorConfig::free().time(&Work { service: Duration::ZERO, ..work }, 1), Duration::ZERO);
    }

    // Breaks if connections that the caches hold are displaced, or those beyond are not, or each thread's count as all.
    #[test]
    fn only_connections_beyond_the_caches_are_displaced() {
        let config = ProcessorConfig { cold: us(4).into(), warm_connections: 100, ..ProcessorConfig::free() };
        assert_eq!([0, 1, 100, 101, 200, 1000].map(|n| config.cold_ppm(n)), [0, 0, 0, 9_900, 500_000, 900_000]);
        let shared = ProcessorConfig { threads: 4, ..config.clone() };
        assert_eq!([400, 800].map(|n| shared.cold_ppm(n)), [0, 500_000]);
        let turn = |cold_ppm| {
            let work = Work { turns: 1, cold_service: us(2), cold_ppm, ..Work::default() };
            config.time(&work, 1)
        };
        assert_eq!([0, 500_000, 1_000_000].map(turn), [us(0), us(3), us(6)]);
    }

    // Breaks if more work than was predicted makes the rest of it take another time: the difference could be negative.
    #[test]
    fn more_work_of_a_kind_leaves_the_rest_as_it_is() {
        let cost = Distribution::exponential(us(1));
        let config = ProcessorConfig { library_call: cost.clone(), segment: cost, ..ProcessorConfig::free() };
        let time = |library_calls, segments: u64, seed| {
            config.time(&Work { library_calls, tcp_bytes: [segments * 1448, 0], ..Work::default() }, seed)
        };
        for seed in 0..100 {
            assert_eq!(time(2, 3, seed) - time(2, 0, seed), time(0, 3, seed));
            assert!(time(3, 3, seed) >= time(2, 3, seed));
        }
        assert_ne!(time(1, 0, 1), time(1, 0, 2));
    }

    // Breaks if a softirq waits for a thread, takes no time from the one that runs on its core, or takes it from another one, or if
    // work begins before it is done.
    #[test]
    fn a_softirq_comes_before_threads() {
        let config = ProcessorConfig { cores: 2, threads: 2, spin: Duration::MAX, ..ProcessorConfig::free() };
        let mut all = Processors::new(config);
        for thread in 0..2 {
            all.wake(at(0), thread);
            let started = all.poll_start(at(0)).expect("a core is free");
            all.work(at(0), started, us(10));
        }
        assert_eq!(all.softirq(at(3), 0, us(4)), at(7));
        assert_eq!(all.softirq(at(5), 2, us(1)), at(8), "one after the other");
        assert_eq!((all.poll_done(at(10)), all.poll_done(at(10))), (Some(1), None));
        assert_eq!(all.next_deadline(), Some(at(15)));
        assert_eq!(all.poll_done(at(15)), Some(0));
        // On an idle core: a thread that comes waits for the rest of it.
        assert_eq!(all.softirq(at(20), 0, us(6)), at(26));
        all.wake(at(22), 0);
        let started = all.poll_start(at(22)).expect("a core is free");
        all.work(at(22), started, us(10));
        assert_eq!(all.next_deadline(), Some(at(36)));
        let usage = all.usage(at(36));
        assert_eq!((usage.busy, usage.interrupted), (us(30 + 11), us(5 + 4)));
    }

    // Breaks if threads wait other than behind customers with priority (preempt and resume, Kleinrock, Queueing systems II, 3.6).
    #[test]
    fn work_waits_behind_softirqs() {
        let mut all = Processors::new(ProcessorConfig { cores: 1, spin: Duration::MAX, ..ProcessorConfig::free() });
        let (softirq, work, rate) = (us(4), us(10), 0.04);
        let between = Distribution::exponential(us(25));
        let mut random = SplitMix64::new(7);
        let draw = |random: &mut SplitMix64| between.draw(&mut || random.next_u64());
        let mut next = [Instant::ZERO + draw(&mut random), Instant::ZERO + draw(&mut random)];
        let (mut waiting, mut took, mut count) = (VecDeque::new(), 0.0, 0);
        while count < 200_000 {
            let now = next[0].min(next[1]).min(all.next_deadline().unwrap_or(next[0]));
            if all.poll_done(now).is_some() {
                let begun: Instant = waiting.pop_front().expect("it worked on one");
                took += (now - begun).as_nanos() as f64 / 1e3;
                count += 1;
            } else if now == next[0] {
                all.softirq(now, 0, softirq);
                next[0] = now + draw(&mut random);
            } else {
                waiting.push_back(now);
                next[1] = now + draw(&mut random);
            }
            if !waiting.is_empty() {
                all.wake(now, 0);
            }
            if let Some(thread) = all.poll_start(now) {
                all.work(now, thread, work);
            }
        }
        let (first, both) = (rate * 4.0, rate * 14.0);
        let residual = rate * (16.0 + 100.0) / 2.0;
        let expected = 10.0 / (1.0 - first) + residual / ((1.0 - first) * (1.0 - both));
        let mean = took / f64::from(count);
        assert!((mean / expected - 1.0).abs() < 0.02, "{mean} us, expected {expected}");
    }

    // Breaks if offloads do not join what they should, or a softirq's work is paid by a thread, too.
    #[test]
    fn offloads_join_packets() {
        let ns = Duration::from_nanos;
        let packets = ProcessorConfig { segment: ns(600).into(), packet: ns(50).into(), ..ProcessorConfig::free() };
        let offloaded =
            ProcessorConfig { segment_size_bytes: 64_000, receive_segment_size_bytes: 16_000, ..packets.clone() };
        let work = Work { tcp_bytes: [32_000, 64_000], ..Work::default() };
        let received = 32_000u64.div_ceil(1448);
        assert_eq!(packets.time(&work, 0), ns((received + 64_000u64.div_ceil(1448)) * 600 + received * 50));
        assert_eq!(offloaded.time(&work, 0), ns((2 + 1) * 600 + received * 50));
        let softirq = ProcessorConfig { softirq: true, ..offloaded.clone() };
        assert_eq!(softirq.time(&work, 0), ns(600));
        assert_eq!(softirq.receiving(32_000, 0) + softirq.time(&work, 0), offloaded.time(&work, 0));
    }
}
