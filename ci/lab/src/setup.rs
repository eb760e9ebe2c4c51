//! The network link and the RDMA device on it: in a guest, or on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{find_program, last_lines, output, LabError};

/// The RDMA device of each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Rdma {
    /// SoftRoCE, the kernel's rdma_rxe
    Rxe,
    /// Soft-iWARP, built for the kernel if the distribution lacks it
    Siw,
    /// An emulated eRDMA function on the PCI bus, with its true driver and provider
    Erdma,
    /// No RDMA device
    None,
}

impl Rdma {
    /// Its driver's module.
    pub(crate) fn module(self) -> &'static str {
        match self {
            Rdma::Siw => "siw",
            Rdma::Erdma => "erdma",
            Rdma::Rxe | Rdma::None => "rdma_rxe",
        }
    }

    /// The device's name, and its type as `rdma link add` has it; of a PCI function, its driver.
    pub(crate) fn names(self) -> Option<(&'static str, &'static str)> {
        match self {
            Rdma::Rxe => Some(("rxe0", "rxe")),
            Rdma::Siw => Some(("siw0", "siw")),
            Rdma::Erdma => Some(("erdma_0", "erdma")),
            Rdma::None => None,
        }
    }
}

/// The driver that the hosts load: each expects a different function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ErdmaDriver {
    /// The kernel's own, built from the distribution's kernel source
    Upstream,
    /// Alibaba Cloud's own, as a module that was built before (--driver-module)
    Alibaba,
}

impl ErdmaDriver {
    /// The name in netacc-erdma.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ErdmaDriver::Upstream => "upstream",
            ErdmaDriver::Alibaba => "alibaba",
        }
    }
}

/// The effects of `tc netem` on the packets of each host on the link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub(crate) struct Impairment {
    /// Lose this share of the packets, each way (as 1% or 0.1%)
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) loss: Option<String>,

    /// Delay each packet, each way (as 100us, 2ms)
    #[arg(long, value_name = "TIME", value_parser = |text: &str| unit(text, &["us", "ms", "s"]))]
    pub(crate) delay: Option<String>,

    /// Bound the bandwidth, each way (as 500mbit, 1gbit)
    #[arg(long, value_name = "RATE", value_parser = |text: &str| unit(text, &["kbit", "mbit", "gbit"]))]
    pub(crate) rate: Option<String>,
}

impl Impairment {
    /// In netem's syntax; nothing for effects that are not requested.
    pub(crate) fn words(&self) -> Vec<&str> {
        let parts = [("loss", &self.loss), ("delay", &self.delay), ("rate", &self.rate)];
        parts.iter().filter_map(|(word, value)| value.as_deref().map(|value| [*word, value])).flatten().collect()
    }

    /// The arguments of `tc`, if any.
    fn command(&self) -> Option<Vec<&str>> {
        let netem = || ["qdisc", "add", "dev", INTERFACE, "root", "netem"].into_iter().chain(self.words()).collect();
        (!self.is_none()).then(netem)
    }

    /// The shell command that replaces the settings of a host's interface by these.
    pub(crate) fn replacement(&self) -> String {
        let discipline = if self.is_none() { "pfifo_fast".into() } else { format!("netem {}", self.words().join(" ")) };
        format!("modprobe sch_netem && tc qdisc replace dev {INTERFACE} root {discipline}")
    }

    /// The share of packets that is lost.
    pub(crate) fn loss_share(&self) -> f64 {
        scaled(self.loss.as_deref(), &[("%", 1e-2)])
    }

    pub(crate) fn delay_us(&self) -> u64 {
        let us = scaled(self.delay.as_deref(), &[("us", 1.0), ("ms", 1e3), ("s", 1e6)]);
        us.round() as u64
    }

    /// 0: no limit.
    pub(crate) fn rate_gbit(&self) -> f64 {
        scaled(self.rate.as_deref(), &[("kbit", 1e-6), ("mbit", 1e-3), ("gbit", 1.0)])
    }

    /// Whether it changes nothing.
    pub(crate) fn is_none(&self) -> bool {
        self.words().is_empty()
    }
}

/// A number with a unit, in the unit whose factor is 1. Nothing: 0.
fn scaled(text: Option<&str>, units: &[(&str, f64)]) -> f64 {
    let value = text.and_then(|text| {
        let (number, factor) = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
        Some(number.parse::<f64>().ok()? * factor)
    });
    value.unwrap_or_default()
}

fn percent(text: &str) -> Result<String, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(format!("{number}%")),
        _ => Err("a percentage from 0 to 100, as 1%".into()),
    }
}

fn unit(text: &str, units: &[&str]) -> Result<String, String> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let known = units.contains(&&text[number.len()..]);
    match number.parse::<f64>() {
        Ok(value) if known && value >= 0.0 && value.is_finite() => Ok(text.to_owned()),
        _ => Err(format!("a number with a unit: {}", units.join(", "))),
    }
}

/// The network interface that the RDMA device is on.
pub(crate) const INTERFACE: &str = "lab0";

/// The addresses of a host.
pub(crate) fn addresses(host: u8) -> [String; 2] {
    [format!("10.99.0.{host}"), format!("fd99::{host}")]
}

/// The link of a lab with one host: a pair of virtual interfaces. The second one only keeps the first up.
pub(crate) fn veth() -> Result<(), LabError> {
    modprobe("veth")?;
    run("ip", &["link", "add", INTERFACE, "type", "veth", "peer", "name", VETH_PEER])?;
    run("ip", &["link", "set", VETH_PEER, "up"])
}

const VETH_PEER: &str = "lab0p";

