//! Registers, and the way from power-on to a working device.

use crate::driver::{create_eq, Lab, Request};

// Breaks if the driver rejects the function as faulty, or pairs it with another Ethernet device.
#[test]
fn identity() {
    let lab = Lab::new(2);
    assert_ne!(lab.read32(1, 0x0), 0, "version");
    assert_eq!(lab.read32(1, 0xc), 0, "iWARP");
    assert_eq!(lab.read32(1, 0x4c), 0, "no groups for direct requests");
    let mac = u64::from(lab.read32(1, 0x18)) | u64::from(lab.read32(1, 0x1c)) << 32;
    assert_eq!(mac, 0x5254_0099_0001);
}

// Breaks if a driver can rewrite the device's own registers.
#[test]
fn the_device_s_own_registers_stay() {
    let mut lab = Lab::new(1);
    for at in [0x0, 0xc, 0x14, 0x18, 0x1c, 0x4c, 0x80, 0xffc] {
        let before = lab.read32(0, at);
        lab.write32(0, at, 0xffff_ffff);
        assert_eq!(lab.read32(0, at), before, "{at:#x}");
    }
}

// Breaks if INIT succeeds with queues that the device cannot use: the driver must see its time-out.
#[test]
fn init_needs_queues() {
    for (at, value) in [(0x30, 0), (0x30, 24), (0x30, 1 << 16), (0x34, 3), (0x48, 0), (0x48, 1 << 16)] {
        let mut lab = Lab::new(1);
        for (register, depth) in [(0x30, 16), (0x34, 8), (0x48, 8), (at, value), (0x10, 2)] {
            lab.write32(0, register, depth);
        }
        assert_eq!(lab.read32(0, 0x14) & 2, 0, "{at:#x} = {value}");
    }
}

// Breaks if a reset leaves anything behind, or the driver cannot start again.
#[test]
fn reset_and_start_again() {
    let (mut lab, qps, _) = Lab::connected();
    lab.write32(0, 0x10, 1);
    assert_eq!(lab.read32(0, 0x14), 1, "reset is done");
    assert_eq!(lab.read32(0, 0x30), 0);
    // Earlier doorbells have no effect.
    let refused = lab.fabric.counters(0).doorbells_refused;
    lab.ring_send(&qps[0]);
    assert_eq!(lab.fabric.counters(0).doorbells_refused, refused, "there is no device to refuse them");
    lab.forget(0);
    lab.start(0);
    let events = lab.allocate(0, 4096);
    assert_eq!(lab.command(0, create_eq(events, 1, 1, 3)).0, 0);
    let cq = lab.create_cq(0, 6);
    lab.create_qp(0, cq.cqn, 0);
}

// Breaks if the statistics registers that 6.1 reads are empty.
#[test]
fn statistics_registers() {
    let lab = Lab::started(1);
    let mut bytes = [0xff; 8];
    lab.fabric.read(0, 0xc0, &mut bytes);
    assert_eq!(u64::from_le_bytes(bytes), 0);
    lab.fabric.read(0, 0xc7, &mut bytes);
    assert_eq!(bytes, [0; 8], "half of one and half of another");
}

// Breaks if a read or write that crosses the end of BAR 0, or is of an odd length, has an effect.
#[test]
fn odd_accesses() {
    let mut lab = Lab::started(1);
    for at in [0xfff, 0x7_ffff, 0x8_0000, u64::MAX - 1, u64::MAX] {
        for len in [0, 1, 3, 8, 4096] {
            lab.fabric.write(0, at, &vec![0xff; len]);
            let mut bytes = vec![0xff; len];
            lab.fabric.read(0, at, &mut bytes);
            lab.run();
        }
    }
    assert_eq!(lab.command(0, Request::new(1, 3)).0, 0, "it still works");
}
