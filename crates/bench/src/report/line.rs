//! Figures with a target: alone, or compared with another figure of the same run.

use serde::Serialize;

use super::verdict::{RatioTarget, TargetVerdict};
use crate::stats::Better;

/// A figure, alone or compared with another.
#[derive(Debug, Serialize)]
pub(super) struct FigureLine {
    pub(super) case: String,
    podwire: Option<f64>,
    unit: &'static str,
    beside: Option<ReferenceFigure>,
    /// Factor of improvement over the compared figure.
    ratio: Option<f64>,
    promise: Promise,
    pub(super) verdict: TargetVerdict,
}

#[derive(Debug, Serialize)]
struct ReferenceFigure {
    what: &'static str,
    value: Option<f64>,
}

/// The target of the figure or of the ratio.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Promise {
    Figure(RatioTarget),
    Ratio(RatioTarget),
}

impl FigureLine {
    pub(super) fn alone(
        case: impl Into<String>,
        figure: (Option<f64>, &'static str),
        target: RatioTarget,
    ) -> Self {
        let (podwire, unit) = figure;
        let promise = Promise::Figure(target);
        Self {
            case: case.into(),
            podwire,
            unit,
            beside: None,
            ratio: None,
            promise,
            verdict: target.judge(podwire),
        }
    }

    /// Sets a target for the ratio.
    pub(super) fn beside(
        self,
        beside: (&'static str, Option<f64>),
        better: Better,
        target: RatioTarget,
    ) -> Self {
        let (what, value) = beside;
        let ratio = self.podwire.zip(value).map(|(podwire, other)| match better {
            Better::More => podwire / other,
            Better::Less => other / podwire,
        });
        let ratio = ratio.filter(|ratio| ratio.is_finite());
        let (promise, verdict) = (Promise::Ratio(target), target.judge(ratio));
        Self { beside: Some(ReferenceFigure { what, value }), ratio, promise, verdict, ..self }
    }

    pub(super) fn podwire_text(&self) -> String {
        text(self.podwire, self.unit)
    }

    pub(super) fn beside_text(&self) -> String {
        let beside = self.beside.as_ref();
        beside.map_or_else(String::new, |b| format!("{} ({})", text(b.value, self.unit), b.what))
    }

    pub(super) fn ratio_text(&self) -> String {
        self.ratio.map_or_else(String::new, |ratio| format!("{}×", digits(ratio)))
    }

    pub(super) fn target_text(&self) -> String {
        match self.promise {
            Promise::Figure(RatioTarget::None) | Promise::Ratio(RatioTarget::None) => String::new(),
            Promise::Figure(target) => format!("{target} {}", self.unit).trim_end().to_owned(),
            Promise::Ratio(target) => format!("{target}×"),
        }
    }
}

fn text(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{} {unit}", digits(value)).trim_end().to_owned())
}

/// Formats with the significant digits.
pub(super) fn digits(value: f64) -> String {
    if value.abs() >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_factor_of_improvement() {
        let line = |better, target| {
            FigureLine::alone("x", (Some(2.0), "ms"), RatioTarget::None).beside(
                ("y", Some(8.0)),
                better,
                target,
            )
        };
        let faster = line(Better::Less, RatioTarget::AtLeast(4.0));
        assert_eq!((faster.ratio, faster.verdict), (Some(4.0), TargetVerdict::Ok));
        assert_eq!((faster.ratio_text(), faster.target_text()), ("4×".to_owned(), "≥ 4×".to_owned()));
        let less = line(Better::More, RatioTarget::AtLeast(0.9));
        assert_eq!((less.ratio, less.verdict), (Some(0.25), TargetVerdict::Missed));
        assert_eq!(less.beside_text(), "8 ms (y)");
    }

    #[test]
    fn a_figure_without_comparison_has_an_absolute_target() {
        let line = FigureLine::alone("x", (Some(25.5), "MiB"), RatioTarget::AtMost(25.0));
        assert_eq!(
            (line.verdict, line.podwire_text(), line.target_text()),
            (TargetVerdict::Missed, "25.50 MiB".to_owned(), "≤ 25 MiB".to_owned())
        );
        assert_eq!(
            FigureLine::alone("x", (None, "ms"), RatioTarget::AtMost(1.0)).verdict,
            TargetVerdict::Missed
        );
    }
}
