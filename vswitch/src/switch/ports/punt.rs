//! Punt taps: the host's own interfaces on the underlay.
//!
//! Their MAC addresses are those of their uplinks. What the host says there of itself, and of the VTEP's address that it
//! shares, then names the station that takes the VTEP's packets, and no other one on the link is believed to have them.
//!
//! Their interfaces stay when the process ends, however it does, and the next one takes them again by their names: what the host has made
//! of them, addresses and routes, goes with its uplink alone, or with the uplink's `host = "punt"`.

use std::collections::BTreeMap;

use pipelines::snapshot::{NO_PORT, PortIndex, mac_from};
use pmd::PortError;
use wire::MacAddr;

use super::{PortTable, WantedPort};
use crate::config::{Config, PortSpec};
use crate::switch::Switch;

impl Switch {
    /// Has the punt taps of the snapshot in force stay, and gives them the MAC addresses that their uplinks have there, also where somebody
    /// else has given them another one since: udev does so with new interfaces on many hosts (systemd.link, `MACAddressPolicy=`).
    pub(in super::super) fn keep_punt_taps(&mut self) {
        for uplink in self.topology.snapshot().uplinks.iter().flatten() {
            if uplink.punt == NO_PORT {
                continue;
            }
            if let Err(error) = self.ports.keep_tap(uplink.punt) {
                tracing::error!(
                    uplink = uplink.name, %error,
                    "the punt tap goes with this process, and the host's addresses and routes on it"
                );
            }
            if uplink.mac == 0 {
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
    /// A change is in force: the punt taps that it has taken out of the config, whose interfaces stayed until now, are to be removed.
    pub(in super::super) fn want_taps(&mut self, old: &Config, want: &BTreeMap<String, WantedPort>) {
        let had = old.uplinks.iter().filter_map(|uplink| uplink.punt_tap());
        self.taps_left.extend(had.map(|tap| tap.iface));
        self.taps_left.retain(|iface| !want.values().any(|port| port.spec.is_tap_here(iface)));
    }

    fn keep_tap(&mut self, index: PortIndex) -> Result<(), PortError> {
        let Some(Some(port)) = self.slots.get_mut(usize::from(index)) else { return Ok(()) };
        if !port.stays {
            port.port.persist()?;
            port.stays = true;
        }
        Ok(())
    }

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
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use pipelines::snapshot::mac_from;
    use wire::MacAddr;

    use crate::config::{Config, Source};
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

    /// What `ip` says of the tap's addresses, routes and MAC address.
    fn facts() -> Vec<String> {
        let said = ["-4 -o addr show dev t0", "route show dev t0"].map(|line| {
            let output = Command::new("ip").args(line.split(' ')).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            text.split_whitespace().filter(|word| *word != "linkdown").collect::<Vec<_>>().join(" ")
        });
        said.into_iter().chain([pmd::interface::mac(TAP).unwrap().to_string()]).collect()
    }

    fn give_addresses() -> Vec<String> {
        ip("addr add 192.0.2.7/24 dev t0");
        ip("route add 198.51.100.0/24 via 192.0.2.1 dev t0");
        facts()
    }

    fn is_there(iface: &str) -> bool {
        pmd::interface::index(iface).is_ok()
    }

    #[test]
    fn punt_the_hosts_tap_stays_when_the_switch_lets_go_and_is_taken_again() {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace takes root");
        let text = testing::process(4095) + &config("mac = \"02:00:00:00:09:01\"\n");
        let file = Source::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"));
        let mut switch = Switch::start(file.config.clone()).unwrap_or_else(|error| panic!("{error}"));
        switch.set_config_file(Some(file));
        let (index, before) = (pmd::interface::index(TAP).unwrap(), give_addresses());
        for other in [None, Some("02:00:00:00:09:77")] {
            assert_eq!(switch.is_bound(), None, "an upgrade is let in");
            switch.let_go_all(&[], || {}).unwrap();
            assert_eq!(facts(), before, "while nobody serves it");
            // udev may give it another MAC address meanwhile.
            other.into_iter().for_each(|mac| ip(&format!("link set t0 address {mac}")));
            switch.come_back(false).unwrap();
            assert_eq!((facts(), pmd::interface::index(TAP).unwrap()), (before.clone(), index));
            assert!(switch.ports.index("up:punt").is_some());
        }
        switch.stop();
        assert_eq!((facts(), pmd::interface::index(TAP).unwrap()), (before, index));
        assert_eq!(pmd::interface::tap_queues(TAP).unwrap(), 0);
    }

    /// A change that is refused has made nothing and taken nothing away; one that is in force has.
    #[test]
    fn punt_the_hosts_tap_goes_with_its_uplink_and_with_nothing_else() {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace takes root");
        let mut switch = testing::start(&config(""));
        let before = give_addresses();
        let apply = |switch: &mut Switch, config: Config| switch.apply(config, Missing::Refused);
        let renamed = config("").replace(TAP, "t1");
        let bad = "[[port]]\nname = \"p\"\nport = { kind = \"veth\", iface = \"nowhere\" }\n";
        let refused = apply(&mut switch, testing::config(&(renamed.clone() + bad))).unwrap_err();
        assert!(refused.to_string().contains("nowhere"), "{refused}");
        assert_eq!((facts(), is_there("t1")), (before.clone(), false), "{refused}");
        assert!(switch.ports.index("up:punt").is_some());
        // Another MTU, and another uplink around it, are the same tap.
        let smaller = config("mtu = 1490\n").replace("\"up\"", "\"wan\"");
        apply(&mut switch, testing::config(&smaller)).unwrap();
        assert_eq!(facts()[..2], before[..2]);
        apply(&mut switch, testing::config(&renamed)).unwrap();
        assert_eq!((is_there(TAP), is_there("t1")), (false, true), "under another name it is another one");
        apply(&mut switch, testing::config(&renamed.replace("host", "#host"))).unwrap();
        assert!(!is_there("t1"));
        // With the uplink, while a worker keeps the port.
        apply(&mut switch, testing::config(&config(""))).unwrap();
        let answer = Arc::new(Mutex::new(None));
        let kept = answer.clone();
        switch.ports.before_removal =
            Some(Box::new(move |pool| *kept.lock().unwrap() = Some(testing::silence(pool))));
        apply(&mut switch, testing::config("[forward]\nauto-start = false\n")).unwrap();
        assert!(is_there(TAP), "a worker has the port still");
        drop(answer.lock().unwrap().take());
        let start = Instant::now();
        while is_there(TAP) {
            assert!(start.elapsed() < Duration::from_secs(10), "the tap goes");
            switch.tend_ports(Instant::now());
            std::thread::sleep(Duration::from_millis(5));
        }
        switch.stop();
    }
}
