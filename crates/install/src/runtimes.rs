//! Detects the CNI directories of the container runtimes on this host from their configuration. If a plugin is in another
//! directory, the runtime reports a ready network, and every pod fails.

mod plugins;

pub use plugins::removed_plugin;

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use config::{CONFIG_DIR, Directories, PLUGIN_DIR};
use toml::{Table, Value};
use types::{Code, Finding};

const CONTAINERD: &str = "etc/containerd/config.toml";
const CRIO: &str = "etc/crio/crio.conf";
const CRIO_DROP_INS: &str = "etc/crio/crio.conf.d";
/// containerd's CRI plugin under its names of config versions 3, 2 and 1.
const CRI: [&str; 3] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"];

/// A runtime that is configured on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    pub name: &'static str,
    /// The configuration file, the table with the two directories, and their keys.
    file: PathBuf,
    table: String,
    keys: [&'static str; 2],
    /// The runtime searches all of them for plugins.
    pub plugin_dirs: Vec<PathBuf>,
    pub config_dir: PathBuf,
    /// Whether the runtime calls the plugin `loopback` for every pod.
    calls_loopback: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Runtimes {
    pub found: Vec<Runtime>,
    /// Configuration files that cannot be read. The other files are used.
    pub unreadable: Vec<Unreadable>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub file: PathBuf,
    pub reason: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {}: {}; its directories are unknown", self.file.display(), self.reason)
    }
}

/// The main files and drop-ins of all configured runtimes, with their modification times. Imports are not followed.
pub fn config_times(root: &Path) -> Vec<(PathBuf, SystemTime)> {
    let main = [CONTAINERD, CRIO].into_iter().map(|file| root.join(file));
    let files = main.chain(listed(&root.join(CRIO_DROP_INS), "*.conf"));
    files.filter_map(|file| Some((file.clone(), fs::metadata(file).ok()?.modified().ok()?))).collect()
}

/// The configuration files of one runtime.
#[derive(Default)]
struct RuntimeFiles {
    tables: Vec<Table>,
    unreadable: Vec<Unreadable>,
}

impl Runtimes {
    /// Detects the runtimes of this host. `root` is `/` except in tests.
    pub fn detect(root: &Path) -> Self {
        let mut all = Self::default();
        let main = root.join(CONTAINERD);
        all.add(read_with_imports(&main), |tables| containerd(main.clone(), tables));
        let main = root.join(CRIO);
        let files = [main.clone()].into_iter().chain(listed(&root.join(CRIO_DROP_INS), "*.conf"));
        all.add(RuntimeFiles::read(files), |tables| crio(main.clone(), tables));
        all
    }

    fn add(&mut self, files: RuntimeFiles, parse: impl FnOnce(&[Table]) -> Option<Runtime>) {
        if !files.tables.is_empty() {
            self.found.extend(parse(&files.tables));
        }
        self.unreadable.extend(files.unreadable);
    }

    /// The result of [`Self::choose`] on this host.
    pub fn directories() -> Directories {
        Self::detect(Path::new("/")).choose()
    }

    /// The default directories if all runtimes use them, otherwise the first common ones, otherwise those of the first runtime.
    pub fn choose(&self) -> Directories {
        let plugins: Vec<&[PathBuf]> = self.found.iter().map(|one| one.plugin_dirs.as_slice()).collect();
        let configs: Vec<&[PathBuf]> =
            self.found.iter().map(|one| std::slice::from_ref(&one.config_dir)).collect();
        Directories { plugins: common(&plugins, PLUGIN_DIR), configs: common(&configs, CONFIG_DIR) }
    }

    /// Runtimes that do not search these directories, each with the setting to change.
    pub fn mismatches(&self, chosen: &Directories) -> Vec<String> {
        let of_runtime = |runtime: &Runtime| {
            let plugins = (!runtime.plugin_dirs.contains(&chosen.plugins))
                .then(|| runtime.complaint(runtime.keys[0], &runtime.plugin_dirs, &chosen.plugins));
            let configs = (runtime.config_dir != chosen.configs).then(|| {
                runtime.complaint(runtime.keys[1], std::slice::from_ref(&runtime.config_dir), &chosen.configs)
            });
            plugins.into_iter().chain(configs).collect::<Vec<_>>()
        };
        self.found.iter().flat_map(of_runtime).collect()
    }

