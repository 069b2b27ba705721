//! Asking the judge.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rules::FlowRule;
/// How the driver writes rules; and a set of capabilities: what is assumed of each is in `judge/capabilities.c`.
pub use rules::mlx5::{Engine, Nic};
use thiserror::Error;

use crate::program;

/// The DPDK port of the uplink, which takes the rules of the e-switch; the golden chains have it there.
pub const UPLINK: u16 = 10;
/// Ports in all: those beside the uplink are representors.
pub const PORTS: u16 = 32;

/// One reason why a rule is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Refusal {
    /// What the driver was asked: `meter`, `validate` or `create` with software steering; `pattern template`, `actions template`,
    /// `table` (whether the match fits, and the order of actions), `rule` with hardware steering.
    pub stage: String,
    /// Its words; in parentheses what it logged besides.
    pub words: String,
}

/// What becomes of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// The driver takes it.
    Accepted,
    /// The driver does not.
    Refused(Vec<Refusal>),
    /// It cannot be put to the driver: this DPDK has no words for it.
    Unsaid(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted => f.write_str("accepted"),
            Self::Refused(refusals) => {
                let words = refusals.iter().map(|Refusal { stage, words }| format!("{stage}: {words}"));
                write!(f, "refused: {}", words.collect::<Vec<_>>().join("; "))
            }
            Self::Unsaid(words) => write!(f, "not judged: {words}"),
        }
    }
}

/// Why there is no judgement.
#[derive(Debug, Error)]
pub enum GateError {
    /// The driver's headers are not at hand.
    #[error("the sources of DPDK {version} are not in {}: run scripts/bootstrap, with a network", path.display())]
    NoSources {
        /// Of which DPDK.
        version: &'static str,
        /// Where they are looked for.
        path: PathBuf,
    },
    /// The judge does not build.
    #[error("the judge does not build:\n{0}")]
    Build(String),
    /// The judge ended before its last answer.
    #[error("the judge answered {answers} of {questions} rules: {words}")]
    Died {
        /// Answers before that.
        answers: usize,
        /// Rules that it was given.
        questions: usize,
        /// What it said.
        words: String,
    },
    /// Chains that cannot be read.
    #[error("{}: {words}", file.display())]
    Chains {
        /// Where they are.
        file: PathBuf,
        /// What is wrong.
        words: String,
    },
    /// A file or process of this machine.
    #[error("{what}: {error}")]
    System {
        /// Which.
        what: String,
        /// Why.
        error: std::io::Error,
    },
}

/// Rules that one judge takes at most: `MAX_RULES` of `judge/judge.h`.
const MOST: usize = 32_768;

/// What the driver says of each rule, in their order. Rules do not know of each other.
///
/// # Errors
/// When there is no judge, or when it ended early; see [`GateError`].
pub fn judge(rules: &[FlowRule], nic: Nic, engine: Engine) -> Result<Vec<Verdict>, GateError> {
    let parts = rules.chunks(MOST).map(|part| judge_part(part, nic, engine));
    Ok(parts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn judge_part(rules: &[FlowRule], nic: Nic, engine: Engine) -> Result<Vec<Verdict>, GateError> {
    let mut input = Vec::new();
    let unsaid: Vec<Option<Verdict>> = rules
        .iter()
        .map(|rule| {
            let length = input.len();
            let refusal = pmd::flow::flatten(rule, engine == Engine::Hardware, &mut input).err()?;
            input.truncate(length);
            Some(Verdict::Unsaid(refusal.message))
        })
        .collect();
    let questions = unsaid.iter().filter(|verdict| verdict.is_none()).count();
    let mut answers = ask(input, questions, nic, engine)?.into_iter();
    let verdicts = unsaid.into_iter().map(|unsaid| unsaid.or_else(|| answers.next()));
    Ok(verdicts.flatten().collect())
}

/// Puts rules, as [`pmd::flow::flatten`] writes them, to the judge.
///
/// # Errors
/// As [`judge`].
pub fn ask(input: Vec<u8>, questions: usize, nic: Nic, engine: Engine) -> Result<Vec<Verdict>, GateError> {
    run(input, questions, nic, engine.name(), UPLINK, answer)
}

/// As [`ask`], of a representor, which has flow queues of its own.
///
/// # Errors
/// As [`judge`].
pub fn ask_representor(
    input: Vec<u8>,
    questions: usize,
    nic: Nic,
    engine: Engine,
) -> Result<Vec<Verdict>, GateError> {
    run(input, questions, nic, engine.name(), UPLINK + 1, answer)
}

/// Has the driver do something with meters, of which so many are set aside, with hardware steering: one step a line, as
/// `judge/meters.c` tells them. Its answers.
///
/// # Errors
/// As [`judge`].
pub fn meters(set_aside: u32, steps: &[String], nic: Nic) -> Result<Vec<String>, GateError> {
    let input = steps.iter().flat_map(|step| [step.as_str(), "\n"]).collect::<String>();
    run(input.into_bytes(), steps.len(), nic, &set_aside.to_string(), UPLINK, |line| Some(line.to_owned()))
}

/// Runs the judge, which answers each question by a line.
fn run<T>(
    input: Vec<u8>,
    questions: usize,
    nic: Nic,
    what: &str,
    port: u16,
    answer: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, GateError> {
    let program = program::path()?;
    let system = |error| GateError::System { what: program.display().to_string(), error };
    let mut child = Command::new(&program)
        .args([nic.name(), what, &UPLINK.to_string(), &PORTS.to_string(), &port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(system)?;
    let stdin = child.stdin.take();
    // A judge that ends early reads no further; what it said is told below.
    let feeder = std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(&input)));
    let output = child.wait_with_output().map_err(system)?;
    drop(feeder.join());
    let said = String::from_utf8_lossy(&output.stdout);
    let answers: Vec<_> = said.lines().map_while(answer).collect();
    if answers.len() == questions && output.status.success() {
        return Ok(answers);
    }
    let words = format!("{}, {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Err(GateError::Died { answers: answers.len(), questions, words })
}

/// A line of the judge.
fn answer(line: &str) -> Option<Verdict> {
    if line == "accepted" {
        return Some(Verdict::Accepted);
    }
    let parts: Vec<_> = line.strip_suffix('\t')?.split('\t').collect();
    let refusals = parts.chunks(4).map(|part| match *part {
        ["refused", stage, message, log] => {
            Some(Refusal { stage: stage.to_owned(), words: words(message, log) })
        }
        _ => None,
    });
    refusals.collect::<Option<_>>().map(Verdict::Refused)
}

/// The error's message, and what the driver logged besides.
fn words(message: &str, log: &str) -> String {
    let log = log.split_once(": ").map_or(log, |(_, log)| log).trim_end_matches('.');
    match (message, log) {
        ("", "") => "no word".to_owned(),
        (message, "") => message.to_owned(),
        ("", log) => log.to_owned(),
        (message, log) => format!("{message} ({log})"),
    }
}
