//! How others reach a running switch (`server`: its sockets; who speaks on them speaks to the API), and what keeps control alive when
//! something of its own panics (`guard`). `asking`, `tries` and `turns` are for those who bring what other hosts say, `in_process` is for tests.

pub mod asking;
pub mod guard;
pub mod in_process;
mod lock;
pub mod server;
pub mod tries;
pub mod turns;

#[cfg(test)]
mod tests;
