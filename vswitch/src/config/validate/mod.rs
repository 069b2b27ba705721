//! What must hold across a whole config.

use super::Config;
use super::error::{ConfigError, ConfigErrors};
use super::places::Places;

/// Runs every check.
///
/// # Errors
/// Everything wrong, in the order of the text.
pub fn all(_config: &Config, _places: &Places) -> Result<(), ConfigErrors> {
    Ok(())
}

/// Checks the workers' cores against those this process may run on.
///
/// # Errors
/// Each core that is not among `available`.
pub fn cores(config: &Config, places: &Places, available: &[usize]) -> Result<(), ConfigErrors> {
    let mut errors: Vec<ConfigError> = Vec::new();
    let list: Vec<String> = available.iter().map(ToString::to_string).collect();
    let list = list.join(", ");
    for (index, core) in config.workers.cores.iter().flatten().enumerate() {
        if !available.contains(core) {
            let message = format!("there is no core {core} for a worker; this process may run on {list}");
            errors.push(places.error(&format!("workers.cores[{index}]"), message));
        }
    }
    if config.workers.workers() > available.len() && errors.is_empty() {
        let wanted = config.workers.workers();
        let message = format!("{wanted} workers do not fit on cores {list}; ask for fewer");
        errors.push(places.error("workers.count", message));
    }
    if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
}
