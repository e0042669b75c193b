//! Podman on a machine, with its CNI backend: every command is a process of its own, there is no daemon.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context as _, Result, ensure};
use testkit::Outcome;

use crate::Machine;
use crate::image::{IMAGE, write_archive};

/// Locks in files: the default is shared memory in /dev/shm, which machines do not have to themselves. `vfs`: overlays
/// cannot be stacked, and the lab's directory may lie on one.
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
        // The plugins of podman's own network call these. Debian's are links by way of /etc, which is the machine's own.
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

    /// A container that runs until it is removed; `options` as `podman run` has them.
    pub fn run(&self, name: &str, options: &[&str]) -> Result<()> {
        let outcome = self.try_run(name, options)?;
        ensure!(outcome.success(), "cannot run {name}: {}, {}", outcome.status, outcome.stderr.trim());
        Ok(())
    }

    /// Stdout of a program in the container; an exit code other than 0 is an error.
    pub fn exec(&self, container: &str, argv: &[&str]) -> Result<String> {
        self.sh(&[&["exec", container], argv].concat())
    }

    pub fn remove(&self, container: &str) -> Result<()> {
        self.sh(&["rm", "--force", "--time", "5", container]).map(|_| ())
    }

    /// Stdout of any podman command; an exit code other than 0 is an error.
    pub fn sh(&self, args: &[&str]) -> Result<String> {
        self.machine.sh(&[&["podman"], args].concat())
    }

    /// As `run`; the caller checks the outcome.
    pub fn try_run(&self, name: &str, options: &[&str]) -> Result<Outcome> {
        let group = format!("/{}", self.machine.cgroup());
        let own = ["--cgroup-parent", &group, "--name", name];
        self.machine.run(&[&["podman"], RUN.as_slice(), &own, options, &[IMAGE]].concat())
    }
}
