//! Templates of frames and what is patched into them for each flow: the file that the template device reads, and a
//! model of what it makes of it.
//!
//! Where the fields are and which flow has which value is `program.rs`'s business.

use std::fmt::Write as _;

/// Bytes of a frame that the device writes; the rest of its buffers is written once.
pub const HEAD: usize = 128;

/// Flow numbers are below this.
const NUMBERS: u64 = 1 << 24;

/// Where a patch takes its bits from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// The flow's number, from this bit on.
    Flow(u32),
    Round,
}

/// `base + (bits & mask) * factor`, modulo 2^32, written at `offset` in network order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch {
    pub offset: usize,
    /// 2 or 4 bytes.
    pub width: usize,
    pub bits: Bits,
    pub mask: u32,
    /// 1, or all ones where the field gets less by what another gets more.
    pub factor: u32,
    pub base: u32,
}

impl Patch {
    /// The same field in a frame that has `bytes` more in front of it.
    pub fn behind(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }

    fn text(&self) -> String {
        let shift = match self.bits {
            Bits::Flow(shift) => shift,
            Bits::Round => 32,
        };
        format!("{}:{}:{shift}:{}:{}:{}", self.offset, self.width, self.mask, self.factor, self.base)
    }
}

/// A frame before it is patched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTemplate {
    pub length: usize,
    /// How it begins, at most [`HEAD`] bytes.
    pub head: Vec<u8>,
    pub patches: Vec<Patch>,
}

/// What a device makes: so many flows, from a power of two of templates by turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub flows: u32,
    /// Flows of each round that give way to new ones in the next.
    pub churn: u32,
    /// Whether flows come by Zipf's law once all of them have come twice.
    pub zipf: bool,
    /// Flow F is of template F modulo their number.
    pub templates: Vec<DeviceTemplate>,
}

impl Program {
    /// The text that the device reads.
    pub fn text(&self) -> String {
        let mut text = format!("flows {}\nchurn {}\n", self.flows, self.churn);
        if self.zipf {
            text.push_str("zipf\n");
        }
        for template in &self.templates {
            // Writing into a String cannot fail.
            let _ = write!(text, "template {} ", template.length);
            for byte in &template.head {
                let _ = write!(text, "{byte:02x}");
            }
            for patch in &template.patches {
                let _ = write!(text, " {}", patch.text());
            }
            text.push('\n');
        }
        text
    }

    /// How many flows are in the frames of a device that has made so many, at most.
    pub fn flows_among(&self, made: u64) -> usize {
        let begun = made / u64::from(self.flows) + 2;
        let replaced = if self.churn == 0 { 0 } else { begun * u64::from(self.churn) };
        (u64::from(self.flows) + replaced).min(NUMBERS) as usize
    }

    fn template(&self, flow: u32) -> &DeviceTemplate {
        &self.templates[flow as usize & (self.templates.len() - 1)]
    }

    pub fn frame(&self, round: u32, flow: u32) -> Vec<u8> {
        let template = self.template(flow);
        let mut frame = template.head.clone();
        // The device writes the number of the byte into every byte behind the head.
        frame.extend((template.head.len()..template.length).map(|at| (at & 0xff) as u8));
        for patch in &template.patches {
            let bits = match patch.bits {
                Bits::Flow(shift) => flow >> shift,
                Bits::Round => round,
            };
            let value = patch.base.wrapping_add((bits & patch.mask).wrapping_mul(patch.factor)).to_be_bytes();
            frame[patch.offset..patch.offset + patch.width].copy_from_slice(&value[4 - patch.width..]);
        }
        frame
    }
}
