//! The pods' image: Debian's static busybox, symlinks to it and an idle entry point. It is built as a docker archive, because
//! the tests have no registry.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// The image name. It is used as pause image and for containers.
pub const IMAGE: &str = "localhost/podwire-test:1";
const BUSYBOX: &str = "/bin/busybox";
const DIRECTORIES: [&str; 7] = ["bin", "dev", "etc", "proc", "sys", "tmp", "www"];
const PROGRAMS: [&str; 10] =
    ["sh", "sleep", "ping", "ping6", "ip", "cat", "echo", "httpd", "wget", "hostname"];
/// PID 1 ignores signals without a handler. Without the trap every pod would stop only after its grace period.
const ENTRY: &str = "trap exit TERM; sleep 2147483647 & wait";

pub(crate) fn write_archive(to: &Path) -> Result<()> {
    let busybox = fs::read(BUSYBOX)
        .with_context(|| format!("cannot read {BUSYBOX}: install the package busybox-static"))?;
    let archive = archive(&layer(&busybox)?)?;
    fs::write(to, archive).with_context(|| format!("cannot write {}", to.display()))
}

fn layer(busybox: &[u8]) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for directory in DIRECTORIES {
        let mut header = header(EntryType::Directory, 0);
        tar.append_data(&mut header, directory, &[][..])?;
    }
    tar.append_data(&mut header(EntryType::Regular, busybox.len()), "bin/busybox", busybox)?;
    for program in PROGRAMS {
        tar.append_link(&mut header(EntryType::Symlink, 0), format!("bin/{program}"), "busybox")?;
    }
    tar.into_inner().context("cannot build the image's layer")
}

fn archive(layer: &[u8]) -> Result<Vec<u8>> {
    let digest: String = Sha256::digest(layer).iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": architecture(), "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Entrypoint": ["/bin/sh", "-c", ENTRY] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"] }]);
    let files = [
        ("config.json", config.to_string().into_bytes()),
        ("layer.tar", layer.to_vec()),
        ("manifest.json", manifest.to_string().into_bytes()),
    ];
    let mut tar = Builder::new(Vec::new());
    for (name, bytes) in files {
        tar.append_data(&mut header(EntryType::Regular, bytes.len()), name, bytes.as_slice())?;
    }
    tar.into_inner().context("cannot build the image's archive")
}

/// The architecture name in Go.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn header(kind: EntryType, size: usize) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_size(size as u64);
    header
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_config_contains_the_digest_of_the_layer() {
        let layer = layer(b"#!busybox").unwrap();
        let bytes = archive(&layer).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut config = String::new();
        archive.entries().unwrap().next().unwrap().unwrap().read_to_string(&mut config).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let digest: String = Sha256::digest(&layer).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{digest}"));
        let names: Vec<_> = tar::Archive::new(layer.as_slice())
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert!(names.contains(&"bin/sh".to_owned()) && names.contains(&"proc".to_owned()), "{names:?}");
    }
}
