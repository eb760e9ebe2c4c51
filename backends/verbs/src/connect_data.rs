//! The private data that the two ends of a link exchange while they connect.

use netacc_device::{RemoteKey, RemoteRegion, MAX_PRIVATE_DATA};

/// The private data of a request or a reply. Some devices pad private data with zeros, so it has a length of its own.
pub(crate) struct ConnectData {
    /// The port at which the sender accepts links.
    pub(crate) port: u16,
    /// Its first region.
    pub(crate) region: RemoteRegion,
    /// The user's data.
    pub(crate) data: Vec<u8>,
}

const VERSION: u8 = 1;
const CONNECT_DATA_LEN: usize = 20 + MAX_PRIVATE_DATA;

impl ConnectData {
    pub(crate) fn encode(&self) -> [u8; CONNECT_DATA_LEN] {
        let mut bytes = [0; CONNECT_DATA_LEN];
        bytes[0] = VERSION;
        bytes[1] = self.data.len() as u8;
        bytes[2..4].copy_from_slice(&self.port.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.region.rkey.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.region.base.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.region.len.to_le_bytes());
        bytes[20..20 + self.data.len()].copy_from_slice(&self.data);
        bytes
    }

    /// `None`: this backend did not make it.
    pub(crate) fn parse(bytes: &[u8]) -> Option<ConnectData> {
        let bytes = bytes.get(..CONNECT_DATA_LEN)?;
        let len = usize::from(bytes[1]);
        if bytes[0] != VERSION || len > MAX_PRIVATE_DATA {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let base = u64::from(word(8)) | u64::from(word(12)) << 32;
        base.checked_add(u64::from(word(16)))?;
        Some(ConnectData {
            port: u16::from_le_bytes([bytes[2], bytes[3]]),
            region: RemoteRegion { rkey: RemoteKey(word(4)), base, len: word(16) },
            data: bytes[20..20 + len].to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ConnectData {
        let region = RemoteRegion { rkey: RemoteKey(7), base: 0x1234_5678_9abc_d000, len: 4096 };
        ConnectData { port: 26379, region, data: b"proof".to_vec() }
    }

    #[test]
    fn connect_data_is_read_back_also_with_padding() {
        let mut bytes = sample().encode().to_vec();
        assert!(bytes.len() <= 56, "RoCE carries no more with a request");
        bytes.resize(56, 0);
        let back = ConnectData::parse(&bytes).expect("whole");
        assert_eq!((back.port, back.region, back.data), (26379, sample().region, b"proof".to_vec()));
    }

    #[test]
    fn foreign_connect_data_is_refused() {
        let good = sample().encode();
        assert!(ConnectData::parse(&good[..CONNECT_DATA_LEN - 1]).is_none(), "too short");
        for (place, value) in [(0, 0), (0, 2), (1, MAX_PRIVATE_DATA as u8 + 1), (1, 255)] {
            let mut bytes = good;
            bytes[place] = value;
            assert!(ConnectData::parse(&bytes).is_none(), "byte {place} = {value}");
        }
        let mut bytes = good;
        bytes[8..20].fill(0xff);
        assert!(ConnectData::parse(&bytes).is_none(), "a region beyond the end of addresses");
    }
}
