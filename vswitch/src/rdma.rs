//! RDMA devices as quotas need them: what a share of a device comes to, in the one place where that is decided.
//!
//! Opening a device may block on its firmware, so [`look`] does it on a thread of its own and waits for a bounded time;
//! control calls it for a quota that it does not know yet, never a worker. What a device offers is learned when a config first names it and kept from then on:
//! a device that goes later takes no quota along and hinders no other change.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use pmd::rdma::{Inventory, Unopened};

use crate::config::{Config, QuotaConfig, VnicConfig, path};

/// How long devices have to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why an RDMA device or a share of it is not to be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such device.
    #[error("there is no RDMA device {device} on this host; {known}")]
    NoDevice {
        /// What was asked for.
        device: String,
        /// Those there are, or why there are none.
        known: String,
    },
    /// The device is there and its limit is not known.
    #[error("RDMA device {device} does not say how many queue pairs it offers: {why}")]
    NoLimit { device: String, why: Unopened },
    /// A share so small that it is nothing.
    #[error(
        "{quota} is less than one of its {max_qp} queue pairs; give a larger share, or the number 0 for none"
    )]
    Nothing {
        quota: String,
        /// What it is a share of.
        max_qp: u32,
    },
    /// The devices do not answer.
    #[error(
        "the RDMA devices have not answered within {} s; look for their driver's words in the kernel log (dmesg)",
        PATIENCE.as_secs()
    )]
    Slow,
    /// No thread to look on.
    #[error("the RDMA devices cannot be looked at: {0}; raise the limit of threads, or try again")]
    NoThread(String),
    /// A quota of the config.
    #[error("{whose}: {why}; write a number instead, or name another device")]
    Quota {
        /// The key.
        whose: String,
        /// The same, as [`ConfigError::path`](crate::config::ConfigError::path) has it.
        path: String,
        /// What is wrong with it.
        why: Box<Error>,
    },
}

/// When the look began that is under way. One at a time: devices that hang must not pile up threads.
static LOOKING: Mutex<Option<Instant>> = Mutex::new(None);
/// It has ended.
static ENDED: Condvar = Condvar::new();

/// The turn to look, until it is dropped.
struct Turn;

impl Turn {
    /// Waits for the look under way as long as that may take; none where it has hung.
    fn take() -> Option<Self> {
        let end = Instant::now() + PATIENCE;
        let mut looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(began) = *looking {
            let left = end.min(began + PATIENCE).saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            (looking, _) = ENDED.wait_timeout(looking, left).unwrap_or_else(PoisonError::into_inner);
        }
        *looking = Some(Instant::now());
        Some(Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *LOOKING.lock().unwrap_or_else(PoisonError::into_inner) = None;
        ENDED.notify_all();
    }
}

/// Looks at the host's RDMA devices, for a few seconds at most, and waits as long for another who does.
///
/// # Errors
/// When they do not answer, or have not answered an earlier look yet.
pub fn look() -> Result<Inventory, Error> {
    let turn = Turn::take().ok_or(Error::Slow)?;
    let (found, inventory) = mpsc::sync_channel(1);
    let look = move || {
        let inventory = pmd::rdma::inventory();
        drop(turn);
        // Nobody waits any more when it took too long.
        let _ = found.send(inventory);
    };
    let thread = std::thread::Builder::new().name("rdma".into()).spawn(look);
    thread.map_err(|error| Error::NoThread(error.to_string()))?;
    match inventory.recv_timeout(PATIENCE) {
        Ok(inventory) => Ok(inventory),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(Error::Slow),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(Error::NoThread("the look ended early".into())),
    }
}

/// The most queue pairs that a device of this host offers. Looks at the devices anew.
///
/// # Errors
/// [`Error`] when there is no such device, or it does not say.
pub fn max_qp(device: &str) -> Result<u32, Error> {
    Devices::from(&look()?).max_qp(device)
}

/// What devices offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    max_qp: BTreeMap<String, Result<u32, Unopened>>,
    notes: Vec<String>,
}

impl From<&Inventory> for Devices {
    fn from(inventory: &Inventory) -> Self {
        let limit = |device: &pmd::rdma::Device| device.limits.clone().map(|limits| limits.max_qp);
        let max_qp = inventory.devices.iter().map(|device| (device.name.clone(), limit(device))).collect();
        Self { max_qp, notes: inventory.notes.clone() }
    }
}

impl Devices {
    /// The most queue pairs of a device.
    ///
    /// # Errors
    /// When it is not known, or did not say.
    pub fn max_qp(&self, device: &str) -> Result<u32, Error> {
        match self.max_qp.get(device) {
            Some(Ok(max_qp)) => Ok(*max_qp),
            Some(Err(why)) => Err(Error::NoLimit { device: device.into(), why: why.clone() }),
            None => Err(Error::NoDevice { device: device.into(), known: self.known() }),
        }
    }

