//! The configuration from its users' point of view: a file, an environment, flags, and the reported problems.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netacc_config::{
    Backend, Config, ConfigValue, Expiry, Group, Loader, LogLevel, PathPolicy, PollBudget, UnseenIoPolicy, KEYS,
};
use proptest::prelude::*;
use tempfile::TempDir;

struct Lab {
    dir: TempDir,
}

impl Lab {
    fn new(text: impl AsRef<[u8]>) -> Self {
        let lab = Self { dir: TempDir::new().expect("a temporary directory") };
        std::fs::write(lab.path(), text).expect("it can be written to");
        lab
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("n.conf")
    }

    fn loader(&self) -> Loader {
        Loader::new().file(self.path())
    }
}

/// Loads a file whose settings are `lines`, and gives the problems without the directory.
fn load(lines: &str) -> (Config, Vec<String>) {
    let lab = Lab::new(format!("[netacc]\n{lines}"));
    let (config, problems) = lab.loader().load();
    let prefix = format!("{}/", lab.dir.path().display());
    (config, problems.iter().map(|p| p.to_string().replace(&prefix, "")).collect())
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(k, v)| (k.into(), v.into())).collect()
}

#[test]
fn the_sample_file_is_exactly_the_defaults_and_names_every_key() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("netacc.conf");
    let (config, problems) = Loader::new().file(&sample).load();
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(config, Config::default());
    let text = std::fs::read_to_string(sample).expect("the sample");
    let settings: Vec<_> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(settings, Config::default().to_lines());
}

#[test]
fn the_defaults_are_the_documented_ones() {
    let expected = [
        ("NACC_SOR_MSG_SIZE", "16384"),
        ("NACC_RDMA_MR_MIN_INC_SIZE", "16384"),
        ("NACC_RDMA_MR_MAX_INC_SIZE", "8388608"),
        // Documented as 1. With few connections 0 is the same, and with many it lets all of them use links.
        ("NACC_SOR_CONN_PER_QP", "0"),
        ("NACC_SOR_IO_THREADS", "1"),
        ("NACC_EMPTY_QP_EXPIRE_MS", "60000"),
        ("NACC_EMPTY_QP_MAX_ALL", "100"),
        ("NACC_EMPTY_QP_MAX_PER", "10"),
        ("NACC_CONNECT_RDMA_PERCENT", "100"),
        ("NACC_ENABLE_RDMA_DEFAULT", "1"),
        ("NACC_LOG_LEVEL", "3"),
        ("NACC_LOG_PATH", "/tmp/netacc.log"),
        ("NACC_SOR_AFFINITY", ""),
        ("NACC_CONN_TCP_FIRST", "0"),
    ];
    let config = Config::default();
    let found: Vec<_> = config.values().take(14).map(|(k, v)| (k, v.to_string())).collect();
    assert_eq!(found, expected.map(|(k, v)| (k, v.to_owned())));
}

