//! Aligned columns without lines, which `awk` can read: an empty cell is a `-`.
//!
//! A process may have 20,000 sockets, and `netacc_ss` is to print them at once. With the library for tables that the
//! benchmarks use, it needed three times as much processor time to show 8,000 sockets (results/README.md).

use unicode_width::UnicodeWidthStr;

/// Columns between two cells.
const GAP: usize = 2;

/// A table of `N` columns.
pub(crate) struct Lines<const N: usize> {
    right: [bool; N],
    /// The longest cell of each column.
    widths: [usize; N],
    /// The heads first.
    rows: Vec<[(String, usize); N]>,
}

impl<const N: usize> Lines<N> {
    /// `right` are the columns of numbers.
    pub(crate) fn new(heads: [&str; N], right: &[usize]) -> Self {
        let right = std::array::from_fn(|column| right.contains(&column));
        let mut lines = Self { right, widths: [0; N], rows: Vec::new() };
        lines.add(heads.map(str::to_owned));
        lines
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, cells: [String; N]) {
        let measured = cells.map(|cell| {
            let cell = if cell.is_empty() { "-".to_owned() } else { cell };
            let width = cell.width();
            (cell, width)
        });
        for (widest, (_, width)) in self.widths.iter_mut().zip(&measured) {
            *widest = (*widest).max(*width);
        }
        self.rows.push(measured);
    }

    /// The lines, none of which ends in a space.
    pub(crate) fn render(&self) -> String {
        let width: usize = self.widths.iter().map(|width| width + GAP).sum();
        let mut text = String::with_capacity(self.rows.len() * width);
        for row in &self.rows {
            // Written once a cell follows.
            let mut spaces = 0;
            for (((cell, width), widest), right) in row.iter().zip(self.widths).zip(self.right) {
                let fill = widest - width;
                let (before, after) = if right { (fill, 0) } else { (0, fill) };
                text.extend(std::iter::repeat_n(' ', spaces + before));
                text.push_str(cell);
                spaces = after + GAP;
            }
            text.push('\n');
        }
        text
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
            table.add([pid.to_owned(), program.to_owned(), count.to_owned()]);
        }
        let expected = "  PID  PROGRAM     N\n    7  -        1000\n12345  \u{6771}\u{4eac}        5\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn no_line_ends_in_a_space() {
        let mut table = Lines::new(["A", "LONG"], &[]);
        table.add(["1".to_owned(), "x".to_owned()]);
        assert_eq!(table.render(), "A  LONG\n1  x\n");
    }
}
