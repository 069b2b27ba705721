//! From one config to another: checked, prepared, published, and only then what it replaces goes away.
//!
//! Two ways lead there. A file is looked at as a whole. A single change is looked at where it differs from what runs
//! ([`Difference`]), so that what it costs does not grow with what it leaves alone.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use imbl::OrdMap;
use pipelines::snapshot::Vnic;
use serde_json::json;

use super::concerned::{Concerned, Turnover};
use super::pool_size::{BufferNeed, Shortage};
use super::ports::WantedPort;
use super::{Missing, PortChanges, Switch, SwitchError, ports, start};
use crate::config::objects::location_id;
use crate::config::{Config, Difference, KeptLocations, LocationConfig, Name, VnicConfig, VnicPort};
use crate::rdma;
use crate::state::owners::Owner;
use crate::topology::Extent;

/// What it takes to undo a change that fails.
struct Restorable {
    /// Without its locations.
    config: Arc<Config>,
    locations: OrdMap<(u32, IpAddr), LocationConfig>,
}

impl Switch {
    /// Goes over to another config: what differs is attached, changed and detached, everything else goes on.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was.
    pub fn apply(&mut self, new: Config, missing: Missing) -> Result<(), SwitchError> {
        let old = self.config.clone();
        let bare = Arc::new(new.with_vnics(new.vnics.clone()));
        self.go_over(&new, bare, &Difference::whole(&old, &new), missing, Extent::Everything)
    }

    /// Carries a change out. `bare` is the new config without its locations, which are asked only with
    /// [`Extent::Everything`]. When all workers have the snapshot, the change is in force, and nothing of it fails any more: whoever
    /// calls this writes down what has changed.
    ///
    /// # Errors
    /// [`SwitchError`]; then the switch is as it was.
    pub(super) fn go_over(
        &mut self,
        new: &Config,
        bare: Arc<Config>,
        difference: &Difference<'_>,
        missing: Missing,
        extent: Extent<'_>,
    ) -> Result<(), SwitchError> {
        let old = Restorable { config: self.config.clone(), locations: self.topology.all_locations() };
        self.check(difference)?;
        self.tend_if_due();
        self.refuse_fixed(new)?;
        self.rdma.learn(&difference.new)?;
        rdma::quotas(&difference.new, &self.rdma)?;
        let (have, want) = (ports::wanted(&difference.old), ports::wanted(&difference.new));
        start::refuse_pci(&want, self.eal.uses_pci())?;
        let mut resized = ports::resized(&have, &want);
        resized.extend(self.resized_trunks(difference, new));
        let resized = self.ports.raise_mtus(resized, self.mempool.segment_room())?;
        let plan = PortChanges::between(&have, &want, &resized);
        let checked =
            self.refuse_headless(&plan, &have).and_then(|()| self.short_of_buffers(&plan, new, missing));
        let short = checked.inspect_err(|_| self.ports.restore_mtus(&resized))?;
        let result = self.bring_in(&plan, &old.config, missing);
        let is_others = |name: &str| !plan.added.contains_key(name);
        let extent = match extent {
            // vNICs that the change does not concern lost a port that is replaced, or got one that was long awaited.
            Extent::Part(_)
                if !plan.first.is_empty() || self.ports.fresh().any(|(_, port)| is_others(&port.name)) =>
            {
                Extent::AllButLocations(&difference.relocation)
            }
            extent => extent,
        };
        // What is asked while it is published is answered by it.
        let published = result.and_then(|()| {
            self.config = bare;
            self.publish(new, extent)
        });
        if let Err(error) = published {
            self.config = old.config.clone();
            // What is tried again keeps what it has got so far.
            if !matches!(error, SwitchError::NotYet) {
                self.restore(&plan, &old);
            }
            self.ports.restore_mtus(&resized);
            return Err(error);
        }
        self.ports.settle_mtus(&resized);
        self.ports.want_taps(&difference.old, &want);
        self.baseline.forget(plan.gone(), difference.gone().into_iter().map(|name| name.as_str()));
        self.offload.switch(new.offload.enabled);
        self.tend_mode();
        if let Some(text) = short {
            tracing::warn!("{text}");
            self.events.add("buffers", text, json!({ "size": self.mempool.capacity() }));
        }
        self.carry_out(&plan, missing);
        Ok(())
    }

