//! The signature at the end of every frame's payload: whose it is, its number, when it was made.
//!
//! It stands last, in front of the ICRC of a RoCEv2 packet, so that it is found from a frame's end whatever
//! a switch puts in front of it or takes away there.

/// Bytes of the signature.
pub const LEN: usize = 16;
/// Bytes behind it in a RoCEv2 packet.
pub const ICRC: usize = wire::roce::ICRC_LEN;

const PLAIN: u16 = 0x6a76;
const ROCE: u16 = 0x6a72;
const STAMP: u64 = (1 << 48) - 1;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// It is of a RoCEv2 packet.
    pub roce: bool,
    /// The run, never 0: what is late from an earlier one does not count in this one.
    pub run: u8,
    /// The flow, over all streams; 24 bits.
    pub flow: u32,
    pub number: u32,
    /// When it was made: the low 48 bits of the time stamp counter.
    pub stamp: u64,
}

impl Mark {
    #[inline]
    pub fn bytes(&self) -> [u8; LEN] {
        let magic = u64::from(if self.roce { ROCE } else { PLAIN });
        let low = magic
            | u64::from(self.run) << 16
            | u64::from(self.flow & 0xff_ffff) << 24
            | u64::from(self.number & 0xffff) << 48;
        let high = u64::from(self.number >> 16) | (self.stamp & STAMP) << 16;
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&low.to_le_bytes());
        bytes[8..].copy_from_slice(&high.to_le_bytes());
        bytes
    }

    /// The signature of a frame, if it has one.
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Self> {
        // With an ICRC first: in a frame without one those bytes are a header's or zeros, and no run is 0.
        let before_icrc = frame.len().checked_sub(ICRC).and_then(|end| frame.get(..end)?.last_chunk());
        before_icrc
            .and_then(|bytes| Self::read(bytes, ROCE))
            .or_else(|| frame.last_chunk().and_then(|bytes| Self::read(bytes, PLAIN)))
    }

    #[inline]
    fn read(bytes: &[u8; LEN], magic: u16) -> Option<Self> {
        let (low, high) = bytes.split_first_chunk::<8>()?;
        let (low, high) = (u64::from_le_bytes(*low), u64::from_le_bytes(*high.first_chunk()?));
        let mark = Self {
            roce: magic == ROCE,
            run: (low >> 16) as u8,
            flow: (low >> 24) as u32 & 0xff_ffff,
            number: (low >> 48) as u32 | (high as u32 & 0xffff) << 16,
            stamp: high >> 16,
        };
        (low as u16 == magic && mark.run != 0).then_some(mark)
    }

    /// Ticks from its making to tick `now`.
    #[inline]
    pub fn age(&self, now: u64) -> u64 {
        now.wrapping_sub(self.stamp) & STAMP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_from_the_end() {
        for roce in [false, true] {
            let mark = Mark { roce, run: 250, flow: 0xab_cdef, number: 0x8765_c321, stamp: 0xfedc_ba98_7654 };
            let mut frame = vec![0; 44];
            frame.extend(mark.bytes());
            if roce {
                frame.extend([1, 2, 3, 4]);
            }
            assert_eq!(Mark::of(&frame), Some(mark));
            frame.push(0);
            assert_eq!(Mark::of(&frame), None);
        }
    }

    #[test]
    fn other_frames_have_none() {
        for len in [0, 3, 15, 16, 19, 20, 64] {
            assert_eq!(Mark::of(&vec![0; len]), None);
            assert_eq!(Mark::of(&vec![0xff; len]), None);
        }
        let nobody = Mark { roce: false, run: 0, flow: 1, number: 1, stamp: 1 };
        assert_eq!(Mark::of(&nobody.bytes()), None);
    }

    #[test]
    fn ages_survive_the_wrap_of_48_bits() {
        let mark = Mark { roce: false, run: 1, flow: 0, number: 0, stamp: STAMP - 9 };
        assert_eq!(Mark::of(&mark.bytes()).unwrap().age((7 << 48) + 10), 20);
    }
}
