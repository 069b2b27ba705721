//! The verdicts as a table, and its place in BRINGUP.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use rules::FlowRule;

use crate::chains::Chain;
use crate::{Engine, GateError, Nic, Refusal, Verdict, judge};

const BEGIN: &str = "<!-- mlx5-gate: what follows is written by `cargo run -p mlx5-gate -- table` -->";
const END: &str = "<!-- mlx5-gate: end -->";

/// Verdicts of a chain's rules, for each NIC.
type OfNics = Vec<(Nic, Vec<Verdict>)>;

/// Words of the driver: who was asked, at which stage, and the words.
type Words = (Engine, String, String);

/// Where words were met.
#[derive(Default)]
struct Met {
    nics: BTreeSet<Nic>,
    rules: BTreeSet<String>,
    chains: BTreeSet<String>,
    example: String,
}

/// The tables: verdicts by chain, and what was refused in which words.
///
/// # Errors
/// As [`judge()`].
pub fn table(chains: &[Chain]) -> Result<String, GateError> {
    let all: Vec<FlowRule> = chains.iter().flat_map(|chain| chain.rules.iter().cloned()).collect();
    let mut text = format!(
        "Judged by mlx5 of DPDK {} for {}.\n\n| chain | rules |",
        pmd::flow::BUILD.version,
        Nic::ALL.map(|nic| nic.to_string()).join(", ")
    );
    let mut verdicts: BTreeMap<Engine, OfNics> = BTreeMap::new();
    for engine in Engine::ALL {
        let of_nics = Nic::ALL.into_iter().map(|nic| Ok((nic, judge(&all, nic, engine)?)));
        verdicts.insert(engine, of_nics.collect::<Result<_, GateError>>()?);
        write!(text, " {engine} |").ok();
    }
    text += "\n|---|---|---|---|\n";
    let mut words: BTreeMap<Words, Met> = BTreeMap::new();
    let mut from = 0;
    for chain in chains {
        let range = from..from + chain.rules.len();
        from = range.end;
        write!(text, "| {} | {} |", chain.name, chain.rules.len()).ok();
        for (engine, of_nics) in &verdicts {
            let cells: Vec<_> = of_nics.iter().map(|(nic, all)| (*nic, cell(&all[range.clone()]))).collect();
            write!(text, " {} |", by_nic(&cells)).ok();
            for (nic, all) in of_nics {
                let answers = chain.rules.iter().zip(&all[range.clone()]);
                answers.for_each(|(rule, verdict)| meet(&mut words, *engine, *nic, chain, rule, verdict));
            }
        }
        text.push('\n');
    }
    text += "\n| engine | asked | mlx5's words | rules | in | for example |\n|---|---|---|---|---|---|\n";
    for ((engine, stage, words), met) in &words {
        let only = if met.nics.len() == Nic::ALL.len() {
            String::new()
        } else {
            format!(" ({})", met.nics.iter().map(Nic::to_string).collect::<Vec<_>>().join(", "))
        };
        let chains = met.chains.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let count = met.rules.len();
        writeln!(text, "| {engine}{only} | {stage} | {words} | {count} | {chains} | `{}` |", met.example)
            .ok();
    }
    Ok(text)
}

fn meet(
    words: &mut BTreeMap<Words, Met>,
    engine: Engine,
    nic: Nic,
    chain: &Chain,
    rule: &FlowRule,
    verdict: &Verdict,
) {
    let unsaid;
    let refusals = match verdict {
        Verdict::Accepted => return,
        Verdict::Refused(refusals) => &refusals[..],
        Verdict::Unsaid(words) => {
            unsaid = [Refusal { stage: "not asked".to_owned(), words: words.clone() }];
            &unsaid
        }
    };
    for Refusal { stage, words: said } in refusals {
        let met = words.entry((engine, stage.clone(), said.clone())).or_default();
        met.nics.insert(nic);
        met.rules.insert(rule.testpmd(0));
        met.chains.insert(chain.name.clone());
        if met.example.is_empty() {
            met.example = rule.to_string();
        }
    }
}

/// What is said of a chain.
fn cell(verdicts: &[Verdict]) -> String {
    let count = |is: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| is(verdict)).count();
    let refused = count(|verdict| matches!(verdict, Verdict::Refused(_)));
    let unsaid = count(|verdict| matches!(verdict, Verdict::Unsaid(_)));
    match (refused, unsaid) {
        (0, 0) => "accepted".to_owned(),
        (0, unsaid) => format!("accepted but for {unsaid} not asked"),
        (refused, 0) => format!("{refused} refused"),
        (refused, unsaid) => format!("{refused} refused, {unsaid} not asked"),
    }
}

/// One text where all NICs agree, else one for each.
fn by_nic(cells: &[(Nic, String)]) -> String {
    let mut texts: Vec<&str> = cells.iter().map(|(_, text)| text.as_str()).collect();
    texts.dedup();
    match texts[..] {
        [text] => text.to_owned(),
        _ => cells.iter().map(|(nic, text)| format!("{nic}: {text}")).collect::<Vec<_>>().join("; "),
    }
}

/// The file that has the table.
pub fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../BRINGUP.md")
}

/// What is in the table's place now; and the file with `table` in that place.
///
/// # Errors
/// When the file or the place in it is missing.
pub fn in_file(table: &str) -> Result<(String, String), GateError> {
    let wrong = |words: String| GateError::Chains { file: file(), words };
    let text = fs::read_to_string(file()).map_err(|error| wrong(error.to_string()))?;
    let parts = text.split_once(BEGIN).and_then(|(front, rest)| Some((front, rest.split_once(END)?)));
    let (front, (now, back)) =
        parts.ok_or_else(|| wrong(format!("no place for the table: {BEGIN} ... {END}")))?;
    Ok((now.trim().to_owned(), format!("{front}{BEGIN}\n\n{}\n\n{END}{back}", table.trim())))
}
