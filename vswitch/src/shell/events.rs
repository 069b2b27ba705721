//! `show events`: what happened lately.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::{Entry, Shell};
use crate::console::{Args, CommandError, Output, Table};

/// Events shown when no number is given.
const SHOWN: u64 = 20;

pub(super) fn commands() -> Vec<Entry> {
    vec![Entry {
        syntax: "show events [<count:uint>]",
        help: "What happened lately, the newest last; the last 20 or so many, of 256 that are remembered",
        run: show,
    }]
}

fn show(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let count = usize::try_from(args.maybe::<u64>("count").unwrap_or(SHOWN)).unwrap_or(usize::MAX);
    let log = shell.switch.events();
    let skipped = log.iter().len().saturating_sub(count);
    let now = SystemTime::now();
    let mut table = Table::new(["number", "s ago", "event", "what"]);
    let mut rows: Vec<Value> = Vec::new();
    for event in log.iter().skip(skipped) {
        let ago = now.duration_since(event.at).unwrap_or_default().as_secs_f64();
        table.row([
            event.number.to_string(),
            format!("{ago:.1}"),
            event.kind.to_string(),
            event.text.clone(),
        ]);
        rows.push(event.json());
    }
    let text = if rows.is_empty() { "nothing happened\n".to_string() } else { table.to_string() };
    Ok(Output::new(text, json!({ "events": rows, "count": log.count() })))
}
