//! Consoles come and go: two at once, one killed in the middle of a line, end of input, Ctrl-C at a terminal; and the ways
//! to end the switch itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;
use tests::{Daemon, Family, Netns, Scene, Workdir, process, wait_for};

/// A console with an open pipe as its input and a file as its output.
struct Console {
    child: Child,
    input: ChildStdin,
    output: std::path::PathBuf,
}

impl Console {
    fn attach(daemon: &Daemon, name: &str, terminal: bool) -> Console {
        let output = daemon.dir().path().join(name);
        let file = std::fs::File::create(&output).unwrap();
        let line =
            format!("'{}' console --socket '{}'", daemon.program().display(), daemon.socket().display());
        // `script` gives it a terminal, so that Ctrl-C and Ctrl-D mean what they mean to a person.
        let args = if terminal { ["script", "-qec", &line, "/dev/null"] } else { ["sh", "-c", &line, ""] };
        let mut child = process::bound_to_us(&args)
            .env("TERM", "dumb")
            .stdin(Stdio::piped())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        Console { child, input, output }
    }

    fn type_in(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
        self.input.flush().unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap()).into_owned()
    }

    #[track_caller]
    fn expect(&self, text: &str) {
        wait_for(
            &format!("the console to say '{text}'; it said: {}", self.text()),
            Duration::from_secs(10),
            || self.text().contains(text).then_some(()),
        );
    }

    #[track_caller]
    fn ends_well(mut self) {
        drop(self.input);
        let status =
            wait_for("the console to end", Duration::from_secs(10), || self.child.try_wait().unwrap());
        assert!(status.success(), "the console ended with {status}");
    }
}

#[test]
fn console_two_at_once_and_end_of_input() {
    let scene = Scene::start(Family::V4, "", "");
    let mut one = Console::attach(&scene.daemon, "one", false);
    let mut two = Console::attach(&scene.daemon, "two", false);
    one.type_in("show vnic\n");
    one.expect("02:00:00:00:01:01");
    two.type_in("vlt set 100 10.0.0.77 mac 02:00:00:00:01:77 vtep 172.16.0.2\nshow vlt\n");
    two.expect("10.0.0.77");
    one.type_in("show vlt\n");
    one.expect("10.0.0.77");
    one.ends_well();
    two.type_in("show workers\n");
    two.ends_well();
    scene.daemon.ctl("show workers");
}

#[test]
fn console_killed_in_the_middle_of_a_line_is_forgotten() {
    let scene = Scene::start(Family::V4, "", "");
    for _ in 0..3 {
        let mut console = Console::attach(&scene.daemon, "victim", false);
        console.type_in("show vnic\n");
        console.expect("02:00:00:00:01:01");
        console.type_in("vlt set 100 10.0.0.77 ");
        console.child.kill().unwrap();
        console.child.wait().unwrap();
    }
    assert!(!scene.daemon.ctl("show vlt").contains("10.0.0.77"));
}

#[test]
fn console_ctrl_c_at_a_terminal_ends_no_switch() {
    let scene = Scene::start(Family::V4, "", "");
    let mut console = Console::attach(&scene.daemon, "terminal", true);
    console.type_in("show vnic\n");
    console.expect("02:00:00:00:01:01");
    console.type_in("vlt set half a li\x03");
    console.type_in("\x03");
    console.type_in("\x04");
    wait_for("the console to end", Duration::from_secs(10), || console.child.try_wait().unwrap());
    scene.daemon.ctl("show workers");
    assert!(!scene.daemon.ctl("show vlt").contains("half"));
}

#[test]
fn repair_console_shutdown_ends_the_switch_and_nothing_less_does() {
    let mut scene = Scene::start(Family::V4, "", "");
    scene.inbound(&["to_red()"]).assert_passed();
    for word in ["quit", "qu", "q", "exit", "shutdow", "shut", "stop now"] {
        let error = scene.daemon.try_ctl(word).unwrap_err();
        assert!(error.len() > 20, "{word}: {error}");
    }
    assert!(scene.daemon.try_ctl("quit").unwrap_err().contains("`shutdown` ends the switch"));
    scene.inbound(&["to_red()"]).assert_passed();
    let _ = scene.daemon.try_ctl("shutdown");
    scene.daemon.assert_clean_end();
}

#[test]
fn console_ctrl_c_at_the_switch_ends_it_cleanly() {
    let mut scene = Scene::start(Family::V4, "", "");
    scene.inbound(&["to_red()"]).assert_passed();
    scene.daemon.process().signal("INT");
    scene.daemon.assert_clean_end();
}

#[test]
fn console_a_killed_switch_starts_again_on_the_same_socket() {
    let mut scene = Scene::start(Family::V4, "", "");
    scene.daemon.process().signal("KILL");
    scene.daemon.process().wait(Duration::from_secs(5));
    assert!(scene.daemon.socket().exists(), "a killed process leaves its socket behind");
    scene.daemon.restart(&scene.lab.host);
    assert!(scene.daemon.ctl("show vnic").contains("02:00:00:00:01:01"));
    scene.daemon.process().signal("TERM");
    scene.daemon.assert_clean_end();
}

#[test]
fn console_a_second_switch_is_refused() {
    let mut scene = Scene::start(Family::V4, "", "");
    let (program, config) =
        (scene.daemon.program().display().to_string(), scene.daemon.config().display().to_string());
    let second = scene.lab.host.try_run(&[&program, "run", "--config", &config]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success());
    assert!(said.contains("vswitch.sock") && said.contains("another"), "{said}");
    scene.inbound(&["to_red()"]).assert_passed();
    scene.stop();
}

