//! The switch: what control holds and changes. Ports, workers, topology, neighbours, the running config.
//!
//! Every change goes through here, on the one control thread, and is all or nothing: it is checked, prepared,
//! published to the workers as a new snapshot, and only then does what it replaces go away. Workers never stop for
//! it. How ports come and go with it is told in `plug`.

pub mod bfd;
pub mod connections;
pub mod events;
pub mod offload;
pub mod ports;
pub mod probing;
pub mod qos;
pub mod rcft;
pub mod services;

pub mod ahead;
mod apply;
mod beside;
pub mod changes;
mod concerned;
mod edit;
mod error;
pub mod following;
mod forwarding;
mod handover;
mod kept;
mod moving;
mod opening;
mod plug;
pub mod pool_size;
mod queues;
mod saving;
mod start;
mod tend;
#[cfg(test)]
pub(crate) mod testing;
mod tidy;
mod uplinks;
pub mod view;
mod wanted;
mod withdrawing;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pipelines::snapshot::Snapshot;
use pmd::{Eal, EalError, Mempool};

pub use error::{PortsError, SwitchError};
use events::EventLog;
pub use plug::{Missing, PortChanges};
use ports::PortTable;
use worker::watchdog::Watchdog;
use worker::{Mode, Pool, WorkerSpec};

use crate::config::objects::{ObjectId, ids, location_id};
use crate::config::{Config, Idle, Source, buffers};
use crate::rdma;
use crate::state::journal::Saver;
use crate::state::later::Later;
use crate::state::lock::StateLock;
use crate::state::owners::Owners;
use crate::state::ownership::Ownership;
use crate::topology::Topology;
use crate::topology::underlay::Neighbours;

/// Milliseconds between two turns of [`Switch::tend`].
pub const TEND_EVERY_MS: u64 = 20;

/// A running switch.
pub struct Switch {
    // Dropped in this order: ports before workers would leave queues behind, so `stop` does it by hand.
    pool: Pool,
    ports: PortTable,
    topology: Topology,
    neighbours: Neighbours,
    mempool: Mempool,
    eal: Eal,
    /// The running config, without its locations, which the topology holds.
    config: Arc<Config>,
    mode: Mode,
    forwarding: bool,
    started: Instant,
    saved: Option<Saver>,
    /// That no other switch saves there.
    state_lock: Option<StateLock>,
    /// When it is tried again to take that, while another process has it.
    lock_due: Option<Instant>,
    changes: changes::Changes,
    /// The config file as it was last applied: what is not in it was made at run time.
    file: Option<Arc<Source>>,
    /// Who made what was made at run time, where it was not the API.
    owners: Owners,
    /// The same as the state file and its journal have it.
    saved_owners: Owners,
    /// What is not saved yet, as nobody waits for it.
    later: Later,
    /// The VTEPs that take part in networks, as other hosts say.
    members: following::Members,
    ahead: ahead::Ahead,
    baseline: crate::view::Baseline,
    stopped: bool,
    watchdog: Watchdog,
    /// It was said that offload stands still.
    offload_stands: bool,
    /// What the RDMA devices offer that quotas are shares of.
    rdma: rdma::Devices,
    rcft: rcft::RcftControl,
    connections: connections::ConnectionControl,
    qos: qos::QosControl,
    offload: offload::OffloadControl,
    tidying: tidy::Tidying,
    uplinks: uplinks::Uplinks,
    services: services::ServicesControl,
    /// It is to receive packets, or not to, and not all workers know that yet.
    wants_forwarding: Option<bool>,
    /// A worker did not take the last mode, or not the one of before that it is to have again; hardware is stopped meanwhile.
    is_mode_doubtful: bool,
    bfd: bfd::BfdControl,
    probing: probing::ProbeControl,
    events: EventLog,
    /// When the network was last tended.
    tended: Instant,
    /// When all neighbours were asked at last because one may have said something that was forgotten.
    doubted: Option<Instant>,
    /// Much memory was freed, or is about to be: when it goes back to the kernel, the next time last.
    trims: Vec<Instant>,
    /// When interfaces were last looked for.
    looked: Instant,
    /// When link-local addresses were last learned.
    learned: Instant,
    /// When it was last heard where floating addresses are.
    floated: Instant,
    hold_down: tend::HoldDown,
    /// It was told that the VLT is full, and has not had much room since.
    is_full_told: bool,
}

impl Switch {
    /// Starts DPDK, workers and ports as the config says.
    ///
    /// # Errors
    /// [`SwitchError`]; everything that was started is gone again.
    pub fn start(config: Config) -> Result<Self, SwitchError> {
        let state = config.control.state.clone();
        Self::start_anew(config, None, state.as_deref())
    }

