//! The connection to gobgpd: a task that connects, and connects again, and tells what it hears.
//!
//! gobgpd's stream of best paths begins with all of them, in one message, at the moment from which on it tells of changes: so there is
//! nothing to miss between a list and a watch.

use std::time::Duration;

use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use vswitch_api::gobgp;
use vswitch_api::gobgp::gobgp_api_client::GobgpApiClient;

use super::codec::EVPN;
use super::status::Peer;
use crate::config::GobgpdAddress;

/// The largest message: gobgpd sends none that is larger.
const MESSAGE: usize = 256 << 20;
/// For an answer, and for a connection.
const ANSWER: Duration = Duration::from_secs(10);
/// Between two looks at the peers, which tell at the same time that gobgpd still answers.
const PEERS_EVERY: Duration = Duration::from_secs(1);
/// Between two tries to connect: the first, and the longest.
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_AT_MOST: Duration = Duration::from_secs(5);
/// A peer's state as gobgpd numbers it.
const ESTABLISHED: i32 = 6;

/// A client of gobgpd.
pub type Client = GobgpApiClient<Channel>;

/// What is heard.
pub enum Said {
    /// gobgpd answers: who it is, and all that it knows.
    Up {
        client: Client,
        asn: u32,
        router_id: String,
        paths: Vec<gobgp::Path>,
    },
    /// What has changed.
    Paths(Vec<gobgp::Path>),
    Peers(Vec<Peer>),
    /// It does not answer any more, or does not yet.
    Down(String),
}

/// Tells what gobgpd says, until nobody wants to know.
pub async fn listen(address: GobgpdAddress, said: mpsc::Sender<Said>) {
    let mut again = AGAIN;
    loop {
        let began = tokio::time::Instant::now();
        let Err(error) = session(&address, &said).await else { return };
        if said.send(Said::Down(error)).await.is_err() {
            return;
        }
        // One that was there for a while is tried again at once.
        again = if began.elapsed() > AGAIN_AT_MOST { AGAIN } else { (again * 2).min(AGAIN_AT_MOST) };
        tokio::time::sleep(again).await;
    }
}

/// One connection; nothing when nobody listens any more.
async fn session(address: &GobgpdAddress, said: &mpsc::Sender<Said>) -> Result<(), String> {
    let place = match address {
        GobgpdAddress::Tcp(address) => format!("http://{address}"),
        GobgpdAddress::Unix(_) => address.to_string(),
    };
    let endpoint = Endpoint::from_shared(place).map_err(|error| error.to_string())?;
    let channel = timed(endpoint.connect_timeout(ANSWER).connect()).await?.map_err(|error| whole(&error))?;
    let mut client = GobgpApiClient::new(channel).max_decoding_message_size(MESSAGE);
    let bgp = asked(client.get_bgp(gobgp::GetBgpRequest {})).await?;
    let Some(global) = bgp.global.filter(|global| global.asn != 0) else {
        return Err("gobgpd has no AS number yet: give it a config with `as` and `router-id`".into());
    };
    let filters = vec![gobgp::watch_event_request::table::Filter { init: true }];
    let table = Some(gobgp::watch_event_request::Table { filters });
    let mut stream = asked(client.watch_event(gobgp::WatchEventRequest { table })).await?;
    let first = timed(stream.message()).await?.map_err(|status| refusal(&status))?;
    let paths = first.and_then(|event| event.table).map(|table| table.paths).unwrap_or_default();
    let (asn, router_id) = (global.asn, global.router_id);
    if said.send(Said::Up { client: client.clone(), asn, router_id, paths }).await.is_err() {
        return Ok(());
    }
    let mut clock = tokio::time::interval(PEERS_EVERY);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let word = tokio::select! {
            event = stream.message() => {
                let event = event.map_err(|status| refusal(&status))?;
                let event = event.ok_or_else(|| "gobgpd ended the stream of its paths".to_owned())?;
                Said::Paths(event.table.map(|table| table.paths).unwrap_or_default())
            }
            _ = clock.tick() => Said::Peers(peers(&mut client).await?),
        };
        if said.send(word).await.is_err() {
            return Ok(());
        }
    }
}

async fn peers(client: &mut Client) -> Result<Vec<Peer>, String> {
    let mut stream = asked(client.list_peer(gobgp::ListPeerRequest {})).await?;
    let mut peers = Vec::new();
    while let Some(answer) = timed(stream.message()).await?.map_err(|status| refusal(&status))? {
        let peer = answer.peer.unwrap_or_default();
        let is_evpn = |of: &gobgp::AfiSafi| of.config.as_ref().and_then(|config| config.family) == Some(EVPN);
        let Some(evpn) = peer.afi_safis.iter().find(|of| is_evpn(of)) else { continue };
        let routes = evpn.state.as_ref().map_or(0, |state| state.received);
        let (conf, state) = (peer.conf.unwrap_or_default(), peer.state.unwrap_or_default());
        let word = match state.session_state {
            _ if state.admin_state != 0 => "admin-down",
            1 => "idle",
            2 => "connect",
            3 => "active",
            4 => "open-sent",
            5 => "open-confirm",
            ESTABLISHED => "established",
            _ => "unknown",
        };
        let asn = if state.peer_asn != 0 { state.peer_asn } else { conf.peer_asn };
        peers.push(Peer { address: conf.neighbor_address, asn, state: word, routes });
    }
    peers.sort_by(|a, b| a.address.cmp(&b.address));
    Ok(peers)
}

/// What gobgpd answered to a change of what is announced.
#[derive(Debug)]
pub enum Answer {
    Done,
    /// It knows a higher sequence number.
    Sequence,
    Refused(String),
    /// Nobody answered.
    Gone,
}

/// Announces a path.
pub async fn announce(client: &mut Client, path: gobgp::Path) -> Answer {
    let request = gobgp::AddPathRequest { path: Some(path) };
    match tokio::time::timeout(ANSWER, client.add_path(request)).await {
        Ok(Ok(_)) => Answer::Done,
        Ok(Err(status)) => answer(&status),
        Err(_) => Answer::Gone,
    }
}

/// Withdraws a path.
pub async fn withdraw(client: &mut Client, path: gobgp::Path) -> Answer {
    let request = gobgp::DeletePathRequest { family: Some(EVPN), path: Some(path) };
    match tokio::time::timeout(ANSWER, client.delete_path(request)).await {
        Ok(Ok(_)) => Answer::Done,
        Ok(Err(status)) => answer(&status),
        Err(_) => Answer::Gone,
    }
}

fn answer(status: &Status) -> Answer {
    match status.code() {
        // It has no code of its own.
        _ if status.message().contains("sequence number") => Answer::Sequence,
        Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => Answer::Gone,
        _ => Answer::Refused(refusal(status)),
    }
}

fn late() -> String {
    format!("gobgpd did not answer within {} s", ANSWER.as_secs())
}

async fn timed<T>(answer: impl Future<Output = T>) -> Result<T, String> {
    tokio::time::timeout(ANSWER, answer).await.map_err(|_| late())
}

async fn asked<T>(answer: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, String> {
    timed(answer).await?.map(tonic::Response::into_inner).map_err(|status| refusal(&status))
}

/// At most so much of what others wrote.
fn refusal(status: &Status) -> String {
    let message: String = status.message().chars().take(300).collect();
    format!("gobgpd: {message} ({:?})", status.code())
}

/// An error with its causes.
fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
