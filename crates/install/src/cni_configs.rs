//! CNI configs in a runtime's directory that name Podwire's plugin, with or without an installation record.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The extensions of files that runtimes read as configs.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

#[derive(Debug)]
pub struct CniConfig {
    pub path: PathBuf,
    /// Each with the keys that a runtime adds from the list: `cniVersion` and `name`.
    pub plugins: Vec<Value>,
}

impl CniConfig {
    /// The configs that name this plugin, sorted by path. Files that cannot be read or parsed are skipped, as runtimes do.
    pub fn naming(plugin: &str, directory: &Path) -> Vec<Self> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_config = |path: &PathBuf| {
            path.extension().is_some_and(|it| EXTENSIONS.iter().any(|extension| it == *extension))
        };
        let mut all: Vec<Self> = entries.filter(is_config).filter_map(Self::read).collect();
        all.retain(|config| config.types().any(|kind| kind == plugin));
        all.sort_by(|a, b| a.path.cmp(&b.path));
        all
    }

    fn read(path: PathBuf) -> Option<Self> {
        let list: Value = serde_json::from_slice(&::files::read_unmanaged(&path).ok()?).ok()?;
        let mut plugins = list["plugins"].as_array().cloned().unwrap_or_else(|| vec![list.clone()]);
        for plugin in plugins.iter_mut().filter_map(Value::as_object_mut) {
            for key in ["cniVersion", "name"] {
                plugin.insert(key.to_owned(), list[key].clone());
            }
        }
        Some(Self { path, plugins })
    }

    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.plugins.iter().filter_map(|plugin| plugin["type"].as_str())
    }

    /// The entries of this plugin.
    pub fn parts(self, plugin: &str) -> impl Iterator<Item = Value> {
        self.plugins.into_iter().filter(move |part| part["type"] == plugin)
    }
}
