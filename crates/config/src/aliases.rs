//! Variables under other names than our own: those that the first agent of this kind was configured with. Most are read
//! like the key they mean; three are read with more timeout.

use std::path::PathBuf;

use crate::draft::Draft;
use crate::keys::KeySetter;
use crate::{Key, etcd, values};

pub(super) const PLUGIN_LOCATION: &str = "CNI_PLUGIN_LOCATION";
const CONFIG_NAME: &str = "10-podwire.conflist";
const CONFIG_ALLOWED: &str = "must be the absolute path of a file that ends in .conf or .conflist, or of a directory with '/' at its end";
const PLUGIN_ALLOWED: &str = "must be the absolute path of a file, or of a directory with '/' at its end";

/// How this variable is read.
pub(super) fn reader(alias: &str, key: &Key) -> KeySetter {
    match alias {
        "ETCD_PREFIX" => prefix,
        "CNI_CONFIG_LOCATION" => config_location,
        PLUGIN_LOCATION => plugin_location,
        _ => key.set,
    }
}

/// With or without slashes around it.
fn prefix(draft: &mut Draft, text: &str) -> Result<(), String> {
    let inner = text.strip_prefix('/').unwrap_or(text);
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    values::put(&mut draft.prefix, etcd::prefix(&format!("/{inner}")))
}

fn config_location(draft: &mut Draft, text: &str) -> Result<(), String> {
    let (directory, name) = location(text).ok_or(CONFIG_ALLOWED)?;
    let name = name.map_or(Ok(CONFIG_NAME.to_owned()), values::config_name).map_err(|_| CONFIG_ALLOWED)?;
    draft.config_dir = Some(directory);
    draft.config_name = Some(name);
    draft.located = true;
    Ok(())
}

fn plugin_location(draft: &mut Draft, text: &str) -> Result<(), String> {
    let (directory, name) = location(text).ok_or(PLUGIN_ALLOWED)?;
    let name = name.map(values::plugin_name).transpose()?;
    draft.plugin_dir = Some(directory);
    draft.plugin_file = name.map(|name| (name, text.to_owned()));
    draft.located = true;
    Ok(())
}

/// The directory, and the file's name unless the whole is a directory. Only the text tells which: a start must not depend on
/// what is on the disk.
fn location(text: &str) -> Option<(PathBuf, Option<&str>)> {
    let path = values::path(text).ok()?;
    // `/` and what ends in `..` have none.
    let name = path.file_name()?.len();
    if text.ends_with('/') {
        return Some((path, None));
    }
    // Other endings that a path leaves out (`/.`) are no name.
    let (directory, last) = text.rsplit_once('/')?;
    let directory = if directory.is_empty() { "/" } else { directory };
    (last.len() == name).then(|| (PathBuf::from(directory), Some(last)))
}

/// A file under another name than the type would never be found.
pub(super) fn disagree(file: &str, kind: &str) -> Option<String> {
    (file != kind).then(|| {
        format!(
            "names the plugin's file {file:?}, and install.type (CNI_TYPE) is {kind:?}: both must agree, runtimes look for a file that is called like the type; a directory has '/' at its end"
        )
    })
}
