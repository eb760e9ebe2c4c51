//! Bytes that look like the beginning of a record whose writer died.

use netacc_program::pattern::MAGIC;

/// How many of the last of `bytes` may be the first bytes of a record whose writer died: too few to distinguish from data.
/// The reader was given `before` of them already.
pub(crate) fn torn_record(before: usize, bytes: &[u8]) -> usize {
    let possible = &MAGIC[before..MAGIC.len() - 1];
    let lens = 1..=possible.len().min(bytes.len());
    // Nothing stands between the parts of a record.
    lens.rev().find(|n| bytes.ends_with(&possible[..*n]) && (before == 0 || *n == bytes.len())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if bytes of a record that a dying writer tore would count as wrong ones, or wrong ones as those.
    #[test]
    fn the_beginning_of_a_record_is_known() {
        assert_eq!(torn_record(0, &[1, 2, MAGIC[0], MAGIC[1]]), 2);
        assert_eq!(torn_record(2, &MAGIC[2..5]), 3);
        assert_eq!(torn_record(2, &[1, MAGIC[2]]), 0);
        assert_eq!(torn_record(0, &[MAGIC[0], MAGIC[1], 1]), 0);
        // A whole one is not torn.
        assert_eq!(torn_record(0, &MAGIC), 0);
    }
}
