//! A stream being sent: which flow, how long, which number, and the frame itself.

use pmd::{Mbuf, Mempool, rdtsc};
use wire::PacketBuf;

use super::choice::{Dice, FlowChoice, Lengths};
use super::frame::{Serial, Template};
use super::mark::Mark;
use super::scenario::check::{Connection, Content, FrameKind, StreamPlan};
use super::scenario::{Distribution, Protocol};
use super::tuple::Tuples;
use crate::live::pace::Pace;

/// The first packet sequence number of a flow.
#[inline]
pub const fn first_psn(flow: u32) -> u32 {
    flow.wrapping_mul(0x9e_3779) & 0xff_ffff
}

impl Mark {
    /// The number of a packet, and its sequence number.
    #[inline]
    fn serial(&self) -> Serial {
        Serial { number: self.number, psn: first_psn(self.flow).wrapping_add(self.number) & 0xff_ffff }
    }
}

#[derive(Debug)]
pub struct Sender {
    /// The number of its first flow over all streams.
    pub first_flow: u32,
    dice: Dice,
    flows: FlowChoice,
    lengths: Lengths,
    made: Made,
    /// Next number of each flow. Not reset between runs: sequence numbers go on.
    numbers: Vec<u32>,
    /// Which tuple each flow has now.
    tuples: Vec<u32>,
    next_tuple: u64,
    /// Each frame takes the next tuple.
    all_new: bool,
    next_slot: u32,
    churn: u64,
    churn_pace: Pace,
    pub begun: u64,
}

#[derive(Debug)]
enum Made {
    /// By length, then by opcode.
    Templates {
        roce: bool,
        tuples: Box<Tuples>,
        opcodes: u32,
        templates: Vec<Template>,
    },
    Replayed {
        frames: Vec<Vec<u8>>,
        next: usize,
    },
    Connected {
        templates: Vec<Template>,
        connections: Vec<Connection>,
    },
}

impl Sender {
    /// A stream whose flows are numbered from `first_flow` on. `None` for lengths that the plan's check does not let pass.
    pub fn new(plan: &StreamPlan, first_flow: u32, seed: u64) -> Option<Self> {
        let mut dice = Dice::new(seed ^ u64::from(first_flow) << 32);
        let weights: Vec<u32> = plan.sizes.iter().map(|size| size.1).collect();
        let made = match &plan.content {
            Content::Replayed(frames) => Made::Replayed { frames: frames.clone(), next: 0 },
            Content::Made { shape, tuples, opcodes } => {
                let mut templates = Vec::new();
                for &(size, _) in &plan.sizes {
                    for &code in opcodes {
                        templates.push(Template::new(shape, size as usize, code, opcodes.len())?);
                    }
                }
                let roce = matches!(shape.protocol, Protocol::RoceRc | Protocol::RoceUd);
                Made::Templates { roce, tuples: tuples.clone(), opcodes: opcodes.len() as u32, templates }
            }
            Content::Connected { kinds, connections } => {
                let template =
                    |kind: &FrameKind| Template::new(&kind.shape, kind.size as usize, kind.opcode, 1);
                let templates = kinds.iter().map(template).collect::<Option<_>>()?;
                Made::Connected { templates, connections: connections.clone() }
            }
        };
        Some(Self {
            first_flow,
            flows: FlowChoice::new(plan.flows, plan.distribution, plan.exponent),
            lengths: Lengths::new(&weights, &mut dice),
            dice,
            made,
            numbers: vec![0; plan.flows as usize],
            tuples: (0..plan.flows).collect(),
            next_tuple: if plan.distribution == Distribution::New { 0 } else { plan.flows.into() },
            all_new: plan.distribution == Distribution::New,
            next_slot: 0,
            churn: plan.churn,
            churn_pace: Pace::new(0, 1, 0, 0),
            begun: 0,
        })
    }

    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// True when its frames carry signatures.
    pub fn is_marked(&self) -> bool {
        !matches!(self.made, Made::Replayed { .. })
    }

