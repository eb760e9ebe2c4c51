//! Adopting streams, publishing them for their openers, and forgetting them.

use std::sync::Arc;

use netacc_device::DirectoryError;
use netacc_proto::{Reason, Role, StreamConfig};

use super::Endpoint;
use crate::{Addresses, LazyAnchor, StreamCell};

impl Endpoint {
    /// A TCP connection of this process, from now on counted and eligible for promotion. An opener finds an acceptor's
    /// stream only once it is [`published`](Endpoint::publish).
    pub fn adopt(&self, role: Role, addresses: impl Into<Addresses>, anchor: impl Into<LazyAnchor>) -> Arc<StreamCell> {
        let (addresses, anchor) = (addresses.into(), anchor.into());
        let trust_hints = self.config.trust_hints && self.directory.trusts(&addresses.tuple());
        let proto = (role, StreamConfig { trust_hints });
        let mut streams = self.streams.write();
        let number = streams.free.pop().unwrap_or_else(|| {
            streams.cells.push(None);
            (streams.cells.len() - 1) as u32
        });
        // Made in its place: `Arc::new` would copy it there.
        let cell = Arc::new_cyclic(|_| StreamCell::new(number, addresses, proto, anchor, self.config.message_len));
        streams.cells[number as usize] = Some(cell.clone());
        drop(streams);
        cell
    }

    /// Lets the opener of a connection find it here. If several processes hold the acceptor's end, only one may accept.
    pub fn publish(&self, cell: &Arc<StreamCell>) {
        let mut guard = cell.lock(self);
        if guard.inner.published || guard.inner.closing.is_closed() {
            return;
        }
        let published = guard.change_aside(|stream| {
            let published = self.directory.publish(&cell.tuple(), cell.number);
            stream.inner.published = published.is_ok();
            published
        });
        let reason = match published {
            Ok(()) => return,
            Err(DirectoryError::Full) => Reason::DirectoryFull,
            Err(DirectoryError::NoPort) => Reason::NoLinkPort,
            Err(DirectoryError::NoDescriptor) => Reason::DescriptorLimit,
            Err(_) => Reason::OtherHost,
        };
        self.counters.reason(reason);
        guard.change(|stream| stream.inner.proto.handle_no_link(reason));
    }

    /// Forgets a stream that never left plain TCP, or is closed and released.
    pub fn forget(&self, cell: &Arc<StreamCell>) {
        // A thread that still holds the stream must neither open it nor touch the descriptor, which may belong to
        // another connection by now.
        self.promotions.lock().remove(cell);
        let counters = cell.lock(self).change_aside(|stream| {
            stream.abandon();
            if std::mem::take(&mut stream.inner.published) {
                self.directory.withdraw(&cell.tuple(), cell.number);
            }
            stream.inner.counters
        });
        let mut streams = self.streams.write();
        let slot = &mut streams.cells[cell.number as usize];
        if slot.as_ref().is_some_and(|c| Arc::ptr_eq(c, cell)) {
            *slot = None;
            streams.free.push(cell.number);
            drop(streams);
            self.counters.absorb(&counters);
        }
    }
}
