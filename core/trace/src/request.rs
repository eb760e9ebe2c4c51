//! Requests: a message to a server, and the next one that the server sends back on the connection.
//!
//! The server is the end that has accepted the connection.
//! A request that is sent before the last one was answered belongs to the same answer: programs that send several at a
//! time are seen as one request each time.

use std::collections::BTreeMap;

use crate::message::Message;

/// A request and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The client's message.
    pub request: &'a Message,
    /// The server's.
    pub answer: &'a Message,
}

impl Request<'_> {
    /// From the server's last byte of the request to its call to send the answer, in nanoseconds.
    pub fn serving(&self) -> u64 {
        self.answer.start.saturating_sub(self.request.end())
    }

    /// From the client's call to its last byte of the answer, in nanoseconds.
    pub fn total(&self) -> u64 {
        self.answer.end().saturating_sub(self.request.start)
    }
}

/// The requests among the messages, in the order in which they began.
pub fn requests(messages: &[Message]) -> Vec<Request<'_>> {
    let mut connections: BTreeMap<u64, Vec<&Message>> = BTreeMap::new();
    for message in messages {
        connections.entry(message.connection).or_default().push(message);
    }
    let mut requests = Vec::new();
    for messages in connections.values_mut() {
        messages.sort_by_key(|message| message.start);
        let mut pending: Option<&Message> = None;
        for message in messages {
            pending = pending.filter(|request| request.window == message.window);
            if message.sender.opener {
                pending = pending.or(Some(message));
            } else if let Some(request) = pending.filter(|request| precedes(request, message)) {
                requests.push(Request { request, answer: message });
                pending = None;
            }
        }
    }
    requests.sort_by_key(|request| request.request.start);
    requests
}

/// Whether the server had all of the request when it answered.
fn precedes(request: &Message, answer: &Message) -> bool {
    request.end() <= answer.start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Party, Path};
    use crate::stage::{Stage, Stages};

    fn message(connection: u64, (from, to): (u16, u16), start: u64, duration: u64) -> Message {
        let party = |port| Party { port, opener: port >= 9000, ..Party::default() };
        let mut stages = Stages::default();
        stages.add(Stage::Wire, duration);
        Message {
            window: 0,
            connection,
            sender: party(from),
            receiver: party(to),
            path: Path::Link,
            length: 1,
            start,
            stages,
            hold: None,
        }
    }

    #[test]
    fn an_answer_belongs_to_the_request_before_it() {
        let messages = [
            message(1, (9000, 6379), 100, 10),
            message(1, (6379, 9000), 130, 10),
            message(2, (9001, 6379), 105, 10),
            message(1, (9000, 6379), 150, 10),
        ];
        let found = requests(&messages);
        assert_eq!(found, [Request { request: &messages[0], answer: &messages[1] }]);
        assert_eq!((found[0].serving(), found[0].total()), (20, 40));
    }

    #[test]
    fn a_request_of_an_earlier_window_has_no_answer() {
        let later = Message { window: 1, ..message(1, (6379, 9000), 130, 10) };
        let messages = [message(1, (9000, 6379), 100, 10), message(2, (9001, 6379), 100, 10), later];
        assert!(requests(&messages).is_empty());
    }
}
