//! netacc_run from its users' point of view: the built program, the programs that it starts, and its messages.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A shared object that surely loads: the C library that this very process uses.
fn some_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let mut paths = maps.lines().filter_map(|line| line.split_once('/'));
    let path = paths.find(|(_, path)| path.contains("libc.so") || path.contains("libc-"));
    PathBuf::from(format!("/{}", path.expect("a dynamically linked test").1))
}

fn netacc_run() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netacc_run"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"NACC_") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD").env_remove("NETACC_TOLD");
    // Not the machine's own file, whatever its contents.
    command.env("NETACC_CONF", "/dev/null").env("NETACC_PRELOAD", some_library());
    command
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("netacc_run was built");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    output(netacc_run().args(arguments))
}

/// The variables that the program was started with.
fn environment_of(command: &mut Command) -> Vec<String> {
    let (status, stdout, stderr) = output(command.arg("env"));
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    stdout.lines().map(str::to_owned).collect()
}

#[test]
fn help_and_version_are_the_original_s() {
    let (status, help, stderr) = run(&["-h"]);
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    assert!(help.starts_with("Usage: netacc_run [ OPTIONS ] COMMAND\n\nRun COMMAND using NetACC for TCP sockets\n\nOPTIONS:\n   -f <path>   set config file, default /etc/netacc.conf\n"));
    assert!(help.contains("   -t <num>    set netacc io threads, default 4\n"));
    assert!(help.ends_with("   -v          display version info\n"));
    let (status, version, _) = run(&["-v"]);
    assert_eq!((status, version), (Some(0), format!("netacc_run {}\n", env!("CARGO_PKG_VERSION"))));
    let (status, stdout, usage) = run(&[]);
    assert_eq!((status, stdout.as_str(), usage), (Some(2), "", help));
}

#[test]
fn flags_become_variables_and_override_existing_ones() {
    let mut command = netacc_run();
    command.env("NACC_SOR_IO_THREADS", "2").env("NACC_LOG_LEVEL", "4");
    command.args("-t1 -p 8 -s 4096 -F 1 -d -T -P 0 -A 1,3 -i 2 -f /dev/null".split(' '));
    let environment = environment_of(&mut command);
    let mut settings: Vec<_> =
        environment.iter().filter(|line| line.starts_with("NACC_")).map(String::as_str).collect();
    settings.sort_unstable();
    assert_eq!(
        settings,
        [
            "NACC_COMP_VECTOR=2",
            "NACC_CONN_TCP_FIRST=1",
            "NACC_DEBUG=1",
            "NACC_FAST_CONNECT=1",
            "NACC_LOG_LEVEL=4",
            "NACC_POLL_MS=0",
            "NACC_SOR_AFFINITY=1,3",
            "NACC_SOR_CONN_PER_QP=8",
            "NACC_SOR_IO_THREADS=1",
            "NACC_SOR_MSG_SIZE=4096",
        ]
    );
    for line in ["NETACC_CONF=/dev/null", "NETACC_TOLD=1"] {
        assert!(environment.iter().any(|found| found == line), "{line}");
    }
}

#[test]
fn without_flags_nothing_is_set() {
    let environment = environment_of(&mut netacc_run());
    assert!(!environment.iter().any(|line| line.starts_with("NACC_")));
}

#[test]
fn the_library_is_preloaded_before_existing_entries() {
    let library = some_library().canonicalize().expect("it is loaded");
    let expected = format!("LD_PRELOAD={}", library.display());
    assert!(environment_of(&mut netacc_run()).contains(&expected));
    let environment = environment_of(netacc_run().env("LD_PRELOAD", "libm.so.6"));
    assert!(environment.contains(&format!("{expected}:libm.so.6")), "{environment:?}");
}

#[test]
fn without_the_library_the_program_runs_with_a_warning() {
    let (status, stdout, stderr) = output(netacc_run().env("NETACC_PRELOAD", "/none.so").args(["echo", "-h"]));
    assert_eq!((status, stdout.as_str()), (Some(0), "-h\n"));
    assert_eq!(stderr, "netacc_run: NETACC_PRELOAD=/none.so: no such file: the program stays on TCP\n");
}

#[test]
fn the_process_becomes_the_program() {
    let child = netacc_run().args(["sh", "-c", "echo $$; exit 7"]).stdout(Stdio::piped()).spawn();
    let child = child.expect("netacc_run was built");
    let id = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), id.to_string());
    let killed = netacc_run().args(["sh", "-c", "kill -9 $$"]).status().expect("it ends");
    assert_eq!(killed.signal(), Some(9));
}

