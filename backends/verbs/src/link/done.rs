//! The completions of one link that were not taken yet.

use std::collections::VecDeque;

use netacc_device::{Completion, CompletionStatus, QueuePairId, WorkCompletion};

use crate::ffi::abi;

/// The completions, for the caller.
#[derive(Default)]
pub(super) struct Done {
    pub(super) waiting: VecDeque<WorkCompletion>,
    /// Messages that came before the caller had posted receives for them. The device has all receives that it can hold
    /// from the beginning, because some devices end the connection at a message without one.
    early: VecDeque<WorkCompletion>,
    /// Receives that the caller has posted and that no message has taken.
    pub(super) receives: u32,
    pub(super) disconnected: bool,
}

impl Done {
    /// A message has come.
    pub(super) fn receive(&mut self, message: WorkCompletion) {
        match self.receives.checked_sub(1) {
            Some(left) => {
                self.receives = left;
                self.waiting.push_back(message);
            }
            None => self.early.push_back(message),
        }
    }

    /// The caller has posted so many receives. True if messages waited for them.
    pub(super) fn allow(&mut self, receives: u32) -> bool {
        let taken = self.early.len().min(receives as usize);
        self.waiting.extend(self.early.drain(..taken));
        self.receives += receives - taken as u32;
        taken > 0
    }

    pub(super) fn push(&mut self, qp: QueuePairId, status: CompletionStatus, completion: Completion) {
        self.waiting.push_back(WorkCompletion { qp, status, completion });
    }

    pub(super) fn disconnect(&mut self, qp: QueuePairId) -> bool {
        let news = !self.disconnected;
        if news {
            self.disconnected = true;
            self.push(qp, CompletionStatus::Success, Completion::Disconnected);
        }
        news
    }
}

/// The core's status for a completion's status.
pub(super) fn status(raw: u32) -> CompletionStatus {
    match raw {
        abi::WC_SUCCESS => CompletionStatus::Success,
        abi::WC_WR_FLUSH_ERR => CompletionStatus::Flushed,
        abi::WC_RETRY_EXC_ERR | abi::WC_RNR_RETRY_EXC_ERR => CompletionStatus::RetryExceeded,
        abi::WC_REM_INV_REQ_ERR..=abi::WC_REM_OP_ERR => CompletionStatus::RemoteError,
        other => CompletionStatus::Other(other),
    }
}
