//! A rule of another program as the kernel lists it, as far as one can tell without knowing every expression: its verdict, and
//! whether it has a condition.

use netlink::wire::{attribute, attribute_at, attributes, read_text};

use crate::condition::{self, PacketTest};
use crate::number;

/// What becomes of a packet that the rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuleVerdict {
    Accept,
    Drop,
    Reject,
    Return,
    Jump(String),
    Goto(String),
    Masquerade,
    /// Any other, or none.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) ending: RuleVerdict,
    pub(crate) condition: RuleCondition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleCondition {
    Always,
    Sometimes,
}

/// A rule with what only the kernel's own has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KernelRule {
    pub(crate) table: String,
    pub(crate) chain: String,
    /// Later rules have larger ones.
    pub(crate) handle: u64,
    pub(crate) comment: Option<String>,
    /// What packets are compared with: of a link's name before a wildcard, just that.
    pub(crate) compared: Vec<Vec<u8>>,
    /// What must hold for it to match, as far as it can be told.
    pub(crate) tests: Vec<PacketTest>,
    /// An [`RuleVerdict::Other`] that leaves the packet to the next rule.
    pub(crate) goes_on: bool,
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
        let goes_on = expressions.last().is_none_or(Expression::goes_on);
        let (translates, rule) = (expressions.iter().any(Expression::translates), rule(&expressions));
        Some(Self { table, chain, handle, comment, compared, tests, goes_on, translates, rule })
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

    fn ending(&self) -> RuleVerdict {
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

    /// Does it at most look at a packet or mark it?
    fn goes_on(&self) -> bool {
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

    /// Does it let every packet pass on to the next expression?
    fn is_plain(&self) -> bool {
        matches!(self.name.as_str(), "counter" | "log") || self.comment().is_some()
    }
}

fn rule(expressions: &[Expression<'_>]) -> Rule {
    let ending = expressions.last().map_or(RuleVerdict::Other, Expression::ending);
    let before = match ending {
        RuleVerdict::Other => expressions,
        _ => expressions.split_last().map_or(expressions, |(_, before)| before),
    };
    let is_plain = before.iter().all(Expression::is_plain);
    let condition = if is_plain { RuleCondition::Always } else { RuleCondition::Sometimes };
    Rule { ending, condition }
}

/// Of the list of type, length, value in the rule's user data, the comment is type 0.
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
