//! The rendezvous table: publishing, withdrawing, looking up, and slots that change hands.

use super::*;
use crate::table::{Identity, Layout};

fn identity(pid: u32) -> Identity {
    Identity { pid, start_time: 1, pid_namespace: 1, token: [u64::from(pid), u64::from(pid)] }
}

/// Two processes and the slots that they have.
fn table() -> (Arc<Layout>, [(u32, u16); 2]) {
    let table = Layout::empty();
    let slots = [1, 2].map(|pid| table.register(identity(pid), |_| false).expect("there is room"));
    (Arc::new(table), slots)
}

/// A connection that one process gives up while another takes it over stays with the latter, which can give it up too.
#[test]
fn withdrawing_spares_the_successor() {
    check(3, || {
        let (table, [(a, ga), (b, gb)]) = table();
        assert!(table.publish(9, a, ga, 5));
        let (leaver, heir) = (table.clone(), table.clone());
        let leaving = thread::spawn(move || leaver.withdraw(9, a, ga, 5));
        let taking = thread::spawn(move || assert!(heir.publish(9, b, gb, 6)));
        leaving.join().unwrap();
        taking.join().unwrap();
        assert_eq!(table.lookup(9).map(|(p, stream)| (p.pid, stream)), Some((2, 6)));
        table.withdraw(9, b, gb, 6);
        assert_eq!(table.lookup(9), None);
        // Both entries are free again.
        assert!(table.publish(10, a, ga, 1) && table.publish(11, a, ga, 2));
    });
}

/// Publishers of different connections never take the same entry.
#[test]
fn publishers_do_not_overwrite_each_other() {
    check(3, || {
        let (table, [(a, ga), (b, gb)]) = table();
        let (one, other) = (table.clone(), table.clone());
        let first = thread::spawn(move || assert!(one.publish(1, a, ga, 1)));
        let second = thread::spawn(move || assert!(other.publish(2, b, gb, 2)));
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(table.lookup(1).map(|(p, stream)| (p.pid, stream)), Some((1, 1)));
        assert_eq!(table.lookup(2).map(|(p, stream)| (p.pid, stream)), Some((2, 2)));
    });
}

/// A reader of a slot while it changes hands sees one process or the other, or none: never a mixture.
#[test]
fn a_slot_is_read_whole() {
    check(3, || {
        let (table, [(a, ga), _]) = table();
        let other = table.clone();
        let changing = thread::spawn(move || {
            other.unregister(a, ga);
            assert_eq!(other.register(identity(3), |_| false), Some((a, ga + 1)));
        });
        if let Some(process) = table.process(a) {
            assert!(process.pid == 1 || process.pid == 3, "{process:?}");
            assert_eq!(process.token, [u64::from(process.pid); 2]);
        }
        changing.join().unwrap();
    });
}
