//! Selects addresses for pods. Configured ranges become validated `Pools`. A bitmap per range, stored by the caller, is the
//! index for finding the next free address.
//!
//! ```text
//! RangeSpec -> Range -> RangeSet -> Pools      allocatable addresses: one address per set, one family per set
//!                          |
//!             next_after(last, words_for)      the next free address, round robin, from the bitmaps only
//!                          v
//!                         Pick                 the caller claims it; if the claim fails, it sets the bit and retries
//! ```
//!
//! Called by the engine, which holds one lock per network while it selects and claims. Claims are authoritative; the bitmap is
//! only an index. A missing bit costs one failed claim. A surplus bit hides a free address, so a caller that finds a set full
//! calls `rebuild` with its claims and retries.
//!
//! Pure: no I/O, no clock, no runtime. The caller provides access to the stored bitmap (`Words`).

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
