//! [`Interface`]: a kernel interface that a port is on. It stays the port's whatever it is called from then on, as it does for the
//! port's sockets; and another one that gets its name does not become the port's.

use std::io;

use super::error::OpenError;

/// A kernel interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    name: String,
    /// Which no later interface gets.
    index: u32,
}

impl Interface {
    /// The one that has this name now.
    ///
    /// # Errors
    /// There is none in this network namespace; the error names those that have one.
    pub(super) fn named(name: &str) -> Result<Self, OpenError> {
        pmd::interface::index(name).map(|index| Self { name: name.to_owned(), index }).map_err(|_| {
            OpenError::NoInterface {
                iface: name.into(),
                namespaces: pmd::interface::named_namespaces_with(name),
            }
        })
    }

    /// What it was called when the port was opened, in the config too.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// What it is called now.
    ///
    /// # Errors
    /// `ENODEV`: it is gone.
    pub(super) fn name_now(&self) -> io::Result<String> {
        pmd::interface::name_of(self.index)
    }

    /// Whether it is called as it was.
    pub(super) fn keeps_name(&self) -> bool {
        self.name_now().is_ok_and(|now| now == self.name)
    }
}
