//! CNI configs of Podwire in a runtime's directory.

use std::fs;
use std::path::Path;

use agent::install::PLUGIN;
use cni::Config;
use serde_json::Value;

/// The configs that a runtime would send to the plugin: a list's own keys are added, as runtimes do. Other configs, and those
/// that cannot be read, are left out.
pub(super) fn of_podwire(directory: &Path) -> Vec<Config> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let is_config = |path: &Path| {
        path.extension().is_some_and(|ending| ["conf", "conflist", "json"].iter().any(|it| ending == *it))
    };
    let files = entries.flatten().map(|entry| entry.path()).filter(|path| is_config(path));
    let texts = files.filter_map(|path| fs::read(path).ok());
    texts.filter_map(|text| serde_json::from_slice(&text).ok()).flat_map(|list| plugins(&list)).collect()
}

fn plugins(list: &Value) -> Vec<Config> {
    let all = list["plugins"].as_array().cloned().unwrap_or_else(|| vec![list.clone()]);
    let of = |mut plugin: Value| {
        for key in ["cniVersion", "name"] {
            plugin.as_object_mut()?.insert(key.to_owned(), list[key].clone());
        }
        Config::from_slice(plugin.to_string().as_bytes()).ok()
    };
    all.into_iter().filter(|plugin| plugin["type"] == PLUGIN).filter_map(of).collect()
}
