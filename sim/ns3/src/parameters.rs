//! The models' declared parameters, as attributes of ns-3.

use netacc_parameters::{Parameter, Parameters, Unit};
use netacc_rnic::NicConfig;
use netacc_simulator::{sections, Device, Section, Switch};
use serde_json::{Map, Value};

use crate::ffi::{AttributeForm, AttributeSetting, AttributeSpec, NicParameters};

/// A parameter has no value, or one that is not permitted: a description.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the NICs' parameters are wrong: {0}")]
pub(crate) struct ParameterError(String);

/// The object of the resolved form that has the driver's parameters. Fleets have no use for them.
const DRIVER: &str = "driver";

/// The attributes of NICs, in the order in which [`NicParameters`] has the values.
pub(crate) fn nic_attributes() -> Vec<AttributeSpec> {
    nic_sections().flat_map(|section| section.parameters).map(spec).collect()
}

/// The attributes of switches.
pub(crate) fn switch_attributes() -> Vec<AttributeSpec> {
    Switch::declarations().into_iter().map(spec).collect()
}

/// The attributes of switches with these values.
pub(crate) fn switch_settings(switch: &Switch) -> Vec<AttributeSetting> {
    let named = switch_attributes().into_iter().zip(switch.values());
    named.map(|(spec, value)| AttributeSetting { name: spec.name, value: text(&value) }).collect()
}

/// The configuration of a NIC from the values of its attributes.
pub(crate) fn nic_config(parameters: &NicParameters) -> Result<NicConfig, ParameterError> {
    let mut device = Map::new();
    let mut values = parameters.values.iter();
    for section in nic_sections() {
        let mut object = Map::new();
        for parameter in section.parameters {
            let value = values.next().ok_or_else(|| ParameterError("a value is missing".into()))?;
            let value =
                if parameter.unit == Unit::Choice { Ok(value.clone().into()) } else { serde_json::from_str(value) };
            let value: Value = value.map_err(|e| ParameterError(format!("{}: {e}", parameter.key)))?;
            object.insert(parameter.key, value);
        }
        device.insert(section.section.into(), object.into());
    }
    let driver = serde_json::to_value(Device::default().driver).map_err(|e| ParameterError(e.to_string()))?;
    device.insert(DRIVER.into(), driver);
    let device: Device = serde_json::from_value(device.into()).map_err(|e| ParameterError(e.to_string()))?;
    Ok(device.nic_config(parameters.line_rate_bps))
}

fn nic_sections() -> impl Iterator<Item = Section> {
    sections().into_iter().filter(|section| section.table == "device" && section.section != DRIVER)
}

fn spec(parameter: Parameter) -> AttributeSpec {
    // ns-3's numbers and times are always there, so one that may be missing is JSON.
    let may_be_missing = parameter.default.is_null();
    AttributeSpec {
        name: attribute_name(&parameter),
        description: parameter.description.into(),
        form: match parameter.unit {
            _ if may_be_missing => AttributeForm::Word,
            Unit::Factor => AttributeForm::Factor,
            Unit::Switch => AttributeForm::Flag,
            // No NIC or switch has one: as JSON.
            Unit::Choice | Unit::Distribution => AttributeForm::Word,
            Unit::Time => AttributeForm::Nanoseconds,
            Unit::Count | Unit::Size | Unit::Rate | Unit::Share => AttributeForm::Number,
        },
        least: parameter.least,
        greatest: parameter.greatest.unwrap_or(u64::MAX),
        initial: text(&parameter.default),
    }
}

/// The key with capitals in place of dashes. Times have a type in ns-3, so their unit is left out.
fn attribute_name(parameter: &Parameter) -> String {
    let key = if parameter.unit == Unit::Time { parameter.key.trim_end_matches("_ns") } else { &parameter.key };
    let words = key.split('_').map(|word| word[..1].to_ascii_uppercase() + &word[1..]);
    words.collect()
}

/// A value in the form that ns-3's attributes read.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use netacc_rnic::{DcqcnConfig, RateConfig};

    use super::*;

    // Breaks if a parameter gets the value of another one on its way through ns-3's attributes, or loses its default.
    #[test]
    fn attributes_carry_each_parameter() {
        let specs = nic_attributes();
        let names: BTreeSet<&str> = specs.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names.len(), specs.len(), "no two parameters have one name");
        assert!(names.contains("MtuBytes") && names.contains("RetryTimeout") && names.contains("RateControl"));
        let values = specs.iter().map(|s| s.initial.clone()).collect();
        let mut parameters = NicParameters { line_rate_bps: 7, values };
        assert_eq!(nic_config(&parameters), Ok(NicConfig::ideal(7)));
        let place = specs.iter().position(|s| s.name == "ContextMiss").expect("is declared");
        parameters.values[place] = "30".into();
        let config = nic_config(&parameters).expect("is permitted");
        assert_eq!(config.costs.context_miss, std::time::Duration::from_nanos(30));
        let gain = specs.iter().position(|s| s.name == "DcqcnGainShift").expect("is declared");
        let control = specs.iter().position(|s| s.name == "RateControl").expect("is declared");
        parameters.values[gain] = "4".into();
        parameters.values[control] = "dcqcn-paper".into();
        let changed = DcqcnConfig { gain_shift: 4, ..DcqcnConfig::paper() };
        assert_eq!(nic_config(&parameters).map(|c| c.rate_control), Ok(RateConfig::Dcqcn(changed)));
        parameters.values.pop();
        assert!(matches!(nic_config(&parameters), Err(ParameterError(_))));
    }

    // Breaks if ns-3 gets a switch parameter under another name, or in a form that it does not read.
    #[test]
    fn switches_get_every_parameter() {
        let switch = Switch { alpha: 0.5, ecn: true, ..Switch::default() };
        let settings = switch_settings(&switch);
        assert_eq!(settings.len(), Switch::declarations().len());
        let value = |name| settings.iter().find(|s| s.name == name).map(|s| s.value.as_str());
        assert_eq!((value("Alpha"), value("Ecn"), value("EcnMinBytes")), (Some("0.5"), Some("true"), Some("5000")));
    }
}
