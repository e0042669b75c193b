#![expect(clippy::unwrap_used, reason = "a test ends at its first surprise, in helpers as well")]
mod common;
mod store;
