//! A piece of a program.

use crate::decode::MAX_LEN;

/// Bytes as they are in the file, and the address of the first.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The address of the first one.
    pub address: u64,
}

impl Code<'_> {
    /// The longest piece that an instruction at this offset may take, to the end of the code.
    pub(crate) fn window(&self, at: usize) -> &[u8] {
        &self.bytes[at.min(self.bytes.len())..self.bytes.len().min(at + MAX_LEN)]
    }
}
