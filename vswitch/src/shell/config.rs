//! Commands about the config and about command files.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Entry, Shell};
use crate::config::Source;
use crate::console::{Args, CommandError, Output};

/// A command file may load others, so deep.
const MAX_DEPTH: u32 = 8;
/// Largest file that is loaded.
const MAX_FILE: u64 = 16 << 20;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show config",
            help: "The running config, as TOML, without its secrets (save writes them, too)",
            run: show,
        },
        Entry {
            syntax: "config load <file:path>",
            help: "Go over to another config, all or nothing: what was made at run time goes; `config reload` and SIGHUP \
                   read that file from then on, a start the one that it names",
            run: load_config,
        },
        Entry {
            syntax: "config reload",
            help: "Read the config file again, the one that was loaded last (as SIGHUP does); what was made at run time stays",
            run: reload,
        },
        Entry {
            syntax: "config diff <file:path>",
            help: "What a reload of this file would change, without changing it",
            run: diff,
        },
        Entry { syntax: "save <file:path>", help: "Write the running config to a file", run: save },
        Entry {
            syntax: "load <file:path>",
            help: "Run the commands of a file; stops at the first error and says where",
            run: load,
        },
    ]
}

fn show(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let config = shell.switch.config().without_secrets();
    let text = config.to_toml().map_err(|error| CommandError::new(error.to_string()))?;
    let json = serde_json::to_value(&config).map_err(|error| CommandError::new(error.to_string()))?;
    Ok(Output::new(text, json))
}

/// Reads a text file of bounded size.
fn read(path: &Path) -> Result<String, CommandError> {
    let shown = path.display();
    let fault = |error: std::io::Error| CommandError::new(format!("{shown}: {error}; check the path"));
    let metadata = std::fs::metadata(path).map_err(fault)?;
    if !metadata.is_file() {
        return Err(CommandError::new(format!("{shown} is not a regular file")));
    }
    if metadata.len() > MAX_FILE {
        return Err(CommandError::new(format!("{shown} has more than {} MiB", MAX_FILE >> 20)));
    }
    std::fs::read_to_string(path).map_err(fault)
}

impl Shell {
    /// Goes over to the config in a file, whole.
    ///
    /// # Errors
    /// What is wrong with the file or with the change; the switch is as it was.
    pub fn load_config(&mut self, path: &Path) -> Result<(), CommandError> {
        let result = source(path).and_then(|file| Ok(self.switch.load_file(file)?));
        pmd::process::trim_heap();
        result
    }

    /// Applies the config in a file again; what was made at run time stays.
    ///
    /// # Errors
    /// What is wrong with the file or with the change; the switch is as it was.
    pub fn reload_config(&mut self, path: &Path) -> Result<(), CommandError> {
        let result = source(path).and_then(|file| Ok(self.switch.reload_file(file)?));
        // With the file, which names them, though they may be new where it says what it said.
        let result = result.and_then(|()| match &self.keys {
            Some(keys) => keys.read_again().map_err(|error| {
                CommandError::new(format!("{error}; the config was read again, and the keys of before hold"))
            }),
            None => Ok(()),
        });
        // Comparing files of ten thousand vNICs takes some hundred MiB for a moment.
        pmd::process::trim_heap();
        result
    }
}

fn source(path: &Path) -> Result<Source, CommandError> {
    Source::parse(&read(path)?, &path.display().to_string())
        .map_err(|errors| CommandError::new(errors.to_string()))
}

fn load_config(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let path: PathBuf = args.get("file")?;
    shell.load_config(&path)?;
    // Whatever folder the switch is in later, it is this file.
    let path = std::path::absolute(&path).unwrap_or(path);
    let text =
        format!("running the config of {}; `config reload` and SIGHUP read it from now on", path.display());
    shell.config_file = Some(path);
    Ok(Output::message(text))
}

fn diff(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let path: PathBuf = args.get("file")?;
    let change = shell.switch.difference_of_reload(&source(&path)?)?;
    let (mut text, mut gone, mut set) = (String::new(), Vec::new(), Vec::new());
    for (section, id) in change.gone() {
        text.push_str(&format!("- {section} {id}\n"));
        gone.push(json!({ "section": section, "id": id }));
    }
    for (section, id, _) in change.set() {
        match &id {
            Some(id) => text.push_str(&format!("+ {section} {id}\n")),
            None => text.push_str(&format!("+ [{section}]\n")),
        }
        set.push(json!({ "section": section, "id": id }));
    }
    if text.is_empty() {
        text.push_str("nothing\n");
    }
    Ok(Output::new(text, json!({ "gone": gone, "set": set })))
}

fn reload(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let Some(path) = shell.config_file.clone() else {
        return Err(CommandError::new(
            "the switch was started without a config file; use `config load <file>`",
        ));
    };
    shell.reload_config(&path)?;
    Ok(Output::message(format!("running the config of {}", path.display())))
}

fn save(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let path: PathBuf = args.get("file")?;
    shell.switch.save(&path)?;
    let text = format!("config written to {}", path.display());
    Ok(Output::new(text.clone(), json!({ "message": text })))
}

fn load(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let path: PathBuf = args.get("file")?;
    let Some(console) = shell.console.clone() else {
        return Err(CommandError::new("this console loads no files"));
    };
    if shell.depth >= MAX_DEPTH {
        return Err(CommandError::new(format!(
            "{}: loads itself, more than {MAX_DEPTH} deep",
            path.display()
        )));
    }
    let text = read(&path)?;
    shell.depth += 1;
    // Each command builds on those before it.
    let suspended = shell.switch.suspend_try();
    let result = console.execute_all(shell, &text, &path.display().to_string());
    shell.switch.resume_try(suspended);
    shell.depth -= 1;
    result
}
