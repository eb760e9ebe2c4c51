//! Messages between two hosts over a link of its own, asleep whenever there is no work.
//!
//! `verbs_echo serve ADDRESS PORT`: echoes each message. `verbs_echo send ADDRESS PEER:PORT COUNT`: sends COUNT
//! messages and checks each echo; prints "echoing" after the first ones. Both end with "disconnected" when the other
//! does.

use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::process::ExitCode;

use netacc_device::{
    Armed, CmEvent, Completion, CompletionEvents, CompletionQueueId, CompletionStatus, ConnectionManager, Device,
    Operation, Payload, QueuePairId, Region, RemoteRegion, WorkCompletion, WorkRequest, WorkRequestId,
};
use netacc_verbs::{VerbsConfig, VerbsDevice};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Messages in flight, each with a place of its own.
const WINDOW: u32 = 8;
const MESSAGE: usize = 4096;
const REGION: usize = WINDOW as usize * MESSAGE;

/// Echoes after which the sender prints "echoing".
const FIRST: u32 = 10;

struct Echo {
    device: VerbsDevice,
    cq: CompletionQueueId,
    qp: QueuePairId,
    local: Region,
    remote: RemoteRegion,
    staging: Region,
}

impl Echo {
    fn establish(config: &VerbsConfig, peer: Option<SocketAddr>) -> Result<Echo> {
        let device = VerbsDevice::open(config)?;
        let cq = device.create_cq()?;
        if let Some(peer) = peer {
            device.connect(VerbsDevice::peer_address(peer), cq, REGION, b"")?;
        } else {
            println!("listening");
        }
        loop {
            match device.poll_event() {
                Some(CmEvent::Request { id, .. }) => device.accept(id, cq, REGION)?,
                Some(CmEvent::Established { qp, local, remote, .. }) => {
                    let staging = device.alloc_region(qp, REGION)?;
                    device.post_recv(qp, 2 * WINDOW)?;
                    return Ok(Echo { device, cq, qp, local, remote, staging });
                }
                Some(CmEvent::Failed { error, .. }) => return Err(error.into()),
                Some(_) => {}
                None => sleep_until_readable(&device.event_fds())?,
            }
        }
    }

    /// Sends the bytes at the message's place in the staging region.
    fn send(&self, number: u32) -> Result<()> {
        let place = (number % WINDOW) as usize * MESSAGE;
        let wr = WorkRequest {
            id: WorkRequestId(number.into()),
            operation: Operation::Write {
                rkey: self.remote.rkey,
                offset: self.remote.base + place as u64,
                imm: Some(number),
            },
            payload: Payload::Region { region: &self.staging, offset: place, len: MESSAGE as u32 },
            signaled: false,
        };
        match self.device.post_send(self.qp, &[wr]) {
            Ok(1) => Ok(()),
            other => Err(format!("posting message {number}: {other:?}").into()),
        }
    }

    /// The next messages; `None` at the end of the link.
    fn receive(&self) -> Result<Option<Vec<u32>>> {
        let mut out = [EMPTY; 16];
        loop {
            let count = self.device.poll_qp(self.qp, &mut out);
            let mut numbers = Vec::new();
            for completion in &out[..count] {
                match completion.completion {
                    Completion::Receive { imm, len } if len as usize == MESSAGE => numbers.push(imm),
                    Completion::Disconnected => return Ok(None),
                    Completion::Send { .. } => {}
                    other => return Err(format!("{other:?}").into()),
                }
            }
            if !numbers.is_empty() {
                return Ok(Some(numbers));
            }
            if self.device.arm(self.cq) == Armed::Sleep {
                let mut fds = self.device.event_fds();
                fds.extend(self.device.channel_fd(self.cq));
                sleep_until_readable(&fds)?;
            }
            self.device.disarm(self.cq);
            self.device.drain(self.cq);
            self.device.progress();
            self.device.pending(self.cq, &mut [QueuePairId(0); 4]);
        }
    }

    fn serve(&self) -> Result<()> {
        let mut bytes = [0; MESSAGE];
        while let Some(numbers) = self.receive()? {
            for number in numbers {
                let place = (number % WINDOW) as usize * MESSAGE;
                if !self.local.memory.read(place, &mut bytes) || !self.staging.memory.write(place, &bytes) {
                    return Err("a region is too short".into());
                }
                // The other side has posted a receive for it, and this one may be followed by another.
                self.device.post_recv(self.qp, 1)?;
                if self.send(number).is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn drive(&self, count: u32) -> Result<u32> {
        let mut bytes = [0; MESSAGE];
        let (mut sent, mut echoed) = (0, 0);
        while echoed < count {
            while sent < count && sent < echoed + WINDOW {
                if !self.staging.memory.write((sent % WINDOW) as usize * MESSAGE, &message(sent)) {
                    return Err("a region is too short".into());
                }
                if self.send(sent).is_err() {
                    return Ok(echoed);
                }
                sent += 1;
            }
            let Some(numbers) = self.receive()? else { return Ok(echoed) };
            for number in numbers {
                let read = self.local.memory.read((number % WINDOW) as usize * MESSAGE, &mut bytes);
                if number != echoed || !read || bytes != message(number) {
                    return Err(format!("echo {echoed} came back wrong, as {number}").into());
                }
                self.device.post_recv(self.qp, 1)?;
                echoed += 1;
                if echoed == FIRST {
                    println!("echoing");
                }
            }
        }
        Ok(echoed)
    }
}

fn message(number: u32) -> [u8; MESSAGE] {
    std::array::from_fn(|index| (number.wrapping_mul(2_654_435_761).wrapping_add(index as u32 * 7) >> 3) as u8)
}

const EMPTY: WorkCompletion =
    WorkCompletion { qp: QueuePairId(0), status: CompletionStatus::Success, completion: Completion::Disconnected };

#[expect(unsafe_code, reason = "poll(2)")]
fn sleep_until_readable(fds: &[RawFd]) -> Result<()> {
    let mut watched: Vec<_> = fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: as many entries as there are, which live through the call.
    match unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, -1) } {
        count if count < 0 => Err(std::io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address, port] => {
            let mut config = VerbsConfig::new(address.parse()?);
            config.port = port.parse()?;
            Echo::establish(&config, None)?.serve()?;
            println!("disconnected");
        }
        ["send", address, peer, count] => {
            let count = count.parse()?;
            let echo = Echo::establish(&VerbsConfig::new(address.parse()?), Some(peer.parse()?))?;
            let echoed = echo.drive(count)?;
            println!("{}", if echoed == count { "done" } else { "disconnected" });
        }
        _ => return Err("usage: verbs_echo serve ADDRESS PORT | send ADDRESS PEER:PORT COUNT".into()),
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbs_echo: {error}");
            ExitCode::FAILURE
        }
    }
}
