//! `netacc exporter`: the state of all accelerated processes as OpenMetrics, over HTTP.
//!
//! Every request asks the processes anew, with the requests of `netacc_ss`; nothing is kept in between. A process's counters begin
//! at 0 when it starts and its series end with it. The page has no secrets, but names programs and ports, so the address is the
//! loopback's unless the user names another one.

mod metrics;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::processes;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics of all accelerated processes that the user may query.
#[derive(Debug, Args)]
#[command(after_help = "\
Root sees the processes of all users, others their own.

Exit status: 1 if the address cannot be used, or the processes cannot be found; 2 wrong usage")]
pub struct ExporterArgs {
    /// The address for HTTP; the metrics are at /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
    listen: SocketAddr,

    /// Print the metrics once, and open no port
    #[arg(long)]
    once: bool,
}

/// `netacc exporter`.
pub fn run(args: &ExporterArgs) -> ExitCode {
    let result = if args.once { print() } else { serve(args.listen) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netacc exporter: {error}");
            ExitCode::FAILURE
        }
    }
}

fn page() -> io::Result<String> {
    metrics::encode(&processes::snapshots().map_err(io::Error::other)?).map_err(io::Error::other)
}

fn print() -> io::Result<()> {
    match io::stdout().write_all(page()?.as_bytes()) {
        // `netacc exporter --once | head` closes its end early.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn serve(address: SocketAddr) -> io::Result<()> {
    let server = Server::http(address).map_err(io::Error::other)?;
    println!("http://{}/metrics", server.server_addr());
    io::stdout().flush()?;
    for request in server.incoming_requests() {
        // The client may have gone.
        let _ = answer(request);
    }
    Ok(())
}

fn answer(request: Request) -> io::Result<()> {
    let path = request.url().split('?').next().unwrap_or_default();
    if path != "/metrics" {
        return request.respond(Response::from_string("the metrics are at /metrics\n").with_status_code(404));
    }
    if !matches!(request.method(), Method::Get | Method::Head) {
        return request.respond(Response::from_string("GET only\n").with_status_code(405));
    }
    match page() {
        Ok(text) => {
            let kind = Header::from_bytes("Content-Type", CONTENT_TYPE).expect("a constant header");
            request.respond(Response::from_string(text).with_header(kind))
        }
        Err(error) => request.respond(Response::from_string(format!("{error}\n")).with_status_code(500)),
    }
}
