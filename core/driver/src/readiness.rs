//! The result that `poll` would report for a stream, kept in one atomic word so that a reader does not need the
//! stream's lock.

bitflags::bitflags! {
    /// Readiness of a stream. `KERNEL_*` mean that the kernel's own answer for the anchor decides that direction.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Readiness: u32 {
        /// Data, end of stream or an error can be read without waiting.
        const READABLE = 1;
        /// A write would make progress, or fail at once.
        const WRITABLE = 2;
        /// The peer has ended its direction.
        const RDHUP = 4;
        /// Both directions have ended.
        const HUP = 8;
        /// The stream has failed.
        const ERR = 16;
        /// Reads come from the anchor: poll the kernel.
        const KERNEL_RX = 32;
        /// Writes go to the anchor: poll the kernel.
        const KERNEL_TX = 64;
        /// The owner has something to report beside the stream: see `StreamCell::set_notice`.
        const NOTICE = 128;
    }
}
