//! What reports are made of, whatever was measured: figures, tables for people, plots, pages.

pub mod delay;
pub mod parts;
pub mod plot;
pub mod stats;
pub mod table;
