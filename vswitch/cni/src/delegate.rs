//! Another plugin that chooses addresses (`ipam.type`): run as the specification says, with this plugin's environment and config.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::environment::Command;
use crate::error::{DECODING, Error, INVALID_CONFIG, IO_FAILURE, Result, TRY_AGAIN};
use crate::result::CniResult;

/// The longest that it may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest answer.
const LONGEST: u64 = 1 << 20;
const PAUSE: Duration = Duration::from_millis(2);

/// A plugin for addresses.
#[derive(Clone, Debug)]
pub struct Delegate {
    name: String,
    program: PathBuf,
    config: Vec<u8>,
}

impl Delegate {
    /// The plugin of a name in one of these folders, to be run with this config.
    pub fn find(name: &str, folders: &[PathBuf], config: &[u8]) -> Result<Self> {
        let program = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        let program = program.ok_or_else(|| {
            let msg = format!("ipam.type: there is no plugin {name} in CNI_PATH ({folders:?})");
            Error::new(INVALID_CONFIG, msg, "install it there, or write another type")
        })?;
        Ok(Self { name: name.to_owned(), program, config: config.to_vec() })
    }

    /// Has it choose addresses.
    pub fn add(&self) -> Result<CniResult> {
        let output = self.run(Command::Add)?;
        self.decode(&output)
    }

    /// Has it do anything else, of which nothing is told but a failure.
    pub fn ask(&self, command: Command) -> Result<()> {
        self.run(command).map(drop)
    }

    fn decode<T: DeserializeOwned>(&self, output: &[u8]) -> Result<T> {
        serde_json::from_slice(output).map_err(|error| {
            let msg = format!("{} answered what is no result: {error}", self.name);
            Error::new(DECODING, msg, "look at that plugin")
        })
    }

    fn run(&self, command: Command) -> Result<Vec<u8>> {
        let failed = |error: &dyn std::fmt::Display| {
            let msg = format!("{}: {error}", self.program.display());
            Error::new(IO_FAILURE, msg, "look at that plugin")
        };
        let mut child = std::process::Command::new(&self.program)
            .env("CNI_COMMAND", command.word())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        thread::scope(|scope| {
            // One that ends without reading all of it is not at fault for that.
            scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(&self.config)));
            let output = scope.spawn(|| {
                let mut output = Vec::new();
                let read = stdout.map(|stdout| stdout.take(LONGEST).read_to_end(&mut output));
                read.transpose().map(|_| output)
            });
            let success = self.wait(&mut child)?;
            let output =
                output.join().map_err(|_| failed(&"its answer was lost"))?.map_err(|error| failed(&error))?;
            if success { Ok(output) } else { Err(self.decode::<Error>(&output)?) }
        })
    }

    /// Waits for its end; true when it succeeded.
    fn wait(&self, child: &mut Child) -> Result<bool> {
        let end = Instant::now() + LIMIT;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status.success()),
                Ok(None) if Instant::now() < end => thread::sleep(PAUSE),
                other => {
                    let _ = child.kill();
                    let _ = child.wait();
                    let why = other.err().map_or_else(
                        || format!("no end within {} s", LIMIT.as_secs()),
                        |error| error.to_string(),
                    );
                    return Err(Error::new(
                        TRY_AGAIN,
                        format!("{}: {why}", self.name),
                        "look at that plugin",
                    ));
                }
            }
        }
    }
}
