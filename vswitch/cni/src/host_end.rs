//! The end of a veth at the switch: the host's own IP stack hears what a pod sends there, and is to take none of it.

use std::{fs, io};

/// What is set, before the first packet comes.
const SETTINGS: [(&str, &str); 6] = [
    // No neighbour discovery tells the pod where the host is, and no IPv6 of it is taken.
    ("ipv6/conf/{}/disable_ipv6", "1"),
    // Nothing is routed that came by it.
    ("ipv4/conf/{}/forwarding", "0"),
    // Nothing is taken from an address that is not reached by it, and none is.
    ("ipv4/conf/{}/rp_filter", "1"),
    // No packet for one station is taken out of a frame for all of them.
    ("ipv4/conf/{}/drop_unicast_in_l2_multicast", "1"),
    ("ipv4/conf/{}/accept_redirects", "0"),
    // Beside the flag NOARP.
    ("ipv4/conf/{}/arp_ignore", "8"),
];

/// Shuts the host's IP stack off from an interface of the namespace of this thread.
///
/// # Errors
/// When the kernel has a setting and does not take it.
pub fn shut_off(interface: &str) -> io::Result<()> {
    for (setting, value) in SETTINGS {
        let path = format!("/proc/sys/net/{}", setting.replace("{}", interface));
        match fs::write(path, value) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && setting.starts_with("ipv6") => {}
            other => other?,
        }
    }
    Ok(())
}