#[test]
fn every_key_reaches_its_field() {
    let (config, problems) = load(
        "NACC_SOR_MSG_SIZE=4096\nNACC_RDMA_MR_MIN_INC_SIZE=8192\nNACC_RDMA_MR_MAX_INC_SIZE=1048576\n\
         NACC_SOR_CONN_PER_QP=32\nNACC_SOR_IO_THREADS=2\nNACC_EMPTY_QP_EXPIRE_MS=-1\n\
         NACC_EMPTY_QP_MAX_ALL=7\nNACC_EMPTY_QP_MAX_PER=3\nNACC_CONNECT_RDMA_PERCENT=50\n\
         NACC_ENABLE_RDMA_DEFAULT=0\nNACC_LOG_LEVEL=0\nNACC_LOG_PATH=''\nNACC_SOR_AFFINITY=1-3\n\
         NACC_CONN_TCP_FIRST=1\nNACC_BACKEND=shm\nNACC_POLICY=abort\nNACC_RING_SIZE=4096\n\
         NACC_PROMOTE_AFTER=0\nNACC_KEEP_PRELOAD=0\nNACC_STATIC=0\nNACC_DATAGRAMS=0\nNACC_PATH_CHOICE=link\nNACC_FAST_CONNECT=1\nNACC_POLL_MS=0\nNACC_COMP_VECTOR=3\n\
         NACC_DEBUG=1\nNACC_SHM_GROUP=redis\nNACC_SHM_DIR=/run/pod\nNACC_PSK_FILE=/etc/netacc.key\n",
    );
    assert_eq!(problems, [""; 0]);
    assert_eq!(
        (config.memory.msg_bytes, config.memory.mr_min_bytes, config.memory.mr_max_bytes),
        (4096, 8192, 1 << 20)
    );
    assert_eq!(config.memory.ring_bytes, 4096);
    assert_eq!((config.links.streams_per_link, config.links.empty_expiry), (32, Expiry::Never));
    assert_eq!((config.links.empty_max, config.links.empty_max_per_peer), (7, 3));
    assert_eq!((config.promotion.percent, config.promotion.enabled), (50, false));
    assert!(config.promotion.tcp_first && config.promotion.fast_connect);
    assert_eq!(config.promotion.path, PathPolicy::Link);
    assert!(!config.keep_preload && Config::default().keep_preload);
    assert!(!config.static_programs && Config::default().static_programs);
    assert_eq!((config.promotion.after_operations, config.promotion.threshold()), (0, 0));
    assert_eq!((config.io.threads, config.io.affinity.as_slice()), (2, &[1, 2, 3][..]));
    assert_eq!((config.io.poll, config.io.comp_vector), (PollBudget::Fixed(Duration::ZERO), 3));
    assert_eq!((config.log.level, config.log.path.as_deref()), (LogLevel::Trace, None));
    assert_eq!(config.log.effective_level(), LogLevel::Trace);
    assert_eq!((config.backend, config.unseen_io), (Backend::Shm, UnseenIoPolicy::Abort));
    assert_eq!(config.shm.group, Some(Group::Name("redis".into())));
    assert_eq!(config.shm.folder.as_deref(), Some(Path::new("/run/pod")));
    assert_eq!(config.links.key_file.as_deref(), Some(Path::new("/etc/netacc.key")));
    assert!(config.accelerate && !config.acceleration_allowed());
}

#[test]
fn flags_win_over_the_environment_and_the_environment_over_the_file() {
    let lab = Lab::new("[netacc]\nNACC_SOR_IO_THREADS=2\nNACC_SOR_CONN_PER_QP=2\nNACC_LOG_LEVEL=2\n");
    let environment = variables(&[
        ("NACC_SOR_IO_THREADS", "3"),
        ("NACC_SOR_CONN_PER_QP", "3"),
        ("HOME", "/"),
        ("NETACC_PRELOAD", "x"),
        ("NETACC_CONF", lab.path().to_str().expect("a plain path")),
    ]);
    let (config, problems) = Loader::new().default_file().environment(environment).flag('t', "4").load();
    assert_eq!(config.io.threads, 4);
    assert!(problems.is_empty(), "{problems:?}");
    assert!(config.accelerate);
    assert_eq!(config.links.streams_per_link, 3);
    assert_eq!(config.log.level, LogLevel::Info);
}

/// Breaks if a user who wants no thread of the library is not told that there is one.
#[test]
fn no_threads_count_as_one_and_that_is_reported() {
    let (_, problems) = load("NACC_SOR_IO_THREADS=0\n");
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(
        problem.ends_with("NACC_SOR_IO_THREADS=\"0\": without effect: one NetACC thread connects links, as with 1"),
        "{problem}"
    );
}

#[test]
fn a_bad_value_is_one_line_with_its_place_and_the_allowed_values() {
    let (config, problems) = load(
        "NACC_LOG_LEVEL=9\nNACC_LOG_LEVLE=2\nPORT=1\nNACC_SOR_AFFINITY=3-1\nNACC_RING_SIZE=5000\n\
         NACC_SHM_GROUP=a b\nNACC_EMPTY_QP_MAX_ALL=1\nNACC_EMPTY_QP_MAX_ALL=2\nNACC_POLL_MS=+1\n",
    );
    let keys = KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ");
    assert_eq!(
        problems,
        [
            "n.conf:2: NACC_LOG_LEVEL=\"9\": not allowed, ignored; allowed: an integer from 0 to 5, 0 TRACE, 1 DEBUG, 2 INFO, 3 WARN, 4 ERROR, 5 FATAL",
            "n.conf:3: NACC_LOG_LEVLE=\"2\": unknown key, ignored; did you mean NACC_LOG_LEVEL?",
            &format!("n.conf:4: PORT=\"1\": unknown key, ignored; allowed: {keys}"),
            "n.conf:5: NACC_SOR_AFFINITY=\"3-1\": not allowed, ignored; allowed: CPU numbers below 1024 as 0 | 1-3 | 1,3,4, or empty for no binding",
            "n.conf:6: NACC_RING_SIZE=\"5000\": not allowed, ignored; allowed: an integer from 4096 to 4194304, a power of two",
            "n.conf:7: NACC_SHM_GROUP=\"a b\": not allowed, ignored; allowed: the name or number of a group, or empty for the same user only",
            "n.conf:9: NACC_EMPTY_QP_MAX_ALL=\"2\": set again: this one counts, not line 8; allowed: once",
            "n.conf:10: NACC_POLL_MS=\"+1\": not allowed, ignored; allowed: an integer from -1 to 60000, -1 for adaptive, 0 for never spinning",
        ]
    );
    let mut expected = Config::default();
    expected.links.empty_max = 2;
    assert_eq!(config, expected, "what is bad leaves the default and does not slow the program");
}

