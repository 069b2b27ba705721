//! A stream between lanes: what it sends, what waits for room, and how its receivers answer.

use pmd::Burst;
use wire::PacketBuf as _;

use super::answers::Answers;
use super::frame::Serial;
use super::mark::Mark;
use super::parse::{bth, is_between};
use super::ports::Lane;
use super::scenario::Generator;
use super::scenario::check::{Connection, Content, StreamPlan};
use super::sender::Sender;
use super::tally::Tally;
use crate::live::ports::{BURST, Runtime};

#[derive(Debug)]
pub struct Stream {
    pub name: String,
    pub sender: Sender,
    /// The lane at which all its frames are awaited; `None` where flows have ends of their own.
    pub to: Option<usize>,
    pub answers: Option<Answers>,
    /// Frames on their way at a time, at most; 0 for any number.
    pub window: u64,
    /// Frames that wait to be sent, by lane; of one lane unless flows have ends of their own.
    pub waiting: Vec<(usize, Burst)>,
}

impl Stream {
    pub fn new(plan: &StreamPlan, first_flow: u32, generator: &Generator) -> Option<Self> {
        let (to, mut lanes) = match &plan.content {
            Content::Connected { connections, .. } => {
                (None, connections.iter().map(|connection| connection.from).collect())
            }
            _ => (Some(plan.to), vec![plan.from]),
        };
        lanes.sort_unstable();
        lanes.dedup();
        Some(Self {
            name: plan.name.clone(),
            sender: Sender::new(plan, first_flow, generator.seed)?,
            to,
            answers: Answers::of(plan),
            window: plan.window.unwrap_or(generator.window),
            waiting: lanes.into_iter().map(|lane| (lane, Burst::with_capacity(BURST))).collect(),
        })
    }

