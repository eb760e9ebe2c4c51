use super::*;

const CLIENT: usize = 0;
const SERVER: usize = 1;

/// The events of a client and a server with one connection: a thread of each.
#[derive(Default)]
struct Events(Vec<Stamped>);

impl Events {
    fn at(mut self, time: u64, process: usize, point: Point, position: u64) -> Events {
        let client = process == CLIENT;
        let event = Event {
            time,
            point,
            thread: process as u32 + 10,
            connection: 5,
            lower: client,
            local_port: if client { 1000 } else { 80 },
            remote_port: if client { 80 } else { 1000 },
            position,
            amount: 0,
            opener: client,
            reason: 3,
        };
        self.0.push(Stamped { time, process, event });
        self
    }

    fn messages(self) -> Messages {
        Messages::of(&[Window { counted_until: 1000, events: self.0 }])
    }

    fn only(self) -> Message {
        let Messages { messages, cut } = self.messages();
        assert_eq!((messages.len(), cut), (1, 0));
        messages.into_iter().next().expect("one")
    }

    /// The client sends bytes up to `to`, from time 100 on.
    fn sent(self, from: u64, to: u64) -> Events {
        self.at(100, CLIENT, Point::Send, 0)
            .at(110, CLIENT, Point::Claimed, from)
            .at(130, CLIENT, Point::Copied, to)
            .at(135, CLIENT, Point::Posted, to)
    }
}

fn durations(message: &Message) -> Vec<(Stage, u64)> {
    let all = Stage::ALL.into_iter().map(|stage| (stage, message.stages.get(stage)));
    all.filter(|(_, duration)| *duration > 0).collect()
}

#[test]
fn a_receiver_that_polls() {
    let message = Events::default()
        .at(50, SERVER, Point::Wait, 0)
        .sent(40, 50)
        .at(150, SERVER, Point::Arrived, 50)
        .at(155, SERVER, Point::Reported, 0)
        .at(170, SERVER, Point::Recv, 0)
        .at(177, SERVER, Point::Read, 50)
        .only();
    let expected = [
        (Stage::Call, 10),
        (Stage::Copy, 20),
        (Stage::Post, 5),
        (Stage::Wire, 15),
        (Stage::Ready, 20),
        (Stage::Read, 7),
    ];
    assert_eq!(durations(&message), expected);
    assert_eq!((message.start, message.end(), message.length), (100, 177, 10));
    assert_eq!((message.sender.port, message.receiver.port, message.path), (1000, 80, Path::Link));
}

#[test]
fn a_receiver_that_sleeps() {
    let message = Events::default()
        .at(50, SERVER, Point::Wait, 0)
        .at(60, SERVER, Point::Asleep, 0)
        .sent(0, 10)
        .at(190, SERVER, Point::Woken, 0)
        .at(195, SERVER, Point::Arrived, 10)
        .at(200, SERVER, Point::Recv, 0)
        .at(210, SERVER, Point::Read, 10)
        .only();
    assert_eq!(durations(&message)[2..], [(Stage::Wake, 65), (Stage::Ready, 5), (Stage::Read, 10)]);
}

#[test]
fn a_receiver_that_is_busy() {
    let message = Events::default()
        .at(50, SERVER, Point::Wait, 0)
        .at(60, SERVER, Point::Asleep, 0)
        .at(70, SERVER, Point::Woken, 0)
        .sent(0, 10)
        .at(185, SERVER, Point::Wait, 0)
        .at(190, SERVER, Point::Arrived, 10)
        .at(200, SERVER, Point::Recv, 0)
        .at(210, SERVER, Point::Read, 10)
        .only();
    let stages = [Stage::Completion, Stage::Wire, Stage::Wake].map(|stage| message.stages.get(stage));
    assert_eq!(stages, [50, 5, 0]);
}

