//! The effect of an overflow of a link's completion queue: `verbs_overflow ADDRESS`.
//!
//! Our completion queues have room for everything that their queue pair can complete, so this one is made too small. A
//! device drops completions that find no room, and reports that only by an asynchronous event. For the lab: prints a
//! line of JSON.

use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use netacc_device::{
    CmEvent, Completion, CompletionQueueId, CompletionStatus, ConnectionManager, Device, Operation, Payload,
    QueuePairId, Region, RemoteRegion, WorkCompletion, WorkRequest, WorkRequestId,
};
use netacc_verbs::{VerbsConfig, VerbsDevice};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// More than fit, even if a device rounds up.
const MESSAGES: u32 = 64;
const ENTRIES: u32 = 2;
const REGION: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

/// One end of a link.
struct End<'a> {
    device: &'a VerbsDevice,
    cq: CompletionQueueId,
    qp: QueuePairId,
    remote: RemoteRegion,
    _local: Region,
}

impl End<'_> {
    /// Polls all completions.
    fn completions(&self) -> Vec<Completion> {
        const EMPTY: WorkCompletion = WorkCompletion {
            qp: QueuePairId(0),
            status: CompletionStatus::Success,
            completion: Completion::Disconnected,
        };
        let mut out = [EMPTY; 2 * MESSAGES as usize];
        self.device.progress();
        self.device.pending(self.cq, &mut [QueuePairId(0); 4]);
        let count = self.device.poll_qp(self.qp, &mut out);
        out[..count].iter().map(|completion| completion.completion).collect()
    }

    fn post(&self, count: u32) -> Result<()> {
        let write = |number: u32| WorkRequest {
            id: WorkRequestId(number.into()),
            operation: Operation::Write { rkey: self.remote.rkey, offset: self.remote.base, imm: Some(number) },
            payload: Payload::Inline(b"overflow"),
            signaled: true,
        };
        match self.device.post_send(self.qp, &(0..count).map(write).collect::<Vec<_>>()) {
            Ok(posted) if posted == count as usize => Ok(()),
            other => Err(format!("posting {count} messages: {other:?}").into()),
        }
    }
}

/// Waits for an event.
fn until<T>(what: &str, mut check: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(found) = check()? {
            return Ok(found);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(format!("{what}: not within {PATIENCE:?}").into())
}

fn connect<'a>(a: &'a VerbsDevice, b: &'a VerbsDevice) -> Result<[End<'a>; 2]> {
    let cqs = [a.create_cq()?, b.create_cq()?];
    a.connect(VerbsDevice::peer_address(b.address()), cqs[0], REGION, b"")?;
    let mut ends = [None, None];
    until("connecting", || {
        for (side, device) in [a, b].into_iter().enumerate() {
            match device.poll_event() {
                Some(CmEvent::Request { id, .. }) => device.accept(id, cqs[side], REGION)?,
                Some(CmEvent::Established { qp, local, remote, .. }) => {
                    device.post_recv(qp, MESSAGES)?;
                    ends[side] = Some(End { device, cq: cqs[side], qp, remote, _local: local });
                }
                Some(CmEvent::Failed { error, .. }) => return Err(error.into()),
                Some(_) | None => {}
            }
        }
        match [ends[0].take(), ends[1].take()] {
            [Some(a), Some(b)] => Ok(Some([a, b])),
            some => {
                ends = some;
                Ok(None)
            }
        }
    })
}

fn run(address: IpAddr) -> Result<serde_json::Value> {
    let wide = VerbsConfig::new(address);
    let narrow = VerbsConfig { completion_entries: Some(ENTRIES), ..wide.clone() };
    let devices = [VerbsDevice::open(&narrow)?, VerbsDevice::open(&wide)?, VerbsDevice::open(&wide)?];
    let [overflowing, peer, other] = &devices;
    let bystanders = connect(other, peer)?;

    let [ours, theirs] = connect(overflowing, peer)?;
    ours.post(MESSAGES)?;
    // No thread polls the queue until the device has reported that it cannot be used any more.
    let refused = until("the event of the overflow", || {
        overflowing.poll_event();
        Ok(overflowing.post_send(ours.qp, &[]).err())
    })?;
    let left = ours.completions();
    let ends =
        |completions: &[Completion]| completions.iter().filter(|c| matches!(c, Completion::Disconnected)).count();
    let seen = until("the peer's event", || {
        peer.poll_event();
        Ok(theirs.completions().iter().any(|c| matches!(c, Completion::Disconnected)).then_some(true))
    })?;
    overflowing.destroy_qp(ours.qp);

    bystanders[0].post(1)?;
    let arrived = until("a message on another link", || {
        Ok(bystanders[1].completions().iter().any(|c| matches!(c, Completion::Receive { imm: 0, .. })).then_some(true))
    })?;
    let again = connect(overflowing, peer)?;
    again[0].post(1)?;
    until("a message on a new link", || {
        Ok(again[1].completions().iter().any(|c| matches!(c, Completion::Receive { imm: 0, .. })).then_some(true))
    })?;
    Ok(serde_json::json!({
        "posted": MESSAGES,
        "completed": left.iter().filter(|c| matches!(c, Completion::Send { .. })).count(),
        "disconnected": ends(&left),
        "refuses": refused.to_string(),
        "peer_disconnected": seen,
        "others_go_on": arrived,
    }))
}

fn main() -> ExitCode {
    let Some(Ok(address)) = std::env::args().nth(1).map(|text| text.parse()) else {
        eprintln!("usage: verbs_overflow ADDRESS");
        return ExitCode::from(2);
    };
    match run(address) {
        Ok(seen) => {
            println!("{seen}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("verbs_overflow: {error}");
            ExitCode::FAILURE
        }
    }
}
