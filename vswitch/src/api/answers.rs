//! Answers that their clients have not read: bounded for all clients together, whatever a client does.
//!
//! An answer waits as a whole until its client has room for it, and a client may give none for as long as it likes. So each request
//! has a place from before it is read until its answer went, or whoever asked is gone. Those who only look have places of their own, and
//! leave those who may change the switch theirs. Streams have none: what waits of them is bounded where they are made.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Bytes, Service};
use tonic::{Code, Status};
use tower_layer::Layer;

use super::Role;
use super::connection::{ByRole, Caller, UnderWay};
use super::refusal::Problem;

/// Requests of clients that may change the switch, from when they are read until their answers went.
const OF_OWNERS: usize = 256;
/// Requests of clients that only look.
const OF_READERS: usize = 64;
/// How long a request waits for a place; the clients of the switch wait longer than that for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take to send a request.
const WHOLE: Duration = Duration::from_secs(10);
/// The call whose requests are a stream.
const QUESTIONS: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// Calls whose answers are streams.
const STREAMS: [&str; 4] = [
    "/vswitch.v1.Objects/Watch",
    "/vswitch.v1.Observe/WatchEvents",
    "/grpc.health.v1.Health/Watch",
    QUESTIONS,
];

/// The places of all answers.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    places: ByRole<Arc<Semaphore>>,
    patience: Duration,
    whole: Duration,
}

impl Answers {
    pub fn new() -> Self {
        Self::of(OF_OWNERS, OF_READERS, PATIENCE, WHOLE)
    }

    fn of(owners: usize, readers: usize, patience: Duration, whole: Duration) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { places: ByRole { owners: places(owners), readers: places(readers) }, patience, whole }
    }

    /// A place for the answer to a request; `None` where it needs none.
    async fn place(&self, role: Role, path: &str) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        if STREAMS.contains(&path) {
            return Ok(None);
        }
        let places = self.places.of(role).clone();
        let place = tokio::time::timeout(self.patience, places.acquire_owned()).await;
        place.ok().and_then(Result::ok).map(Some).ok_or_else(|| {
            let message = "too many requests are under way: of clients that have not sent all of theirs, that wait for control, or that do \
                           not read their answers; read or cancel what you asked for, and ask again";
            Problem::new(Code::ResourceExhausted, "", message.into())
        })
    }
}

impl<S> Layer<S> for Answers {
    type Service = Answering<S>;

    fn layer(&self, inner: S) -> Answering<S> {
        Answering { inner, answers: self.clone() }
    }
}

/// A service whose answers have places.
#[derive(Clone, Debug)]
pub(super) struct Answering<S> {
    inner: S,
    answers: Answers,
}

type Answered<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Answering<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answered<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that is ready answers, and its copy is asked next.
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        let answers = self.answers.clone();
        let caller = request.extensions().get::<Caller>();
        let (role, under_way) =
            (caller.map_or(Role::Reader, |caller| caller.role), caller.map(Caller::begin));
        Box::pin(async move {
            match answers.place(role, request.uri().path()).await {
                Ok(place) => {
                    let request = match request.uri().path() {
                        QUESTIONS => request,
                        _ => request.map(|body| Body::new(Asked::new(body, answers.whole))),
                    };
                    let answer = inner.call(request).await?;
                    Ok(answer.map(|body| Body::new(Unread { body, _place: place, _under_way: under_way })))
                }
                Err(problem) => Ok(Status::from(problem).into_http()),
            }
        })
    }
}

/// A request, which is read as far as it came when its time is over.
struct Asked {
    body: Body,
    whole: Duration,
    end: Pin<Box<Sleep>>,
}

impl Asked {
    fn new(body: Body, whole: Duration) -> Self {
        Self { body, whole, end: Box::pin(tokio::time::sleep(whole)) }
    }
}

impl http_body::Body for Asked {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.end.as_mut().poll(cx).is_ready() {
            let message =
                format!("the request did not come as a whole within {:?}; send it again", self.whole);
            return Poll::Ready(Some(Err(Problem::new(Code::DeadlineExceeded, "", message).into())));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer, with its place until it went; its client waits for it, or watches, until then.
struct Unread {
    body: Body,
    _place: Option<OwnedSemaphorePermit>,
    _under_way: Option<UnderWay>,
}

impl http_body::Body for Unread {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use prost_reflect::DescriptorPool;

    use super::*;

    /// Answers everything with some text.
    #[derive(Clone)]
    struct Text;

