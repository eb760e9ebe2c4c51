//! [`parameters!`](crate::parameters) and [`choice!`](crate::choice), and what their expansions call.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{Parameter, Quantity, Unit};

#[doc(hidden)]
pub use serde;

/// Declares a struct of parameters: `/// description`, then `name: Type = default;` or `name: Type = default, at least N, at most M;`, of which
/// either bound may be left out.
///
/// Fields after `beside` are no parameters: the program sets them, and JSON does not have them.
#[macro_export]
macro_rules! parameters {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr $(, at least $least:literal)? $(, at most $most:literal)?; )*
        }
        $(
            beside {
                $( $(#[doc = $other_doc:literal])+ $other:ident: $other_type:ty = $other_default:expr; )*
            }
        )?
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )*
            $($( $(#[doc = $other_doc])+ pub $other: $other_type, )*)?
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $( $field: $default, )* $($( $other: $other_default, )*)? }
            }
        }

        impl $crate::Parameters for $name {
            fn declarations() -> Vec<$crate::Parameter> {
                let default = $name::default();
                vec![$(
                    $crate::macros::declare(
                        stringify!($field),
                        [$($least,)? 0][0],
                        [$(Some($most),)? None][0],
                        concat!($($doc),+).trim_ascii(),
                        &default.$field,
                    )
                ),*]
            }

            fn values(&self) -> Vec<$crate::macros::Encoded> {
                vec![$( $crate::Quantity::encode(&self.$field) ),*]
            }
        }

        impl $crate::macros::serde::Serialize for $name {
            fn serialize<S: $crate::macros::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let keys = <$name as $crate::Parameters>::declarations().into_iter().map(|p| p.key);
                serializer.collect_map(keys.zip($crate::Parameters::values(self)))
            }
        }

        impl<'de> $crate::macros::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::macros::serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let mut given = $crate::macros::Given::read(deserializer)?;
                let mut declared = <$name as $crate::Parameters>::declarations().into_iter();
                let mut found = $name::default();
                $( found.$field = given.take(declared.next()).map_err($crate::macros::serde::de::Error::custom)?; )*
                given.finish().map_err($crate::macros::serde::de::Error::custom)?;
                Ok(found)
            }
        }
    };
}

/// Declares an enum that a parameter can have as its type: `/// description`, then `Variant = "word",`.
#[macro_export]
macro_rules! choice {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $( $(#[doc = $doc:literal])+ $variant:ident = $word:literal, )*
        }
    ) => {
        $(#[$attribute])*
        pub enum $name {
            $( $(#[doc = $doc])+ $variant, )*
        }

        impl $crate::Quantity for $name {
            const UNIT: $crate::Unit = $crate::Unit::Choice;
            const GREATEST: Option<u64> = None;
            const CHOICES: &'static [&'static str] = &[$($word),*];

            fn encode(&self) -> $crate::macros::Encoded {
                match self {
                    $( $name::$variant => $word.into(), )*
                }
            }

            fn decode(value: &$crate::macros::Encoded) -> Option<$name> {
                match value.as_str()? {
                    $( $word => Some($name::$variant), )*
                    _ => None,
                }
            }
        }
    };
}

/// A value as JSON.
pub type Encoded = Value;

/// Suffixes of fields whose types have no unit.
const SUFFIXES: [(&str, Unit); 3] = [("_bytes", Unit::Size), ("_bps", Unit::Rate), ("_ppm", Unit::Share)];

/// Parts of a whole in [`Unit::Share`].
const MILLION: u64 = 1_000_000;

/// The declaration of a field.
pub fn declare<T: Quantity>(
    field: &str,
    least: u64,
    most: Option<u64>,
    description: &'static str,
    default: &T,
) -> Parameter {
    let suffix = SUFFIXES.iter().find(|(suffix, _)| T::UNIT == Unit::Count && field.ends_with(suffix));
    let (name, unit) = match suffix {
        Some((suffix, unit)) => (field.trim_end_matches(suffix), *unit),
        None => (field, T::UNIT),
    };
    Parameter {
        name: name.replace('_', "-"),
        key: if matches!(unit, Unit::Time | Unit::Distribution) { format!("{field}_ns") } else { field.to_owned() },
        unit,
        least,
        greatest: most.or(if unit == Unit::Share { Some(MILLION) } else { T::GREATEST }),
        choices: T::CHOICES,
        default: default.encode(),
        description,
    }
}

/// The values that JSON gives, until they are taken.
pub struct Given(BTreeMap<String, Value>);

impl Given {
    /// Reads all of them.
    ///
    /// # Errors
    /// The JSON is not an object.
    pub fn read<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Given, D::Error> {
        serde::Deserialize::deserialize(deserializer).map(Given)
    }

    /// Takes the value of a parameter.
    ///
    /// # Errors
    /// The value is missing, of another type, or out of bounds.
    pub fn take<T: Quantity>(&mut self, parameter: Option<Parameter>) -> Result<T, String> {
        let Some(Parameter { key, least, greatest, choices, .. }) = parameter else {
            return Err("a field has no declaration".into());
        };
        let value = self.0.remove(&key).ok_or_else(|| format!("missing field `{key}`"))?;
        let too_little = value.as_f64().is_some_and(|number| number < least as f64);
        if too_little || value.as_u64().is_some_and(|number| greatest.is_some_and(|greatest| number > greatest)) {
            let most = greatest.map_or(String::new(), |greatest| format!(" and at most {greatest}"));
            return Err(format!("{key} is {value}, and must be at least {least}{most}"));
        }
        T::decode(&value).ok_or_else(|| match choices {
            [] => format!("{key} is {value}, which is of the wrong type or out of range"),
            _ => format!("{key} is {value}, and must be one of {}", choices.join(", ")),
        })
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// A key that no parameter has.
    pub fn finish(self) -> Result<(), String> {
        self.0.into_keys().next().map_or(Ok(()), |key| Err(format!("unknown field `{key}`")))
    }
}
