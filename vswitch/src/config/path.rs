//! Paths of values for people and programs that have no text in front of them: an object of a list is told by what tells it from the
//! others, `vnic[name=vm1].vips[0]`, not by its place in a list that they may never have seen.

use super::Config;
use super::merge::LISTS;
use super::objects::{location_id, subnet_id};

/// The path of an object: its section, or `route` or `rule`, and what tells it from the others there.
pub fn of(section: &str, id: &str) -> String {
    let outer = |list: &str, inner: &str, key: &str| {
        let (name, rest) = id.split_once(' ').unwrap_or((id, ""));
        format!("{list}[name={name}].{inner}[{key}{rest}]")
    };
    match section {
        "route" => return outer("vpc", "routes", "to="),
        "rule" => return outer("security-group", "rules", ""),
        _ => {}
    }
    let Some((_, keys)) = LISTS.iter().find(|(list, _)| *list == section) else { return section.to_owned() };
    let values = id.splitn(keys.len(), ' ');
    let told: Vec<String> = keys.iter().zip(values).map(|(key, value)| format!("{key}={value}")).collect();
    format!("{section}[{}]", told.join(","))
}

/// A path such as `vnic[3].vips[0]` with what tells the object in place of its number. Any other path is as it was.
pub fn named(config: &Config, path: &str) -> String {
    let told = || {
        let (section, rest) = path.split_once('[')?;
        let (index, rest) = rest.split_once(']')?;
        let id = id_at(config, section, index.parse().ok()?)?;
        Some(format!("{}{rest}", of(section, &id)))
    };
    told().unwrap_or_else(|| path.to_owned())
}

fn id_at(config: &Config, section: &str, at: usize) -> Option<String> {
    Some(match section {
        "uplink" => config.uplinks.get(at)?.name.to_string(),
        "vpc" => config.vpcs.get(at)?.name.to_string(),
        "subnet" => subnet_id(config.subnets.get(at)?),
        "security-group" => config.security_groups.get(at)?.name.to_string(),
        "trunk" => config.trunks.get(at)?.name.to_string(),
        "vnic" => config.vnics.get(at)?.name.to_string(),
        "location" => location_id(config.locations.get(at)?),
        "port" => config.ports.get(at)?.name.to_string(),
        _ => return None,
    })
}

/// The same path with another word for each key. What is in brackets is no key.
pub fn map_keys(path: &str, word: impl Fn(&str) -> String) -> String {
    let mut mapped = String::new();
    let mut rest = path;
    while !rest.is_empty() {
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        mapped.push_str(&word(&rest[..end]));
        rest = &rest[end..];
        if rest.starts_with('[') {
            let end = rest.find(']').map_or(rest.len(), |end| end + 1);
            mapped.push_str(&rest[..end]);
            rest = &rest[end..];
        }
        if let Some(behind) = rest.strip_prefix('.') {
            mapped.push('.');
            rest = behind;
        }
    }
    mapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_told_by_what_tells_them_from_others() {
        let text = "[[vpc]]\nname = \"red\"\nvni = 1\n[[subnet]]\nvpc = \"red\"\nprefix = \"fd00::/64\"\n\
            [[vnic]]\nname = \"web-1.a\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:01\"\nvips = []\nport = { kind = \"null\" }\n";
        let config = Config::parse(text, "f").unwrap_or_else(|errors| panic!("{errors}"));
        for (path, told) in [
            ("vnic[0].vips[3]", "vnic[name=web-1.a].vips[3]"),
            ("vpc[0]", "vpc[name=red]"),
            ("subnet[0].prefix", "subnet[vpc=red,prefix=fd00::/64].prefix"),
            // There is none, or there is one only.
            ("vnic[1].mac", "vnic[1].mac"),
            ("location[vni=1,vip=10.0.0.1].vtep", "location[vni=1,vip=10.0.0.1].vtep"),
            ("workers.cores[0]", "workers.cores[0]"),
            ("eal.memory", "eal.memory"),
            ("", ""),
        ] {
            assert_eq!(named(&config, path), told);
        }
        assert_eq!(of("location", "7 fd00::1"), "location[vni=7,vip=fd00::1]");
        assert_eq!(of("route", "red 10.0.0.0/8"), "vpc[name=red].routes[to=10.0.0.0/8]");
        assert_eq!(of("rule", "web in tcp 80"), "security-group[name=web].rules[in tcp 80]");
        assert_eq!(of("qos", ""), "qos");
    }

    #[test]
    fn keys_are_mapped_and_names_are_not() {
        let upper = |path: &str| map_keys(path, str::to_uppercase);
        for (path, mapped) in [
            ("vnic[name=web-1.a].qos.in.ceil", "VNIC[name=web-1.a].QOS.IN.CEIL"),
            ("subnet[vpc=red,prefix=10.0.0.0/24]", "SUBNET[vpc=red,prefix=10.0.0.0/24]"),
            ("vnic[0].security-groups[1]", "VNIC[0].SECURITY-GROUPS[1]"),
            ("a[b", "A[b"),
            ("", ""),
        ] {
            assert_eq!(upper(path), mapped);
        }
    }
}