    impl Service<Request<Body>> for Text {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let body = if request.uri().path() == "/refused" { "" } else { "an answer" };
            std::future::ready(Ok(Response::new(Body::new(body.to_owned()))))
        }
    }

    /// A switch that has places for so many answers of each kind of client.
    struct Switch(Answering<Text>);

    impl Switch {
        fn new(owners: usize, readers: usize) -> Self {
            Self(Answers::of(owners, readers, Duration::from_millis(50), WHOLE).layer(Text))
        }

        /// The answer to a request; `None` when it is refused.
        async fn ask(&mut self, role: Role, path: &str) -> Option<Body> {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = path.parse().unwrap();
            request.extensions_mut().insert(Caller::anybody(role));
            let answer = self.0.call(request).await.unwrap();
            let status = Status::from_header_map(answer.headers());
            if let Some(status) = &status {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
            }
            status.is_none().then(|| answer.into_body())
        }
    }

    #[tokio::test]
    async fn answers_that_nobody_reads_are_bounded_for_all_clients_together() {
        let mut switch = Switch::new(3, 2);
        let mut unread = Vec::new();
        for _ in 0..2 {
            unread.push(switch.ask(Role::Reader, "/list").await.unwrap());
        }
        assert!(switch.ask(Role::Reader, "/list").await.is_none());
        // Those who may change the switch are served whatever those who look do not read.
        for _ in 0..3 {
            unread.push(switch.ask(Role::Owner, "/list").await.unwrap());
        }
        assert!(switch.ask(Role::Owner, "/list").await.is_none());
        // A stream has bounds of its own, and a client that is gone makes room.
        assert!(switch.ask(Role::Reader, STREAMS[0]).await.is_some());
        unread.remove(0);
        let read = switch.ask(Role::Reader, "/list").await.unwrap();
        assert!(switch.ask(Role::Reader, "/list").await.is_none());
        // So does one that waited a little while another read its answer.
        let (another, ()) = tokio::join!(switch.ask(Role::Reader, "/list"), async { drop(read) });
        assert!(another.is_some());
    }

    #[tokio::test]
    async fn an_answer_without_a_body_needs_no_place_once_it_is_made() {
        let mut switch = Switch::new(1, 1);
        let mut kept = Vec::new();
        for _ in 0..3 {
            kept.push(switch.ask(Role::Reader, "/refused").await.unwrap());
        }
    }

    /// The beginning of a request, and nothing after it for as long as its client likes.
    struct Half(bool);

    impl http_body::Body for Half {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match std::mem::replace(&mut self.0, true) {
                false => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x09\x0a"))))),
                true => Poll::Pending,
            }
        }
    }

    #[tokio::test]
    async fn half_a_request_holds_its_place_for_a_time_and_not_longer() {
        let whole = Duration::from_millis(100);
        let (_, health) = tonic_health::server::health_reporter();
        let answers = Answers::of(1, 1, Duration::from_secs(10), whole);
        let ask = |body: Body| {
            let mut request = Request::new(body);
            *request.uri_mut() = "/grpc.health.v1.Health/Check".parse().unwrap();
            let answer = answers.layer(health.clone()).call(request);
            async { Status::from_header_map(answer.await.unwrap().headers()) }
        };
        let begun = std::time::Instant::now();
        // The second has no place until the time of the first is over.
        let (first, second) = tokio::join!(ask(Body::new(Half(false))), ask(Body::new(Half(true))));
        for status in [first.unwrap(), second.unwrap()] {
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
            assert!(status.message().contains("did not come as a whole within 100ms"), "{status:?}");
        }
        assert!(begun.elapsed() >= 2 * whole);
        let answered = ask(Body::new("\0\0\0\0\0".to_owned())).await;
        assert!(answered.is_none(), "{answered:?}");
    }

    /// A call that is forgotten would hold a place for as long as its client watches.
    #[test]
    fn all_calls_with_streams_are_known() {
        let mut streams = Vec::new();
        for set in [
            vswitch_api::DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        ] {
            let pool = DescriptorPool::decode(set).unwrap();
            for service in pool.services() {
                let of_service = service.methods().filter(|method| method.is_server_streaming());
                streams
                    .extend(of_service.map(|method| format!("/{}/{}", service.full_name(), method.name())));
            }
        }
        streams.sort();
        let mut known = STREAMS.map(str::to_owned).to_vec();
        known.sort();
        assert_eq!(streams, known);
    }
}
