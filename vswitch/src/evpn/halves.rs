//! Routes of which some cannot be: which those are, at little cost, so that the others are not their hostages.
//!
//! A change of the switch costs what its VPC has of routes, so there are to be few of them. What is wrong with a route alone is found without
//! one; the rest by trying halves.

use std::collections::HashMap;

use super::apply::{Item, RouteChange};
use crate::config::{Config, Name, VpcConfig, VpcRoute};
use crate::switch::SwitchError;

/// Finds what is wrong with a route by itself, by the checks of the config.
pub struct Possible<'c> {
    config: &'c Config,
    /// The VPCs without their routes; nothing of those in which something is wrong without any.
    bare: HashMap<Name, Option<VpcConfig>>,
}

impl<'c> Possible<'c> {
    /// In a config.
    pub fn of(config: &'c Config) -> Self {
        Self { config, bare: HashMap::new() }
    }

    /// Why a route cannot be, as far as that can be told by the route alone.
    pub fn refusal(&mut self, route: &RouteChange) -> Option<String> {
        let target = route.target.clone()?;
        let config = self.config;
        let with = |vpc: &VpcConfig, routes| Config {
            uplinks: config.uplinks.clone(),
            vpcs: vec![VpcConfig { routes, ..vpc.clone() }],
            ..Config::default()
        };
        let bare = self.bare.entry(route.vpc.clone()).or_insert_with(|| {
            let vpc = config.vpcs.iter().find(|vpc| vpc.name == route.vpc)?;
            let mut bare = with(vpc, Vec::new());
            bare.validate().ok()?;
            bare.vpcs.pop()
        });
        let one = with(bare.as_ref()?, vec![VpcRoute { to: route.to, target }]);
        one.validate().err().map(|errors| errors.to_string())
    }
}

/// What came of routes.
#[derive(Debug, Default)]
pub struct Brought {
    pub refused: Vec<(Item, String)>,
    /// Those that cannot be as one change, though each by itself looks as if it could.
    pub unclear: Vec<RouteChange>,
}

/// Brings routes in, as one change where that can be: `refusal` says what is wrong with one alone, and `all` tries some as one change.
///
/// # Errors
/// A worker does not answer: then nothing is known of any of them.
pub fn bring(
    mut routes: Vec<RouteChange>,
    mut refusal: impl FnMut(&RouteChange) -> Option<String>,
    mut all: impl FnMut(&[RouteChange]) -> Result<(), SwitchError>,
) -> Result<Brought, SwitchError> {
    let mut brought = Brought::default();
    // Those that were refused before most likely still are. The others are looked at one by one only where they cannot be as one.
    for looks_at_all in [false, true] {
        let many = routes.len();
        routes.retain(|route| {
            let why = if looks_at_all || route.was_refused { refusal(route) } else { None };
            let refused = why.iter().map(|why| (Item::Prefix(route.vni, route.to), why.clone()));
            brought.refused.extend(refused);
            why.is_none()
        });
        if looks_at_all && routes.len() == many {
            break;
        }
        if routes.is_empty() {
            return Ok(brought);
        }
        match all(&routes) {
            Ok(()) => return Ok(brought),
            Err(error @ SwitchError::Worker(_)) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(Brought { unclear: routes, ..brought })
}

/// Routes that cannot be as one change, in pieces to be tried: one that is refused is halved, down to single routes.
pub struct Pieces(Vec<Vec<RouteChange>>);

impl Pieces {
    /// Of routes that were refused together.
    pub fn of(routes: Vec<RouteChange>) -> Self {
        let mut pieces = Self(Vec::new());
        if let Some(single) = pieces.refused(routes) {
            // It was tried among others that are refused by now.
            pieces.0.push(vec![single]);
        }
        pieces
    }

    /// The next one to try.
    pub fn next(&mut self) -> Option<Vec<RouteChange>> {
        self.0.pop()
    }

    /// A piece was refused; the route that is refused for good, where it is a single one.
    pub fn refused(&mut self, mut piece: Vec<RouteChange>) -> Option<RouteChange> {
        if piece.len() < 2 {
            return piece.pop();
        }
        let behind = piece.split_off(piece.len() / 2);
        self.0.extend([behind, piece]);
        None
    }
}

#[cfg(test)]
mod tests;
