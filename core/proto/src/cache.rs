//! The cache of empty links, kept for later streams: `NACC_EMPTY_QP_*`.

use alloc::vec::Vec;
use core::time::Duration;

use netacc_device::Instant;

/// Bounds of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// How long an empty link is kept: `None` for ever, zero not at all (`NACC_EMPTY_QP_EXPIRE_MS`).
    pub expire: Option<Duration>,
    /// Most empty links in all (`NACC_EMPTY_QP_MAX_ALL`).
    pub max_all: usize,
    /// Most empty links to one destination (`NACC_EMPTY_QP_MAX_PER`).
    pub max_per: usize,
}

/// Links that carry no stream. `L` names a link, `P` its destination.
///
/// Invariant: they are in the order in which they expire, so the first one decides whether any has expired.
#[derive(Debug)]
pub struct LinkCache<L, P> {
    config: CacheConfig,
    entries: Vec<(L, P, Instant)>,
}

impl<L: Copy + PartialEq, P: Copy + PartialEq> LinkCache<L, P> {
    /// An empty cache.
    pub fn new(config: CacheConfig) -> Self {
        LinkCache { config, entries: Vec::new() }
    }

    /// The number of its links.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A link has become empty. Returns the link to close instead, if the bounds are met: the oldest to the same
    /// destination, else the oldest of all, else this one.
    pub fn insert(&mut self, link: L, peer: P, now: Instant) -> Option<L> {
        if self.config.expire == Some(Duration::ZERO) || self.config.max_all == 0 || self.config.max_per == 0 {
            return Some(link);
        }
        let same = self.entries.iter().filter(|e| e.1 == peer).count();
        let evict = if same >= self.config.max_per {
            self.entries.iter().position(|e| e.1 == peer)
        } else if self.entries.len() >= self.config.max_all {
            Some(0)
        } else {
            None
        };
        let evicted = evict.map(|i| self.entries.remove(i).0);
        // Callers may have read the clock in another order.
        let since = self.entries.last().map_or(now, |last| now.max(last.2));
        self.entries.push((link, peer, since));
        evicted
    }

    /// Takes the latest link to `peer`.
    pub fn take(&mut self, peer: P) -> Option<L> {
        let i = self.entries.iter().rposition(|e| e.1 == peer)?;
        Some(self.entries.remove(i).0)
    }

    /// Forgets `link`: it died, or a stream of the peer took it.
    pub fn remove(&mut self, link: L) {
        self.entries.retain(|e| e.0 != link);
    }

    /// Takes one link that has expired. Call until `None`, and again at [`next_expiry`](LinkCache::next_expiry).
    pub fn poll_expired(&mut self, now: Instant) -> Option<L> {
        let expire = self.config.expire?;
        let first = self.entries.first()?;
        (now.saturating_since(first.2) >= expire).then(|| self.entries.remove(0).0)
    }

    /// The time at which the next link expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        let expire = self.config.expire?;
        self.entries.first().map(|first| first.2 + expire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn bounds_evict_the_oldest() {
        //= spec §2.4.1
        //= type=test
        let config = CacheConfig { expire: Some(Duration::from_secs(60)), max_all: 3, max_per: 2 };
        let mut c = LinkCache::new(config);
        assert_eq!(c.insert(1, 'a', at(0)), None);
        assert_eq!(c.insert(2, 'a', at(1)), None);
        assert_eq!(c.insert(3, 'a', at(2)), Some(1));
        assert_eq!(c.insert(4, 'b', at(3)), None);
        assert_eq!(c.insert(5, 'c', at(4)), Some(2));
        assert_eq!(c.take('a'), Some(3));
        assert_eq!(c.take('a'), None);
        assert_eq!(c.next_expiry(), Some(at(63)));
        assert_eq!(c.poll_expired(at(62)), None);
        assert_eq!(c.poll_expired(at(63)), Some(4));
        c.remove(5);
        assert!(c.is_empty());
    }

    /// Breaks if a link whose caller had read the clock earlier were behind one that expires later.
    #[test]
    fn links_expire_in_order_even_if_clocks_were_read_in_another() {
        let mut c = LinkCache::new(CacheConfig { expire: Some(Duration::from_secs(60)), max_all: 3, max_per: 3 });
        assert_eq!([(1, 5), (2, 4)].map(|(link, s)| c.insert(link, 'a', at(s))), [None, None]);
        assert_eq!((c.take('a'), c.insert(3, 'a', at(3))), (Some(2), None));
        assert_eq!(c.next_expiry(), Some(at(65)));
        assert_eq!([64, 65].map(|s| c.poll_expired(at(s))), [None, Some(1)]);
        assert_eq!((c.next_expiry(), c.poll_expired(at(65))), (Some(at(65)), Some(3)));
    }

    #[test]
    fn zero_expires_at_once_and_none_never() {
        let zero = CacheConfig { expire: Some(Duration::ZERO), max_all: 9, max_per: 9 };
        assert_eq!(LinkCache::new(zero).insert(1, 'a', at(0)), Some(1));
        let mut never = LinkCache::new(CacheConfig { expire: None, max_all: 9, max_per: 9 });
        never.insert(1, 'a', at(0));
        assert_eq!(never.poll_expired(at(1 << 30)), None);
    }
}