    /// Runtimes that use the installed config and lack plugins that it needs. The node is not ready if no runtime has all plugins.
    pub fn findings(&self, config_dir: &Path, plugin: &Path) -> Vec<Finding> {
        let users: Vec<&Runtime> = self.found.iter().filter(|one| one.config_dir == config_dir).collect();
        self.lacking(&users, plugin)
    }

    fn lacking(&self, users: &[&Runtime], plugin: &Path) -> Vec<Finding> {
        let lacking: Vec<Finding> = users.iter().filter_map(|one| one.without_plugins(plugin)).collect();
        let is_served = lacking.len() < users.len();
        let lacking = lacking.into_iter().map(|finding| if is_served { finding.degraded() } else { finding });
        lacking.chain(self.unreadable.iter().map(Unreadable::finding)).collect()
    }
}

impl Unreadable {
    /// Only degraded, because another file may contain the directories.
    pub fn finding(&self) -> Finding {
        Finding::new(Code::InstallIncomplete, format_args!("file {}", self.file.display()), self).degraded()
    }
}

impl Runtime {
    fn complaint(&self, key: &str, used: &[PathBuf], chosen: &Path) -> String {
        format!(
            "{} uses {} and does not find files in {}; {}",
            self.name,
            joined(used),
            chosen.display(),
            self.setting(key, chosen)
        )
    }

    /// The setting to change, with its table: the key may occur in several tables.
    fn setting(&self, key: &str, chosen: &Path) -> String {
        let value = if key.ends_with("_dirs") { format!("[{chosen:?}]") } else { format!("{chosen:?}") };
        format!(
            "set {key} = {value} in {}, table [{}], and restart {}",
            self.file.display(),
            self.table,
            self.name
        )
    }
}

fn joined(directories: &[PathBuf]) -> String {
    directories.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn common(used: &[&[PathBuf]], default: &str) -> PathBuf {
    let is_common = |dir: &&PathBuf| used.iter().all(|dirs| dirs.contains(dir));
    let default = PathBuf::from(default);
    let Some(first) = used.first() else { return default };
    if is_common(&&default) {
        return default;
    }
    first.iter().find(is_common).or_else(|| first.first()).cloned().unwrap_or(default)
}

/// None if CRI is disabled, as in Docker's package: such a containerd starts no pods.
fn containerd(file: PathBuf, tables: &[Table]) -> Option<Runtime> {
    let disabled =
        |table: &Table| strings(table.get("disabled_plugins")).iter().any(|name| CRI.contains(name));
    if tables.iter().any(disabled) {
        return None;
    }
    let cni = |key: &str| {
        let of = |table: &'_ Table, name: &str| -> Option<Vec<PathBuf>> {
            paths(table.get("plugins")?.get(name)?.get("cni")?.get(key))
        };
        tables.iter().rev().find_map(|table| CRI.iter().find_map(|name| of(table, name)))
    };
    // Since 2.1 `bin_dirs` replaces `bin_dir`.
    let lists = [("bin_dirs", cni("bin_dirs")), ("bin_dir", cni("bin_dir"))];
    let (key, dirs) = lists
        .into_iter()
        .find_map(|(key, dirs)| Some((key, dirs?)))
        .unwrap_or_else(|| ("bin_dir", vec![PLUGIN_DIR.into()]));
    let configs = cni("conf_dir").and_then(|dirs| dirs.into_iter().next());
    Some(Runtime {
        name: "containerd",
        file,
        table: format!("plugins.{:?}.cni", cri_name(tables)),
        keys: [key, "conf_dir"],
        calls_loopback: !has_internal_loopback(tables),
        plugin_dirs: dirs,
        config_dir: configs.unwrap_or_else(|| CONFIG_DIR.into()),
    })
}

