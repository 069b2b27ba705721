//! Commands about the config and about command files.

use std::path::PathBuf;

use vswitch_api::v1;
use vswitch_api::v1::configuration_client::ConfigurationClient;

use super::{Entry, Session, View, ask, shown, told};
use crate::console::{Args, CommandError, Output};
use crate::state::files::{read_text, write_named};

/// A command file may load others, so deep.
const MAX_DEPTH: u32 = 8;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show config",
            help: "The running config, as TOML, without its secrets (save writes them, too)",
            rpc: "Configuration.GetConfig",
            run: |session, _| shown(ask!(session, ConfigurationClient.get_config(v1::GetConfigRequest {}))?),
        },
        Entry {
            syntax: "config load <file:path>",
            help: "Go over to another config, all or nothing: what was made at run time goes, but for what others own, such as vNICs \
                   of pods; `config reload` and SIGHUP read that file from then on, a start the one that it names",
            rpc: "Configuration.LoadConfig",
            run: load_config,
        },
        Entry {
            syntax: "config reload",
            help: "Read the config file again, the one that was loaded last (as SIGHUP does); what was made at run time stays",
            rpc: "Configuration.ReloadConfig",
            run: |session, _| {
                let answer = ask!(session, ConfigurationClient.reload_config(v1::ReloadConfigRequest {}))?;
                told(format!("running the config of {}", answer.file), answer)
            },
        },
        Entry {
            syntax: "config diff <file:path>",
            help: "What a reload of this file would change, without changing it",
            rpc: "Configuration.DiffConfig",
            run: |session, args| {
                let request = v1::DiffConfigRequest { file: absolute(args, "file")? };
                shown(ask!(session, ConfigurationClient.diff_config(request))?)
            },
        },
        Entry {
            syntax: "save <file:path>",
            help: "Write the running config to a file, but for what others own, such as vNICs of pods; a file that is there keeps its mode \
                   and owner, a new one is its owner's alone",
            rpc: "Configuration.ExportConfig",
            run: save,
        },
        Entry {
            syntax: "load <file:path>",
            help: "Run the commands of a file; stops at the first error and says where",
            rpc: "",
            run: load,
        },
    ]
}

impl View for v1::GetConfigResponse {
    fn text(&self) -> String {
        self.toml.clone()
    }
}

impl View for v1::DiffConfigResponse {
    fn text(&self) -> String {
        let mut text = String::new();
        for (sign, parts) in [('-', &self.gone), ('+', &self.set)] {
            for v1::ConfigPart { section, id } in parts {
                match id {
                    Some(id) => text.push_str(&format!("{sign} {section} {id}\n")),
                    None => text.push_str(&format!("{sign} [{section}]\n")),
                }
            }
        }
        if text.is_empty() { "nothing\n".into() } else { text }
    }
}

/// The file that an argument names, whatever folder the switch is in.
fn absolute(args: &Args, name: &str) -> Result<String, CommandError> {
    let path: PathBuf = args.get(name)?;
    let path = std::path::absolute(&path).map_err(|error| args.error(name, error.to_string()))?;
    Ok(path.display().to_string())
}

fn load_config(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let file = absolute(args, "file")?;
    let text = format!("running the config of {file}; `config reload` and SIGHUP read it from now on");
    told(text, ask!(session, ConfigurationClient.load_config(v1::LoadConfigRequest { file }))?)
}

fn save(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let path: PathBuf = args.get("file")?;
    let answer = ask!(session, ConfigurationClient.export_config(v1::ExportConfigRequest {}))?;
    write_named(&path, &answer.toml).map_err(CommandError::new)?;
    let others: u32 = answer.left_out.iter().map(|of| of.objects).sum();
    let others = match others {
        0 => String::new(),
        others => format!("; {others} objects that others own, as a note in it says, are not in it"),
    };
    // It has the secrets, which are in the file and nowhere else.
    Ok(Output::message(format!("config written to {}{others}", path.display())))
}

fn load(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let path: PathBuf = args.get("file")?;
    let Some(console) = session.console.clone() else {
        return Err(CommandError::new("this console loads no files"));
    };
    if session.depth >= MAX_DEPTH {
        return Err(CommandError::new(format!(
            "{}: loads itself, more than {MAX_DEPTH} deep",
            path.display()
        )));
    }
    let text = read_text(&path).map_err(CommandError::new)?;
    session.depth += 1;
    let result = console.execute_all(session, &text, &path.display().to_string());
    session.depth -= 1;
    result
}
