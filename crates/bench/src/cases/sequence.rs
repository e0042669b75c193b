//! One pod after the other, the lanes in turn.

use anyhow::{Context as _, Result};

use crate::lane::{Deleted, Lane};
use crate::stats::Sample;

#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) add: Sample,
    pub(crate) del: Sample,
    /// When the links were gone: of lanes that know it.
    pub(crate) gone: Sample,
}

/// A lane and its times so far.
pub(crate) struct LaneTimes<'a> {
    lane: Lane<'a>,
    times: Times,
}

impl<'a> LaneTimes<'a> {
    pub(crate) fn new(lane: Lane<'a>) -> Self {
        Self { lane, times: Times::default() }
    }

    fn del(&mut self, pod: usize) {
        let deleted = self.lane.del(pod);
        if let Ok(Deleted { gone: Some(gone), .. }) = deleted {
            self.times.gone.note(Ok(gone));
        }
        self.times.del.note(deleted.map(|deleted| deleted.took));
    }
}

/// The first pod of a network makes its bridge, tables and directories, and that is not what is measured.
pub(crate) fn warm_up(lines: &mut [LaneTimes<'_>]) -> Result<()> {
    for line in lines {
        line.lane.add(0).context("the first pod of a network could not be attached")?;
        line.lane.del(0).context("the first pod of a network could not be detached")?;
    }
    Ok(())
}

/// All pods come, then all go. Gives the times in the order of the lines.
pub(crate) fn run(mut lines: Vec<LaneTimes<'_>>, pods: usize) -> Vec<Times> {
    for pod in 0..pods {
        for number in turn(pod, lines.len()) {
            let line = &mut lines[number];
            line.times.add.note(line.lane.add(pod));
        }
    }
    for pod in 0..pods {
        for number in turn(pod, lines.len()) {
            let line = &mut lines[number];
            line.del(pod);
        }
    }
    lines.into_iter().map(|line| line.times).collect()
}

/// Forth and back: the kernel still works on what one lane did while the next one is timed, and that must not always be
/// the same one.
fn turn(pod: usize, lanes: usize) -> impl Iterator<Item = usize> {
    (0..lanes).map(move |number| if pod.is_multiple_of(2) { number } else { lanes - 1 - number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_turn_at_each_pod_in_changing_order() {
        assert_eq!(turn(0, 3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turn(1, 3).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(turn(1, 0).count(), 0);
    }
}