#[test]
fn a_switch_that_cannot_be_understood_keeps_the_program_on_tcp() {
    for line in [
        "NACC_ENABLE_RDMA_DEFAULT=no",
        "NACC_ENABLE_RDMA_DEFAULTS=0",
        "NACC_CONNECT_RDMA_PERCENT=0%",
        "NACC_BACKEND=off",
        "NACC_POLICY=panic",
        "NACC_PSK_FILE=netacc.key",
        "NACC_BACKEND=\"none",
    ] {
        let (config, problems) = load(line);
        assert!(!config.acceleration_allowed(), "{line}");
        assert_eq!(problems.len(), 1);
        assert!(problems[0].ends_with(" (the program stays on TCP)"), "{}", problems[0]);
    }
}

#[test]
fn a_file_that_cannot_be_read_keeps_the_program_on_tcp_and_a_missing_usual_one_does_not() {
    let dir = TempDir::new().expect("a temporary directory");
    let reported = |path: &Path| {
        let (config, problems) = Loader::new().file(path).load();
        assert!(!config.acceleration_allowed() && problems.len() == 1);
        problems[0].to_string()
    };
    let missing = dir.path().join("none.conf");
    assert_eq!(
        reported(&missing),
        format!("{}: cannot be read (No such file or directory (os error 2)); allowed: a readable text file (the program stays on TCP)", missing.display())
    );
    assert!(reported(dir.path()).contains("not a regular file"));
    assert!(reported(Path::new("/dev/zero")).contains("not a regular file"));
    let long = dir.path().join("long.conf");
    std::fs::write(&long, vec![b'\n'; (64 << 10) + 1]).expect("writable");
    assert!(reported(&long).contains("longer than 65536 bytes"));

    let (config, problems) = Loader::new().file("/dev/null").load();
    assert!(config == Config::default() && problems.is_empty());
    if !Path::new(netacc_config::DEFAULT_CONFIG_PATH).exists() {
        let (config, problems) = Loader::new().default_file().load();
        assert!(config == Config::default() && problems.is_empty());
    }
}

#[test]
fn region_sizes_must_be_their_minimum_times_a_power_of_two() {
    let sizes = |config: &Config| {
        let memory = &config.memory;
        (memory.msg_bytes, memory.mr_min_bytes, memory.mr_max_bytes)
    };
    let (config, problems) =
        load("NACC_SOR_MSG_SIZE=10000\nNACC_RDMA_MR_MIN_INC_SIZE=30000\nNACC_RDMA_MR_MAX_INC_SIZE=8388608\n");
    assert_eq!(
        problems,
        [
            "n.conf:3: NACC_RDMA_MR_MIN_INC_SIZE=\"30000\": breaks a rule, 10000 is used; allowed: NACC_SOR_MSG_SIZE (10000) x 2^N, N from 0",
            "n.conf:4: NACC_RDMA_MR_MAX_INC_SIZE=\"8388608\": breaks a rule, 5120000 is used; allowed: NACC_RDMA_MR_MIN_INC_SIZE (10000) x 2^N, N from 0",
        ]
    );
    assert_eq!(sizes(&config), (10_000, 10_000, 5_120_000));
    assert!(config.acceleration_allowed());

    let (config, problems) = load("NACC_SOR_MSG_SIZE=10000\n");
    assert_eq!(problems, [""; 0], "defaults follow silently");
    assert_eq!(sizes(&config), (10_000, 10_000, 5_120_000));

    // netacc_run -s beside the sample file.
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("netacc.conf");
    let (config, problems) = Loader::new().file(&sample).flag('s', "65536").load();
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(sizes(&config), (65_536, 65_536, 8 << 20));
    let (config, _) = Loader::new().flag('s', "4096").load();
    assert_eq!(sizes(&config), (4096, 16_384, 8 << 20));

    // A stronger source does not excuse its own mistake.
    let lab = Lab::new("[netacc]\nNACC_SOR_MSG_SIZE=4096\n");
    let bad = variables(&[("NACC_RDMA_MR_MIN_INC_SIZE", "1000")]);
    let (config, problems) = lab.loader().environment(bad).load();
    assert!(problems[0].to_string().starts_with("environment: NACC_RDMA_MR_MIN_INC_SIZE=\"1000\""));
    assert_eq!(sizes(&config), (4096, 16_384, 8 << 20));
}

