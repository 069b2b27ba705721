//! Single changes, as the console and the API make them: each is a small edit of the running config, checked and
//! applied whole. Locations, of which there may be many, change the topology directly.

use std::net::IpAddr;

use wire::{Qpn, Vni};

use super::{Missing, Switch, SwitchError};
use crate::config::merge::{Occasion, Source, merge};
use crate::config::{
    Config, LocationConfig, PortConfig, SubnetConfig, TrunkConfig, UplinkConfig, VnicConfig, VnicPort,
    VpcConfig,
};

impl Switch {
    /// Changes the config by a function and goes over to the result.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was.
    pub fn edit(
        &mut self,
        change: impl FnOnce(&mut Config) -> Result<(), SwitchError>,
    ) -> Result<(), SwitchError> {
        let mut config = self.config();
        change(&mut config)?;
        self.go_over(config, Missing::Refused)
    }

    /// Goes over to the config of a file, whole: what was made at run time goes.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn load_file(&mut self, file: Source) -> Result<(), SwitchError> {
        self.apply(file.config.clone(), Missing::Awaited)?;
        self.file = Some(file);
        self.save_state()
    }

    /// Applies a config file again: what it names is as it says, what was made at run time stays.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    pub fn reload_file(&mut self, file: Source) -> Result<(), SwitchError> {
        let config = merge(&self.config(), self.file.as_ref(), &file, Occasion::Reload)?;
        self.apply(config, Missing::Awaited)?;
        self.file = Some(file);
        self.save_state()
    }

    /// Goes over to another config, as [`apply`](Self::apply), and saves it where changes are saved.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was, unless it is [`SwitchError::NotSaved`].
    fn go_over(&mut self, config: Config, missing: Missing) -> Result<(), SwitchError> {
        self.apply(config, missing)?;
        self.save_state()
    }

    /// Adds a plain port.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_port(&mut self, port: PortConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.ports.push(port);
            Ok(())
        })
    }

    /// Adds a trunk port.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_trunk(&mut self, trunk: TrunkConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.trunks.push(trunk);
            Ok(())
        })
    }

    /// Adds an uplink.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_uplink(&mut self, uplink: UplinkConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.uplinks.push(uplink);
            Ok(())
        })
    }

    /// Removes a port of any role by name: plain port, trunk without vNICs, vNIC, uplink.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_port(&mut self, name: &str) -> Result<(), SwitchError> {
        let unknown = SwitchError::Unknown { what: "port", name: name.into(), list: "port list" };
        self.edit(|config| {
            let punting = |uplink: &&UplinkConfig| crate::topology::punt_name(&uplink.name) == name;
            if let Some(uplink) = config.uplinks.iter().find(punting) {
                let by = format!("uplink {} (host = \"punt\")", uplink.name);
                return Err(SwitchError::InUse { what: "port", name: name.into(), by });
            }
            let user = config
                .vnics
                .iter()
                .find(|vnic| matches!(&vnic.port, VnicPort::Trunk(trunk) if trunk.as_str() == name));
            if let Some(vnic) = user {
                let by = format!("vNIC {}", vnic.name);
                return Err(SwitchError::InUse { what: "trunk", name: name.into(), by });
            }
            let count = |config: &Config| {
                config.ports.len() + config.trunks.len() + config.vnics.len() + config.uplinks.len()
            };
            let before = count(config);
            config.ports.retain(|port| port.name.as_str() != name);
            config.trunks.retain(|trunk| trunk.name.as_str() != name);
            config.vnics.retain(|vnic| vnic.name.as_str() != name);
            config.uplinks.retain(|uplink| uplink.name.as_str() != name);
            if count(config) == before { Err(unknown) } else { Ok(()) }
        })
    }

    /// Adds a vNIC.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_vnic(&mut self, vnic: VnicConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            if config.vnics.iter().any(|other| other.name == vnic.name) {
                return Err(SwitchError::Duplicate { what: "vNIC", name: vnic.name.to_string() });
            }
            config.vnics.push(vnic);
            Ok(())
        })
    }

    /// Removes a vNIC.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_vnic(&mut self, name: &str) -> Result<(), SwitchError> {
        let unknown = SwitchError::Unknown { what: "vNIC", name: name.into(), list: "show vnic" };
        self.edit(|config| {
            let before = config.vnics.len();
            config.vnics.retain(|vnic| vnic.name.as_str() != name);
            if config.vnics.len() == before { Err(unknown) } else { Ok(()) }
        })
    }

    /// Adds a VPC.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_vpc(&mut self, vpc: VpcConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.vpcs.push(vpc);
            Ok(())
        })
    }

    /// Removes a VPC that has no vNICs, with its subnets and locations.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_vpc(&mut self, name: &str) -> Result<(), SwitchError> {
        let unknown = SwitchError::Unknown { what: "VPC", name: name.into(), list: "show vpc" };
        self.edit(|config| {
            let Some(vpc) = config.vpcs.iter().find(|vpc| vpc.name.as_str() == name) else {
                return Err(unknown);
            };
            if let Some(vnic) = config.vnics.iter().find(|vnic| vnic.vpc.as_str() == name) {
                let by = format!("vNIC {}", vnic.name);
                return Err(SwitchError::InUse { what: "VPC", name: name.into(), by });
            }
            let vni = vpc.vni;
            config.locations.retain(|location| location.vni != vni);
            config.subnets.retain(|subnet| subnet.vpc.as_str() != name);
            config.vpcs.retain(|vpc| vpc.name.as_str() != name);
            Ok(())
        })
    }

    /// Adds a subnet.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn add_subnet(&mut self, subnet: SubnetConfig) -> Result<(), SwitchError> {
        self.edit(|config| {
            config.subnets.push(subnet);
            Ok(())
        })
    }

    /// Removes a subnet.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_subnet(&mut self, vpc: &str, prefix: ipnet::IpNet) -> Result<(), SwitchError> {
        let name = format!("{prefix} of VPC {vpc}");
        self.edit(|config| {
            let before = config.subnets.len();
            config.subnets.retain(|subnet| subnet.vpc.as_str() != vpc || subnet.prefix != prefix);
            if config.subnets.len() == before {
                return Err(SwitchError::Unknown { what: "subnet", name, list: "show vpc" });
            }
            Ok(())
        })
    }

    /// Places a destination behind a VTEP, or moves it there.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn set_location(&mut self, location: &LocationConfig) -> Result<(), SwitchError> {
        self.topology.set_location(&self.config, location, &self.neighbours)?;
        self.publish_locations()
    }

    /// Removes a destination.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn remove_location(&mut self, vni: Vni, vip: IpAddr) -> Result<(), SwitchError> {
        if !self.topology.remove_location(&self.config, vni, vip, &self.neighbours)? {
            let name = format!("{vni} {vip}");
            return Err(SwitchError::Unknown { what: "location", name, list: "show vlt" });
        }
        self.publish_locations()
    }

    fn publish_locations(&mut self) -> Result<(), SwitchError> {
        let before = self.snapshot().clone();
        let snapshot = self.topology.commit();
        self.hand_out(&before, &snapshot)?;
        self.save_state()
    }

    /// Takes the place of a queue pair back. `false` when it has none.
    pub fn evict(&mut self, vnic: u32, peer: IpAddr, qpn: Qpn) -> bool {
        self.rcft.evict(vnic, peer, qpn)
    }

    /// Takes the places of all queue pairs of a vNIC back; how many there are.
    pub fn evict_all(&mut self, vnic: u32) -> u32 {
        self.rcft.evict_all(vnic, self.topology.snapshot(), self.pool.now(), &mut self.events)
    }

    /// Polls a port again that `port stop` stopped.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn start_port(&mut self, name: &str) -> Result<(), SwitchError> {
        let index = self.ports.resolve(name)?;
        if self.ports.get(index).is_some_and(|port| port.running) {
            return Err(super::ports::PortsError::AlreadySo(name.into(), "started").into());
        }
        Ok(self.ports.poll(&self.pool, index)?)
    }

    /// Stops polling a port.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn stop_port(&mut self, name: &str) -> Result<(), SwitchError> {
        let index = self.ports.resolve(name)?;
        if self.ports.get(index).is_some_and(|port| !port.running) {
            return Err(super::ports::PortsError::AlreadySo(name.into(), "stopped").into());
        }
        Ok(self.ports.park(&self.pool, index)?)
    }

    /// Writes the running config to a file: written beside it, synced, renamed.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn save(&self, path: &std::path::Path) -> Result<(), SwitchError> {
        let text = self.config().to_toml()?;
        write_whole(path, &text)
            .map_err(|source| SwitchError::File { path: path.display().to_string(), source })
    }

    fn save_state(&self) -> Result<(), SwitchError> {
        let Some(path) = self.saved.as_deref() else { return Ok(()) };
        let save = || -> Result<(), SwitchError> {
            let mut text = self.config().to_toml()?;
            text.extend(self.file.as_ref().map(Source::keep));
            write_whole(path, &text)
                .map_err(|source| SwitchError::File { path: path.display().to_string(), source })
        };
        save().map_err(|error| SwitchError::NotSaved(Box::new(error)))
    }
}

