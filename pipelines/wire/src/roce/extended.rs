//! Which extended headers an opcode brings, and where (IBTA vol. 1 section 9.3, table 38; XRC: annex A14).
//!
//! One table of all opcodes, made at compile time: finding a header is a look-up and an addition.

use super::opcode::Operation;
use super::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Deth, Feth, Ieth, ImmDt, Rdeth, Reth, XrcEth, opcode::CNP,
};

/// Reserved bytes of a CNP (IBTA vol. 1 annex A17.9.3).
pub const CNP_RESERVED: usize = 16;

/// Offsets of the extended headers of one opcode from the start of the BTH; 0 for those that it does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Of the payload: the end of the last header.
    pub payload: u8,
    /// Of the [`Rdeth`].
    pub rdeth: u8,
    /// Of the [`Deth`].
    pub deth: u8,
    /// Of the [`XrcEth`].
    pub xrceth: u8,
    /// Of the [`Feth`].
    pub feth: u8,
    /// Of the [`Reth`].
    pub reth: u8,
    /// Of the [`AtomicEth`].
    pub atomic: u8,
    /// Of the [`Aeth`].
    pub aeth: u8,
    /// Of the [`AtomicAckEth`].
    pub atomic_ack: u8,
    /// Of the [`ImmDt`].
    pub immediate: u8,
    /// Of the [`Ieth`].
    pub ieth: u8,
}

/// By opcode; `payload` 0 where the opcode is unassigned.
static TABLE: [Extended; 256] = table();

const fn table() -> [Extended; 256] {
    let mut table = [Extended::NONE; 256];
    let mut opcode = 0;
    while opcode < 256 {
        if let Some(operation) = Operation::of(opcode as u8) {
            table[opcode] = Extended::build(opcode as u8, operation);
        }
        opcode += 1;
    }
    table
}

impl Extended {
    const NONE: Self = Self {
        payload: 0,
        rdeth: 0,
        deth: 0,
        xrceth: 0,
        feth: 0,
        reth: 0,
        atomic: 0,
        aeth: 0,
        atomic_ack: 0,
        immediate: 0,
        ieth: 0,
    };

    /// No extended headers: what is known of an unassigned opcode.
    pub const UNKNOWN: &'static Self = &Self { payload: BTH_LEN as u8, ..Self::NONE };

    /// The headers of an opcode; `None` when it is unassigned.
    #[inline]
    pub const fn of(opcode: u8) -> Option<&'static Self> {
        let extended = &TABLE[opcode as usize];
        if extended.payload == 0 { None } else { Some(extended) }
    }

    /// Bytes of all of them.
    #[allow(clippy::len_without_is_empty)] // a length in bytes, of no collection
    #[inline]
    pub const fn len(&self) -> usize {
        self.payload as usize - BTH_LEN
    }

    /// Makes room for a header of `len` bytes.
    const fn place(&mut self, len: usize) -> u8 {
        let at = self.payload;
        self.payload += len as u8;
        at
    }

    const fn build(opcode: u8, operation: Operation) -> Self {
        use Operation as Op;
        let mut headers = *Self::UNKNOWN;
        let request = operation.is_request();
        // Headers of the transport come first.
        match opcode >> 5 {
            2 => {
                headers.rdeth = headers.place(size_of::<Rdeth>());
                if request {
                    headers.deth = headers.place(size_of::<Deth>());
                }
            }
            3 => headers.deth = headers.place(size_of::<Deth>()),
            5 if request => headers.xrceth = headers.place(size_of::<XrcEth>()),
            _ => {}
        }
        if matches!(operation, Op::Flush) {
            headers.feth = headers.place(size_of::<Feth>());
        }
        match operation {
            Op::WriteFirst
            | Op::WriteOnly
            | Op::WriteOnlyImm
            | Op::ReadRequest
            | Op::Flush
            | Op::AtomicWrite => headers.reth = headers.place(size_of::<Reth>()),
            Op::CompareSwap | Op::FetchAdd => headers.atomic = headers.place(size_of::<AtomicEth>()),
            Op::ReadResponseFirst | Op::ReadResponseLast | Op::ReadResponseOnly | Op::Ack => {
                headers.aeth = headers.place(size_of::<Aeth>());
            }
            Op::AtomicAck => {
                headers.aeth = headers.place(size_of::<Aeth>());
                headers.atomic_ack = headers.place(size_of::<AtomicAckEth>());
            }
            _ => {}
        }
        match operation {
            Op::SendLastImm | Op::SendOnlyImm | Op::WriteLastImm | Op::WriteOnlyImm => {
                headers.immediate = headers.place(size_of::<ImmDt>());
            }
            Op::SendLastInvalidate | Op::SendOnlyInvalidate => {
                headers.ieth = headers.place(size_of::<Ieth>());
            }
            _ => {}
        }
        if opcode == CNP {
            headers.place(CNP_RESERVED);
        }
        headers
    }
}
