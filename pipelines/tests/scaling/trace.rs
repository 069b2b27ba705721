//! The trace of a child, cut into phases, and which lines move between two of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use std::io::{BufRead, BufReader};

/// Bytes of a cache line.
const LINE: u64 = 64;
/// What the file with the addresses of packets is called behind the announcement's name.
pub const PACKETS: &str = "packets";

/// What the child says of itself before it begins.
#[derive(Default)]
struct Announced {
    /// A store to one of these begins a phase; `None`: what follows belongs to none.
    marks: HashMap<u64, Option<usize>>,
    /// Lines that are packets'.
    packets: HashSet<u64>,
    stack: Range<u64>,
    /// Where the program is loaded.
    base: u64,
    /// Structures that lie in one piece.
    structures: Vec<(Range<u64>, String)>,
}

impl Announced {
    /// All of it, when it is all there. The line of packets is the last.
    fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        let mut announced = Self::default();
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            let mut words = rest.splitn(3, ' ');
            let mut hex = || u64::from_str_radix(words.next().unwrap(), 16).unwrap();
            match kind {
                "mark" => {
                    let (at, phase) = (hex(), hex() as usize);
                    announced.marks.insert(at, phase.checked_sub(1));
                }
                "stack" => announced.stack = hex()..hex(),
                "base" => announced.base = hex(),
                "structure" => {
                    let (at, len) = (hex(), hex());
                    announced.structures.push((at..at + len, words.next().unwrap().to_owned()));
                }
                "packets" => {
                    let each = hex();
                    let bytes = std::fs::read(path.with_extension(PACKETS)).ok()?;
                    let begins = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                    announced.packets = begins.flat_map(|at| at / LINE..=(at + each) / LINE).collect();
                    return Some(announced);
                }
                _ => panic!("{line}"),
            }
        }
        None
    }
}

/// An access to a line.
#[derive(Clone, Copy)]
struct Access {
    line: u64,
    write: bool,
    /// The instruction.
    from: u64,
    /// Its place among all accesses.
    number: u64,
}

/// What was seen of a child.
pub struct Found {
    /// By phase.
    pub phases: Vec<Phase>,
    announced: Announced,
}

/// The accesses of a phase, without those to lines that the phase has touched the same way since another ran.
#[derive(Default)]
pub struct Phase {
    accesses: Vec<Access>,
}

/// Runs a test of this program under lackey; `phases` of them are expected.
pub fn of_child(variable: &str, test: &str, phases: usize) -> Found {
    let path = std::env::temp_dir().join(format!("vswitch-scaling-{}", std::process::id()));
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=2", "-q"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(variable, &path)
        // Under valgrind one would take minutes.
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("valgrind runs (scripts/bootstrap installs it)");
    let mut known: Option<Announced> = None;
    let mut found: Vec<Phase> = (0..phases).map(|_| Phase::default()).collect();
    let (mut phase, mut from, mut number) = (None, 0, 0);
    // Lines that this turn has read, written.
    let mut touched = [HashSet::new(), HashSet::new()];
    let mut reader = BufReader::with_capacity(1 << 20, child.stderr.take().unwrap());
    let mut text = String::new();
    for count in 0u64.. {
        text.clear();
        if reader.read_line(&mut text).unwrap() == 0 {
            break;
        }
        if known.is_none() && count.is_multiple_of(20_000) {
            known = Announced::read(&path);
        }
        let Some(known) = &known else { continue };
        let (kind, access) = text.trim().split_once(' ').unwrap_or_default();
        let Some((at, size)) = access.trim_start().split_once(',') else { continue };
        let Ok(at) = u64::from_str_radix(at, 16) else { continue };
        match kind {
            "I" => from = at,
            "S" | "M" if known.marks.contains_key(&at) => {
                phase = known.marks[&at];
                touched.iter_mut().for_each(HashSet::clear);
            }
            "L" | "S" | "M" => {
                let (Some(phase), false) = (phase, known.stack.contains(&at)) else { continue };
                let write = kind != "L";
                for line in at / LINE..=(at + size.parse::<u64>().unwrap() - 1) / LINE {
                    let seen = touched[1].contains(&line) || !touched[usize::from(write)].insert(line);
                    if !seen && !known.packets.contains(&line) {
                        number += 1;
                        found[phase].accesses.push(Access { line, write, from, number });
                    }
                }
            }
            _ => {}
        }
    }
    for file in [path.with_extension(PACKETS), path] {
        let _ = std::fs::remove_file(file);
    }
    assert!(child.wait().unwrap().success());
    assert!(found.iter().all(|phase| !phase.accesses.is_empty()), "every phase was seen");
    Found { phases: found, announced: known.unwrap() }
}

