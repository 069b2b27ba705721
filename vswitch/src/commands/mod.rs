//! The switch's commands, for consoles: each is a call of the API, and what it answers as text. One file per subject, each a list of
//! entries; grammar, help and completion derive from them.
//!
//! A console is a client like any other: what it knows of the switch is what the API told it, and what programs get with `--json`
//! is the message that it got.

mod cluster;
mod config;
mod evpn;
mod flow_rules;
mod forwarding;
mod objects;
mod offload;
mod ports;
mod qos;
mod rcft;
mod rdma;
mod routing;
mod security;
pub(crate) mod session;
mod tenants;
mod typed;
mod underlay;

use std::rc::Rc;

use prost::{Message, Name};
pub use session::{ConnectError, Session};

use crate::api;

use crate::console::{Args, Command, CommandError, Console, Output, Shown, SyntaxError};

/// A command of the switch. Its call is written as in `Ports.ListPorts`.
pub type Entry = Command<Session>;

/// An answer of the switch that says by itself what people want to read.
pub trait View: Message + Name {
    /// For people.
    fn text(&self) -> String;
}

struct Viewed<M>(M);

impl<M: View> Shown for Viewed<M> {
    fn text(&self) -> String {
        View::text(&self.0)
    }

    fn json(&self) -> serde_json::Value {
        api::json(&self.0)
    }
}

/// An answer, as it is.
fn shown<M: View + 'static>(answer: M) -> Result<Output, CommandError> {
    Ok(Output::of(Viewed(answer)))
}

struct Told<M> {
    text: String,
    answer: M,
}

impl<M: Message + Name> Shown for Told<M> {
    fn text(&self) -> String {
        self.text.clone()
    }

    fn json(&self) -> serde_json::Value {
        api::json(&self.answer)
    }
}

/// An answer, and what it is in words.
fn told<M: Message + Name + 'static>(text: impl Into<String>, answer: M) -> Result<Output, CommandError> {
    Ok(Output::of(Told { text: text.into(), answer }))
}

/// The name that an argument is, which may be left out; nothing then.
fn optional(args: &Args, argument: &str) -> String {
    args.maybe::<crate::config::Name>(argument).map(|name| name.to_string()).unwrap_or_default()
}

/// The number that the argument `count` is, or `default`.
fn count(args: &Args, default: u32) -> u32 {
    args.maybe::<u64>("count").map_or(default, |count| count.try_into().unwrap_or(u32::MAX))
}

/// Calls the switch: `ask!(session, PortsClient.list_ports(request))`.
macro_rules! ask {
    ($session:expr, $client:ident.$call:ident($request:expr)) => {{
        let request = $request;
        $session.call(move |channel| async move {
            let client = $client::new(channel).max_decoding_message_size($crate::commands::session::ANSWER);
            { client }.$call(request).await
        })
    }};
}
pub(crate) use ask;

/// All commands.
pub fn entries() -> Vec<Entry> {
    [
        forwarding::commands(),
        ports::commands(),
        tenants::commands(),
        routing::commands(),
        security::commands(),
        rcft::commands(),
        qos::commands(),
        offload::commands(),
        flow_rules::commands(),
        underlay::commands(),
        rdma::commands(),
        cluster::commands(),
        evpn::commands(),
        config::commands(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The console of the switch.
///
/// # Errors
/// A fault in the command table.
pub fn console() -> Result<Console<Session>, SyntaxError> {
    Ok(Console::new(entries())?.with_values(Session::names))
}

/// A session, and the console whose commands it carries out.
///
/// # Errors
/// Nobody answers, or a fault in the command table.
pub fn connect(path: &std::path::Path) -> Result<(Session, Rc<Console<Session>>), ConnectError> {
    let console = Rc::new(console()?);
    let mut session = Session::connect(path)?;
    session.console = Some(console.clone());
    Ok((session, console))
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    #[test]
    fn the_command_table_compiles() {
        super::console().map(|_| ()).unwrap();
    }

    #[test]
    fn every_command_has_a_call() {
        let pool = DescriptorPool::decode(vswitch_api::DESCRIPTORS).unwrap();
        for entry in super::entries() {
            let alone = ["quit", "load <file:path>"];
            assert_eq!(entry.rpc.is_empty(), alone.contains(&entry.syntax), "{}", entry.syntax);
            let Some((service, call)) = entry.rpc.split_once('.') else { continue };
            let service = pool.get_service_by_name(&format!("vswitch.v1.{service}"));
            let service = service.unwrap_or_else(|| panic!("{}: {}", entry.syntax, entry.rpc));
            assert!(service.methods().any(|method| method.name() == call), "{}: {}", entry.syntax, entry.rpc);
        }
    }
}
