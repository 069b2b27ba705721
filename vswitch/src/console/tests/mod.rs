//! Tests of a whole console over a made-up switch.

mod pipe;
mod terminal;

use std::net::IpAddr;

use proptest::prelude::*;
use serde_json::json;
use wire::Vni;

use super::*;

/// The context: remembers what was run.
#[derive(Default)]
struct Switch {
    ran: Vec<String>,
}

fn ran(switch: &mut Switch, what: String) -> Result<Output, CommandError> {
    switch.ran.push(what.clone());
    Ok(Output::message(what))
}

fn table() -> Vec<Command<Switch>> {
    vec![
        Command {
            syntax: "vlt set <vni:vni> <vip:ip> [mac <mac:mac>] vtep <remote:ip>",
            help: "Place a destination behind a VTEP",
            rpc: "",
            run: |s, a| {
                let (vni, vip): (Vni, IpAddr) = (a.get("vni")?, a.get("vip")?);
                let mac = a.maybe::<wire::MacAddr>("mac");
                ran(s, format!("vlt {vni} {vip} {} {mac:?}", a.get::<IpAddr>("remote")?))
            },
        },
        Command {
            syntax: "show port stats|xstats|info <which:port|all>",
            help: "Show counters of ports",
            rpc: "",
            run: |s, a| {
                let what = ["stats", "xstats", "info"].into_iter().find(|word| a.has(word));
                let which = match a.maybe::<PortRef>("which") {
                    Some(PortRef::Id(id)) => format!("#{id}"),
                    Some(PortRef::Name(name)) => name.to_string(),
                    None => a.get("which")?,
                };
                ran(s, format!("show {} {which}", what.unwrap_or("?")))
            },
        },
        Command {
            syntax: "show vnic [<name:name>]",
            help: "Show vNICs",
            rpc: "",
            run: |s, _| ran(s, "vnic".into()),
        },
        Command { syntax: "show vpc", help: "Show VPCs", rpc: "", run: |s, _| ran(s, "vpc".into()) },
        Command {
            syntax: "port start <id:port>",
            help: "Start a port",
            rpc: "",
            run: |s, _| ran(s, "start".into()),
        },
        Command {
            syntax: "port stop <id:port>",
            help: "Stop a port",
            rpc: "",
            run: |s, _| ran(s, "stop".into()),
        },
        Command {
            syntax: "set fwd <mode:overlay|io|mac>",
            help: "Set the forwarding mode",
            rpc: "",
            run: |s, a| ran(s, format!("fwd {}", a.get::<String>("mode")?)),
        },
        Command {
            syntax: "vnic add <name:name> vips <vips:ip>...",
            help: "Add a vNIC",
            rpc: "",
            run: |s, a| ran(s, format!("{:?}", a.all::<IpAddr>("vips"))),
        },
        Command {
            syntax: "echo <text:text>",
            help: "Say it",
            rpc: "",
            run: |s, a| ran(s, a.get::<String>("text")?),
        },
        Command {
            syntax: "fail <n:uint>",
            help: "Fail at the argument",
            rpc: "",
            run: |_, a| Err(a.error("n", "there is no such thing")),
        },
        Command {
            syntax: "wrong <n:uint>",
            help: "Ask amiss",
            rpc: "",
            run: |s, a| ran(s, a.get::<String>("m")?),
        },
    ]
}

fn console() -> Console<Switch> {
    Console::new(table()).unwrap().with_values(|_, kind| match kind {
        "port" => vec!["up0".into(), "vm1".into()],
        _ => Vec::new(),
    })
}

#[track_caller]
fn run(line: &str) -> String {
    console().execute(&mut Switch::default(), line).unwrap().text()
}

#[track_caller]
fn refuse(line: &str, column: usize, words: &[&str]) {
    let mut switch = Switch::default();
    let error = console().execute(&mut switch, line).unwrap_err();
    assert_eq!(error.column, Some(column), "{error}");
    for word in words {
        assert!(error.message.contains(word), "{word:?} is not in: {error}");
    }
    assert!(switch.ran.is_empty());
}

#[test]
fn lines_run_with_their_arguments() {
    assert_eq!(run("vlt set 100 10.0.0.2 vtep 172.16.0.2"), "vlt 100 10.0.0.2 172.16.0.2 None");
    let with_mac = run("vlt set 100 10.0.0.2 mac 52:54:00:00:00:02 vtep 172.16.0.2");
    assert_eq!(with_mac, "vlt 100 10.0.0.2 172.16.0.2 Some(52:54:00:00:00:02)");
    assert_eq!(run("show port info up0"), "show info up0");
    assert_eq!(run("show port stats all # of them"), "show stats all");
    assert_eq!(run("show port stats \"all\""), "show stats all");
    assert_eq!(run("set fwd mac"), "fwd mac");
    assert_eq!(run("vnic add a vips 10.0.0.1 fd00::1 10.0.0.2"), "[10.0.0.1, fd00::1, 10.0.0.2]");
    assert_eq!(run("echo  a \"b  c\"  d "), "a \"b  c\"  d");
    assert_eq!(run("echo \"a  b\""), "a  b");
    assert_eq!(run("echo a  b#c # why"), "a  b#c");
    assert_eq!(run("echo \"a  # b\" # why"), "a  # b");
    assert_eq!(run("echo a \"# b\"  # why # so"), "a \"# b\"");
    assert_eq!(run("show vnic"), "vnic");
    for nothing in ["", "   ", "# comment"] {
        assert_eq!(run(nothing), "");
    }
}

