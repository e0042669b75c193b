use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

/// Times of a repeated operation, and the errors of its failures.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    times: Vec<Duration>,
    pub(crate) failures: Vec<String>,
}

/// Whether lower or higher figures are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Better {
    Less,
    More,
}

/// Percentiles in milliseconds, by nearest rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) count: usize,
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Sample {
    pub(crate) fn note(&mut self, attempt: Result<Duration>) {
        match attempt {
            Ok(took) => self.times.push(took),
            Err(error) => self.failures.push(format!("{error:#}")),
        }
    }

    /// `None` if no operation succeeded.
    pub(crate) fn percentiles(&self) -> Option<Percentiles> {
        let mut ms = self.ms();
        ms.sort_by(f64::total_cmp);
        let (min, max) = (*ms.first()?, *ms.last()?);
        let at = |percent: usize| nearest_rank(&ms, percent);
        Some(Percentiles { count: ms.len(), min, p50: at(50), p90: at(90), p99: at(99), max })
    }

    /// Times in milliseconds, in the order of measurement.
    pub(crate) fn ms(&self) -> Vec<f64> {
        self.times.iter().map(|t| t.as_secs_f64() * 1000.0).collect()
    }

    pub(crate) fn p50(&self) -> Option<f64> {
        self.percentiles().map(|p| p.p50)
    }
}

/// Percentile of a sorted, non-empty list.
fn nearest_rank(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent).div_ceil(100).clamp(1, sorted.len()) - 1]
}

pub(crate) fn p99(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| nearest_rank(&sorted, 99))
}

/// Interpolated interquartile range; `None` for fewer than two values.
pub(crate) fn interquartile_range(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1).filter(|last| *last > 0)?;
    let at = |part: f64| {
        let position = part * last as f64;
        let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
        low + (high - low) * position.fract()
    };
    Some(at(0.75) - at(0.25))
}

/// The median; for an even number of values, the mean of the middle two.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_use_the_nearest_rank_and_ignore_failures() {
        let mut sample = Sample::default();
        assert_eq!(sample.percentiles(), None);
        for ms in (1..=200).rev() {
            sample.note(Ok(Duration::from_millis(ms)));
        }
        sample.note(Err(anyhow::anyhow!("inner").context("outer")));
        let expected = Percentiles { count: 200, min: 1.0, p50: 100.0, p90: 180.0, p99: 198.0, max: 200.0 };
        assert_eq!(sample.percentiles(), Some(expected));
        assert_eq!(sample.failures, ["outer: inner"]);
    }

    #[test]
    fn all_percentiles_of_one_time_are_equal() {
        let mut sample = Sample::default();
        sample.note(Ok(Duration::from_millis(7)));
        let p = sample.percentiles().unwrap();
        assert_eq!((p.min, p.p50, p.p99, p.max), (7.0, 7.0, 7.0, 7.0));
    }

    #[test]
    fn interquartile_ranges_are_interpolated() {
        assert_eq!(interquartile_range(&[1.0]), None);
        assert_eq!(interquartile_range(&[4.0, 1.0, 3.0, 2.0, 5.0]), Some(2.0));
        assert_eq!(interquartile_range(&[1.0, 2.0]), Some(0.5));
        assert_eq!((p99(&[]), p99(&[3.0, 1.0])), (None, Some(3.0)));
    }

    #[test]
    fn medians_of_even_and_odd_numbers_of_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 4.0]), Some(4.0));
        assert_eq!(median(&[9.0, 1.0, 4.0, 6.0]), Some(5.0));
    }
}
