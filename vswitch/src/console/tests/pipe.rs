//! The console on a pipe.

use std::io::Cursor;
use std::rc::Rc;

use serde_json::{Value, json};

use super::count;
use crate::console::repl::{self, Ending, ReplOptions};
use crate::console::{Command, CommandError, Console, Output};

fn piped(console: &Rc<Console<u64>>, options: &ReplOptions, input: &[u8]) -> (Ending, String, String) {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let (console, mut input) = (console.clone(), Cursor::new(input));
    let ending = repl::on_pipe(console, 0, options, &mut input, &mut output, &mut errors).unwrap();
    (ending, String::from_utf8(output).unwrap(), String::from_utf8(errors).unwrap())
}

#[test]
fn a_console_on_a_pipe() {
    let console = count();
    let plain = ReplOptions::default();
    let strict = ReplOptions { strict: true, ..ReplOptions::default() };
    assert_eq!(piped(&console, &plain, b"count\n# no\n\ncount"), (Ending::Clean, "1\n2\n".into(), "".into()));
    assert_eq!(piped(&console, &plain, b""), (Ending::Clean, "".into(), "".into()));
    let (ending, output, errors) = piped(&console, &plain, b"fail\ncuont\ncount\nexit\ncount\n");
    assert_eq!((ending, output.as_str()), (Ending::Clean, "1\n"));
    assert!(errors.starts_with("as you asked\ncolumn 1: \"cuont\""), "{errors}");
    let (ending, output, _) = piped(&console, &strict, b"count\nfail\ncount\n");
    assert_eq!((ending, output.as_str()), (Ending::Failed, "1\n"));
    let json = ReplOptions { json: true, ..ReplOptions::default() };
    assert_eq!(piped(&console, &json, b"count\n").1, "{\"count\":1}\n");

    let mut long = vec![b'x'; 1_000_000];
    long.extend_from_slice(b"\n\xff\xfe\ncount\n");
    let (ending, output, errors) = piped(&console, &plain, &long);
    assert_eq!((ending, output.as_str()), (Ending::Clean, "1\n"));
    assert!(errors.contains("bytes long"), "{errors}");

    let (ending, output, errors) = piped(&console, &plain, b"count\nlose\ncount\n");
    assert_eq!((ending, output.as_str()), (Ending::Lost, "1\n"));
    assert_eq!(errors, "nobody is there\n");
}

/// A console whose commands load files.
fn loads() -> Rc<Console<u64>> {
    let console = Console::new([
        Command {
            syntax: "count",
            help: "Count up",
            rpc: "",
            run: |n: &mut u64, _| {
                *n += 1;
                Ok(Output::new(format!("{n}"), json!({ "count": n })))
            },
        },
        Command {
            syntax: "inner",
            help: "Load what fails",
            rpc: "",
            run: |n, _| loads().execute_all(n, "count\nlose\n", "inner"),
        },
        Command {
            syntax: "outer",
            help: "Load what loads that",
            rpc: "",
            run: |n, _| loads().execute_all(n, "count\n\ninner\ncount\n", "outer"),
        },
        Command {
            syntax: "well",
            help: "Load what does not fail",
            rpc: "",
            run: |n, _| loads().execute_all(n, "count\ncount\n", "well"),
        },
        Command {
            syntax: "lose",
            help: "Lose the switch",
            rpc: "",
            run: |_, _| Err(CommandError::new("nobody is there").lost()),
        },
    ]);
    Rc::new(console.unwrap())
}

#[test]
fn what_commands_of_a_file_said_before_one_failed_is_shown() {
    let (ending, output, errors) = piped(&loads(), &ReplOptions::default(), b"outer\ncount\n");
    assert_eq!((ending, output.as_str()), (Ending::Lost, "1\n2\n"), "{errors}");
    assert!(errors.starts_with("outer: line 3: inner: line 2: nobody is there"), "{errors}");
    let options = ReplOptions { json: true, ..ReplOptions::default() };
    let said = |input: &[u8]| serde_json::from_str::<Value>(&piped(&loads(), &options, input).1).unwrap();
    let outputs = json!([{ "count": 1 }, { "count": 2 }]);
    assert_eq!(said(b"well\n"), json!({ "origin": "well", "commands": 2, "outputs": outputs }));
    let inner = json!({ "origin": "inner", "commands": 1, "outputs": [{ "count": 2 }] });
    let outer = json!({ "origin": "outer", "commands": 1, "outputs": [{ "count": 1 }, inner] });
    assert_eq!(said(b"outer\n"), outer);
}

#[test]
fn an_argument_that_only_the_switch_could_judge_has_its_column() {
    let error = count().execute(&mut 0, "judge  17").unwrap_err();
    assert_eq!((error.column, error.message.as_str()), (Some(8), "17 is too many"));
    assert_eq!(count().execute(&mut 0, "fail").unwrap_err().column, None);
}
