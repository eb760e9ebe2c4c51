//! The code of the fuzz targets: one function for each target, from bytes, which panics if a promise is broken.
//!
//! * [`encodings`]: the decoders of everything that a peer can send, alone. A million inputs a second.
//! * [`code`]: the changes of a static program, of any contents.
//! * [`datagrams`]: both ends of a flow of datagrams, and what shares memory with them.
//! * [`stranger`]: a peer that follows no rules, at the surface of a whole endpoint. It must not make the endpoint panic,
//!   nor harm a connection that is not its own.
//! * [`Differential::check`]: a generated program of socket operations, on the core in simulation and on kernel TCP.
//! * [`OnLibrary::check`]: the same on the library with shared memory, in real processes, and on kernel TCP.
//!
//! The targets themselves are in `targets/`, a workspace of its own, as cargo-fuzz wants it. Here the functions are
//! compiled and tested with everything else.

mod code;
mod datagrams;
mod encodings;
mod executor;
mod library;
mod program;
mod stranger;

pub use code::code;
pub use datagrams::datagrams;
pub use encodings::encodings;
pub use executor::DifferentialError;
pub use library::{OnLibrary, COUNTERS};
pub use program::Differential;
pub use stranger::stranger;

/// Bytes that look random, for tests: the same for the same seed.
#[cfg(test)]
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