#[test]
fn a_receiver_that_is_faster_than_the_call_to_post() {
    let message = Events::default()
        .at(100, CLIENT, Point::Send, 0)
        .at(110, CLIENT, Point::Claimed, 0)
        .at(130, CLIENT, Point::Copied, 10)
        .at(131, SERVER, Point::Recv, 0)
        .at(132, SERVER, Point::Arrived, 10)
        .at(135, CLIENT, Point::Posted, 10)
        .at(137, SERVER, Point::Read, 10)
        .only();
    let expected = [(Stage::Call, 10), (Stage::Copy, 20), (Stage::Post, 2), (Stage::Read, 5)];
    assert_eq!(durations(&message), expected);
}

#[test]
fn a_message_in_parts_waits_for_credit_between_them() {
    let message = Events::default()
        .sent(0, 10)
        .at(136, CLIENT, Point::Stalled, 10)
        .at(140, SERVER, Point::Recv, 0)
        .at(141, SERVER, Point::Arrived, 10)
        .at(142, SERVER, Point::Read, 10)
        .at(150, CLIENT, Point::Claimed, 10)
        .at(155, CLIENT, Point::Copied, 15)
        .at(156, CLIENT, Point::Posted, 15)
        .at(160, SERVER, Point::Recv, 0)
        .at(161, SERVER, Point::Arrived, 15)
        .at(162, SERVER, Point::Read, 15);
    let Messages { messages, .. } = message.messages();
    // The first part was read before the sender could go on, so the two are messages of their own.
    assert_eq!(messages.iter().map(|message| message.length).collect::<Vec<_>>(), [10, 5]);

    let message = Events::default()
        .sent(0, 10)
        .at(136, CLIENT, Point::Stalled, 10)
        .at(150, CLIENT, Point::Claimed, 10)
        .at(155, CLIENT, Point::Copied, 15)
        .at(156, CLIENT, Point::Posted, 15)
        .at(160, SERVER, Point::Recv, 0)
        .at(161, SERVER, Point::Arrived, 15)
        .at(162, SERVER, Point::Read, 15)
        .only();
    assert_eq!((message.length, message.stages.get(Stage::Held), message.hold), (15, 15, Some(Hold::Credit)));
}

#[test]
fn held_back_bytes_wait_for_the_message_that_announces_them() {
    let message = Events::default()
        .at(100, CLIENT, Point::Send, 0)
        .at(110, CLIENT, Point::Claimed, 0)
        .at(120, CLIENT, Point::Copied, 8)
        .at(121, CLIENT, Point::Held, 8)
        .at(150, CLIENT, Point::Posted, 8)
        .at(155, SERVER, Point::Recv, 0)
        .at(160, SERVER, Point::Arrived, 8)
        .at(162, SERVER, Point::Read, 8)
        .only();
    assert_eq!((message.stages.get(Stage::Held), message.stages.get(Stage::Post)), (30, 0));
    assert_eq!(message.hold, Some(Hold::Cork));
}

#[test]
fn the_anchor_has_its_own_positions() {
    let message = Events::default()
        .at(90, SERVER, Point::Recv, 0)
        .at(91, SERVER, Point::Asleep, 0)
        .at(100, CLIENT, Point::Send, 0)
        .at(120, CLIENT, Point::AnchorSent, 1_000_010)
        .at(180, SERVER, Point::Woken, 0)
        .at(185, SERVER, Point::AnchorRead, 1_000_010)
        .only();
    assert_eq!(durations(&message), [(Stage::Call, 20), (Stage::Wake, 60), (Stage::Read, 5)]);
    assert_eq!(message.path, Path::Anchor(3));
}

#[test]
fn what_does_not_end_is_cut() {
    let late = Events::default().sent(0, 10).messages();
    assert_eq!((late.messages.len(), late.cut), (0, 1));
    // Not counted, because it began after the part of the window in which messages are.
    let uncounted = Messages::of(&[Window { counted_until: 100, events: Events::default().sent(0, 10).0 }]);
    assert_eq!(uncounted.cut, 0);
}

#[test]
fn a_receiver_that_is_not_traced_takes_no_memory() {
    let mut events = Events::default();
    for n in 0..3000 {
        events = events.at(100 + n, CLIENT, Point::Claimed, n).at(100 + n, CLIENT, Point::Copied, n + 1);
    }
    assert_eq!(events.messages().cut, 900);
}
