//! `raw`: any other virtual device, written as DPDK's `--vdev` takes it. For drivers that this switch has no
//! kind for, and those of plugins. Nothing is known of it but what its driver reports.

use super::{DevicePlan, DeviceSpec, MtuControl, OpenError, Opening, Traits};
use crate::config::port_spec::RawPort;

pub(super) fn plan(spec: &RawPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let (name, args) = split(&spec.vdev)?;
    opening.take(format!("virtual device {name}"))?;
    let device = DeviceSpec::Named { name, args };
    let traits = Traits { mtu: MtuControl::Device, ..Traits::up_to(u16::MAX) };
    Ok(DevicePlan::new(device, traits))
}

fn split(vdev: &str) -> Result<(String, String), OpenError> {
    let (name, args) = vdev.split_once(',').unwrap_or((vdev, ""));
    let why = if !name.starts_with("net_") {
        "is no network device; write one that begins with its driver's name, like net_ring0 or net_x0,key=value"
    } else if vdev.contains(char::is_control) {
        "has control characters; remove them"
    } else {
        return Ok((name.to_owned(), args.to_owned()));
    };
    Err(OpenError::Value { key: "vdev", value: vdev.into(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_comes_before_the_first_comma() {
        let parts = |name: &str, args: &str| (name.to_owned(), args.to_owned());
        assert_eq!(split("net_ring7").unwrap(), parts("net_ring7", ""));
        assert_eq!(split("net_x0,a=1,b=2").unwrap(), parts("net_x0", "a=1,b=2"));
        assert!(split("crypto_x0").is_err() && split("net_x0,a=\n").is_err() && split("").is_err());
    }
}
