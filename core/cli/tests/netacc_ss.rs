//! netacc_ss from its users' point of view: the built program against listeners of the tests.

use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netacc_config::stats::{Document, Path, QueuePairStats, Snapshot, SocketStats};
use netacc_config::Config;

/// The tests share one process id, and so one name of the listener.
static NAME: Mutex<()> = Mutex::new(());

/// Plays the library in this process: answers every request with the output of `answer`.
struct Library {
    requests: Receiver<String>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _name: MutexGuard<'static, ()>,
}

impl Library {
    fn start(answer: impl Fn(&mut UnixStream) + Send + 'static) -> Self {
        let name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = listen(std::process::id());
        let (sender, requests) = channel();
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let thread = std::thread::spawn(move || loop {
            let (mut stream, _) = listener.accept().expect("a client");
            if stop.load(Ordering::Acquire) {
                return;
            }
            let mut line = String::new();
            let clone = stream.try_clone().expect("a descriptor");
            // A client without permission leaves without a request.
            if let Ok(1..) = BufReader::new(clone).read_line(&mut line) {
                let _ = sender.send(line);
                answer(&mut stream);
            }
        });
        Self { requests, stopped, thread: Some(thread), _name: name }
    }

    fn answering(text: impl Into<Vec<u8>>) -> Self {
        let text = text.into();
        Self::start(move |stream| {
            let _ = stream.write_all(&text);
        })
    }

