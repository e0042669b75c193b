//! `podwire policy test` and `podwire explain` on files: the verdicts of the policy engine without a cluster.
//!
//! ```text
//! -f FILE ─► documents ─► PolicyFiles: catalog, objects of Kubernetes, cases ─► PolicyWorld: engine, names of pods ─► explain
//! ```

mod cases;
mod ends;
mod explain;
mod files;
mod test;
mod world;

pub(crate) use explain::run as explain;
pub(crate) use test::run as test;
