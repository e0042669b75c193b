//! Tables as text for `nft -f -`. Applying the text again changes nothing: sets, maps and their elements stay, and the rules are
//! flushed and written again.

use std::fmt::{self, Write as _};

use super::{Base, Chain, ChainType, Members, REVISION, REVISION_KEY, Set, Table, Type};

impl Type {
    fn word(self) -> &'static str {
        match self {
            Self::Ip4 => "ipv4_addr",
            Self::Ip6 => "ipv6_addr",
            Self::Mac => "ether_addr",
            Self::Link => "ifname",
            Self::Protocol => "inet_proto",
            Self::Port => "inet_service",
            Self::Mark => "mark",
            Self::Bits { .. } => "integer",
        }
    }

    /// An expression of this type, for keys with bits of a packet: older nft programs have no other name for their type.
    pub(super) fn expression(self) -> String {
        match self {
            Self::Ip4 => "ip saddr".to_owned(),
            Self::Ip6 => "ip6 saddr".to_owned(),
            Self::Mac => "ether saddr".to_owned(),
            Self::Link => "iifname".to_owned(),
            Self::Protocol => "meta l4proto".to_owned(),
            Self::Port => "th dport".to_owned(),
            Self::Mark => "meta mark".to_owned(),
            Self::Bits { start, length } => format!("@th,{start},{length}"),
        }
    }
}

fn joined(types: &[Type], word: impl Fn(Type) -> String) -> String {
    types.iter().map(|part| word(*part)).collect::<Vec<_>>().join(" . ")
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.value.is_empty() { "set" } else { "map" };
        let has_bits = self.key.iter().any(|part| matches!(part, Type::Bits { .. }));
        let (how, key) = if has_bits {
            ("typeof", joined(&self.key, Type::expression))
        } else {
            ("type", joined(&self.key, |part| part.word().to_owned()))
        };
        write!(f, "{kind} {} {{ {how} {key}", self.name)?;
        if !self.value.is_empty() {
            write!(f, " : {}", joined(&self.value, |part| part.word().to_owned()))?;
        }
        match self.members {
            Members::Lasting => f.write_str("; }"),
            Members::Expiring => f.write_str("; flags timeout; }"),
            Members::Dynamic { most } => write!(f, "; size {most}; flags dynamic; }}"),
        }
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
        };
        write!(f, "type {kind} hook {} priority {}; policy accept;", self.hook.word(), self.priority)
    }
}

impl Chain {
    fn declaration(&self) -> String {
        match &self.base {
            Some(base) => format!("chain {} {{ {base} }}", self.name),
            None => format!("chain {} {{ }}", self.name),
        }
    }
}

impl Table {
    /// Everything but the elements.
    pub(crate) fn text(&self) -> String {
        let (mut out, id) = (self.structure(), self.id());
        let _ = writeln!(out, "flush map {id} {REVISION}");
        let revision = self.revision();
        let _ = writeln!(out, "add element {id} {REVISION} {{ {REVISION_KEY} : {revision:#010x} }}");
        out
    }

    pub(super) fn structure(&self) -> String {
        let (mut out, id) = (String::new(), self.id());
        let _ = writeln!(out, "table {id} {{\n\tcomment \"podwire\"");
        for set in &self.sets {
            let _ = writeln!(out, "\t{set}");
        }
        for chain in &self.chains {
            let _ = writeln!(out, "\t{}", chain.declaration());
        }
        out.push_str("}\n");
        for chain in &self.chains {
            let _ = writeln!(out, "flush chain {id} {}", chain.name);
        }
        let _ = writeln!(out, "table {id} {{");
        for chain in &self.chains {
            let _ = writeln!(out, "\tchain {} {{", chain.name);
            for rule in &chain.rules {
                let _ = writeln!(out, "\t\t{rule}");
            }
            out.push_str("\t}\n");
        }
        out.push_str("}\n");
        out
    }
}
