//! [`Device`]: what `nic check` is told to look at.

use super::Unseen;
use crate::port::full_address;

/// A device, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// A NIC, by its full PCI address.
    Pci(String),
    /// A virtual device of DPDK, such as `net_tap0`, by the name that a `raw` port of a config has before its arguments.
    Virtual(String),
}

impl Device {
    /// From what somebody typed.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self, Unseen> {
        if text.starts_with("net_") {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            return match text.chars().all(plain) {
                true => Ok(Self::Virtual(text.into())),
                false => Err(Unseen::Address(format!(
                    "{:?} is no name of a virtual device; its arguments are those of the raw port of that name in --config",
                    text.chars().take(80).collect::<String>()
                ))),
            };
        }
        full_address(text).map(Self::Pci).map_err(|error| Unseen::Address(error.to_string()))
    }

    /// The address, or the name.
    pub fn name(&self) -> &str {
        match self {
            Self::Pci(name) | Self::Virtual(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_addresses_or_names() {
        assert_eq!(Device::parse("3B:00.0"), Ok(Device::Pci("0000:3b:00.0".into())));
        assert_eq!(Device::parse("net_tap0"), Ok(Device::Virtual("net_tap0".into())));
        for text in ["", "eth0", "net_tap0,iface=x", "net_\n", "net_ x", "net_\u{1b}[2J"] {
            let error = Device::parse(text).unwrap_err().to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
