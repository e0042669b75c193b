//! A rule of an unmanaged table as the kernel lists it: its verdict, and whether it has a condition. Not every expression is
//! evaluated.

use netlink::wire::{attribute, attribute_at, attributes, read_text};

use crate::condition::{self, PacketTest};
use crate::number;

/// The verdict for packets that match the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuleVerdict {
    Accept,
    Drop,
    Reject,
    Return,
    Jump(String),
    Goto(String),
    Masquerade,
    /// Another verdict, or none.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) verdict: RuleVerdict,
    pub(crate) condition: RuleCondition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleCondition {
    Always,
    Sometimes,
}

/// A rule with the attributes of its listing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KernelRule {
    pub(crate) table: String,
    pub(crate) chain: String,
    /// It increases with each added rule.
    pub(crate) handle: u64,
    pub(crate) comment: Option<String>,
    /// The values that packets are compared with. Of a link's name with a wildcard, the part before it.
    pub(crate) compared: Vec<Vec<u8>>,
    /// Conditions that must be true for a match, as far as they can be evaluated.
    pub(crate) tests: Vec<PacketTest>,
    /// A [`RuleVerdict::Other`] after which the next rule is evaluated.
    pub(crate) continues: bool,
    /// It changes the packet's source, or its destination to another host.
    pub(crate) translates: bool,
    pub(crate) rule: Rule,
}

impl KernelRule {
    pub(crate) fn read(answer: &[u8]) -> Option<Self> {
        let [table, chain] = [number::RULE_TABLE, number::RULE_CHAIN].map(|kind| attribute(answer, kind));
        let (table, chain) = (read_text(table?), read_text(chain?));
        let handle =
            attribute(answer, number::RULE_HANDLE)?.first_chunk().copied().map(u64::from_be_bytes)?;
        let list = attribute(answer, number::RULE_EXPRESSIONS).unwrap_or_default();
        let expressions: Vec<Expression<'_>> =
            attributes(list).filter_map(|(_, expression)| Expression::read(expression)).collect();
        let of_iptables = || expressions.iter().find_map(Expression::comment);
        let comment = attribute(answer, number::RULE_USERDATA).and_then(comment).or_else(of_iptables);
        let compared = expressions.iter().filter_map(Expression::compared).map(<[u8]>::to_vec).collect();
        let tests = condition::tests(&expressions);
        let continues = expressions.last().is_none_or(Expression::continues);
        let (translates, rule) = (expressions.iter().any(Expression::translates), rule(&expressions));
        Some(Self { table, chain, handle, comment, compared, tests, continues, translates, rule })
    }
}

pub(crate) struct Expression<'a> {
    pub(crate) name: String,
    pub(crate) data: &'a [u8],
}

impl<'a> Expression<'a> {
    fn read(expression: &'a [u8]) -> Option<Self> {
        let name = attribute(expression, number::EXPR_NAME).map(read_text)?;
        Some(Self { name, data: attribute(expression, number::EXPR_DATA).unwrap_or_default() })
    }

    pub(crate) fn xt(&self) -> String {
        attribute(self.data, number::XT_NAME).map(read_text).unwrap_or_default()
    }

    /// iptables' `-m comment`
    fn comment(&self) -> Option<String> {
        if self.name != "match" || self.xt() != "comment" {
            return None;
        }
        attribute(self.data, number::MATCH_INFO).map(read_text)
    }

    fn rule_verdict(&self) -> RuleVerdict {
        match self.name.as_str() {
            "immediate" => self.verdict(),
            "reject" => RuleVerdict::Reject,
            "masq" => RuleVerdict::Masquerade,
            "target" => match self.xt().as_str() {
                "REJECT" => RuleVerdict::Reject,
                "DROP" => RuleVerdict::Drop,
                "ACCEPT" => RuleVerdict::Accept,
                _ => RuleVerdict::Other,
            },
            _ => RuleVerdict::Other,
        }
    }

    fn compared(&self) -> Option<&[u8]> {
        attribute_at(self.data, &[number::CMP_DATA, number::DATA_VALUE]).filter(|_| self.name == "cmp")
    }

    fn verdict(&self) -> RuleVerdict {
        let verdict = attribute_at(self.data, &[number::IMMEDIATE_DATA, number::DATA_VERDICT]);
        let part = |kind| verdict.and_then(|verdict| attribute(verdict, kind));
        let chain = || part(number::VERDICT_CHAIN).map(read_text).unwrap_or_default();
        match part(number::VERDICT_CODE).and_then(|code| code.first_chunk()).copied().map(i32::from_be_bytes)
        {
            Some(number::DROP) => RuleVerdict::Drop,
            Some(number::ACCEPT) => RuleVerdict::Accept,
            Some(number::JUMP) => RuleVerdict::Jump(chain()),
            Some(number::GOTO) => RuleVerdict::Goto(chain()),
            Some(number::RETURN) => RuleVerdict::Return,
            Some(_) | None => RuleVerdict::Other,
        }
    }

    /// Whether it only tests or marks the packet.
    fn continues(&self) -> bool {
        match self.name.as_str() {
            "counter" | "log" | "limit" | "cmp" | "bitwise" | "meta" | "ct" | "payload" | "exthdr" => true,
            "target" => {
                matches!(self.xt().as_str(), "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS" | "TRACE")
            }
            "match" => true,
            _ => false,
        }
    }

    fn translates(&self) -> bool {
        match self.name.as_str() {
            "masq" | "nat" => true,
            "target" => matches!(self.xt().as_str(), "MASQUERADE" | "SNAT" | "DNAT" | "NETMAP"),
            _ => false,
        }
    }

    /// Whether the next expression is evaluated for every packet.
    fn is_unconditional(&self) -> bool {
        matches!(self.name.as_str(), "counter" | "log") || self.comment().is_some()
    }
}

fn rule(expressions: &[Expression<'_>]) -> Rule {
    let verdict = expressions.last().map_or(RuleVerdict::Other, Expression::rule_verdict);
    let before = match verdict {
        RuleVerdict::Other => expressions,
        _ => expressions.split_last().map_or(expressions, |(_, before)| before),
    };
    let is_unconditional = before.iter().all(Expression::is_unconditional);
    let condition = if is_unconditional { RuleCondition::Always } else { RuleCondition::Sometimes };
    Rule { verdict, condition }
}

/// The rule's user data is a list of type, length and value. The comment has type 0.
fn comment(mut data: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = data {
        let value = rest.get(..usize::from(*length))?;
        if *kind == 0 {
            return Some(read_text(value));
        }
        data = rest.get(usize::from(*length)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_found_among_other_user_data() {
        assert_eq!(comment(b"\x01\x02ab\x00\x03hi\0").as_deref(), Some("hi"));
        assert_eq!(comment(b"\x00\x09hi\0"), None);
        assert_eq!(comment(b""), None);
    }
}
