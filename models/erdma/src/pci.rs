//! The configuration space of a real function.
//!
//! Source: erdma_main.c, `erdma_pci_tbl` and `erdma_probe_dev`: vendor 1ded, device 107f, memory BARs 0 and 2 and no
//! other, MSI-X with 32 vectors. QEMU moves BARs and emulates the table of MSI-X by itself, so writes to them have no
//! effect here.

/// Bytes of the space.
pub(crate) const CONFIG_BYTES: u64 = 256;

/// Bytes of BAR 2, which has the table of MSI-X and its pending bits.
pub(crate) const BAR2_BYTES: u64 = 4096;

/// Vectors (`ERDMA_NUM_MSIX_VEC`).
pub(crate) const VECTORS: u16 = 32;

const COMMAND: usize = 0x04;
const INTERRUPT_LINE: usize = 0x3c;
const MSIX: usize = 0x40;
const EXPRESS: usize = 0x60;

/// The bytes that a driver may write.
const WRITABLE: [std::ops::Range<usize>; 3] =
    [COMMAND..COMMAND + 2, INTERRUPT_LINE..INTERRUPT_LINE + 1, MSIX + 2..MSIX + 4];

pub(crate) struct ConfigSpace {
    bytes: [u8; CONFIG_BYTES as usize],
}

impl ConfigSpace {
    pub(crate) fn new() -> ConfigSpace {
        let mut space = ConfigSpace { bytes: [0; CONFIG_BYTES as usize] };
        let mut put = |at: usize, bytes: &[u8]| space.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        // Vendor and device; status: there are capabilities; revision 1; class: Ethernet controller.
        put(0x00, &[0xed, 0x1d, 0x7f, 0x10]);
        put(0x06, &[0x10]);
        put(0x08, &[1, 0, 0, 2]);
        // Subsystem; the first capability.
        put(0x2c, &[0xed, 0x1d, 1, 0]);
        put(0x34, &[MSIX as u8]);
        // MSI-X: the table at the beginning of BAR 2, pending bits in its second half.
        put(MSIX, &[0x11, EXPRESS as u8, VECTORS as u8 - 1, 0, 2, 0, 0, 0, 2, 8, 0, 0]);
        // PCI Express: an endpoint that can be reset.
        put(EXPRESS, &[0x10, 0, 2, 0, 0, 0x80, 0, 0x10]);
        space
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        let from = usize::try_from(offset).ok().and_then(|at| self.bytes.get(at..at.checked_add(into.len())?));
        match from {
            Some(from) => into.copy_from_slice(from),
            None => into.fill(0),
        }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let Ok(offset) = usize::try_from(offset) else { return };
        for (at, byte) in (offset..CONFIG_BYTES as usize).zip(bytes) {
            if WRITABLE.iter().any(|range| range.contains(&at)) {
                self.bytes[at] = *byte;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if the driver does not bind, or a driver can rewrite the identity of the device.
    #[test]
    fn identity_stays() {
        let mut space = ConfigSpace::new();
        space.write(0, &[0xff; 64]);
        space.write(255, &[0xff; 8]);
        space.write(u64::MAX, &[0xff; 8]);
        let mut bytes = [0; 8];
        space.read(0, &mut bytes);
        assert_eq!(bytes, [0xed, 0x1d, 0x7f, 0x10, 0xff, 0xff, 0x10, 0]);
        space.read(u64::MAX - 1, &mut bytes);
        assert_eq!(bytes, [0; 8]);
    }
}
