//! Aligned columns without lines, which `awk` can read: an empty cell is a `-`.
//!
//! A process may have 20,000 sockets, and `netacc_ss` is to print them at once. With the library for tables that the
//! benchmarks use, it needed three times as much processor time to show 8,000 sockets (results/README.md).

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

/// Columns between two cells.
const GAP: usize = 2;

/// The contents of a cell.
pub(crate) enum Cell<'a> {
    Text(Cow<'a, str>),
    Number(u64),
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Cell<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<Cow<'a, str>> for Cell<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Cell<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// A table of `N` columns.
pub(crate) struct Lines<const N: usize> {
    right: [bool; N],
    /// The longest cell of each column.
    widths: [usize; N],
    /// All cells, one behind the other.
    text: String,
    /// The heads first.
    rows: Vec<[Place; N]>,
}

/// A cell in the text.
#[derive(Clone, Copy)]
struct Place {
    len: u32,
    width: u32,
}

impl<const N: usize> Lines<N> {
    /// `right` are the columns of numbers.
    pub(crate) fn new(heads: [&str; N], right: &[usize]) -> Self {
        let right = std::array::from_fn(|column| right.contains(&column));
        let mut lines = Self { right, widths: [0; N], text: String::new(), rows: Vec::new() };
        lines.add(heads.map(Cell::from));
        lines
    }

    /// Adds a row.
    pub(crate) fn add<'a>(&mut self, cells: [impl Into<Cell<'a>>; N]) {
        let places = cells.map(|cell| self.append(cell.into()));
        for (widest, place) in self.widths.iter_mut().zip(&places) {
            *widest = (*widest).max(place.width as usize);
        }
        self.rows.push(places);
    }

    fn append(&mut self, cell: Cell<'_>) -> Place {
        let before = self.text.len();
        let width = match cell {
            Cell::Number(number) => {
                append_number(&mut self.text, number);
                self.text.len() - before
            }
            Cell::Text(text) => {
                let text = if text.is_empty() { "-" } else { &text };
                self.text.push_str(text);
                // Printable by `plain`, so each byte is a column.
                if text.is_ascii() {
                    text.len()
                } else {
                    text.width()
                }
            }
        };
        // The text has at most as many bytes as an answer: 64 MiB, and as much for numbers.
        Place { len: (self.text.len() - before) as u32, width: width as u32 }
    }

    /// The lines, none of which ends in a space.
    pub(crate) fn render(&self) -> String {
        let mut lines = String::new();
        self.render_into(&mut lines);
        lines
    }

    /// Appends the lines to a text.
    pub(crate) fn render_into(&self, lines: &mut String) {
        let width: usize = self.widths.iter().map(|width| width + GAP).sum();
        lines.reserve(self.rows.len() * width);
        let mut rest = self.text.as_str();
        for row in &self.rows {
            // Written once a cell follows.
            let mut spaces = 0;
            for ((place, widest), right) in row.iter().zip(self.widths).zip(self.right) {
                let (cell, after) = rest.split_at(place.len as usize);
                rest = after;
                let fill = widest - place.width as usize;
                let (before, after) = if right { (fill, 0) } else { (0, fill) };
                append_spaces(lines, spaces + before);
                lines.push_str(cell);
                spaces = after + GAP;
            }
            lines.push('\n');
        }
    }
}

/// As `write!` does it, in a fifth of the time.
fn append_number(text: &mut String, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend(digits[at..].iter().map(|digit| char::from(*digit)));
}

fn append_spaces(text: &mut String, mut count: usize) {
    const SPACES: &str = "                                                                ";
    while count > 0 {
        let len = count.min(SPACES.len());
        text.push_str(&SPACES[..len]);
        count -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a wide character, or a column that is wider than its head, moved what follows.
    #[test]
    fn columns_are_aligned() {
        let mut table = Lines::new(["PID", "PROGRAM", "N"], &[0, 2]);
        for (pid, program, count) in [("7", "", "1000"), ("12345", "\u{6771}\u{4eac}", "5")] {
            table.add([pid, program, count]);
        }
        let expected = "  PID  PROGRAM     N\n    7  -        1000\n12345  \u{6771}\u{4eac}        5\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn numbers_are_written_whole() {
        for number in [0, 9, 10, 4096, u64::MAX] {
            let mut text = String::new();
            append_number(&mut text, number);
            assert_eq!(text, number.to_string());
        }
    }

    #[test]
    fn no_line_ends_in_a_space() {
        let mut table = Lines::new(["A", "LONG"], &[]);
        table.add(["1", "x"]);
        assert_eq!(table.render(), "A  LONG\n1  x\n");
    }
}
