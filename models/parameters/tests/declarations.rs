//! A declaration, and everything that is made from it.

use std::time::Duration;

use netacc_parameters::{choice, parameters, Parameters, Unit};

choice! {
    /// A colour.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Colour {
        /// Red.
        Red = "red",
        /// Dark blue.
        DarkBlue = "dark-blue",
    }
}

parameters! {
    /// A thing.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Thing {
        /// The first line
        /// and the second.
        wait_time: Duration = Duration::from_micros(5), at least 1;
        /// Bytes.
        room_bytes: u32 = 64;
        /// Loss.
        loss_ppm: u32 = 0;
        /// Port.
        port_bps: u64 = 7;
        /// Tries.
        tries: u8 = 3, at least 2;
        /// Missing unless it is given.
        depth_bytes: Option<u32> = None, at least 2, at most 9;
        /// Factor.
        factor: f64 = 0.5;
        /// Flag.
        on: bool = true;
        /// Colour.
        colour: Colour = Colour::DarkBlue;
    }
    beside {
        /// Set by the program.
        number: u32 = 9;
    }
}

fn json() -> serde_json::Value {
    serde_json::json!({
        "wait_time_ns": 5_000, "room_bytes": 64, "loss_ppm": 0, "port_bps": 7, "tries": 3, "depth_bytes": null, "factor": 0.5, "on": true,
        "colour": "dark-blue"
    })
}

// Breaks if a parameter has another name, unit or description than its declaration.
#[test]
fn names_and_units_come_from_the_fields() {
    let found = Thing::declarations();
    let names: Vec<_> = found.iter().map(|p| (p.name.as_str(), p.unit)).collect();
    let units = [
        Unit::Time,
        Unit::Size,
        Unit::Share,
        Unit::Rate,
        Unit::Count,
        Unit::Size,
        Unit::Factor,
        Unit::Switch,
        Unit::Choice,
    ];
    let expected = ["wait-time", "room", "loss", "port", "tries", "depth", "factor", "on", "colour"];
    assert_eq!(names, expected.into_iter().zip(units).collect::<Vec<_>>());
    assert_eq!(found[0].description, "The first line and the second.");
    assert_eq!((found[2].greatest, found[4].least, found[4].greatest), (Some(1_000_000), 2, Some(255)));
    assert_eq!((found[5].least, found[5].greatest, found[5].default.is_null()), (2, Some(9), true));
    assert_eq!(found[8].choices, ["red", "dark-blue"]);
}

// Breaks if a value is lost between the struct and JSON, or JSON has a value that the program sets.
#[test]
fn json_has_every_parameter_and_nothing_else() {
    assert_eq!(serde_json::to_value(Thing::default()).expect("is JSON"), json());
    assert_eq!(serde_json::from_value::<Thing>(json()).expect("is complete"), Thing::default());
    assert_eq!(Thing::default().number, 9);
}

// Breaks if a value that may be missing is lost where it is given.
#[test]
fn a_value_that_may_be_missing_can_be_given() {
    let mut given = json();
    given["depth_bytes"] = 5.into();
    let thing = serde_json::from_value::<Thing>(given.clone()).expect("is permitted");
    assert_eq!(thing.depth_bytes, Some(5));
    assert_eq!(serde_json::to_value(thing).expect("is JSON"), given);
}

// Breaks if a value that is out of bounds, of another type, unknown or missing is accepted.
#[test]
fn wrong_values_are_refused() {
    for (key, value, message) in [
        ("wait_time_ns", 0.into(), "wait_time_ns is 0, and must be at least 1"),
        ("tries", 1.into(), "tries is 1, and must be at least 2 and at most 255"),
        ("tries", 256.into(), "at most 255"),
        ("loss_ppm", 1_000_001.into(), "at most 1000000"),
        ("depth_bytes", 1.into(), "at least 2 and at most 9"),
        ("depth_bytes", 10.into(), "at least 2 and at most 9"),
        ("depth_bytes", true.into(), "of the wrong type"),
        ("factor", (-0.1).into(), "must be at least 0"),
        ("room_bytes", (-1).into(), "must be at least 0"),
        ("on", 1.into(), "of the wrong type"),
        ("colour", "green".into(), "must be one of red, dark-blue"),
        ("number", 1.into(), "unknown field `number`"),
    ] {
        let mut changed = json();
        changed[key] = value;
        let refused = serde_json::from_value::<Thing>(changed).expect_err(key).to_string();
        assert!(refused.contains(message), "{key}: {refused}");
    }
    let mut without = json();
    without.as_object_mut().expect("is an object").remove("on");
    assert!(serde_json::from_value::<Thing>(without).expect_err("on").to_string().contains("missing field `on`"));
}
