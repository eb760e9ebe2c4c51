//! The memory that messages take in the peer's ring: `stream/growth.rs`.

use std::sync::Arc;

use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::middleware::Event;
use netacc_device::Instant;
use netacc_driver::{Endpoint, EndpointConfig, LinkIo, StreamCell, IDLE_AFTER};
use parking_lot::Mutex;

use crate::common::{config, Deaf};
use crate::endpoints::{configured, read, write, write_more, Linked};

/// Bytes of a ring, and of its beginning that an idle stream keeps: a page, less the credit block.
const RING: u32 = 16 << 10;
const KEPT: usize = 4096 - 64;

/// So many times [`IDLE_AFTER`].
fn at(times: f64) -> Instant {
    Instant::from_nanos((IDLE_AFTER.as_nanos() as f64 * times) as u64)
}

/// The first bytes of the regions' parts that an endpoint has given back.
type Discarded = Arc<Mutex<Vec<u32>>>;

fn observed(fabric: &Fabric) -> (Endpoint, Discarded) {
    let discarded = Discarded::default();
    let seen = discarded.clone();
    let observer = move |event: &Event| {
        if let Event::Discard { from, .. } = event {
            seen.lock().push(*from);
        }
    };
    let config = EndpointConfig { ring_len: RING, message_len: RING / 2, ..config(1) };
    (configured(fabric.open(LoopbackConfig::shm()), None, observer, Deaf, config), discarded)
}

/// Writes `len` bytes of a pattern, and reads them at the other end, which must get the same.
fn pass(pair: &Linked<'_>, time: Instant, len: usize) {
    let [(client, near), (server, far)] = &pair.ends;
    let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    assert_eq!(write(client, near, &bytes), LinkIo::Done(len));
    pair.progress(time);
    assert!(read(server, far, len) == bytes, "the bytes of {len} were lost");
}

fn grown(endpoint: &Endpoint) -> usize {
    endpoint.backlog().iter().find(|(name, _)| *name == "grown").expect("one of the lists").1
}

/// Breaks if an idle stream kept the memory of a long ring, or a stream that is not idle lost it; and if bytes were lost
/// with it.
#[test]
fn an_idle_stream_keeps_one_page_of_a_ring() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, discarded), (server, _)) = (observed(&fabric), observed(&fabric));
    let pair = Linked::new(&client, &server, 40_201);
    let given_back = || std::mem::take(&mut *discarded.lock());
    for turn in 0..3 {
        let time = |since: f64| at(f64::from(turn) * 10.0 + since);
        // Short messages take the first page alone.
        for _ in 0..200 {
            pass(&pair, time(0.0), 64);
        }
        assert_eq!((grown(&client), given_back()), (0, vec![]));
        pass(&pair, time(0.0), RING as usize / 2);
        assert_eq!(grown(&client), 1);
        // It is not idle.
        pass(&pair, time(0.9), 64);
        pair.progress(time(1.1));
        pair.progress(time(2.0));
        assert_eq!((grown(&client), given_back()), (1, vec![]));
        pair.progress(time(2.2));
        assert_eq!((grown(&client), given_back()), (0, vec![4096]));
        // An idle process is not woken again.
        pair.progress(time(9.0));
        assert_eq!((grown(&client), given_back()), (0, vec![]));
    }
}

/// Breaks if bytes that the peer has not read were lost.
#[test]
fn bytes_that_the_peer_has_not_read_stay() {
    for corked in [false, true] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let ((client, discarded), (server, _)) = (observed(&fabric), observed(&fabric));
        let pair = Linked::new(&client, &server, 40_202);
        let [(_, near), (_, far)] = &pair.ends;
        let send: fn(&Endpoint, &Arc<StreamCell>, &[u8]) -> LinkIo = if corked { write_more } else { write };
        assert_eq!(send(&client, near, &[7; 6000]), LinkIo::Done(6000));
        for time in [0.0, 1.1, 2.2, 5.0] {
            pair.progress(at(time));
        }
        assert!(discarded.lock().is_empty(), "{corked}");
        assert!(read(&server, far, 6000) == [7; 6000]);
        for time in [6.0, 20.0] {
            pair.progress(at(time));
        }
        assert_eq!(*discarded.lock(), [4096], "{corked}");
        pass(&pair, at(21.0), 8000);
    }
}

/// Breaks if a message that ends beyond the first page went the direct way, which does not record it.
#[test]
fn a_direct_message_stays_on_the_first_page() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let ((client, _), (server, _)) = (observed(&fabric), observed(&fabric));
    let pair = Linked::new(&client, &server, 40_203);
    let near = &pair.ends[0].1;
    for _ in 0..KEPT / 512 {
        assert!(client.send_slice_direct(near, &[1; 512]));
    }
    assert!(!client.send_slice_direct(near, &[1; 512]));
    assert_eq!(write(&client, near, &[1; 512]), LinkIo::Done(512));
    assert!(client.send_slice_direct(near, &[1; 512]) && grown(&client) == 1);
}
