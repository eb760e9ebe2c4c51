//! RDMA: limits of the process, the card in the machine, modules, nodes, libraries, devices with their ports and
//! addresses, ports for links.

mod limits;
mod link_port;

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use netacc_config::Config;
use netacc_device::DeviceError;
use netacc_verbs::{discover, Found};

use self::link_port::Listening;
use super::{names, read, Check, Findings, Status};
use crate::open_rdma_at_each;

/// The elastic RDMA interface of Alibaba Cloud, as the PCI bus names it.
const ERI: (&str, &str) = ("0x1ded", "0x107f");

/// Modules that drive devices, and the hardware of each.
const DRIVERS: [(&str, &str); 4] = [
    ("erdma", "elastic RDMA interfaces"),
    ("mlx5_ib", "ConnectX"),
    ("rdma_rxe", "SoftRoCE, on any network device"),
    ("siw", "soft-iWARP, on any network device"),
];

/// `ports`: TCP ports of services that other hosts are to reach over RDMA.
pub(crate) fn examine(root: &Path, config: &Config, ports: &[u16]) -> Findings {
    let present = devices(root);
    let mut checks = Vec::from(limits::checks(!present.is_empty()));
    checks.extend(eri(root).into_iter().chain(modules(root)));
    if present.is_empty() {
        let fix =
            "modprobe the driver of the card; SoftRoCE: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev DEV; \
                   without modules, in a small virtual machine: netacc lab run";
        checks.push(Check::not(Status::Absent, "RDMA devices", "the kernel has none", fix));
    } else {
        checks.extend(nodes(root, |path| OpenOptions::new().read(true).write(true).open(path).map(drop)));
    }
    checks.extend(present.iter().flat_map(|name| device(root, name)));
    let mut works = false;
    let mut listening = Listening::Nobody;
    // Libraries are loaded only where there is a device for them, as a program's are.
    if !present.is_empty() {
        let known = discover();
        listening = Listening::of(&known);
        checks.push(libraries(&known));
        for (address, outcome) in open_rdma_at_each(config) {
            let name = format!("device at {address}");
            checks.push(match outcome {
                Ok(device) => {
                    works = true;
                    Check::ok(name, format!("opens: {device}"))
                }
                // A machine may have addresses that no RDMA device serves.
                Err(error) => Check::not(
                    if config.verbs.address.is_some() { Status::Fail } else { Status::Absent },
                    name,
                    error.to_string(),
                    "only if this one is to be used: an RDMA device on its network device, and the advice above",
                ),
            });
        }
        if !works {
            let fix = "see above; NACC_VERBS_ADDRESS names the address of ours to use";
            checks.push(Check::not(Status::Fail, "RDMA", "no address of this machine can be used", fix));
        }
    }
    let keeps_from_working = |check: &&Check| !works && matches!(check.status, Status::Absent | Status::Fail);
    let in_words = |check: &Check| format!("{}: {}", check.name, check.finding);
    let problems = checks.iter().filter(keeps_from_working).map(in_words).collect();
    checks.extend(ports.iter().map(|port| link_port::check(*port, listening)));
    Findings { checks, problems }
}

/// The RDMA devices that the kernel has.
fn devices(root: &Path) -> Vec<String> {
    names(&root.join("sys/class/infiniband"))
}

/// Elastic RDMA interfaces, each with its driver.
fn eri(root: &Path) -> Vec<Check> {
    let bus = root.join("sys/bus/pci/devices");
    let is_eri = |slot: &String| {
        let word = |file: &str| read(&bus.join(slot).join(file)).unwrap_or_default();
        (word("vendor").as_str(), word("device").as_str()) == ERI
    };
    let found: Vec<String> = names(&bus).into_iter().filter(is_eri).collect();
    if found.is_empty() {
        let fix = "on ECS: a type of instance that has them, and an elastic network interface with RDMA enabled";
        return vec![Check::not(Status::Absent, "ERI", "no elastic RDMA interface on the PCI bus", fix)];
    }
    let driver = |slot: String| {
        let name = format!("ERI {slot}");
        match std::fs::read_link(bus.join(&slot).join("driver")) {
            Ok(driver) => {
                let driver = driver.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                Check::ok(name, format!("driver {driver}"))
            }
            Err(_) => Check::not(Status::Fail, name, "no driver has it", "install the eRDMA driver; modprobe erdma"),
        }
    };
    found.into_iter().map(driver).collect()
}