    /// As [`start`](Self::start), in place of a switch that has ended, with a control socket and a state file where that had them: its
    /// connections and queue pairs go on.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn start_anew(
        config: Config,
        control: Option<&Path>,
        state: Option<&Path>,
    ) -> Result<Self, SwitchError> {
        let mut switch = Self::prepare(&config, state, false)?;
        let forwards = config.forward.auto_start;
        switch.apply(config, Missing::Tolerated)?;
        if let Some(control) = control {
            switch.keep_connections(control);
        }
        if forwards {
            switch.set_forwarding(true)?;
        }
        Ok(switch)
    }

    /// Starts DPDK and workers with tables for this config, and no port; `beside` another switch, which may have the config's DPDK
    /// prefix. What is kept of the tables is kept beside the `state` file.
    ///
    /// # Errors
    /// [`SwitchError`]; everything that was started is gone again.
    pub fn prepare(config: &Config, state: Option<&Path>, beside: bool) -> Result<Self, SwitchError> {
        config.validate()?;
        let mut rdma = rdma::Devices::default();
        rdma.learn(config)?;
        rdma::quotas(config, &rdma)?;
        let cores = start::cores(config, &pmd::lcore::available())?;
        let params = start::eal(config, &cores);
        let eal = match Eal::init(&params) {
            Err(EalError::PrefixBusy { .. }) if beside => Eal::init(&start::beside(params)),
            result => result,
        }?;
        let kind = if eal.uses_hugepages() { "huge pages" } else { "ordinary pages (--no-huge)" };
        tracing::info!(dpdk = Eal::dpdk_version(), memory = kind, "DPDK is up");
        if let Some(problem) = buffers::problem(config, eal.uses_hugepages()) {
            return Err(SwitchError::Memory { path: "eal.mbufs".into(), text: problem });
        }
        let mempool = Mempool::new(&eal, &start::mempool(config, cores.len(), eal.uses_hugepages())?)?;
        let topology = Topology::new(config.vlt.entries);
        let workers = cores.len();
        let spec = WorkerSpec {
            cores,
            may_sleep: config.workers.idle == Idle::Sleep,
            burst: usize::from(config.workers.burst),
            nft: start::nft(config),
            queue_pairs: config.rcft.entries,
            connections: config.security.connections,
            shaped_buffers: pool_size::shaped_buffers(mempool.capacity(), workers),
        };
        let pool = Pool::start(&eal, &spec, topology.snapshot())?;
        let workers = pool.workers.iter().map(|worker| (worker.core, worker.stats.clone()));
        let watchdog = Watchdog::start(workers, pool.divider.turns()).map_err(SwitchError::Watchdog)?;
        let rcft = rcft::RcftControl::new(pool.rcft.clone(), pool.connections.clone(), state);
        let connections = connections::ConnectionControl::new(pool.connections.clone(), config);
        let qos = qos::QosControl::new(pool.tree.clone());
        let offload = offload::OffloadControl::new(config);
        let mode = start::mode(config.forward.mode);
        let bare = Config {
            uplinks: Vec::new(),
            vpcs: Vec::new(),
            subnets: Vec::new(),
            security_groups: Vec::new(),
            trunks: Vec::new(),
            vnics: imbl::Vector::new(),
            locations: Vec::new(),
            ports: Vec::new(),
            ..config.clone()
        };
        let mut switch = Self {
            pool,
            ports: PortTable::new(offload::flow_engine(&config.offload)),
            topology,
            neighbours: Neighbours::default(),
            mempool,
            eal,
            config: Arc::new(bare),
            mode: Mode::default(),
            forwarding: false,
            started: Instant::now(),
            saved: None,
            state_lock: None,
            lock_due: None,
            changes: changes::Changes::default(),
            file: None,
            owners: Owners::default(),
            saved_owners: Owners::default(),
            later: Later::default(),
            members: following::Members::default(),
            ahead: ahead::Ahead::default(),
            baseline: crate::view::Baseline::default(),
            stopped: false,
            watchdog,
            offload_stands: false,
            rdma,
            rcft,
            connections,
            qos,
            offload,
            tidying: tidy::Tidying::default(),
            uplinks: uplinks::Uplinks::default(),
            services: services::ServicesControl::default(),
            wants_forwarding: None,
            is_mode_doubtful: false,
            bfd: bfd::BfdControl::default(),
            probing: probing::ProbeControl::default(),
            events: EventLog::default(),
            tended: Instant::now(),
            doubted: None,
            trims: Vec::new(),
            looked: Instant::now(),
            learned: Instant::now(),
            floated: Instant::now(),
            hold_down: tend::HoldDown::default(),
            is_full_told: false,
        };
        switch.set_mode(mode)?;
        let reserved = pmd::hugepage::reserved_mb();
        if let Some(text) =
            start::lacks_huge_pages(config, switch.eal.uses_hugepages(), reserved).filter(|_| beside)
        {
            tracing::warn!("{text}");
            switch.note("no-huge-pages", text, serde_json::json!({ "reserved-mib": reserved }));
        }
        Ok(switch)
    }

    /// A copy of the running config, whole: its locations may be many, so that this is for what takes a whole config in hand anyway.
    pub fn config(&self) -> Config {
        #[cfg(test)]
        testing::count_copy();
        Config { locations: self.topology.locations().cloned().collect(), ..(*self.config).clone() }
    }

    /// The same as [`bare_config`](Self::bare_config), to be kept.
    pub(crate) fn shared_config(&self) -> Arc<Config> {
        self.config.clone()
    }

    /// The running config without its locations, which may be many.
    pub(crate) fn bare_config(&self) -> &Config {
        &self.config
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        self.topology.snapshot()
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn ports(&self) -> &PortTable {
        &self.ports
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The next hops of the underlay.
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// The packet buffers.
    pub fn mempool(&self) -> &Mempool {
        &self.mempool
    }

    /// What the RDMA devices offer that quotas are shares of.
    pub fn rdma_devices(&self) -> &rdma::Devices {
        &self.rdma
    }

    /// Queue pairs: limits and what is admitted.
    pub fn rcft(&self) -> &rcft::RcftControl {
        &self.rcft
    }

    /// Connections of security groups.
    pub fn connections(&self) -> &connections::ConnectionControl {
        &self.connections
    }

    /// Rates: limits and what goes through.
    pub fn qos(&self) -> &qos::QosControl {
        &self.qos
    }

    /// Which flows are in hardware.
    pub fn offload(&self) -> &offload::OffloadControl {
        &self.offload
    }

    /// Which flows are in hardware, to change it.
    pub fn offload_mut(&mut self) -> &mut offload::OffloadControl {
        &mut self.offload
    }

    /// What happened lately.
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    /// Remembers that something happened.
    pub fn note(&mut self, kind: &'static str, text: String, facts: serde_json::Value) {
        self.events.add(kind, text, facts);
    }

    /// DPDK.
    pub fn eal(&self) -> &Eal {
        &self.eal
    }

    /// The forwarding mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// True while packets are received.
    pub fn is_forwarding(&self) -> bool {
        self.forwarding
    }

    /// When the switch was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// What `clear` set the counters back to.
    pub fn baseline(&self) -> &crate::view::Baseline {
        &self.baseline
    }

    /// Sets the zero point of displayed counters.
    pub fn set_baseline(&mut self, baseline: crate::view::Baseline) {
        self.baseline = baseline;
    }

    /// Where changes made through the console are saved, if anywhere, and the lock on that. No other process writes there any more.
    pub fn set_state_file(&mut self, path: Option<&Path>, lock: Option<StateLock>) {
        self.saved = path.map(Saver::new);
        self.state_lock = lock;
        self.rcft.remove_unfinished();
    }

    /// The config file that the running config began with; it is saved with the state.
    pub fn set_config_file(&mut self, file: Option<Source>) {
        self.file = file.map(Arc::new);
    }

    /// Who made what the running config began with, where it was neither the file nor the API.
    pub fn set_owners(&mut self, mut owners: Owners) {
        owners.keep_only(object_ids(&self.config, &self.topology));
        self.owners = owners.clone();
        self.saved_owners = owners;
    }

    /// Who made what was made at run time, where it was not the API.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Who made what, at this moment.
    pub fn ownership(&self) -> Ownership {
        Ownership { file: self.file.clone(), at_run_time: self.owners.clone() }
    }

    /// Ends everything in order: reception, packets on their way, workers, ports. Leaves no trace on the machine but what the next process
    /// goes on with: queue pairs and connections, in their files.
    pub fn stop(&mut self) {
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        self.end_bfd();
        if let Err(error) = self.set_forwarding(false) {
            tracing::error!(%error, "workers did not stop receiving");
        }
        self.rcft.save_all(self.topology.snapshot());
        self.connections.end_file(self.topology.snapshot());
        self.end_state();
        self.tend_ahead(Instant::now(), true);
        self.let_go_of_device();
        self.ports.detach_all(&self.pool);
        if let Err(error) = self.pool.stop() {
            // It may still use every table and every buffer: nothing can be taken down in order any more.
            tracing::error!(%error, "the process ends with a worker running");
            vswitch_log::finish();
            std::process::exit(1);
        }
        let left = self.mempool.in_use();
        if left > 0 {
            tracing::warn!(left, "packet buffers were not given back");
        }
    }
}

/// The objects of a config, with the locations that a topology has of it.
fn object_ids(config: &Config, topology: &Topology) -> impl Iterator<Item = ObjectId> {
    let locations = topology.locations().map(|location| ("location".to_owned(), location_id(location)));
    ids(config).chain(locations)
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop();
    }
}