    /// "there are mlx5_0, mlx5_1", or that and why there are none.
    fn known(&self) -> String {
        if self.max_qp.is_empty() {
            return ["there are none".to_string()]
                .into_iter()
                .chain(self.notes.iter().cloned())
                .collect::<Vec<_>>()
                .join(": ");
        }
        let names: Vec<&str> = self.max_qp.keys().map(String::as_str).collect();
        format!("there are {}", names.join(", "))
    }

    /// Looks at the host's devices if the config names one whose limit is not known yet.
    ///
    /// # Errors
    /// When they do not answer. A device that is not there is no error here, but in [`resolve`].
    pub fn learn(&mut self, config: &Config) -> Result<(), Error> {
        self.learn_with(config, look)
    }

    fn learn_with(
        &mut self,
        config: &Config,
        look: impl FnOnce() -> Result<Inventory, Error>,
    ) -> Result<(), Error> {
        let mut named = shares(config).filter_map(|share| share.quota.device());
        if named.all(|device| self.max_qp(device).is_ok()) {
            return Ok(());
        }
        let Self { max_qp, notes } = Self::from(&look()?);
        self.max_qp.retain(|device, limit| limit.is_ok() || max_qp.contains_key(device));
        for (device, limit) in max_qp {
            let known = self.max_qp.entry(device).or_insert_with(|| limit.clone());
            if known.is_err() {
                *known = limit;
            }
        }
        self.notes = notes;
        Ok(())
    }
}

/// The number of queue pairs that a quota comes to.
///
/// # Errors
/// [`Error`] for a share of a device that is not there, does not say its limit, or has too few.
pub fn resolve(quota: &QuotaConfig, devices: &Devices) -> Result<u32, Error> {
    match quota {
        QuotaConfig::Count(count) => Ok(*count),
        QuotaConfig::Share { share, device } => {
            let max_qp = devices.max_qp(device)?;
            match share.of(max_qp) {
                0 => Err(Error::Nothing { quota: quota.to_string(), max_qp }),
                count => Ok(count),
            }
        }
    }
}

/// The number of queue pairs that each vNIC may have in use, by name: its own quota, else the default, else, and at
/// most, as many as the table holds.
///
/// # Errors
/// The first quota that cannot be resolved, by the key it stands at.
pub fn quotas(config: &Config, devices: &Devices) -> Result<BTreeMap<String, u32>, Error> {
    // Also those that apply to no vNIC: a config that cannot be meant is refused before somebody needs it.
    for QuotaShare { whose, path, quota } in shares(config) {
        resolve(quota, devices).map_err(|why| Error::Quota { whose, path, why: Box::new(why) })?;
    }
    let entries = config.rcft.entries;
    let quota = |vnic: &Arc<VnicConfig>| {
        let count = vnic.quota(&config.rcft).map_or(Ok(entries), |quota| resolve(quota, devices))?;
        Ok((vnic.name.to_string(), count.min(entries)))
    };
    config.vnics.iter().map(quota).collect()
}

/// A quota that is a share of a device.
pub struct QuotaShare<'c> {
    /// The key it stands at.
    pub whose: String,
    /// The path of that.
    pub path: String,
    pub quota: &'c QuotaConfig,
}

