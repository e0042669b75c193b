use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::fields::{FieldError, quoted};
use crate::selector::{LabelOperator, LabelRequirement, Selector};

/// LabelSelector (meta/v1). Without requirements it selects everything.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawSelector {
    pub match_labels: Option<BTreeMap<String, String>>,
    pub match_expressions: Option<Vec<RawRequirement>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RawRequirement {
    pub key: String,
    pub operator: String,
    pub values: Option<Vec<String>>,
}

impl RawSelector {
    pub(super) fn parse(&self, path: &str) -> Result<Selector, FieldError> {
        let labels = self.match_labels.iter().flatten();
        let mut requirements: Vec<LabelRequirement> = labels
            .map(|(key, value)| LabelRequirement {
                key: key.clone(),
                operator: LabelOperator::In([value.clone()].into()),
            })
            .collect();
        for (path, raw) in super::each(&format!("{path}.matchExpressions"), self.match_expressions.as_ref()) {
            requirements.push(raw.parse(&path)?);
        }
        Ok(Selector { requirements })
    }
}

impl RawRequirement {
    fn parse(&self, path: &str) -> Result<LabelRequirement, FieldError> {
        if self.key.is_empty() {
            return Err(FieldError::missing(&format!("{path}.key")));
        }
        let values: BTreeSet<String> = self.values.iter().flatten().cloned().collect();
        let has_values = !values.is_empty();
        let (operator, takes_values) = match self.operator.as_str() {
            "In" => (LabelOperator::In(values), true),
            "NotIn" => (LabelOperator::NotIn(values), true),
            "Exists" => (LabelOperator::Exists, false),
            "DoesNotExist" => (LabelOperator::DoesNotExist, false),
            other => {
                let allowed = "In, NotIn, Exists or DoesNotExist";
                return Err(FieldError::refused(&format!("{path}.operator"), quoted(&other.into()), allowed));
            }
        };
        if has_values != takes_values {
            let need = if takes_values { "needs at least one value" } else { "has no values" };
            return Err(FieldError::new(
                format!("{path}.values"),
                format!("operator {} {need}", self.operator),
            ));
        }
        Ok(LabelRequirement { key: self.key.clone(), operator })
    }
}
