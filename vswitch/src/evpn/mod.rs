//! EVPN.
pub mod book;
pub mod codec;
pub mod publish;
pub mod route;