    fn request(&self) -> String {
        self.requests.recv_timeout(Duration::from_secs(5)).expect("a request")
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes it; the name has to be free before the next test needs it.
        let _ = UnixStream::connect_addr(&address(std::process::id()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn address(pid: u32) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("netacc-ss/{pid}")).expect("a name")
}

fn listen(pid: u32) -> UnixListener {
    // A child that another test is about to start may hold the last listener until its exec.
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match UnixListener::bind_addr(&address(pid)) {
            Err(error) if Instant::now() > deadline => panic!("the name is taken: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
            Ok(listener) => return listener,
        }
    }
}

fn netacc_ss() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netacc_ss"));
    command.env("NETACC_CONF", "/dev/null");
    command
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("netacc_ss was built");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn ss(arguments: &str) -> (Option<i32>, String, String) {
    output(netacc_ss().args(arguments.split_ascii_whitespace()))
}

fn query_this_process(arguments: &str) -> (Option<i32>, String, String) {
    ss(&format!("-p {} {arguments}", std::process::id()))
}

fn snapshot() -> Snapshot {
    let counters = |pairs: &[(&str, u64)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
    Snapshot {
        version: 1,
        pid: std::process::id(),
        program: "redis-server".into(),
        backend: "shm".into(),
        problems: vec!["/etc/netacc.conf:3: PORT=\"1\": unknown key".into()],
        cfg: Some(Config::default().values().map(|(k, v)| (k.to_owned(), v)).collect()),
        cnt: Some(counters(&[("streams_promoted", 3), ("rx_bytes_link", 4096)])),
        reasons: Some(counters(&[("no-peer", 2)])),
        mem: Some(counters(&[("registered_bytes", 65_536)])),
        qp: Some(vec![QueuePairStats { qp: 1, backend: "shm".into(), streams: 1, ..QueuePairStats::default() }]),
        sock: Some(vec![SocketStats {
            fd: 8,
            local: "127.0.0.1:6379".into(),
            remote: "127.0.0.1:40000".into(),
            path: Path::Link,
            rx_bytes_link: 512,
            rx_msgs_link: 2,
            ..SocketStats::default()
        }]),
        ..Snapshot::default()
    }
}

fn json() -> Vec<u8> {
    serde_json::to_vec(&snapshot()).expect("plain data")
}

#[test]
fn help_and_version() {
    let (status, help, _) = ss("-h");
    assert_eq!(status, Some(0));
    assert!(help.starts_with("Usage:\n netacc_ss: [-p] <pid> [options]...\n"));
    assert!(help.contains("      cnt: counter information[default]\n"));
    assert_eq!(ss("-v").1, format!("netacc_ss {}\n", env!("CARGO_PKG_VERSION")));
    let (status, _, stderr) = ss("-p x");
    assert_eq!((status, stderr.as_str()), (Some(2), "netacc_ss: \"x\" is not a process id\n"));
}

#[test]
fn counters_are_shown_by_default() {
    // Answers with more sections than requested.
    let library = Library::answering(json());
    let (status, stdout, stderr) = query_this_process("");
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    assert_eq!(library.request(), "GET cnt\n");
    let expected = format!(
        "process {} (redis-server), backend shm\n\n\
         counters\n\
         NAME              VALUE\n\
         rx_bytes_link      4096\n\
         streams_promoted      3\n\n\
         connections not accelerated, by reason\n\
         NAME     VALUE\n\
         no-peer      2\n",
        std::process::id()
    );
    assert_eq!(stdout, expected);
}

#[test]
fn all_sections_are_shown_on_request() {
    let library = Library::answering(json());
    let (status, stdout, _) = query_this_process("-s all");
    assert_eq!((status, library.request().as_str()), (Some(0), "GET all\n"));
    for part in [
        "\nconfiguration\n[netacc]\nNACC_SOR_MSG_SIZE=16384\n",
        "\nNACC_LOG_PATH=\"/tmp/netacc.log\"\n",
        "\n# /etc/netacc.conf:3: PORT=\"1\": unknown key\n",
        "\nmemory\n",
        "\nqueue pairs\n",
        "\nsockets\n",
        "127.0.0.1:6379  127.0.0.1:40000",
    ] {
        assert!(stdout.contains(part), "{part:?} is not in\n{stdout}");
    }
}

// Breaks if netacc_ss understood only one of the forms, or showed them differently.
#[test]
fn rows_are_shown_like_objects() {
    let shown = |answer: Vec<u8>| {
        let _library = Library::answering(answer);
        query_this_process("-s all --json")
    };
    let of_objects = shown(json());
    assert_eq!(of_objects.0, Some(0));
    assert_eq!(shown(serde_json::to_vec(&Document::from(snapshot())).expect("plain data")), of_objects);
}

#[test]
fn json_has_the_requested_sections_only() {
    let library = Library::answering(json());
    let (status, stdout, _) = query_this_process("-s sock,mem --json");
    assert_eq!((status, library.request().as_str()), (Some(0), "GET mem,sock\n"));
    let value: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(value["version"], 1);
    assert_eq!(value["backend"], "shm");
    assert_eq!(value["sock"][0]["path"], "link");
    assert_eq!(value["sock"][0]["rx_bytes_link"], 512);
    assert_eq!(value["sock"][0]["qp"], serde_json::Value::Null);
    assert_eq!(value["mem"]["registered_bytes"], 65_536);
    for absent in ["cfg", "cnt", "reasons", "qp", "problems"] {
        assert!(value.get(absent).is_none(), "{absent}");
    }
}

#[test]
fn no_process_differs_from_no_library() {
    let mut gone = Command::new("true").spawn().expect("true is everywhere");
    gone.wait().expect("it ends");
    let (status, stdout, stderr) = ss(&format!("-p {}", gone.id()));
    assert_eq!((status, stdout.as_str()), (Some(1), ""));
    assert_eq!(stderr, format!("netacc_ss: process {} does not exist\n", gone.id()));

    let plain = sleeper();
    let (status, _, stderr) = ss(&format!("-p {}", plain.0.id()));
    assert_eq!(status, Some(3));
    assert_eq!(
        stderr,
        format!("netacc_ss: process {} is not accelerated: the NetACC library is not in it\n", plain.0.id())
    );
}

#[test]
fn another_process_s_answer_is_not_believed() {
    let victim = sleeper();
    // A process of this user, but not the right one: the name alone proves nothing.
    let _listener = listen(victim.0.id());
    let (status, stdout, stderr) = ss(&format!("{}", victim.0.id()));
    assert_eq!((status, stdout.as_str()), (Some(4), ""));
    assert!(stderr.contains(&format!("process {} of user", std::process::id())), "{stderr}");
}

#[test]
fn another_users_process_is_not_queried() {
    use std::os::unix::process::CommandExt;
    if !nix::unistd::getuid().is_root() {
        eprintln!("only root can play another user: not tested");
        return;
    }
    // A copy that the other user can reach, as the build directory may be private.
    let dir = tempfile::TempDir::new_in("/var/tmp").expect("a temporary directory");
    let program = dir.path().join("netacc_ss");
    std::fs::copy(env!("CARGO_BIN_EXE_netacc_ss"), &program).expect("writable");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("root may");
    let _library = Library::answering(json());
    let pid = std::process::id();
    let mut command = Command::new(&program);
    let (status, _, stderr) = output(command.args(["-p", &pid.to_string()]).uid(65_534).gid(65_534));
    assert_eq!(status, Some(4));
    assert_eq!(stderr, format!("netacc_ss: process {pid} belongs to user 0: only that user and root may query it\n"));
}

#[test]
fn a_listener_that_misbehaves_gets_one_line_and_no_patience() {
    let id = std::process::id();
    for (answer, message) in [
        (&b""[..], "sent no answer: it has ended"),
        (b"{\"version\":1,\"pid\":1", "sent an invalid answer: EOF while parsing"),
        (b"{\"version\":1,\"pid\":1,\"sock\":7}", "sent an invalid answer: invalid type"),
        (b"{\"version\":2,\"pids\":[]}", "answers in version 2, netacc_ss reads version 1"),
        (b"{\"version\":2,\"pid\":1}", "answers in version 2, netacc_ss reads version 1"),
        (b"{\"pid\":1}", "sent an invalid answer: missing field `version`"),
    ] {
        let _library = Library::answering(answer);
        let (status, stdout, stderr) = query_this_process("");
        assert_eq!((status, stdout.as_str(), stderr.lines().count()), (Some(5), "", 1));
        assert!(stderr.contains(&format!("netacc_ss: process {id} {message}")), "{stderr}");
    }
    let nested = Library::answering(b"[".repeat(1 << 20));
    assert_eq!(query_this_process("").0, Some(5));
    drop(nested);

    let endless = Library::start(|stream| while stream.write_all(&[b' '; 1 << 16]).is_ok() {});
    let (status, _, stderr) = query_this_process("");
    assert_eq!(status, Some(5));
    // The one that comes first on this machine.
    assert!(stderr.contains("more than 64 MiB") || stderr.contains("within 2 s"), "{stderr}");
    drop(endless);

    let started = Instant::now();
    let _dripping = Library::start(|stream| {
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let (status, _, stderr) = query_this_process("");
    assert_eq!(status, Some(5));
    assert_eq!(stderr, format!("netacc_ss: process {id} does not answer within 2 s\n"));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let hostile = Snapshot {
        program: "\x1b]0;title\u{7}\u{202e}".into(),
        cnt: Some([("a\nb".to_owned(), 1)].into()),
        ..snapshot()
    };
    let _library = Library::answering(serde_json::to_vec(&hostile).expect("plain data"));
    let (_, stdout, _) = query_this_process("");
    let text = stdout.replace('\n', "");
    assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{stdout:?}");
    assert!(stdout.contains("\na?b"), "{stdout}");
}

#[test]
fn without_a_process_id_the_accessible_processes_are_listed() {
    let library = Library::answering(json());
    let (status, stdout, _) = ss("--json");
    assert_eq!((status, library.request().as_str()), (Some(0), "GET sock\n"));
    let list: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    let list = list.as_array().expect("a list");
    let own = list.iter().find(|process| process["pid"] == std::process::id()).expect("this one");
    assert_eq!(own["program"], "redis-server");
    assert_eq!((&own["sockets_link"], &own["sockets_tcp"]), (&1.into(), &0.into()));
}

#[test]
fn clearing_reports_its_findings() {
    let (status, stdout, stderr) = ss("-c");
    assert_eq!((status, stderr.as_str(), stdout.lines().count()), (Some(0), "", 1));
    // The entries depend on which processes have crashed on this machine.
    assert!(stdout.starts_with("nothing left behind ") || stdout.starts_with("cleared "), "{stdout}");
}

/// A process without the library, which ends with the test.
struct Sleeper(Child);

fn sleeper() -> Sleeper {
    Sleeper(Command::new("sleep").arg("60").spawn().expect("sleep is everywhere"))
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
