//! [`SocketAccess`]: who may connect to a socket that a port makes. A virtual machine monitor rarely runs as the user of the switch.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use nix::unistd::{Group, User};

use super::error::OpenError;
use crate::config::port_spec::VhostUserPort;

/// What a socket is given once it is there. Until then only the user of the switch may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    path: PathBuf,
    /// Numbers of a user and of a group.
    owner: Option<u32>,
    group: Option<u32>,
    /// Permission bits.
    mode: Option<u32>,
}

impl SocketAccess {
    /// What a port's spec asks for, if anything.
    pub(super) fn of(spec: &VhostUserPort) -> Result<Option<Self>, OpenError> {
        let owner = spec.owner.as_deref().map(|name| id("user", name, user)).transpose()?;
        let group = spec.group.as_deref().map(|name| id("group", name, group)).transpose()?;
        // Checked with the config.
        let mode = spec.mode.as_deref().and_then(|digits| u32::from_str_radix(digits, 8).ok());
        let asks = owner.is_some() || group.is_some() || mode.is_some();
        Ok(asks.then(|| Self { path: spec.path.clone(), owner, group, mode }))
    }

    /// Gives the socket what was asked for.
    ///
    /// # Errors
    /// [`OpenError::Access`]: without CAP_CHOWN a socket cannot be given away.
    pub fn apply(&self) -> Result<(), OpenError> {
        let refused = |operation, source| OpenError::Access { path: self.path.clone(), operation, source };
        // The mode last: as long as the owner is the old one, nobody else gets in by it.
        if self.owner.is_some() || self.group.is_some() {
            chown(&self.path, self.owner, self.group)
                .map_err(|source| refused("change its owner", source))?;
        }
        if let Some(mode) = self.mode {
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(&self.path, permissions)
                .map_err(|source| refused("change its mode", source))?;
        }
        Ok(())
    }
}

/// A number as it is, a name as the system knows it.
fn id(
    what: &'static str,
    name: &str,
    find: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, OpenError> {
    let found = name.parse().ok().or_else(|| find(name).ok().flatten());
    found.ok_or_else(|| OpenError::NoAccount { what, name: name.into() })
}

fn user(name: &str) -> nix::Result<Option<u32>> {
    Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
}

fn group(name: &str) -> nix::Result<Option<u32>> {
    Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
}