    /// The ends of its flows, where each has its own; else nothing.
    pub fn connections(&self) -> &[Connection] {
        if let Made::Connected { connections, .. } = &self.made { connections } else { &[] }
    }

    /// A run begins at tick `now` of a counter of `hertz`.
    pub fn begin(&mut self, hertz: u64, now: u64) {
        self.begun = 0;
        self.churn_pace = Pace::new(self.churn, hertz, now, u64::from(u32::MAX));
    }

    /// Puts new flows in the places of old ones, as many as are due.
    #[inline]
    pub fn turn_over(&mut self, now: u64) {
        if self.churn == 0 {
            return;
        }
        let Made::Templates { tuples, .. } = &self.made else { return };
        // More than a whole turn would replace flows that sent nothing.
        let due = self.churn_pace.due(now).min(self.tuples.len() as u64);
        let capacity = tuples.capacity().min(1 << 32);
        for _ in 0..due {
            self.tuples[self.next_slot as usize] = self.next_tuple as u32;
            self.next_tuple = if self.next_tuple + 1 >= capacity { 0 } else { self.next_tuple + 1 };
            self.next_slot =
                if self.next_slot as usize + 1 == self.tuples.len() { 0 } else { self.next_slot + 1 };
        }
        self.churn_pace.take(due);
        self.begun += due;
    }

    /// The next frame; `None` when there is no buffer.
    #[inline]
    pub fn make(&mut self, pool: &Mempool, run: u8, now: u64) -> Option<Mbuf> {
        match &mut self.made {
            Made::Replayed { frames, next } => {
                let packet = pool.alloc_from(&frames[*next])?;
                *next = if *next + 1 == frames.len() { 0 } else { *next + 1 };
                Some(packet)
            }
            Made::Templates { roce, tuples, opcodes, templates } => {
                let mut packet = pool.alloc()?;
                let flow = self.flows.draw(&mut self.dice);
                let number = self.numbers[flow as usize];
                let code = if *opcodes == 1 { 0 } else { number % *opcodes };
                let template = &templates[self.lengths.draw() * *opcodes as usize + code as usize];
                let frame = packet.append(template.len())?;
                let tuple = if self.all_new {
                    let tuple = tuples.at(self.next_tuple as u32);
                    let capacity = tuples.capacity().min(1 << 32);
                    self.next_tuple = if self.next_tuple + 1 >= capacity { 0 } else { self.next_tuple + 1 };
                    self.begun += 1;
                    tuple
                } else {
                    tuples.at(self.tuples[flow as usize])
                };
                let mark = Mark { roce: *roce, run, flow: self.first_flow + flow, number, stamp: now };
                template.write(frame, &tuple, mark.serial(), &mark);
                self.numbers[flow as usize] = number.wrapping_add(1);
                Some(packet)
            }
            Made::Connected { .. } => self.make_connected(pool, run).map(|(packet, _)| packet),
        }
    }

    /// The next frame of flows with ends of their own, and the lane from which it goes.
    #[cold]
    #[inline(never)]
    pub fn make_connected(&mut self, pool: &Mempool, run: u8) -> Option<(Mbuf, usize)> {
        let Made::Connected { templates, connections } = &self.made else { return None };
        let mut packet = pool.alloc()?;
        let flow = self.flows.draw(&mut self.dice);
        let Connection { kind, tuple, from, .. } = &connections[flow as usize];
        let frame = packet.append(templates[*kind].len())?;
        let number = &mut self.numbers[flow as usize];
        // Each bears the very time at which it was made: they are sent one by one.
        let mark = Mark { roce: true, run, flow: self.first_flow + flow, number: *number, stamp: rdtsc() };
        templates[*kind].write(frame, tuple, mark.serial(), &mark);
        *number = number.wrapping_add(1);
        Some((packet, *from))
    }
}