/// Brings the interface up with the addresses of `host`.
pub(crate) fn interface(host: u8, impairment: &Impairment) -> Result<(), LabError> {
    let [v4, v6] = addresses(host);
    run("ip", &["link", "set", INTERFACE, "up"])?;
    run("ip", &["addr", "add", &format!("{v4}/24"), "dev", INTERFACE])?;
    // Without duplicate detection the address can be used at once.
    run("ip", &["addr", "add", &format!("{v6}/64"), "dev", INTERFACE, "nodad"])?;
    if let Some(arguments) = impairment.command() {
        modprobe("sch_netem")?;
        run("tc", &arguments)?;
    }
    Ok(())
}

/// Loads the driver and puts a device on the interface. `module` is loaded where the kernel has none of its own.
pub(crate) fn rdma(rdma: Rdma, module: Option<&Path>) -> Result<(), LabError> {
    let Some((device, kind)) = rdma.names() else {
        return Ok(());
    };
    modprobe("rdma_ucm")?;
    match (rdma, module) {
        (_, None) => modprobe(rdma.module())?,
        (_, Some(file)) => {
            // Modules that siw.ko and erdma.ko need; insmod does not load them.
            for module in ["libcrc32c", "ib_uverbs", "iw_cm"] {
                modprobe(module)?;
            }
            run("insmod", &[&file.to_string_lossy()])?;
        }
    }
    if rdma == Rdma::Erdma {
        return present(device);
    }
    run("rdma", &["link", "add", device, "type", kind, "netdev", INTERFACE])
}

/// The driver of a PCI function makes its device while it is loaded, or never.
fn present(device: &str) -> Result<(), LabError> {
    if Path::new("/sys/class/infiniband").join(device).exists() {
        return Ok(());
    }
    let kernel = Command::new("dmesg").args(["--level", "emerg,alert,crit,err,warn"]).output();
    let complaints = kernel.map(|answer| last_lines(&answer.stdout)).unwrap_or_default();
    Err(LabError::Missing {
        what: format!("the driver has made no device {device}"),
        fix: format!("the kernel's last errors:{complaints}"),
    })
}

/// Removes the devices of [`veth`] and [`rdma`]. Best effort: it is also called after a failure.
pub(crate) fn remove(rdma: Rdma) {
    if let Some((device, _)) = rdma.names() {
        let _ = run("rdma", &["link", "delete", device]);
    }
    let _ = run("ip", &["link", "delete", INTERFACE]);
}

pub(crate) fn modprobe(module: &str) -> Result<(), LabError> {
    run("modprobe", &[module])
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), LabError> {
    let path = find_program(program).unwrap_or_else(|| PathBuf::from(program));
    output(Command::new(path).args(arguments)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_options_become_netem_arguments() {
        #[derive(clap::Parser)]
        struct Parsed {
            #[command(flatten)]
            impairment: Impairment,
        }
        let netem_command = |arguments: &[&str]| {
            let parsed: Parsed = clap::Parser::parse_from([&["lab"], arguments].concat());
            parsed.impairment.command().map(|words| words.join(" "))
        };
        let netem = |rest| Some(format!("qdisc add dev lab0 root netem {rest}"));
        assert_eq!(netem_command(&["--rate", "500mbit"]), netem("rate 500mbit"));
        assert_eq!(netem_command(&["--loss", "1", "--delay", "2ms"]), netem("loss 1% delay 2ms"));
        assert_eq!(
            netem_command(&["--rate=1gbit", "--delay=100us", "--loss=0.1%"]),
            netem("loss 0.1% delay 100us rate 1gbit")
        );
        assert_eq!(netem_command(&[]), None);
        assert!(Impairment::default().is_none());
    }

    /// Breaks if "ms" were read as "s" after another letter, or a bound of the fabric were another than netem's.
    #[test]
    fn the_fabric_is_given_the_numbers_that_netem_is() {
        let with = |loss: &str, delay: &str, rate: &str| Impairment {
            loss: Some(loss.into()),
            delay: Some(delay.into()),
            rate: Some(rate.into()),
        };
        let is = |of: &Impairment, loss: f64, delay_us: u64, rate_gbit: f64| {
            assert!((of.loss_share() - loss).abs() < 1e-9, "{of:?}: {}", of.loss_share());
            assert!((of.rate_gbit() - rate_gbit).abs() < 1e-9, "{of:?}: {}", of.rate_gbit());
            assert_eq!(of.delay_us(), delay_us);
        };
        is(&with("0.1%", "2ms", "1gbit"), 0.001, 2000, 1.0);
        is(&with("1%", "100us", "512kbit"), 0.01, 100, 0.000_512);
        is(&with("100%", "1.5s", "2.5mbit"), 1.0, 1_500_000, 0.0025);
        is(&Impairment::default(), 0.0, 0, 0.0);
        let replaced = with("1%", "2ms", "1gbit").replacement();
        assert!(replaced.ends_with("dev lab0 root netem loss 1% delay 2ms rate 1gbit"), "{replaced}");
        assert!(Impairment::default().replacement().ends_with("dev lab0 root pfifo_fast"));
    }

    #[test]
    fn an_invalid_impairment_is_refused() {
        assert_eq!(percent("0.1%"), Ok("0.1%".into()));
        for wrong in ["101", "-1", "x%", "NaN", ""] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
        assert_eq!(unit("500mbit", &["mbit"]), Ok("500mbit".into()));
        for wrong in ["500", "mbit", "-1mbit", "5mb", "infmbit", "5mbit; rm"] {
            assert!(unit(wrong, &["mbit"]).is_err(), "{wrong}");
        }
    }
}
