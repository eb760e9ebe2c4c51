//! `netacc-erdma`: serves emulated eRDMA functions to QEMU.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;

use clap::Parser;
use netacc_erdma::server::{serve, FunctionSocket};
use netacc_erdma::Driver;

const EXAMPLES: &str = "\
Each function is attached to a guest of QEMU 10.1 or later by:
  -machine q35,memory-backend=ram -object memory-backend-memfd,id=ram,size=1G,share=on
  -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"PATH\"}}'
and needs an Ethernet device of the same address in that guest, which carries the connections' handshakes.

The control socket takes one JSON object a line, and answers each with one line:
  {\"get\":\"counters\"}
  {\"set\":{\"function\":0,\"stall_transmit\":true}}
  {\"fault\":{\"function\":0,\"event\":\"qp_fatal\",\"qp\":5}}
models/erdma/README.md has all of them.

Example:
  netacc-erdma --function /tmp/a,mac=52:54:00:99:00:01 --function /tmp/b,mac=52:54:00:99:00:02 --control /tmp/c

Exit status: 0 after SIGTERM or SIGINT, 1 if a socket cannot be bound, 2 if the arguments are wrong.";

/// Emulated eRDMA PCI functions for QEMU guests, over vfio-user
///
/// Prints the line "ready" when all sockets are bound, and serves clients, one after the other on each, until SIGTERM.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Arguments {
    /// A function: the path of its socket, and the address of the guest's Ethernet device
    #[arg(long = "function", value_name = "PATH,mac=MAC", required = true, value_parser = function)]
    functions: Vec<FunctionSocket>,
    /// Which driver will run on the functions
    #[arg(long, value_enum, default_value_t = Driver::Upstream)]
    driver: Driver,
    /// Path of the control socket
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

fn function(text: &str) -> Result<FunctionSocket, String> {
    let (path, mac) = text.rsplit_once(",mac=").ok_or("expected PATH,mac=MAC")?;
    if path.is_empty() {
        return Err("the path is empty".into());
    }
    let bytes: Option<Vec<u8>> = mac.split(':').map(hex_byte).collect();
    let mac = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(format!("{mac:?} is no Ethernet address"))?;
    Ok(FunctionSocket { path: path.into(), mac })
}

fn hex_byte(text: &str) -> Option<u8> {
    let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u8::from_str_radix(text, 16).ok()).flatten()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (send, stopped) = mpsc::channel();
    let handled = ctrlc::set_handler(move || {
        // A second signal while the first is handled changes nothing.
        let _ = send.send(());
    });
    if let Err(error) = handled {
        eprintln!("netacc-erdma: {error}");
        return ExitCode::FAILURE;
    }
    let sockets = match serve(&arguments.functions, arguments.driver, arguments.control.as_deref()) {
        Ok(sockets) => sockets,
        Err(error) => {
            eprintln!("netacc-erdma: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = io::stdout();
    // A parent that has closed the pipe does not wait for the line.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
    // The sender lives as long as the process, so there can be no error.
    let _ = stopped.recv();
    drop(sockets);
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if the address is read in another order, or a wrong one is accepted.
    #[test]
    fn functions_have_paths_and_addresses() {
        let mac = [0x52, 0x54, 0, 0x99, 0, 0xa];
        assert_eq!(function("/a,b,mac=52:54:00:99:00:0A"), Ok(FunctionSocket { path: "/a,b".into(), mac }));
        for wrong in ["/a", "/a,mac=", ",mac=52:54:00:99:00:01", "/a,mac=52:54:00:99:00", "/a,mac=52:54:00:99:00:+1"] {
            assert!(function(wrong).is_err(), "{wrong}");
        }
    }
}
