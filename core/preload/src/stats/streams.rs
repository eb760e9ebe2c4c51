//! What the streams of a process add up to. Each is visited once: a process may have 20,000, which do not fit into the
//! processor's caches.

use std::net::SocketAddr;

use netacc_config::stats::{Counters, QueuePairStats, Text};
use netacc_driver::{Endpoint, LinkStatus, StreamCounters};

use crate::runtime::Runtime;

/// Sums over the streams that are open.
#[derive(Default)]
pub(super) struct Streams {
    pub(super) counters: StreamCounters,
    /// The streams on links, and the bytes of their rings.
    rings: (u64, u64),
    /// Those on links, if they are wanted: the bytes of a link are counted by stream.
    on_links: Vec<OnLink>,
}

struct OnLink {
    qp: u32,
    counters: StreamCounters,
    remote: SocketAddr,
}

impl Streams {
    /// Of an endpoint. `by_link`: for [`links`](Self::links), too.
    pub(super) fn of(endpoint: &Endpoint, by_link: bool) -> Self {
        let mut sums = Self::default();
        let cells = endpoint.streams();
        if by_link {
            sums.on_links.reserve(cells.len());
        }
        for cell in cells {
            let guard = cell.lock(endpoint);
            let counters = guard.counters();
            sums.counters += counters;
            let Some(qp) = guard.link().map(|link| link.qp().0) else { continue };
            sums.rings.0 += 1;
            sums.rings.1 += u64::from(guard.proto().rx_ring_len());
            drop(guard);
            if by_link {
                sums.on_links.push(OnLink { qp, counters, remote: cell.tuple().remote });
            }
        }
        sums
    }

    /// The rings, of which none is longer than `longest`: the more streams a process has, the shorter.
    pub(super) fn rings(&self, longest: u32) -> Counters {
        let (count, bytes) = self.rings;
        [("rings".into(), count), ("ring_bytes".into(), longest.into()), ("rings_bytes".into(), bytes)].into()
    }

    /// The links, in the order of their numbers, with the sums over the streams that are on each now.
    pub(super) fn links(&self, rt: &Runtime, endpoint: &Endpoint) -> Vec<QueuePairStats> {
        let mut links = endpoint.links();
        links.sort_unstable_by_key(|link| link.qp);
        // Numbers alone are sorted: a stream's counters are ten times as long.
        let mut order: Vec<(u32, u32)> =
            self.on_links.iter().zip(0..).map(|(stream, index)| (stream.qp, index)).collect();
        order.sort_unstable();
        let mut order = order.into_iter().peekable();
        let stats = |link: LinkStatus| {
            while order.next_if(|(qp, _)| *qp < link.qp).is_some() {}
            let mut sum = StreamCounters::default();
            let mut peer = None;
            while let Some((_, index)) = order.next_if(|(qp, _)| *qp == link.qp) {
                let stream = &self.on_links[index as usize];
                sum += stream.counters;
                peer.get_or_insert(stream.remote);
            }
            queue_pair(&rt.backend, &link, peer, sum)
        };
        links.into_iter().map(stats).collect()
    }
}

fn queue_pair(backend: &str, link: &LinkStatus, peer: Option<SocketAddr>, sum: StreamCounters) -> QueuePairStats {
    let state = match (link.dead, link.streams) {
        (true, _) => "dead",
        (false, 0) => "empty",
        (false, _) => "connected",
    };
    QueuePairStats {
        qp: link.qp.into(),
        backend: backend.into(),
        state: state.into(),
        peer: peer.map(Text::from).unwrap_or_default(),
        streams: link.streams.into(),
        rx_msgs: sum.rx_msgs_link,
        rx_bytes: sum.rx_bytes_link,
        tx_msgs: sum.tx_msgs_link,
        tx_bytes: sum.tx_bytes_link,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if each ring counted as one of the configured length: 20,000 connections seemed to take 5 GB.
    #[test]
    fn rings_count_with_their_own_lengths() {
        let streams = Streams { rings: (3, 264 << 10), ..Streams::default() };
        let expected = [("rings", 3), ("ring_bytes", 256 << 10), ("rings_bytes", 264 << 10)];
        assert_eq!(streams.rings(256 << 10), expected.map(|(name, n)| (name.to_owned(), n)).into());
    }
}
