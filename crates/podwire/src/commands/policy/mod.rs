//! `podwire policy test` and `podwire explain`. On files they show the verdicts of the policy engine without a cluster. Without files,
//! `podwire explain` asks the agent.
//!
//! ```text
//! -f FILE ─► documents ─► PolicyFiles: catalog, objects of Kubernetes, cases ─► PolicyWorld: engine, names of pods ─► explain
//! ```

mod cases;
mod explain;
mod files;
mod test;
mod world;

pub(crate) use explain::run as explain;
pub(crate) use test::run as test;
