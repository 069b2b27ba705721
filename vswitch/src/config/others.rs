//! What neither the config file nor the API made, such as vNICs of pods, and files: no file has it, and none changes it.
//!
//! A file that names such an object is refused where somebody reads it who can mend it, for the object would have two owners. What other
//! hosts say is never a reason not to start, since they may say anything at any time, nor is it one to refuse a file that says nothing new:
//! an object that the file named, that went, and that another host brought since, stays that host's; what the file says anew when the
//! switch starts is the file's. A file that is loaded leaves what others own where it is, and one that is written does not have it: whoever made it makes it again where it is wanted, and would
//! not know it as the file's.

use std::collections::HashSet;

use super::document::Document;
use super::error::{ConfigError, ConfigErrors};
use super::merge::Source;
use super::objects::{self, ObjectId};
use super::{Config, SecurityGroupConfig, VpcConfig, path, validate};
use crate::state::owners::{Owner, Owners};

/// A config without what is neither the file's nor the API's.
#[derive(Debug)]
pub struct Kept {
    pub config: Config,
    /// How many objects are left out, of each owner that has some.
    pub left_out: Vec<(Owner, usize)>,
}

/// Whose an object is that a file names and another host brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The other host's: the file says of it what it said before that.
    Theirs,
    /// The file's from now on.
    Files,
}

/// Objects that a file names and other hosts brought.
#[derive(Debug, Default)]
pub struct Overlap {
    /// Those that stay the other hosts'.
    pub stay: HashSet<ObjectId>,
    /// Those that are the file's from now on.
    passed: HashSet<ObjectId>,
}

impl Overlap {
    /// That of a file, which last said what `before` says, and of what neither it nor the API made.
    ///
    /// # Errors
    /// Each object of this host that the file names, with its place and with who made it: such a file is refused.
    pub fn of(file: &Source, before: Option<&Source>, owners: &Owners) -> Result<Self, ConfigErrors> {
        let named = owners.iter().filter(|((section, id), _)| file.names(section, id));
        let is_heard = |owner: Owner| matches!(owner, Owner::Etcd | Owner::Evpn);
        let (heard, collisions): (Vec<_>, Vec<_>) = named.partition(|(_, owner)| is_heard(*owner));
        let errors: Vec<ConfigError> = collisions
            .into_iter()
            .map(|((section, id), owner)| collision(file, section, id, owner))
            .collect();
        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        let heard: HashSet<ObjectId> = heard.into_iter().map(|(object, _)| object.clone()).collect();
        if heard.is_empty() {
            return Ok(Self::default());
        }
        // What cannot be written is news.
        let says = |file: &Source| objects::told(&file.config, &heard).unwrap_or_default();
        let (now, said) = (says(file), before.map(says).unwrap_or_default());
        let is_news = |object: &ObjectId| said.get(object).is_none_or(|said| now.get(object) != Some(said));
        let (passed, stay) = heard.into_iter().partition(is_news);
        Ok(Self { stay, passed })
    }

    /// Refuses a file that somebody reads who can mend it: what other hosts brought is not made the file's behind their backs.
    ///
    /// # Errors
    /// Each object that would be, with its place and with who made it.
    pub fn refuse_news(&self, file: &Source, owners: &Owners) -> Result<(), ConfigErrors> {
        let mut news: Vec<&ObjectId> = self.passed.iter().collect();
        news.sort();
        let error = |(section, id): &ObjectId| collision(file, section, id, owners.at_run_time(section, id));
        match news.is_empty() {
            true => Ok(()),
            false => Err(ConfigErrors(news.into_iter().map(error).collect())),
        }
    }

    /// Whose an object is, if it is one of these.
    pub fn whose(&self, section: &str, id: &str) -> Option<Whose> {
        if self.stay.is_empty() && self.passed.is_empty() {
            return None;
        }
        let object = (section.to_owned(), id.to_owned());
        match self.stay.contains(&object) {
            true => Some(Whose::Theirs),
            false => self.passed.contains(&object).then_some(Whose::Files),
        }
    }
}

