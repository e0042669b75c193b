//! When flows are judged. Pure.
//!
//! The first change after a pause is judged at once. All further changes wait until the CPU time of the last pass is at most a tenth
//! of the time since it began. A flow whose first packet is on its way during a pass is not listed, so each change has a second pass.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::affected::AffectedFlows;

/// The pause after a pass, as a multiple of its CPU time.
const PAUSE_FACTOR: u32 = 9;
/// Limits the number of second passes that wait.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// Forbidden flows must stop also if there are millions of flows.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// From the end of a pass to the second one.
const SECOND: Duration = Duration::from_secs(1);

pub(super) struct PassSchedule {
    earliest: Instant,
    /// Not judged yet.
    first: AffectedFlows,
    /// Judged once, oldest first.
    second: VecDeque<(Instant, AffectedFlows)>,
}

/// A pass that is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlowPass {
    first: AffectedFlows,
    second: AffectedFlows,
}

impl FlowPass {
    pub(super) fn affected(&self) -> AffectedFlows {
        let mut affected = self.first.clone();
        affected.merge(self.second.clone());
        affected
    }
}

impl PassSchedule {
    pub(super) fn new(now: Instant) -> Self {
        Self { earliest: now, first: AffectedFlows::default(), second: VecDeque::new() }
    }

    pub(super) fn request(&mut self, affected: AffectedFlows) {
        self.first.merge(affected);
    }

    /// When the next pass is due. None if no flow must be judged.
    pub(super) fn next(&self) -> Option<Instant> {
        let second = self.second.front().map(|(at, _)| *at);
        let first = (!self.first.is_empty()).then_some(self.earliest);
        first.or(second).map(|at| at.max(self.earliest))
    }

    /// The pass that is due.
    pub(super) fn begin(&mut self, now: Instant) -> Option<FlowPass> {
        self.next().filter(|at| *at <= now)?;
        let mut pass = FlowPass { first: std::mem::take(&mut self.first), second: AffectedFlows::default() };
        while let Some((_, affected)) = self.second.pop_front_if(|(at, _)| *at <= now) {
            pass.second.merge(affected);
        }
        Some(pass)
    }

    pub(super) fn end(&mut self, pass: FlowPass, now: Instant, cpu_time: Duration) {
        self.earliest = now + (cpu_time * PAUSE_FACTOR).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        if !pass.first.is_empty() {
            self.second.push_back((now + SECOND, pass.first));
        }
    }

    /// Some flows of the pass could not be judged. All of them are judged again after a pause.
    pub(super) fn retry(&mut self, pass: &FlowPass, now: Instant) {
        self.earliest = now + SECOND;
        self.first.merge(pass.affected());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Requests at each millisecond. Returns when passes began, if each takes this CPU time.
    fn passes(cpu_time: Duration, lasting: u32) -> Vec<u32> {
        let start = Instant::now();
        let mut schedule = PassSchedule::new(start);
        let (mut began, mut free) = (Vec::new(), start);
        for ms in 0..lasting {
            let now = start + MS * ms;
            schedule.request(AffectedFlows::all());
            if now < free {
                continue;
            }
            if let Some(pass) = schedule.begin(now) {
                began.push(ms);
                free = now + cpu_time;
                schedule.end(pass, free, cpu_time);
            }
        }
        began
    }

    #[test]
    fn passes_use_a_tenth_of_a_core_during_constant_changes() {
        assert_eq!(passes(MS * 30, 3_000), [0, 300, 600, 900, 1200, 1500, 1800, 2100, 2400, 2700]);
        assert_eq!(passes(MS * 300, 7_000), [0, 3000, 6000]);
        assert_eq!(passes(MS, 1_000).len(), 10);
        assert_eq!(passes(MS * 1000, 13_000), [0, 6000, 12_000]);
    }

    #[test]
    fn the_first_change_is_judged_at_once_and_again_after_a_second() {
        let start = Instant::now();
        let mut schedule = PassSchedule::new(start);
        assert_eq!(schedule.next(), None);
        schedule.request(AffectedFlows::all());
        assert_eq!(schedule.next(), Some(start));
        let pass = schedule.begin(start).unwrap();
        schedule.end(pass, start + MS * 5, MS * 5);
        let second = start + MS * 5 + SECOND;
        assert_eq!(schedule.next(), Some(second));
        assert_eq!(schedule.begin(second - MS), None);
        let pass = schedule.begin(second).unwrap();
        assert_eq!(pass.affected(), AffectedFlows::all());
        schedule.end(pass, second, MS);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_failed_pass_is_repeated_after_a_pause() {
        let start = Instant::now();
        let mut schedule = PassSchedule::new(start);
        schedule.request(AffectedFlows::all());
        let pass = schedule.begin(start).unwrap();
        schedule.retry(&pass, start);
        assert_eq!(schedule.begin(start + SECOND - MS), None);
        let again = schedule.begin(start + SECOND).unwrap();
        assert_eq!(again.affected(), AffectedFlows::all());
        schedule.end(again, start + SECOND, MS);
        assert_eq!(schedule.next(), Some(start + SECOND * 2), "the second pass");
    }

    #[test]
    fn each_change_has_its_second_pass_also_during_constant_changes() {
        let start = Instant::now();
        let mut schedule = PassSchedule::new(start);
        let mut with_second = 0;
        for ms in 0..5_000 {
            let now = start + MS * ms;
            schedule.request(AffectedFlows::all());
            if let Some(pass) = schedule.begin(now) {
                with_second += usize::from(!pass.second.is_empty());
                schedule.end(pass, now, MS);
            }
            assert!(schedule.second.len() <= 11);
        }
        assert_eq!(with_second, 40);
    }
}
