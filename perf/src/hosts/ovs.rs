//! Open vSwitch between containers: its userspace datapath, with the hosts' ends of the veths as `system` ports.

use std::path::Path;

use super::network::{PORTS, Place, UPLINK};
use crate::Result;
use crate::host::ovs::{INTEGRATION, OpenVswitch, OvsSetup, TunnelEnds, UNDERLAY};
use crate::host::process::Placement;
use crate::host::{cores::Cores, scratch};
use crate::live::testbed::{VNI, vtep};

/// Of one, in MiB. Frames of `system` ports are in ordinary memory.
pub const MEMORY: u64 = 64;
/// The tunnel's number in OpenFlow, and that of the underlay's port on its own bridge.
const TUNNEL: u32 = 3;
const OUTSIDE: u32 = 1;

/// Segments that the containers leave to their device go whole from one to the other with `userspace-tso-enable`. OVS 3.1 drops
/// them before a tunnel, which is why hosts with a tunnel are without.
pub fn start(place: &Place<'_>, cores: Cores, folder: &Path) -> Result<OpenVswitch> {
    let whole = place.far.is_none();
    let ovs = OpenVswitch::start(&OvsSetup {
        folder,
        prefix: &scratch::file_prefix(usize::from(place.number)),
        placement: Placement { netns: Some(place.host.name()), cores: Some(cores), ..Placement::default() },
        eal: "--no-pci",
        memory: MEMORY,
        settings: &[format!("userspace-tso-enable={whole}")],
    })?;
    ovs.add_bridge(INTEGRATION)?;
    for &container in &place.local {
        ovs.add_port(INTEGRATION, PORTS[usize::from(container - 1)], container.into(), &[])?;
    }
    let both_ways = |bridge, one: &str, other: &str| {
        [(one, other), (other, one)].into_iter().try_for_each(|(from, to)| {
            ovs.control.flow(bridge, &format!("in_port={from},actions=output:{to}"))
        })
    };
    let Some(far) = place.far else {
        both_ways(INTEGRATION, "1", "2")?;
        return Ok(ovs);
    };
    ovs.add_tunnel(&TunnelEnds { own: vtep(place.number), far: vtep(far), vni: VNI }, TUNNEL)?;
    ovs.add_port(UNDERLAY, UPLINK, OUTSIDE, &[])?;
    both_ways(INTEGRATION, &place.number.to_string(), &TUNNEL.to_string())?;
    both_ways(UNDERLAY, &OUTSIDE.to_string(), "LOCAL")?;
    Ok(ovs)
}
