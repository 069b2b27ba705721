//! What the services have in common: each call is a function that control runs, and only some clients may call those that change
//! something.

use tonic::{Code, Request, Status};

use super::Role;
use super::connection::Caller;
use super::refusal::Problem;

/// What is asked for, of a client that may change the switch.
pub(super) fn change_of<T>(request: Request<T>) -> Result<T, Status> {
    match request.extensions().get::<Caller>() {
        Some(Caller { role: Role::Owner, .. }) => Ok(request.into_inner()),
        _ => {
            let message = "clients of this socket look at the switch and change nothing; its owner's socket takes changes";
            Err(Problem::new(Code::PermissionDenied, "", message.into()).into())
        }
    }
}

/// A service whose calls are functions of this module: `fn name(controller: &mut Controller, request: v1::Request) -> Result<v1::Response,
/// Problem>`. A call that `reads` is for all clients, one that `changes` for those that may, and so is one that `waits` for ports that come
/// or go. One that `asks` other hosts, or `sends` and is for those that may change something, is `async fn name(control: &Control, request:
/// v1::Request)`: control does the others' requests meanwhile. What follows it says what control is doing meanwhile, should it go wrong.
macro_rules! service {
    ($service:ident { $($role:ident $call:ident($request:ident) -> $response:ident: $what:literal,)* }) => {
        pub(super) struct Service {
            control: $crate::api::Control,
        }

        impl Service {
            pub fn new(control: $crate::api::Control) -> Self {
                Self { control }
            }
        }

        #[tonic::async_trait]
        impl $service for Service {
            $(
                async fn $call(
                    &self,
                    request: tonic::Request<v1::$request>,
                ) -> Result<tonic::Response<v1::$response>, tonic::Status> {
                    let answer = $crate::api::service::service!(@$role self.control, request, $what, $call);
                    Ok(tonic::Response::new(answer))
                }
            )*
        }
    };
    (@reads $control:expr, $request:ident, $what:literal, $call:ident) => {{
        let request = $request.into_inner();
        $control.ask($what, move |controller| $call(controller, request)).await??
    }};
    (@changes $control:expr, $request:ident, $what:literal, $call:ident) => {{
        let request = $crate::api::service::change_of($request)?;
        $control.ask($what, move |controller| $call(controller, request)).await??
    }};
    (@asks $control:expr, $request:ident, $what:literal, $call:ident) => {
        $call(&$control, $what, $request.into_inner()).await?
    };
    (@sends $control:expr, $request:ident, $what:literal, $call:ident) => {{
        let request = $crate::api::service::change_of($request)?;
        $call(&$control, $what, request).await?
    }};
    (@waits $control:expr, $request:ident, $what:literal, $call:ident) => {{
        let request = $crate::api::service::change_of($request)?;
        $control.ask_and_wait($what, move |controller| $call(controller, request.clone())).await??
    }};
}
pub(super) use service;

/// A message with the fields of a block of counters, by their names, beside others. All of the block: a counter that is new does not
/// compile until it is told.
macro_rules! counted {
    ($totals:ident { $($field:ident),* $(,)? } = $value:expr => v1::$message:ident { $($rest:tt)* }) => {{
        let $totals { $($field),* } = $value;
        v1::$message { $($field,)* $($rest)* }
    }};
}
pub(super) use counted;
