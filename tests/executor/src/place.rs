//! The places of the processes of a program: all on this machine, or on several, each reached by a command that runs
//! `netacc-exec --agent` there with its standard input and output on ours (`ssh HOST ...`, `netacc lab exec 1 -- ...`).

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::host::{Host, Order, OrderLine, Report, ReportLine};
use crate::ledger::Positions;
use crate::world::World;

/// An agent on another machine.
struct Agent {
    process: Child,
    orders: Option<ChildStdin>,
    reports: BufReader<ChildStdout>,
}

impl Agent {
    fn begin(command: &str) -> io::Result<Agent> {
        let mut process =
            Command::new("sh").args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let missing = || io::Error::other("no pipe");
        let orders = Some(process.stdin.take().ok_or_else(missing)?);
        let reports = BufReader::new(process.stdout.take().ok_or_else(missing)?);
        Ok(Agent { process, orders, reports })
    }

    fn perform(&mut self, line: &OrderLine) -> io::Result<ReportLine> {
        let Some(orders) = &mut self.orders else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        orders.write_all(&text)?;
        orders.flush()?;
        let mut answer = String::new();
        self.reports.read_line(&mut answer)?;
        if answer.is_empty() {
            return Err(io::Error::other(format!("an agent ended with {}", self.process.wait()?)));
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It ends with its input.
        self.orders = None;
        let _ = self.process.wait();
    }
}

/// See the module documentation.
pub(crate) enum Places {
    /// All hosts of a program are addresses of this machine.
    Here(Box<Host>),
    /// A host of a program is one of these, and each gets the positions of the others.
    Elsewhere(Agents),
}

/// Machines, and the positions of the program that they run.
pub(crate) struct Agents {
    agents: Vec<Agent>,
    known: Positions,
}

impl Places {
    /// Commands that run agents, one for each host; none: this machine.
    pub(crate) fn open(commands: &[String], world: World) -> io::Result<Places> {
        if commands.is_empty() {
            return Ok(Places::Here(Box::new(Host::create(world)?)));
        }
        let agents = commands.iter().map(|command| Agent::begin(command)).collect::<io::Result<_>>()?;
        Ok(Places::Elsewhere(Agents { agents, known: Positions::default() }))
    }

    /// The number of places.
    pub(crate) fn count(&self) -> usize {
        match self {
            Places::Here(_) => 1,
            Places::Elsewhere(agents) => agents.agents.len(),
        }
    }

    /// The place of a program's host.
    pub(crate) fn of(&self, host: u8) -> usize {
        usize::from(host) % self.count()
    }

    /// Makes one of them execute an order.
    pub(crate) fn perform(&mut self, place: usize, order: Order) -> Report {
        match self {
            Places::Here(host) => host.perform(order),
            Places::Elsewhere(agents) => agents.perform(place, order),
        }
    }

    /// Ends all workers.
    pub(crate) fn dismiss(&mut self) {
        match self {
            Places::Here(host) => host.dismiss(),
            Places::Elsewhere(agents) => agents.agents.clear(),
        }
    }
}

impl Agents {
    fn perform(&mut self, place: usize, order: Order) -> Report {
        if matches!(order, Order::Begin(_)) && place == 0 {
            self.known = Positions::default();
        }
        let Some(agent) = self.agents.get_mut(place) else { return Report::Trouble("no such host".into()) };
        match agent.perform(&OrderLine { order, known: self.known.clone() }) {
            Ok(line) => {
                self.known.merge(&line.known);
                line.report
            }
            Err(error) => Report::Trouble(error.to_string()),
        }
    }
}
