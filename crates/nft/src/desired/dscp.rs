//! The table `inet podwire-dscp-NETWORK` sets the DSCP of packets that pods send. It exists only while the profile of a group has a
//! DSCP, because every packet of the host passes its chain: one lookup of the input interface.
//!
//! nft cannot set a DSCP from a map, so the map of links has jumps to a chain for each of the 64 values. The chains are constant, and
//! a changed profile changes only elements. The chain's priority is that of mangle, so rules of other programs behind it see the new
//! value.

use std::sync::LazyLock;

use types::{IfName, NetworkName};

use super::ChainType::Filter;
use super::HookPoint::Prerouting;
use super::Type::Link;
use super::{Chain, MapVerdict, Name, NetworkTable, Set, SetValue, Table, TableFamily, TableId};
use crate::element::{Data, Element, Field};

pub(crate) const LINKS: &str = "links";

/// The value of the DSCP field of IPv4 and IPv6 packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(u8);

impl Dscp {
    const COUNT: u8 = 64;

    /// None if the field cannot have this value.
    pub fn new(value: u8) -> Option<Self> {
        (value < Self::COUNT).then_some(Self(value))
    }

    fn chain(self) -> &'static str {
        static CHAINS: LazyLock<Vec<String>> =
            LazyLock::new(|| (0..Dscp::COUNT).map(|value| format!("dscp-{value}")).collect());
        &CHAINS[usize::from(self.0)]
    }
}

pub(crate) fn table(network: &NetworkName) -> Table {
    let mark = Chain::plain("set-dscp", &["iifname vmap @links"]).at(Filter, Prerouting, -150);
    let values = (0..Dscp::COUNT).map(Dscp).map(|dscp| Chain {
        name: dscp.chain().into(),
        base: None,
        rules: ["ip", "ip6"].map(|family| Name::from(format!("{family} dscp set {}", dscp.0))).to_vec(),
    });
    let links = Set { value: SetValue::Verdict, ..Set::lasting(LINKS, &[Link]) };
    let name = NetworkTable::Dscp.name(network);
    Table::new(TableFamily::Inet, name, vec![links], [mark].into_iter().chain(values).collect())
}

pub(crate) fn element<'a>(table: TableId<'a>, link: &'a IfName, dscp: Dscp) -> Element<'a> {
    Element::new(table, LINKS, vec![Field::Link(link)], Data::Verdict(MapVerdict::Goto(dscp.chain())))
}
