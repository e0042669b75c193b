//! Tables of `iptables-legacy`. nftables does not list them, and they can drop packets like any other.

use std::fs;
use std::io::{Error, ErrorKind};

/// The tables of one family that are loaded in this thread's network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyTables {
    pub names: Vec<String>,
    /// Lists the rules of the forward chain.
    pub command: &'static str,
}

/// The families with loaded tables. A kernel without them has no such file.
pub fn legacy_tables() -> Result<Vec<LegacyTables>, Error> {
    let families = [
        ("/proc/thread-self/net/ip_tables_names", "iptables-legacy -S FORWARD"),
        ("/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy -S FORWARD"),
    ];
    let mut found = Vec::new();
    for (path, command) in families {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::new(error.kind(), format!("cannot read {path}: {error}"))),
        };
        let names: Vec<String> = text.lines().map(str::to_owned).collect();
        if !names.is_empty() {
            found.push(LegacyTables { names, command });
        }
    }
    Ok(found)
}
