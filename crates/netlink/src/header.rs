//! The fixed headers of rtnetlink messages, field by field as in `linux/rtnetlink.h` and `linux/if_link.h`.
//!
//! Attributes follow each header; `wire` reads and writes them. Flags, scopes and types are numbers with the names of libc.

/// The fixed header at the start of a message.
pub(crate) trait Header: Sized {
    const SIZE: usize;

    /// Appends the header in the kernel's layout.
    fn write(&self, bytes: &mut Vec<u8>);

    /// Parses the header of a message. `None` if the message is too short.
    fn parse(message: &[u8]) -> Option<Self>;

    /// The attributes after the header. Empty if the message is too short.
    fn attributes(message: &[u8]) -> &[u8] {
        message.get(Self::SIZE..).unwrap_or_default()
    }
}

/// `struct ifinfomsg`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LinkHeader {
    pub(crate) index: u32,
    pub(crate) flags: u32,
    pub(crate) change_mask: u32,
}

impl Header for LinkHeader {
    const SIZE: usize = 16;

    fn write(&self, bytes: &mut Vec<u8>) {
        // Family and link layer type are zero (unspecified).
        bytes.extend_from_slice(&[0; 4]);
        for field in [self.index, self.flags, self.change_mask] {
            bytes.extend_from_slice(&field.to_ne_bytes());
        }
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = message.first_chunk()?;
        Some(Self { index: u32_at(bytes, 4), flags: u32_at(bytes, 8), change_mask: u32_at(bytes, 12) })
    }
}

/// `struct ifaddrmsg`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AddressHeader {
    pub(crate) family: u8,
    pub(crate) prefix_len: u8,
    pub(crate) flags: u8,
    pub(crate) scope: u8,
    pub(crate) index: u32,
}

impl Header for AddressHeader {
    const SIZE: usize = 8;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&[self.family, self.prefix_len, self.flags, self.scope]);
        bytes.extend_from_slice(&self.index.to_ne_bytes());
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = message.first_chunk()?;
        let [family, prefix_len, flags, scope, ..] = *bytes;
        Some(Self { family, prefix_len, flags, scope, index: u32_at(bytes, 4) })
    }
}

/// `struct rtmsg`. Source length and TOS are always zero.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RouteHeader {
    pub(crate) family: u8,
    pub(crate) dst_len: u8,
    pub(crate) table: u8,
    pub(crate) protocol: u8,
    pub(crate) scope: u8,
    pub(crate) kind: u8,
    pub(crate) flags: u32,
}

impl Header for RouteHeader {
    const SIZE: usize = 12;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&[self.family, self.dst_len, 0, 0]);
        bytes.extend_from_slice(&[self.table, self.protocol, self.scope, self.kind]);
        bytes.extend_from_slice(&self.flags.to_ne_bytes());
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = message.first_chunk()?;
        let [family, dst_len, _, _, table, protocol, scope, kind, ..] = *bytes;
        Some(Self { family, dst_len, table, protocol, scope, kind, flags: u32_at(bytes, 8) })
    }
}

/// `struct ndmsg`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NeighbourHeader {
    pub(crate) family: u8,
    pub(crate) link: u32,
    pub(crate) state: u16,
    pub(crate) flags: u8,
}

impl Header for NeighbourHeader {
    const SIZE: usize = 12;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&[self.family, 0, 0, 0]);
        bytes.extend_from_slice(&self.link.to_ne_bytes());
        bytes.extend_from_slice(&self.state.to_ne_bytes());
        bytes.extend_from_slice(&[self.flags, 0]);
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = message.first_chunk()?;
        let state = u16::from_ne_bytes([bytes[8], bytes[9]]);
        Some(Self { family: bytes[0], link: u32_at(bytes, 4), state, flags: bytes[10] })
    }
}

/// `struct tcmsg`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TcHeader {
    pub(crate) link: u32,
    pub(crate) handle: u32,
    pub(crate) parent: u32,
    pub(crate) info: u32,
}

impl Header for TcHeader {
    const SIZE: usize = 20;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&[0; 4]);
        for field in [self.link, self.handle, self.parent, self.info] {
            bytes.extend_from_slice(&field.to_ne_bytes());
        }
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = message.first_chunk()?;
        let [link, handle, parent, info] = [4, 8, 12, 16].map(|at| u32_at(bytes, at));
        Some(Self { link, handle, parent, info })
    }
}

fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a header and parses it with attributes behind it. A message that is one byte too short has no header.
    fn assert_round_trip<H: Header + std::fmt::Debug>(header: &H) {
        let mut bytes = Vec::new();
        header.write(&mut bytes);
        assert_eq!(bytes.len(), H::SIZE);
        assert!(H::parse(&bytes[1..]).is_none());
        bytes.push(9);
        assert_eq!(format!("{:?}", H::parse(&bytes).unwrap()), format!("{header:?}"));
        assert_eq!(H::attributes(&bytes), [9]);
        assert!(H::attributes(&bytes[..4]).is_empty());
    }

    #[test]
    fn headers_round_trip() {
        assert_round_trip(&LinkHeader { index: 0x0102_0304, flags: 5, change_mask: u32::MAX });
        assert_round_trip(&AddressHeader { family: 2, prefix_len: 24, flags: 0x80, scope: 254, index: 7 });
        assert_round_trip(&RouteHeader {
            family: 10,
            dst_len: 64,
            table: 254,
            protocol: 112,
            scope: 253,
            kind: 1,
            flags: 0x0403_0201,
        });
        assert_round_trip(&NeighbourHeader { family: 7, link: 0x0102_0304, state: 0x8001, flags: 2 });
        assert_round_trip(&TcHeader { link: 3, handle: 0xffff_0000, parent: 0xffff_fff1, info: 0x0001_0003 });
    }
}
