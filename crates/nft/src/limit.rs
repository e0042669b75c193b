//! A limit of the connections that each pod may have open, in a table of its own, `inet podwire-limit-NETWORK`: it exists only
//! where a limit is set, and its counters survive every repair of the other tables.
//!
//! One counter per pod, for both address families and every source address. A routed pod is known by its link. The packets
//! of a pod on a bridge have the bridge as their input interface: it is known by its MAC, which the guard does not let it
//! change. Packets from other nodes come by other links and are not counted. A link does not say of which network its pod
//! is: with several networks on a node, routed pods of all of them are counted, and the lowest limit applies.

use types::{AttachmentKey, Digest, IfName, NetworkName};

use crate::error::Error;
use crate::firewall::Firewall;
use crate::program;
use crate::request;
use crate::ruleset::{REVISION, REVISION_KEY};

const LIMIT: &str = "limit the connections of pods";
const PREFIX: &str = "podwire-limit-";
/// How many pods can be counted at once.
const PODS: u32 = 65535;

/// Is this the name of a table of limits?
pub(crate) fn is_limit_table(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes())
}

/// What one network's pods may have.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimit<'a> {
    pub network: &'a NetworkName,
    /// Where the network's pods are that are not routed.
    pub bridge: &'a IfName,
    /// Connections per pod; None: no limit.
    pub per_pod: Option<u32>,
}

impl ConnectionLimit<'_> {
    pub fn table(&self) -> String {
        format!("{PREFIX}{}", AttachmentKey::network_dir(self.network))
    }

    /// The table. Only the first packet of a connection is counted, and only if the connection is tracked. A tunnel may have
    /// a name like that of a pod's link, but is no veth.
    fn structure(&self, per_pod: u32) -> String {
        let (table, bridge) = (self.table(), self.bridge);
        format!(
            "table inet {table} {{
\tcomment \"podwire\"
\tmap {REVISION} {{ type mark : mark; }}
\tset links {{ type ifname; size {PODS}; flags dynamic; }}
\tset macs {{ type ether_addr; size {PODS}; flags dynamic; }}
\tchain connections {{ type filter hook prerouting priority -150; policy accept; }}
}}
table inet {table} {{
\tchain connections {{
\t\tct state != new accept
\t\t# a connection without an answer stays new, and is counted once all the same
\t\tct status confirmed accept
\t\tiifname \"{bridge}\" add @macs {{ ether saddr ct count over {per_pod} }} drop
\t\tiifname \"pw*\" meta iifkind \"veth\" add @links {{ iifname ct count over {per_pod} }} drop
\t}}
}}
"
        )
    }
}

/// A number that changes with the text.
fn revision(structure: &str) -> u32 {
    let [a, b, c, d, _] = Digest::of(&["connection limit", structure]).first5();
    u32::from_be_bytes([a, b, c, d])
}

/// Replaces the table: counting begins again.
fn text(table: &str, structure: &str) -> String {
    // Added first, because deleting one that is not there fails.
    format!(
        "add table inet {table}\ndelete table inet {table}\n{structure}\
         add element inet {table} {REVISION} {{ {REVISION_KEY} : {:#010x} }}\n",
        revision(structure)
    )
}

impl Firewall {
    /// Puts the limit in force, or removes it; says what was changed. A table that is missing or damaged is replaced; the
    /// counters of one that is as it should be stay.
    pub fn limit_connections(&mut self, limit: &ConnectionLimit<'_>) -> Result<Option<String>, Error> {
        let (table, network) = (limit.table(), limit.network);
        let Some(per_pod) = limit.per_pod else {
            let removed = self.delete_named(LIMIT, &table)?;
            return Ok(removed.then(|| format!("connections of pods of {network} are no longer limited")));
        };
        let structure = limit.structure(per_pod);
        let damage = self.damage_of_named(&table, &structure, revision(&structure))?;
        if damage.is_empty() {
            return Ok(None);
        }
        program::apply(&text(&table, &structure))?;
        match self.damage_of_named(&table, &structure, revision(&structure))?.as_slice() {
            [] => Ok(Some(format!(
                "pods of {network} may have {per_pod} connections each ({})",
                damage.join(", ")
            ))),
            left => {
                Err(Error::Structure { message: format!("it was applied, and still: {}", left.join(", ")) })
            }
        }
    }

    /// Removes the limits of these networks, named as their directories are; says what was removed.
    pub fn remove_limits(&mut self, is_own: &dyn Fn(&str) -> bool) -> Result<Vec<String>, Error> {
        let mut tables = Vec::new();
        self.dump_if_there(&request::tables(), |table| tables.extend(request::name_of_table(table)))?;
        let mut removed = Vec::new();
        for table in tables.iter().filter(|table| table.strip_prefix(PREFIX).is_some_and(is_own)) {
            if self.delete_named(LIMIT, table)? {
                removed.push(format!("nftables table {table} removed"));
            }
        }
        Ok(removed)
    }
}
