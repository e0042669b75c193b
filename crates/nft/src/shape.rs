//! What the kernel should list when our text was applied: read from the text itself, so that there is one truth. Pure.

use crate::rule::{Condition, Ending, Rule};

/// A table's worth of objects.
#[derive(Debug, Default)]
pub(crate) struct Shape<'a> {
    pub(crate) chains: Vec<ChainShape<'a>>,
    pub(crate) sets: Vec<&'a str>,
}

#[derive(Debug)]
pub(crate) struct ChainShape<'a> {
    pub(crate) name: &'a str,
    pub(crate) hook: Option<Hook>,
    pub(crate) rules: Vec<RuleShape<'a>>,
}

#[derive(Debug)]
pub(crate) struct RuleShape<'a> {
    pub(crate) rule: Rule,
    /// Beginnings of links' names that it asks for.
    pub(crate) names: Vec<&'a str>,
}

/// Where a base chain sits. All of ours have the policy accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hook {
    /// `filter` or `nat`
    pub(crate) kind: String,
    pub(crate) number: u32,
    pub(crate) priority: i32,
}

impl<'a> Shape<'a> {
    /// Every object of our text has a line of its own, and so has every rule.
    pub(crate) fn of(text: &'a str) -> Self {
        let (mut shape, mut inside) = (Self::default(), None);
        for line in text.lines().map(str::trim) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match (words.as_slice(), inside) {
                ([] | ["#", ..], _) => {}
                (["chain", name, "{"], _) => inside = Some(shape.place(name)),
                (["chain", name, "{", rest @ .., "}"], _) => {
                    let place = shape.place(name);
                    shape.chains[place].hook = hook(rest);
                }
                (["set" | "map", name, "{", .., "}"], _) => shape.sets.push(name),
                (["}"], _) => inside = None,
                (words, Some(place)) => shape.chains[place].rules.push(rule(words)),
                (_, None) => {}
            }
        }
        shape
    }

    fn place(&mut self, name: &'a str) -> usize {
        self.chains.iter().position(|chain| chain.name == name).unwrap_or_else(|| {
            self.chains.push(ChainShape { name, hook: None, rules: Vec::new() });
            self.chains.len() - 1
        })
    }
}

/// `type nat hook postrouting priority srcnat + 1; policy accept;`
fn hook(words: &[&str]) -> Option<Hook> {
    let ["type", kind, "hook", hook, "priority", priority @ ..] = words else { return None };
    let number = match *hook {
        "prerouting" => 0,
        "input" => 1,
        "forward" => 2,
        "output" => 3,
        _ => 4,
    };
    let mut sum = 0;
    for word in priority {
        sum += match word.trim_end_matches(';') {
            "raw" => -300,
            "dstnat" => -100,
            "srcnat" => 100,
            number => number.parse().unwrap_or(0),
        };
        if word.ends_with(';') {
            break;
        }
    }
    Some(Hook { kind: (*kind).to_owned(), number, priority: sum })
}