#[test]
fn a_flood_of_problems_is_cut_and_control_characters_are_not_shown() {
    let (_, problems) = load(&"x\n".repeat(10_000));
    assert_eq!(problems.len(), 201);
    assert_eq!(problems[200], "n.conf:202: 9800 more problems are not shown");
    let (_, problems) = load("NACC_LOG_LEVEL=\x1b[2J\u{7}\n");
    assert!(problems[0].contains("\\u{1b}[2J\\u{7}"), "{}", problems[0]);
}

#[test]
fn the_configuration_serialises_as_the_map_that_netacc_ss_shows() {
    let json = serde_json::to_value(Config::default()).expect("plain values");
    assert_eq!(json["NACC_SOR_MSG_SIZE"], 16_384);
    assert_eq!(json["NACC_LOG_PATH"], "/tmp/netacc.log");
    assert_eq!(json["NACC_BACKEND"], "auto");
    let back: std::collections::BTreeMap<String, ConfigValue> = serde_json::from_value(json).expect("what was written");
    assert_eq!(back.len(), KEYS.len());
}

/// Any allowed configuration, as the settings that make it.
fn settings() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    let sizes = (64usize..=1 << 20, 0u32..5, 0u32..20).prop_map(|(msg, min, max)| {
        let min = msg << min;
        let mut max = min << max;
        while max < 1 << 20 {
            max *= 2;
        }
        while max > 512 << 20 {
            max /= 2;
        }
        [
            ("NACC_SOR_MSG_SIZE", msg.to_string()),
            ("NACC_RDMA_MR_MIN_INC_SIZE", min.to_string()),
            ("NACC_RDMA_MR_MAX_INC_SIZE", max.to_string()),
        ]
    });
    let int = |name: &'static str, min: i64, max: i64| {
        prop_oneof![Just(min), Just(max), min..=max].prop_map(move |n| (name, n.to_string()))
    };
    let ints = [
        int("NACC_SOR_CONN_PER_QP", 1, 65_535).boxed(),
        int("NACC_SOR_IO_THREADS", 1, 1024).boxed(),
        int("NACC_EMPTY_QP_EXPIRE_MS", -1, i32::MAX.into()).boxed(),
        int("NACC_EMPTY_QP_MAX_ALL", 0, 65_535).boxed(),
        int("NACC_EMPTY_QP_MAX_PER", 0, 65_535).boxed(),
        int("NACC_CONNECT_RDMA_PERCENT", 0, 100).boxed(),
        int("NACC_ENABLE_RDMA_DEFAULT", 0, 1).boxed(),
        int("NACC_LOG_LEVEL", 0, 5).boxed(),
        int("NACC_CONN_TCP_FIRST", 0, 1).boxed(),
        int("NACC_PROMOTE_AFTER", 0, 1_000_000).boxed(),
        int("NACC_FAST_CONNECT", 0, 1).boxed(),
        int("NACC_KEEP_PRELOAD", 0, 1).boxed(),
        int("NACC_STATIC", 0, 1).boxed(),
        int("NACC_DATAGRAMS", 0, 1).boxed(),
        int("NACC_POLL_MS", -1, 60_000).boxed(),
        int("NACC_COMP_VECTOR", 0, 65_535).boxed(),
        int("NACC_DEBUG", 0, 1).boxed(),
        (12u32..=22).prop_map(|n| ("NACC_RING_SIZE", (1u64 << n).to_string())).boxed(),
        "[^\\p{C}\"]{0,40}".prop_map(|text| ("NACC_LOG_PATH", text)).boxed(),
        prop::collection::vec(0u32..1024, 0..6)
            .prop_map(|cpus| {
                let cpus: Vec<_> = cpus.iter().map(u32::to_string).collect();
                ("NACC_SOR_AFFINITY", cpus.join(","))
            })
            .boxed(),
        prop::sample::select(vec!["auto", "shm", "verbs", "none"])
            .prop_map(|word| ("NACC_BACKEND", word.to_owned()))
            .boxed(),
        prop::sample::select(vec!["log", "demote", "error", "abort"])
            .prop_map(|word| ("NACC_POLICY", word.to_owned()))
            .boxed(),
        prop::sample::select(vec!["measured", "link"]).prop_map(|word| ("NACC_PATH_CHOICE", word.to_owned())).boxed(),
        "|[0-9]{1,9}|[a-z_][A-Za-z0-9_.-]{0,30}".prop_map(|t| ("NACC_SHM_GROUP", t)).boxed(),
        prop::sample::select(vec!["", "/run/pod"]).prop_map(|path| ("NACC_SHM_DIR", path.to_owned())).boxed(),
        prop::sample::select(vec!["", "/etc/netacc.key"]).prop_map(|path| ("NACC_PSK_FILE", path.to_owned())).boxed(),
        prop::sample::select(vec!["", "10.99.0.1", "fd99::1"])
            .prop_map(|address| ("NACC_VERBS_ADDRESS", address.to_owned()))
            .boxed(),
        prop::sample::select(vec!["native", "erdma", "rxe", "siw", "mlx5", "portable"])
            .prop_map(|word| ("NACC_VERBS_PROFILE", word.to_owned()))
            .boxed(),
    ];
    (sizes, ints).prop_map(|(sizes, rest)| sizes.into_iter().chain(rest).collect())
}

