//! A whole Debian machine (`scripts/lab-debian`) behind a vhost-user port: what its own client made of what the switch told it.
//!
//! It asks the machine as its user would: `ip`, the files of systemd-networkd, the leases of dhclient.

use super::{Cable, Guest, Hardware, image_of_debian};
use std::path::Path;
use std::time::Duration;

/// Memory in MiB: the root is in it.
const MEMORY: u32 = 1024;
/// How long its boot may take: half a minute of processor time, which a busy machine gives it a sixth of.
const BOOT: Duration = Duration::from_secs(360);
/// How long an address or a route may take to come up from then on.
const COMES_UP: Duration = Duration::from_secs(240);

/// What brings `eth0` up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// systemd-networkd, with `DHCP=yes` and nothing else.
    Networkd,
    /// ifupdown, which runs dhclient for either family.
    Ifupdown,
}

/// An address and the router of its family.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// With the prefix length that the client gives it.
    pub address: &'a str,
    /// Where the default route goes.
    pub router: &'a str,
}

/// A running machine.
#[derive(Debug)]
pub struct Debian {
    /// The guest.
    pub guest: Guest,
    /// Its client.
    pub client: Client,
}

impl Debian {
    /// Boots one on the vhost-user socket of a switch.
    #[track_caller]
    pub fn boot(client: Client, mac: &str, socket: &Path) -> Debian {
        let image = image_of_debian(match client {
            Client::Networkd => "networkd",
            Client::Ifupdown => "ifupdown",
        });
        let cable = Cable::VhostUser(socket);
        let hardware = Hardware { name: "debian", mac, cable, memory: MEMORY, image: &image, more: "" };
        let guest = Guest::boot(&hardware);
        guest.wait_ready_within(BOOT);
        Debian { guest, client }
    }

    /// Waits until `eth0` has an address and a default route of its family.
    #[track_caller]
    pub fn comes_up(&self, wanted: Wanted<'_>) {
        let family = family(wanted.address);
        for (shown, text) in [
            ("addr show dev eth0 scope global".to_owned(), format!(" {} ", wanted.address)),
            ("route show default".to_owned(), format!("default via {} dev eth0", wanted.router)),
        ] {
            let command = format!("ip {family} {shown} | grep -qF '{text}'");
            if self.guest.until_or_late(&command, COMES_UP).is_err() {
                let state = self.guest.try_run(STATE, super::SCRIPT).output;
                panic!("'{text}' did not come up:\n{state}");
            }
        }
    }

    /// Waits until the client has renewed its lease of an address: how long it is valid is more than a moment before.
    #[track_caller]
    pub fn renews(&self, address: &str, limit: Duration) {
        let family = family(address);
        let valid = format!(
            "ip {family} -o addr show dev eth0 | sed -n 's|.* {address} .*valid_lft \\([0-9]*\\)sec.*|\\1|p'"
        );
        let script = format!(
            "last=\nwhile :; do\nnow=$({valid})\n[ -n \"$last\" ] && [ \"${{now:-0}}\" -gt \"$last\" ] && break\nlast=$now\n\
             sleep 0.3\ndone\n"
        );
        let job = self.guest.start(&script);
        if self.guest.ended(&job, limit).is_none() {
            let state = self.guest.try_run(STATE, super::SCRIPT).output;
            panic!("the lease of {address} was not renewed in {limit:?}:\n{state}");
        }
    }

    /// All that the client knows of what it was told: the name servers and the host name are in it.
    #[track_caller]
    pub fn told(&self) -> String {
        self.guest.run(match self.client {
            Client::Networkd => {
                "n=$(cat /sys/class/net/eth0/ifindex)\ncat /run/systemd/netif/leases/$n /run/systemd/netif/links/$n"
            }
            Client::Ifupdown => "cat /var/lib/dhcp/dhclient.eth0.leases /var/lib/dhcp/dhclient6.eth0.leases",
        })
    }

    /// The MTU of `eth0`.
    #[track_caller]
    pub fn link_mtu(&self) -> u32 {
        self.number_in("/sys/class/net/eth0/mtu")
    }

    /// The MTU of the router advertisement: ifupdown leaves it to the kernel, which keeps it for the interface; networkd gives it
    /// to the routes that it makes.
    #[track_caller]
    pub fn advertised_mtu(&self) -> u32 {
        match self.client {
            Client::Ifupdown => self.number_in("/proc/sys/net/ipv6/conf/eth0/mtu"),
            Client::Networkd => {
                let routes = self.guest.run("ip -6 route show default");
                let mtu =
                    routes.split_once(" mtu ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
                mtu.unwrap_or_else(|| panic!("a default route without an MTU: {routes}"))
            }
        }
    }

    #[track_caller]
    fn number_in(&self, file: &str) -> u32 {
        let text = self.guest.run(&format!("cat {file}"));
        text.trim().parse().unwrap_or_else(|_| panic!("{file} holds '{text}'"))
    }

    /// Pings an address, and sends `bytes` random bytes by TCP to what sends them back there; fails the test unless all come.
    #[track_caller]
    pub fn talks_to(&self, address: &str, port: u16, bytes: u32) {
        self.guest.run(&format!("ping -n -c 3 -W 10 {address}"));
        self.guest.run(&format!(
            "head -c {bytes} /dev/urandom >/run/sent\ntimeout 45 bash -c 'exec 3<>/dev/tcp/{address}/{port}; cat /run/sent >&3 & \
             head -c {bytes} <&3 | cmp - /run/sent'"
        ));
    }
}

fn family(address: &str) -> &'static str {
    if address.contains(':') { "-6" } else { "-4" }
}

/// What to look at when something did not come.
const STATE: &str = "ip addr show dev eth0\nip route\nip -6 route\nsystemctl --no-pager --failed\n\
                     journalctl --no-pager -b -n 40 -u systemd-networkd -u networking\ndmesg | tail -n 15";
