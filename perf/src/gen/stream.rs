//! A stream between lanes: what it sends, what waits for room, and how its receivers answer.

use pmd::Burst;
use wire::PacketBuf as _;

use super::frame::{Serial, Template, acknowledged, bth};
use super::mark::Mark;
use super::ports::Lane;
use super::scenario::Generator;
use super::scenario::check::{Connection, Content, StreamPlan};
use super::sender::Sender;
use super::tally::Tally;
use super::tuple::Tuple;
use crate::live::ports::{BURST, Runtime};

#[derive(Debug)]
pub struct Stream {
    pub name: String,
    pub sender: Sender,
    /// Where each flow goes; one where it is the same for all.
    pub ends: Vec<Ends>,
    pub answers: Option<Answers>,
    /// Frames on their way at a time, at most; 0 for any number.
    pub window: u64,
    /// Frames that wait to be sent, by lane.
    pub waiting: Vec<(usize, Burst)>,
}

/// Lanes from which and to which a flow goes, and the place of what waits for the first.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    pub from: usize,
    pub to: usize,
    pub place: usize,
}

/// How the receivers of a stream acknowledge: the tuple by flow, where they do.
#[derive(Debug)]
pub struct Answers {
    template: Template,
    tuples: Vec<Option<Tuple>>,
}

impl Answers {
    /// `None` where nothing is answered, or acknowledgements cannot be made.
    fn of(plan: &StreamPlan) -> Option<Self> {
        let Content::Connected { kinds, connections } = &plan.content else { return None };
        let tuples: Vec<_> = connections.iter().map(|connection| connection.answer).collect();
        let answered = tuples.iter().position(Option::is_some)?;
        let template = Template::acknowledgement(&kinds[connections[answered].kind].shape)?;
        Some(Self { template, tuples })
    }

    /// The flow that a frame acknowledges.
    fn flow(&self, frame: &[u8]) -> Option<usize> {
        let qp = acknowledged(frame)?;
        self.tuples.iter().position(|tuple| tuple.is_some_and(|tuple| tuple.qp == qp))
    }
}

impl Stream {
    pub fn new(plan: &StreamPlan, first_flow: u32, generator: &Generator) -> Option<Self> {
        let pairs = match &plan.content {
            Content::Connected { connections, .. } => {
                connections.iter().map(|&Connection { from, to, .. }| (from, to)).collect()
            }
            _ => vec![(plan.from, plan.to)],
        };
        let mut lanes: Vec<usize> = pairs.iter().map(|pair| pair.0).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let place = |from| lanes.iter().position(|lane| *lane == from).unwrap_or(0);
        let ends = pairs.into_iter().map(|(from, to)| Ends { from, to, place: place(from) }).collect();
        Some(Self {
            name: plan.name.clone(),
            sender: Sender::new(plan, first_flow, generator.seed)?,
            ends,
            answers: Answers::of(plan),
            window: plan.window.unwrap_or(generator.window),
            waiting: lanes.into_iter().map(|lane| (lane, Burst::with_capacity(BURST))).collect(),
        })
    }

    #[inline]
    pub fn ends(&self, flow: usize) -> Ends {
        self.ends[if self.ends.len() == 1 { 0 } else { flow }]
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|(_, burst)| !burst.is_empty())
    }

    /// Room for frames, whichever lane they are for.
    #[inline]
    pub fn room(&self) -> usize {
        self.waiting.iter().map(|(_, burst)| burst.spare()).min().unwrap_or(0)
    }

    /// Sends what waits, as far as lanes take it. Returns how many went.
    #[inline]
    pub fn flush(&mut self, lanes: &mut [Lane]) -> u64 {
        self.waiting.iter_mut().map(|(lane, burst)| lanes[*lane].send(burst) as u64).sum()
    }

    /// Acknowledges a frame of a flow, where its receiver does.
    #[inline]
    pub fn answer(
        &self,
        flow: usize,
        frame: &[u8],
        runtime: &Runtime,
        waiting: &mut Burst,
        tally: &mut Tally,
    ) {
        let Some(Answers { template, tuples }) = &self.answers else { return };
        let Some(tuple) = &tuples[flow] else { return };
        let psn = bth(frame).map_or(0, |bth| bth.psn().get());
        let sent = runtime.pool().alloc().is_some_and(|mut packet| {
            let Some(frame) = packet.append(template.len()) else { return false };
            template.write(frame, tuple, Serial { number: 0, psn }, &Mark::default());
            waiting.push(packet).is_ok()
        });
        tally.answers_sent += u64::from(sent);
        tally.refused += u64::from(!sent);
    }

    /// Takes in a frame without a signature: of a capture, or an acknowledgement. `false` when it is neither.
    pub fn take_unsigned(&self, lane: usize, frame: &[u8], now: u64, tally: &mut Tally) -> bool {
        if !self.sender.is_marked() {
            let awaited = self.ends(0).to == lane;
            if awaited {
                tally.arrival = now;
                tally.unmarked.0 += 1;
                tally.unmarked.1 += frame.len() as u64;
            }
            return awaited;
        }
        let flow = self.answers.as_ref().and_then(|answers| answers.flow(frame));
        let Some(flow) = flow.filter(|&flow| self.ends(flow).from == lane) else { return false };
        tally.answers.take_answer(flow, frame);
        true
    }
}
