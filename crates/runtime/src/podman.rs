//! Podman with its CNI backend on a machine. Every command is a separate process; there is no daemon.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context as _, Result, ensure};
use testkit::Outcome;

use crate::Machine;
use crate::image::{IMAGE, write_archive};

/// `lock_type = "file"`: the default is shared memory in /dev/shm, which machines share. `vfs`: overlayfs cannot be stacked, and
/// the lab's directory may be on one.
const FILES: [(&str, &str); 3] = [
    (
        "containers.conf",
        r#"[network]
network_backend = "cni"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
runtime = "runc"
image_copy_tmp_dir = "/run"
"#,
    ),
    (
        "storage.conf",
        r#"[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"#,
    ),
    ("policy.json", r#"{ "default": [{ "type": "insecureAcceptAnything" }] }"#),
];
const RUN: [&str; 3] = ["run", "--detach", "--cap-add=NET_RAW"];

/// Debian's podman, with the same image as containerd's pods.
#[derive(Debug)]
pub struct Podman {
    machine: Machine,
}

impl Podman {
    pub fn new(machine: &Machine) -> Result<Self> {
        let etc = machine.path("/etc/containers");
        fs::create_dir_all(&etc).with_context(|| format!("cannot create {}", etc.display()))?;
        for (name, text) in FILES {
            let file = etc.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        // The plugins of podman's default network call these. In Debian they are symlinks through /etc, which is private to the
        // machine.
        let alternatives = machine.path("/etc/alternatives");
        fs::create_dir_all(&alternatives)
            .with_context(|| format!("cannot create {}", alternatives.display()))?;
        for name in ["iptables", "ip6tables"] {
            symlink(format!("/usr/sbin/{name}-nft"), alternatives.join(name))
                .with_context(|| format!("cannot link {name}"))?;
        }
        let archive = machine.dir().join("podman-image.tar");
        write_archive(&archive)?;
        let podman = Self { machine: machine.clone() };
        podman.sh(&["load", "--input", archive.to_str().context("the lab's directory is not UTF-8")?])?;
        Ok(podman)
    }

    /// Starts a container that runs until it is removed. `options` are those of `podman run`.
    pub fn run(&self, name: &str, options: &[&str]) -> Result<()> {
        let outcome = self.try_run(name, options)?;
        ensure!(outcome.success(), "cannot run {name}: {}, {}", outcome.status, outcome.stderr.trim());
        Ok(())
    }

    /// Runs a program in the container and returns stdout. A nonzero exit code is an error.
    pub fn exec(&self, container: &str, argv: &[&str]) -> Result<String> {
        self.sh(&[&["exec", container], argv].concat())
    }

    pub fn remove(&self, container: &str) -> Result<()> {
        self.sh(&["rm", "--force", "--time", "5", container]).map(|_| ())
    }

    /// Runs a podman command and returns stdout. A nonzero exit code is an error.
    pub fn sh(&self, args: &[&str]) -> Result<String> {
        self.machine.sh(&[&["podman"], args].concat())
    }

    /// Like `run`; the caller checks the outcome.
    pub fn try_run(&self, name: &str, options: &[&str]) -> Result<Outcome> {
        let group = format!("/{}", self.machine.cgroup());
        let own = ["--cgroup-parent", &group, "--name", name];
        self.machine.run(&[&["podman"], RUN.as_slice(), &own, options, &[IMAGE]].concat())
    }
}