fn rule<'a>(words: &[&'a str]) -> RuleShape<'a> {
    let (ending, length) = match words {
        [.., "accept"] => (Ending::Accept, 1),
        [.., "drop"] => (Ending::Drop, 1),
        [.., "return"] => (Ending::Return, 1),
        [.., "masquerade"] => (Ending::Masquerade, 1),
        [.., "jump", chain] => (Ending::Jump((*chain).to_owned()), 2),
        [.., "goto", chain] => (Ending::Goto((*chain).to_owned()), 2),
        _ => (Ending::Other, 0),
    };
    let conditions = words.iter().filter(|word| **word != "counter").count();
    let condition = if conditions > length { Condition::Sometimes } else { Condition::Always };
    // `@th,64,128` are bits of a packet.
    let names = words.iter().filter_map(|word| word.strip_prefix('@')).filter(|name| !name.contains(','));
    let mut sets: Vec<String> = names.map(|name| (*name).to_owned()).collect();
    sets.sort_unstable();
    let names = words.iter().filter_map(|word| word.strip_prefix('"')?.strip_suffix("*\"")).collect();
    RuleShape { rule: Rule { ending, condition, sets }, names }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::NetworkChain;
    use crate::ruleset::{self, Clamp, Family};

    #[test]
    fn the_text_of_our_tables_is_understood() {
        let network = NetworkChain::new(&"blue".try_into().unwrap(), &["10.0.0.0/24".parse().unwrap()]);
        let text = ruleset::text(&[Family::Inet], &[&network], Clamp::On);
        let shape = Shape::of(&text);
        let counts: Vec<(&str, usize)> = shape.chains.iter().map(|c| (c.name, c.rules.len())).collect();
        let want = [
            ("guard", 3),
            ("from-pod", 5),
            ("from-pod6", 4),
            ("from-pod-icmp6", 4),
            ("pod-source", 4),
            ("to-host", 3),
            ("nat-prerouting", 2),
            ("nat-output", 1),
            ("nat-postrouting", 1),
            ("hostports", 7),
            ("bent", 9),
            ("clamp", 1),
            ("clamp-syn", 2),
            (network.id(), 8),
        ];
        assert_eq!(counts, want);
        let chain = |name: &str| shape.chains.iter().find(|chain| chain.name == name).unwrap();
        let last = |name: &str| chain(name).rules.last().unwrap().rule.clone();
        let rule = |ending, condition, sets: &[&str]| {
            let sets = sets.iter().map(|&set| set.to_owned()).collect();
            Rule { ending, condition, sets }
        };
        let to = |chain: &str| Ending::Goto(chain.to_owned());
        assert_eq!(chain("guard").rules[0].rule, rule(to("from-pod"), Condition::Sometimes, &[]));
        assert_eq!(last("guard"), rule(to("pod-source"), Condition::Sometimes, &["bound6"]));
        assert_eq!(last("pod-source"), rule(Ending::Drop, Condition::Always, &[]));
        assert_eq!(last("nat-output"), rule(Ending::Jump("hostports".to_owned()), Condition::Always, &[]));
        assert_eq!(chain("guard").rules[0].names, ["pw"]);
        let key = types::AttachmentKey {
            network: "blue".try_into().unwrap(),
            container: "a".try_into().unwrap(),
            ifname: "eth0".try_into().unwrap(),
        };
        assert!(key.host_link(0).as_str().starts_with("pw"), "the guard knows pods' links by their names");
        assert_eq!(last("from-pod6"), rule(to("pod-source"), Condition::Sometimes, &["bound6"]));
        assert_eq!(last("clamp-syn"), rule(Ending::Other, Condition::Sometimes, &["tunnels"]));
        assert_eq!(last("nat-postrouting"), rule(Ending::Jump("bent".to_owned()), Condition::Sometimes, &[]));
        assert_eq!(last("hostports"), rule(Ending::Other, Condition::Sometimes, &["hostport6_any"]));
        assert_eq!(last("bent"), rule(Ending::Masquerade, Condition::Sometimes, &["hairpin6", "pods6"]));
        let at = |name: &str| chain(name).hook.as_ref().map(|h| (h.kind.as_str(), h.number, h.priority));
        assert_eq!(at("guard"), Some(("filter", 0, -300)));
        assert_eq!(at("to-host"), Some(("filter", 1, -300)));
        assert_eq!(at("clamp"), Some(("filter", 2, -150)));
        assert_eq!(at("nat-prerouting"), Some(("nat", 0, -100)));
        assert_eq!(at("nat-output"), Some(("nat", 3, -100)));
        assert_eq!(at("bent"), None);
        assert_eq!(at(network.id()), Some(("nat", 4, 101)));
        assert_eq!(shape.sets.len(), 19 + 2);
        assert_eq!(Shape::of(&ruleset::text(&[Family::Bridge], &[], Clamp::On)).chains.len(), 6);
        let without = ruleset::text(&[Family::Inet], &[], Clamp::Off);
        assert!(!Shape::of(&without).chains.iter().any(|chain| chain.name.starts_with("clamp")));
    }
}
