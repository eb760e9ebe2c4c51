//! Parameters of models: each is declared once, with its name, unit, bounds, default and description.
//!
//! [`parameters!`] declares a struct whose fields are parameters. From the declaration come the struct, its [`Default`], its form
//! as JSON (complete, bounded, unknown keys refused) and a list of [`Parameter`]s. Scenario files, their JSON schema, their
//! parser in Python and the documentation are made from the lists.
//!
//! # Names
//! A parameter has one name. A field adds the unit where its type has none: the parameter `mtu` is the field `mtu_bytes`, and
//! `retry-timeout` is the field `retry_timeout` of type `Duration`. In JSON quantities are integers, so the key always has
//! the unit: `mtu_bytes`, `retry_timeout_ns`.

#![forbid(unsafe_code)]

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

pub use distribution::Distribution;

mod distribution;
pub mod fixed;
#[doc(hidden)]
pub mod macros;

/// The unit of a parameter, and with it the form of its value in scenario files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A number of things.
    Count,
    /// A number without a unit, with a fraction.
    Factor,
    /// True or false.
    Switch,
    /// One of some words.
    Choice,
    /// Nanoseconds.
    Time,
    /// Bytes.
    Size,
    /// Bits per second.
    Rate,
    /// Parts per million.
    Share,
    /// Nanoseconds, always as many or distributed.
    Distribution,
}

/// The declaration of one parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// The name, with dashes: the key in scenario files.
    pub name: String,
    /// The key in JSON: the name and its unit.
    pub key: String,
    /// The unit.
    pub unit: Unit,
    /// The least permitted value.
    pub least: u64,
    /// The greatest permitted value. `None` where there is no limit.
    pub greatest: Option<u64>,
    /// The permitted words of a [`Unit::Choice`].
    pub choices: &'static [&'static str],
    /// The default, in the unit. Null where the value may be missing, and is by default.
    pub default: Value,
    /// The description.
    pub description: &'static str,
}

/// A struct whose fields are parameters.
pub trait Parameters: Default {
    /// All declarations, in order.
    fn declarations() -> Vec<Parameter>;

    /// The values, in the order of the declarations.
    fn values(&self) -> Vec<Value>;
}

/// A type that a parameter can have.
pub trait Quantity: Sized {
    /// The unit of values whose field names no unit.
    const UNIT: Unit;
    /// The greatest value that the type holds.
    const GREATEST: Option<u64>;
    /// The permitted words of a [`Unit::Choice`].
    const CHOICES: &'static [&'static str] = &[];

    /// The value as JSON.
    fn encode(&self) -> Value;

    /// The value from JSON. `None` for JSON of another type.
    fn decode(value: &Value) -> Option<Self>;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Quantity for $type {
            const UNIT: Unit = Unit::Count;
            const GREATEST: Option<u64> = Some(<$type>::MAX as u64);

            fn encode(&self) -> Value {
                (*self).into()
            }

            fn decode(value: &Value) -> Option<$type> {
                value.as_u64()?.try_into().ok()
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, usize);

impl Quantity for bool {
    const UNIT: Unit = Unit::Switch;
    const GREATEST: Option<u64> = None;

    fn encode(&self) -> Value {
        (*self).into()
    }

    fn decode(value: &Value) -> Option<bool> {
        value.as_bool()
    }
}

impl Quantity for f64 {
    const UNIT: Unit = Unit::Factor;
    const GREATEST: Option<u64> = None;

    fn encode(&self) -> Value {
        (*self).into()
    }

    fn decode(value: &Value) -> Option<f64> {
        value.as_f64()
    }
}

/// A value that may be missing, where something else decides about it.
impl<T: Quantity> Quantity for Option<T> {
    const UNIT: Unit = T::UNIT;
    const GREATEST: Option<u64> = T::GREATEST;
    const CHOICES: &'static [&'static str] = T::CHOICES;

    fn encode(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::encode)
    }

    fn decode(value: &Value) -> Option<Option<T>> {
        if value.is_null() {
            Some(None)
        } else {
            T::decode(value).map(Some)
        }
    }
}

impl Quantity for Duration {
    const UNIT: Unit = Unit::Time;
    const GREATEST: Option<u64> = Some(u64::MAX);

    fn encode(&self) -> Value {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).into()
    }

    fn decode(value: &Value) -> Option<Duration> {
        value.as_u64().map(Duration::from_nanos)
    }
}
