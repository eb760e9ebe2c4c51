//! The descriptors that `posix_spawn` will copy: those named in `posix_spawn_file_actions_adddup2`, until the actions
//! are destroyed. A copy is inherited whatever the flag of its original.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::table;

/// Most copies that are remembered. Arbitrary: a program that never destroys its actions must not use ever more memory.
const MAX_COPIES: usize = 1024;

/// A copy that some actions will make.
struct Copy {
    actions: usize,
    from: c_int,
}

/// The standard library's lock: see `lingering`.
static COPIES: Mutex<Vec<Copy>> = Mutex::new(Vec::new());

fn copies() -> MutexGuard<'static, Vec<Copy>> {
    COPIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that `actions` copy `from`. False if that is a connection, and there is no room.
pub fn record_copy(actions: *const c_void, from: c_int) -> bool {
    let mut copies = copies();
    if copies.len() >= MAX_COPIES {
        return table::get(from).is_none();
    }
    copies.push(Copy { actions: actions as usize, from });
    true
}

/// The descriptors that `actions` copy.
pub fn copied_by(actions: *const c_void) -> Vec<c_int> {
    copies().iter().filter(|copy| copy.actions == actions as usize).map(|copy| copy.from).collect()
}

/// These actions are new, or were destroyed.
pub fn forget(actions: *const c_void) {
    copies().retain(|copy| copy.actions != actions as usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_recorded_until_their_actions_are_destroyed() {
        let actions = [0u8; 2];
        let [first, second] = [0, 1].map(|n| (&raw const actions[n]).cast::<c_void>());
        assert!(record_copy(first, 3) && record_copy(second, 4) && record_copy(first, 5));
        assert_eq!(copied_by(first), [3, 5]);
        forget(first);
        assert!(copied_by(first).is_empty());
        assert_eq!(copied_by(second), [4]);
        for _ in 0..2 * MAX_COPIES {
            // Not a connection.
            assert!(record_copy(second, -1));
        }
        assert_eq!(copied_by(second).len(), MAX_COPIES);
        forget(second);
    }
}
