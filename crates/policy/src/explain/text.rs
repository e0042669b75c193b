//! Explanations as text.

use std::fmt;

use crate::element::PolicyVerdict;
use crate::rules::PolicyTier;

impl fmt::Display for PolicyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Accept => "accept",
            Self::Drop => "drop",
        })
    }
}

impl fmt::Display for PolicyTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Admin => "admin",
            Self::Tenant => "tenant",
            Self::Group => "group",
            Self::NetworkPolicy => "network policy",
            Self::Baseline => "baseline",
        })
    }
}
