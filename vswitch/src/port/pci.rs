//! `pci`: a NIC on the PCI bus, by whichever driver DPDK has for it. Unconfirmed: no such device was at hand.

use std::fs;
use std::path::Path;

use super::devargs;
use super::{DevicePlan, DeviceSpec, MtuControl, OpenError, Opening, Traits};
use crate::config::port_spec::PciPort;

/// Where the kernel shows what is on the PCI bus.
pub(super) const DEVICES: &str = "/sys/bus/pci/devices";
/// Kernel drivers that hand a device to user space.
const USER_SPACE: [&str; 4] = ["vfio-pci", "uio_pci_generic", "igb_uio", "uio_hv_generic"];
/// Kernel drivers that DPDK's own driver works beside.
const SHARED: [&str; 4] = ["mlx5_core", "mlx4_core", "mana", "bnxt_re"];

pub(super) fn plan(spec: &PciPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let address = full_address(&spec.address)?;
    opening.take(format!("PCI device {address}"))?;
    check_bound(&address)?;
    let devargs = match &spec.devargs {
        Some(extra) if extra.contains(|c: char| c.is_control() || c.is_whitespace()) => {
            let why = "has blanks or control characters; remove them";
            return Err(OpenError::Value { key: "devargs", value: extra.clone(), why });
        }
        Some(extra) => format!("{address},{extra}"),
        None => address.clone(),
    };
    Ok(DevicePlan::new(DeviceSpec::Pci(devargs), traits()))
}

/// What holds for any NIC: queues and MTU as the device reports them.
/// Descriptors of a queue, each way.
pub(super) const DESCRIPTORS: u16 = 1024;

pub(super) fn traits() -> Traits {
    Traits {
        rx_desc: DESCRIPTORS,
        tx_desc: DESCRIPTORS,
        mtu: MtuControl::Device,
        tells_link: true,
        is_nic: true,
        ..Traits::up_to(u16::MAX)
    }
}

/// The address with its domain, in lower case.
pub(crate) fn full_address(address: &str) -> Result<String, OpenError> {
    devargs::check("address", address)?;
    let lower = address.to_ascii_lowercase();
    let full = if lower.matches(':').count() == 1 { format!("0000:{lower}") } else { lower };
    let hex = |text: &str, digits| text.len() == digits && text.chars().all(|c| c.is_ascii_hexdigit());
    let parts: Vec<&str> = full.split([':', '.']).collect();
    let good = full.rfind(':') < full.find('.')
        && matches!(parts[..], [domain, bus, device, function]
            if hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1));
    if good {
        return Ok(full);
    }
    let why = "is not an address such as 0000:3b:00.0; `lspci -D` lists them".into();
    Err(OpenError::Pci { address: address.into(), why })
}

/// The device is there, and with a driver that lets DPDK have it.
pub(super) fn check_bound(address: &str) -> Result<(), OpenError> {
    check_bound_under(Path::new(DEVICES), address)
}

fn check_bound_under(devices: &Path, address: &str) -> Result<(), OpenError> {
    let refuse = |why: String| Err(OpenError::Pci { address: address.into(), why });
    let device = devices.join(address);
    if !device.exists() {
        return refuse("there is no such device; `lspci -D` lists them".into());
    }
    let driver = fs::read_link(device.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    match driver.as_deref() {
        Some(driver) if USER_SPACE.contains(&driver) || SHARED.contains(&driver) => Ok(()),
        Some(driver) => refuse(format!(
            "the kernel's driver {driver} has it; give it up with `dpdk-devbind.py --bind=vfio-pci {address}` (its kernel interface goes away)"
        )),
        None => refuse(format!("no driver is bound to it; `dpdk-devbind.py --bind=vfio-pci {address}`")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn addresses_get_their_domain() {
        for text in ["0000:3b:00.0", "3b:00.0", "3B:00.0"] {
            assert_eq!(full_address(text).unwrap(), "0000:3b:00.0");
        }
        for text in ["", "3b", "3b:00", "3b.00:0", "0000:3b:00.0,x=1", "eth0", "1:2:3:4.5", "xx:00.0"] {
            assert!(full_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_device_must_be_there_and_bound() {
        let folder = std::env::temp_dir().join(format!("pci-port-{}", std::process::id()));
        let device = folder.join("0000:3b:00.0");
        let check = || check_bound_under(&folder, "0000:3b:00.0").map_err(|error| error.to_string());
        assert!(check().unwrap_err().contains("no such device"));
        fs::create_dir_all(&device).unwrap();
        assert!(check().unwrap_err().contains("no driver is bound"));
        let bind = |driver: &str| {
            let _ = fs::remove_file(device.join("driver"));
            symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
        };
        bind("e1000e");
        let error = check().unwrap_err();
        assert!(error.contains("e1000e") && error.contains("--bind=vfio-pci 0000:3b:00.0"), "{error}");
        for driver in ["vfio-pci", "mlx5_core"] {
            bind(driver);
            check().unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
