//! Doubts about figures, in red: above all that the machine had other work to do.

use std::io::{self, IsTerminal};

/// Processors' worth of other work up to which a machine counts as quiet. Arbitrary.
const QUIET: f64 = 0.2;

/// Whether other work on so many processors is too much for figures of a quiet machine.
pub(crate) fn is_busy(processors: f64) -> bool {
    processors > QUIET
}

/// The warning about so much other work.
pub(crate) fn busy_with(processors: f64, cores: usize) -> String {
    format!(
        "figures say little, and ratios only something about a busy machine: other work kept {processors:.1} of {cores} \
         processors busy"
    )
}

/// A doubt about the figures, on standard error: in red if that is a terminal.
pub(crate) fn warn(text: &str) {
    let (red, plain) = if io::stderr().is_terminal() { ("\x1b[31m", "\x1b[0m") } else { ("", "") };
    eprintln!("{red}{text}{plain}");
}
