//! What a switch that runs says of its device.

use pipelines::offload::sim::{Eswitch, EswitchConfig};
use serde_json::{Value, json};

use super::tree::{PCI, Tree, finding};
use crate::capabilities;
use crate::nic_check::FindingState;
use crate::nic_check::probe::{Probed, probe_by};

/// The ports of a switch: the device, and a representor on it.
fn ports() -> Value {
    json!([
        { "id": 4, "kind": "representor", "device": PCI },
        { "id": 7, "kind": "pci", "device": PCI, "rss-types": ["ipv4", "ipv4-udp"] },
    ])
}

/// Probes a switch whose port 7 is a device like this.
fn probed(config: EswitchConfig) -> Probed {
    let report = capabilities::probe(&mut Eswitch::new(config), 7, 8).unwrap();
    let port = json!({
        "features": capabilities::json(&report.features), "chains": capabilities::json(&report.chains),
    });
    let mut asked = Vec::new();
    let probed = probe_by(PCI, &mut |line| {
        asked.push(line.to_owned());
        Ok(if line.starts_with("show port") { ports() } else { json!({ "ports": [port] }) })
    });
    assert_eq!(asked, ["show port info all", "show offload capabilities 7"]);
    probed.unwrap()
}

#[test]
fn chains_are_told_as_the_device_answers() {
    let mut tree = Tree::fine();
    let all = tree.probed(&Ok(probed(EswitchConfig::default())));
    assert_eq!(
        (finding(&all, "chain tcp-encap").state, all.status()),
        (FindingState::Fine, 0),
        "{}",
        all.text()
    );
    let rss = &finding(&all, "queues, RSS").value;
    assert!(rss.ends_with("DPDK can hash ipv4 ipv4-udp"), "{rss}");
    let some = tree.probed(&Ok(probed(EswitchConfig { ib_bth: false, ..EswitchConfig::default() })));
    let refused = finding(&some, "chain rc-encap");
    assert!(refused.value.contains("this device does not match ib_bth"), "{refused:?}");
    assert_eq!(some.findings.len(), all.findings.len());
    tree.eswitch("legacy");
    assert_eq!(tree.probed(&Err("no switch".into())).status(), 1);
}

#[test]
fn a_switch_that_is_not_there_or_not_of_the_device_is_told() {
    let tree = Tree::fine();
    let gone = super::super::probe::probe(&tree.root.join("none.sock"), PCI);
    assert!(gone.as_ref().unwrap_err().contains("none.sock"), "{gone:?}");
    let report = tree.probed(&gone);
    assert_eq!((finding(&report, "chains").state, report.status()), (FindingState::Unknown, 2));
    let command = finding(&report, "chains").command.as_deref();
    assert_eq!(command, Some("vswitch nic check 0000:3b:00.0 --probe"));
    for answer in [json!([]), json!(null), json!({}), json!([{ "kind": "pci" }]), json!([7])] {
        let error = probe_by(PCI, &mut |_| Ok(answer.clone())).unwrap_err();
        assert!(error.contains("has no port on 0000:3b:00.0"), "{error}");
    }
    for answer in [json!(null), json!({ "ports": 7 }), json!({ "ports": [{ "chains": [7, {}] }] })] {
        let mut ask = |line: &str| Ok(if line.starts_with("show port") { ports() } else { answer.clone() });
        assert!(probe_by(PCI, &mut ask).unwrap_err().contains("another version"));
    }
}
