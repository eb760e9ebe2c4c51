//! Resolved scenarios that are accepted and refused.

use netacc_host::ProcessorConfig;
use netacc_simulator::{Device, Scenario, Switch};

/// Two hosts on one link; the smallest there is.
fn smallest() -> serde_json::Value {
    serde_json::json!({
        "format": 6, "name": "smallest", "seed": 1,
        "network": {
            "hosts": 2, "switches": 0,
            "links": [{"a": 0, "b": 1, "rate_bps": 1_000_000_000, "delay_ns": 100, "loss_ppm": 0}],
            "switch": Switch::default()
        },
        "device": Device::default(),
        "stack": {
            "tcp_buffer_bytes": 0, "tcp_mtu_bytes": 1500, "ring_bytes": 65536, "message_bytes": 16384,
            "streams_per_link": 1, "promote_after": 2
        },
        "groups": [{
            "name": "all", "promote": true, "costs": null, "clients": [{"client": 0, "server": 1, "connections": 3}], "requests_per_connection": null,
            "datagrams": null, "verbs": null,
            "request": [{"weight": 1, "min_bytes": 10, "max_bytes": 10}],
            "response": [{"weight": 1, "min_bytes": 10, "max_bytes": 10}],
            "arrival": {"kind": "closed", "depth": 1, "think": {"mean_ns": 0, "exponential": false}},
            "start_ns": 0, "start_spread_ns": 0, "count": 5, "service_ns": 0,
            "client_service_ns": 0, "client_after_write_ns": 0, "round_service_ns": 0, "client_round_service_ns": 0,
            "cold_service_ns": 0, "client_cold_service_ns": 0
        }],
        "processors": {
            "cores": 1, "server_threads": 1, "client_threads": 1, "server_loop": "turns", "client_loop": "batches",
            "costs": ProcessorConfig::free()
        },
        "faults": [],
        "measure": {
            "warmup_ns": 0, "duration_ns": 1000, "drain_ns": 1000, "stall_ns": 1000, "progress_ns": 1000,
            "samples": false, "ports": false
        }
    })
}

fn parse(value: &serde_json::Value) -> Result<Scenario, String> {
    Scenario::parse(&value.to_string()).map_err(|e| e.to_string())
}

// Breaks if the form is not the one that is read, or connections get lost on the way to the run.
#[test]
fn the_smallest_scenario_runs() {
    let scenario = parse(&smallest()).expect("is valid");
    assert_eq!(scenario.group_sizes(), [3]);
    assert_eq!(scenario.stack.ring_bytes, 65536);
    assert!(scenario.is_server(1) && !scenario.is_server(0));
    let run = scenario.run().expect("is valid");
    assert!(!run.is_complete());
}

// Breaks if a key that nothing reads is ignored, wherever it is, or another version's form is taken for this one.
#[test]
fn unknown_keys_are_refused() {
    for path in [
        "",
        "/network",
        "/network/links/0",
        "/network/switch",
        "/device",
        "/device/nic",
        "/device/costs",
        "/device/commands",
        "/device/pacing",
        "/device/driver",
        "/stack",
        "/processors",
        "/processors/costs",
        "/groups/0",
        "/measure",
    ] {
        let mut value = smallest();
        let table = value.pointer_mut(path).and_then(|v| v.as_object_mut()).expect("there is such a table");
        table.insert("new".into(), 1.into());
        let refused = parse(&value).expect_err(path);
        assert!(refused.contains("unknown field `new`"), "{path}: {refused}");
    }
    let mut value = smallest();
    value["format"] = 1.into();
    assert!(parse(&value).expect_err("another version").contains("format 1"));
}

// Breaks if an invalid value gets as far as the simulator.
#[test]
fn invalid_values_are_refused() {
    for (path, value, message) in [
        ("/network/links/0/b", 7, "a link joins a node"),
        ("/network/links/0/rate_bps", 0, "no rate"),
        ("/network/links/0/loss_ppm", 1_000_001, "loses too much"),
        ("/network/hosts", 3, "exactly one link"),
        ("/device/nic/mtu_bytes", 0, "mtu_bytes is 0, and must be at least 1"),
        ("/device/nic/retry_count", 256, "at most 255"),
        ("/network/switch/ecn_probability_ppm", 1_000_001, "at most 1000000"),
        ("/stack/message_bytes", 60_000, "half a ring"),
        ("/processors/server_threads", 0, "no thread"),
        ("/measure/stall_ns", 0, "stall_ns is 0"),
    ] {
        let mut scenario = smallest();
        *scenario.pointer_mut(path).expect(path) = value.into();
        let refused = parse(&scenario).expect_err(path);
        assert!(refused.contains(message), "{path}: {refused}");
    }
    let mut scenario = smallest();
    scenario["groups"][0]["clients"][0]["server"] = 0.into();
    let refused = parse(&scenario).expect("checked later").run().err().expect("talks to itself");
    assert!(refused.to_string().contains("is not valid"), "{refused}");
}

// Breaks if a flow gets lost, or one without a connection is accepted.
#[test]
fn each_flow_has_a_connection() {
    let mut value = smallest();
    value["groups"][0]["arrival"] = serde_json::json!({"kind": "flows", "flows": [[5, 10], [6, 20], [7, 30]]});
    assert!(Scenario::parse(&value.to_string()).is_ok());
    value["groups"][0]["arrival"]["flows"] = serde_json::json!([[5, 10]]);
    let refused = Scenario::parse(&value.to_string()).expect_err("one flow for three connections").to_string();
    assert!(refused.contains("as many flows as connections"), "{refused}");
}
