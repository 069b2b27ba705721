//! An upgrade, as far as the loop of the process that goes has to do with it.

use super::sockets::{ByTcp, Serving};
use crate::control::guard::{Fault, caught};
use crate::controller::Controller;
use crate::handover::give::Successor;
use crate::switch::Switch;

/// Hands over to a new process; `true` when it forwards. Otherwise the switch goes on as it was, or is back.
pub(super) async fn hand_over(
    mut successor: Successor,
    controller: &mut Controller,
    serving: &mut Serving,
    by_tcp: &mut ByTcp,
) -> bool {
    let beside = match caught("the beginning of an upgrade", || give(&mut successor, &mut controller.switch))
    {
        Ok(Some(beside)) => beside,
        Ok(None) => return false,
        Err(fault) => {
            controller.suspect(&fault);
            successor.refuse(fault.to_string());
            return false;
        }
    };
    serving.close().await;
    by_tcp.close().await;
    let forwards = controller.switch.is_forwarding();
    match caught("an upgrade", || let_go(&mut successor, &mut controller.switch, &beside)) {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => {
            tracing::error!(error, "the new process did not take over; this one comes back");
        }
        Err(fault) => {
            controller.suspect(&fault);
            tracing::error!("nothing is handed over; this one comes back");
        }
    }
    // It hears that this one goes on.
    drop(successor);
    let back = caught("the end of an upgrade that came to nothing", || {
        if let Err(error) = controller.switch.come_back(forwards) {
            tracing::error!(%error, "not everything is back");
        }
    });
    back.unwrap_or_else(|fault: Fault| controller.suspect(&fault));
    false
}

/// Gives it the tables; the interfaces on which it has ports, when it wants the rest.
fn give(successor: &mut Successor, switch: &mut Switch) -> Option<Vec<String>> {
    if let Some(why) = switch.is_bound() {
        tracing::warn!(why, "an upgrade is refused; the switch runs on");
        successor.refuse(why);
        return None;
    }
    tracing::info!("a new process takes over");
    let tables = switch.tables();
    successor
        .give(tables)
        .inspect_err(
            |error| tracing::warn!(%error, "an upgrade came to nothing; the switch runs on as it was"),
        )
        .ok()
}

/// Lets go of everything; returns when it forwards.
fn let_go(successor: &mut Successor, switch: &mut Switch, beside: &[String]) -> Result<(), String> {
    // One that does not hear it does not hear the next word either.
    let released = switch.let_go_all(beside, || drop(successor.stopped()));
    released.map_err(|error| error.to_string())?;
    successor.released().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::sync::mpsc;

    use super::*;
    use crate::handover::give::Door;
    use crate::handover::take::Predecessor;
    use crate::handover::terms::Terms;
    use crate::switch::testing;

    /// What becomes of an upgrade with a fault at a place, and what the new process hears.
    fn upgrade(controller: &mut Controller, control: &Path, place: &'static str) -> (bool, String) {
        let (newcomers, mut successors) = mpsc::channel(1);
        let door = Door::open(control, Terms::of(None), newcomers).unwrap();
        let path = control.to_owned();
        let new = std::thread::spawn(move || {
            let mut predecessor = Predecessor::find(&path, None)?;
            predecessor.freeze()?;
            predecessor.take(Vec::new(), || {})
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handed = runtime.block_on(async {
            let successor = successors.recv().await.unwrap();
            testing::break_at(place);
            let mut by_tcp = ByTcp::new(None, None, mpsc::channel(1).0);
            hand_over(successor, controller, &mut Serving::default(), &mut by_tcp).await
        });
        let heard = new.join().unwrap().unwrap_err().to_string();
        drop(door);
        (handed, heard)
    }

    #[test]
    fn a_fault_in_an_upgrade_is_told_and_the_switch_goes_on() {
        let control = std::env::temp_dir().join(format!("giving-{}.sock", std::process::id()));
        let switch = testing::start_by_file("[[port]]\nname = \"a\"\nport = { kind = \"null\" }\n");
        let mut controller = Controller::new(switch, None);
        for (place, said) in [("tables", "a fault at tables"), ("let-go", "gone")] {
            let (handed, heard) = upgrade(&mut controller, &control, place);
            assert!(!handed && heard.contains(said), "{heard}");
            let switch = &controller.switch;
            assert!(switch.is_forwarding() && switch.ports().index("a").is_some(), "{place}");
            let told = |text: &str| text.contains(&format!("a fault at {place}"));
            assert!(switch.events().iter().any(|event| event.kind == "fault" && told(&event.text)));
        }
        controller.switch.stop();
    }
}
