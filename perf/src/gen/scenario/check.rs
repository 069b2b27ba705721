//! From a scenario as it is written to one that makes sense: names resolved, ranges and lengths checked, templates made.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};

use toml::Spanned;
use wire::MacAddr;
use wire::roce::{Operation, opcode};

use super::{Attachment, Distribution, Load, Protocol, Scenario, Size, SourceText, StreamSpec, Test};
use crate::generator::frame::{FCS, Outer, Shape, TUNNEL};
use crate::generator::tuple::{Tuple, Tuples};
use crate::generator::units::{Addresses, Macs, Numbers, Range, Rate};
use crate::pcap;
use crate::{Error, Result};

/// The longest frame, frame check sequence included.
pub const LONGEST: u32 = 9018;
/// The signature numbers flows with 24 bits.
const FLOWS: u64 = 1 << 24;
const IMIX: [(u32, u32); 3] = [(64, 7), (594, 4), (1518, 1)];

#[derive(Debug, Clone)]
pub struct Plan {
    pub ports: Vec<PortPlan>,
    pub streams: Vec<StreamPlan>,
}

#[derive(Debug, Clone)]
pub struct PortPlan {
    pub name: String,
    pub attachment: Attachment,
    pub descriptors: u16,
    pub rx_queues: u16,
}

#[derive(Debug, Clone)]
pub struct StreamPlan {
    pub name: String,
    pub from: usize,
    /// The port at which it is awaited.
    pub to: usize,
    pub rate: Rate,
    /// Frames on their way at a time, where that is not the generator's.
    pub window: Option<u64>,
    /// Lengths of frames, frame check sequence included, and their weights.
    pub sizes: Vec<(u32, u32)>,
    pub flows: u32,
    /// New flows per second.
    pub churn: u64,
    pub distribution: Distribution,
    pub exponent: f64,
    pub content: Content,
}

#[derive(Debug, Clone)]
pub enum Content {
    Made {
        shape: Shape,
        tuples: Box<Tuples>,
        /// What each flow sends, again and again; one 0 for what is no RoCEv2.
        opcodes: Vec<u8>,
    },
    Replayed(Vec<Vec<u8>>),
    /// Flows with ends of their own, as machines have that talk with each other.
    Connected {
        kinds: Vec<FrameKind>,
        connections: Vec<Connection>,
    },
}

/// Frames of a [`Content::Connected`].
#[derive(Debug, Clone)]
pub struct FrameKind {
    pub shape: Shape,
    /// Frame check sequence included.
    pub size: u32,
    pub opcode: u8,
}

/// A flow from a port to another.
#[derive(Debug, Clone)]
pub struct Connection {
    pub from: usize,
    pub to: usize,
    /// Which of the kinds its frames are.
    pub kind: usize,
    pub tuple: Tuple,
    /// Of the acknowledgement with which its receiver answers each frame; nothing if it does not.
    pub answer: Option<Tuple>,
}

impl StreamPlan {
    /// One flow as fast as it goes, with the generator's window.
    pub fn new(name: &str, from: usize, to: usize, sizes: Vec<(u32, u32)>, content: Content) -> Self {
        Self {
            name: name.into(),
            from,
            to,
            rate: Rate::Max,
            window: None,
            sizes,
            flows: 1,
            churn: 0,
            distribution: Distribution::InTurn,
            exponent: 1.0,
            content,
        }
    }

    /// Mean length of its frames, frame check sequence and tunnel included.
    pub fn mean_bytes(&self) -> f64 {
        let tunnel = match &self.content {
            Content::Made { shape, .. } if shape.tunnel.is_some() => TUNNEL as f64,
            _ => 0.0,
        };
        let weights: u32 = self.sizes.iter().map(|size| size.1).sum();
        let bytes: f64 = self.sizes.iter().map(|&(size, weight)| f64::from(size) * f64::from(weight)).sum();
        bytes / f64::from(weights.max(1)) + tunnel
    }

    pub fn longest(&self) -> usize {
        self.sizes.iter().map(|size| size.0 as usize + TUNNEL).max().unwrap_or(0)
    }

