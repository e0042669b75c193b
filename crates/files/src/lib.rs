//! The one module for Podwire's files: opens them, replaces them atomically, locks and removes them, whatever another
//! process put in their place. A FIFO or device never blocks the caller, a symlink is not followed, and a file or
//! directory that another user can write to is refused. Called by every crate that reads or writes state, configuration
//! or logs. Touches only the paths it is given.
//!
//! ```text
//! open    state files (regular, owner and mode checked), unmanaged files (regular), configuration (symlinks allowed)
//! write   a temporary file in the same directory, mode, flush or not, rename; removal of what killed processes left
//! dir     directories that hold state
//! lock    a file that a process holds for as long as it lives
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
