//! What a resolved scenario may say, and what becomes of one that says something else.

use netacc_simulator::Scenario;

/// Two hosts on one link; the smallest there is.
fn smallest() -> serde_json::Value {
    serde_json::json!({
        "format": 1, "name": "smallest", "seed": 1,
        "network": {
            "hosts": 2, "switches": 0,
            "links": [{"a": 0, "b": 1, "rate_bps": 1_000_000_000, "delay_ns": 100, "loss_ppm": 0}],
            "switch": {
                "port_buffer_bytes": 1, "shared_buffer_bytes": 0, "alpha": 1.0, "mark": false, "mark_min_bytes": 0,
                "mark_max_bytes": 0, "mark_max_ppm": 0, "pfc": false, "pfc_xoff_bytes": 0, "pfc_xon_bytes": 0
            }
        },
        "nic": {
            "mtu_bytes": 1024, "selective_repeat": false, "ack_interval": 16, "retry_timeout_ns": 1_000_000,
            "retry_count": 7, "rnr_pause_ns": 1000, "rnr_retry": null, "no_receive_is_fatal": false,
            "report_flushes": true, "rebind": true, "max_in_flight": 64, "rate": {"kind": "unlimited"},
            "notification_interval_ns": 50_000, "max_qp": 64, "max_send_wr": 64, "max_recv_wr": 64,
            "max_inline_bytes": 0, "context_cache_entries": 0, "region_cache_entries": 0,
            "receive_buffer_packets": 64, "memory_limit_bytes": 1_000_000_000,
            "costs": {
                "doorbell_ns": 0, "request_fetch_ns": 0, "payload_fetch_ns": 0, "transmit_packet_ns": 0,
                "receive_packet_ns": 0, "context_miss_ns": 0, "region_miss_ns": 0, "placement_ns": 0,
                "completion_ns": 0, "interrupt_ns": 0
            },
            "commands": {
                "create_qp_ns": 0, "connect_qp_ns": 0, "destroy_qp_ns": 0, "register_ns": 0, "register_mib_ns": 0,
                "deregister_ns": 0
            }
        },
        "stack": {
            "promote": true, "tcp_buffer_bytes": 0, "tcp_mtu_bytes": 1500, "ring_bytes": 65536, "message_bytes": 16384, "streams_per_link": 1, "receive_depth": 64,
            "promote_after": 2
        },
        "groups": [{
            "name": "all", "clients": [{"client": 0, "server": 1, "connections": 3}], "requests_per_connection": null,
            "request": [{"weight": 1, "min_bytes": 10, "max_bytes": 10}],
            "response": [{"weight": 1, "min_bytes": 10, "max_bytes": 10}],
            "arrival": {"kind": "closed", "depth": 1, "think": {"mean_ns": 0, "exponential": false}},
            "start_ns": 0, "start_spread_ns": 0, "count": 5, "service_ns": 0
        }],
        "processors": {
            "cores": 1, "server_threads": 1, "client_threads": 1, "spin_ns": 0, "wake_up_ns": 0, "library_call_ns": 0,
            "system_call_ns": 0, "copy_ps_per_byte": 0, "connection_ns": 0,
            "link_ns": 0, "promotion_ns": 0, "segment_ns": 0, "segment_bytes": 1448
        },
        "faults": [],
        "measure": {
            "warmup_ns": 0, "duration_ns": 1000, "drain_ns": 1000, "stall_ns": 1000, "progress_ns": 1000,
            "samples": false
        }
    })
}

fn parse(value: &serde_json::Value) -> Result<Scenario, String> {
    Scenario::parse(&value.to_string()).map_err(|e| e.to_string())
}

// Breaks if the form is no longer what is read, or connections get lost on the way to what runs.
#[test]
fn the_smallest_scenario_runs() {
    let scenario = parse(&smallest()).expect("makes sense");
    assert_eq!(scenario.group_sizes(), [3]);
    assert_eq!(scenario.stack.ring_bytes, 65536);
    assert!(scenario.is_server(1) && !scenario.is_server(0));
    let run = scenario.run().expect("makes sense");
    assert!(!run.is_complete());
}

// Breaks if a key that nothing reads is ignored, wherever it is, or another version's form is taken for this one.
#[test]
fn what_is_not_known_is_refused() {
    for path in [
        "",
        "/network",
        "/network/links/0",
        "/nic",
        "/nic/costs",
        "/nic/commands",
        "/stack",
        "/processors",
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
    value["format"] = 2.into();
    assert!(parse(&value).expect_err("another version").contains("format 2"));
}

// Breaks if a value that makes no sense gets as far as the simulator.
#[test]
fn what_makes_no_sense_is_refused() {
    for (path, value, says) in [
        ("/network/links/0/b", 7, "a link joins a node"),
        ("/network/links/0/rate_bps", 0, "no rate"),
        ("/network/links/0/loss_ppm", 1_000_001, "loses too much"),
        ("/network/hosts", 3, "exactly one link"),
        ("/nic/mtu_bytes", 0, "mtu_bytes is 0"),
        ("/stack/message_bytes", 60_000, "half a ring"),
        ("/processors/server_threads", 0, "no thread"),
        ("/measure/stall_ns", 0, "stall_ns is 0"),
    ] {
        let mut scenario = smallest();
        *scenario.pointer_mut(path).expect(path) = value.into();
        let refused = parse(&scenario).expect_err(path);
        assert!(refused.contains(says), "{path}: {refused}");
    }
    let mut scenario = smallest();
    scenario["groups"][0]["clients"][0]["server"] = 0.into();
    let refused = parse(&scenario).expect("checked later").run().err().expect("talks to itself");
    assert!(refused.to_string().contains("makes no sense"), "{refused}");
}
