//! `netacc top`: the accelerated processes of this host and their busiest connections, with rates, refreshed.
//!
//! A rate is the difference of two samples, divided by the time between them. A process or connection that was not in the first
//! sample has the rate 0 until the next one.

mod rates;
mod show;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{poll, read, Event, KeyCode, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute};

use crate::processes;
use rates::{Sample, View};

/// Accelerated processes and their busiest connections.
#[derive(Debug, Args)]
#[command(after_help = "\
In the table: q ends it. Root sees the processes of all users and of containers, others their own.

Exit status: 1 if the processes cannot be found; 2 wrong usage")]
pub struct TopArgs {
    /// The time between two samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    every: Duration,

    /// The most connections that are shown
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    connections: usize,

    /// Print one table and end; so does an output that is no terminal
    #[arg(long)]
    once: bool,

    /// One JSON document instead, and end
    #[arg(long)]
    json: bool,
}

/// `netacc top`.
pub fn run(args: &TopArgs) -> ExitCode {
    let live = !args.once && !args.json && io::stdout().is_terminal() && io::stdin().is_terminal();
    let result = if live { watch(args) } else { once(args) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netacc top: {error}");
            ExitCode::FAILURE
        }
    }
}

fn sample() -> io::Result<Sample> {
    Ok(Sample { taken: Instant::now(), snapshots: processes::snapshots().map_err(io::Error::other)? })
}

fn once(args: &TopArgs) -> io::Result<()> {
    let before = sample()?;
    // The time that the user has chosen to measure.
    std::thread::sleep(args.every);
    let view = View::between(&before, &sample()?, args.connections);
    let text = match args.json {
        true => serde_json::to_string_pretty(&view).map_err(io::Error::other)? + "\n",
        false => show::table(&view),
    };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// The terminal, in its second screen and without echo; as it was when this is dropped.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Screen> {
        terminal::enable_raw_mode()?;
        let screen = Screen;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing more can be done about a terminal that is gone.
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

fn watch(args: &TopArgs) -> io::Result<()> {
    let _screen = Screen::enter()?;
    let mut before = sample()?;
    loop {
        let now = sample()?;
        draw(&show::table(&View::between(&before, &now, args.connections)))?;
        before = now;
        if is_over(args.every)? {
            return Ok(());
        }
    }
}

/// As much of the text as the terminal holds.
fn draw(text: &str) -> io::Result<()> {
    let (columns, rows) = terminal::size()?;
    execute!(io::stdout(), cursor::MoveTo(0, 0), Clear(ClearType::All))?;
    let lines = text.lines().take(usize::from(rows)).map(|line| line.chars().take(usize::from(columns)).collect());
    let shown: Vec<String> = lines.collect();
    // A raw terminal does not return to the first column by itself.
    io::stdout().write_all(shown.join("\r\n").as_bytes())?;
    io::stdout().flush()
}

/// Waits until the next sample is due. Whether the user has ended the table.
fn is_over(every: Duration) -> io::Result<bool> {
    let due = Instant::now() + every;
    while poll(due.saturating_duration_since(Instant::now()))? {
        if let Event::Key(key) = read()? {
            let interrupts = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if interrupts || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
