//! How others reach a running switch (`server`: its sockets; who speaks on them speaks to the API), and what keeps control alive when
//! something of its own panics (`guard`). `in_process` is for tests.

pub mod asking;
pub mod guard;
pub mod in_process;
pub mod server;

#[cfg(test)]
mod tests;