    /// Lanes at which something of it is awaited: its frames, or answers to them.
    pub fn awaited(&self) -> Vec<usize> {
        let ends = |Connection { from, to, answer, .. }: &Connection| {
            [Some(*to), answer.map(|_| *from)].into_iter().flatten()
        };
        self.sender.connections().iter().flat_map(ends).chain(self.to).collect()
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|(_, burst)| !burst.is_empty())
    }

    /// Room for frames, whichever lane they are for.
    #[inline]
    pub fn room(&self) -> usize {
        self.waiting.iter().map(|(_, burst)| burst.spare()).min().unwrap_or(0)
    }

    /// Makes so many frames, for which there is room, as far as there are buffers. Returns how many, and their bytes.
    #[inline]
    pub fn make(&mut self, runtime: &Runtime, run: u8, now: u64, wanted: u64) -> (u64, u64) {
        let [(_, burst)] = &mut self.waiting[..] else { return self.make_connected(runtime, run, wanted) };
        let (pool, mut made, mut bytes) = (runtime.pool(), 0, 0);
        while made < wanted {
            let Some(packet) = self.sender.make(pool, run, now) else { break };
            bytes += packet.len() as u64;
            if burst.push(packet).is_err() {
                break;
            }
            made += 1;
        }
        (made, bytes)
    }

    /// The same where each flow has a lane of its own.
    #[cold]
    #[inline(never)]
    fn make_connected(&mut self, runtime: &Runtime, run: u8, wanted: u64) -> (u64, u64) {
        let (mut made, mut bytes) = (0, 0);
        while made < wanted {
            let Some((packet, from)) = self.sender.make_connected(runtime.pool(), run) else { break };
            bytes += packet.len() as u64;
            let lane = self.waiting.iter_mut().find(|(lane, _)| *lane == from);
            if lane.is_none_or(|(_, burst)| burst.push(packet).is_err()) {
                break;
            }
            made += 1;
        }
        (made, bytes)
    }

    /// Sends what waits, as far as lanes take it. Returns how many went.
    #[inline]
    pub fn flush(&mut self, lanes: &mut [Lane]) -> u64 {
        self.waiting.iter_mut().map(|(lane, burst)| lanes[*lane].send(burst) as u64).sum()
    }

    /// The ends of a flow, of which this frame came from one to the other, and to the right queue pair.
    fn connection(&self, flow: usize, lane: usize, frame: &[u8]) -> Option<&Connection> {
        let connection = self.sender.connections().get(flow)?;
        (connection.to == lane && is_between(frame, &connection.tuple)).then_some(connection)
    }

    /// Checks a frame of a flow that has ends of its own, and acknowledges it where its receiver does. `false` for one that
    /// came to another receiver, or from another sender, than the flow's.
    #[cold]
    #[inline(never)]
    pub fn take_connected(
        &self,
        flow: u32,
        lane: usize,
        frame: &[u8],
        runtime: &Runtime,
        waiting: &mut Burst,
        tally: &mut Tally,
    ) -> bool {
        let flow = (flow - self.sender.first_flow) as usize;
        let Some(connection) = self.connection(flow, lane, frame) else { return false };
        let (Some(Answers { template, .. }), Some(tuple)) = (&self.answers, &connection.answer) else {
            return true;
        };
        let psn = bth(frame).map_or(0, |bth| bth.psn().get());
        let answer = runtime.pool().alloc().and_then(|mut packet| {
            template.write(
                packet.append(template.len())?,
                tuple,
                Serial { number: 0, psn },
                &Mark::default(),
            );
            waiting.push(packet).ok()
        });
        match answer {
            Some(()) => tally.answers.send(flow, psn),
            None => tally.refused += 1,
        }
        true
    }

    /// Takes in an acknowledgement to a queue pair. `false` when it is none of this stream, or from another than its receiver.
    pub fn take_answer(&self, lane: usize, (qp, psn): (u32, u32), frame: &[u8], tally: &mut Tally) -> bool {
        let Some(flow) = self.answers.as_ref().and_then(|answers| answers.flow(lane, qp)) else {
            return false;
        };
        let answer = self.sender.connections().get(flow).and_then(|connection| connection.answer);
        let is_due = answer.is_some_and(|answer| is_between(frame, &answer));
        if is_due {
            tally.answers.take(flow, psn, frame.len());
        }
        is_due
    }

    /// Takes in a frame of a capture, which has no signature. `false` when it is none of this stream.
    pub fn take_unsigned(&self, lane: usize, frame: &[u8], now: u64, tally: &mut Tally) -> bool {
        let awaited = !self.sender.is_marked() && self.to == Some(lane);
        if awaited {
            tally.arrival = now;
            tally.unmarked.0 += 1;
            tally.unmarked.1 += frame.len() as u64;
        }
        awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::frame::Template;
    use crate::generator::tuple::Tuple;
    use crate::group::traffic;

    #[test]
    fn a_frame_of_another_member_or_to_another_queue_pair_is_a_stray() {
        let plan = &traffic::streams(1, 32)[0];
        let Content::Connected { kinds, connections } = &plan.content else { panic!("{plan:?}") };
        let stream = Stream::new(plan, 0, &Generator::default()).unwrap();
        for (flow, Connection { from, to, kind, tuple, .. }) in connections.iter().enumerate() {
            let kind = &kinds[*kind];
            let template = Template::new(&kind.shape, kind.size as usize, kind.opcode, 1).unwrap();
            let mut frame = vec![0; template.len()];
            let mut is_taken = |lane: usize, tuple: &Tuple| {
                let mark = Mark { roce: true, run: 1, flow: flow as u32, ..Mark::default() };
                template.write(&mut frame, tuple, Serial { number: 0, psn: 0 }, &mark);
                stream.connection(flow, lane, &frame).is_some()
            };
            assert!(is_taken(*to, tuple));
            assert!(!is_taken(*from, tuple), "at another member");
            assert!(!is_taken(*to, &Tuple { qp: tuple.qp + 1, ..*tuple }), "to another queue pair");
            let other = tuple.src_ip ^ 1;
            assert!(!is_taken(*to, &Tuple { src_ip: other, ..*tuple }), "of another member");
        }
    }
}
