//! Records the calls on a device as JSON lines, and reads them back.
//!
//! The first line is a [`Header`]; each further line is a [`RecordLine`]: a running number and the event's own
//! fields. Errors of the writer do not disturb the device: the first one is kept, recording stops, and
//! [`Recorder::finish`] reports it.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Event, Observer, Record, Trace};
use crate::{Capabilities, Device};

/// Names the format of a recording, and its version.
const FORMAT: &str = "netacc-device-record/1";

/// First line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Always `netacc-device-record/1`.
    pub format: String,
    /// The recorded device's name.
    pub device: String,
    /// Its capabilities.
    pub capabilities: Capabilities,
}

/// One recorded call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordLine {
    /// Running number, from 0. With threads: the order in which calls returned, nearly.
    pub number: u64,
    /// The call.
    #[serde(flatten)]
    pub event: Event,
}

/// An [`Observer`] that writes JSON lines.
pub struct Recorder<W> {
    state: Mutex<RecorderState<W>>,
    skip_idle: bool,
}

struct RecorderState<W> {
    writer: W,
    next: u64,
    error: Option<io::Error>,
}

impl<D: Device + ?Sized, W: Write + Send> Record<D, W> {
    /// Records `inner` into `writer`, header first. `skip_idle` leaves out calls that only polled and found nothing.
    ///
    /// # Errors
    /// When the header cannot be written.
    pub fn start(inner: Arc<D>, mut writer: W, skip_idle: bool) -> io::Result<Record<D, W>> {
        let (device, capabilities) = (inner.name().to_owned(), inner.capabilities().clone());
        write_line(&mut writer, &Header { format: FORMAT.to_owned(), device, capabilities })?;
        let state = Mutex::new(RecorderState { writer, next: 0, error: None });
        Ok(Trace::new(inner, Recorder { state, skip_idle }))
    }
}

impl<W: Write + Send> Recorder<W> {
    /// Flushes and gives the writer back.
    ///
    /// # Errors
    /// The first error met while recording.
    pub fn finish(self) -> io::Result<W> {
        let RecorderState { mut writer, error, .. } = self.state.into_inner();
        if let Some(error) = error {
            return Err(error);
        }
        writer.flush()?;
        Ok(writer)
    }
}

impl<W: Write + Send> Observer for Recorder<W> {
    fn observe(&self, event: &Event) {
        if self.skip_idle && event.is_idle() {
            return;
        }
        let mut state = self.state.lock();
        if state.error.is_some() {
            return;
        }
        let line = RecordLine { number: state.next, event: event.clone() };
        state.next += 1;
        state.error = write_line(&mut state.writer, &line).err();
    }
}

fn write_line(writer: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    writer.write_all(&text)
}

/// The reason why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Reading failed.
    #[error("cannot read line {line}: {source}")]
    Io {
        /// Line number, from 1.
        line: u64,
        /// The reader's error.
        #[source]
        source: io::Error,
    },
    /// A recorder of this version does not write such a line.
    #[error("line {line} is not a record: {source}")]
    Malformed {
        /// Line number, from 1.
        line: u64,
        /// The error in it.
        #[source]
        source: serde_json::Error,
    },
    /// No header, or another format's.
    #[error("not a {FORMAT} recording")]
    NotARecording,
    /// A running number is missing or repeated.
    #[error("line {line} has number {found} where {expected} was due")]
    OutOfSequence {
        /// Line number, from 1.
        line: u64,
        /// The number it has.
        found: u64,
        /// The number it should have.
        expected: u64,
    },
}

/// Reads a recording line by line; ends after the first error.
pub struct RecordReader<R> {
    lines: io::Lines<R>,
    line: u64,
    failed: bool,
}

/// Reads the header of a recording; the rest comes from the returned reader.
///
/// # Errors
/// When there is no header of this format.
pub fn read_records<R: BufRead>(reader: R) -> Result<(Header, RecordReader<R>), ReadError> {
    let mut lines = reader.lines();
    let first = lines.next().ok_or(ReadError::NotARecording)?.map_err(|source| ReadError::Io { line: 1, source })?;
    let header: Header = serde_json::from_str(&first).map_err(|source| ReadError::Malformed { line: 1, source })?;
    if header.format != FORMAT {
        return Err(ReadError::NotARecording);
    }
    Ok((header, RecordReader { lines, line: 1, failed: false }))
}

