//! The direction of a packet, of a flow, of a rate: as the vNIC sees it.

/// Which way packets go, seen from the vNICs of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Direction {
    /// From a vNIC: to the wire, or to another vNIC of the host.
    Out = 0,
    /// Out of a tunnel, to a vNIC.
    In = 1,
}

impl Direction {
    /// Both directions, each at the index that its number is.
    pub const ALL: [Self; 2] = [Self::Out, Self::In];

    /// The name in config, console and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}
