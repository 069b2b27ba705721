//! ECN of tunnels in software, and in the e-switch by the rules that a NIC would get: RFC 6040 in whole, both families inside,
//! the underlays of which flows go into the e-switch outside.

use pipelines::ecn::EcnEncap;
use pipelines::offload::sim::Fate;
use rules::mlx5::Nic;
use wire::Ecn::{self, Ce, Ect0, Ect1, NotEct};
use wire::{HeapBuf, Vni};

use crate::host::*;
use crate::mixed::Mixed;
use testkit::*;

/// What decapsulation makes of the inner and the outer codepoint (RFC 6040, figure 4); `None` is a drop.
fn decapsulated(inner: Ecn, outer: Ecn) -> Option<Ecn> {
    match (inner, outer) {
        (NotEct, Ce) => None,
        (NotEct, _) => Some(NotEct),
        (Ect0, Ect1) => Some(Ect1),
        (Ect0 | Ect1, Ce) => Some(Ce),
        (inner, _) => Some(inner),
    }
}

/// What encapsulation writes outside (RFC 6040 section 4.1, in normal and in compatibility mode; RFC 3168 section 9.1).
fn encapsulated(mode: EcnEncap, inner: Ecn) -> Ecn {
    match (mode, inner) {
        (EcnEncap::Rfc6040, inner) => inner,
        (EcnEncap::Rfc6040Compat, _) => NotEct,
        (EcnEncap::Rfc3168, Ce) => Ect0,
        (EcnEncap::Rfc3168, inner) => inner,
    }
}

/// Over IPv6 the e-switch neither writes nor looks at UDP checksums: flows go into it where none are wanted.
fn underlays() -> impl Iterator<Item = Underlay> {
    UNDERLAYS.into_iter().filter(|underlay| !underlay.v6 || underlay.zero_checksum6)
}

/// A frame of the tenant with these ECN bits.
fn tenants(v6_inside: bool, from: Station, to: Station, ecn: Ecn) -> Vec<u8> {
    let path = if v6_inside { v6(from, to) } else { v4(from, to) };
    path.with_tos(ecn as u8).tcp(1000, 80, 0x10, b"data")
}

#[test]
fn ecn_decapsulation_is_that_of_rfc_6040_in_software_and_in_the_eswitch() {
    for underlay in underlays() {
        for v6_inside in [false, true] {
            let frame = |inner: Ecn, out: Ecn| {
                let tunnel = outer(2, 1, underlay).with_tos(out as u8);
                tunnel.vxlan(50_000, Vni::new(100).unwrap(), &tenants(v6_inside, R, A, inner))
            };
            let mut software = lab(1, underlay);
            let mut host = Host::new(lab(1, underlay));
            let key = host.flow(UPLINK, &frame(NotEct, NotEct));
            let mut mixed = Mixed::new(host, Nic::default());
            assert!(mixed.offload(whole(key)), "{underlay:?}");
            mixed.wait(100);
            for (inner, out) in Ecn::ALL.into_iter().flat_map(|inner| Ecn::ALL.map(|out| (inner, out))) {
                let case = format!("{underlay:?}, IPv6 inside: {v6_inside}, {inner:?} in {out:?}");
                let passed = decapsulated(inner, out).map(|ecn| (1, tenants(v6_inside, R, A, ecn)));
                let wanted = Vec::from_iter(passed);
                let frame = frame(inner, out);
                assert_eq!(software.run(UPLINK, vec![HeapBuf::new(&frame)]), wanted, "software: {case}");
                let (fate, seen) = mixed.pass(UPLINK, &frame);
                assert_eq!(seen, wanted, "e-switch: {case}");
                // Drops have a name, which software counts; ECT(1) outside may be told from ECT(0) there only.
                let hardware = out != Ect1 && !wanted.is_empty();
                assert_eq!(matches!(fate, Fate::Out { .. }), hardware, "{case}: {fate:?}");
            }
        }
    }
}

#[test]
fn ecn_encapsulation_is_that_of_each_mode_in_software_and_in_the_eswitch() {
    for mode in [EcnEncap::Rfc6040, EcnEncap::Rfc6040Compat, EcnEncap::Rfc3168] {
        for underlay in underlays() {
            for v6_inside in [false, true] {
                let world = || {
                    let mut world = lab(1, underlay);
                    world.snapshot.settings.ecn_encap = mode;
                    world
                };
                let (mut software, mut host) = (world(), Host::new(world()));
                let key = host.flow(1, &tenants(v6_inside, A, R, NotEct));
                let mut mixed = Mixed::new(host, Nic::default());
                assert!(mixed.offload(whole(key)), "{mode:?} {underlay:?}");
                mixed.wait(100);
                for inner in Ecn::ALL {
                    let case = format!("{mode:?}, {underlay:?}, IPv6 inside: {v6_inside}, {inner:?}");
                    let frame = tenants(v6_inside, A, R, inner);
                    let sent = software.run(1, vec![HeapBuf::new(&frame)]);
                    let [(UPLINK, tunnel)] = &sent[..] else { panic!("{case}: {sent:?}") };
                    let ip = if underlay.vlan.is_some() { 18 } else { 14 };
                    let tos = if underlay.v6 { tunnel[ip + 1] >> 4 } else { tunnel[ip + 1] };
                    assert_eq!(Ecn::from_tos(tos), encapsulated(mode, inner), "{case}");
                    assert!(tunnel.ends_with(&frame), "{case}: what is inside stays");
                    let (fate, seen) = mixed.pass(1, &frame);
                    assert_eq!(seen, sent, "e-switch: {case}");
                    assert!(matches!(fate, Fate::Out { .. }), "{case}: {fate:?}");
                }
            }
        }
    }
}
