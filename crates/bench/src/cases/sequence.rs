//! One pod after the other; the contenders alternate.

use anyhow::{Context as _, Result};

use crate::contender::{Contender, Deleted};
use crate::stats::Sample;

#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) add: Sample,
    pub(crate) del: Sample,
    /// Time until the links were removed, for contenders that measure it.
    pub(crate) gone: Sample,
}

/// A contender and its times so far.
pub(crate) struct ContenderTimes<'a> {
    contender: Contender<'a>,
    times: Times,
}

impl<'a> ContenderTimes<'a> {
    pub(crate) fn new(contender: Contender<'a>) -> Self {
        Self { contender, times: Times::default() }
    }

    fn del(&mut self, pod: usize) {
        let deleted = self.contender.del(pod);
        if let Ok(Deleted { gone: Some(gone), .. }) = deleted {
            self.times.gone.note(Ok(gone));
        }
        self.times.del.note(deleted.map(|deleted| deleted.took));
    }
}

/// The first pod of a network creates its bridge, tables and directories, which is not measured.
pub(crate) fn warm_up(lines: &mut [ContenderTimes<'_>]) -> Result<()> {
    for line in lines {
        line.contender.add(0).context("cannot attach the first pod of a network")?;
        line.contender.del(0).context("cannot detach the first pod of a network")?;
    }
    Ok(())
}

/// Adds all pods, then removes all. Returns the times in the order of the contenders.
pub(crate) fn run(mut lines: Vec<ContenderTimes<'_>>, pods: usize) -> Vec<Times> {
    for pod in 0..pods {
        for number in alternating(pod, lines.len()) {
            let line = &mut lines[number];
            line.times.add.note(line.contender.add(pod));
        }
    }
    for pod in 0..pods {
        for number in alternating(pod, lines.len()) {
            let line = &mut lines[number];
            line.del(pod);
        }
    }
    lines.into_iter().map(|line| line.times).collect()
}

/// Alternates the order. The kernel still works for one contender while the next one is timed, and this must not always be the
/// same one.
fn alternating(pod: usize, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |number| if pod.is_multiple_of(2) { number } else { contenders - 1 - number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_contenders_alternates() {
        assert_eq!(alternating(0, 3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(alternating(1, 3).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(alternating(1, 0).count(), 0);
    }
}