#[test]
fn console_a_second_switch_with_the_same_state_file_is_refused() {
    let (host, folder) = (Netns::new("host"), Workdir::new("state"));
    let state = folder.path().join("state");
    let mut daemon = Daemon::start(&host, &format!("[control]\nstate = \"{}\"\n", state.display()));
    daemon.ctl("vpc add red vni 100");
    // A copy of the config with another socket.
    let (text, socket) =
        (std::fs::read_to_string(daemon.config()).unwrap(), daemon.socket().display().to_string());
    let copy = folder.write("copy.toml", &text.replace(&socket, &format!("{socket}.copy")));
    let program = daemon.program().display().to_string();
    let second = host.try_run(&[&program, "run", "--config", &copy.display().to_string()]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success());
    let pid = daemon.process().pid();
    assert!(said.contains(&format!("process {pid}")) && said.contains("state of its own"), "{said}");
    // What is acknowledged after it is there, too; the lock goes with its process, and over to the one that follows it.
    daemon.ctl("vpc add blue vni 200");
    daemon.process().signal("KILL");
    daemon.process().wait(Duration::from_secs(5));
    daemon.restart(&host);
    assert!(daemon.ctl("show vpc").contains("blue"));
    daemon.upgrade(&host);
    let holder = std::fs::read_to_string(folder.path().join("state.lock")).unwrap();
    assert_eq!(holder.trim(), daemon.process().pid().to_string());
    daemon.end();
}

/// The switch goes, and comes back by a shell, which says what its standard streams are.
fn start_by_a_shell(daemon: &mut Daemon, host: &Netns, line: impl Fn(&str) -> String) {
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
    let (program, config) = (daemon.program().display().to_string(), daemon.config().display().to_string());
    let line = line(&format!("{program} run --config {config}"));
    let process = host.spawn("by-a-shell", &["sh", "-c", &line], daemon.dir());
    daemon.adopt(process);
}

#[test]
fn console_a_switch_whose_log_goes_nowhere_runs_on() {
    let host = Netns::new("host");
    let mut daemon = Daemon::start(&host, "");
    start_by_a_shell(&mut daemon, &host, |run| format!("exec {run} 2>/dev/full"));
    daemon.ctl("vpc add red vni 100");
    daemon.rewrite_config("[[vpc]]\nname = \"blue\"\nvni = 200\n");
    daemon.process().signal("HUP");
    wait_for("the reload", Duration::from_secs(10), || daemon.ctl("show vpc").contains("blue").then_some(()));
    daemon.process().signal("TERM");
    let status = daemon.process().wait(Duration::from_secs(10));
    assert!(status.success(), "it ended with {status}");
}

/// Whoever was to read it hangs.
#[test]
fn console_a_switch_whose_log_nobody_reads_runs_on() {
    let (host, folder) = (Netns::new("host"), Workdir::new("log"));
    let mut daemon = Daemon::start(&host, "");
    let fifo = folder.path().join("fifo").display().to_string();
    process::run(&["mkfifo", &fifo]);
    // It is opened for writing, too, so that neither end waits for the other.
    let mut log = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    nix::fcntl::fcntl(&log, nix::fcntl::FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    start_by_a_shell(&mut daemon, &host, |run| format!("exec env RUST_LOG=trace {run} 2>{fifo}"));
    for vni in 100..150 {
        daemon.ctl(&format!("vpc add red{vni} vni {vni}"));
    }
    daemon.rewrite_config("[[vpc]]\nname = \"blue\"\nvni = 200\n");
    daemon.process().signal("HUP");
    wait_for("the reload", Duration::from_secs(10), || daemon.ctl("show vpc").contains("blue").then_some(()));
    // The pipe has been full for long.
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(&log, flags).unwrap();
    assert_eq!(log.write(&[b'-'; 4096]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    daemon.process().signal("TERM");
    let status = daemon.process().wait(Duration::from_secs(10));
    assert!(status.success(), "it ended with {status}");
}

#[test]
fn console_ctrl_c_at_the_console_of_a_switch_does_not_end_it_before_the_console_was_left() {
    let (mut scene, folder) = (Scene::start(Family::V4, "", ""), Workdir::new("keys"));
    let keys = folder.path().join("keys");
    process::run(&["mkfifo", &keys.display().to_string()]);
    // It is opened for reading, too, so that neither end waits for the other.
    let mut typed = std::fs::OpenOptions::new().read(true).write(true).open(&keys).unwrap();
    let mut type_in = |text: &str| typed.write_all(text.as_bytes()).unwrap();
    let shell =
        |run: &str| format!("exec script -qec 'exec {run} --interactive' /dev/null <{}", keys.display());
    start_by_a_shell(&mut scene.daemon, &scene.lab.host, shell);
    type_in("vpc add blue vni 200\n");
    wait_for("the console to work", Duration::from_secs(10), || {
        scene.daemon.ctl("show vpc").contains("blue").then_some(())
    });
    // The answer is waited for, with nobody there; what is typed meanwhile goes to the process.
    for _ in 0..20 {
        type_in("ping vtep 172.16.0.99\n");
        std::thread::sleep(Duration::from_millis(200));
        type_in("\x03");
        std::thread::sleep(Duration::from_millis(300));
        if scene.daemon.log().contains("the switch runs on; `quit` leaves") {
            break;
        }
    }
    assert!(scene.daemon.log().contains("the switch runs on; `quit` leaves"), "{}", scene.daemon.log());
    scene.daemon.ctl("vpc add green vni 300");
    type_in("quit\n");
    scene.daemon.process().wait_output("the console was left", Duration::from_secs(20));
    type_in("\x03");
    scene.daemon.assert_clean_end();
}
