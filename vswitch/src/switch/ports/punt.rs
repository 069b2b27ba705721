//! The MAC addresses of punt taps: those of their uplinks. What the host says there of itself, and of the VTEP's address that it
//! shares, then names the station that takes the VTEP's packets, and no other one on the link is believed to have them.

use pipelines::snapshot::{NO_PORT, PortIndex, mac_from};
use pmd::PortError;
use wire::MacAddr;

use super::PortTable;
use crate::config::PortSpec;
use crate::switch::Switch;

impl Switch {
    /// Gives the punt taps of uplinks the MAC addresses that these have in the snapshot in force, also where somebody else has given
    /// them another one since: udev does so with new interfaces on many hosts (systemd.link, `MACAddressPolicy=`).
    pub(in super::super) fn keep_punt_macs(&mut self) {
        for uplink in self.topology.snapshot().uplinks.iter().flatten() {
            if uplink.punt == NO_PORT || uplink.mac == 0 {
                continue;
            }
            if let Err(error) = self.ports.keep_mac(uplink.punt, mac_from(uplink.mac)) {
                tracing::error!(
                    uplink = uplink.name, %error,
                    "the punt tap has another MAC than the uplink: what the host sends by it is dropped as host-mac"
                );
            }
        }
    }
}

impl PortTable {
    fn keep_mac(&mut self, index: PortIndex, mac: MacAddr) -> Result<(), PortError> {
        let Some(Some(port)) = self.slots.get_mut(usize::from(index)) else { return Ok(()) };
        let PortSpec::Tap(tap) = &port.wanted.spec else { return Ok(()) };
        // Asked by its name, which waits for nobody who changes interfaces; another one may have that by now.
        let is_other = pmd::interface::mac(&tap.iface).is_ok_and(|found| found != mac);
        if port.mac != mac || is_other && port.port.mac() != mac {
            port.port.set_mac(mac)?;
            port.mac = mac;
            tracing::info!(port = port.name, %mac, "the tap has its uplink's MAC address");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use pipelines::snapshot::mac_from;
    use wire::MacAddr;

    use crate::switch::{Missing, Switch, testing};

    const TAP: &str = "t0";

    fn config(mac: &str) -> String {
        format!(
            "[forward]\nauto-start = false\n[[uplink]]\nname = \"up\"\nport = {{ kind = \"raw\", vdev = \"net_null74\" }}\n\
             addresses = [\"172.16.0.1/24\"]\nhost = \"punt\"\nhost-tap = \"{TAP}\"\n{mac}"
        )
    }

    fn ip(line: &str) {
        assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "ip {line}");
    }

    fn of_uplink(switch: &Switch) -> MacAddr {
        mac_from(switch.snapshot().uplink(0).unwrap().mac)
    }

    #[test]
    fn punt_the_hosts_tap_has_the_mac_of_its_uplink_whatever_comes() {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace takes root");
        let mut switch = testing::start(&config(""));
        let of_tap = || pmd::interface::mac(TAP).unwrap();
        assert_ne!(of_uplink(&switch), MacAddr::ZERO);
        assert_eq!(of_tap(), of_uplink(&switch), "that of the uplink's port");
        // The config has another one, and the tap with the host's addresses stays.
        let tap = pmd::interface::index(TAP).unwrap();
        let given = MacAddr([2, 0, 0, 0, 9, 1]);
        switch.apply(testing::config(&config(&format!("mac = \"{given}\"\n"))), Missing::Refused).unwrap();
        assert_eq!((of_uplink(&switch), of_tap()), (given, given));
        assert_eq!(pmd::interface::index(TAP).unwrap(), tap);
        // Others manage interfaces, too: udev gives those that are new another MAC.
        ip("link set t0 address 02:00:00:00:09:77");
        switch.tend_ports(Instant::now() + Duration::from_secs(1));
        assert_eq!(of_tap(), given);
        // Made again.
        ip("link del t0");
        let start = Instant::now();
        while pmd::interface::mac(TAP).is_err() || switch.ports.index("up:punt").is_none() {
            assert!(start.elapsed() < Duration::from_secs(10), "the tap comes back");
            switch.tend_ports(Instant::now());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(of_tap(), given);
        switch.stop();
    }
}
