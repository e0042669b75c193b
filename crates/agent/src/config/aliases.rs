//! Variables under other names than our own: those that the first agent of this kind was configured with. Most are read
//! like the key they mean; three are read with more patience.

use std::path::Path;

use crate::config::draft::Draft;
use crate::config::keys::Set;
use crate::config::{Key, etcd, values};

pub(super) const PLUGIN_LOCATION: &str = "CNI_PLUGIN_LOCATION";
const CONFIG_NAME: &str = "10-podwire.conflist";

/// How this variable is read.
pub(super) fn reader(alias: &str, key: &Key) -> Set {
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
    let (folder, name) = location(text)?;
    let name = name.map_or(Ok(CONFIG_NAME.to_owned()), |name| values::config_name(&name))?;
    draft.config_dir = Some(values::path(&folder)?);
    draft.config_name = Some(name);
    draft.located = true;
    Ok(())
}

fn plugin_location(draft: &mut Draft, text: &str) -> Result<(), String> {
    let (folder, name) = location(text)?;
    let name = name.map(|name| values::plugin_name(&name)).transpose()?;
    draft.plugin_dir = Some(values::path(&folder)?);
    draft.plugin_file = name.map(|name| (name, text.to_owned()));
    draft.located = true;
    Ok(())
}

/// The folder, and the file's name unless the whole is a folder.
fn location(text: &str) -> Result<(String, Option<String>), String> {
    let path = values::path(text).map_err(|_| "must be the absolute path of a file".to_owned())?;
    if text.ends_with('/') || path.is_dir() {
        return Ok((text.to_owned(), None));
    }
    let parts = path.parent().and_then(Path::to_str).zip(path.file_name().and_then(|name| name.to_str()));
    let (folder, name) = parts.ok_or("must be the absolute path of a file")?;
    Ok((folder.to_owned(), Some(name.to_owned())))
}

/// A file under another name than the type would never be found.
pub(super) fn disagree(file: &str, kind: &str) -> Option<String> {
    (file != kind).then(|| {
        format!(
            "names the plugin's file {file:?}, and install.type (CNI_TYPE) is {kind:?}: both must agree, runtimes look for a file that is called like the type"
        )
    })
}
