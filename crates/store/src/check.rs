//! Limits that both backends enforce, so that a request never works with one and fails with the other.

use std::collections::BTreeSet;

use crate::Result;
use crate::error::{Error, Operation};
use crate::types::{Change, Compare};

pub const MAX_KEY: usize = 4 << 10;
pub const MAX_VALUE: usize = 1 << 20;
/// The total size of keys and values of one commit. etcd accepts requests of 1.5 MiB.
pub const MAX_COMMIT: usize = (1 << 20) + (256 << 10);
/// The maximum number of compares, and of changes, in one commit: etcd's default.
pub const MAX_CHANGES: usize = 128;

fn invalid(operation: &Operation, problem: String) -> Error {
    Error::Invalid { operation: operation.clone(), problem }
}

pub(crate) fn key(operation: &Operation, key: &str) -> Result<()> {
    match key.len() {
        0 => Err(invalid(operation, "a key must not be empty".to_owned())),
        1..=MAX_KEY => Ok(()),
        long => Err(invalid(
            operation,
            format!("a key of {long} bytes is too long; the maximum is {MAX_KEY} bytes"),
        )),
    }
}

/// A directory ends with a slash, so that `/hosts` never matches `/hosts2`.
pub(crate) fn directory(operation: &Operation, prefix: &str) -> Result<()> {
    key(operation, prefix)?;
    if prefix.ends_with('/') {
        Ok(())
    } else {
        Err(invalid(operation, format!("directory {prefix} does not end with '/'")))
    }
}

pub(crate) fn commit(operation: &Operation, compares: &[Compare], changes: &[Change]) -> Result<()> {
    if compares.len() > MAX_CHANGES || changes.len() > MAX_CHANGES {
        let count = compares.len().max(changes.len());
        return Err(invalid(
            operation,
            format!("{count} compares or changes are too many for one commit; the maximum is {MAX_CHANGES}"),
        ));
    }
    for compare in compares {
        match compare {
            Compare::Absent(name) | Compare::Exists(name) | Compare::Revision(name, _) => {
                key(operation, name)?;
            }
        }
    }
    let mut keys = BTreeSet::new();
    let mut total = 0;
    for change in changes {
        key(operation, change.key())?;
        if !keys.insert(change.key()) {
            return Err(invalid(operation, format!("{} is changed twice in one commit", change.key())));
        }
        total += change.key().len() + value(operation, change)?;
    }
    if total > MAX_COMMIT {
        return Err(invalid(
            operation,
            format!("a commit of {total} bytes is too large; the maximum is {MAX_COMMIT} bytes"),
        ));
    }
    Ok(())
}

fn value(operation: &Operation, change: &Change) -> Result<usize> {
    match change {
        Change::Put { key, value, .. } if value.len() > MAX_VALUE => {
            let size = value.len();
            Err(invalid(
                operation,
                format!("a value of {size} bytes for {key} is too large; the maximum is {MAX_VALUE} bytes"),
            ))
        }
        Change::Put { value, .. } => Ok(value.len()),
        Change::Delete(_) => Ok(0),
    }
}