    /// Whether the pool is too small for the ports of a change and those that stay, where it was not before.
    ///
    /// # Errors
    /// [`SwitchError::Memory`] where it is so small that ports would not start; those of a start are tried all the same.
    fn short_of_buffers(
        &self,
        plan: &PortChanges,
        new: &Config,
        missing: Missing,
    ) -> Result<Option<String>, SwitchError> {
        if plan.added.is_empty() || missing == Missing::Tolerated {
            return Ok(None);
        }
        let (pool, huge_pages) = (self.mempool.capacity() as u64, self.eal.uses_hugepages());
        let goes = |name: &str| plan.gone().any(|gone| gone == name) || plan.added.contains_key(name);
        let stay = self.ports.all_wanted().filter(|(name, _)| !goes(name)).map(|(_, wanted)| wanted);
        let need = BufferNeed::of(stay.chain(plan.added.values()), new);
        let short = need.shortage(pool, new, huge_pages);
        if let Some(Shortage { is_fatal: true, text }) = short {
            let stay = self.ports.all_wanted().filter(|(name, _)| !goes(name)).map(|(_, wanted)| wanted);
            let path = first_without_buffers(pool, stay, &plan.added, new);
            return Err(SwitchError::Memory { path, text });
        }
        let before = BufferNeed::of(self.ports.all_wanted().map(|(_, wanted)| wanted), &self.config);
        let was_short = before.shortage(pool, &self.config, huge_pages).is_some();
        Ok(short.filter(|_| !was_short).map(|short| short.text))
    }

    /// Checks what a change concerns.
    fn check(&self, difference: &Difference<'_>) -> Result<(), SwitchError> {
        let ownership = self.ownership();
        let is_told_anew = |location: &LocationConfig| {
            matches!(ownership.of("location", &location_id(location)), Owner::Etcd | Owner::Evpn)
        };
        let kept = KeptLocations {
            at: &|vni, vip| self.topology.location(vni, vip).cloned(),
            of: &|vni| {
                let locations = self.topology.locations_of(vni);
                locations.filter(|location| !is_told_anew(location)).cloned().collect()
            },
        };
        Ok(difference.to_check(&kept).validate()?)
    }

    /// The trunks on which vNICs change in such a way that they may get another MTU, with that of those that they carry then.
    fn resized_trunks(&self, difference: &Difference<'_>, new: &Config) -> BTreeMap<String, WantedPort> {
        fn trunk(vnic: &VnicConfig) -> Option<&Name> {
            match &vnic.port {
                VnicPort::Trunk(trunk) => Some(trunk),
                VnicPort::Own(_) => None,
            }
        }
        // Only where one goes that had the largest, or one comes with a larger one, is it asked what the others have.
        let before = difference.before.iter().filter_map(|vnic| Some((trunk(vnic)?, vnic.mtu, false)));
        let after = difference.after.iter().filter_map(|vnic| Some((trunk(vnic)?, vnic.mtu, true)));
        let differs = |&(trunk, mtu, comes): &(&Name, u16, bool)| match self.ports.wanted_mtu(trunk) {
            Some(largest) if comes => mtu > largest,
            Some(largest) => mtu >= largest,
            None => true,
        };
        let mut concerned: Vec<&Name> =
            before.chain(after).filter(differs).map(|(trunk, ..)| trunk).collect();
        concerned.sort_unstable();
        concerned.dedup();
        if concerned.is_empty() {
            return BTreeMap::new();
        }
        let trunks = new.trunks.iter().filter(|trunk| concerned.contains(&&trunk.name)).cloned().collect();
        let vnics =
            new.vnics.iter().filter(|vnic| trunk(vnic).is_some_and(|trunk| concerned.contains(&trunk)));
        let part = Config { trunks, vnics: vnics.cloned().collect(), ..Config::default() };
        ports::wanted(&part)
    }

    /// After a change that failed.
    fn restore(&mut self, plan: &PortChanges, old: &Restorable) {
        let locations = old.locations.values().cloned().collect();
        let old = Config { locations, ..(*old.config).clone() };
        if let Err(error) = self.bring_back(plan, &old) {
            tracing::error!(%error, "the configuration of before could not be restored");
        }
    }

