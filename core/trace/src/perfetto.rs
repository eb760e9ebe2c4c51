//! A timeline in the Trace Event Format (JSON), which Perfetto and other viewers of traces read: calls, waits and sleeps of each
//! thread, and the stages of each message, with an arrow from its sender to its receiver.

use std::collections::HashMap;
use std::io::{self, Write};

use netacc_config::trace::Point;
use serde_json::{json, Value};

use crate::message::{Message, Process, Stamped, Window};
use crate::stage::Stage;

/// Writes the timeline, until the end of the last one of the messages. Times in it are in microseconds, since its first slice
/// or message.
///
/// # Errors
/// The writer's.
pub fn write(out: &mut impl Write, processes: &[Process], windows: &[Window], messages: &[Message]) -> io::Result<()> {
    let end = messages.iter().map(Message::end).max().unwrap_or(0);
    let slices: Vec<_> =
        windows.iter().flat_map(|window| slices(&window.events)).filter(|slice| slice.end <= end).collect();
    let begins = slices.iter().map(|slice| slice.start).chain(messages.iter().map(|message| message.start));
    let origin = begins.min().unwrap_or(0);
    let mut list = Lines { out, origin, first: true };
    list.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    for process in processes {
        list.push(&json!({"ph": "M", "name": "process_name", "pid": process.pid, "args": {"name": process.program}}))?;
    }
    for slice in slices {
        let pid = processes.get(slice.process).map_or(0, |process| process.pid);
        list.slice(slice.name, pid, slice.thread.into(), (slice.start, slice.end), &Value::Null)?;
    }
    for (number, message) in messages.iter().enumerate() {
        list.message(number, processes, message)?;
    }
    list.out.write_all(b"\n]}\n")
}

/// A part of a thread's time.
struct Slice {
    process: usize,
    thread: u32,
    name: &'static str,
    start: u64,
    end: u64,
}

/// The waits and sleeps of threads in one window: what was not recorded between two windows would join the beginning of one
/// wait with the end of another.
fn slices(events: &[Stamped]) -> Vec<Slice> {
    let mut events = events.to_vec();
    events.sort_by_key(|stamped| stamped.time);
    let mut begun: HashMap<(usize, u32, Point), u64> = HashMap::new();
    let mut slices = Vec::new();
    for Stamped { time, process, event } in &events {
        let (begin, name) = match event.point {
            Point::Wait | Point::Asleep => {
                begun.insert((*process, event.thread, event.point), *time);
                continue;
            }
            Point::Reported => (Point::Wait, "wait"),
            Point::Woken => (Point::Asleep, "asleep"),
            _ => continue,
        };
        if let Some(start) = begun.remove(&(*process, event.thread, begin)) {
            slices.push(Slice { process: *process, thread: event.thread, name, start, end: *time });
        }
    }
    slices
}

/// The list of events of the format.
struct Lines<'a, W> {
    out: &'a mut W,
    origin: u64,
    first: bool,
}

