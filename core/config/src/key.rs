//! The one table of keys: name, flag, allowed values, and place in the typed configuration. The file, the environment,
//! netacc_run and netacc_ss all use it.

use crate::config::Config;
use crate::value::{digits, millis_from_number, number_from_millis, ConfigValue, Expiry, LogLevel, PollBudget};

/// A key of the file, and the environment variable of the same name.
#[derive(Debug)]
pub struct Key {
    /// The name in the file and in the environment.
    pub name: &'static str,
    /// The flag of netacc_run that sets it.
    pub flag: Option<char>,
    /// Whether it is one of NetACC's fourteen keys; the others are this project's.
    pub original: bool,
    /// Whether it can switch acceleration off or make it stricter: when its value cannot be
    /// understood, the program stays on TCP.
    pub(crate) guards: bool,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A decimal integer from `min` to `max`. `set` may refuse some of them; `remark` describes which, or the meaning of
    /// the numbers.
    Int { min: i64, max: i64, remark: &'static str, get: fn(&Config) -> i64, set: fn(&mut Config, i64) -> bool },
    /// 0 or 1.
    Switch { get: fn(&Config) -> bool, set: fn(&mut Config, bool) },
    /// Anything else.
    Text { allowed: &'static str, get: fn(&Config) -> String, set: fn(&mut Config, &str) -> bool },
}

impl Key {
    /// The key's allowed values, in words.
    pub fn allowed(&self) -> String {
        match &self.kind {
            Kind::Int { min, max, remark: "", .. } => format!("an integer from {min} to {max}"),
            Kind::Int { min, max, remark, .. } => {
                format!("an integer from {min} to {max}, {remark}")
            }
            Kind::Switch { .. } => "0 or 1".to_owned(),
            Kind::Text { allowed, .. } => (*allowed).to_owned(),
        }
    }

    /// The least and the greatest value of a key that takes an integer. Some values between them may be refused: see
    /// [`accepts`](Key::accepts).
    pub fn range(&self) -> Option<(i64, i64)> {
        match self.kind {
            Kind::Int { min, max, .. } => Some((min, max)),
            Kind::Switch { .. } => Some((0, 1)),
            Kind::Text { .. } => None,
        }
    }

    /// The key's value in `config`.
    pub fn value(&self, config: &Config) -> ConfigValue {
        match &self.kind {
            Kind::Int { get, .. } => ConfigValue::Int(get(config)),
            Kind::Switch { get, .. } => ConfigValue::Int(get(config).into()),
            Kind::Text { get, .. } => ConfigValue::Text(get(config)),
        }
    }

    /// Whether the key accepts `text`, without regard to other keys.
    pub fn accepts(&self, text: &str) -> bool {
        self.set(&mut Config::default(), text)
    }

    /// Puts the value that `text` stands for into `config`; false, and nothing changed, when it is
    /// not allowed.
    pub(crate) fn set(&self, config: &mut Config, text: &str) -> bool {
        // Values that the file's format cannot represent are refused everywhere, so that every configuration can be
        // written to a file.
        if text.chars().any(|c| c.is_control() || c == '"') {
            return false;
        }
        match &self.kind {
            Kind::Int { min, max, set, .. } => {
                integer(text).is_some_and(|n| (*min..=*max).contains(&n) && set(config, n))
            }
            Kind::Switch { set, .. } => {
                let value = match text {
                    "0" => false,
                    "1" => true,
                    _ => return false,
                };
                set(config, value);
                true
            }
            Kind::Text { set, .. } => set(config, text),
        }
    }
}

/// The key of this name.
pub fn find_key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The most likely key for a misspelt name.
pub(crate) fn resembling(name: &str) -> Option<&'static str> {
    const LONGEST: usize = 64;
    if name.len() > LONGEST {
        return None;
    }
    let name = name.to_ascii_uppercase();
    KEYS.iter()
        .map(|key| (strsim::osa_distance(&name, key.name), key.name))
        .min()
        .filter(|(distance, _)| *distance <= 3)
        .map(|(_, name)| name)
}

fn integer(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(rest) => digits(rest).map(|n| -n),
        None => digits(text),
    }
}

