//! Which address a pod gets. Configured ranges become checked `Pools`; a bitmap per range, stored by the caller, is the
//! index that finds the next free address without looking at each one.
//!
//! ```text
//! RangeSpec -> Range -> RangeSet -> Pools      what may be handed out: one address per set, one family per set
//!                          |
//!             next_after(last, words_for)      who is next, round robin, from the bitmaps alone
//!                          v
//!                         Pick                 the caller claims it; taken after all? set the bit and ask again
//! ```
//!
//! Called by the engine, which holds one lock per network while it asks and claims. The claim is the truth and the bitmap
//! only an index: a bit that is missing costs one refused claim. A bit too many hides a free address, so a caller
//! that finds a set full calls `rebuild` from its claims before it believes it.
//!
//! Pure: no I/O, no clock, no runtime; the stored bitmap comes in through `Words`.

#![forbid(unsafe_code)]

mod error;
mod index;
mod interval;
mod pools;
mod range;
mod request;
mod set;
mod window;

pub use error::{Exhausted, PoolError, RangeError, RangeKey, RequestError};
pub use index::{Words, clear, is_set, rebuild, set};
pub use pools::Pools;
pub use range::{Range, RangeRefusal, RangeSpec, block_gateway};
pub use set::{Pick, RangeSet};
pub use window::WINDOW;

#[cfg(test)]
mod tests;
