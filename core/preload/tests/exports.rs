//! The names that the library exports are exactly those in `tests/symbols`: a hook that lost its export would be a hole
//! that no other test need notice, and a name too many would interpose something by accident.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// The library that cargo has built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let deps = test.parent().expect("it is in a directory");
    deps.join("libnetacc_preload.so")
}

#[test]
fn exported_names_are_those_in_the_list() {
    let library = library();
    let out = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(&library)
        .output()
        .expect("nm, which comes with the linker");
    assert!(out.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&out.stderr));
    let out = String::from_utf8(out.stdout).expect("names are ASCII");
    let exported: BTreeSet<&str> = out.lines().filter_map(|line| line.split(' ').next()).collect();
    let listed: BTreeSet<&str> = include_str!("symbols").lines().collect();
    let missing: Vec<_> = listed.difference(&exported).collect();
    let extra: Vec<_> = exported.difference(&listed).collect();
    assert!(missing.is_empty() && extra.is_empty(), "not exported: {missing:?}; not in tests/symbols: {extra:?}");
}