/// An object has two owners: its place in the file, and who made it.
fn collision(file: &Source, section: &str, id: &str, owner: Owner) -> ConfigError {
    let message = format!(
        "{section} {id} was made at run time by {} (owner {owner}); take it out of the file, or have it taken away there first",
        owner.who()
    );
    ConfigError { origin: file.place_of(section, id), place: None, path: path::of(section, id), message }
}

/// What loading a file makes of a config that runs: what the file says, with what others own beside it. That goes through `yields`
/// before it is checked.
///
/// # Errors
/// What others own and the file names, too, or leaves without what it needs.
pub fn load(
    running: &Config,
    file: &Source,
    owners: &Owners,
    overlap: &Overlap,
    yields: impl FnOnce(&mut Config),
) -> Result<Config, ConfigErrors> {
    let mut loaded = file.config.clone();
    if owners.iter().next().is_none() {
        return Ok(loaded);
    }
    let is_others = |section: &str, id: &str| owners.is_others(section, id);
    let others = Others { owners, overlap };
    let mut errors = Vec::new();
    others.bring("uplink", &mut loaded.uplinks, &running.uplinks, |uplink| uplink.name.to_string());
    others.bring("subnet", &mut loaded.subnets, &running.subnets, objects::subnet_id);
    others.bring("trunk", &mut loaded.trunks, &running.trunks, |trunk| trunk.name.to_string());
    others.bring("location", &mut loaded.locations, &running.locations, objects::location_id);
    others.bring("port", &mut loaded.ports, &running.ports, |port| port.name.to_string());
    // The file names none of them.
    let vnics = running.vnics.iter().filter(|vnic| is_others("vnic", &vnic.name));
    loaded.vnics.extend(vnics.cloned());
    let mut homeless = |section: &str, id: &str, of: &str| {
        let message = format!(
            "{of} is not in the file, and has {section} {id} in it, which belongs to others (owner {}); put {of} into the file, \
             or have the {section} taken away there first",
            owners.at_run_time(section, id)
        );
        errors.push(ConfigError {
            origin: file.origin().to_owned(),
            place: None,
            path: path::of(section, id),
            message,
        });
    };
    for vpc in &running.vpcs {
        let id = |route: &_| objects::route_id(vpc, route);
        let mut routes = vpc.routes.clone();
        routes.retain(|route| is_others("route", &id(route)));
        match loaded.vpcs.iter_mut().find(|known| known.name == vpc.name) {
            Some(known) => {
                if overlap.whose("vpc", &vpc.name) == Some(Whose::Theirs) {
                    *known = VpcConfig { routes: std::mem::take(&mut known.routes), ..vpc.clone() };
                }
                others.bring("route", &mut known.routes, &routes, id);
            }
            None if is_others("vpc", &vpc.name) => loaded.vpcs.push(VpcConfig { routes, ..vpc.clone() }),
            None => {
                routes.iter().for_each(|route| homeless("route", &id(route), &format!("VPC {}", vpc.name)))
            }
        }
    }
    for group in &running.security_groups {
        let id = |rule: &_| objects::rule_id(group, rule);
        let mut rules = group.rules.clone();
        rules.retain(|rule| is_others("rule", &id(rule)));
        match loaded.security_groups.iter_mut().find(|known| known.name == group.name) {
            Some(known) => {
                if overlap.whose("security-group", &group.name) == Some(Whose::Theirs) {
                    let rules = std::mem::take(&mut known.rules);
                    *known = SecurityGroupConfig { rules, ..group.clone() };
                }
                others.bring("rule", &mut known.rules, &rules, id);
            }
            None if is_others("security-group", &group.name) => {
                loaded.security_groups.push(SecurityGroupConfig { rules, ..group.clone() });
            }
            None => rules
                .iter()
                .for_each(|rule| homeless("rule", &id(rule), &format!("security group {}", group.name))),
        }
    }
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    yields(&mut loaded);
    let theirs: HashSet<String> = owners.iter().map(|((section, id), _)| path::of(section, id)).collect();
    let document = Document::read(&file.text, file.origin())?;
    validate::all(&loaded, &document.places).map_err(|ConfigErrors(errors)| {
        let told = errors.into_iter().map(|mut error| {
            let object = error.path.split_inclusive(']').next().unwrap_or_default();
            let mut whose = "in the file";
            if theirs.contains(object) {
                whose = "made at run time by others, such as the CNI plugin, and theirs to take away";
                error.place = None;
            }
            error.message =
                format!("{} ({whose}; the file and what others made do not go together)", error.message);
            error
        });
        ConfigErrors(told.collect())
    })?;
    Ok(loaded)
}

