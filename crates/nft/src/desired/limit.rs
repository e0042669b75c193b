//! The table `inet podwire-limit-NETWORK` limits the open connections of each pod. It exists only if a limit is configured, and its
//! counters survive every repair.
//!
//! There is one counter per pod for both address families and all source addresses. A routed pod is identified by its link. The
//! packets of a pod on a bridge have the bridge as their input interface, so it is identified by its MAC, which the guard does
//! not let it change. Packets from other nodes arrive on other links and are not counted. A link does not identify the network:
//! with several networks on a node, routed pods of all of them are counted, and the lowest limit applies.

use types::{IfName, NetworkName};

use super::ChainType::Filter;
use super::HookPoint::Prerouting;
use super::Type::{Link, Mac};
use super::{Chain, Members, NetworkTable, Set, Table, TableFamily};

/// Pods that can be counted at the same time.
const PODS: u32 = 65535;

/// The limit of one network's pods.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimit<'a> {
    pub network: &'a NetworkName,
    /// The bridge of the network's pods that are not routed.
    pub bridge: &'a IfName,
    /// Connections per pod; None: no limit.
    pub per_pod: Option<u32>,
}

impl ConnectionLimit<'_> {
    /// The table's name.
    pub fn table(&self) -> String {
        NetworkTable::Limit.name(self.network)
    }

    /// Only the first packet of a tracked connection is counted. A connection without a reply stays new and is counted once. A
    /// tunnel may have a name like that of a pod's link, but its kind is not veth.
    ///
    /// The limit is a part of the sets' names, because an element keeps the limit that it was created with. A changed limit starts
    /// to count with new sets.
    pub(crate) fn desired(&self, per_pod: u32) -> Table {
        let counted = |name: &str, key| Set {
            members: Members::Dynamic,
            size: Some(PODS),
            ..Set::lasting(name.to_owned(), &[key])
        };
        let (links, macs) = (format!("links_{per_pod}"), format!("macs_{per_pod}"));
        let rules =
            vec![
            "ct state != new accept".into(),
            "ct status confirmed accept".into(),
            format!(r#"iifname "{}" add @{macs} {{ ether saddr ct count over {per_pod} }} drop"#, self.bridge)
                .into(),
            format!(
                r#"iifname "pw*" meta iifkind "veth" add @{links} {{ iifname ct count over {per_pod} }} drop"#
            )
            .into(),
        ];
        let chain = Chain { rules, ..Chain::plain("connections", &[]).at(Filter, Prerouting, -150) };
        let sets = vec![counted(&links, Link), counted(&macs, Mac)];
        Table::new(TableFamily::Inet, self.table(), sets, vec![chain])
    }
}
