//! `podwire install`: the plugin first, the config last, each by a rename inside its folder, so that a runtime never sees
//! half a file, a config without its plugin, or "text file busy".

use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cli::Install;

const PLUGIN: &str = "podwire-cni";

pub(crate) fn run(args: &Install) -> Result<()> {
    let config = conflist(args);
    // A config that the plugin would refuse is refused here, before anything is written.
    check(&config)?;
    let plugin = fs::read(plugin_beside_us()?).context("cannot read the plugin")?;
    let plugin_path = args.plugin_dir.join(PLUGIN);
    write_whole(&plugin_path, &plugin, 0o700)?;
    println!("plugin {}", plugin_path.display());
    let config_path = args.config_dir.join(format!("10-{}.conflist", args.name));
    write_whole(&config_path, &serde_json::to_vec_pretty(&config)?, 0o600)?;
    println!("config {}", config_path.display());
    Ok(())
}

/// One plugin that does it all: hostPort and bandwidth are inside, nothing is chained.
fn conflist(args: &Install) -> Value {
    let ranges: Vec<Value> = args.subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
    json!({
        "cniVersion": "1.1.0",
        "cniVersions": ["0.4.0", "1.0.0", "1.1.0"],
        "name": args.name,
        "plugins": [{
            "type": PLUGIN,
            "bridge": args.bridge,
            "isDefaultGateway": true,
            "ipMasq": true,
            "ipam": { "ranges": ranges },
            "capabilities": { "portMappings": true, "bandwidth": true, "ips": true, "mac": true, "dns": true },
        }],
    })
}

/// The plugin's own eyes on the config, as a runtime would hand it over.
fn check(conflist: &Value) -> Result<()> {
    let mut plugin = conflist["plugins"][0].clone();
    plugin["cniVersion"] = conflist["cniVersion"].clone();
    plugin["name"] = conflist["name"].clone();
    let config = cni::Config::from_slice(plugin.to_string().as_bytes())?;
    netconf::NetConf::parse(&config)?;
    Ok(())
}

fn plugin_beside_us() -> Result<PathBuf> {
    let us = std::env::current_exe().context("cannot find my own program file")?;
    let plugin = us.with_file_name(PLUGIN);
    anyhow::ensure!(plugin.is_file(), "{} is missing: keep both programs in one folder", plugin.display());
    Ok(plugin)
}

/// Writes a file under a temporary name in the same folder and renames it: some runtimes do not notice a file that is
/// renamed into their folder from another one.
fn write_whole(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A leading dot and no known suffix: no runtime takes it for a config.
    let temp = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = write_new(&temp, content, mode).and_then(|()| fs::rename(&temp, path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&temp);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> std::io::Result<()> {
    let mut file = File::options().create_new(true).write(true).mode(mode).open(path)?;
    file.write_all(content)?;
    // Installed once, read after every boot: this one is worth the disk's time.
    file.sync_all()
}