#[test]
fn short_words_find_the_only_command_they_can_mean() {
    assert_eq!(run("sh po st 0"), "show stats #0");
    assert_eq!(run("sh vn"), "vnic");
    assert_eq!(run("se f ov"), "fwd overlay");
    assert_eq!(run("h show vpc"), run("help show vpc"));
    refuse("p st 0", 3, &["\"st\" is ambiguous", "start, stop"]);
    refuse("s", 1, &["ambiguous", "set, show"]);
    refuse("sh v", 4, &["vnic, vpc"]);
    // Values come before short words: a port may be called `a`.
    assert_eq!(run("show port stats a"), "show stats a");
}

#[test]
fn errors_point_at_the_word_and_say_what_was_expected() {
    refuse("show prot stats 0", 6, &["\"prot\"", "port, vnic, vpc", "did you mean port?"]);
    refuse("shwo vpc", 1, &["did you mean show?"]);
    refuse("vlt set 16777216 10.0.0.1 vtep 1.1.1.1", 9, &["VNI 16777216", "16777215", "<vni>"]);
    refuse("vlt set 1 10.0.0 vtep 1.1.1.1", 11, &["\"10.0.0\" is not an IP address", "<vip:ip>"]);
    refuse("vlt set 1 10.0.0.1 1.1.1.1", 20, &["mac, vtep"]);
    refuse("show vpc now", 10, &["the end of the line"]);
    refuse("set fwd layer2", 9, &["io, mac, overlay"]);
    refuse("set fwd", 9, &["not complete", "io, mac, overlay"]);
    refuse("vnic add a vips", 17, &["<vips:ip>"]);
    refuse("\"show\" vpc", 1, &["does not fit"]);
    refuse("fail 7", 6, &["no such thing"]);
    let long = format!("show {}", "x".repeat(10_240));
    let error = console().execute(&mut Switch::default(), &long).unwrap_err();
    assert!(error.message.len() < 300, "{error}");
    let error = console().execute(&mut Switch::default(), "wrong 5").unwrap_err();
    assert!(error.message.contains("table entry is wrong"), "{error}");
}

#[test]
fn a_megabyte_is_refused_politely() {
    let error = console().execute(&mut Switch::default(), &"show ".repeat(200_000)).unwrap_err();
    assert!(error.message.contains("1000000 bytes"), "{error}");
}

#[test]
fn help_is_made_from_the_table() {
    let all = run("help");
    for command in table() {
        assert!(all.contains(command.syntax) && all.contains(command.help), "{all}");
    }
    assert!(all.contains("help [<topic:text>]"));
    let show = run("help show");
    assert_eq!(show.lines().count(), 3, "{show}");
    assert_eq!(run("help vtep").lines().count(), 1);
    let json = console().execute(&mut Switch::default(), "help show vpc").unwrap().json();
    assert_eq!(json, json!([{ "syntax": "show vpc", "help": "Show VPCs", "rpc": "" }]));
    let error = console().execute(&mut Switch::default(), "help nothing").unwrap_err();
    assert!(error.message.contains("topics are echo, fail, help"), "{error}");
}

fn completed(line: &str) -> (usize, Vec<String>) {
    let completion = console().complete(&Switch::default(), line);
    (completion.start, completion.candidates.into_iter().map(|candidate| candidate.text).collect())
}

#[test]
fn completion_offers_words_values_and_hints() {
    let some = |start, words: &[&str]| (start, words.iter().map(|word| (*word).to_owned()).collect());
    assert_eq!(completed("sh"), some(0, &["show"]));
    assert_eq!(completed("show "), some(5, &["port", "vnic", "vpc"]));
    assert_eq!(completed("show v"), some(5, &["vnic", "vpc"]));
    assert_eq!(completed("sh po i"), some(6, &["info"]));
    assert_eq!(completed("vlt set "), some(8, &["<vni>"]));
    assert_eq!(completed("vlt set 1 "), some(10, &["<vip:ip>"]));
    assert_eq!(completed("vlt set 1 1.1.1.1 "), some(18, &["mac", "vtep"]));
    assert_eq!(completed("show port stats "), some(16, &["all", "up0", "vm1", "<which:port>"]));
    assert_eq!(completed("show port stats u"), some(16, &["up0", "<which:port>"]));
    assert_eq!(completed("nonsense "), some(9, &[]));
    assert_eq!(completed("show # "), some(7, &[]));
    assert_eq!(completed("show port stats \"up0\" # "), some(24, &[]));
    assert_eq!(completed("show \"v"), some(7, &[]));
    assert!(completed("").1.contains(&"help".to_owned()));
    assert!(console().complete(&Switch::default(), &"x".repeat(1_000_000)).candidates.is_empty());
}

