//! File access: opens, atomically replaces, locks and removes files. Safe if another process replaced a file: a FIFO or device
//! never blocks the caller, symlinks are not followed, and files and directories that another user can write to are refused.
//! Called by every crate that reads or writes state, configuration or logs. Touches only the paths that callers pass.
//!
//! ```text
//! open    state files (regular, owner and mode checked), unmanaged files (regular), configuration (symlinks allowed)
//! write   atomic replacement (temporary file, mode, optional flush, rename); removal of leftover temporary files
//! dir     directories with state
//! lock    lock files that a process holds until it exits
//! ```

#![forbid(unsafe_code)]

mod dir;
mod lock;
mod open;
mod write;

pub use dir::{UnsafeDir, check_dir, create_dir, sync_dir};
pub use lock::{Attempt, LockFailed, LockFile};
pub use open::{
    OpenRefused, is_refused, open, open_config, open_unmanaged, read, read_limited, read_open, read_text,
    read_unmanaged,
};
pub use write::{
    Durability, Replacement, Writers, create, optional, remove, remove_leftovers, replace, replace_open,
    write_new,
};
