use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::inspect::{all_addresses, links, list, nft_json};
use crate::{DEADLINE, Ns, wait_until};

/// What is configured in a namespace, one line per object; what comes and goes by itself (counters, carrier, learned
/// neighbours, lifetimes) is left out. Two snapshots are equal when nothing was made, changed or lost in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    lines: BTreeSet<String>,
}

/// What one snapshot has and another has not; empty if they are equal. Prints itself as lines with `-` and `+`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub gone: Vec<String>,
    pub new: Vec<String>,
}

impl Snapshot {
    pub fn of(ns: &Ns) -> Result<Self> {
        let mut lines = BTreeSet::new();
        for link in links(ns)? {
            let state = if link.is_up() { "up" } else { "down" };
            let kind = link.kind().unwrap_or("plain");
            let more = [
                ("mac", &link.mac),
                ("master", &link.master),
                ("group", &link.group),
                ("alias", &link.alias),
            ];
            let more = more.iter().filter_map(|(key, value)| Some(format!(" {key} {}", value.as_ref()?)));
            let more: String = more.collect();
            lines.insert(format!("link {} {} {kind} {state} mtu {}{more}", link.index, link.name, link.mtu));
        }
        for address in all_addresses(ns)? {
            lines.insert(format!("address {} {} scope {}", address.dev, address.net, address.scope));
        }
        for family in ["-4", "-6"] {
            let show = ["ip", family, "-d", "-j", "route", "show", "table", "all"];
            insert_all(
                &mut lines,
                &format!("route {family}"),
                list(ns, &show)?.into_iter().filter_map(stable_route),
            );
            insert_all(
                &mut lines,
                &format!("rule {family}"),
                list(ns, &["ip", family, "-j", "rule", "show"])?,
            );
        }
        insert_all(&mut lines, "neighbour", list(ns, &["ip", "-j", "neigh", "show", "nud", "permanent"])?);
        insert_all(&mut lines, "proxy", list(ns, &["ip", "-j", "neigh", "show", "proxy"])?);
        let qdiscs = list(ns, &["tc", "-j", "qdisc", "show"])?.into_iter();
        insert_all(&mut lines, "qdisc", qdiscs.map(|qdisc| without(qdisc, &["refcnt"])));
        lines.extend(settled_nft(ns)?.into_iter().flat_map(nft_lines));
        Ok(Self { lines })
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    pub fn difference(&self, later: &Self) -> Difference {
        Difference {
            gone: self.lines.difference(&later.lines).cloned().collect(),
            new: later.lines.difference(&self.lines).cloned().collect(),
        }
    }

    /// An error that shows what changed since this snapshot.
    pub fn expect_same(&self, ns: &Ns) -> Result<()> {
        let difference = self.difference(&Self::of(ns)?);
        if !difference.is_empty() {
            bail!("{} is not as it was:\n{difference}", ns.name());
        }
        Ok(())
    }

    /// As `expect_same`, for what the kernel finishes by itself: the links of a destroyed namespace vanish a little later.
    pub fn wait_for_same(&self, ns: &Ns, within: Duration) -> Result<()> {
        wait_until("the namespace to be as it was", within, || self.expect_same(ns).map(|()| true))
    }
}

impl Difference {
    pub fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.new.is_empty()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gone = self.gone.iter().map(|line| ("-", line));
        let new = self.new.iter().map(|line| ("+", line));
        for (number, (sign, line)) in gone.chain(new).enumerate() {
            write!(f, "{}  {sign} {line}", if number == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

fn insert_all(lines: &mut BTreeSet<String>, what: &str, values: impl IntoIterator<Item = Value>) {
    lines.extend(values.into_iter().map(|value| format!("{what} {value}")));
}

/// Without the carrier's marks. The kernel's own link-local routes follow the addresses, some of them seconds later.
fn stable_route(route: Value) -> Option<Value> {
    let link_local = route["dst"].as_str().is_some_and(|dst| dst.starts_with("fe80:"));
    if link_local && route["protocol"] == "kernel" {
        return None;
    }
    let mut route = without(route, &["expires", "age", "cache", "used"]);
    if let Some(flags) = route["flags"].as_array_mut() {
        flags.retain(|flag| flag != "linkdown" && flag != "dead");
    }
    Some(route)
}

/// The ruleset when the elements that are about to expire have gone: for the kernel they are gone already.
fn settled_nft(ns: &Ns) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    wait_until("expiring elements to go", DEADLINE, || {
        found = nft_json(ns)?;
        Ok(!found.iter().any(|object| object.to_string().contains(r#""expires":0"#)))
    })?;
    Ok(found)
}

/// The object without handles and counters; the elements of sets and maps get a line each.
fn nft_lines(object: Value) -> Vec<String> {
    let mut object = object;
    forget_counts(&mut object);
    let Some((kind, inner)) = object.as_object_mut().and_then(|o| o.iter_mut().next()) else { return vec![] };
    let name = format!("{} {} {}", text(&inner["family"]), text(&inner["table"]), text(&inner["name"]));
    let elements = match inner.as_object_mut().and_then(|o| o.remove("elem")) {
        Some(Value::Array(elements)) => elements,
        other => other.into_iter().collect(),
    };
    let elements = elements.iter().map(|element| format!("nft element {name}: {element}"));
    [format!("nft {kind} {inner}")].into_iter().chain(elements).collect()
}

/// Handles are numbered by the kernel anew; packets and bytes count, timeouts run.
fn forget_counts(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for key in ["handle", "packets", "bytes", "expires"] {
                object.remove(key);
            }
            object.values_mut().for_each(forget_counts);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_counts),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn without(mut value: Value, keys: &[&str]) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.retain(|key, _| !keys.contains(&key.as_str()));
    }
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nft_objects_lose_their_counts_and_sets_their_elements() {
        let set =
            json!({"set": {"family": "inet", "name": "s", "table": "t", "handle": 2, "elem": ["10.0.0.1"]}});
        assert_eq!(
            nft_lines(set),
            [r#"nft set {"family":"inet","name":"s","table":"t"}"#, r#"nft element inet t s: "10.0.0.1""#]
        );
        let rule = json!({"rule": {"family": "inet", "expr": [{"counter": {"packets": 7, "bytes": 9}}]}});
        assert_eq!(nft_lines(rule), [r#"nft rule {"expr":[{"counter":{}}],"family":"inet"}"#]);
    }

    #[test]
    fn routes_lose_what_the_carrier_does() {
        let route = json!({"dst": "10.0.0.0/8", "protocol": "kernel", "flags": ["linkdown", "onlink"]});
        assert_eq!(stable_route(route).unwrap()["flags"], json!(["onlink"]));
        assert_eq!(stable_route(json!({"dst": "fe80::/64", "protocol": "kernel"})), None);
        assert!(stable_route(json!({"dst": "fe80::/64", "protocol": "112"})).is_some());
    }

    #[test]
    fn a_difference_reads_as_lines() {
        let of = |lines: &[&str]| Snapshot { lines: lines.iter().map(|&l| l.to_owned()).collect() };
        let difference = of(&["a", "b"]).difference(&of(&["b", "c"]));
        assert_eq!(difference.to_string(), "  - a\n  + c");
        assert!(of(&["a"]).difference(&of(&["a"])).is_empty());
    }
}
