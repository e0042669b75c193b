//! containerd on a machine, with only those settings changed that the tests need.

use std::fs;

use anyhow::{Context as _, Result};
use testkit::{DEADLINE, wait_until};

use crate::image::{IMAGE, write_archive};
use crate::{Cri, Machine, Service, Stop};

const SOCKET: &str = "/run/containerd/containerd.sock";
const CONFIG: &str = "/etc/containerd/config.toml";
/// `native`: overlayfs cannot be stacked, and the lab's directory may be on one. `restrict_oom_score_adj`: a lower OOM score needs
/// CAP_SYS_RESOURCE, which the test environment may lack. The disabled plugin would load a kernel module.
const SETTINGS: &str = r#"version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.aufs"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "@IMAGE@"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"#;

/// A running containerd with the default paths: /etc/cni/net.d, /opt/cni/bin, /run/containerd.
#[derive(Debug)]
pub struct Containerd {
    service: Service,
    cri: Cri,
}

impl Containerd {
    /// Starts containerd and waits until the CRI responds and has the pods' image. For the network see `Cri::ready`.
    pub fn start(machine: &Machine) -> Result<Self> {
        Self::configure(machine, "")?;
        Self::start_configured(machine)
    }

    /// Writes the configuration without starting containerd. `more` is appended TOML.
    pub fn configure(machine: &Machine, more: &str) -> Result<()> {
        let config = machine.path(CONFIG);
        let directory = config.parent().context("the config has no directory")?;
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        fs::write(&config, SETTINGS.replace("@IMAGE@", IMAGE) + more)
            .with_context(|| format!("cannot write {}", config.display()))
    }

    /// Like `start`, with the configuration written by `configure`.
    pub fn start_configured(machine: &Machine) -> Result<Self> {
        let service = Service::start(machine, "containerd", &["containerd", "--config", CONFIG])?;
        let cri = Cri { socket: machine.path(SOCKET), cgroup_parent: format!("/{}", machine.cgroup()) };
        let mut containerd = Self { service, cri };
        containerd.wait_for_cri()?;
        containerd.import_image()?;
        Ok(containerd)
    }

    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    pub fn machine(&self) -> &Machine {
        self.service.machine()
    }

    /// Stops containerd. The pods keep running, because their shims are separate processes.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        self.service.stop(how).map(|_| ())
    }

    /// Starts containerd after a `stop` and waits until the CRI responds.
    pub fn launch(&mut self) -> Result<()> {
        self.service.launch()?;
        self.wait_for_cri()
    }

    pub fn restart(&mut self, how: Stop) -> Result<()> {
        self.stop(how)?;
        self.launch()
    }

    fn wait_for_cri(&mut self) -> Result<()> {
        let (service, cri) = (&mut self.service, &self.cri);
        wait_until("the CRI to respond", DEADLINE, || {
            if service.expect_running().is_err() {
                return Ok(true);
            }
            cri.version().map(|_| true)
        })?;
        service.expect_running()
    }

    fn import_image(&self) -> Result<()> {
        let archive = self.machine().dir().join("image.tar");
        write_archive(&archive)?;
        let path = archive.to_str().context("the path of the lab's directory is not UTF-8")?;
        // Import into the snapshotter that the CRI plugin uses; it differs from containerd's default.
        let unpack = ["images", "import", "--snapshotter", "native", path];
        self.machine().sh(&[&["ctr", "--namespace", "k8s.io"], unpack.as_slice()].concat())?;
        wait_until("the CRI to list the image", DEADLINE, || self.cri.has_image())
    }
}
