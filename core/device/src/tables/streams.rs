//! The directory of simulated processes: one table for all of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::{DirectoryError, FourTuple};

/// The published streams, and the process `P` of each.
///
/// Invariant: never more entries than `capacity`, unless that was lowered.
#[derive(Debug)]
pub struct StreamTable<P> {
    entries: BTreeMap<(SocketAddr, SocketAddr), (P, u32)>,
    capacity: usize,
}

impl<P: Copy + PartialEq> StreamTable<P> {
    /// A table of so many streams at most.
    pub fn new(capacity: usize) -> StreamTable<P> {
        StreamTable { entries: BTreeMap::new(), capacity }
    }

    /// Bounds the number of streams from now on.
    pub fn limit(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// A process publishes its end of a connection; `tuple` is its view of the connection.
    ///
    /// # Errors
    /// Fails when there are too many.
    pub fn publish(&mut self, tuple: &FourTuple, process: P, stream: u32) -> Result<(), DirectoryError> {
        let key = (tuple.local, tuple.remote);
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&key) {
            return Err(DirectoryError::Full);
        }
        self.entries.insert(key, (process, stream));
        Ok(())
    }

    /// A process withdraws its end of a connection. A process that published it later (a child that took the connection
    /// over) keeps its entry.
    pub fn withdraw(&mut self, tuple: &FourTuple, process: P, stream: u32) {
        let key = (tuple.local, tuple.remote);
        if self.entries.get(&key) == Some(&(process, stream)) {
            self.entries.remove(&key);
        }
    }

    /// The process that has published the other end of a connection.
    pub fn lookup(&self, tuple: &FourTuple) -> Option<(P, u32)> {
        self.entries.get(&(tuple.remote, tuple.local)).copied()
    }

    /// A process is gone, and its published streams with it.
    pub fn forget(&mut self, process: P) {
        self.entries.retain(|_, (owner, _)| *owner != process);
    }
}