impl<R: BufRead> Iterator for RecordReader<R> {
    type Item = Result<RecordLine, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let text = if self.failed { None } else { self.lines.next() }?;
        self.line += 1;
        let line = self.line;
        let expected = line - 2;
        let parsed = text
            .map_err(|source| ReadError::Io { line, source })
            .and_then(|text| serde_json::from_str(&text).map_err(|source| ReadError::Malformed { line, source }))
            .and_then(|record: RecordLine| match record.number {
                found if found != expected => Err(ReadError::OutOfSequence { line, found, expected }),
                _ => Ok(record),
            });
        self.failed = parsed.is_err();
        Some(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::{DeliveryMode, Fabric, LoopbackConfig};
    use crate::{
        Completion, CompletionEvents, CompletionQueueId, CompletionStatus, Operation, Payload, PostError, QueuePairId,
        RemoteKey, WorkCompletion, WorkRequest, WorkRequestId,
    };

    fn record(f: impl Fn(&dyn Device)) -> Vec<u8> {
        let device = Fabric::new(DeliveryMode::Immediate).open(LoopbackConfig::shm());
        let record = Record::start(device, Vec::new(), false).expect("a Vec takes everything");
        f(&record);
        record.into_observer().finish().expect("a Vec takes everything")
    }

    // Breaks if a field is lost or changed on the way through JSON.
    #[test]
    fn a_recording_is_read_back() {
        let qp = QueuePairId(9);
        let bytes = record(|d| {
            d.create_cq().expect("the first queue fits");
            d.arm(CompletionQueueId(0));
            let operation = Operation::Write { rkey: RemoteKey(u32::MAX), offset: u64::MAX, imm: Some(7) };
            let payload = Payload::Inline(b"abc");
            let _ = d.post_send(qp, &[WorkRequest { id: WorkRequestId(u64::MAX), operation, payload, signaled: true }]);
            let _ = d.window(qp, crate::RemoteRegion { rkey: RemoteKey(1), base: u64::MAX - 1, len: 3 });
        });
        let (header, reader) = read_records(&bytes[..]).expect("has a header");
        assert_eq!(header.capabilities, LoopbackConfig::shm().capabilities);
        let events: Vec<Event> = reader.map(|r| r.expect("each line parses").event).collect();
        assert_eq!(events.len(), 4);
        let Event::PostSend { requests, result, .. } = &events[2] else { panic!("not a post: {:?}", events[2]) };
        assert_eq!((requests[0].id, requests[0].len, *result), (WorkRequestId(u64::MAX), 3, Err(PostError::Dead)));
        assert!(matches!(&events[3], Event::Window { remote, .. } if remote.base == u64::MAX - 1));
    }

    // Breaks if any kind of event has no JSON form that reads back as itself.
    #[test]
    fn every_completion_survives() {
        let wc = |completion, status| WorkCompletion { qp: QueuePairId(1), status, completion };
        let event = Event::PollQp {
            qp: QueuePairId(1),
            completions: vec![
                wc(Completion::Send { id: WorkRequestId(2) }, CompletionStatus::Other(77)),
                wc(Completion::Receive { imm: 3, len: 4 }, CompletionStatus::Success),
                wc(Completion::Disconnected, CompletionStatus::Flushed),
            ],
        };
        let line = RecordLine { number: 0, event };
        let text = serde_json::to_string(&line).expect("serialises");
        assert_eq!(serde_json::from_str::<RecordLine>(&text).expect("parses"), line);
    }

    // Breaks if damage is skipped silently.
    #[test]
    fn damage_is_reported() {
        let bytes = record(|d| (0..3).for_each(|_| d.wake_qp(QueuePairId(1))));
        let text = String::from_utf8(bytes).expect("JSON is UTF-8");
        let without_second: String =
            text.lines().enumerate().filter(|(i, _)| *i != 2).map(|(_, l)| format!("{l}\n")).collect();
        let results: Vec<_> = read_records(without_second.as_bytes()).expect("has a header").1.collect();
        assert!(matches!(results[..], [Ok(_), Err(ReadError::OutOfSequence { line: 3, found: 2, expected: 1 })]));
        let cut = &text[..text.len() - 5];
        assert!(matches!(
            read_records(cut.as_bytes()).expect("has a header").1.last(),
            Some(Err(ReadError::Malformed { .. }))
        ));
        assert!(matches!(read_records(&b""[..]), Err(ReadError::NotARecording)));
    }

    // Breaks if a full disk disturbs the device or is not reported.
    #[test]
    fn the_first_write_error_is_kept() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if bytes.len() > self.0 {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.0 -= bytes.len();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let device = Fabric::new(DeliveryMode::Immediate).open(LoopbackConfig::shm());
        let record = Record::start(device, Full(600), true).expect("the header fits");
        (0..100).for_each(|_| record.wake_qp(QueuePairId(1)));
        assert!(record.create_cq().is_ok());
        let error = record.into_observer().finish().err().map(|e| e.kind());
        assert_eq!(error, Some(io::ErrorKind::StorageFull));
    }
}
