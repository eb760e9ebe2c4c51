//! `netacc bench memcached`: an unmodified memcached for each path, under the client of our ping-pong.
//!
//! The load is [`own`]'s, whose clients are the same as those of `netacc bench echo`; only the server is another program.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use super::error::BenchError;
use super::paths::{in_path, Path};
use super::process::{free_port, Proc, Stream};
use super::rounds::Stage;

/// How often another port is tried when the chosen one is taken in the moment between choosing and binding.
const PORT_ATTEMPTS: u32 = 3;

/// Connections beside those of the load: the one that stores the value, and those of a client that is ending.
const SPARE_CONNECTIONS: u32 = 100;

/// How a memcached is started.
#[derive(Debug, Clone)]
pub(super) struct Memcached {
    /// The program.
    pub(super) program: PathBuf,
    /// Its worker threads.
    pub(super) workers: u32,
    /// Connections of the clients at a time.
    pub(super) clients: u32,
}

impl Memcached {
    /// # Errors
    /// The program must be installed.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        match in_path(&self.program) {
            Some(_) => Ok(()),
            None => Err(BenchError::MissingProgram {
                program: self.program.display().to_string(),
                hint: "apt-get install memcached".into(),
            }),
        }
    }

    /// As the program reports it; empty if it does not.
    pub(super) fn version(&self) -> String {
        let output = std::process::Command::new(&self.program).arg("--version").output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    }

    /// Starts one on a path. Returns the process, its id as it reports it itself, and its address in the peers' syntax.
    pub(super) fn start(&self, stage: &Stage, path: &Path) -> Result<(Proc, u32, String), BenchError> {
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            match self.start_once(stage, path) {
                Err(error) if error.to_string().contains("Address already in use") => last = Some(error),
                other => return other,
            }
        }
        Err(last.expect("at least one attempt was made"))
    }

    fn start_once(&self, stage: &Stage, path: &Path) -> Result<(Proc, u32, String), BenchError> {
        let dir = stage.workdir.path();
        let socket = dir.join("memcached.sock");
        let mut command = stage.launcher.command(path, &self.program);
        // It refuses to run as root without a user's name, and changes to none if it is not root.
        command.args(["-u", "root", "-U", "0", "-t", &self.workers.to_string()]);
        // Other connections wait for as many requests of one, so that a pipeline is not cut into pieces.
        command.args(["-R", "1000", "-c", &(self.clients + SPARE_CONNECTIONS).to_string()]);
        let port = if *path == Path::Unix { 0 } else { free_port()? };
        let address = if port == 0 {
            command.arg("-s").arg(&socket);
            format!("unix:{}", socket.display())
        } else {
            command.args(["-l", "127.0.0.1", "-p", &port.to_string()]);
            format!("tcp:127.0.0.1:{port}")
        };
        let mut proc = Proc::spawn(command, &format!("memcached {}", path.name()), dir)?;
        let pid = proc.process_id(port, &socket, process_id)?;
        Ok((proc, pid, address))
    }
}

/// Requests a server's process id, which also shows that it is ready.
fn process_id(stream: &mut dyn Stream) -> std::io::Result<u32> {
    stream.write_all(b"stats\r\n")?;
    let mut found = None;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        found = found.or_else(|| line.strip_prefix("STAT pid ")?.trim().parse().ok());
        if line.trim() == "END" {
            break;
        }
    }
    found.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}
