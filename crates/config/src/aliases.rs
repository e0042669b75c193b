//! Legacy environment variables such as `CNI_PLUGIN_LOCATION`. Most are parsed like the key that they set. Three accept more
//! forms.

use std::path::PathBuf;

use crate::draft::Draft;
use crate::keys::KeySetter;
use crate::{Key, etcd, values};

pub(super) const PLUGIN_LOCATION: &str = "CNI_PLUGIN_LOCATION";
const CONFIG_NAME: &str = "10-podwire.conflist";
const CONFIG_ALLOWED: &str = "must be the absolute path of a file that ends in .conf or .conflist, or of a directory with a trailing '/'";
const PLUGIN_ALLOWED: &str = "must be the absolute path of a file, or of a directory with a trailing '/'";

/// Returns the parser of this variable.
pub(super) fn parser(alias: &str, key: &Key) -> KeySetter {
    match alias {
        "ETCD_PREFIX" => prefix,
        "CNI_CONFIG_LOCATION" => config_location,
        PLUGIN_LOCATION => plugin_location,
        _ => key.set,
    }
}

/// Accepts the prefix with or without surrounding slashes.
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
    draft.has_location = true;
    Ok(())
}

fn plugin_location(draft: &mut Draft, text: &str) -> Result<(), String> {
    let (directory, name) = location(text).ok_or(PLUGIN_ALLOWED)?;
    let name = name.map(values::plugin_name).transpose()?;
    draft.plugin_dir = Some(directory);
    draft.plugin_file = name.map(|name| (name, text.to_owned()));
    draft.has_location = true;
    Ok(())
}

/// Returns the directory, and the file name unless the whole path is a directory. Only the text decides which it is,
/// because the configuration must not depend on the files on disk.
fn location(text: &str) -> Option<(PathBuf, Option<&str>)> {
    let path = values::path(text).ok()?;
    // `/` and paths that end in `..` have no file name.
    let name = path.file_name()?.len();
    if text.ends_with('/') {
        return Some((path, None));
    }
    // `Path` drops other suffixes such as `/.`, which are no file name either.
    let (directory, last) = text.rsplit_once('/')?;
    let directory = if directory.is_empty() { "/" } else { directory };
    (last.len() == name).then(|| (PathBuf::from(directory), Some(last)))
}

/// Runtimes execute the file that has the name of the type, so both names must be equal.
pub(super) fn name_mismatch(file: &str, kind: &str) -> Option<String> {
    (file != kind).then(|| {
        format!(
            "names the plugin's file {file:?}, but install.type (CNI_TYPE) is {kind:?}: both must be equal, because runtimes execute the file with the name of the type; the path of a directory must end with '/'"
        )
    })
}
