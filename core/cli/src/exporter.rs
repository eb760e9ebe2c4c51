//! `netacc exporter`: the state of all accelerated processes as OpenMetrics, over HTTP.
//!
//! Every request asks the processes anew, with the requests of `netacc_ss`; only histograms of latency are kept in between. A process's
//! counters begin at 0 when it starts and its series end with it. The page has no secrets, but names programs and ports, so the address is the
//! loopback's unless the user names another one.

mod latency;
mod metrics;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use prometheus_client::registry::Registry;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::processes;
use latency::Latency;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics of all accelerated processes that the user may query.
#[derive(Debug, Args)]
#[command(after_help = "\
Root sees the processes of all users and of containers, others their own.

Exit status: 1 if the address cannot be used, or the processes cannot be found; 2 wrong usage")]
pub struct ExporterArgs {
    /// The address for HTTP; the metrics are at /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
    listen: SocketAddr,

    /// Print the metrics once, and open no port
    #[arg(long)]
    once: bool,

    /// Also trace messages for a short window, with so long a time between two windows, and add histograms of their latency
    #[arg(long, value_name = "TIME", value_parser = crate::trace::args::time)]
    trace_every: Option<Duration>,

    /// Length of a window; longer ones are needed where messages take more than a few milliseconds
    #[arg(long, value_name = "TIME", default_value = "10ms", requires = "trace_every", value_parser = crate::trace::args::time)]
    trace_window: Duration,
}

/// `netacc exporter`.
pub fn run(args: &ExporterArgs) -> ExitCode {
    let latency = args.trace_every.map(|_| Arc::<Latency>::default());
    let result = if args.once { print(args, latency.as_deref()) } else { serve(args, latency) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netacc exporter: {error}");
            ExitCode::FAILURE
        }
    }
}

fn page(latency: Option<&Latency>) -> io::Result<String> {
    let snapshots = processes::snapshots().map_err(io::Error::other)?;
    let histograms = |registry: &mut Registry| latency.into_iter().for_each(|latency| latency.register(registry));
    metrics::encode(&snapshots, histograms).map_err(io::Error::other)
}

fn print(args: &ExporterArgs, latency: Option<&Latency>) -> io::Result<()> {
    if let Some(latency) = latency {
        latency.trace(args.trace_window);
    }
    match io::stdout().write_all(page(latency)?.as_bytes()) {
        // `netacc exporter --once | head` closes its end early.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn serve(args: &ExporterArgs, latency: Option<Arc<Latency>>) -> io::Result<()> {
    let server = Server::http(args.listen).map_err(io::Error::other)?;
    if let (Some(latency), Some(every)) = (&latency, args.trace_every) {
        latency::start(Arc::clone(latency), every, args.trace_window)?;
    }
    println!("http://{}/metrics", server.server_addr());
    io::stdout().flush()?;
    for request in server.incoming_requests() {
        // The client may have gone.
        let _ = answer(request, latency.as_deref());
    }
    Ok(())
}

fn answer(request: Request, latency: Option<&Latency>) -> io::Result<()> {
    let path = request.url().split('?').next().unwrap_or_default();
    if path != "/metrics" {
        return request.respond(Response::from_string("the metrics are at /metrics\n").with_status_code(404));
    }
    if !matches!(request.method(), Method::Get | Method::Head) {
        return request.respond(Response::from_string("GET only\n").with_status_code(405));
    }
    match page(latency) {
        Ok(text) => {
            let kind = Header::from_bytes("Content-Type", CONTENT_TYPE).expect("a constant header");
            request.respond(Response::from_string(text).with_header(kind))
        }
        Err(error) => request.respond(Response::from_string(format!("{error}\n")).with_status_code(500)),
    }
}