/// A number that nobody can guess: the standard library's randomly keyed hasher.
fn unpredictable() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::Instant::now())
}

/// Replaces a file by a new one that only its owner reads; after a crash it is either the old or the new one.
pub(super) fn write_whole(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{:016x}.new", unpredictable()));
    let temporary = std::path::PathBuf::from(temporary);
    // Exclusively: neither a file nor a link that somebody put there is written through.
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let result = (|| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        std::fs::File::open(folder.unwrap_or(std::path::Path::new(".")))?.sync_all()
    })();
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn repair_files_are_their_owners_alone_and_follow_no_link() {
        let folder = std::env::temp_dir().join(format!("vswitch-whole-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, precious) = (folder.join("state"), folder.join("precious"));
        std::fs::write(&precious, "precious").unwrap();
        // A file that is there already, open to all; and the name that could be guessed before, as a link.
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        symlink(&precious, folder.join(format!("state.{}.new", std::process::id()))).unwrap();
        write_whole(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        // A link in the file's own place is replaced, not followed.
        std::fs::remove_file(&path).unwrap();
        symlink(&precious, &path).unwrap();
        write_whole(&path, "newer").unwrap();
        assert!(!std::fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3, "nothing else is left");
        assert!(write_whole(&folder.join("no/such/folder"), "x").is_err());
        assert_ne!(unpredictable(), unpredictable());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
