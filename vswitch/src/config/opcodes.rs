//! Opcodes of RoCEv2 that the standard leaves to vendors (top bits 11), as text: `"0xc4,0xe0-0xff"`.

use std::fmt;

use super::error::quote;
use super::fields::FromText;

/// The first of them.
const FIRST: u8 = 0xc0;

/// Some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VendorOpcodes(u64);

impl VendorOpcodes {
    /// Those whose bits are set, from 0xc0 on.
    #[cfg(test)]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// In ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (FIRST..=u8::MAX).filter(move |opcode| self.0 >> (opcode - FIRST) & 1 != 0)
    }
}

/// An opcode in hexadecimal digits.
fn opcode(text: &str) -> Option<u8> {
    let digits = text.trim().strip_prefix("0x").filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok().filter(|&opcode| opcode >= FIRST)
}

impl FromText for VendorOpcodes {
    fn from_text(text: &str) -> Result<Self, String> {
        let mut bits = 0;
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let range = match part.split_once('-') {
                Some((first, last)) => opcode(first).zip(opcode(last)).filter(|(first, last)| first <= last),
                None => opcode(part).map(|one| (one, one)),
            };
            let Some((first, last)) = range else {
                return Err(format!(
                    "{} is no opcode that RoCEv2 leaves to vendors; write some of 0xc0 to 0xff such as \"0xc4,0xe0-0xff\", or \"\" for none",
                    quote(part.trim())
                ));
            };
            bits |= (first..=last).fold(0, |bits, opcode| bits | 1 << (opcode - FIRST));
        }
        Ok(Self(bits))
    }
}

impl fmt::Display for VendorOpcodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = left.next() {
            let mut last = first;
            while let Some(next) = left.next_if(|&next| next - 1 == last) {
                last = next;
            }
            write!(f, "{separator}{first:#04x}")?;
            if last != first {
                write!(f, "-{last:#04x}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn opcodes_are_read_and_shown_in_order() {
        for (text, shown) in [
            ("", ""),
            ("0xc4", "0xc4"),
            (" 0xe0-0xff , 0xc4", "0xc4,0xe0-0xff"),
            ("0xc0,0xc1,0xc2,0xc4", "0xc0-0xc2,0xc4"),
            ("0xc0-0xff,0xd0", "0xc0-0xff"),
        ] {
            assert_eq!(VendorOpcodes::from_text(text).map(|set| set.to_string()), Ok(shown.to_owned()));
        }
        for bad in ["0x64", "0xbf", "196", "0xc4-", "0xff-0xc0", "0xc4,,0xc5", "0x1c4", "c4", "0x+4"] {
            let error = VendorOpcodes::from_text(bad).unwrap_err();
            assert!(error.contains("0xc0 to 0xff"), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn shown_opcodes_read_back(bits in any::<u64>()) {
            let set = VendorOpcodes::from_bits(bits);
            prop_assert_eq!(VendorOpcodes::from_text(&set.to_string()), Ok(set));
            prop_assert_eq!(set.iter().count() as u32, bits.count_ones());
        }
    }
}
