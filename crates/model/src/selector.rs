//! Label selectors, as Kubernetes defines them. A selector without requirements selects everything.

use std::collections::{BTreeMap, BTreeSet};

pub type Labels = BTreeMap<String, String>;

/// All requirements must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    pub requirements: Vec<LabelRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelRequirement {
    pub key: String,
    pub operator: LabelOperator,
}

/// `NotIn` and `DoesNotExist` also match labels without the key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelOperator {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Selects everything.
    pub fn all() -> Self {
        Self::default()
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|one| one.matches(labels))
    }

    /// The label keys that decide whether it matches.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.requirements.iter().map(|one| one.key.as_str())
    }
}

impl LabelRequirement {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.operator {
            LabelOperator::In(values) => value.is_some_and(|value| values.contains(value)),
            LabelOperator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn selector(key: &str, operator: LabelOperator) -> Selector {
        Selector { requirements: vec![LabelRequirement { key: key.to_owned(), operator }] }
    }

    #[test]
    fn d_not_in_and_does_not_exist_match_a_missing_key() {
        let values: BTreeSet<String> = ["web".to_owned()].into();
        let cases = [
            (LabelOperator::In(values.clone()), [true, false, false]),
            (LabelOperator::NotIn(values), [false, true, true]),
            (LabelOperator::Exists, [true, true, false]),
            (LabelOperator::DoesNotExist, [false, false, true]),
        ];
        for (operator, expected) in cases {
            let selector = selector("app", operator);
            let found =
                [&[("app", "web")][..], &[("app", "db")], &[]].map(|pairs| selector.matches(&labels(pairs)));
            assert_eq!(found, expected, "{selector:?}");
        }
        assert!(Selector::all().matches(&Labels::new()));
    }
}
