//! The host of a function, as traits: memory and interrupts.

/// An address at which the guest has no memory, or not as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {address:#x} are not all in the guest's memory")]
pub struct OutsideMemory {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

/// The guest's physical memory, for a device. The guest's processors use it at the same time.
pub trait GuestMemory {
    /// Reads.
    ///
    /// # Errors
    /// Nothing was read if the range is not completely in memory.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), OutsideMemory>;

    /// Writes.
    ///
    /// # Errors
    /// Nothing was written if the range is not completely in memory.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), OutsideMemory>;

    /// Writes an entry of a queue whose owner bit is in the first four bytes. These come last, so that a processor that
    /// sees them sees all of the entry.
    ///
    /// # Errors
    /// Nothing was written if the range is not completely in memory.
    fn publish(&mut self, address: u64, entry: &[u8]) -> Result<(), OutsideMemory>;

    /// Replaces the double word at a multiple of 8, with no access of a processor in between; returns the old one.
    ///
    /// # Errors
    /// `change` was not called if the double word is not in memory.
    fn update(&mut self, address: u64, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, OutsideMemory>;
}

/// The function's interrupts: message-signalled, edge-triggered.
pub trait Interrupts {
    /// Raises one. Vectors that the guest has not set up do nothing.
    fn raise(&mut self, vector: u16);
}

/// Memory and interrupts of one machine.
pub trait Host: GuestMemory + Interrupts {}

impl<T: GuestMemory + Interrupts> Host for T {}
