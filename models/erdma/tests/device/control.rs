//! The control protocol.

use netacc_erdma::control::handle_line;
use serde_json::{json, Value};

use crate::driver::{sqe, Lab};

fn exchange(lab: &mut Lab, request: Value) -> Value {
    let answer = handle_line(&mut lab.fabric, lab.now, &request.to_string());
    lab.run();
    assert!(!answer.contains('\n'));
    serde_json::from_str(&answer).expect("JSON")
}

fn settings(lab: &mut Lab) -> Value {
    exchange(lab, json!({ "get": "settings" }))
}

// Breaks if a request changes another setting than the named one, or others with it.
#[test]
fn each_setting_is_set() {
    for (name, value) in [
        ("completes", json!("sent")),
        ("empty_receive_queue", json!("stall")),
        ("flushes", json!("none")),
        ("stall_transmit", json!(true)),
        ("stall_receive", json!(true)),
        ("retry_limit_ms", json!(7)),
        ("command_mute", json!(true)),
        ("command_delay_us", json!(1)),
        ("create_qp_us", json!(2)),
        ("connect_qp_us", json!(3)),
        ("destroy_qp_us", json!(4)),
        ("register_us", json!(5)),
        ("register_mib_us", json!(6)),
        ("deregister_us", json!(7)),
        ("failing_commands", json!(["0.8", "1.4"])),
        ("lose_interrupts", json!(3)),
        ("duplicate_interrupts", json!(true)),
        ("qp_blocks", json!(2)),
        ("log_max_cqe", json!(10)),
        ("log_max_recv_wr", json!(9)),
        ("log_max_mr_size", json!(30)),
        ("atomics", json!(true)),
        ("firmware_patch", json!(30)),
    ] {
        let mut lab = Lab::started(2);
        let mut expected = settings(&mut lab);
        assert_ne!(expected["functions"][1][name], value, "{name}");
        assert_eq!(
            exchange(&mut lab, json!({ "set": { "function": 1, name: value } })),
            json!({ "ok": true }),
            "{name}"
        );
        expected["functions"][1][name] = value;
        assert_eq!(settings(&mut lab), expected);
    }
    for (name, value) in [
        ("loss", json!(0.25)),
        ("duplicate", json!(0.5)),
        ("delay_us", json!(100)),
        ("rate_gbit", json!(2.5)),
        ("mtu_bytes", json!(1024)),
        ("retry_timeout_us", json!(1000)),
        ("retry_count", json!(2)),
    ] {
        let mut lab = Lab::started(2);
        let mut expected = settings(&mut lab);
        assert_eq!(exchange(&mut lab, json!({ "set": { name: value } })), json!({ "ok": true }), "{name}");
        expected["wire"][name] = value;
        assert_eq!(settings(&mut lab), expected);
    }
}

// Breaks if a setting without a function does not apply to all functions.
#[test]
fn all_functions() {
    let mut lab = Lab::started(2);
    exchange(&mut lab, json!({ "set": { "stall_receive": true } }));
    for function in [0, 1] {
        assert!(lab.fabric.settings(function).stall_receive);
    }
}

// Breaks if a wrong request changes something, or is not answered.
#[test]
fn wrong_requests() {
    let mut lab = Lab::started(1);
    let before = settings(&mut lab);
    for request in [
        json!({}),
        json!([]),
        json!({ "set": {}, "get": "counters" }),
        json!({ "get": "nothing" }),
        json!({ "set": { "unknown": 1 } }),
        json!({ "set": { "function": 1, "stall_receive": true } }),
        json!({ "set": { "loss": 1.5, "stall_receive": true } }),
        json!({ "set": { "duplicate": -0.1 } }),
        json!({ "set": { "rate_gbit": 1e9 } }),
        json!({ "set": { "mtu_bytes": 0 } }),
        json!({ "set": { "retry_timeout_us": 0 } }),
        json!({ "set": { "qp_blocks": 0 } }),
        json!({ "set": { "qp_blocks": 512 } }),
        json!({ "set": { "log_max_cqe": 25 } }),
        json!({ "set": { "log_max_recv_wr": 16 } }),
        json!({ "set": { "log_max_mr_size": 64 } }),
        json!({ "set": { "failing_commands": ["8"] } }),
        json!({ "fault": { "function": 1, "event": "qp_fatal" } }),
        json!({ "fault": { "function": 0, "event": "qp_fatal", "qp": 99 } }),
        json!({ "fault": { "function": 0, "event": "qp_fatal", "cq": 1 } }),
        json!({ "fault": { "function": 0, "event": "cq_error", "qp": 1 } }),
        json!({ "fault": { "function": 0, "event": "cq_error", "cq": 99 } }),
        json!({ "fault": { "function": 0, "event": "unknown" } }),
    ] {
        let answer = exchange(&mut lab, request.clone());
        assert!(answer["error"].is_string(), "{request}: {answer}");
    }
    assert!(handle_line(&mut lab.fabric, lab.now, "no JSON").contains("error"));
    assert_eq!(settings(&mut lab), before);
}

// Breaks if a fault hits another queue than the named one, or none.
#[test]
fn faults() {
    for (event, code) in [("qp_fatal", 0), ("empty_receive_queue", 1), ("access_error", 2), ("other", 4)] {
        let (mut lab, mut qps, mut cqs) = Lab::connected();
        let qpn = qps[0].qpn;
        assert_eq!(exchange(&mut lab, json!({ "get": "queue_pairs" })), json!({ "functions": [[qpn], [qps[1].qpn]] }));
        let answer = exchange(&mut lab, json!({ "fault": { "function": 0, "event": event, "qp": qpn } }));
        assert_eq!(answer, json!({ "ok": true, "queues": 1 }));
        assert_eq!(lab.async_events(0), [(code, qpn)]);
        lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
        assert_eq!(lab.drain(0, &mut cqs[0]), [], "it has failed");
    }
    let (mut lab, mut qps, mut cqs) = Lab::connected();
    let cqn = cqs[0].cqn;
    exchange(&mut lab, json!({ "fault": { "function": 0, "event": "cq_error", "cq": cqn } }));
    assert_eq!(lab.async_events(0), [(3, cqn)]);
    lab.post_send(&mut qps[0], &sqe::write(0, 0, [0; 4], (0, 0), &[]));
    assert_eq!(lab.drain(0, &mut cqs[0]).len(), 1, "the queue goes on");
    let all = exchange(&mut lab, json!({ "fault": { "function": 0, "event": "cq_error" } }));
    assert_eq!(all["queues"], 1);
    assert_eq!(lab.async_events(0), [(3, cqn)]);
    let all = exchange(&mut lab, json!({ "fault": { "function": 1, "event": "qp_fatal" } }));
    assert_eq!(all["queues"], 1);
    assert_eq!(lab.async_events(1), [(0, qps[1].qpn)]);
}

#[test]
fn counters() {
    let (mut lab, mut qps, _) = Lab::connected();
    lab.post_receive(&mut qps[1], 0, 0, 0);
    lab.post_send(&mut qps[0], &sqe::send(2, 0, [0; 4], &[]));
    let answer = exchange(&mut lab, json!({ "get": "counters" }));
    assert_eq!(answer["functions"][0]["tx_requests"], 1);
    assert_eq!(answer["functions"][1]["rx_requests"], 1);
    assert_eq!(answer["functions"][1]["completions"], 1);
}
