//! Counters of a function.

/// Counts since the process started; a reset of the device does not clear them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Requests that were sent.
    pub tx_requests: u64,
    /// Payload bytes that were sent.
    pub tx_bytes: u64,
    /// Messages that were handled.
    pub rx_requests: u64,
    /// Payload bytes of them.
    pub rx_bytes: u64,
    /// Messages that arrived and were dropped or refused.
    pub rx_drops: u64,
    /// Commands that were answered.
    pub commands: u64,
    /// Commands that were refused.
    pub commands_refused: u64,
    /// Completions that were written.
    pub completions: u64,
    /// Completions that failed, flushes included.
    pub completions_failed: u64,
    /// Events that were written.
    pub events: u64,
    /// Events that found no room.
    pub events_lost: u64,
    /// Interrupts that were raised, repetitions included.
    pub interrupts: u64,
    /// Interrupts that were lost on purpose.
    pub interrupts_lost: u64,
    /// Doorbells for an object that does not exist, or beyond the end of a queue.
    pub doorbells_refused: u64,
    /// Queue pairs that failed.
    pub qp_failures: u64,
}

impl Counters {
    /// In the form that the driver reads (erdma_hw.h: `struct erdma_cmdq_query_stats_resp`): requests, packets, bytes
    /// and three kinds of drops sent; packets, bytes and three kinds of drops received. A message counts as a packet.
    pub(crate) fn statistics(&self) -> [u64; 11] {
        [
            self.tx_requests,
            self.tx_requests,
            self.tx_bytes,
            0,
            0,
            0,
            self.rx_requests,
            self.rx_bytes,
            self.rx_drops,
            0,
            0,
        ]
    }

    /// The value of a statistics register of Linux 6.1's driver (`ERDMA_REGS_STATS_*`).
    pub(crate) fn register(&self, offset: u64) -> u64 {
        match offset {
            0xc0 => self.rx_requests,
            0xc8 => self.rx_bytes,
            0xd0 => self.rx_drops,
            _ => 0,
        }
    }
}