/// The quotas of a config that are shares.
pub fn shares(config: &Config) -> impl Iterator<Item = QuotaShare<'_>> {
    let default = config.rcft.quota.iter().map(|quota| QuotaShare {
        whose: "[rcft] quota".into(),
        path: "rcft.quota".into(),
        quota,
    });
    let of_vnic = |vnic: &'_ VnicConfig| format!("vnic {}: qp-quota", vnic.name);
    let path = |vnic: &'_ VnicConfig| format!("{}.qp-quota", path::of("vnic", &vnic.name));
    let vnics = config.vnics.iter().filter_map(move |vnic| {
        Some(QuotaShare { whose: of_vnic(vnic), path: path(vnic), quota: vnic.qp_quota.as_ref()? })
    });
    default.chain(vnics).filter(|share| share.quota.device().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmd::rdma::{Device, Limits};

    fn device(name: &str, limits: Result<u32, Unopened>) -> Device {
        Device {
            name: name.into(),
            node_type: None,
            node_guid: None,
            firmware: None,
            model: None,
            bus: None,
            limits: limits.map(|max_qp| Limits { max_qp, ..Limits::default() }),
            ports: Vec::new(),
        }
    }

    fn inventory(devices: &[(&str, Result<u32, Unopened>)]) -> Inventory {
        let devices = devices.iter().map(|(name, limits)| device(name, limits.clone())).collect();
        Inventory { devices, notes: Vec::new() }
    }

    fn config(quota: &str, vnic: &str) -> Config {
        let text = format!(
            "[rcft]\nentries = 50_000\n{quota}\n[[vpc]]\nname = \"red\"\nvni = 1\n[[subnet]]\nvpc = \"red\"\n\
             prefix = \"10.0.0.0/24\"\n[[uplink]]\nname = \"up\"\nport = {{ kind = \"ring\" }}\n\
             addresses = [\"172.16.0.1/24\"]\n[[vnic]]\nname = \"one\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:01\"\n\
             vips = [\"10.0.0.1\"]\nport = {{ kind = \"null\" }}\n{vnic}\n"
        );
        Config::parse(&text, "f").unwrap()
    }

    fn one(config: &Config, devices: &Devices) -> Result<u32, String> {
        quotas(config, devices).map(|quotas| quotas["one"]).map_err(|error| error.to_string())
    }

    #[test]
    fn quotas_become_numbers() {
        let devices = Devices::from(&inventory(&[("mlx5_0", Ok(131_072))]));
        let number = |quota, vnic| one(&config(quota, vnic), &devices);
        assert_eq!(number("", ""), Ok(50_000));
        assert_eq!(number("quota = 7", ""), Ok(7));
        assert_eq!(number("quota = 7", "qp-quota = 0"), Ok(0));
        assert_eq!(number("quota = \"25% of mlx5_0\"", ""), Ok(32_768));
        assert_eq!(number("quota = 7", "qp-quota = \"5% of mlx5_0\""), Ok(6553));
        // More than the table holds: the table is the limit.
        assert_eq!(number("quota = \"100% of mlx5_0\"", ""), Ok(50_000));
    }

    #[test]
    fn shares_that_cannot_be_had_are_explained() {
        let none = Devices { notes: vec!["no driver".into()], ..Devices::default() };
        let error = one(&config("", "qp-quota = \"5% of mlx5_0\""), &none).unwrap_err();
        assert_eq!(
            error,
            "vnic one: qp-quota: there is no RDMA device mlx5_0 on this host; there are none: no driver; write a number \
             instead, or name another device"
        );
        let two = inventory(&[("rxe0", Ok(10)), ("rxe1", Err(Unopened::NoUverbs))]);
        let two = Devices::from(&two);
        // A default that no vNIC uses is looked at too.
        let error = one(&config("quota = \"5% of mlx5_0\"", "qp-quota = 5"), &two).unwrap_err();
        assert!(error.starts_with("[rcft] quota: ") && error.contains("there are rxe0, rxe1"), "{error}");
        let error = one(&config("quota = \"5% of rxe0\"", ""), &two).unwrap_err();
        assert!(error.contains("5% of rxe0 is less than one of its 10 queue pairs"), "{error}");
        let error = one(&config("quota = \"5% of rxe1\"", ""), &two).unwrap_err();
        assert!(
            error.contains("RDMA device rxe1 does not say") && error.contains("modprobe ib_uverbs"),
            "{error}"
        );
    }

    #[test]
    fn devices_are_looked_at_when_needed_and_kept() {
        let never = || -> Result<Inventory, Error> { panic!("looked without need") };
        let mut devices = Devices::default();
        devices.learn_with(&config("quota = 5", "qp-quota = 6"), never).unwrap();
        let share = config("quota = \"50% of rxe0\"", "");
        let closed = inventory(&[("rxe0", Err(Unopened::NoUverbs)), ("rxe1", Ok(30))]);
        devices.learn_with(&share, || Ok(closed)).unwrap();
        assert!(devices.max_qp("rxe0").is_err());
        devices.learn_with(&share, || Ok(inventory(&[("rxe0", Ok(100))]))).unwrap();
        assert_eq!(one(&share, &devices), Ok(50));
        devices.learn_with(&share, never).unwrap();
        // rxe0 goes, rxe2 comes: both quotas are still numbers.
        let both = config("quota = \"50% of rxe0\"", "qp-quota = \"50% of rxe2\"");
        devices.learn_with(&both, || Ok(inventory(&[("rxe2", Ok(20))]))).unwrap();
        assert_eq!((devices.max_qp("rxe0"), devices.max_qp("rxe2")), (Ok(100), Ok(20)));
        assert_eq!(
            devices.learn_with(&config("quota = \"5% of x\"", ""), || Err(Error::Slow)),
            Err(Error::Slow)
        );
    }

    #[test]
    fn looks_can_be_repeated() {
        for _ in 0..20 {
            look().unwrap();
        }
        assert!(matches!(max_qp("no-such-device"), Err(Error::NoDevice { .. })));
    }

    #[test]
    fn who_looks_while_another_does_waits_for_its_turn() {
        std::thread::scope(|scope| {
            let looks = || (0..10).for_each(|_| drop(look().unwrap()));
            (0..8).for_each(|_| drop(scope.spawn(looks)));
        });
        // One that hangs is not waited for again.
        let hung = Turn::take().unwrap();
        let begun = Instant::now().checked_sub(PATIENCE).unwrap();
        *LOOKING.lock().unwrap() = Some(begun);
        assert_eq!(look().unwrap_err(), Error::Slow);
        assert!(begun.elapsed() < PATIENCE * 2);
        drop(hung);
        look().unwrap();
    }
}
