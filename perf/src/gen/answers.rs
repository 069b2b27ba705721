//! Acknowledgements of reliable connections: how the receivers of a stream answer, and what became of their answers.

use std::collections::{HashMap, VecDeque};

use super::frame::Template;
use super::ledger::Received;
use super::scenario::check::{Connection, Content, StreamPlan};

/// Answers of a flow that are remembered after a later one came, or nobody waited any more.
const REMEMBERED: usize = 64;

/// How the receivers of a stream acknowledge.
#[derive(Debug)]
pub struct Answers {
    pub template: Template,
    /// The flow, by the lane and the queue pair to which its acknowledgements go.
    flows: HashMap<(usize, u32), usize>,
}

impl Answers {
    /// `None` where nothing is answered, or acknowledgements cannot be made.
    pub fn of(plan: &StreamPlan) -> Option<Self> {
        let Content::Connected { kinds, connections } = &plan.content else { return None };
        let answered = connections.iter().find(|connection| connection.answer.is_some())?;
        let template = Template::acknowledgement(&kinds[answered.kind].shape)?;
        let place = |(flow, connection): (usize, &Connection)| {
            connection.answer.map(|answer| ((connection.from, answer.qp), flow))
        };
        Some(Self { template, flows: connections.iter().enumerate().filter_map(place).collect() })
    }

    /// The flow of an acknowledgement to a queue pair behind a lane.
    pub fn flow(&self, lane: usize, qp: u32) -> Option<usize> {
        self.flows.get(&(lane, qp)).copied()
    }
}

/// Acknowledgements that were sent in a run and came back: by flow, in the order of their sequence numbers.
#[derive(Debug, Default)]
pub struct AnswerTally {
    pub sent: u64,
    pub received: Received,
    /// Those that are still waited for.
    pub awaited: u64,
    flows: Vec<Flow>,
}

#[derive(Debug, Default, Clone)]
struct Flow {
    /// Sequence numbers of answers that were sent and have not come, the oldest first.
    missing: VecDeque<u32>,
    /// So many of them, the oldest, are not waited for: a later one came, which stands for them too, or time ran out.
    late: usize,
}

impl AnswerTally {
    /// Nothing is kept for streams that are not answered.
    pub fn new(answers: Option<&Answers>, flows: usize) -> Self {
        Self { flows: vec![Flow::default(); if answers.is_some() { flows } else { 0 }], ..Self::default() }
    }

    pub fn send(&mut self, flow: usize, psn: u32) {
        let Some(flow) = self.flows.get_mut(flow) else { return };
        self.sent += 1;
        self.awaited += 1;
        flow.missing.push_back(psn);
        if flow.late > REMEMBERED {
            flow.missing.pop_front();
            flow.late -= 1;
        }
    }

    pub fn take(&mut self, flow: usize, psn: u32, bytes: usize) {
        let Some(flow) = self.flows.get_mut(flow) else { return };
        let received = &mut self.received;
        received.frames += 1;
        received.bytes += bytes as u64;
        let Some(place) = flow.missing.iter().rposition(|&missing| missing == psn) else {
            received.duplicates += 1;
            received.psn_back += 1;
            return;
        };
        flow.missing.remove(place);
        if place < flow.late {
            received.psn_back += 1;
            flow.late -= 1;
        } else {
            received.psn_gaps += u64::from(place > flow.late);
            self.awaited -= (place - flow.late) as u64 + 1;
            flow.late = place;
        }
    }

    /// Waits no longer for what is missing.
    pub fn write_off(&mut self) {
        self.awaited = 0;
        self.flows.iter_mut().for_each(|flow| flow.late = flow.missing.len());
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::Generator;
    use super::super::stream::Stream;
    use super::super::tally::Tally;
    use super::*;
    use crate::group::traffic;

    fn answered() -> AnswerTally {
        AnswerTally { flows: vec![Flow::default(); 2], ..AnswerTally::default() }
    }

    /// Frames, those that came again, out of sequence, awaited.
    fn found(tally: &AnswerTally) -> (u64, u64, u64, u64) {
        let received = &tally.received;
        (received.frames, received.duplicates, received.out_of_sequence(), tally.awaited)
    }

    #[test]
    fn answers_come_in_the_order_in_which_they_were_sent() {
        let mut tally = answered();
        // A number that was lost on the way there is never answered, which is no fault of the answers.
        [0xff_ffff, 0, 2].into_iter().for_each(|psn| tally.send(1, psn));
        let mut take = |psn| {
            tally.take(1, psn, 62);
            found(&tally)
        };
        assert_eq!([0xff_ffff, 0, 2].map(&mut take), [(1, 0, 0, 2), (2, 0, 0, 1), (3, 0, 0, 0)]);
        assert_eq!(take(2), (4, 1, 1, 0), "again");
    }

    #[test]
    fn a_later_answer_stands_for_those_before_it_which_are_late_then() {
        let mut tally = answered();
        [5, 6, 7, 8].into_iter().for_each(|psn| tally.send(0, psn));
        let mut take = |psn| {
            tally.take(0, psn, 62);
            found(&tally)
        };
        assert_eq!([7, 8, 5].map(&mut take), [(1, 0, 1, 1), (2, 0, 1, 0), (3, 0, 2, 0)]);
        assert_eq!(tally.sent - tally.received.distinct(), 1, "6 is lost");
    }

    #[test]
    fn a_late_answer_does_not_stand_for_one_that_is_missing() {
        let mut tally = answered();
        tally.send(0, 5);
        tally.write_off();
        assert_eq!(found(&tally), (0, 0, 0, 0));
        tally.send(0, 6);
        tally.take(0, 5, 62);
        assert_eq!(found(&tally), (1, 0, 1, 1), "6 is still awaited");
        tally.take(0, 6, 62);
        assert_eq!(found(&tally), (2, 0, 1, 0));
        // Nobody waits for any of these, and what is remembered of them has an end.
        for psn in 0..1000 {
            tally.send(0, psn);
            tally.write_off();
        }
        assert!(tally.flows[0].missing.len() <= REMEMBERED + 1);
    }

    #[test]
    fn nothing_is_kept_where_nothing_is_answered() {
        for (plan, kept) in [(&traffic::direct(32), 0), (&traffic::streams(1, 32)[0], 112)] {
            let stream = Stream::new(plan, 0, &Generator::default()).unwrap();
            assert_eq!(Tally::new(&stream, &Default::default()).answers.flows.len(), kept);
        }
    }

    #[test]
    fn an_acknowledgement_is_of_the_flow_whose_queue_pair_it_is_to() {
        let plan = &traffic::streams(2, 32)[1];
        let Content::Connected { connections, .. } = &plan.content else { panic!("{plan:?}") };
        let answers = Answers::of(plan).unwrap();
        for (flow, connection) in connections.iter().enumerate() {
            let Some(answer) = connection.answer else { continue };
            assert_eq!(answers.flow(connection.from, answer.qp), Some(flow));
            assert_eq!(answers.flow(connection.to, answer.qp), None);
        }
    }
}