/// Every key, NetACC's fourteen first and in the order of its sample file.
pub static KEYS: &[Key] = &[
    // The ranges of sizes: from a cache line, which tests use to get many messages, to the largest region. NetACC gives
    // no range for the first, and only the rule for the second.
    int(
        "NACC_SOR_MSG_SIZE",
        64,
        16 * MIB,
        |c| c.memory.msg_bytes as i64,
        |c, n| {
            c.memory.msg_bytes = n as usize;
            true
        },
    )
    .flag('s'),
    int(
        "NACC_RDMA_MR_MIN_INC_SIZE",
        64,
        512 * MIB,
        |c| c.memory.mr_min_bytes as i64,
        |c, n| {
            c.memory.mr_min_bytes = n as usize;
            true
        },
    )
    .remark("NACC_SOR_MSG_SIZE x 2^N"),
    int(
        "NACC_RDMA_MR_MAX_INC_SIZE",
        MIB,
        512 * MIB,
        |c| c.memory.mr_max_bytes as i64,
        |c, n| {
            c.memory.mr_max_bytes = n as usize;
            true
        },
    )
    .remark("NACC_RDMA_MR_MIN_INC_SIZE x 2^N"),
    int(
        "NACC_SOR_CONN_PER_QP",
        0,
        65_535,
        |c| c.links.streams_per_link.into(),
        |c, n| {
            c.links.streams_per_link = n as u32;
            true
        },
    )
    .flag('p'),
    // As many threads as CpuList has CPUs.
    int(
        "NACC_SOR_IO_THREADS",
        0,
        1024,
        |c| c.io.threads.into(),
        |c, n| {
            c.io.threads = n as u32;
            true
        },
    )
    .flag('t')
    .remark("0 as 1"),
    int(
        "NACC_EMPTY_QP_EXPIRE_MS",
        -1,
        i32::MAX as i64,
        |c| match c.links.empty_expiry {
            Expiry::Never => -1,
            Expiry::After(time) => number_from_millis(Some(time)),
        },
        |c, n| {
            c.links.empty_expiry = millis_from_number(n).map_or(Expiry::Never, Expiry::After);
            true
        },
    )
    .remark("-1 for never, 0 for at once"),
    int(
        "NACC_EMPTY_QP_MAX_ALL",
        0,
        65_535,
        |c| c.links.empty_max as i64,
        |c, n| {
            c.links.empty_max = n as usize;
            true
        },
    ),
    int(
        "NACC_EMPTY_QP_MAX_PER",
        0,
        65_535,
        |c| c.links.empty_max_per_peer as i64,
        |c, n| {
            c.links.empty_max_per_peer = n as usize;
            true
        },
    ),
    int(
        "NACC_CONNECT_RDMA_PERCENT",
        0,
        100,
        |c| c.promotion.percent.into(),
        |c, n| {
            c.promotion.percent = n as u32;
            true
        },
    )
    .guards(),
    switch("NACC_ENABLE_RDMA_DEFAULT", |c| c.promotion.enabled, |c, on| c.promotion.enabled = on).guards(),
    int(
        "NACC_LOG_LEVEL",
        0,
        5,
        |c| c.log.level as i64,
        |c, n| LogLevel::from_number(n).map(|level| c.log.level = level).is_some(),
    )
    .remark("0 TRACE, 1 DEBUG, 2 INFO, 3 WARN, 4 ERROR, 5 FATAL"),
    text(
        "NACC_LOG_PATH",
        "a path without control characters or double quotes, or empty for standard error",
        |c| c.log.path.as_ref().map_or(String::new(), |path| path.to_string_lossy().into_owned()),
        |c, text| {
            c.log.path = (!text.is_empty()).then(|| text.into());
            true
        },
    ),
    text(
        "NACC_SOR_AFFINITY",
        "CPU numbers below 1024 as 0 | 1-3 | 1,3,4, or empty for no binding",
        |c| c.io.affinity.to_string(),
        |c, text| text.parse().map(|list| c.io.affinity = list).is_ok(),
    )
    .flag('A'),
    switch("NACC_CONN_TCP_FIRST", |c| c.promotion.tcp_first, |c, on| c.promotion.tcp_first = on).flag('T'),
    // This project's own keys from here on.
    text(
        "NACC_BACKEND",
        "auto, shm, verbs or none",
        |c| c.backend.to_string(),
        |c, text| text.parse().map(|backend| c.backend = backend).is_ok(),
    )
    .ours()
    .guards(),
    text(
        "NACC_POLICY",
        "log, demote, error or abort",
        |c| c.unseen_io.to_string(),
        |c, text| text.parse().map(|policy| c.unseen_io = policy).is_ok(),
    )
    .ours()
    .guards(),
    switch("NACC_KEEP_PRELOAD", |c| c.keep_preload, |c, on| c.keep_preload = on).ours(),
    switch("NACC_STATIC", |c| c.static_programs, |c, on| c.static_programs = on).ours(),
    switch("NACC_DATAGRAMS", |c| c.datagrams, |c, on| c.datagrams = on).ours(),
    // From a page, the least that can be shared, to the size at which a thousand connections take 8 GiB.
    int(
        "NACC_RING_SIZE",
        4096,
        4 * MIB,
        |c| c.memory.ring_bytes as i64,
        |c, n| {
            let bytes = n as usize;
            if bytes.is_power_of_two() {
                c.memory.ring_bytes = bytes;
            }
            bytes.is_power_of_two()
        },
    )
    .remark("a power of two")
    .ours(),
    int(
        "NACC_PROMOTE_AFTER",
        0,
        1_000_000,
        |c| c.promotion.after_operations.into(),
        |c, n| {
            c.promotion.after_operations = n as u32;
            true
        },
    )
    .remark("0 for at once")
    .ours(),
    text(
        "NACC_PATH_CHOICE",
        "measured or link",
        |c| c.promotion.path.to_string(),
        |c, text| text.parse().map(|path| c.promotion.path = path).is_ok(),
    )
    .ours(),
    // The original's flag is a number without a documented meaning; this implementation has a slow and a fast mode.
    switch("NACC_FAST_CONNECT", |c| c.promotion.fast_connect, |c, on| c.promotion.fast_connect = on).flag('F').ours(),
    // Whole milliseconds, as with -P: -1 finds finer budgets by itself.
    int(
        "NACC_POLL_MS",
        -1,
        60_000,
        |c| match c.io.poll {
            PollBudget::Adaptive => -1,
            PollBudget::Fixed(time) => number_from_millis(Some(time)),
        },
        |c, n| {
            c.io.poll = millis_from_number(n).map_or(PollBudget::Adaptive, PollBudget::Fixed);
            true
        },
    )
    .flag('P')
    .remark("-1 for adaptive, 0 for never spinning")
    .ours(),
    // The device checks whether it has so many.
    int(
        "NACC_COMP_VECTOR",
        0,
        65_535,
        |c| c.io.comp_vector.into(),
        |c, n| {
            c.io.comp_vector = n as u32;
            true
        },
    )
    .flag('i')
    .ours(),
    switch("NACC_DEBUG", |c| c.log.debug, |c, on| c.log.debug = on).flag('d').ours(),
    text(
        "NACC_SHM_GROUP",
        "the name or number of a group, or empty for the same user only",
        |c| c.shm.group.as_ref().map_or(String::new(), ToString::to_string),
        |c, text| {
            if text.is_empty() {
                c.shm.group = None;
                return true;
            }
            text.parse().map(|group| c.shm.group = Some(group)).is_ok()
        },
    )
    .ours(),
    // Absolute, as below; the address of a socket in it has 107 bytes.
    text(
        "NACC_SHM_DIR",
        "an absolute path of at most 64 bytes without control characters or double quotes, or empty for no folder",
        |c| c.shm.folder.as_ref().map_or(String::new(), |path| path.to_string_lossy().into_owned()),
        |c, text| {
            let allowed = text.is_empty() || text.starts_with('/') && text.len() <= 64;
            if allowed {
                c.shm.folder = (!text.is_empty()).then(|| text.into());
            }
            allowed
        },
    )
    .ours(),
    // Absolute: the program may change its folder before its first socket.
    text(
        "NACC_PSK_FILE",
        "an absolute path without control characters or double quotes, or empty for no key",
        |c| c.links.key_file.as_ref().map_or(String::new(), |path| path.to_string_lossy().into_owned()),
        |c, text| {
            let allowed = text.is_empty() || text.starts_with('/');
            if allowed {
                c.links.key_file = (!text.is_empty()).then(|| text.into());
            }
            allowed
        },
    )
    .ours()
    .guards(),
    text(
        "NACC_VERBS_ADDRESS",
        "an IP address of this machine that an RDMA device serves, or empty for the first such",
        |c| c.verbs.address.map_or(String::new(), |address| address.to_string()),
        |c, text| {
            if text.is_empty() {
                c.verbs.address = None;
                return true;
            }
            text.parse().map(|address| c.verbs.address = Some(address)).is_ok()
        },
    )
    .ours(),
    text(
        "NACC_VERBS_PROFILE",
        "native, erdma, rxe, siw, mlx5 or portable",
        |c| c.verbs.profile.to_string(),
        |c, text| text.parse().map(|profile| c.verbs.profile = profile).is_ok(),
    )
    .ours(),
];

