//! The service `Configuration`: the config as a whole, and its file.

use std::path::Path;

use tonic::Code;
use vswitch_api::v1;
use vswitch_api::v1::configuration_server::Configuration;

use super::Control;
use super::current::{View, told};
use super::refusal::{Problem, Problems};
use super::service::service;
use crate::config::{Config, Source, others};
use crate::controller::Controller;
use crate::state::files::read_text;
use crate::switch::{Switch, SwitchError};

service! { Configuration {
    asks get_config(GetConfigRequest) -> GetConfigResponse: "reading the config",
    sends export_config(ExportConfigRequest) -> ExportConfigResponse: "writing the config",
    waits load_config(LoadConfigRequest) -> LoadConfigResponse: "loading a config",
    waits reload_config(ReloadConfigRequest) -> ReloadConfigResponse: "reloading the config",
    changes diff_config(DiffConfigRequest) -> DiffConfigResponse: "comparing configs",
} }

fn toml(config: &Config) -> Result<String, Problem> {
    config.to_toml().map_err(|error| Problem::internal(format!("the config cannot be written: {error}")))
}

async fn get_config(
    control: &Control,
    what: &'static str,
    _: v1::GetConfigRequest,
) -> Result<v1::GetConfigResponse, Problem> {
    let toml = control.write(what, |view| toml(&view.whole_config().without_secrets())).await??;
    Ok(v1::GetConfigResponse { toml })
}

async fn export_config(
    control: &Control,
    what: &'static str,
    _: v1::ExportConfigRequest,
) -> Result<v1::ExportConfigResponse, Problems> {
    control.write(what, exported).await?
}

fn exported(view: &View) -> Result<v1::ExportConfigResponse, Problems> {
    let kept = others::leave_out(view.whole_config(), &view.owners.at_run_time)
        .map_err(|errors| Problems::of_config(Code::FailedPrecondition, &errors))?;
    let mut text = toml(&kept.config)?;
    if let Some(words) = kept.words() {
        let note = format!(
            "# Objects that others made at run time are not in this file: {words}. They stay where it is loaded, and come from those \
             who own them where it is started with.\n\n"
        );
        text.insert_str(0, &note);
    }
    let left_out = kept.left_out.iter().map(|(owner, count)| v1::LeftOut {
        owner: told(*owner).into(),
        objects: u32::try_from(*count).unwrap_or(u32::MAX),
    });
    Ok(v1::ExportConfigResponse { left_out: left_out.collect(), toml: text })
}

/// A config file. Only an absolute path says the same to the switch as to whoever asks.
fn source(path: &str) -> Result<Source, Problems> {
    let wrong = |message| Problem::invalid("file", message);
    if !Path::new(path).is_absolute() {
        return Err(wrong(format!("{path}: is not an absolute path; write one, which begins with /")).into());
    }
    Source::parse(&read_text(Path::new(path)).map_err(wrong)?, path).map_err(|errors| {
        let Problems(mut problems) = errors.into();
        // Of a text that is no config there are no values.
        let of_text = problems.iter_mut().filter(|problem| problem.field.is_empty());
        of_text.for_each(|problem| "file".clone_into(&mut problem.field));
        Problems(problems)
    })
}

/// Has the switch do something with a config file. Comparing files of ten thousand vNICs takes some hundred MiB for a moment.
fn with_file<T>(
    switch: &mut Switch,
    path: &str,
    work: impl FnOnce(&mut Switch, Source) -> Result<T, SwitchError>,
) -> Result<T, Problems> {
    let read = switch.beside(|| {
        // What control has freed, this thread cannot use.
        pmd::process::trim_heap();
        source(path)
    });
    let result = read.and_then(|file| Ok(work(switch, file)?));
    switch.trim_soon();
    result
}

fn load_config(
    controller: &mut Controller,
    request: v1::LoadConfigRequest,
) -> Result<v1::LoadConfigResponse, Problems> {
    let config_file = &mut controller.config_file;
    with_file(&mut controller.switch, &request.file, |switch, file| {
        let loaded = switch.load_file(file);
        if loaded.as_ref().err().is_none_or(SwitchError::is_in_force) {
            *config_file = Some(request.file.clone().into());
        }
        loaded
    })?;
    Ok(v1::LoadConfigResponse { revision: controller.switch.changes().revision() })
}

fn reload_config(
    controller: &mut Controller,
    _: v1::ReloadConfigRequest,
) -> Result<v1::ReloadConfigResponse, Problems> {
    let Some(path) = controller.config_file.clone() else {
        let message = "the switch was started without a config file; use `config load <file>`";
        return Err(Problem::new(Code::FailedPrecondition, "", message.into()).into());
    };
    let file = path.display().to_string();
    with_file(&mut controller.switch, &file, Switch::reload_file)?;
    // With the file, which names them, though they may be new where it says what it said.
    if let Some(Err(error)) = controller.keys.as_ref().map(|keys| keys.read_again()) {
        let message = format!("{error}; the config was read again, and the keys of before hold");
        return Err(Problem::new(Code::FailedPrecondition, "api.tcp", message).into());
    }
    Ok(v1::ReloadConfigResponse { file, revision: controller.switch.changes().revision() })
}

/// Reads the config file again, as a client would have it; the file.
///
/// # Errors
/// What is wrong with the file or with the change; the switch is as it was.
pub fn reload(controller: &mut Controller) -> Result<String, String> {
    let done = reload_config(controller, v1::ReloadConfigRequest {});
    done.map(|done| done.file).map_err(|Problems(problems)| {
        problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("\n")
    })
}

fn diff_config(
    controller: &mut Controller,
    request: v1::DiffConfigRequest,
) -> Result<v1::DiffConfigResponse, Problems> {
    let compare = |switch: &mut Switch, file| switch.difference_of_reload(&file);
    let change = with_file(&mut controller.switch, &request.file, compare)?;
    let part = |section: &str, id: Option<String>| v1::ConfigPart { section: section.to_owned(), id };
    Ok(v1::DiffConfigResponse {
        gone: change.gone().map(|(section, id)| part(section, Some(id.to_owned()))).collect(),
        set: change.set().map(|(section, id, _)| part(section, id)).collect(),
    })
}

#[cfg(test)]
mod tests;
