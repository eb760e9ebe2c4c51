//! `netacc bench` from its users' point of view: structure of the results, clean-up, exit codes. Never speed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

const NETACC: &str = env!("CARGO_BIN_EXE_netacc");

fn netacc(args: &[&str]) -> Output {
    Command::new(NETACC).args(args).output().expect("netacc has been built")
}

fn json_of(args: &[&str]) -> Value {
    let output = netacc(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: one JSON object: {error}"))
}

fn positive(value: &Value, what: &str) {
    assert!(value.as_f64().is_some_and(|number| number > 0.0), "{what}: {value}");
}

/// The parts of the format that README, notebooks and CI rely on.
fn check_paths(paths: &Value, names: &[&str], rounds: usize) {
    let found: Vec<_> = paths.as_object().expect("an object by path").keys().collect();
    assert_eq!(found.len(), names.len(), "{found:?}");
    for name in names {
        let path = &paths[name];
        positive(&path["requests_per_s"], "requests_per_s");
        for percentile in ["p50", "p95", "p99", "p999", "max"] {
            positive(&path["latency_us"][percentile], percentile);
        }
        assert!(path["server_cpu_s_per_million"].is_number() && path["client_cpu_s_per_million"].is_number());
        for ratio in ["ratio_to_tcp", "ratio_p99_to_tcp"] {
            for part in ["median", "min", "max"] {
                positive(&path[ratio][part], ratio);
            }
        }
        assert!(path["link_share"].is_null(), "{name} has no link");
        assert_eq!(path["runs"].as_array().expect("raw runs").len(), rounds);
    }
    assert_eq!(paths["tcp"]["ratio_to_tcp"]["median"], 1.0);
}

#[test]
fn echo_in_every_mode() {
    for mode in ["epoll", "poll", "blocking"] {
        for clients in ["1", "3"] {
            let more = ["--mode", mode, "--clients", clients, "--json", "-"];
            let result = json_of(
                &[&["bench", "echo", "--paths", "tcp,unix", "--pairs", "2", "--requests", "600"], &more[..]].concat(),
            );
            assert_eq!(result["bench"], "echo");
            assert_eq!(result["params"]["mode"], mode);
            positive(&result["machine"]["cores"], "cores");
            check_paths(&result["paths"], &["tcp", "unix"], 2);
            assert_eq!(result["paths"]["unix"]["runs"][1]["requests"], 600);
            positive(&result["paths"]["tcp"]["one_way_us"], "one_way_us");
        }
    }
}

/// Two spinning processes on a busy machine may get a time slice each: few requests, so that this
/// ends.
#[test]
fn echo_spinning() {
    let args = ["bench", "echo", "--paths", "tcp,unix", "--pairs", "1", "--requests", "50", "--mode", "spin"];
    let result = json_of(&[&args[..], &["--json", "-"]].concat());
    check_paths(&result["paths"], &["tcp", "unix"], 1);
}

/// Messages larger than any socket buffer: both ends must wait for room to write without a
/// deadlock.
#[test]
fn echo_of_large_messages() {
    for mode in ["epoll", "poll", "blocking"] {
        let args = ["bench", "echo", "--paths", "tcp,unix", "--pairs", "1", "--requests", "5", "--size", "8MiB"];
        let result = json_of(&[&args[..], &["--mode", mode, "--json", "-"]].concat());
        check_paths(&result["paths"], &["tcp", "unix"], 1);
    }
}

/// Breaks if a count of asks or sleeps is another one, the histogram lacks round trips, or datagrams are not answered.
#[test]
fn echo_counts_what_a_calibration_needs() {
    let args = ["bench", "echo", "--paths", "tcp,unix,udp", "--pairs", "1", "--requests", "600", "--json", "-"];
    for more in [&["--histogram"][..], &["--clients", "20", "--histogram"], &["--rewatch", "--histogram"]] {
        let result = json_of(&[&args[..], more].concat());
        for path in ["tcp", "unix", "udp"] {
            let run = &result["paths"][path]["runs"][0];
            let histogram = run["histogram_ns"].as_array().expect("it was asked for");
            let counted: u64 = histogram.iter().filter_map(|step| step[1].as_u64()).sum();
            assert_eq!(counted, 600, "{path}");
            let asks = run["waits"]["client_asks"].as_f64().expect("a client counts them");
            assert!(asks > 0.0 && asks <= 1.0, "{path}: {asks} asks bring at least one answer each");
            assert_eq!(run["waits"]["server_asks"].is_number(), path != "udp", "{path}");
            assert!(run["waits"]["server_sleeps"].is_number(), "{path}");
        }
    }
    let wakes = ["bench", "echo", "--paths", "tcp,unix", "--pairs", "1", "--requests", "10", "--wakes", "--json", "-"];
    let wakes = json_of(&wakes);
    for path in ["tcp", "unix"] {
        let found = &wakes["paths"][path]["runs"][0]["wakes"];
        let by_pause = found["by_pause"].as_array().expect("it was asked for");
        let pauses: Vec<_> = by_pause.iter().filter_map(|wake| wake["pause_ns"].as_u64()).collect();
        assert!(pauses.is_sorted() && pauses.len() == by_pause.len() && pauses.len() > 1, "{path}: {pauses:?}");
        for wake in by_pause {
            for histogram in ["waking_ns", "delay_ns"] {
                let steps = wake[histogram].as_array().expect("it was asked for");
                assert_eq!(steps.iter().filter_map(|step| step[1].as_u64()).sum::<u64>(), 500, "{path}: {histogram}");
            }
            positive(&wake["server_cpu_ns"], "server_cpu_ns");
        }
        positive(&found["other_ns"], "other_ns");
    }
    let plain = json_of(&["bench", "echo", "--paths", "unix", "--pairs", "1", "--requests", "10", "--json", "-"]);
    assert!(plain["paths"]["unix"]["runs"][0]["histogram_ns"].is_null(), "nobody asked for it");
    assert!(plain["paths"]["unix"]["runs"][0]["wakes"].is_null(), "nor for this");
}

/// Breaks if a processor is left out, or the result is not one object.
#[test]
fn noise_and_wake_ups_are_measured() {
    for (args, work, threshold_ns) in [
        (&[][..], "clock", 1000),
        (&["--work", "tcp"], "tcp", 4000),
        (&["--work", "tcp", "--threshold-ns", "9"], "tcp", 9),
    ] {
        let noise = json_of(&[&["bench", "noise", "--seconds", "0.1"], args].concat());
        let params = serde_json::json!({"work": work, "seconds": 0.1, "threshold_ns": threshold_ns});
        assert_eq!(noise["params"], params);
        let processors = noise["processors"].as_array().expect("an array");
        assert_eq!(processors.len() as u64, noise["machine"]["cores"].as_u64().expect("a number"));
        for processor in processors {
            for figure in ["seconds", "reading_ns", "usual_ns", "copy_ns"] {
                positive(&processor[figure], figure);
            }
            assert_eq!(processor["transfer_ns"].as_u64() > Some(0), processors.len() > 1, "it needs another processor");
            for detour in processor["detours_ns"].as_array().expect("an array") {
                assert!(detour[1].as_u64() > Some(threshold_ns), "{work}: it is above the threshold: {detour}");
            }
        }
    }
    let wake = json_of(&["bench", "wake", "--seconds", "0.1"]);
    positive(&wake["histogram_ns"][0][1], "the first count");
}

/// Breaks if the connections or requests of several clients got lost, or their memory did not count.
#[test]
fn many_clients_share_connections_and_requests() {
    let args = ["bench", "many", "--paths", "tcp,unix", "--pairs", "2", "--requests", "700", "--json", "-"];
    let result = json_of(&[&args[..], &["--clients", "50", "--processes", "3"]].concat());
    assert_eq!((&result["bench"], &result["params"]["processes"]), (&Value::from("many"), &Value::from(3)));
    check_paths(&result["paths"], &["tcp", "unix"], 2);
    for run in result["paths"]["tcp"]["runs"].as_array().expect("raw runs") {
        assert_eq!(run["requests"], 700);
        positive(&run["crowd"]["client_bytes"], "client_bytes");
        assert!(run["crowd"]["linked"].is_null(), "TCP has no links");
    }
    assert_eq!(netacc(&["bench", "many", "--clients", "2", "--processes", "3"]).status.code(), Some(2));
}

#[test]
fn stream_has_bytes_per_second() {
    for streams in ["1", "2"] {
        let args = ["bench", "stream", "--paths", "tcp,unix", "--pairs", "1", "--seconds", "0.1", "--size", "64KiB"];
        let result = json_of(&[&args[..], &["--streams", streams, "--json", "-"]].concat());
        check_paths(&result["paths"], &["tcp", "unix"], 1);
        positive(&result["paths"]["unix"]["bytes_per_s"], "bytes_per_s");
    }
}

#[test]
fn connect_counts_connections() {
    let cases = [
        (&["--exchange", "0"][..], 0, "connect"),
        (&["--exchange", "64"], 1, "connect to answer"),
        (&["--exchange", "64", "--requests-per-connection", "3"], 3, "connect to last answer"),
    ];
    for (more, requests, latency) in cases {
        let args = ["bench", "connect", "--paths", "tcp,unix", "--pairs", "1", "--requests", "200", "--json", "-"];
        let args = [&args[..], more].concat();
        let output = netacc(&args);
        let table = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {table}");
        let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        check_paths(&result["paths"], &["tcp", "unix"], 1);
        assert_eq!(result["paths"]["tcp"]["runs"][0]["requests"], 200);
        assert_eq!(result["params"]["requests_per_connection"], requests);
        assert_eq!(result["params"]["latency"], latency);
        let says = format!("requests_per_connection {requests}, ");
        assert!(table.contains(&says) && table.contains(latency) && table.contains("connections/s"), "{table}");
    }
}

#[test]
fn redis_with_two_tests_and_a_plot() {
    if Command::new("redis-server").arg("--version").output().is_err() {
        // The message is what is to be tested then.
        let output = netacc(&["bench", "redis", "--paths", "tcp"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("apt-get install redis-server"));
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let [json, svg] = ["result.json", "result.svg"].map(|name| dir.path().join(name).display().to_string());
    let args = ["bench", "redis", "--paths", "tcp,unix", "--pairs", "1", "--requests", "2000", "--clients", "5"];
    let record = dir.path().join("record");
    let kept = ["--record", record.to_str().expect("a name in UTF-8")];
    let output = netacc(&[&args[..], &["--tests", "set,get", "--json", &json, "--plot", &svg], &kept].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("redis set") && table.contains("redis get"), "{table}");

    let result: Value = serde_json::from_slice(&fs::read(&json).expect("it was written")).expect("it is JSON");
    check_paths(&result["paths"], &["tcp", "unix"], 1);
    check_paths(&result["tests"]["get"], &["tcp", "unix"], 1);
    assert_eq!(result["paths"], result["tests"]["set"], "the first test stands at the top");
    assert!(fs::read_to_string(&svg).expect("it was drawn").contains("requests per second"));
    let header = fs::read(record.join("record.json")).expect("it was kept");
    let header: Value = serde_json::from_slice(&header).expect("it is JSON");
    for series in header["series"].as_array().expect("a list") {
        let file = series["runs"][0]["histograms"]["latency"].as_str().expect("each run has a histogram");
        assert!(record.join(file).is_file(), "{file}");
    }
}

/// Breaks if a request of a pipeline is not counted, or an answer of memcached's is not the expected one.
#[test]
fn memcached_with_two_tests_and_a_pipeline() {
    if Command::new("memcached").arg("--version").output().is_err() {
        // The message is what is to be tested then.
        let output = netacc(&["bench", "memcached", "--paths", "tcp"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("apt-get install memcached"));
        return;
    }
    let args = ["bench", "memcached", "--paths", "tcp,unix", "--pairs", "2", "--requests", "600", "-c", "5"];
    for pipeline in ["1", "4"] {
        let more = ["--tests", "set,get", "--size", "100", "--workers", "1", "--pipeline", pipeline, "--json", "-"];
        let result = json_of(&[&args[..], &more].concat());
        assert_eq!((&result["bench"], &result["test"]), (&"memcached".into(), &"set".into()));
        for test in ["set", "get"] {
            let paths = &result["tests"][test];
            check_paths(paths, &["tcp", "unix"], 2);
            for run in paths["tcp"]["runs"].as_array().expect("raw runs") {
                assert_eq!(run["requests"], 600, "{test} by {pipeline}");
                assert!(run["waits"]["client_asks"].is_number() && run["waits"]["server_asks"].is_null());
            }
        }
    }
}

#[test]
fn wrong_usage_is_2_and_failure_is_1() {
    for args in [
        &["bench", "echo", "--paths", "tcp,warp"][..],
        &["bench", "echo", "--requests", "1", "--seconds", "1"],
        &["bench", "echo", "--size", "0"],
        &["bench", "echo", "--pairs", "0"],
        &["bench", "echo", "--plot", "x.png"],
        &["bench", "echo", "--json", "/no/such/directory/x.json"],
        &["bench", "echo", "--record", "/", "--paths", "tcp"],
        &["bench", "echo", "--paths", "udp", "--mode", "blocking"],
        &["bench", "echo", "--paths", "udp", "--size", "64KiB"],
        &["bench", "stream", "--paths", "udp"],
        &["bench", "connect", "--paths", "tcp", "--requests-per-connection", "2"],
        &["bench", "redis", "--paths", "udp"],
        &["bench", "memcached", "--paths", "udp"],
        &["bench", "noise", "--threshold-ns", "0", "--seconds", "5"],
        &["bench", "noise", "--work", "udp"],
        &["bench", "wake", "--json", "/no/such/directory/x.json"],
        &["bench", "nonsense"],
    ] {
        assert_eq!(netacc(args).status.code(), Some(2), "{args:?}");
    }
    let missing = netacc(&["bench", "redis", "--redis-server", "no-such-redis", "--paths", "tcp"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("apt-get install redis-server"));
}

/// Breaks if a server or its directory survives Ctrl-C.
#[test]
fn interrupting_stops_everything() {
    let [dir, kept] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary directory"));
    let mut child = Command::new(NETACC)
        .args(["bench", "echo", "--paths", "unix", "--pairs", "1", "--seconds", "60", "--size", "77"])
        .arg("--record")
        .arg(kept.path().join("record"))
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("netacc has been built");
    let own = format!("{}", dir.path().display());
    wait_for("two peers", || processes_with(&own).len() == 2);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it is our child");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
    assert!(stderr.lines().map_while(Result::ok).any(|line| line.contains("interrupted")));
    wait_for("the end of the peers", || processes_with(&own).is_empty());
    for folder in [&dir, &kept] {
        assert_eq!(fs::read_dir(folder.path()).expect("it is ours").count(), 0, "the directories are removed");
    }
}

/// Breaks without the guard: no process is left to stop the server if netacc itself is killed.
#[test]
fn killing_leaves_no_server_behind() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut child = Command::new(NETACC)
        .args(["bench", "echo", "--paths", "unix", "--pairs", "1", "--seconds", "60"])
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("netacc has been built");
    let own = format!("{}", dir.path().display());
    wait_for("two peers", || processes_with(&own).len() == 2);
    child.kill().expect("it is our child");
    child.wait().expect("it ends");
    wait_for("the end of the peers", || processes_with(&own).is_empty());
}

/// Processes, other than zombies, with this text on their command line.
fn processes_with(text: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("there is a /proc");
    let dirs = entries.filter_map(Result::ok).map(|entry| entry.path());
    dirs.filter_map(|dir| command_line(&dir)).filter(|line| line.contains(text)).collect()
}

fn command_line(dir: &Path) -> Option<String> {
    dir.file_name()?.to_str()?.parse::<u32>().ok()?;
    Some(String::from_utf8_lossy(&fs::read(dir.join("cmdline")).ok()?).into_owned())
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn doctor_speaks_json() {
    let output = netacc(&["doctor", "--json"]);
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(result["ok"].as_bool(), Some(output.status.success()));
    assert_eq!((&result["backends"][0]["name"], &result["backends"][1]["name"]), (&"shm".into(), &"verbs".into()));
    let checks = result["checks"].as_array().expect("checks");
    assert!(!checks.is_empty());
    for check in checks {
        assert!(check["finding"].is_string(), "{check}");
        assert_eq!(check["fix"].is_string(), check["status"] != "ok", "what is not well has a fix: {check}");
    }
}

#[test]
fn doctor_fails_with_a_fix_where_nothing_is_accelerated() {
    let doctor = |variable: &str, value: &str| {
        let program = env!("CARGO_BIN_EXE_netacc");
        let output = Command::new(program).args(["doctor", "--json"]).env(variable, value).output().expect("it runs");
        let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let failed = result["checks"].as_array().expect("checks").iter().filter(|check| check["status"] == "fail");
        let failed: Vec<String> = failed.map(|check| check["name"].as_str().unwrap_or_default().to_owned()).collect();
        (output.status.code(), failed)
    };
    let (code, failed) = doctor("NACC_ENABLE_RDMA_DEFAULT", "0");
    assert_eq!(code, Some(1));
    assert!(failed.contains(&"configuration".to_owned()), "{failed:?}");
    let (code, failed) = doctor("NACC_PSK_FILE", "/nowhere/at/all");
    assert_eq!(code, Some(1));
    assert!(failed.contains(&"pre-shared key".to_owned()), "{failed:?}");
}
