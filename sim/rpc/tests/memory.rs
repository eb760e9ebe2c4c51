//! Closed connections take no memory of a run. A program of its own, because allocations of other tests would count.

#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use netacc_device::Instant;
use netacc_host::ProcessorConfig;
use netacc_modelled::HostConfig;
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::NicConfig;
use netacc_rpc::{run_plain, Conversation, RunConfig, StackConfig, Tcp};

/// Counts bytes that are allocated.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that was allocated in a run of so many short connections, one after the other.
fn peak(connections: u64, promote: bool) -> usize {
    let nic = NicConfig::ideal(8_000_000_000);
    let processor = (!promote)
        .then(|| ProcessorConfig { system_call: Duration::from_nanos(400).into(), ..ProcessorConfig::free() });
    let base = Conversation::closed(0, 1, 64, 200, 1).expect("lengths above 0");
    let plan = Conversation {
        requests_per_connection: NonZeroU32::new(2),
        count: Some(connections),
        promoted: promote,
        ..base
    };
    let config = RunConfig {
        hosts: vec![HostConfig { processor, ..HostConfig::roce(nic) }; 2],
        conversations: vec![plan],
        stack: StackConfig { ring_bytes: 4096, message_bytes: 1024, ..StackConfig::default() },
        tcp: Tcp::Memory,
        sampled: false,
        traced: false,
    };
    let topology = Topology::Direct(LinkConfig::clean(8_000_000_000, Duration::from_micros(1)));
    PEAK.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
    let before = PEAK.load(Ordering::Relaxed);
    let most = Instant::from_nanos(1_000_000_000_000);
    let outcome = run_plain(&config, &topology, 0, most).expect("devices have queues");
    let outcome = outcome.expect("the configuration makes sense").expect("no byte is wrong");
    assert!(outcome.complete && outcome.measured[0].latencies_ns.len() as u64 == 2 * connections);
    PEAK.load(Ordering::Relaxed) - before
}

// Breaks if anything is kept of connections that are closed: numbers, streams, sockets, rings, entries of directories.
#[test]
fn closed_connections_leave_nothing() {
    for promote in [false, true] {
        let few = peak(1_000, promote);
        let many = peak(21_000, promote);
        let grown = many.saturating_sub(few) / 20_000;
        // Two measured latencies, in a list that doubles and is copied at the end.
        assert!(grown < 80, "promote {promote}: {few} bytes, {many} bytes: {grown} for each connection");
    }
}