/// What others own, and a file that is loaded.
struct Others<'o> {
    owners: &'o Owners,
    overlap: &'o Overlap,
}

impl Others<'_> {
    /// Brings the objects of others that run into a list of the file, each by what tells it from others there.
    fn bring<T: Clone>(&self, section: &str, list: &mut Vec<T>, running: &[T], id: impl Fn(&T) -> String) {
        for object in running {
            let own = id(object);
            if !self.owners.is_others(section, &own) {
                continue;
            }
            match self.overlap.whose(section, &own) {
                None => list.push(object.clone()),
                Some(Whose::Files) => {}
                Some(Whose::Theirs) => {
                    let known = list.iter_mut().find(|known| id(known) == own);
                    known.into_iter().for_each(|known| known.clone_from(object));
                }
            }
        }
    }
}

/// What of a config a file is to have.
///
/// # Errors
/// What the file's or the API's objects need of others, without which the file would not be valid.
pub fn leave_out(running: Config, owners: &Owners) -> Result<Kept, ConfigErrors> {
    let mut config = running;
    let left_out = owners.count();
    if left_out.is_empty() {
        return Ok(Kept { config, left_out });
    }
    let keeps = |section: &str, id: &str| !owners.is_others(section, id);
    config.uplinks.retain(|uplink| keeps("uplink", &uplink.name));
    config.vpcs.retain(|vpc| keeps("vpc", &vpc.name));
    for vpc in &mut config.vpcs {
        let routes = std::mem::take(&mut vpc.routes);
        let kept = routes.into_iter().filter(|route| keeps("route", &objects::route_id(vpc, route)));
        vpc.routes = kept.collect();
    }
    config.subnets.retain(|subnet| keeps("subnet", &objects::subnet_id(subnet)));
    config.security_groups.retain(|group| keeps("security-group", &group.name));
    for group in &mut config.security_groups {
        let rules = std::mem::take(&mut group.rules);
        let kept = rules.into_iter().filter(|rule| keeps("rule", &objects::rule_id(group, rule)));
        group.rules = kept.collect();
    }
    config.trunks.retain(|trunk| keeps("trunk", &trunk.name));
    config.locations.retain(|location| keeps("location", &objects::location_id(location)));
    config.ports.retain(|port| keeps("port", &port.name));
    // What leads to a vNIC that the file will not have leads to its MAC address, as when it goes.
    let (stay, go): (Vec<_>, Vec<_>) =
        std::mem::take(&mut config.vnics).into_iter().partition(|vnic| keeps("vnic", &vnic.name));
    config.vnics = stay.into_iter().collect();
    go.iter().for_each(|vnic| config.lead_to_station(vnic));
    config.validate().map_err(|ConfigErrors(errors)| {
        let told = errors.into_iter().map(|mut error| {
            error.message = format!(
                "{} (a file does not have what others own, and this needs something of them: make that anew as the API's, \
                 or remove what needs it)",
                error.message
            );
            error
        });
        ConfigErrors(told.collect())
    })?;
    Ok(Kept { config, left_out })
}

