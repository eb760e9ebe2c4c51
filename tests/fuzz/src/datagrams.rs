//! Both ends of a flow of datagrams, with a model of the kernel's socket between them.

use std::collections::VecDeque;

use netacc_datagram::{inbox_len, Marks, Receiver, Refusal, Sender, OUTBOX_LEN};
use netacc_device::Memory;

/// Few, so that rings become full.
const CAPACITY: usize = 512;
const MARKS: Marks = Marks { ttl: 64, tos: 0 };
/// Datagrams that the kernel holds; it drops others.
const KERNEL: usize = 6;

/// One action of an end, from two bytes.
enum Action {
    /// The sender sends a datagram of so many bytes beside its number.
    Send(usize),
    /// The receiver receives, if there is something.
    Receive,
    /// The receiver sleeps, if there is nothing.
    Sleep,
    /// Something writes a word into memory that it shares.
    Corrupt { inbox: bool, word: usize, value: u64 },
}

impl Action {
    fn of(kind: u8, argument: u8) -> Action {
        match kind % 8 {
            0..=3 => Action::Send(usize::from(argument) % 100),
            4..=5 => Action::Receive,
            6 => Action::Sleep,
            _ => Action::Corrupt {
                inbox: argument & 1 != 0,
                word: usize::from(argument) / 2,
                value: u64::from(argument).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            },
        }
    }
}

/// Executes the actions that the bytes say; corrupting ones only if the first byte is odd.
///
/// # Panics
/// If an end panics. Without corruption also if a datagram comes twice, or neither comes nor was dropped; if a sleeper has
/// one in its ring; or if one overtakes another although the kernel has dropped none.
pub fn datagrams(bytes: &[u8]) {
    let Some((first, actions)) = bytes.split_first() else { return };
    let mut flow = Conversation::new();
    for action in actions.chunks_exact(2).map(|pair| Action::of(pair[0], pair[1])) {
        match action {
            Action::Send(len) => flow.send(len),
            Action::Receive => {
                flow.receive();
            }
            Action::Sleep => flow.sleep(),
            Action::Corrupt { .. } if first % 2 == 0 => {}
            Action::Corrupt { inbox, word, value } => {
                flow.corrupted = true;
                if let Some(word) = if inbox { &flow.inbox } else { &flow.outbox }.word(8 * word) {
                    word.store(value, std::sync::atomic::Ordering::SeqCst);
                }
            }
        }
    }
    flow.end();
}

struct Conversation {
    sender: Sender,
    receiver: Receiver,
    inbox: Memory,
    outbox: Memory,
    kernel: VecDeque<u32>,
    kernel_dropped: bool,
    /// The receiver sleeps in the kernel.
    asleep: bool,
    corrupted: bool,
    next: u32,
    /// Those that were sent and not dropped.
    expected: VecDeque<u32>,
}

impl Conversation {
    fn new() -> Conversation {
        let (inbox, outbox) = (Memory::heap(inbox_len(CAPACITY)), Memory::heap(OUTBOX_LEN));
        let mut sender = Sender::new(inbox.clone(), outbox.clone()).expect("the lengths of a flow");
        sender.start(0);
        let receiver = Receiver::new(inbox.clone(), outbox.clone(), false).expect("the lengths of a flow");
        Conversation {
            sender,
            receiver,
            inbox,
            outbox,
            kernel: VecDeque::new(),
            kernel_dropped: false,
            asleep: false,
            corrupted: false,
            next: 0,
            expected: VecDeque::new(),
        }
    }

    fn send(&mut self, len: usize) {
        let mut datagram = self.next.to_le_bytes().to_vec();
        datagram.resize(4 + len, self.next as u8);
        let pieces = std::iter::once((datagram.as_ptr(), datagram.len()));
        // SAFETY: one valid slice.
        #[expect(unsafe_code, reason = "a datagram is made of a program's buffers")]
        let sent = unsafe { self.sender.send(pieces, datagram.len(), MARKS, || self.next.into()) };
        let mut goes = true;
        match sent {
            Ok(()) => {}
            Err(Refusal::Dropped) => goes = false,
            Err(_) => {
                self.sender.begin_by_kernel(1);
                goes = self.kernel.len() < KERNEL;
                if goes {
                    self.kernel.push_back(self.next);
                } else {
                    self.kernel_dropped = true;
                    self.receiver.kernel_dropped(1);
                }
                self.sender.end_by_kernel(1, true);
            }
        }
        if goes {
            self.expected.push_back(self.next);
        }
        self.next += 1;
    }

    /// As the library receives. `false`: there is nothing now.
    fn receive(&mut self) -> bool {
        if !self.asleep {
            self.receiver.stay_awake();
            if let Some(number) = self.take() {
                self.came(number);
                return true;
            }
        }
        let before = self.receiver.sent_by_kernel();
        if let Some(number) = self.kernel.front().copied() {
            self.asleep = false;
            match self.take() {
                Some(earlier) => self.came(earlier),
                None => {
                    self.kernel.pop_front();
                    self.receiver.came_by_kernel(1);
                    self.came(number);
                }
            }
            return true;
        }
        if self.asleep {
            return false;
        }
        self.receiver.kernel_was_empty(before);
        self.receiver.stay_awake();
        let Some(number) = self.take() else { return false };
        self.came(number);
        true
    }

    /// The datagram at the front of the ring, if it is due.
    fn take(&mut self) -> Option<u32> {
        let record = self.receiver.front()?;
        if !self.receiver.is_due(&record) || !self.receiver.claim(&record) {
            return None;
        }
        let mut bytes = vec![0; record.len()];
        // SAFETY: a buffer of that length.
        #[expect(unsafe_code, reason = "a datagram goes into a program's buffers")]
        unsafe {
            self.receiver.copy(&record, 0, bytes.as_mut_ptr(), bytes.len());
        }
        self.receiver.release(&record);
        let (number, rest) =
            bytes.split_first_chunk().map_or((u32::MAX, &[][..]), |(number, rest)| (u32::from_le_bytes(*number), rest));
        if !self.corrupted {
            assert!(rest.iter().all(|byte| *byte == number as u8), "the bytes of datagram {number}");
        }
        Some(number)
    }

    fn came(&mut self, number: u32) {
        if self.corrupted {
            return;
        }
        let place = self.expected.iter().position(|expected| *expected == number);
        let place = place.unwrap_or_else(|| panic!("datagram {number} came twice, or was dropped"));
        assert!(place == 0 || self.kernel_dropped, "datagram {number} came before {:?}", self.expected);
        self.expected.remove(place);
    }

    fn sleep(&mut self) {
        if !self.asleep && self.kernel.is_empty() {
            self.asleep = self.receiver.fall_asleep(true);
        }
    }

    /// Everything that was sent comes, but to a sleeper that the kernel does not wake.
    fn end(&mut self) {
        for _ in 0..2 * self.expected.len() + 8 {
            self.receive();
        }
        if !self.corrupted {
            assert!(self.expected.is_empty(), "{:?} never came", self.expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_keeps_the_rules() {
        for seed in 0..20_000 {
            datagrams(&crate::noise(seed, 1 + seed as usize % 400));
        }
    }

    // Breaks if the ring were never used, so that the test above tested the model of the kernel alone.
    #[test]
    fn a_burst_to_a_sleeper_takes_the_ring() {
        let mut flow = Conversation::new();
        assert!(!flow.receive());
        flow.sleep();
        for _ in 0..4 {
            flow.send(8);
        }
        assert_eq!((flow.kernel.len(), flow.expected.len()), (1, 4));
        flow.end();
    }
}
