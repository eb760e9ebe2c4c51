//! The typed configuration: plain structs by layer, with the defaults and their reasons.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::value::{Backend, CpuList, Expiry, Group, LogLevel, PathPolicy, PollBudget, RdmaProfile, UnseenIoPolicy};

/// All settings. Obtain a value from [`Config::load`] or a [`crate::Loader`]; the default is the value of an empty
/// file.
///
/// Serialises as a map from key to value, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// False if a problem of the configuration may hide a setting that switches acceleration off. Not a key; use
    /// [`Config::acceleration_allowed`], which includes the switches.
    pub accelerate: bool,
    /// The device that carries the links.
    pub backend: Backend,
    /// The policy for I/O that the library did not see.
    pub unseen_io: UnseenIoPolicy,
    /// `NACC_KEEP_PRELOAD`: a program that is started with an environment without `LD_PRELOAD` gets the library all the same.
    pub keep_preload: bool,
    /// `NACC_STATIC`: static programs are started by `netacc-loader`, so that they have the library.
    pub static_programs: bool,
    /// `NACC_DATAGRAMS`: datagrams between processes of this host take rings in shared memory.
    pub datagrams: bool,
    /// Buffers and memory regions.
    pub memory: MemoryConfig,
    /// Links, and the cache of empty ones.
    pub links: LinkConfig,
    /// When connections are promoted.
    pub promotion: PromotionConfig,
    /// Threads, polling and completion queues.
    pub io: IoConfig,
    /// The log.
    pub log: LogConfig,
    /// The shared-memory backend.
    pub shm: ShmConfig,
    /// RDMA devices.
    pub verbs: VerbsConfig,
}

/// Buffers and memory regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// `NACC_SOR_MSG_SIZE`, `-s`: the size of a buffer, so of the longest message.
    pub msg_bytes: usize,
    /// `NACC_RDMA_MR_MIN_INC_SIZE`: memory registered at first, for a link or between two processes; twice as much each next time.
    /// Invariant: `msg_bytes` times a power of two.
    pub mr_min_bytes: usize,
    /// `NACC_RDMA_MR_MAX_INC_SIZE`: the most that is registered at a time, 1 MiB to 512 MiB.
    /// Invariant: `mr_min_bytes` times a power of two.
    pub mr_max_bytes: usize,
    /// `NACC_RING_SIZE`: a stream's ring in each direction. Invariant: a power of two.
    pub ring_bytes: usize,
}

/// Links, and the cache of empty ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// `NACC_SOR_CONN_PER_QP`, `-p`: streams that may share a link; 1 is no sharing, and 0 shares links with peers to
    /// which there are many streams.
    pub streams_per_link: u32,
    /// `NACC_EMPTY_QP_EXPIRE_MS`: how long an empty link is kept.
    pub empty_expiry: Expiry,
    /// `NACC_EMPTY_QP_MAX_ALL`: empty links kept in all.
    pub empty_max: usize,
    /// `NACC_EMPTY_QP_MAX_PER`: empty links kept for one destination address.
    pub empty_max_per_peer: usize,
    /// `NACC_PSK_FILE`: where the pre-shared key is, for [`read_secret`](crate::read_secret); `None` is no key.
    pub key_file: Option<PathBuf>,
}

/// When connections are promoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotionConfig {
    /// `NACC_ENABLE_RDMA_DEFAULT`: whether connections are accelerated at all.
    pub enabled: bool,
    /// `NACC_CONNECT_RDMA_PERCENT`: how many of a hundred connections are.
    pub percent: u32,
    /// `NACC_CONN_TCP_FIRST`, `-T`: connections that the process opens stay on TCP until promotion is requested.
    pub tcp_first: bool,
    /// `NACC_FAST_CONNECT`, `-F`: promote at once; see [`PromotionConfig::threshold`].
    pub fast_connect: bool,
    /// `NACC_PATH_CHOICE`: whether a slower link is left.
    pub path: PathPolicy,
    /// `NACC_PROMOTE_AFTER`: operations on a connection before it is promoted.
    pub after_operations: u32,
}

