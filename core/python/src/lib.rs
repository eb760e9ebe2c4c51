//! The Rust half of the Python package `netacc_lab`: the parts that must be exact or fast. Programs and traces cross as JSON.

use netacc_program::{compare as compare_traces, generate as generate_program, Drawn, Program, Shape, Trace};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use netacc_harness::{run_program, DatagramProgram, Mutant, Options, Preset};

fn wrong(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The program that a shape and a list of decisions give.
#[pyfunction]
fn generate(shape: &str, decisions: Vec<u64>) -> PyResult<String> {
    let shape: Shape = serde_json::from_str(shape).map_err(wrong)?;
    serde_json::to_string(&generate_program(&shape, &decisions)).map_err(wrong)
}

/// The program that an input of a fuzzer stands for.
#[pyfunction]
fn from_bytes(bytes: &[u8]) -> PyResult<String> {
    serde_json::to_string(&Drawn::from_bytes(bytes).program()).map_err(wrong)
}

/// Checks a program and returns it with all defaults spelled as the format spells them.
#[pyfunction]
fn normalise(program: &str) -> PyResult<String> {
    serde_json::to_string(&Program::parse(program).map_err(wrong)?).map_err(wrong)
}

/// The differences between the oracle's trace and another, as a JSON list.
#[pyfunction]
fn compare(program: &str, oracle: &str, other: &str) -> PyResult<String> {
    let program = Program::parse(program).map_err(wrong)?;
    let oracle: Trace = serde_json::from_str(oracle).map_err(wrong)?;
    let other: Trace = serde_json::from_str(other).map_err(wrong)?;
    serde_json::to_string(&compare_traces(&program, &oracle, &other)).map_err(wrong)
}

fn preset_named(name: &str) -> PyResult<Option<Preset>> {
    match name {
        "" => Ok(None),
        name => Preset::parse(name).map(Some).ok_or_else(|| wrong("no such preset")),
    }
}

/// Two processes on the core alone that carry out a program of datagram calls.
#[pyclass(unsendable)]
struct Datagrams(DatagramProgram);

fn broken(broken: netacc_harness::Broken) -> PyErr {
    pyo3::exceptions::PyAssertionError::new_err(format!("{:?}: {}", broken.what, broken.detail))
}

#[pymethods]
impl Datagrams {
    #[new]
    fn new(seed: u64, preset: &str, fault_per_mille: u32) -> PyResult<Datagrams> {
        DatagramProgram::new(seed, preset_named(preset)?, fault_per_mille).map(Datagrams).map_err(broken)
    }

    /// The answer to an order, both as JSON. Raises AssertionError with the promise that was broken.
    fn order(&mut self, line: &str) -> PyResult<String> {
        self.0.order(line).map_err(broken)
    }
}

/// Runs a program on the core alone. `expect` is the oracle's trace, or empty; `mutant` a deliberate fault, or empty;
/// `preset` the kind of devices, or empty for devices that are drawn from the seed.
/// Returns the trace, the promise that was broken or an empty string, the streams as they stood where a step was given up,
/// and a hash over the deliveries of the network or an empty string.
#[pyfunction]
fn simulate(
    py: Python<'_>,
    program: &str,
    seed: u64,
    expect: &str,
    mutant: &str,
    preset: &str,
) -> PyResult<(String, String, String, String)> {
    let program = Program::parse(program).map_err(wrong)?;
    let expect: Option<Trace> =
        if expect.is_empty() { None } else { Some(serde_json::from_str(expect).map_err(wrong)?) };
    let mutant = match mutant {
        "" => None,
        name => {
            Some(Mutant::ALL.into_iter().find(|m| format!("{m:?}") == name).ok_or_else(|| wrong("no such mutant"))?)
        }
    };
    let preset = preset_named(preset)?;
    let options = Options { mutant, preset, ..Options::default() };
    let run = py.detach(|| run_program(&program, seed, &options, expect.as_ref()));
    let network = run.network_trace.map_or(String::new(), |hash| format!("{hash:016x}"));
    Ok((serde_json::to_string(&run.trace).map_err(wrong)?, run.broken.unwrap_or_default(), run.state, network))
}

/// The names of the deliberate faults that `simulate` knows.
#[pyfunction]
fn mutants() -> Vec<String> {
    Mutant::ALL.iter().map(|m| format!("{m:?}")).collect()
}

fn key(name: &str) -> PyResult<&'static netacc_config::Key> {
    netacc_config::find_key(name).ok_or_else(|| wrong(format!("no such key: {name}")))
}

/// The least, the greatest and the default value of a key of netacc.conf that takes an integer.
#[pyfunction]
fn key_range(name: &str) -> PyResult<(i64, i64, i64)> {
    let key = key(name)?;
    match (key.range(), key.value(&netacc_config::Config::default())) {
        (Some((min, max)), netacc_config::ConfigValue::Int(default)) => Ok((min, max, default)),
        _ => Err(wrong(format!("{name} takes no integer"))),
    }
}

/// Whether a key of netacc.conf takes a value; the permitted values, in words.
#[pyfunction]
fn key_accepts(name: &str, value: &str) -> PyResult<(bool, String)> {
    let key = key(name)?;
    Ok((key.accepts(value), key.allowed()))
}

/// The parameters that the models declare, as a JSON list of sections.
#[pyfunction]
fn parameters() -> PyResult<String> {
    serde_json::to_string(&netacc_simulator::sections()).map_err(wrong)
}

/// Of the package.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(generate, module)?)?;
    module.add_function(wrap_pyfunction!(from_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(normalise, module)?)?;
    module.add_function(wrap_pyfunction!(compare, module)?)?;
    module.add_function(wrap_pyfunction!(simulate, module)?)?;
    module.add_class::<Datagrams>()?;
    module.add_function(wrap_pyfunction!(mutants, module)?)?;
    module.add_function(wrap_pyfunction!(key_range, module)?)?;
    module.add_function(wrap_pyfunction!(key_accepts, module)?)?;
    module.add_function(wrap_pyfunction!(parameters, module)?)
}
