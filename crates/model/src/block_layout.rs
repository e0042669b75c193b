//! A subnet that is divided into blocks of equal size.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use types::Special;

/// More blocks than any cluster has nodes. An index must fit into a `u64`.
const MAX_MARGIN: u8 = 32;
/// A smaller block has no addresses for pods besides its network, gateway and broadcast address.
const MAX_LENGTH_V4: u8 = 29;
const MAX_LENGTH_V6: u8 = 125;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockLayoutError {
    #[error(
        "{subnet} cannot be divided with a margin of {margin} bits: blocks would have prefix length {length}, at most {longest} is possible"
    )]
    TooSmall { subnet: IpNet, margin: u8, length: u16, longest: u8 },
    #[error("{subnet} cannot be divided with a margin of {margin} bits: at most {MAX_MARGIN} are allowed")]
    TooMany { subnet: IpNet, margin: u8 },
    #[error("{subnet} cannot be a pod network: it includes {kind} address")]
    Special { subnet: IpNet, kind: Special },
}

/// A subnet, and the number of bits by which the prefixes of its blocks are longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockLayout {
    subnet: IpNet,
    margin: u8,
}

impl BlockLayout {
    pub fn new(subnet: IpNet, margin: u8) -> Result<Self, BlockLayoutError> {
        let longest = if matches!(subnet, IpNet::V4(_)) { MAX_LENGTH_V4 } else { MAX_LENGTH_V6 };
        let length = u16::from(subnet.prefix_len()) + u16::from(margin);
        if margin > MAX_MARGIN {
            return Err(BlockLayoutError::TooMany { subnet, margin });
        }
        // An undivided subnet may have any size that the network's configuration allows.
        if margin > 0 && length > u16::from(longest) {
            return Err(BlockLayoutError::TooSmall { subnet, margin, length, longest });
        }
        if let Some(kind) = Special::of(subnet) {
            return Err(BlockLayoutError::Special { subnet, kind });
        }
        Ok(Self { subnet: subnet.trunc(), margin })
    }

    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// The number of blocks.
    pub fn count(&self) -> u64 {
        1 << self.margin
    }

    /// The prefix length of its blocks.
    pub fn length(&self) -> u8 {
        self.subnet.prefix_len() + self.margin
    }

    /// The n-th block, modulo the number of blocks.
    pub fn block(&self, n: u64) -> IpNet {
        let n = n % self.count();
        let shift = self.subnet.max_prefix_len() - self.length();
        let address = match self.subnet.network() {
            IpAddr::V4(network) => {
                let offset = u32::try_from(n << shift).unwrap_or_default();
                IpAddr::V4(Ipv4Addr::from(u32::from(network) | offset))
            }
            IpAddr::V6(network) => IpAddr::V6(Ipv6Addr::from(u128::from(network) | (u128::from(n) << shift))),
        };
        // `new` checked the length.
        IpNet::new_assert(address, self.length())
    }

    /// Whether this is a block of the subnet.
    pub fn owns(&self, block: &IpNet) -> bool {
        self.subnet.contains(block) && block.prefix_len() == self.length() && block.trunc() == *block
    }

    /// The blocks that overlap one of these parts of the subnet.
    pub fn within<'a>(&'a self, parts: &'a [IpNet]) -> impl Iterator<Item = IpNet> + 'a {
        parts.iter().filter(|part| self.subnet.contains(*part)).flat_map(|part| {
            let first = self.index_of(part.network());
            let bits = self.length().saturating_sub(part.prefix_len());
            (first..first.saturating_add(1 << bits)).map(|n| self.block(n))
        })
    }

    /// The index of the block with this address of the subnet.
    fn index_of(&self, address: IpAddr) -> u64 {
        let shift = self.subnet.max_prefix_len() - self.length();
        let offset = match (address, self.subnet.network()) {
            (IpAddr::V4(address), IpAddr::V4(network)) => u128::from(u32::from(address) - u32::from(network)),
            (IpAddr::V6(address), IpAddr::V6(network)) => u128::from(address) - u128::from(network),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => 0,
        };
        u64::try_from(offset.checked_shr(shift.into()).unwrap_or(0)).unwrap_or(u64::MAX)
    }

    /// All blocks that are not taken, starting with the n-th and wrapping around.
    pub fn offer(
        &self,
        start: u64,
        is_taken: impl Fn(&IpNet) -> bool,
    ) -> BlockCandidates<impl Fn(&IpNet) -> bool> {
        BlockCandidates { block_layout: *self, start: start % self.count(), tried: 0, is_taken }
    }
}

/// Blocks that can be claimed, in order.
#[derive(Debug, Clone)]
pub struct BlockCandidates<F> {
    block_layout: BlockLayout,
    start: u64,
    tried: u64,
    is_taken: F,
}

impl<F: Fn(&IpNet) -> bool> Iterator for BlockCandidates<F> {
    type Item = IpNet;

