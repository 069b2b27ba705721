//! Checks that names are unique: those of ports in one space, those of VPCs in another.

use std::collections::HashMap;

use super::Checker;

pub(super) fn check(checker: &mut Checker<'_>) {
    let config = checker.config;
    let uplinks = config.uplinks.iter().map(|x| &x.name).enumerate().map(|(i, n)| ("uplink", i, n));
    let trunks = config.trunks.iter().map(|x| &x.name).enumerate().map(|(i, n)| ("trunk", i, n));
    let vnics = config.vnics.iter().map(|x| &x.name).enumerate().map(|(i, n)| ("vnic", i, n));
    let ports = config.ports.iter().map(|x| &x.name).enumerate().map(|(i, n)| ("port", i, n));
    let mut taken = HashMap::new();
    for (section, index, name) in uplinks.chain(trunks).chain(vnics).chain(ports) {
        let path = format!("{section}[{index}].name");
        let Some((other, place)) = taken.insert(name.clone(), (section, path.clone())) else { continue };
        let message = format!(
            "{section} {name}: the name is taken by another {other}{}; uplinks, trunks, vNICs and ports share \
             one name space, so choose another name",
            checker.line(&place)
        );
        checker.fail(path, message);
    }

    let mut taken = HashMap::new();
    let mut numbers = HashMap::new();
    for (index, vpc) in config.vpcs.iter().enumerate() {
        if let Some(other) = taken.insert(&vpc.name, index) {
            let line = checker.line(&format!("vpc[{other}].name"));
            let message = format!("vpc {}: another VPC{line} has this name; choose another", vpc.name);
            checker.fail(format!("vpc[{index}].name"), message);
        }
        if let Some(other) = numbers.insert(vpc.vni, index) {
            let message = format!(
                "vpc {}: VNI {} is that of VPC {}{}; each VPC has its own, so choose another",
                vpc.name,
                vpc.vni,
                config.vpcs[other].name,
                checker.line(&format!("vpc[{other}].vni"))
            );
            checker.fail(format!("vpc[{index}].vni"), message);
        }
    }
}