impl Kept {
    /// What is left out, in words: "3 of owner cni".
    pub fn words(&self) -> Option<String> {
        let of = self.left_out.iter().map(|(owner, count)| format!("{count} of owner {owner}"));
        let words = of.collect::<Vec<_>>().join(", ");
        (!words.is_empty()).then_some(words)
    }
}

impl Owners {
    /// True for an object that is neither the file's nor the API's.
    fn is_others(&self, section: &str, id: &str) -> bool {
        self.at_run_time(section, id) != Owner::Api
    }

    /// How many objects each of the others has, who have some.
    fn count(&self) -> Vec<(Owner, usize)> {
        let of = |owner: Owner| (owner, self.iter().filter(|(_, of)| *of == owner).count());
        Owner::ALL.map(of).into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n\
        [[vpc]]\nname = \"red\"\nvni = 1\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n\
        [[trunk]]\nname = \"t\"\nport = { kind = \"null\" }\n";

    fn source(text: &str) -> Source {
        Source::parse(text, "f.toml").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    }

    fn vnic(name: &str, n: u8) -> String {
        format!(
            "[[vnic]]\nname = \"{name}\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:{n:02x}\"\nvips = [\"10.0.0.{n}\"]\n\
             port = \"t\"\nvlan = {n}\n"
        )
    }

    /// A config with something of the API and something of others in each list that may have it.
    fn running() -> (Config, Owners) {
        let route = |to: &str, target: &str| format!("{{ to = \"{to}\", {target} }}");
        let routes = [
            route("10.9.0.0/16", "blackhole = true"),
            route("10.8.0.0/16", "blackhole = true"),
            route("169.254.169.254/32", "vnic = \"pod\""),
        ];
        let rule = |port: u16| format!("{{ direction = \"in\", protocol = \"tcp\", ports = \"{port}\" }}");
        let red = format!("vni = 1\nroutes = [{}]\n", routes.join(", "));
        let more = [
            vnic("vm", 2),
            vnic("pod", 3),
            format!(
                "[[security-group]]\nname = \"web\"\nvpc = \"red\"\nrules = [{}, {}]\n",
                rule(80),
                rule(443)
            ),
            "[[vpc]]\nname = \"far\"\nvni = 7\n[[subnet]]\nvpc = \"far\"\nprefix = \"10.7.0.0/24\"\n".into(),
            "[[location]]\nvni = 7\nvip = \"10.7.0.9\"\nmac = \"02:00:00:00:07:09\"\nvtep = \"172.16.0.2\"\n"
                .into(),
            "[[location]]\nvni = 1\nvip = \"10.0.0.9\"\nmac = \"02:00:00:00:01:09\"\nvtep = \"172.16.0.2\"\n"
                .into(),
            "[[port]]\nname = \"spare\"\nport = { kind = \"ring\" }\n".into(),
        ];
        let config = source(&format!("{}{}", FILE.replace("vni = 1\n", &red), more.concat())).config;
        let rule = objects::rule_id(&config.security_groups[0], &config.security_groups[0].rules[1]);
        let mut owners = Owners::default();
        for (section, id, owner) in [
            ("vnic", "pod", Owner::Cni),
            ("route", "red 10.8.0.0/16", Owner::Evpn),
            ("rule", &rule, Owner::Etcd),
            ("vpc", "far", Owner::Etcd),
            ("subnet", "far 10.7.0.0/24", Owner::Etcd),
            ("location", "7 10.7.0.9", Owner::Etcd),
        ] {
            owners.set((section.into(), id.into()), owner);
        }
        (config, owners)
    }

    /// A file that is loaded for the first time.
    fn loaded(running: &Config, file: &Source, owners: &Owners) -> Result<Config, ConfigErrors> {
        load(running, file, owners, &Overlap::of(file, None, owners)?, |_| ())
    }

    #[test]
    fn ownership_of_others_is_left_out_of_a_file_and_stays_where_it_is_loaded() {
        let (config, owners) = running();
        let kept = leave_out(config.clone(), &owners).unwrap();
        assert_eq!(kept.words().as_deref(), Some("4 of owner etcd, 1 of owner evpn, 1 of owner cni"));
        let file = source(&kept.config.to_toml().unwrap());
        assert_eq!(file.config, kept.config);
        assert!(Overlap::of(&file, None, &owners).unwrap().stay.is_empty());
        for (section, id) in objects::ids(&file.config) {
            assert_eq!(owners.at_run_time(&section, &id), Owner::Api, "{section} {id}");
        }
        let names =
            |config: &Config| config.vnics.iter().map(|vnic| vnic.name.to_string()).collect::<Vec<_>>();
        assert_eq!(
            (names(&file.config), file.config.vpcs.len(), file.config.locations.len()),
            (vec!["vm".into()], 1, 1)
        );
        let target = file.config.vpcs[0].routes[1].target.clone();
        assert_eq!(target, crate::config::RouteTargetConfig::Station { mac: config.vnics[1].mac });
        // Loaded again, everything is there; the route leads to the same station.
        let mut expected = config.clone();
        expected.lead_to_station(&config.vnics[1]);
        let mut after = loaded(&config, &file, &owners).unwrap();
        after.vpcs[0].routes.sort_by_key(|route| route.to);
        expected.vpcs[0].routes.sort_by_key(|route| route.to);
        after.locations.sort_by_key(|location| location.vip);
        expected.locations.sort_by_key(|location| location.vip);
        assert_eq!(after, expected);
        // What the API made goes with a file that does not have it.
        let bare = loaded(&config, &source(FILE), &owners);
        let error = bare.unwrap_err().to_string();
        assert!(
            error.contains("security group web is not in the file") && error.contains("owner etcd"),
            "{error}"
        );
        let group = "[[security-group]]\nname = \"web\"\nvpc = \"red\"\n";
        let bare = loaded(&config, &source(&format!("{FILE}{group}")), &owners).unwrap();
        assert_eq!((names(&bare), bare.ports.len(), bare.vpcs.len()), (vec!["pod".into()], 0, 2));
        assert_eq!((bare.vpcs[0].routes.len(), bare.security_groups[0].rules.len()), (1, 1));
    }

    #[test]
    fn ownership_of_others_and_a_file_that_do_not_go_together_are_told() {
        let (config, owners) = running();
        let group = "[[security-group]]\nname = \"web\"\nvpc = \"red\"\n";
        for (text, words) in [
            // Named by the file, too.
            (format!("{FILE}{group}{}", vnic("pod", 3)), vec!["f.toml:", "vnic pod", "owner cni"]),
            // Its VPC is gone; its trunk; its address is somebody else's.
            (FILE.replace("red", "green"), vec!["VPC red is not in the file", "10.8.0.0/16", "owner evpn"]),
            (
                format!("{FILE}{group}").replace("name = \"t\"", "name = \"u\""),
                vec!["vnic pod", "no trunk \"t\"", "made at run time by others"],
            ),
            (
                format!("{FILE}{group}{}", vnic("mine", 3)),
                vec!["VIP 10.0.0.3", "vnic mine", "made at run time by others"],
            ),
        ] {
            let error = loaded(&config, &source(&text), &owners).unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{word:?} is not in: {error}");
            }
        }
        // The API's vNIC on somebody else's network: a file without that would be none.
        let mut owners = owners;
        owners.set(("vpc".into(), "red".into()), Owner::Etcd);
        let error = leave_out(config, &owners).unwrap_err().to_string();
        assert!(error.contains("vnic vm") && error.contains("others own"), "{error}");
    }

    #[test]
    fn ownership_without_others_changes_nothing() {
        let (config, _) = running();
        let kept = leave_out(config.clone(), &Owners::default()).unwrap();
        assert_eq!((&kept.config, kept.words()), (&config, None));
        assert_eq!(loaded(&config, &source(FILE), &Owners::default()).unwrap(), source(FILE).config);
    }
}
