//! Tables as text for `nft -f -`. Applying the text again changes nothing: sets and their elements stay, and rules are flushed
//! and added again.

use std::fmt::{self, Write as _};

use super::{Base, Chain, ChainType, Members, REVISION, REVISION_KEY, Set, SetKeys, SetValue, Table, Type};

impl Type {
    fn word(self) -> &'static str {
        match self {
            Self::Ip4 => "ipv4_addr",
            Self::Ip6 => "ipv6_addr",
            Self::Mac => "ether_addr",
            Self::Link => "ifname",
            Self::LinkGroup => "devgroup",
            Self::Protocol => "inet_proto",
            Self::Port => "inet_service",
            Self::Mark => "mark",
            Self::Class => "classid",
            Self::Bits { .. } => "integer",
        }
    }

    /// An expression of this type, for keys with bits of a packet: older versions of nft have no name for that type.
    pub(super) fn expression(self) -> String {
        match self {
            Self::Ip4 => "ip saddr".to_owned(),
            Self::Ip6 => "ip6 saddr".to_owned(),
            Self::Mac => "ether saddr".to_owned(),
            Self::Link => "iifname".to_owned(),
            Self::LinkGroup => "iifgroup".to_owned(),
            Self::Protocol => "meta l4proto".to_owned(),
            Self::Port => "th dport".to_owned(),
            Self::Mark => "meta mark".to_owned(),
            Self::Class => "meta priority".to_owned(),
            Self::Bits { start, length } => format!("@th,{start},{length}"),
        }
    }
}

fn joined(types: &[Type], word: impl Fn(Type) -> String) -> String {
    types.iter().map(|part| word(*part)).collect::<Vec<_>>().join(" . ")
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, value) = match &self.value {
            SetValue::None => ("set", String::new()),
            SetValue::Data(types) => ("map", format!(" : {}", joined(types, |part| part.word().to_owned()))),
            SetValue::Verdict => ("map", " : verdict".to_owned()),
        };
        let has_bits = self.key.iter().any(|part| matches!(part, Type::Bits { .. }));
        let (how, key) = if has_bits {
            ("typeof", joined(&self.key, Type::expression))
        } else {
            ("type", joined(&self.key, |part| part.word().to_owned()))
        };
        write!(f, "{kind} {} {{ {how} {key}{value};", self.name)?;
        if let Some(size) = self.size {
            write!(f, " size {size};")?;
        }
        let of_members = match self.members {
            Members::Lasting => None,
            Members::Expiring => Some("timeout"),
            Members::Dynamic => Some("dynamic"),
        };
        let of_keys = match self.keys {
            SetKeys::Exact => None,
            SetKeys::Intervals => Some("interval"),
        };
        let flags: Vec<&str> = of_keys.into_iter().chain(of_members).collect();
        if !flags.is_empty() {
            write!(f, " flags {};", flags.join(","))?;
        }
        f.write_str(" }")
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
    /// The structure and the revision, without elements.
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
