//! The console on a terminal: this test binary runs itself under a pseudo-terminal that `script` makes.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::{Folder, count};
use crate::console::repl::{self, ReplOptions};

const UNDER: &str = "VSWITCH_TEST_TERMINAL";
const CHILD: &str = "console::tests::terminal::runs_under_a_terminal";

/// What the parent runs on the terminal; by itself it has nothing to do.
#[test]
#[ignore = "the other half of a_console_on_a_terminal, which runs it"]
fn runs_under_a_terminal() {
    if std::env::var_os(UNDER).is_none() {
        return;
    }
    let ending = repl::run(count(), 0, &ReplOptions::for_user()).unwrap();
    println!("ended {ending:?}");
}

struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn start(folder: &Folder) -> Self {
        let command =
            format!("'{}' --exact {CHILD} --ignored --nocapture", std::env::current_exe().unwrap().display());
        let mut child = Command::new("script")
            .args(["-q", "-e", "-c", &command, "/dev/null"])
            .env(UNDER, "yes")
            .env("XDG_STATE_HOME", &folder.0)
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let (send, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                if send.send(bytes[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keys, screen, seen: String::new() }
    }

    /// Waits until the screen shows `text`, and forgets all up to there.
    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        let start = Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no {text:?} in {:?}", self.seen);
            if let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(100)) {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_console_on_a_terminal() {
    let folder = Folder::new();
    let mut terminal = Terminal::start(&folder);
    terminal.wait_for("vswitch> ");
    terminal.press("co\t");
    terminal.wait_for("count ");
    terminal.press("\r");
    terminal.wait_for("\n1\r\n");
    terminal.wait_for("vswitch> ");
    terminal.press("big ");
    terminal.wait_for("<size>");
    terminal.press("\x03");
    terminal.wait_for("quit or Ctrl-D leaves");
    // Keys pressed between two prompts go to the terminal's own line editing; wait for each prompt.
    terminal.wait_for("vswitch> ");
    terminal.press("fail\r");
    terminal.wait_for("as you asked");
    terminal.wait_for("vswitch> ");
    terminal.press("\x1b[A\x1b[A\r");
    terminal.wait_for("\n2\r\n");
    terminal.wait_for("vswitch> ");
    terminal.press("\x04");
    terminal.wait_for("ended Clean");
    let history = folder.0.join("vswitch/history");
    assert_eq!(
        std::fs::metadata(&history).unwrap().permissions().mode() & 0o077,
        0,
        "history is for its user"
    );
    assert!(std::fs::read_to_string(&history).unwrap().contains("count"));

    let mut terminal = Terminal::start(&folder);
    terminal.wait_for("vswitch> ");
    terminal.press("lose\r");
    terminal.wait_for("nobody is there");
    terminal.wait_for("ended Lost");
}
