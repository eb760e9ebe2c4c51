//! Events of a device's objects that are not completions.
//!
//! On eRDMA a queue pair that died may complete nothing any more: then this is its only event.

use super::abi;
use super::objects::Context;

/// The object of the event. Objects are identified by their addresses: events may be about the objects of others, which
/// are not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    QueuePair(usize),
    CompletionQueue(usize),
    Device,
    /// No object has died.
    Nothing,
}

impl Trouble {
    fn of(event: &abi::AsyncEvent) -> Trouble {
        let address = event.element as usize;
        match event.event_type {
            abi::EVENT_QP_FATAL | abi::EVENT_QP_REQ_ERR | abi::EVENT_QP_ACCESS_ERR => Trouble::QueuePair(address),
            abi::EVENT_CQ_ERR => Trouble::CompletionQueue(address),
            abi::EVENT_DEVICE_FATAL => Trouble::Device,
            _ => Trouble::Nothing,
        }
    }
}

impl Context {
    /// Takes the next event, if there is one: `find` finds our object that it is about. Until `find` returns, that
    /// object is not destroyed; so `find` must destroy none itself.
    pub(crate) fn next_trouble<T>(&self, find: impl FnOnce(Trouble) -> T) -> Option<T> {
        let mut event = abi::AsyncEvent::default();
        // SAFETY: the context is open and its descriptor does not block; the event is writable.
        if unsafe { (self.library.ibv_get_async_event)(self.raw.as_ptr(), &raw mut event) } != 0 {
            return None;
        }
        let found = find(Trouble::of(&event));
        // SAFETY: taken above, acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if the end of a queue pair were missed, or another event taken for an end.
    #[test]
    fn events_name_the_dead_queue_pairs() {
        let trouble = |event_type| Trouble::of(&abi::AsyncEvent { element: 0x1000 as *mut _, event_type });
        assert_eq!(trouble(0), Trouble::CompletionQueue(0x1000));
        for event in 1..=3 {
            assert_eq!(trouble(event), Trouble::QueuePair(0x1000));
        }
        assert_eq!(trouble(8), Trouble::Device);
        for event in (4..40).filter(|event| *event != 8).chain([-1]) {
            assert_eq!(trouble(event), Trouble::Nothing, "{event}");
        }
    }
}