/// Threads, polling and completion queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoConfig {
    /// `NACC_SOR_IO_THREADS`, `-t`: NetACC's own threads, of which there is at least one.
    pub threads: u32,
    /// `NACC_SOR_AFFINITY`, `-A`: the CPUs of those threads.
    pub affinity: CpuList,
    /// `NACC_POLL_MS`, `-P`: how long to spin before sleeping.
    pub poll: PollBudget,
    /// `NACC_COMP_VECTOR`, `-i`: the completion vector of the first completion queue.
    pub comp_vector: u32,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `NACC_LOG_LEVEL`; use [`LogConfig::effective_level`], which includes `debug`.
    pub level: LogLevel,
    /// `NACC_LOG_PATH`; `None` (empty in the file) is standard error.
    pub path: Option<PathBuf>,
    /// `NACC_DEBUG`, `-d`: debug mode.
    pub debug: bool,
}

/// The shared-memory backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShmConfig {
    /// `NACC_SHM_GROUP`: the group that may share a link besides the same user; `None` is no group.
    pub group: Option<Group>,
    /// `NACC_SHM_DIR`: the folder that containers of this host share; `None` is no folder.
    pub folder: Option<PathBuf>,
}

/// RDMA devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsConfig {
    /// `NACC_VERBS_ADDRESS`: the address of ours whose device is used; `None` is the first that has one.
    pub address: Option<IpAddr>,
    /// `NACC_VERBS_PROFILE`
    pub profile: RdmaProfile,
}

impl Config {
    /// Whether any connection of this process may be promoted: no problem prevents it, it is switched on, and the
    /// backend is not `none`.
    pub fn acceleration_allowed(&self) -> bool {
        self.accelerate && self.promotion.enabled && self.promotion.percent > 0 && self.backend != Backend::None
    }
}

/// The default of `NACC_PROMOTE_AFTER`.
const AFTER_OPERATIONS: u32 = 2;

impl PromotionConfig {
    /// Operations that a connection must have seen before it is promoted.
    pub fn threshold(&self) -> u32 {
        if self.fast_connect {
            0
        } else {
            self.after_operations
        }
    }

    /// Whether a connection that is one of many asks for its link when it is made: unless more operations are configured
    /// than by default, or connections are to begin on TCP.
    pub fn admits_crowds(&self) -> bool {
        !self.tcp_first && self.threshold() <= AFTER_OPERATIONS
    }
}

impl LogConfig {
    /// The least severe level that is logged: in debug mode at least [`LogLevel::Debug`].
    pub fn effective_level(&self) -> LogLevel {
        if self.debug {
            self.level.min(LogLevel::Debug)
        } else {
            self.level
        }
    }
}

// The defaults of NetACC's own keys are those of its sample file; only ours carry a reason here.

impl Default for Config {
    fn default() -> Self {
        Self {
            accelerate: true,
            backend: Backend::default(),
            unseen_io: UnseenIoPolicy::default(),
            // nginx, for example, passes only the variables that its configuration names to its new binary.
            keep_preload: true,
            // A program that cannot be changed as a whole is started plainly.
            static_programs: true,
            datagrams: true,
            memory: MemoryConfig::default(),
            links: LinkConfig::default(),
            promotion: PromotionConfig::default(),
            io: IoConfig::default(),
            log: LogConfig::default(),
            shm: ShmConfig::default(),
            verbs: VerbsConfig::default(),
        }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            msg_bytes: 16_384,
            mr_min_bytes: 16_384,
            mr_max_bytes: 8_388_608,
            // Four of the largest messages in flight; 128 KiB for a connection's two directions, as
            // rsockets and SMC-R take. Arbitrary; change it with a measurement.
            ring_bytes: 262_144,
        }
    }
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            streams_per_link: 0,
            empty_expiry: Expiry::After(Duration::from_secs(60)),
            empty_max: 100,
            empty_max_per_peer: 10,
            key_file: None,
        }
    }
}

impl Default for PromotionConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            percent: 100,
            tcp_first: false,
            fast_connect: false,
            // A connection with one request never pays for a link.
            path: PathPolicy::default(),
            after_operations: AFTER_OPERATIONS,
        }
    }
}

impl Default for IoConfig {
    fn default() -> Self {
        Self { threads: 1, affinity: CpuList::default(), poll: PollBudget::Adaptive, comp_vector: 0 }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: LogLevel::Warn, path: Some(PathBuf::from("/tmp/netacc.log")), debug: false }
    }
}