/// The modules that are loaded, and those that could be.
fn modules(root: &Path) -> Vec<Check> {
    let loaded = |name: &str| root.join("sys/module").join(name).exists();
    let release = read(&root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
    let known = read(&root.join("lib/modules").join(release).join("modules.dep")).unwrap_or_default();
    let available = |name: &str| known.lines().any(|line| line.contains(&format!("/{name}.ko")));
    let mut checks = Vec::new();
    for name in ["ib_uverbs", "rdma_ucm"] {
        checks.push(if loaded(name) {
            Check::ok(format!("module {name}"), "loaded")
        } else if available(name) {
            Check::not(Status::Absent, format!("module {name}"), "not loaded", format!("modprobe {name}"))
        } else {
            let fix = "a kernel with it, such as the distribution's; or netacc lab run";
            Check::not(Status::Absent, format!("module {name}"), "this kernel has none", fix)
        });
    }
    for (name, what) in DRIVERS {
        if loaded(name) {
            checks.push(Check::ok(format!("module {name}"), format!("loaded: {what}")));
        } else if available(name) {
            checks.push(Check::ok(format!("module {name}"), format!("can be loaded: {what}")));
        }
    }
    checks
}

/// The device files through which programs use devices.
fn nodes(root: &Path, open: impl Fn(&Path) -> io::Result<()>) -> Vec<Check> {
    let folder = root.join("dev/infiniband");
    let mut wanted = vec!["rdma_cm".to_owned()];
    wanted.extend(names(&folder).into_iter().filter(|name| name.starts_with("uverbs")));
    wanted
        .into_iter()
        .map(|name| {
            let path = folder.join(&name);
            match open(&path) {
                Ok(()) => Check::ok(format!("/dev/infiniband/{name}"), "can be opened"),
                Err(error) => {
                    let fix = match error.kind() {
                        io::ErrorKind::PermissionDenied => "give this user the right: mode 0666, or its group",
                        _ => "modprobe rdma_ucm; in a container, pass /dev/infiniband in",
                    };
                    Check::not(Status::Fail, format!("/dev/infiniband/{name}"), error.to_string(), fix)
                }
            }
        })
        .collect()
}

/// Whether the libraries are installed, and find the devices that the kernel has.
fn libraries(known: &Result<Vec<Found>, DeviceError>) -> Check {
    match known {
        Ok(devices) if devices.is_empty() => {
            let fix = "apt-get install ibverbs-providers, or the vendor's provider";
            Check::not(Status::Fail, "libibverbs", "loads, and finds none of the kernel's devices", fix)
        }
        Ok(devices) => {
            let describe = |device: &Found| match &device.attributes {
                Ok(attributes) => format!(
                    "{}: firmware {}, {} queue pairs, {} regions",
                    device.name, attributes.firmware, attributes.max_qp, attributes.max_mr
                ),
                Err(errno) => format!("{}: {}", device.name, io::Error::from_raw_os_error(*errno)),
            };
            let text: Vec<String> = devices.iter().map(describe).collect();
            Check::ok("libibverbs, librdmacm", text.join("; "))
        }
        Err(error) => {
            let fix = "apt-get install libibverbs1 librdmacm1 ibverbs-providers";
            Check::not(Status::Fail, "libibverbs, librdmacm", error.to_string(), fix)
        }
    }
}

/// A device's ports, as the kernel shows them.
fn device(root: &Path, name: &str) -> Vec<Check> {
    let ports = root.join("sys/class/infiniband").join(name).join("ports");
    let port = |number: String| {
        let folder = ports.join(&number);
        let reported = |file: &str| read(&folder.join(file)).unwrap_or_default();
        let state = reported("state");
        let title = format!("{name} port {number}");
        let netdev = names(&folder.join("gid_attrs/ndevs"))
            .iter()
            .find_map(|index| read(&folder.join("gid_attrs/ndevs").join(index)))
            .unwrap_or_else(|| "-".into());
        let gids: Vec<String> = names(&folder.join("gids"))
            .iter()
            .filter_map(|index| read(&folder.join("gids").join(index)))
            .filter(|gid| gid.chars().any(|c| c.is_ascii_hexdigit() && c != '0'))
            .collect();
        let finding = format!("{state}, {}, network device {netdev}, GIDs: {}", reported("link_layer"), gids.len());
        if !state.ends_with("ACTIVE") {
            let fix = format!("bring the link up: ip link set {netdev} up");
            return Check::not(Status::Fail, title, finding, fix);
        }
        if gids.is_empty() {
            let fix = "give the network device an address: ip addr add ADDRESS/BITS dev DEV";
            return Check::not(Status::Fail, title, finding, fix);
        }
        Check::ok(title, finding)
    };
    names(&ports).into_iter().map(port).collect()
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::super::machine_of;
    use super::*;

    #[test]
    fn the_kernel_has_devices_or_none() {
        assert!(devices(machine_of(&[]).path()).is_empty());
        assert_eq!(devices(machine_of(&[("sys/class/infiniband/rxe0/node_type", "1")]).path()), ["rxe0"]);
    }

    #[test]
    fn an_interface_without_a_driver_differs_from_none_and_from_a_working_one() {
        assert_eq!(eri(machine_of(&[]).path())[0].status, Status::Absent);
        let other = [
            ("sys/bus/pci/devices/0000:00:07.0/vendor", "0x1ded"),
            ("sys/bus/pci/devices/0000:00:07.0/device", "0x1\n"),
        ];
        assert_eq!(eri(machine_of(&other).path())[0].status, Status::Absent);
        let mut files = other;
        files[1].1 = "0x107f\n";
        let root = machine_of(&files);
        let found = eri(root.path());
        assert_eq!((found.len(), found[0].status, found[0].name.as_str()), (1, Status::Fail, "ERI 0000:00:07.0"));
        let driver = root.path().join("sys/bus/pci/devices/0000:00:07.0/driver");
        std::os::unix::fs::symlink("../../../bus/pci/drivers/erdma", driver).expect("made");
        assert_eq!((eri(root.path())[0].status, eri(root.path())[0].finding.as_str()), (Status::Ok, "driver erdma"));
    }

    #[test]
    fn a_port_that_is_down_or_has_no_address_is_reported() {
        const PORT: &str = "sys/class/infiniband/rxe0/ports/1";
        let port = |state: &str, gid: &str| {
            let paths =
                ["state", "link_layer", "gid_attrs/ndevs/0", "gids/0", "gids/1"].map(|file| format!("{PORT}/{file}"));
            let texts = [state, "Ethernet", "eth0", "0000:0000:0000:0000:0000:0000:0000:0000", gid];
            let files: Vec<_> = paths.iter().map(String::as_str).zip(texts).collect();
            device(machine_of(&files).path(), "rxe0").remove(0)
        };
        let none = "0000:0000:0000:0000:0000:0000:0000:0000";
        let good = port("4: ACTIVE\n", "0000:0000:0000:0000:0000:ffff:0a63:0001\n");
        assert_eq!((good.status, good.fix), (Status::Ok, None));
        assert!(good.finding.contains("network device eth0, GIDs: 1"), "{}", good.finding);
        let down = port("1: DOWN\n", "0000:0000:0000:0000:0000:ffff:0a63:0001\n");
        assert_eq!((down.status, down.fix.as_deref()), (Status::Fail, Some("bring the link up: ip link set eth0 up")));
        assert_eq!(port("4: ACTIVE\n", none).status, Status::Fail);
    }

    #[test]
    fn modules_are_loaded_there_or_missing() {
        let root = machine_of(&[
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            (
                "lib/modules/6.1.0/modules.dep",
                "kernel/drivers/infiniband/core/rdma_ucm.ko.xz: a\nkernel/x/rdma_rxe.ko:\n",
            ),
            ("sys/module/ib_uverbs/refcnt", "1"),
        ]);
        let found = modules(root.path());
        let reported = |name: &str| found.iter().find(|check| check.name == format!("module {name}"));
        assert_eq!(reported("ib_uverbs").map(|check| check.status), Some(Status::Ok));
        assert_eq!(reported("rdma_ucm").and_then(|check| check.fix.as_deref()), Some("modprobe rdma_ucm"));
        assert_eq!(
            reported("rdma_rxe").map(|check| check.finding.as_str()),
            Some("can be loaded: SoftRoCE, on any network device")
        );
        assert!(reported("siw").is_none());
        let nothing = modules(machine_of(&[]).path());
        assert!(nothing.iter().all(|check| check.status == Status::Absent && check.finding == "this kernel has none"));
    }

    #[test]
    fn a_device_file_that_cannot_be_opened_is_reported_with_its_fix() {
        let root = machine_of(&[("dev/infiniband/uverbs0", ""), ("dev/infiniband/issm0", "")]);
        let found = |errno: i32| {
            nodes(root.path(), |path| {
                assert!(path.starts_with(root.path().join("dev/infiniband")), "{path:?}");
                if path.ends_with("uverbs0") {
                    Err(io::Error::from_raw_os_error(errno))
                } else {
                    Ok(())
                }
            })
        };
        let denied = found(Errno::EACCES as i32);
        let names: Vec<&str> = denied.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names, ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]);
        assert_eq!((denied[0].status, denied[1].status), (Status::Ok, Status::Fail));
        assert!(denied[1].finding.contains("Permission denied"), "{}", denied[1].finding);
        assert!(denied[1].fix.as_deref().is_some_and(|fix| fix.contains("mode 0666")), "{denied:?}");
        assert!(found(Errno::ENOENT as i32)[1].fix.as_deref().is_some_and(|fix| fix.contains("modprobe")));
        let nothing = nodes(machine_of(&[]).path(), |_| Err(io::ErrorKind::NotFound.into()));
        assert_eq!(
            (nothing.len(), nothing[0].status),
            (1, Status::Fail),
            "the kernel has a device, and no device file for it"
        );
    }

    fn known(iwarp: bool) -> Found {
        Found { name: "x0".into(), iwarp, profile: None, attributes: Err(Errno::EACCES as i32) }
    }

    #[test]
    fn libraries_are_missing_or_without_a_provider_or_name_their_devices() {
        let missing = DeviceError::Unavailable { what: "libibverbs.so.1 is not installed", source: None };
        let missing = libraries(&Err(missing));
        assert_eq!(missing.status, Status::Fail);
        assert!(missing.finding.contains("libibverbs.so.1 is not installed"), "{}", missing.finding);
        assert!(missing.fix.as_deref().is_some_and(|fix| fix.contains("libibverbs1 librdmacm1")), "{missing:?}");
        let bare = libraries(&Ok(Vec::new()));
        assert_eq!(bare.status, Status::Fail);
        assert!(bare.fix.as_deref().is_some_and(|fix| fix.contains("install ibverbs-providers")), "{bare:?}");
        let good = libraries(&Ok(vec![known(true)]));
        assert_eq!((good.status, good.fix), (Status::Ok, None));
        assert!(good.finding.starts_with("x0: Permission denied"), "{}", good.finding);
    }
}
