//! Which core forwards and which does everything else.

use crate::{Error, Result};

/// The two cores of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// It belongs to the thread that is measured.
    pub forwarding: usize,
    /// Everything else runs here.
    pub housekeeping: usize,
}

/// The cores that this process may use.
pub fn available() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
}

/// The core asked for, which must be there, or else the usual one; `remedy` says where another is written.
pub fn pick(
    cores: &[usize],
    wanted: Option<usize>,
    usual: Option<&usize>,
    remedy: &'static str,
) -> Result<usize> {
    match wanted {
        Some(core) if cores.contains(&core) => Ok(core),
        Some(core) => Err(Error::missing(format!("core {core} is not one of {cores:?}"), remedy)),
        None => usual.copied().ok_or_else(|| {
            Error::missing("no cores could be listed", "see that /sys and sched_getaffinity work here")
        }),
    }
}

/// The core that forwards (the one asked for, else the last) and another one.
pub fn choose(cores: &[usize], wanted: Option<usize>) -> Result<Cores> {
    let core = pick(cores, wanted, cores.last(), "choose one of those with --core")?;
    let housekeeping = cores.iter().find(|&&other| other != core).ok_or_else(|| {
        let remedy = "a measurement needs two: one forwards, the other does everything else";
        Error::missing("there is one core only", remedy)
    })?;
    Ok(Cores { forwarding: core, housekeeping: *housekeeping })
}

#[cfg(test)]
mod tests {
    use super::{Cores, choose};

    #[test]
    fn one_core_forwards_and_another_does_the_rest() {
        let chosen = |wanted| choose(&[0, 1], wanted).unwrap();
        assert_eq!(chosen(None), Cores { forwarding: 1, housekeeping: 0 });
        assert_eq!(chosen(Some(0)), Cores { forwarding: 0, housekeeping: 1 });
        assert!(choose(&[0, 1], Some(2)).is_err());
        assert!(choose(&[0], None).is_err());
        assert!(choose(&[], None).is_err());
    }
}
