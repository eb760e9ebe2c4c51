//! A stream's anchor, made when it is first used: most short connections end before that.

use std::cell::OnceCell;
use std::ops::{Deref, DerefMut};

use netacc_device::{Anchor, AnchorError, AnchorPosition};

/// An anchor that may not have been made yet.
pub struct LazyAnchor {
    made: OnceCell<Box<dyn Anchor + Send>>,
    source: Source,
}

/// How the owner makes an anchor from a number of its own: that of a descriptor.
#[derive(Clone, Copy)]
struct Source {
    number: i32,
    make: fn(i32) -> Box<dyn Anchor + Send>,
}

impl LazyAnchor {
    /// An anchor that `make` makes of `number`, once it is needed.
    #[inline]
    pub fn new(number: i32, make: fn(i32) -> Box<dyn Anchor + Send>) -> LazyAnchor {
        LazyAnchor { made: OnceCell::new(), source: Source { number, make } }
    }

    /// The anchor of a closed stream.
    #[inline]
    pub(crate) fn gone() -> LazyAnchor {
        LazyAnchor::new(0, |_| Box::new(GoneAnchor))
    }
}

impl<A: Anchor + Send + 'static> From<Box<A>> for LazyAnchor {
    fn from(anchor: Box<A>) -> LazyAnchor {
        LazyAnchor::from(anchor as Box<dyn Anchor + Send>)
    }
}

impl From<Box<dyn Anchor + Send>> for LazyAnchor {
    fn from(anchor: Box<dyn Anchor + Send>) -> LazyAnchor {
        LazyAnchor { made: OnceCell::from(anchor), ..LazyAnchor::gone() }
    }
}

impl Deref for LazyAnchor {
    type Target = dyn Anchor + Send;

    fn deref(&self) -> &Self::Target {
        &**self.made.get_or_init(|| self.source.make())
    }
}

impl DerefMut for LazyAnchor {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.made.get_or_init(|| self.source.make());
        &mut **self.made.get_mut().expect("it has just been made")
    }
}

impl Source {
    fn make(self) -> Box<dyn Anchor + Send> {
        (self.make)(self.number)
    }
}

/// Stands in for the anchor of a closed stream whose link still has CLOSE to exchange.
struct GoneAnchor;

impl Anchor for GoneAnchor {
    fn try_write(&mut self, _: &[u8]) -> Result<usize, AnchorError> {
        Err(AnchorError::WouldBlock)
    }
    fn try_read(&mut self, _: &mut [u8]) -> Result<usize, AnchorError> {
        Err(AnchorError::WouldBlock)
    }
    fn try_peek(&mut self, _: &mut [u8]) -> Result<usize, AnchorError> {
        Err(AnchorError::WouldBlock)
    }
    fn position(&self) -> Option<AnchorPosition> {
        None
    }
    fn shutdown_write(&mut self) -> Result<(), AnchorError> {
        Ok(())
    }
    fn shutdown_read(&mut self) -> Result<(), AnchorError> {
        Ok(())
    }
    fn is_broken(&self) -> bool {
        false
    }
    fn is_over(&self) -> bool {
        true
    }
    fn is_ended(&self) -> bool {
        true
    }
    fn unread(&self) -> u64 {
        0
    }
    fn clear_error(&mut self) {}
    fn abort(&mut self) {}
    fn reset(&mut self) {}
    fn set_low_water(&mut self, _: u32) {}
}