/// Who has a line, and who changed it last.
#[derive(Default)]
struct Held {
    by: [bool; 2],
    touched: [Option<u64>; 2],
    written: [Option<u64>; 2],
    moves: u64,
}

/// The lines that one wrote and the other touched.
pub struct Moves {
    lines: HashMap<u64, Held>,
    /// Lines that both read and nobody wrote.
    pub read_by_both: usize,
}

impl Moves {
    /// What happens between two caches: a read fetches what the other has changed, a write takes away what the other
    /// holds. What either touches for the first time is not counted.
    pub fn between(phases: &[Phase]) -> Self {
        let mut lines: HashMap<u64, Held> = HashMap::new();
        let accesses =
            phases.iter().enumerate().flat_map(|(who, phase)| phase.accesses.iter().map(move |a| (who, a)));
        let mut accesses: Vec<_> = accesses.collect();
        accesses.sort_by_key(|(_, access)| access.number);
        for (who, access) in accesses {
            let held = lines.entry(access.line).or_default();
            let other = held.by[1 - who];
            let dirty = other && held.written[1 - who].is_some();
            if access.write && other || !held.by[who] && dirty {
                held.moves += 1;
            }
            held.by[who] = true;
            held.touched[who] = Some(access.from);
            if access.write {
                held.by[1 - who] = false;
                held.written[who] = Some(access.from);
            }
        }
        let both = |held: &Held| held.touched.iter().all(Option::is_some);
        let written = |held: &Held| held.written.iter().any(Option::is_some);
        let read_by_both = lines.values().filter(|held| both(held) && !written(held)).count();
        lines.retain(|_, held| both(held) && written(held));
        Self { lines, read_by_both }
    }
}

impl Found {
    /// Lines and moves by structure; where none is known to be, by the code that touches it.
    pub fn by_structure(&self, moves: &Moves) -> BTreeMap<String, (usize, u64)> {
        let mut named: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for (line, held) in &moves.lines {
            let within = |range: &Range<u64>| range.start / LINE <= *line && *line <= (range.end - 1) / LINE;
            let here: Vec<_> = self.announced.structures.iter().filter(|(range, _)| within(range)).collect();
            let name = match here.as_slice() {
                [] => self.code(*line, held),
                several => several.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(" and "),
            };
            let entry = named.entry(name).or_default();
            entry.0 += 1;
            entry.1 += held.moves;
        }
        named
    }

    fn code(&self, line: u64, held: &Held) -> String {
        let mut text = format!("line {:x}", line * LINE);
        for worker in [0, 1] {
            let (verb, from) = match (held.written[worker], held.touched[worker]) {
                (Some(from), _) => ("written", from),
                (None, Some(from)) => ("read", from),
                (None, None) => continue,
            };
            text += &format!("\n    {verb} by worker {worker} in {}", self.symbol(from));
        }
        text
    }

    /// Where an instruction is in the source, as far as it can be told.
    fn symbol(&self, at: u64) -> String {
        let address = format!("{:x}", at.saturating_sub(self.announced.base));
        let program = std::env::current_exe().unwrap();
        let arguments = ["-f", "-C", "-i", "-p", "-s", "-e"];
        match Command::new("addr2line").args(arguments).arg(program).arg(&address).output() {
            Ok(output) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).trim().replace('\n', " ")
            }
            _ => address,
        }
    }
}