impl<W: Write> Lines<'_, W> {
    fn push(&mut self, event: &Value) -> io::Result<()> {
        self.out.write_all(if std::mem::take(&mut self.first) { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    fn microseconds(&self, time: u64) -> f64 {
        time.saturating_sub(self.origin) as f64 / 1000.0
    }

    fn slice(&mut self, name: &str, pid: u32, thread: u64, (start, end): (u64, u64), args: &Value) -> io::Result<()> {
        let (ts, dur) = (self.microseconds(start), end.saturating_sub(start) as f64 / 1000.0);
        self.push(&json!({"ph": "X", "name": name, "pid": pid, "tid": thread, "ts": ts, "dur": dur, "args": args}))
    }

    /// The stages as a track of the message's own, the calls of both threads, and an arrow between these.
    fn message(&mut self, number: usize, processes: &[Process], message: &Message) -> io::Result<()> {
        let pid = |process: usize| processes.get(process).map_or(0, |process| process.pid);
        let (sender, receiver) = (message.sender, message.receiver);
        let args = json!({
            "connection": format!("{:016x}", message.connection),
            "ports": format!("{} to {}", sender.port, receiver.port),
            "bytes": message.length,
        });
        let place = Track { id: number, pid: pid(sender.process) };
        self.part(&place, "message", (message.start, message.end()), &args)?;
        let mut time = message.start;
        for stage in Stage::ALL {
            let duration = message.stages.get(stage);
            if duration > 0 {
                self.part(&place, stage.name(), (time, time + duration), &Value::Null)?;
            }
            time += duration;
        }
        let sent = [Stage::Call, Stage::Copy, Stage::Post].map(|stage| message.stages.get(stage)).iter().sum::<u64>();
        let read = message.end() - message.stages.get(Stage::Read);
        self.slice("send", pid(sender.process), sender.thread.into(), (message.start, message.start + sent), &args)?;
        self.slice("read", pid(receiver.process), receiver.thread.into(), (read, message.end()), &args)?;
        for (phase, party, at) in [("s", sender, message.start), ("f", receiver, message.end())] {
            let ts = self.microseconds(at);
            self.push(&json!({
                "ph": phase, "bp": "e", "id": number, "name": "message", "cat": "flow",
                "pid": pid(party.process), "tid": party.thread, "ts": ts,
            }))?;
        }
        Ok(())
    }

    fn part(&mut self, track: &Track, name: &str, (start, end): (u64, u64), args: &Value) -> io::Result<()> {
        for (phase, at) in [("b", start), ("e", end)] {
            let ts = self.microseconds(at);
            self.push(&json!({
                "ph": phase, "cat": "message", "id2": {"local": track.id}, "pid": track.pid, "name": name, "ts": ts, "args": args,
            }))?;
        }
        Ok(())
    }
}

/// The track of a message, among those of its sender's process.
struct Track {
    id: usize,
    pid: u32,
}

#[cfg(test)]
mod tests {
    use netacc_config::trace::Event;

    use super::*;
    use crate::message::{Party, Path};
    use crate::stage::Stages;

    fn message() -> Message {
        let mut stages = Stages::default();
        stages.add(Stage::Copy, 2000);
        stages.add(Stage::Read, 1000);
        Message {
            window: 0,
            connection: 1,
            sender: Party { process: 0, thread: 5, port: 1, opener: true },
            receiver: Party { process: 1, thread: 6, port: 2, opener: false },
            path: Path::Link,
            length: 3,
            start: 10_000,
            stages,
            hold: None,
        }
    }

    fn event(point: Point) -> Event {
        Event {
            time: 0,
            point,
            thread: 5,
            connection: 0,
            lower: true,
            local_port: 0,
            remote_port: 0,
            position: 0,
            amount: 0,
            reason: 0,
            opener: false,
        }
    }

    fn timeline(windows: &[Window]) -> Vec<Value> {
        let processes = [(1, "client"), (2, "\"server")].map(|(pid, name)| Process { pid, program: name.into() });
        let mut out = Vec::new();
        write(&mut out, &processes, windows, &[message()]).expect("memory");
        let timeline: Value = serde_json::from_slice(&out).expect("JSON");
        timeline["traceEvents"].as_array().expect("a list").clone()
    }

    // Breaks if a wait begins in one window and ends in the next one: many others may have passed between the two.
    #[test]
    fn waits_lie_within_one_window() {
        let at = |time, point| Stamped { time, process: 0, event: event(point) };
        let window = |events: Vec<Stamped>| Window { counted_until: 0, events };
        let first = vec![at(5_000, Point::Wait), at(3_000, Point::Reported), at(2_000, Point::Wait)];
        let second = vec![at(9_000, Point::Reported)];
        let waits = timeline(&[window(first), window(second)]).into_iter().filter(|event| event["name"] == "wait");
        assert_eq!(waits.map(|wait| wait["dur"].as_f64()).collect::<Vec<_>>(), [Some(1.0)]);
    }

    #[test]
    fn the_timeline_is_json_in_which_every_part_ends() {
        let events = timeline(&[]);
        let count = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
        assert_eq!((count("M"), count("b"), count("e"), count("X"), count("s"), count("f")), (2, 3, 3, 2, 1, 1));
        assert!(events.iter().any(|event| event["name"] == "read" && event["ts"] == 2.0 && event["dur"] == 1.0));
        // A number without a process would put the message outside all processes.
        assert!(events.iter().filter(|event| event["cat"] == "message").all(|event| event["id2"]["local"] == 0));
    }
}