const MIB: i64 = 1 << 20;

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, flag: None, original: true, guards: false, kind }
}

const fn int(
    name: &'static str,
    min: i64,
    max: i64,
    get: fn(&Config) -> i64,
    set: fn(&mut Config, i64) -> bool,
) -> Key {
    key(name, Kind::Int { min, max, remark: "", get, set })
}

const fn switch(name: &'static str, get: fn(&Config) -> bool, set: fn(&mut Config, bool)) -> Key {
    key(name, Kind::Switch { get, set })
}

const fn text(
    name: &'static str,
    allowed: &'static str,
    get: fn(&Config) -> String,
    set: fn(&mut Config, &str) -> bool,
) -> Key {
    key(name, Kind::Text { allowed, get, set })
}

impl Key {
    const fn flag(mut self, flag: char) -> Self {
        self.flag = Some(flag);
        self
    }

    const fn ours(mut self) -> Self {
        self.original = false;
        self
    }

    const fn guards(mut self) -> Self {
        self.guards = true;
        self
    }

    const fn remark(mut self, text: &'static str) -> Self {
        if let Kind::Int { ref mut remark, .. } = self.kind {
            *remark = text;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_flags_are_unique_and_fourteen_keys_are_netacc_s() {
        let mut names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KEYS.len());
        let mut flags: Vec<_> = KEYS.iter().filter_map(|key| key.flag).collect();
        flags.sort_unstable();
        assert_eq!(flags.iter().collect::<String>(), "AFPTdipst");
        assert_eq!(KEYS.iter().filter(|key| key.original).count(), 14);
        assert!(KEYS.iter().all(|key| key.name.starts_with(crate::KEY_PREFIX)));
    }

    #[test]
    fn a_misspelt_key_is_recognised_and_a_strange_one_is_not() {
        assert_eq!(resembling("nacc_log_levle"), Some("NACC_LOG_LEVEL"));
        assert_eq!(resembling("NACC_SOR_MSGSIZE"), Some("NACC_SOR_MSG_SIZE"));
        assert_eq!(resembling("PORT"), None);
        assert_eq!(resembling(&"N".repeat(100_000)), None);
    }

    #[test]
    fn the_longest_poll_fits() {
        let mut config = Config::default();
        assert!(find_key("NACC_POLL_MS").is_some_and(|key| key.set(&mut config, "60000")));
        assert_eq!(config.io.poll, PollBudget::Fixed(std::time::Duration::from_secs(60)));
    }
}
