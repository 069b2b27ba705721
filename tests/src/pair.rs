//! Two tenants with the same addresses, each with a partner behind the other host: what every interop scenario checks.
//!
//! The partner's side differs (the kernel's vxlan, another vswitch, OVS); the promises do not: pings of all sizes and whole
//! transfers both ways, and never a word between the tenants.

use crate::{Family, Netns, traffic};

/// The MAC addresses of the two tenants and of their partners.
pub const MACS: [&str; 4] =
    ["02:00:00:00:0a:01", "02:00:00:00:0b:01", "02:00:00:00:0a:02", "02:00:00:00:0b:02"];
/// The VNIs of the two tenants.
pub const VNIS: [u32; 2] = [100, 200];
/// The addresses of a tenant, the same in both VPCs.
pub const NEAR: [&str; 2] = ["10.0.0.1/24", "fd00:1::1/64"];
/// The addresses of a partner, the same in both VPCs.
pub const FAR: [&str; 2] = ["10.0.0.2/24", "fd00:1::2/64"];
/// Payload sizes of pings: small, just within the tenant's MTU, over it, and a jumbo that takes six fragments.
pub const PING_SIZES: [u32; 4] = [56, 1400, 1600, 8000];

/// The inner addresses of a family: the tenant's and its partner's.
pub fn addresses(inner: Family) -> [&'static str; 2] {
    match inner {
        Family::V4 => ["10.0.0.1", "10.0.0.2"],
        Family::V6 => ["fd00:1::1", "fd00:1::2"],
    }
}

/// Both pairs, red and blue, talk at once; each machine is (tenant, partner).
#[track_caller]
pub fn talk(inner: Family, pairs: [(&Netns, &Netns); 2]) {
    let [near, far] = addresses(inner);
    for (tenant, partner) in pairs {
        for size in PING_SIZES {
            traffic::ping(tenant, far, size, 3);
            traffic::ping(partner, near, size, 3);
        }
    }
    for (tenant, partner) in pairs {
        traffic::transfer(tenant, partner, far, 60_000);
        traffic::transfer(partner, tenant, near, 60_000);
    }
}
