//! Directories in which a runtime searches for plugins and configs.

use std::path::PathBuf;

pub const PLUGIN_DIR: &str = "/opt/cni/bin";
pub const CONFIG_DIR: &str = "/etc/cni/net.d";

/// A runtime's plugin directory and config directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    pub plugins: PathBuf,
    pub configs: PathBuf,
}

impl Default for Directories {
    fn default() -> Self {
        Self { plugins: PLUGIN_DIR.into(), configs: CONFIG_DIR.into() }
    }
}
