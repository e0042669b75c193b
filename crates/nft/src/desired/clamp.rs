//! The table `inet podwire-clamp-NETWORK` clamps the MSS of TCP connections through tunnels. It exists only while the MTU of a
//! pod's link is larger than that of a tunnel, because every forwarded packet passes its chain.

use types::{IfName, NetworkName};

use super::ChainType::Filter;
use super::HookPoint::Forward;
use super::Type::Link;
use super::{Chain, NetworkTable, Set, Table, TableFamily, TableId};
use crate::element::{Element, Field};

const TUNNELS: &str = "tunnels";

pub(crate) fn table(network: &NetworkName) -> Table {
    let chains = vec![
        Chain::plain("clamp", &["tcp flags syn goto clamp-syn"]).at(Filter, Forward, -150),
        Chain::plain(
            "clamp-syn",
            &[
                "oifname @tunnels tcp option maxseg size set rt mtu",
                "iifname @tunnels tcp option maxseg size set rt mtu",
            ],
        ),
    ];
    let name = NetworkTable::Clamp.name(network);
    Table::new(TableFamily::Inet, name, vec![Set::lasting(TUNNELS, &[Link])], chains)
}

pub(crate) fn element<'a>(table: TableId<'a>, tunnel: &'a IfName) -> Element<'a> {
    Element::member(table, TUNNELS, vec![Field::Link(tunnel)])
}
