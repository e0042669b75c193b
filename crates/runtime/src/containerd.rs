//! containerd on a machine, with a config that differs from its default only where tests or this kind of sandbox need it.

use std::fs;

use anyhow::{Context as _, Result};
use testkit::{DEADLINE, wait_until};

use crate::image::{IMAGE, write_archive};
use crate::{Cri, Machine, Service, Stop};

const SOCKET: &str = "/run/containerd/containerd.sock";
const CONFIG: &str = "/etc/containerd/config.toml";
/// `native`: overlays cannot be stacked, and the lab's directory may lie on one. The score: going below our own takes
/// CAP_SYS_RESOURCE, which a sandbox may not have. The one that is disabled would load a kernel module.
const SETTINGS: &str = r#"version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.aufs"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "@IMAGE@"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"#;

/// A running containerd; everything else about it is as on any machine: /etc/cni/net.d, /opt/cni/bin, /run/containerd.
#[derive(Debug)]
pub struct Containerd {
    service: Service,
    cri: Cri,
}

impl Containerd {
    /// Starts it and waits until it answers and has the pods' image. Whether a network is ready is another question:
    /// see `Cri::ready`.
    pub fn start(machine: &Machine) -> Result<Self> {
        Self::configure(machine, "")?;
        Self::start_configured(machine)
    }

    /// Writes its configuration without starting it; `more` is TOML that follows the harness's own.
    pub fn configure(machine: &Machine, more: &str) -> Result<()> {
        let config = machine.path(CONFIG);
        let directory = config.parent().context("the config has no directory")?;
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        fs::write(&config, SETTINGS.replace("@IMAGE@", IMAGE) + more)
            .with_context(|| format!("cannot write {}", config.display()))
    }

    /// As `start`, with what `configure` wrote.
    pub fn start_configured(machine: &Machine) -> Result<Self> {
        let service = Service::start(machine, "containerd", &["containerd", "--config", CONFIG])?;
        let cri = Cri { socket: machine.path(SOCKET), cgroup_parent: format!("/{}", machine.cgroup()) };
        let mut containerd = Self { service, cri };
        containerd.wait_until_it_answers()?;
        containerd.import_image()?;
        Ok(containerd)
    }

    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    pub fn machine(&self) -> &Machine {
        self.service.machine()
    }

    /// Ends it; the pods live on, as their shims are processes of their own.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        self.service.stop(how).map(|_| ())
    }

    /// Starts it after a `stop`, and waits until it answers.
    pub fn launch(&mut self) -> Result<()> {
        self.service.launch()?;
        self.wait_until_it_answers()
    }

    pub fn restart(&mut self, how: Stop) -> Result<()> {
        self.stop(how)?;
        self.launch()
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let (service, cri) = (&mut self.service, &self.cri);
        wait_until("the CRI to answer", DEADLINE, || {
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
        let path = archive.to_str().context("the lab's directory has a strange name")?;
        // A snapshotter other than containerd's default has to be named: the CRI looks for the image's layers in its own.
        let unpack = ["images", "import", "--snapshotter", "native", path];
        self.machine().sh(&[&["ctr", "--namespace", "k8s.io"], unpack.as_slice()].concat())?;
        wait_until("the image to be known to the CRI", DEADLINE, || self.cri.has_image())
    }
}