    /// The same with frames of one length; says the least length where that is too short.
    pub fn with_size(&self, size: u32) -> Result<Self, u32> {
        let Content::Made { shape, opcodes, .. } = &self.content else { return Ok(self.clone()) };
        let least = opcodes.iter().map(|&code| shape.least(code)).max().unwrap_or(0) as u32;
        if size < least || !opcodes.iter().all(|&code| fits(shape, size, code)) {
            return Err(least);
        }
        Ok(Self { sizes: vec![(size, 1)], ..self.clone() })
    }
}

/// RoCEv2 packets are padded to four bytes; with padding the signature would not be last.
fn fits(shape: &Shape, size: u32, code: u8) -> bool {
    size as usize >= shape.least(code)
        && (!shape.protocol.is_roce() || (size as usize - FCS - shape.headers_len(code)).is_multiple_of(4))
}

impl Scenario {
    pub fn check(&self, source: &SourceText) -> Result<Plan> {
        if self.ports.is_empty() || self.streams.is_empty() {
            return Err(source.error(0, "there must be a [[port]] and a [[stream]] at least; add them"));
        }
        self.check_run(source)?;
        let mut ports: Vec<PortPlan> = Vec::new();
        for (index, port) in self.ports.iter().enumerate() {
            let name = port.name.get_ref().clone();
            if ports.iter().any(|other| other.name == name) {
                return Err(source.at(&port.name, format!("there is a port `{name}` already; rename one")));
            }
            let attachment = port.attachment(index, source)?;
            let (descriptors, rx_queues) = (port.descriptors(), port.rx_queues());
            ports.push(PortPlan { name, attachment, descriptors, rx_queues });
        }
        let mut streams: Vec<StreamPlan> = Vec::new();
        for spec in &self.streams {
            if streams.iter().any(|other| other.name == *spec.name.get_ref()) {
                return Err(source.at(&spec.name, "there is a stream of this name already; rename one"));
            }
            let stream = Checker { spec, source }.stream(&ports)?;
            let before: u64 = streams.iter().map(|stream| u64::from(stream.flows)).sum();
            if before + u64::from(stream.flows) > FLOWS {
                let what = format!("all streams together have more than {FLOWS} flows; write fewer");
                return Err(source.error(at(&spec.flows, &spec.name), what));
            }
            streams.push(stream);
        }
        Ok(Plan { ports, streams })
    }

    fn check_run(&self, source: &SourceText) -> Result<()> {
        let (run, generator) = (&self.run, &self.generator);
        let sensible = |load: &Load| match *load {
            Load::Share(percent) => percent > 0.0 && percent <= 100.0,
            Load::Rate(rate) => matches!(rate, Rate::Packets(_)),
        };
        let searched = run.tests.iter().any(|test| matches!(test, Test::Throughput | Test::Latency));
        let rules = [
            (!run.tests.is_empty(), "[run] tests is empty; write tests = [\"traffic\"], or leave it out"),
            (
                (0.05..=86_400.0).contains(&run.seconds) && (0.05..=3600.0).contains(&run.trial),
                "[run] seconds or trial is not in 0.05 to 3600 seconds; 10 and 2 are good numbers",
            ),
            (
                (0.0..=3600.0).contains(&run.warm_up) && (0.0..=60.0).contains(&generator.calibrate),
                "[run] warm-up or [generator] calibrate is no number of seconds; 0.5 is good for both",
            ),
            (
                (0.0..=100.0).contains(&run.loss) && (0.01..=50.0).contains(&run.resolution),
                "[run] loss is not in 0 to 100 or resolution not in 0.01 to 50 percent",
            ),
            (
                run.loads.is_empty() || searched,
                "[run] loads go with tests = [\"throughput\"], which says what they are shares of",
            ),
            (
                run.loads.iter().all(sensible),
                "[run] loads are percents of the throughput, over 0 to 100, or frames a second, as in \"800kpps\"",
            ),
            (
                (1023..=4_194_303).contains(&generator.mbufs),
                "[generator] mbufs is not in 1023 to 4194303; 32767 is a good number",
            ),
            (generator.backlog > 0, "[generator] backlog = 0 would send nothing; 256 is a good number"),
        ];
        if let Some((_, what)) = rules.iter().find(|(is_kept, _)| !is_kept) {
            return Err(source.error(0, *what));
        }
        match self.run.sizes.iter().find(|size| !(64..=LONGEST).contains(size.get_ref())) {
            Some(size) => {
                Err(source.at(size, format!("a frame has 64 to {LONGEST} bytes; write another size")))
            }
            None => Ok(()),
        }
    }
}

