//! One figure of both builds over all sites, and the verdict about it. Pure.

use serde::Serialize;

use crate::stats::{Better, interquartile_range, median};

/// Computes the figure of a site from its measurements: the median or a percentile.
pub(super) type Statistic = fn(&[f64]) -> Option<f64>;

#[derive(Debug)]
pub(super) struct Series {
    pub(super) case: String,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    statistic: Statistic,
    sites: Vec<SiteFigures>,
}

/// The figures of one site.
#[derive(Debug)]
struct SiteFigures {
    old: f64,
    new: f64,
    /// For each build, the ratio of one half of its measurements to the other half.
    halves: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SeriesVerdict {
    /// The difference is within the spread.
    Ok,
    Worse,
    /// A build has no figure, because its calls failed.
    Unknown,
}

/// The result of a series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Judged {
    pub(super) old: Option<f64>,
    pub(super) new: Option<f64>,
    /// The median of the sites' ratios new/old.
    pub(super) ratio: Option<f64>,
    /// As a fraction: 0.03 is 3 %.
    pub(super) spread: Option<f64>,
    pub(super) verdict: SeriesVerdict,
}

impl Series {
    pub(super) fn new(case: String, (unit, better): (&'static str, Better), statistic: Statistic) -> Self {
        Self { case, unit, better, statistic, sites: vec![] }
    }

    /// Adds the measurements of a site, in order. A site without measurements of one build is ignored.
    pub(super) fn add(&mut self, old: &[f64], new: &[f64]) {
        let figure = self.statistic;
        let (Some(of_old), Some(of_new)) = (figure(old), figure(new)) else { return };
        let halves = [old, new].into_iter().filter_map(|figures| {
            let [one, other] = split(figures);
            ratio(figure(&one)?, figure(&other)?)
        });
        self.sites.push(SiteFigures { old: of_old, new: of_new, halves: halves.collect() });
    }

    pub(super) fn judge(&self) -> Judged {
        let over = |pick: fn(&SiteFigures) -> f64| median(&self.sites.iter().map(pick).collect::<Vec<_>>());
        // Logarithms, so that twice as fast and half as fast have the same distance from 1.
        let ratios: Vec<f64> =
            self.sites.iter().filter_map(|site| ratio(site.new, site.old)).map(f64::ln).collect();
        let halves: Vec<f64> =
            self.sites.iter().flat_map(|site| &site.halves).map(|half| half.ln()).collect();
        let middle = median(&ratios);
        let spreads = [interquartile_range(&ratios), interquartile_range(&halves)];
        let spread = spreads[0].map(|own| own.max(spreads[1].unwrap_or(0.0)));
        let verdict = match (middle, spread) {
            (Some(middle), Some(spread)) => {
                let loss = match self.better {
                    Better::Less => middle,
                    Better::More => -middle,
                };
                if loss <= spread { SeriesVerdict::Ok } else { SeriesVerdict::Worse }
            }
            (None, _) | (_, None) => SeriesVerdict::Unknown,
        };
        Judged {
            old: over(|site| site.old),
            new: over(|site| site.new),
            ratio: middle.map(f64::exp),
            spread: spread.map(|spread| spread.exp() - 1.0),
            verdict,
        }
    }
}

fn ratio(one: f64, other: f64) -> Option<f64> {
    Some(one / other).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
}

/// Splits pairs of measurements into two halves. The order of the builds alternates, and each half has both orders.
fn split(figures: &[f64]) -> [Vec<f64>; 2] {
    let half = |wanted: usize| {
        figures.iter().enumerate().filter(|(at, _)| at / 2 % 2 == wanted).map(|(_, figure)| *figure).collect()
    };
    [half(0), half(1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of sites that differ by some percent; those of the new build are multiplied by a factor.
    fn series(better: Better, factor: f64) -> Series {
        let mut series = Series::new("x".to_owned(), ("ms", better), median);
        for site in 0..9u32 {
            let drift = 1.0 + f64::from(site * 7 % 5) / 100.0;
            let wobble = 1.0 + f64::from(site * 3 % 4) / 100.0;
            let old = [2.0 * drift; 4];
            series.add(&old, &old.map(|figure| figure * wobble / 1.015 * factor));
        }
        series
    }

    #[test]
    fn a_difference_within_the_spread_is_ok() {
        for factor in [0.5, 0.99, 1.0, 1.01] {
            let judged = series(Better::Less, factor).judge();
            assert_eq!(judged.verdict, SeriesVerdict::Ok, "{factor}: {judged:?}");
        }
        assert_eq!(series(Better::More, 2.0).judge().verdict, SeriesVerdict::Ok);
    }

    #[test]
    fn only_a_slowdown_beyond_the_spread_is_worse() {
        let slower = series(Better::Less, 1.1).judge();
        assert_eq!(slower.verdict, SeriesVerdict::Worse, "{slower:?}");
        assert!(slower.ratio.is_some_and(|ratio| (1.08..1.12).contains(&ratio)), "{slower:?}");
        assert_eq!(series(Better::More, 0.9).judge().verdict, SeriesVerdict::Worse);
        assert_eq!(series(Better::Less, 0.9).judge().verdict, SeriesVerdict::Ok);
    }

    #[test]
    fn different_halves_of_one_build_widen_the_spread() {
        let mut series = Series::new("x".to_owned(), ("ms", Better::Less), median);
        for site in 0..9 {
            let (one, other) = if site % 2 == 0 { (1.0, 2.0) } else { (2.0, 1.0) };
            series.add(&[one, one, other, other], &[1.2 * one, 1.2 * one, 1.2 * other, 1.2 * other]);
        }
        let judged = series.judge();
        assert!(judged.spread.is_some_and(|spread| spread > 0.5), "{judged:?}");
        assert_eq!(judged.verdict, SeriesVerdict::Ok);
    }

    #[test]
    fn failed_calls_have_no_verdict() {
        let mut series = Series::new("x".to_owned(), ("ms", Better::Less), median);
        for _ in 0..9 {
            series.add(&[1.0], &[]);
        }
        assert_eq!(series.judge().verdict, SeriesVerdict::Unknown);
    }
}
