use std::fmt;

use serde::Serialize;

/// Target of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RatioTarget {
    AtMost(f64),
    /// A limit and an aim.
    AtMostAiming {
        limit: f64,
        aim: f64,
    },
    AtLeast(f64),
    /// An aim, not a target.
    Aim(f64),
    /// An aim, not a target.
    AimAtLeast(f64),
    /// For information.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TargetVerdict {
    Ok,
    Missed,
    AimMissed,
    /// There is no target.
    None,
}

impl RatioTarget {
    /// A missing figure means that no call succeeded; the target is missed.
    pub(super) fn judge(self, ratio: Option<f64>) -> TargetVerdict {
        let holds = |test: &dyn Fn(f64) -> bool| ratio.is_some_and(test);
        match self {
            Self::AtMost(limit) | Self::AtMostAiming { limit, .. } => {
                TargetVerdict::of(holds(&|r| r <= limit))
            }
            Self::AtLeast(limit) => TargetVerdict::of(holds(&|r| r >= limit)),
            Self::Aim(aim) if holds(&|r| r < aim) => TargetVerdict::Ok,
            Self::AimAtLeast(aim) if holds(&|r| r >= aim) => TargetVerdict::Ok,
            Self::Aim(_) | Self::AimAtLeast(_) => TargetVerdict::AimMissed,
            Self::None => TargetVerdict::None,
        }
    }
}

impl TargetVerdict {
    pub(super) fn of(met: bool) -> Self {
        if met { Self::Ok } else { Self::Missed }
    }
}

impl fmt::Display for RatioTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "≤ {limit}"),
            Self::AtMostAiming { limit, aim } => write!(f, "≤ {limit} (aim {aim:.2})"),
            Self::AtLeast(limit) => write!(f, "≥ {limit}"),
            Self::Aim(aim) => write!(f, "aim < {aim}"),
            Self::AimAtLeast(aim) => write!(f, "aim ≥ {aim}"),
            Self::None => Ok(()),
        }
    }
}

impl fmt::Display for TargetVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Missed => "MISSED",
            Self::AimMissed => "aim missed",
            Self::None => "",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_met_or_missed() {
        assert_eq!(RatioTarget::AtMost(1.1).judge(Some(1.1)), TargetVerdict::Ok);
        assert_eq!(RatioTarget::AtMost(1.1).judge(Some(1.11)), TargetVerdict::Missed);
        assert_eq!(RatioTarget::AtMostAiming { limit: 0.25, aim: 0.1 }.judge(Some(0.2)), TargetVerdict::Ok);
        assert_eq!(RatioTarget::AtLeast(4.0).judge(Some(3.9)), TargetVerdict::Missed);
        assert_eq!(RatioTarget::AtLeast(4.0).judge(Some(4.0)), TargetVerdict::Ok);
        assert_eq!(RatioTarget::Aim(2.5).judge(Some(2.5)), TargetVerdict::AimMissed);
        assert_eq!(RatioTarget::Aim(2.5).judge(Some(2.4)), TargetVerdict::Ok);
        assert_eq!(RatioTarget::AimAtLeast(1.1).judge(Some(1.0)), TargetVerdict::AimMissed);
        assert_eq!(RatioTarget::AimAtLeast(1.1).judge(Some(1.1)), TargetVerdict::Ok);
        assert_eq!(RatioTarget::None.judge(Some(99.0)), TargetVerdict::None);
    }

    #[test]
    fn a_missing_figure_misses_the_target() {
        assert_eq!(RatioTarget::AtMost(1.1).judge(None), TargetVerdict::Missed);
        assert_eq!(RatioTarget::AtLeast(1.0).judge(None), TargetVerdict::Missed);
        assert_eq!(RatioTarget::Aim(2.5).judge(None), TargetVerdict::AimMissed);
        assert_eq!(RatioTarget::AtMost(1.1).judge(Some(f64::NAN)), TargetVerdict::Missed);
    }
}