    fn next(&mut self) -> Option<IpNet> {
        while self.tried < self.block_layout.count() {
            let block = self.block_layout.block(self.start.wrapping_add(self.tried));
            self.tried += 1;
            if !(self.is_taken)(&block) {
                return Some(block);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn block_layout(subnet: &str, margin: u8) -> BlockLayout {
        BlockLayout::new(subnet.parse().unwrap(), margin).unwrap()
    }

    #[test]
    fn a2_the_margin_is_extra_prefix_bits() {
        let block_layout = block_layout("10.2.0.0/16", 8);
        assert_eq!(block_layout.count(), 256);
        assert_eq!(block_layout.block(0).to_string(), "10.2.0.0/24");
        assert_eq!(block_layout.block(255).to_string(), "10.2.255.0/24");
        assert_eq!(block_layout.block(256), block_layout.block(0));
        let six = self::block_layout("fd00:2::/64", 8);
        assert_eq!(six.block(0xab).to_string(), "fd00:2:0:0:ab00::/72");
        let all: BTreeSet<IpNet> = (0..256).map(|n| six.block(n)).collect();
        assert_eq!(all.len(), 256);
        assert!(all.iter().all(|block| six.owns(block)));
    }

    #[test]
    fn without_a_margin_the_subnet_is_one_block() {
        let block_layout = block_layout("10.88.0.0/16", 0);
        assert_eq!((block_layout.count(), block_layout.block(5).to_string()), (1, "10.88.0.0/16".to_owned()));
        assert_eq!(self::block_layout("64.0.0.0/3", 21).block(u64::MAX).to_string(), "95.255.255.0/24");
    }

    #[test]
    fn only_aligned_blocks_of_the_subnet_are_owned() {
        let block_layout = block_layout("10.2.0.0/16", 8);
        for other in ["10.3.0.0/24", "10.2.0.0/25", "10.2.0.0/16", "fd00::/24", "10.2.1.5/24"] {
            assert!(!block_layout.owns(&other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn d_the_blocks_of_a_part_are_those_that_overlap_it() {
        let within = |layout: &BlockLayout, parts: &[&str]| -> Vec<String> {
            let parts: Vec<IpNet> = parts.iter().map(|part| part.parse().unwrap()).collect();
            layout.within(&parts).map(|block| block.to_string()).collect()
        };
        let v4 = block_layout("10.2.0.0/16", 8);
        assert_eq!(
            within(&v4, &["10.2.7.64/28", "10.2.254.0/23"]),
            ["10.2.7.0/24", "10.2.254.0/24", "10.2.255.0/24"]
        );
        assert_eq!(within(&v4, &["10.3.0.0/24", "10.0.0.0/8", "fd00::/64"]), [""; 0]);
        let v6 = block_layout("fd00:2::/64", 8);
        assert_eq!(within(&v6, &["fd00:2:0:0:ab00::/73"]), ["fd00:2:0:0:ab00::/72"]);
        let undivided = block_layout("10.2.0.0/16", 0);
        assert_eq!(within(&undivided, &["10.2.7.0/24"]), ["10.2.0.0/16"]);
    }

    #[test]
    fn a_margin_that_leaves_no_space_for_pods_is_refused() {
        let refused =
            |subnet: &str, margin| BlockLayout::new(subnet.parse().unwrap(), margin).unwrap_err().to_string();
        assert!(refused("10.2.0.0/24", 6).contains("prefix length 30, at most 29"));
        assert!(refused("fd00::/120", 6).contains("at most 125"));
        assert!(refused("fd00::/16", 33).contains("at most 32"));
        assert!(refused("fd00::/16", 255).contains("at most 32"));
    }

    #[test]
    fn a_network_with_special_addresses_is_refused() {
        for (subnet, kind) in [
            ("127.0.0.0/8", "a loopback"),
            ("169.254.0.0/16", "a link-local"),
            ("0.0.0.0/8", "an unspecified"),
            ("224.0.0.0/4", "a multicast"),
            ("240.0.0.0/8", "a reserved"),
            ("fe80::/64", "a link-local"),
            ("ff00::/16", "a multicast"),
        ] {
            let error = BlockLayout::new(subnet.parse().unwrap(), 8).unwrap_err().to_string();
            assert!(error.contains(subnet) && error.contains(kind), "{error}");
        }
    }

    #[test]
    fn all_free_blocks_are_offered_once_from_any_start() {
        let block_layout = block_layout("10.2.0.0/24", 3);
        for start in [0, 5, 7, 8, u64::MAX] {
            let taken = block_layout.block(6);
            let offered: Vec<IpNet> = block_layout.offer(start, |block| *block == taken).collect();
            assert_eq!(offered.len(), 7);
            assert_eq!(offered.iter().collect::<BTreeSet<_>>().len(), 7);
        }
        assert_eq!(block_layout.offer(3, |_| false).next(), Some(block_layout.block(3)));
        assert_eq!(block_layout.offer(3, |_| true).next(), None);
    }
}
