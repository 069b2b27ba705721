//! Offload: the rule model.

mod model;
