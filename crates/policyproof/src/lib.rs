//! The proof of the policy engine, for tests and benchmarks only.
//!
//! ```text
//!   World ──► naive: the verdict straight from the objects ──────────────────────────┐
//!     └─► PolicyEngine ──► elements, profiles ──► interpret: what the kernel answers ─┴──► compare
//! ```
//!
//! `naive` shares no code with the compiler. `worlds` generates worlds, changes and flows, `cases` has one hand-written world for each
//! clause, `build` makes objects from short texts.
//!
//! Pure: no I/O, no clock, no runtime.

#![forbid(unsafe_code)]

pub mod build;
pub mod cases;
pub mod compare;
mod dice;
mod flow;
pub mod interpret;
pub mod naive;
pub mod worlds;

pub use dice::Dice;
pub use flow::{Flow, JudgedFlow};
