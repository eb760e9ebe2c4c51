//! The options of a run, and its results.

use std::fmt;
use std::path::PathBuf;

/// A capability preset of the simulated devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Shared memory: peers' memory is mapped, a placed message is delivered.
    Shm,
    /// eRDMA as strict as it comes: a message without a receive is fatal, flushes are silent.
    Erdma,
    /// SoftRoCE: messages wait for receives, flushes are reported.
    Rxe,
    /// As [`Erdma`](Preset::Erdma), and links fall silent where others die: neither end gets an event.
    Silent,
    /// Modelled NICs on a network with times, losses and reordering.
    Nic,
}

impl Preset {
    /// All of them.
    pub const ALL: [Preset; 5] = [Preset::Shm, Preset::Erdma, Preset::Rxe, Preset::Silent, Preset::Nic];

    /// Those that are drawn where none is asked for.
    pub const DRAWN: [Preset; 3] = [Preset::Shm, Preset::Erdma, Preset::Rxe];

    /// As on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::Shm => "shm",
            Preset::Erdma => "erdma",
            Preset::Rxe => "rxe",
            Preset::Silent => "silent",
            Preset::Nic => "nic",
        }
    }

    /// From the command line.
    pub fn parse(text: &str) -> Option<Preset> {
        Preset::ALL.into_iter().find(|p| p.as_str() == text)
    }
}

/// A deliberate fault that no device, anchor or sink may have: the harness must notice each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The device accepts a DATA message and forgets it.
    DropData,
    /// The device sends a DATA message twice.
    DuplicateData,
    /// A DATA message overtakes the one before it on the same queue pair.
    ReorderData,
    /// One byte of a DATA message changes on the way.
    CorruptData,
    /// A credit word is written with a wrong value.
    CorruptCredit,
    /// A message that gives credit is lost.
    DropGive,
    /// A queue pair dies and its owner gets no event.
    DropDisconnect,
    /// A RESUME record is written to the anchor and vanishes.
    DropResume,
    /// The anchor takes application bytes twice.
    DuplicateAnchor,
    /// The sink swallows one change of readiness.
    DropEdge,
    /// A region that was given back stays registered.
    LeakRegion,
    /// The device executes requests again after later ones, as SoftRoCE does. Between hosts this is no fault of the library: links
    /// end, and everything else stays true.
    Repeat,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 12] = [
        Mutant::DropData,
        Mutant::DuplicateData,
        Mutant::ReorderData,
        Mutant::CorruptData,
        Mutant::CorruptCredit,
        Mutant::DropGive,
        Mutant::DropDisconnect,
        Mutant::DropResume,
        Mutant::DuplicateAnchor,
        Mutant::DropEdge,
        Mutant::LeakRegion,
        Mutant::Repeat,
    ];
}

/// How the connections of few processes share links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// A link takes so many streams, from the first on.
    Configured,
    /// As without a setting, with smaller numbers.
    Automatic,
}

impl Crowd {
    /// As on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Crowd::Configured => "configured",
            Crowd::Automatic => "automatic",
        }
    }

    /// From the command line.
    pub fn parse(text: &str) -> Option<Crowd> {
        [Crowd::Configured, Crowd::Automatic].into_iter().find(|crowd| crowd.as_str() == text)
    }
}

/// Settings of a run. Everything else is drawn from the seed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Scheduler steps before the faults stop; drawn if `None`.
    pub steps: Option<u32>,
    /// Device preset; drawn if `None`.
    pub preset: Option<Preset>,
    /// Two or three processes with many short connections, most of which share a link, and which run short of descriptors.
    pub crowded: Option<Crowd>,
    /// Inject this.
    pub mutant: Option<Mutant>,
    /// Print every event as it happens, on standard error.
    pub trace: bool,
    /// Write the requests to each device to `FILE.<process>.jsonl`.
    pub record: Option<PathBuf>,
}

/// The counts of a run without a failure.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Scheduler steps, those of the final drain included.
    pub steps: u64,
    /// Connections made.
    pub connections: u64,
    /// Application bytes read.
    pub bytes: u64,
    /// Of those, on links.
    pub link_bytes: u64,
    /// Promotions of streams (both ends count).
    pub promotions: u64,
    /// Demotions of streams that went on as plain TCP.
    pub demotions: u64,
    /// Links that died.
    pub links_failed: u64,
    /// The links among them on which a message came out of turn.
    pub links_out_of_turn: u64,
    /// Processes that share no further link since such a message.
    pub sharing_stopped: u64,
    /// Processes that crashed.
    pub crashes: u64,
    /// Processes that ran short of descriptors, and left their links for good.
    pub shortages: u64,
    /// A hash over the deliveries of the network and their times, where it has times. Of several runs: the last.
    pub network_trace: Option<u64>,
    /// Counts of the reasons for which streams were not on a link.
    pub reasons: std::collections::BTreeMap<String, u64>,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, o: Summary) {
        self.steps += o.steps;
        self.connections += o.connections;
        self.bytes += o.bytes;
        self.link_bytes += o.link_bytes;
        self.promotions += o.promotions;
        self.demotions += o.demotions;
        self.links_failed += o.links_failed;
        self.links_out_of_turn += o.links_out_of_turn;
        self.sharing_stopped += o.sharing_stopped;
        self.crashes += o.crashes;
        self.shortages += o.shortages;
        self.network_trace = o.network_trace.or(self.network_trace);
        o.reasons.into_iter().for_each(|(reason, n)| *self.reasons.entry(reason).or_default() += n);
    }
}

/// The promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The code under test panicked.
    Panic,
    /// A byte was read that is not the one written at its position.
    WrongByte,
    /// An end of stream that the peer did not send, or before the last byte.
    FalseEnd,
    /// A reset or broken pipe without a cause.
    FalseError,
    /// A process was accused of breaking the protocol.
    Violation,
    /// A message was lost, or came twice, on a device that does neither.
    OutOfTurn,
    /// Readiness was "would block" and the call did not block.
    Readiness,
    /// Readiness was there and the application had no event.
    LostEdge,
    /// Everything is quiet, and something is still to be done.
    Stuck,
    /// It does not become quiet.
    Restless,
    /// A slot, region, link or stream was not given back.
    Leak,
    /// Counters do not add up.
    Counters,
    /// A descriptor was used after the application closed it.
    Misuse,
}

/// A broken promise, as it is found.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The promise.
    pub what: What,
    /// Where and how.
    pub detail: String,
}

impl Broken {
    /// Broken promise `what`.
    pub fn new(what: What, detail: impl Into<String>) -> Broken {
        Broken { what, detail: detail.into() }
    }
}

/// Result of a check or of a step.
pub type Check<T = ()> = Result<T, Broken>;

/// A run that went wrong: all that is needed to replay and understand it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The step at which it was noticed.
    pub step: u64,
    /// A description of the failure.
    pub broken: Broken,
    /// The last events before it.
    pub trace: Vec<String>,
    /// The streams as they stood.
    pub state: String,
    /// Draws of the run, for orientation.
    pub plan: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} step {}: {:?}: {}", self.seed, self.step, self.broken.what, self.broken.detail)?;
        writeln!(f, "plan: {}", self.plan)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(f, "{}", self.state)
    }
}

impl std::error::Error for Failure {}
