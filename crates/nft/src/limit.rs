//! A limit of the connections that each pod may have open, in a table of its own: it exists only where a limit is set, and
//! its counters survive every repair of the other tables.

use ipnet::IpNet;
use types::{AttachmentKey, Digest, NetworkName};

use crate::damage::ListedChain;
use crate::error::Error;
use crate::firewall::Firewall;
use crate::program;
use crate::request;
use crate::ruleset::Family;

const PREFIX: &str = "podwire-limit-";
/// How many pods can be counted at once.
const PODS: u32 = 65535;

/// What one network's pods may have.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimit<'a> {
    pub network: &'a NetworkName,
    /// Addresses in these are pods.
    pub subnets: &'a [IpNet],
    /// Connections per pod; None: no limit.
    pub per_pod: Option<u32>,
}

impl ConnectionLimit<'_> {
    fn table(&self) -> String {
        format!("{PREFIX}{}", AttachmentKey::network_dir(self.network))
    }

    /// The rules. Only the first packet of a connection is counted, and only if the connection is tracked.
    fn rules(&self, per_pod: u32) -> String {
        let of_family = |family: &str, set: &str, is_v4: bool| {
            let subnets = self.subnets.iter().filter(|net| matches!(net, IpNet::V4(_)) == is_v4);
            let list: Vec<String> = subnets.map(ToString::to_string).collect();
            match list.as_slice() {
                [] => String::new(),
                list => format!(
                    "\t\t{family} saddr {{ {} }} add @{set} {{ {family} saddr ct count over {per_pod} }} drop\n",
                    list.join(", ")
                ),
            }
        };
        let [v4, v6] = [of_family("ip", "connections4", true), of_family("ip6", "connections6", false)];
        // A connection without an answer stays new, and is counted once all the same.
        let counted = "\t\tct state != new accept\n\t\tct status confirmed accept\n";
        format!("{counted}\t\tiiftype loopback accept\n{v4}{v6}")
    }
}

/// Named after its rules, so that other rules are noticed.
fn chain(rules: &str) -> String {
    format!("limit-{}", Digest::of(&["connection limit", rules]).base32(13))
}

fn text(table: &str, rules: &str) -> String {
    format!(
        "add table inet {table}
delete table inet {table}
table inet {table} {{
\tcomment \"podwire\"
\tset connections4 {{ type ipv4_addr; size {PODS}; flags dynamic; }}
\tset connections6 {{ type ipv6_addr; size {PODS}; flags dynamic; }}
\tchain {} {{
\t\ttype filter hook prerouting priority -150; policy accept;
{rules}\t}}
}}
",
        chain(rules)
    )
}

impl Firewall {
    /// Puts the limit in force, or removes it; says what was changed. The counters of a limit that is in force already stay.
    pub fn limit_connections(&mut self, limit: &ConnectionLimit<'_>) -> Result<Option<String>, Error> {
        let (table, network) = (limit.table(), limit.network);
        let have = self.limits()?.into_iter().find(|chain| chain.table == table);
        match (limit.per_pod, have) {
            (None, None) => Ok(None),
            (None, Some(_)) => {
                program::apply(&format!("delete table inet {table}\n"))?;
                Ok(Some(format!("connections of pods of {network} are no longer limited")))
            }
            (Some(per_pod), have) => {
                let rules = limit.rules(per_pod);
                if have.is_some_and(|have| have.name == chain(&rules)) {
                    return Ok(None);
                }
                program::apply(&text(&table, &rules))?;
                Ok(Some(format!("pods of {network} may have {per_pod} connections each")))
            }
        }
    }

    /// Removes the limits of these networks, named as their directories are; says what was removed.
    pub fn remove_limits(&mut self, is_own: &dyn Fn(&str) -> bool) -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        for ListedChain { table, .. } in self.limits()? {
            if table.strip_prefix(PREFIX).is_some_and(is_own) {
                program::apply(&format!("delete table inet {table}\n"))?;
                removed.push(format!("nftables table {table} removed"));
            }
        }
        Ok(removed)
    }

    fn limits(&mut self) -> Result<Vec<ListedChain>, Error> {
        let mut chains = self.listed(Family::Inet, &request::get_chains(Family::Inet), ListedChain::read)?;
        chains.retain(|chain| chain.table.starts_with(PREFIX));
        Ok(chains)
    }
}
