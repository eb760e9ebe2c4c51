//! The decoders of immediates, control messages and records.

use netacc_proto::{ControlMessage, Immediate, Record, CONTROL_SLOT_LEN, RECORD_LEN};

/// Decodes the bytes as everything that they could be. Accepted bytes must encode to the same bytes.
///
/// # Panics
/// If a decoder panics, or accepts bytes that its encoder would not have written.
pub fn encodings(bytes: &[u8]) {
    if let Some(bits) = bytes.first_chunk() {
        let bits = u32::from_le_bytes(*bits);
        if let Ok(immediate) = Immediate::decode(bits) {
            // REWIND of a message that has no bytes is read and means nothing.
            assert_eq!(immediate.encode(), bits);
        }
    }
    if let Ok(message) = ControlMessage::decode(bytes) {
        let encoded = message.encode();
        assert_eq!(ControlMessage::decode(&encoded), Ok(message));
        let read = bytes.len().min(CONTROL_SLOT_LEN);
        // Bytes after a message are not looked at, and are zero when it is written.
        let written = encoded.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        assert_eq!(bytes[..written.min(read)], encoded[..written.min(read)]);
    }
    if let Some(bytes) = bytes.first_chunk::<RECORD_LEN>() {
        if let Ok(record) = Record::decode(bytes) {
            assert_eq!(record.encode(), *bytes);
            assert!(Record::could_begin(bytes, &record.token));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_proto::{Hello, RecordKind};

    // Breaks if a decoder panicked on bytes that are no message.
    #[test]
    fn noise_is_refused_or_read_exactly() {
        for seed in 0..20_000 {
            let mut bytes = crate::noise(seed, 1 + seed as usize % (CONTROL_SLOT_LEN + 8));
            encodings(&bytes);
            // Most types are refused in their first two bytes: try the seven that exist.
            bytes[0] = 1 + (seed % 7) as u8;
            if let Some(reserved) = bytes.get_mut(1) {
                *reserved = 0;
            }
            encodings(&bytes);
        }
    }

    // Breaks if the comparison with what was read compared nothing: these are accepted.
    #[test]
    fn encoded_messages_are_decoded() {
        let hello = Hello {
            version: netacc_proto::VERSION,
            receive_depth: 9,
            max_streams: 3,
            credential: None,
            datagrams: false,
        };
        let message = ControlMessage::Hello(hello).encode();
        assert!(ControlMessage::decode(&message).is_ok());
        encodings(&message);
        let record = Record { kind: RecordKind::Resume, position: 7, end: 9, token: [3; 16] }.encode();
        assert!(Record::decode(&record).is_ok());
        encodings(&record);
    }
}