    /// Builds and publishes the snapshot of a config.
    pub(super) fn publish(&mut self, config: &Config, extent: Extent<'_>) -> Result<(), SwitchError> {
        let concerned = match &extent {
            Extent::Everything | Extent::AllButLocations(_) => config,
            Extent::Part(difference) => &*difference.new,
        };
        let quotas = rdma::quotas(concerned, &self.rdma)?;
        let (topology, ports, neighbours) = (&mut self.topology, &self.ports, &self.neighbours);
        topology.follow(config, &extent, ports, neighbours)?;
        let before = self.snapshot().clone();
        let snapshot = self.topology.commit();
        let change = Turnover::between(&before, &snapshot);
        for &index in &change.come {
            if let Some(vnic) = snapshot.vnic(index) {
                self.baseline.begin_vnic(&self.pool, index, &vnic.name);
            }
        }
        // First, so that no packet of a new vNIC comes before its quota and its limits.
        let find = |name: &str| self.topology.vnic(name);
        let concerned: Vec<_> = concerned
            .vnics
            .iter()
            .filter_map(|config| Some(Concerned { vnic: find(&config.name)?, config }))
            .collect();
        self.rcft.configure(config, &quotas, &change.gone, &concerned);
        let was_free = |vnic: &Vnic| before.vnic(vnic.index).is_none_or(|before| before.group_set == 0);
        let begin = concerned.iter().filter(|one| one.vnic.group_set != 0 && was_free(one.vnic));
        self.connections.configure(config);
        self.connections.pick_up(config, self.pool.now(), begin.map(|one| one.vnic.index));
        self.qos.configure(config, &change.gone, &concerned, &snapshot, self.pool.now().ns);
        self.services.configure(&change.gone, &concerned);
        self.hand_out()
    }

    /// Gives the workers the snapshot in force, and takes out what it forbids that they had until now.
    pub(super) fn hand_out(&mut self) -> Result<(), SwitchError> {
        let (before, snapshot) = (self.topology.settled().clone(), self.topology.snapshot().clone());
        self.pool.publish(&snapshot)?;
        self.topology.settle(&mut self.neighbours);
        self.keep_punt_taps();
        self.follow_bfd(Instant::now());
        // Before hardware: it keeps no flow whose connection has ended.
        self.connections.follow(&before, &snapshot);
        self.offload.follow_at_once(&self.pool, &snapshot);
        self.tell_late();
        self.offload.forget_gone(&before, &snapshot);
        self.rcft.follow(&before, &snapshot, self.pool.now(), &mut self.events);
        self.tidying.follow(&before, &snapshot, self.pool.workers.len());
        self.tend_if_due();
        Ok(())
    }

    /// What cannot change while the switch runs.
    fn refuse_fixed(&self, new: &Config) -> Result<(), SwitchError> {
        let old = &self.config;
        let ports = self.offload.simulated().is_some();
        let fixed = [
            ("[eal]", "eal", old.eal != new.eal),
            ("[workers]", "workers", old.workers != new.workers),
            ("[api]", "api", old.api != new.api),
            ("[control]", "control", old.control != new.control),
            ("[nft] entries", "nft.entries", old.nft.entries != new.nft.entries),
            ("[nft] idle-timeout", "nft.idle-timeout", old.nft.idle_timeout != new.nft.idle_timeout),
            ("[vlt] entries", "vlt.entries", old.vlt.entries != new.vlt.entries),
            ("[rcft] entries", "rcft.entries", old.rcft.entries != new.rcft.entries),
            (
                "[security] connections",
                "security.connections",
                old.security.connections != new.security.connections,
            ),
            ("[offload]", "offload", !old.offload.is_but_for_enabled(&new.offload)),
            (
                "[vxlan] udp-port, while ports are on a simulated e-switch,",
                "vxlan.udp-port",
                ports && old.vxlan.udp_port != new.vxlan.udp_port,
            ),
            (
                "[rdma] udp-port, while ports are on a simulated e-switch,",
                "rdma.udp-port",
                ports && old.rdma != new.rdma,
            ),
        ];
        match fixed.iter().find(|(.., changed)| *changed) {
            Some(&(what, path, _)) => Err(SwitchError::NotLive { what, path }),
            None => Ok(()),
        }
    }
}

/// The path of the first port of those that are added whose rings have no buffers, beside those that stay.
fn first_without_buffers<'p>(
    pool: u64,
    stay: impl Iterator<Item = &'p WantedPort>,
    added: &BTreeMap<String, WantedPort>,
    config: &Config,
) -> String {
    let mut rings = BufferNeed::of(stay, config).rings;
    let beyond = added.iter().find(|(_, port)| {
        rings += BufferNeed::of([*port], config).rings;
        rings >= pool
    });
    beyond.map(|(name, port)| port.of.port(name)).unwrap_or_default()
}