#[test]
fn ignored_and_default_signals_are_handed_on_as_they_were() {
    let sigpipe_ignored = |before: &str| {
        let script = format!("{before} exec \"$0\" grep SigIgn /proc/self/status");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_netacc_run")]);
        command.env("NETACC_CONF", "/dev/null").env("NETACC_PRELOAD", some_library());
        let (_, stdout, _) = output(&mut command);
        let mask = stdout.trim().rsplit('\t').next().map(|mask| u64::from_str_radix(mask, 16));
        mask.expect("a line").expect("a mask") & (1 << (13 - 1)) != 0
    };
    assert!(!sigpipe_ignored(""), "a shell's default");
    assert!(sigpipe_ignored("trap '' PIPE;"), "systemd's default");
}

#[test]
fn bad_flags_are_one_line_and_status_2() {
    for (arguments, said) in [
        (&["-t", "many", "true"][..], "netacc_run: -t \"many\": not allowed; allowed: an integer from 0 to 1024, 0 as 1\n"),
        (&["-A", "3-1", "true"], "netacc_run: -A \"3-1\": not allowed; allowed: CPU numbers below 1024 as 0 | 1-3 | 1,3,4, or empty for no binding\n"),
        (&["-x", "true"], "netacc_run: invalid option '-x'; see netacc_run -h\n"),
    ] {
        let (status, stdout, stderr) = run(arguments);
        assert_eq!((status, stdout.as_str(), stderr.as_str()), (Some(2), "", said));
    }
}

#[test]
fn commands_that_cannot_be_run_have_the_shell_s_status() {
    let (status, _, stderr) = run(&["no-such-command-anywhere"]);
    assert_eq!(status, Some(127));
    assert_eq!(stderr, "netacc_run: \"no-such-command-anywhere\": command not found\n");
    assert_eq!(run(&["/no/such/file"]).0, Some(127));
    assert_eq!(run(&[""]).0, Some(127));
    let (status, _, stderr) = run(&["/etc/passwd"]);
    assert_eq!(status, Some(126));
    assert_eq!(stderr, "netacc_run: \"/etc/passwd\": cannot be executed: Permission denied\n");
    assert_eq!(run(&["/etc"]).0, Some(126));
}

#[test]
fn a_script_without_an_interpreter_is_run_by_the_shell() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let script = dir.path().join("script");
    // By another process: a child of another test could still have it open for writing, and then the kernel would not
    // run it.
    let install = Command::new("sh").args(["-c", "echo 'echo $0 $1' >$0 && chmod 755 $0"]).arg(&script).status();
    assert!(install.is_ok_and(|status| status.success()));
    let path = format!("{}:/bin:/usr/bin", dir.path().display());
    let (status, stdout, stderr) = output(netacc_run().env("PATH", path).args(["script", "a"]));
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    assert_eq!(stdout, format!("{} a\n", script.display()));
}

#[test]
fn a_bad_file_is_reported_and_the_program_still_runs() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let conf = dir.path().join("n.conf");
    std::fs::write(&conf, "[netacc]\nNACC_LOG_LEVEL=9\nNACC_SOR_MSGSIZE=1\n").expect("writable");
    let warnings_about = |name: &str| {
        let mut command = netacc_run();
        command.current_dir(dir.path()).args(["-f", name, "sh", "-c", "echo $NETACC_CONF"]);
        let (status, stdout, stderr) = output(&mut command);
        assert_eq!(status, Some(0));
        assert_eq!(Path::new(stdout.trim_end()), dir.path().join(name), "absolute for children");
        stderr.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let conf = conf.display();
    let lines = warnings_about("n.conf");
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with(&format!("netacc_run: {conf}:2: NACC_LOG_LEVEL=\"9\": ")));
    assert!(lines[1].ends_with("did you mean NACC_SOR_MSG_SIZE?"));
    assert_eq!(warnings_about("absent.conf").len(), 1);
}

#[test]
fn a_program_that_gains_privileges_is_reported_to_stay_on_tcp() {
    if !nix::unistd::getuid().is_root() {
        eprintln!("only root can make such a program: not tested");
        return;
    }
    let dir = tempfile::TempDir::new_in("/var/tmp").expect("a temporary directory");
    let program = dir.path().join("true");
    // By another process: a child of another test could still have it open for writing, and then the kernel would not
    // run it.
    let install = Command::new("install").args(["-m", "4755", "-o", "65534", "/bin/true"]).arg(&program).status();
    assert!(install.is_ok_and(|status| status.success()), "root may");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("root may");
    let (status, _, stderr) = output(netacc_run().arg(&program));
    assert_eq!(status, Some(0));
    assert_eq!(
        stderr,
        format!("netacc_run: {} gains privileges when run (setuid, setgid or capabilities), so nothing is preloaded into it: it stays on TCP\n", program.display())
    );
}