fn at<T, U>(value: &Option<Spanned<T>>, otherwise: &Spanned<U>) -> usize {
    value.as_ref().map_or(otherwise.span().start, |value| value.span().start)
}

struct Checker<'a> {
    spec: &'a StreamSpec,
    source: &'a SourceText,
}

impl Checker<'_> {
    fn wrong<T>(&self, value: &Option<Spanned<T>>, what: impl Display) -> Error {
        self.source.error(at(value, &self.spec.name), what)
    }

    /// Fails at a value for which a rule is not kept.
    fn rule<T>(&self, is_kept: bool, value: &Option<Spanned<T>>, what: impl Display) -> Result<()> {
        if is_kept { Ok(()) } else { Err(self.wrong(value, what)) }
    }

    fn stream(&self, ports: &[PortPlan]) -> Result<StreamPlan> {
        let spec = self.spec;
        let content = self.content()?;
        let flows = spec.flows.as_ref().map_or(1, |flows| flows.get_ref().0);
        let capacity = match &content {
            Content::Made { tuples, .. } => tuples.capacity(),
            Content::Replayed(_) | Content::Connected { .. } => 1,
        };
        let most = capacity.min(FLOWS);
        let what = format!(
            "{flows} flows cannot be made: addresses, ports, queue pairs and VNIs allow 1 to {most}; widen a range \
             (src-port = \"1024..65535\", qp = \"0x100..0xffff\") or write fewer flows"
        );
        self.rule((1..=most).contains(&flows), &spec.flows, what)?;
        let churn = spec.churn.as_ref().map_or(0, |churn| churn.get_ref().0);
        let what = "with distribution = \"new\" every frame is of a new flow already; remove churn";
        self.rule(churn == 0 || spec.distribution != Distribution::New, &spec.churn, what)?;
        let what = "no flow is left to be new: the ranges hold as many as `flows` takes; widen one of them";
        self.rule(churn == 0 || capacity > flows, &spec.churn, what)?;
        let exponent = spec.zipf_exponent.as_ref().map_or(1.0, |exponent| *exponent.get_ref());
        let is_zipf = spec.zipf_exponent.is_none() || spec.distribution == Distribution::Zipf;
        let what = "an exponent goes with distribution = \"zipf\" and is in 0 to 10; correct one of them";
        self.rule(is_zipf && (0.0..=10.0).contains(&exponent), &spec.zipf_exponent, what)?;
        let (from, to) = (self.port(&spec.from, ports)?, self.port(&spec.to, ports)?);
        let sizes = self.sizes(&content)?;
        Ok(StreamPlan {
            rate: spec.rate,
            window: spec.window,
            flows: flows as u32,
            churn,
            distribution: spec.distribution,
            exponent,
            ..StreamPlan::new(spec.name.get_ref(), from, to, sizes, content)
        })
    }

    fn port(&self, name: &Spanned<String>, ports: &[PortPlan]) -> Result<usize> {
        ports.iter().position(|port| port.name == *name.get_ref()).ok_or_else(|| {
            let known: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
            let what = format!("there is no port `{}`; there are {}", name.get_ref(), known.join(", "));
            self.source.at(name, what)
        })
    }

    fn content(&self) -> Result<Content> {
        let spec = self.spec;
        let protocol = *spec.protocol.get_ref();
        if protocol == Protocol::Pcap {
            return self.replayed();
        }
        self.rule(spec.file.is_none(), &spec.file, "a file goes with protocol = \"pcap\"; remove it")?;
        let roce = protocol.is_roce();
        let what = "queue pairs and opcodes go with protocol = \"roce-rc\" or \"roce-ud\"; remove them";
        self.rule(roce || spec.qp.is_none(), &spec.qp, what)?;
        self.rule(roce || spec.opcodes.is_none(), &spec.opcodes, what)?;
        let what = "RoCEv2 goes to UDP port 4791 always; remove the key";
        self.rule(!roce || spec.dst_port.is_none(), &spec.dst_port, what)?;
        let addresses = |given: &Option<Spanned<Addresses>>, key: &str, usual: Ipv4Addr| match given {
            Some(given) => Ok(*given.get_ref()),
            None if spec.src_ip.is_none() && spec.dst_ip.is_none() => {
                Ok(Addresses { v6: false, range: Range::one(usual.to_bits().into()) })
            }
            None => Err(self.source.at(&spec.name, format!("this stream has no `{key}`; add it"))),
        };
        let src = addresses(&spec.src_ip, "src-ip", Ipv4Addr::new(198, 18, 0, 1))?;
        let dst = addresses(&spec.dst_ip, "dst-ip", Ipv4Addr::new(198, 19, 0, 1))?;
        let what = "src-ip and dst-ip are of two IP versions; write both in one";
        self.rule(src.v6 == dst.v6, &spec.dst_ip, what)?;
        let port = |given: &Option<Spanned<Numbers>>, usual: u128| self.numbers(given, usual, 0xffff);
        let src_port = match (&spec.src_port, roce) {
            (None, true) => None,
            (given, _) => Some(port(given, 49_152)?),
        };
        let vni = match &spec.vxlan {
            Some(tunnel) => self.numbers(&Some(tunnel.vni.clone()), 0, 0xff_ffff)?,
            None => Range::one(0),
        };
        let usual_port = if roce { 4791 } else { 7 };
        let tuples = Box::new(Tuples {
            src_mac: spec.src_mac.unwrap_or(Macs::one(MacAddr([2, 0, 0, 0, 0, 1]))),
            dst_mac: spec.dst_mac.unwrap_or(Macs::one(MacAddr([2, 0, 0, 0, 0, 2]))),
            src_ip: src.range,
            dst_ip: dst.range,
            src_port,
            dst_port: port(&spec.dst_port, usual_port)?,
            qp: self.numbers(&spec.qp, 0x100, 0xff_ffff)?,
            vni,
        });
        let vlan = spec.vlan.as_ref().map(|vlan| *vlan.get_ref());
        let is_id = vlan.is_none_or(|vlan| (1..=4094).contains(&vlan));
        self.rule(is_id, &spec.vlan, "a VLAN id is in 1 to 4094; write one of those")?;
        let shape = Shape { protocol, v6: src.v6, tos: spec.tos, vlan, syn: spec.syn, tunnel: self.outer()? };
        Ok(Content::Made { shape, tuples, opcodes: self.opcodes(protocol)? })
    }

    fn replayed(&self) -> Result<Content> {
        let spec = self.spec;
        let Some(file) = &spec.file else {
            let what = "protocol = \"pcap\" needs the capture's path; add file = \"...\"";
            return Err(self.source.at(&spec.protocol, what));
        };
        if spec.vxlan.is_some() || spec.flows.is_some() || spec.size.is_some() || spec.src_ip.is_some() {
            let what = "frames of a capture are sent unchanged; remove size, flows, addresses and vxlan";
            return Err(self.source.at(&spec.protocol, what));
        }
        let frames = pcap::read(file.get_ref()).map_err(|error| {
            let what =
                format!("{error}; give the path of a capture of Ethernet frames in the classic pcap format");
            self.source.at(file, what)
        })?;
        let longest = frames.iter().map(Vec::len).max().unwrap_or(0);
        if frames.is_empty() || longest + FCS > LONGEST as usize {
            let what = format!("it has no frames, or one over {LONGEST} bytes; choose another capture");
            return Err(self.source.at(file, what));
        }
        Ok(Content::Replayed(frames))
    }

    fn numbers(&self, given: &Option<Spanned<Numbers>>, usual: u128, most: u128) -> Result<Range> {
        let range = given.as_ref().map_or(Range::one(usual), |given| given.get_ref().0);
        let what = format!("the highest value here is {most}; write a lower one");
        self.rule(range.last() <= most, given, what).map(|()| range)
    }

    fn outer(&self) -> Result<Option<Outer>> {
        let Some(tunnel) = &self.spec.vxlan else { return Ok(None) };
        let end = |address: &Spanned<Addresses>, mac: Macs| match address.get_ref().first() {
            IpAddr::V4(ip) if address.get_ref().range.count == 1 && mac.0.count == 1 => Ok((mac.at(0), ip)),
            _ => {
                let what = "a tunnel goes from one IPv4 address to another, not between IPv6 addresses or ranges; \
                            write a stream per tunnel";
                Err(self.source.at(address, what))
            }
        };
        Ok(Some(Outer {
            src: end(&tunnel.src_ip, tunnel.src_mac)?,
            dst: end(&tunnel.dst_ip, tunnel.dst_mac)?,
        }))
    }

    fn opcodes(&self, protocol: Protocol) -> Result<Vec<u8>> {
        let (transport, usual) = match protocol {
            Protocol::RoceRc => (0, "write-only"),
            Protocol::RoceUd => (opcode::UD_SEND_ONLY & 0xe0, "send-only"),
            _ => return Ok(vec![0]),
        };
        let usual = vec![usual.to_owned()];
        let names = self.spec.opcodes.as_ref().map_or(&usual, |names| names.get_ref());
        let known = (0..0x20).map(|code| transport | code).filter_map(|code| {
            let operation = Operation::of(code)?;
            (operation.carries_payload() && operation.is_request()).then_some((operation.name(), code))
        });
        let known: Vec<_> = known.collect();
        let find = |name: &String| known.iter().find(|(other, _)| other == name).map(|(_, code)| *code);
        let codes: Option<Vec<u8>> = names.iter().map(find).collect();
        codes.filter(|codes| (1..=64).contains(&codes.len())).ok_or_else(|| {
            let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            let what = format!(
                "opcodes is a list of 1 to 64 requests with a payload, which holds the signature: {}",
                known.join(", ")
            );
            self.wrong(&self.spec.opcodes, what)
        })
    }

    fn sizes(&self, content: &Content) -> Result<Vec<(u32, u32)>> {
        let spec = self.spec;
        let (shape, opcodes) = match content {
            Content::Made { shape, opcodes, .. } => (shape, opcodes),
            Content::Replayed(frames) => {
                return Ok(frames.iter().map(|frame| ((frame.len() + FCS) as u32, 1)).collect());
            }
            Content::Connected { kinds, .. } => return Ok(kinds.iter().map(|kind| (kind.size, 1)).collect()),
        };
        let least = opcodes.iter().map(|&code| shape.least(code)).max().unwrap_or(0) as u32;
        let sizes = match spec.size.as_ref().map(Spanned::get_ref) {
            None => vec![(least.max(64), 1)],
            Some(Size::One(size)) => vec![(*size, 1)],
            Some(Size::Mixed(sizes)) => sizes.clone(),
            Some(Size::Named(name)) if name == "imix" => {
                IMIX.iter().map(|&(size, weight)| (size.max(least), weight)).collect()
            }
            Some(Size::Named(name)) => {
                let what = format!(
                    "there is no mixture `{name}`; write \"imix\", a number, or [[64, 7], [1518, 1]]"
                );
                return Err(self.wrong(&spec.size, what));
            }
        };
        let weights: u64 = sizes.iter().map(|size| u64::from(size.1)).sum();
        let is_sound = (1..=255).contains(&sizes.len()) && (1..=100_000).contains(&weights);
        let what =
            "a mixture has 1 to 255 lengths, and weights of 1 to 100000 in all; write fewer or smaller ones";
        self.rule(is_sound, &spec.size, what)?;
        for &(size, _) in &sizes {
            let what = format!(
                "a frame of {size} bytes: these have {least} (headers, signature, frame check sequence) to \
                 {LONGEST}; write a size in between"
            );
            self.rule((least..=LONGEST).contains(&size), &spec.size, what)?;
            if let Some(&code) = opcodes.iter().find(|&&code| !fits(shape, size, code)) {
                let rest = (size as usize - FCS - shape.headers_len(code)) % 4;
                let what = format!(
                    "a RoCEv2 payload of {size} bytes less the headers is no multiple of 4; write {}",
                    size as usize - rest
                );
                return Err(self.wrong(&spec.size, what));
            }
        }
        Ok(sizes)
    }
}