/// Whether containerd configures the loopback interface itself instead of calling the plugin.
fn has_internal_loopback(tables: &[Table]) -> bool {
    let of = |table: &Table, name: &str| {
        table.get("plugins")?.get(name)?.get("cni")?.get("use_internal_loopback")?.as_bool()
    };
    let set = tables.iter().rev().find_map(|table| CRI.iter().find_map(|name| of(table, name)));
    set.unwrap_or(false)
}

/// The name that the files use, or the name for their version.
fn cri_name(tables: &[Table]) -> &'static str {
    let has = |name: &&str| {
        tables.iter().any(|table| table.get("plugins").is_some_and(|all| all.get(*name).is_some()))
    };
    let by_version = match version(tables) {
        ..=1 => CRI[2],
        2 => CRI[1],
        3.. => CRI[0],
    };
    CRI.into_iter().find(has).unwrap_or(by_version)
}

fn version(tables: &[Table]) -> i64 {
    tables.iter().find_map(|table| table.get("version")?.as_integer()).unwrap_or(1)
}

/// Later files have priority. CRI-O adds the old key `plugin_dir` to the list.
fn crio(file: PathBuf, tables: &[Table]) -> Option<Runtime> {
    let network =
        |key: &str| tables.iter().rev().find_map(|table| paths(table.get("crio")?.get("network")?.get(key)));
    let mut plugin_dirs = network("plugin_dirs").unwrap_or_else(|| vec![PLUGIN_DIR.into()]);
    plugin_dirs.extend(network("plugin_dir").into_iter().flatten());
    let configs = network("network_dir").and_then(|dirs| dirs.into_iter().next());
    Some(Runtime {
        name: "CRI-O",
        file,
        table: "crio.network".to_owned(),
        keys: ["plugin_dirs", "network_dir"],
        calls_loopback: false,
        plugin_dirs,
        config_dir: configs.unwrap_or_else(|| CONFIG_DIR.into()),
    })
}

/// A path or a list of paths. None if the value is unset or empty.
fn paths(value: Option<&Value>) -> Option<Vec<PathBuf>> {
    // Without a trailing slash, so that paths can be compared.
    let normalize = |text: &&str| Path::new(text).components().collect::<PathBuf>();
    let all = strings(value);
    let all: Vec<PathBuf> = all.iter().filter(|text| !text.is_empty()).map(normalize).collect();
    (!all.is_empty()).then_some(all)
}

fn strings(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
        Some(_) | None => vec![],
    }
}

/// The file, then the files in its `imports`, which have priority. Nested imports are rare and not followed.
fn read_with_imports(main: &Path) -> RuntimeFiles {
    let mut all = RuntimeFiles::read([main.to_owned()]);
    let imports = all.tables.first().map(|table| strings(table.get("imports"))).unwrap_or_default();
    let directory = main.parent().unwrap_or(main);
    let mut files = Vec::new();
    for import in imports {
        let import = directory.join(import);
        let pattern = import.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.extend(listed(import.parent().unwrap_or(directory), &pattern));
    }
    let imported = RuntimeFiles::read(files);
    all.tables.extend(imported.tables);
    all.unreadable.extend(imported.unreadable);
    all
}

/// The files in a directory with matching names, sorted. `*` matches any text.
fn listed(directory: &Path, pattern: &str) -> Vec<PathBuf> {
    let (start, end) = pattern.split_once('*').unwrap_or((pattern, ""));
    let matches = |name: &str| match pattern.contains('*') {
        true => name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end),
        false => name == pattern,
    };
    let Ok(entries) = fs::read_dir(directory) else { return vec![] };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| matches(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}

impl RuntimeFiles {
    /// Skips files that do not exist.
    fn read(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut all = Self::default();
        for file in files {
            let read = match fs::read_to_string(&file) {
                Ok(text) => text.parse().map_err(|error: toml::de::Error| error.message().to_owned()),
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => Err(error.to_string()),
            };
            match read {
                Ok(table) => all.tables.push(table),
                Err(reason) => all.unreadable.push(Unreadable { file, reason }),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
