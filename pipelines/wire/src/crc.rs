//! CRCs of 32 bits: that of IEEE 802.3, which RoCEv2 has ([`crate::icrc`]), and that of SCTP ([`crate::sctp`]).
//!
//! From a state to the state after some bytes, neither inverted: packets come in pieces.

/// The polynomial of IEEE 802.3, bit-reversed.
const IEEE: u32 = 0xedb8_8320;
/// That of Castagnoli (RFC 9260 appendix A), so too.
const CASTAGNOLI: u32 = 0x82f6_3b78;

/// `TABLES[k][b]` is the effect of byte `b` on the state after `k` further zero bytes.
type Tables = [[u32; 256]; 8];

static IEEE_TABLES: Tables = tables(IEEE);
static CASTAGNOLI_TABLES: Tables = tables(CASTAGNOLI);

const fn tables(polynomial: u32) -> Tables {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut state, mut bit) = (byte as u32, 0);
        while bit < 8 {
            state = if state & 1 != 0 { state >> 1 ^ polynomial } else { state >> 1 };
            bit += 1;
        }
        tables[0][byte] = state;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

#[inline(always)]
fn update(tables: &Tables, mut state: u32, bytes: &[u8]) -> u32 {
    // Eight bytes a step: their effects are looked up side by side instead of one after another.
    let (blocks, rest) = bytes.as_chunks::<8>();
    for block in blocks {
        let [a, b, c, d, e, f, g, h] = (u64::from_le_bytes(*block) ^ u64::from(state)).to_le_bytes();
        state = tables[7][usize::from(a)]
            ^ tables[6][usize::from(b)]
            ^ tables[5][usize::from(c)]
            ^ tables[4][usize::from(d)]
            ^ tables[3][usize::from(e)]
            ^ tables[2][usize::from(f)]
            ^ tables[1][usize::from(g)]
            ^ tables[0][usize::from(h)];
    }
    for byte in rest {
        state = state >> 8 ^ tables[0][usize::from(state as u8 ^ byte)];
    }
    state
}

/// The state of the CRC of IEEE 802.3 after `bytes`.
pub fn ieee(state: u32, bytes: &[u8]) -> u32 {
    update(&IEEE_TABLES, state, bytes)
}

/// The state of CRC32c after `bytes`.
pub fn castagnoli(state: u32, bytes: &[u8]) -> u32 {
    update(&CASTAGNOLI_TABLES, state, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, bit by bit.
    fn slow(polynomial: u32, mut state: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            for bit in 0..8 {
                let one = (state ^ u32::from(byte >> bit)) & 1 != 0;
                state = if one { state >> 1 ^ polynomial } else { state >> 1 };
            }
        }
        state
    }

    #[test]
    fn check_values() {
        assert_eq!(!ieee(!0, b"123456789"), 0xcbf4_3926);
        assert_eq!(!castagnoli(!0, b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(state in any::<u32>(), bytes in prop::collection::vec(any::<u8>(), 0..70)) {
            prop_assert_eq!(ieee(state, &bytes), slow(IEEE, state, &bytes));
            prop_assert_eq!(castagnoli(state, &bytes), slow(CASTAGNOLI, state, &bytes));
        }
    }
}
