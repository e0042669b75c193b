//! Repair, against the real agent: what somebody removes is back, what nobody has any more is collected, what others own
//! is left alone, and all of it is told. The agents look by themselves once an hour only, so that it is an event that
//! makes them look, except where a test says otherwise.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "../common/mod.rs"]
mod common;

mod addressing;
mod collecting;
mod conditions;
mod foreign;
mod inspection;
mod load;
mod objects;
mod orphans;
mod overlap;
mod quiet;
mod scene;
mod strays;
mod suspicion;
mod sysctls;
mod tables;
