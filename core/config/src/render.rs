//! The configuration as text: each key of [`KEYS`] with its value, as lines of the file or as a map.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::config::Config;
use crate::key::KEYS;
use crate::value::ConfigValue;

impl Config {
    /// Every key with its value, in the order of the file.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, ConfigValue)> + '_ {
        KEYS.iter().map(|key| (key.name, key.value(self)))
    }

    /// The configuration in the file's own format, one line each, without comments. Reading the lines
    /// back gives an equal configuration, but for [`Config::accelerate`].
    pub fn to_lines(&self) -> Vec<String> {
        render_lines(self.values())
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(KEYS.len()))?;
        for (name, value) in self.values() {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

/// Keys and values in the file's own format, one line each, after a line `[netacc]`.
pub fn render_lines<'a>(values: impl IntoIterator<Item = (&'a str, ConfigValue)>) -> Vec<String> {
    let mut lines = vec!["[netacc]".to_owned()];
    lines.extend(values.into_iter().map(|(name, value)| match value {
        ConfigValue::Int(number) => format!("{name}={number}"),
        ConfigValue::Text(text) => format!("{name}=\"{text}\""),
    }));
    lines
}
