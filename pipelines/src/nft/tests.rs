//! The NFT against a linear twin.