proptest! {
    #[test]
    fn no_file_makes_loading_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let lab = Lab::new(bytes);
        let (config, problems) = lab.loader().load();
        for problem in problems {
            let line = problem.to_string();
            prop_assert!(!line.chars().any(char::is_control), "{line:?}");
        }
        prop_assert!(config.memory.mr_min_bytes.is_multiple_of(config.memory.msg_bytes));
    }

    #[test]
    fn no_text_made_of_the_format_s_own_parts_makes_loading_panic(
        parts in prop::collection::vec(prop_oneof![
            prop::sample::select(KEYS.iter().map(|key| key.name.to_owned()).collect::<Vec<_>>()),
            prop::sample::select(vec!["[netacc]\n", "\n", "=", "\"", "'", "#", " ", "[", "]", "\0", "-"])
                .prop_map(str::to_owned),
            (-2i64..i64::MAX).prop_map(|n| n.to_string()),
        ], 0..60)
    ) {
        let lab = Lab::new(format!("[netacc]\n{}", parts.concat()));
        let (config, _) = lab.loader().load();
        let memory = &config.memory;
        for (size, base) in [(memory.mr_min_bytes, memory.msg_bytes), (memory.mr_max_bytes, memory.mr_min_bytes)] {
            prop_assert!(size % base == 0 && (size / base).is_power_of_two());
        }
        prop_assert!((1 << 20..=512 << 20).contains(&memory.mr_max_bytes));
    }

    #[test]
    fn allowed_values_are_read_and_written_without_change(settings in settings()) {
        let as_environment: Vec<(OsString, OsString)> =
            settings.iter().map(|(k, v)| ((*k).into(), v.into())).collect();
        prop_assert_eq!(settings.len(), KEYS.len());
        let (config, problems) = Loader::new().environment(as_environment).load();
        prop_assert!(problems.is_empty(), "{problems:?}");
        for (name, value) in config.values() {
            let set = &settings.iter().find(|(k, _)| *k == name).expect("every key is set").1;
            // Lists of CPUs and numbers with leading zeroes are written in their shortest form.
            if name != "NACC_SOR_AFFINITY" && name != "NACC_SHM_GROUP" {
                prop_assert_eq!(&value.to_string(), set);
            }
        }
        let lab = Lab::new(config.to_lines().join("\n"));
        let (again, problems) = lab.loader().load();
        prop_assert!(problems.is_empty(), "{problems:?}");
        prop_assert_eq!(again, config);
    }
}