#[test]
fn tables_are_checked_when_the_console_is_made() {
    let command = |syntax| Command::<Switch> { syntax, help: "", rpc: "", run: |_, _| Ok(Output::none()) };
    assert!(Console::new([command("show <x>")]).is_err());
    let twice = Console::new([command("show"), command("show")]).err().unwrap();
    assert!(twice.to_string().contains("is there twice"));
}

#[test]
fn scripts_stop_at_the_first_error_and_say_where() {
    let mut switch = Switch::default();
    let output = console().execute_all(&mut switch, "show vpc\n\n# no\nshow vnic\n", "f").unwrap();
    assert_eq!(output.text(), "vpc\nvnic\nf: 2 commands done\n");
    let error = console().execute_all(&mut switch, "show vpc\n\nshow prot\nshow vnic\n", "f").unwrap_err();
    assert!(error.message.starts_with("f: line 3: column 6: \"prot\""), "{error}");
    assert!(error.message.ends_with("(1 commands before it were done)"), "{error}");
    assert_eq!(error.before.unwrap().text, "vpc\n");
    assert_eq!(switch.ran, ["vpc", "vnic", "vpc"]);
}

proptest! {
    #[test]
    fn no_line_panics(words in prop::collection::vec("(show|port|vlt|set|st|all|7|10.0.0.1|\"|#|\\PC{0,6})", 0..8)) {
        let line = words.join(" ");
        let _ = console().execute(&mut Switch::default(), &line);
        let completion = console().complete(&Switch::default(), &line);
        prop_assert!(line.is_char_boundary(completion.start));
    }

    #[test]
    fn completed_words_are_accepted(line in "(show |set |port |vlt )?[a-z]{0,2}") {
        // Every offered word takes the line on: it is never refused at the place it was offered for.
        let completion = console().complete(&Switch::default(), &line);
        for candidate in completion.candidates.iter().filter(|candidate| !candidate.hint) {
            let full = format!("{}{}", &line[..completion.start], candidate.text);
            let column = full[..completion.start].chars().count() + 1;
            if let Err(error) = console().execute(&mut Switch::default(), &full) {
                prop_assert_ne!(error.column, Some(column), "{}: {}", full, error);
            }
        }
    }
}

/// What ends everything is written in full, and is in nobody's way.
#[test]
fn repair_some_commands_cannot_be_abbreviated() {
    let end =
        Command { syntax: "shutdown!", help: "End it all", rpc: "", run: |s, _| ran(s, "shutdown".into()) };
    let console = Console::new(table().into_iter().chain([end])).unwrap();
    let mut switch = Switch::default();
    for short in ["shu", "shut", "shutdow"] {
        let error = console.execute(&mut switch, short).unwrap_err();
        assert!(error.message.contains("does not fit here"), "{short}: {error}");
    }
    console.execute(&mut switch, "sh vn").unwrap();
    assert_eq!(switch.ran, ["vnic"], "sh is show, as ever");
    console.execute(&mut switch, "shutdown").unwrap();
    assert_eq!(switch.ran.last().unwrap(), "shutdown");
    let help = console.execute(&mut switch, "help").unwrap();
    assert!(help.text().contains("shutdown ") && !help.text().contains('!'), "{}", help.text());
    let offered = console.complete(&switch, "sh").candidates;
    assert!(offered.iter().any(|candidate| candidate.text == "shutdown"));
}

/// A folder that goes when the test ends.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("vswitch-console-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A console that counts.
fn count() -> std::rc::Rc<Console<u64>> {
    let console = Console::new([
        Command {
            syntax: "count",
            help: "Count up",
            rpc: "",
            run: |n, _| {
                *n += 1;
                Ok(Output::new(format!("{n}"), serde_json::json!({ "count": n })))
            },
        },
        Command {
            syntax: "big <size:size>",
            help: "Say much",
            rpc: "",
            run: |_, _| Ok(Output::message("big")),
        },
        Command { syntax: "fail", help: "Fail", rpc: "", run: |_, _| Err(CommandError::new("as you asked")) },
        Command {
            syntax: "judge <number:uint>",
            help: "Have a number judged",
            rpc: "",
            run: |_, args| {
                let number: u64 = args.get("number")?;
                Err(CommandError::new(format!("{number} is too many")).of_argument("number"))
            },
        },
        Command {
            syntax: "lose",
            help: "Lose the switch",
            rpc: "",
            run: |_, _| Err(CommandError::new("nobody is there").lost()),
        },
    ]);
    std::rc::Rc::new(console.unwrap())
}
