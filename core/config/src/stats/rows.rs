//! Snapshots on their way from a process to `netacc_ss`: the long lists are of rows, without the names of their fields.
//!
//! A reader takes either form, since fields that a row does not have are empty.

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use super::{QueuePairStats, Snapshot, SocketStats};

/// A snapshot as a process writes it.
#[derive(Debug, Serialize)]
pub struct Document {
    #[serde(flatten)]
    rest: Snapshot,
    #[serde(skip_serializing_if = "Option::is_none")]
    qp: Option<Rows<QueuePairStats>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sock: Option<Rows<SocketStats>>,
}

impl Document {
    /// About as many bytes as it has when it is written. Arbitrary: a little above what was measured.
    pub fn len_estimate(&self) -> usize {
        let (links, sockets) = (self.qp.as_ref().map_or(0, Rows::count), self.sock.as_ref().map_or(0, Rows::count));
        (16 << 10) + 100 * links + 130 * sockets
    }
}

impl From<Snapshot> for Document {
    fn from(mut rest: Snapshot) -> Self {
        let (qp, sock) = (rest.qp.take().map(Rows), rest.sock.take().map(Rows));
        Self { rest, qp, sock }
    }
}

#[derive(Debug)]
struct Rows<T>(Vec<T>);

impl<T> Rows<T> {
    fn count(&self) -> usize {
        self.0.len()
    }
}

impl<T: Fields> Serialize for Rows<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Row))
    }
}

struct Row<'a, T>(&'a T);

impl<T: Fields> Serialize for Row<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_seq(None)?;
        self.0.write(&mut row)?;
        row.end()
    }
}

trait Fields {
    /// Writes all fields, in the order of their declaration.
    fn write<S: SerializeSeq>(&self, row: &mut S) -> Result<(), S::Error>;
}

macro_rules! fields {
    ($type:ty: $($field:ident)*) => {
        impl Fields for $type {
            fn write<S: SerializeSeq>(&self, row: &mut S) -> Result<(), S::Error> {
                // A field that is missing here is an error of the compiler.
                let Self { $($field),* } = self;
                $(row.serialize_element($field)?;)*
                Ok(())
            }
        }
    };
}

fields!(QueuePairStats: qp backend state peer streams rx_msgs rx_bytes tx_msgs tx_bytes);
fields!(SocketStats: fd local remote listening path reason state rx_bytes_link tx_bytes_link rx_msgs_link tx_msgs_link
    rx_bytes_tcp tx_bytes_tcp qp answer_ns_tcp answer_ns_link bulk_bytes_per_s_tcp bulk_bytes_per_s_link);

#[cfg(test)]
mod tests {
    use super::super::Path;
    use super::*;

    /// No two fields have the same value.
    fn snapshot() -> Snapshot {
        let link = QueuePairStats {
            qp: 1,
            backend: "b".into(),
            state: "s".into(),
            peer: "p".into(),
            streams: 2,
            rx_msgs: 3,
            rx_bytes: 4,
            tx_msgs: 5,
            tx_bytes: 6,
        };
        let socket = SocketStats {
            fd: 1,
            local: "l".into(),
            remote: "r".into(),
            listening: true,
            path: Path::Link,
            reason: "why".into(),
            state: "s".into(),
            rx_bytes_link: 2,
            tx_bytes_link: 3,
            rx_msgs_link: 4,
            tx_msgs_link: 5,
            rx_bytes_tcp: 6,
            tx_bytes_tcp: 7,
            qp: Some(8),
            answer_ns_tcp: Some(9),
            answer_ns_link: Some(10),
            bulk_bytes_per_s_tcp: Some(11),
            bulk_bytes_per_s_link: Some(12),
        };
        Snapshot {
            program: "x".into(),
            qp: Some(vec![link, QueuePairStats::default()]),
            sock: Some(vec![socket, SocketStats::default()]),
            ..Snapshot::default()
        }
    }

    // Breaks if a row had its fields in another order than the declaration.
    #[test]
    fn a_document_is_read_as_the_snapshot_that_it_was_made_from() {
        let written = serde_json::to_string(&Document::from(snapshot())).expect("plain data");
        assert_eq!(serde_json::from_str::<Snapshot>(&written).expect("as written"), snapshot());
        let none = serde_json::to_string(&Document::from(Snapshot::default())).expect("plain data");
        assert_eq!(none, serde_json::to_string(&Snapshot::default()).expect("plain data"));
    }

    // Breaks if the process wrote the name of each field again for each of its 20,000 connections.
    #[test]
    fn a_connection_takes_few_bytes() {
        let socket = SocketStats {
            fd: 12_345,
            local: "127.0.0.1:43883".into(),
            remote: "127.0.0.1:60680".into(),
            path: Path::Link,
            state: "linked".into(),
            rx_bytes_link: 4608,
            tx_bytes_link: 4608,
            rx_msgs_link: 72,
            tx_msgs_link: 72,
            qp: Some(8_396_802),
            ..SocketStats::default()
        };
        let link = QueuePairStats {
            qp: 8_396_802,
            backend: "shm".into(),
            state: "connected".into(),
            peer: "127.0.0.1:60680".into(),
            streams: 1,
            rx_msgs: 72,
            rx_bytes: 4608,
            tx_msgs: 72,
            tx_bytes: 4608,
        };
        let (sock, qp) = (Some(vec![socket; 1000]), Some(vec![link; 1000]));
        let document = Document::from(Snapshot { sock, qp, ..Snapshot::default() });
        let len = serde_json::to_vec(&document).expect("plain data").len();
        assert!(len < 1000 * 210, "{len}");
        assert!(len < document.len_estimate(), "{len}");
    }
}
