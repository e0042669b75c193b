use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::inspect::{all_addresses, links, list, nft_json};
use crate::{DEADLINE, Ns, wait_until};

/// The configuration of a namespace, one line per object. Dynamic state is excluded: counters, carrier, learned neighbours,
/// lifetimes. Two snapshots are equal if no object was created, changed or removed in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    lines: BTreeSet<String>,
}

/// The difference of two snapshots; prints removed lines with `-` and new lines with `+`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub removed: Vec<String>,
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
            removed: self.lines.difference(&later.lines).cloned().collect(),
            new: later.lines.difference(&self.lines).cloned().collect(),
        }
    }

    /// Fails with the difference if the namespace changed since this snapshot.
    pub fn expect_same(&self, ns: &Ns) -> Result<()> {
        let difference = self.difference(&Self::of(ns)?);
        if !difference.is_empty() {
            bail!("the configuration of {} changed:\n{difference}", ns.name());
        }
        Ok(())
    }

    /// Like `expect_same`, with a timeout for asynchronous changes. The kernel removes the links of a destroyed namespace later.
    pub fn wait_for_same(&self, ns: &Ns, within: Duration) -> Result<()> {
        wait_until("the namespace to match the snapshot", within, || self.expect_same(ns).map(|()| true))
    }
}

impl Difference {
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.new.is_empty()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let removed = self.removed.iter().map(|line| ("-", line));
        let new = self.new.iter().map(|line| ("+", line));
        for (number, (sign, line)) in removed.chain(new).enumerate() {
            write!(f, "{}  {sign} {line}", if number == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

fn insert_all(lines: &mut BTreeSet<String>, kind: &str, values: impl IntoIterator<Item = Value>) {
    lines.extend(values.into_iter().map(|value| format!("{kind} {value}")));
}

/// Removes flags that depend on the carrier. Drops the kernel's link-local routes, which it adds seconds after the addresses.
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

/// Lists the ruleset after expired elements are removed. The kernel still lists elements that have expired.
fn settled_nft(ns: &Ns) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    wait_until("removal of expired elements", DEADLINE, || {
        objects = nft_json(ns)?;
        Ok(!objects.iter().any(|object| object.to_string().contains(r#""expires":0"#)))
    })?;
    Ok(objects)
}

/// The object without handles and counters; the elements of sets and maps get a line each.
fn nft_lines(object: Value) -> Vec<String> {
    let mut object = object;
    remove_counters(&mut object);
    let Some((kind, inner)) = object.as_object_mut().and_then(|o| o.iter_mut().next()) else { return vec![] };
    let name = format!("{} {} {}", text(&inner["family"]), text(&inner["table"]), text(&inner["name"]));
    let elements = match inner.as_object_mut().and_then(|o| o.remove("elem")) {
        Some(Value::Array(elements)) => elements,
        other => other.into_iter().collect(),
    };
    let elements = elements.iter().map(|element| format!("nft element {name}: {element}"));
    [format!("nft {kind} {inner}")].into_iter().chain(elements).collect()
}

/// Removes handles, counters and remaining lifetimes, which differ between equal rulesets.
fn remove_counters(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for key in ["handle", "packets", "bytes", "expires"] {
                object.remove(key);
            }
            object.values_mut().for_each(remove_counters);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_counters),
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
    fn nft_lines_omit_counters_and_list_set_elements_separately() {
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
    fn routes_omit_flags_that_depend_on_the_carrier() {
        let route = json!({"dst": "10.0.0.0/8", "protocol": "kernel", "flags": ["linkdown", "onlink"]});
        assert_eq!(stable_route(route).unwrap()["flags"], json!(["onlink"]));
        assert_eq!(stable_route(json!({"dst": "fe80::/64", "protocol": "kernel"})), None);
        assert!(stable_route(json!({"dst": "fe80::/64", "protocol": "112"})).is_some());
    }

    #[test]
    fn a_difference_prints_one_line_per_change() {
        let of = |lines: &[&str]| Snapshot { lines: lines.iter().map(|&l| l.to_owned()).collect() };
        let difference = of(&["a", "b"]).difference(&of(&["b", "c"]));
        assert_eq!(difference.to_string(), "  - a\n  + c");
        assert!(of(&["a"]).difference(&of(&["a"])).is_empty());
    }
}
