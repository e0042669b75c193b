//! The CRI calls that tests need. Each call opens a new connection, so that it works after a restart of the runtime.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::image::IMAGE;
use crate::message as m;

/// Timeout of each call.
use testkit::DEADLINE;
const RUNTIME: &str = "/runtime.v1.RuntimeService/";
const IMAGES: &str = "/runtime.v1.ImageService/";

/// A client of a runtime's socket.
#[derive(Debug, Clone)]
pub struct Cri {
    pub(crate) socket: PathBuf,
    pub(crate) cgroup_parent: String,
}

/// A pod to run. Its container is idle; tests run programs in it with `exec`.
#[derive(Debug, Clone, Default)]
pub struct PodSpec {
    pub name: String,
    pub ports: Vec<m::CriPortMapping>,
    pub annotations: Vec<(String, String)>,
}

impl PodSpec {
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }
}

/// IDs of a running pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningPod {
    pub sandbox: String,
    pub container: String,
}

/// Exit code and output of a program inside a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecResult {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Cri {
    /// Name and version of the runtime.
    pub fn version(&self) -> Result<String> {
        let answer: m::VersionResponse = self.call(RUNTIME, "Version", m::VersionRequest {})?;
        Ok(format!("{} {}", answer.runtime_name, answer.runtime_version))
    }

    /// Checks all conditions of the runtime. The error names the first false condition.
    pub fn ready(&self) -> Result<()> {
        let answer: m::StatusResponse = self.call(RUNTIME, "Status", m::StatusRequest {})?;
        let conditions = answer.status.context("the runtime reports no status")?.conditions;
        ensure!(!conditions.is_empty(), "the runtime reports no conditions");
        for condition in conditions {
            ensure!(condition.status, "{} is false: {}", condition.kind, condition.message);
        }
        Ok(())
    }

    /// Calls RunPodSandbox, which calls the plugin. Creates no container.
    pub fn run_sandbox(&self, spec: &PodSpec) -> Result<String> {
        let request = m::RunPodSandboxRequest { config: Some(self.sandbox_config(spec)) };
        let sandbox: m::Sandbox = self.call(RUNTIME, "RunPodSandbox", request)?;
        Ok(sandbox.pod_sandbox_id)
    }

    /// Creates a sandbox with one running container.
    pub fn run_pod(&self, spec: &PodSpec) -> Result<RunningPod> {
        let sandbox = self.run_sandbox(spec)?;
        let config = m::ContainerConfig {
            metadata: Some(m::ContainerMetadata { name: "main".to_owned() }),
            image: Some(image_spec()),
        };
        let request = m::CreateContainerRequest {
            pod_sandbox_id: sandbox.clone(),
            config: Some(config),
            sandbox_config: Some(self.sandbox_config(spec)),
        };
        let container: m::Container = self.call(RUNTIME, "CreateContainer", request)?;
        let _: m::Empty = self.call(RUNTIME, "StartContainer", container.clone())?;
        Ok(RunningPod { sandbox, container: container.container_id })
    }

    /// The pod's addresses as reported by the runtime, in order.
    pub fn addresses(&self, sandbox: &str) -> Result<Vec<IpAddr>> {
        let answer: m::PodSandboxStatusResponse = self.call(RUNTIME, "PodSandboxStatus", id(sandbox))?;
        let network = answer.status.and_then(|status| status.network);
        let network = network.with_context(|| format!("the runtime reports no network for {sandbox}"))?;
        let all = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|ip| ip.ip));
        all.filter(|ip| !ip.is_empty())
            .map(|ip| ip.parse().with_context(|| format!("the runtime reports an invalid address {ip:?}")))
            .collect()
    }

    /// Runs a program in the container and waits for its exit. The caller checks the exit code.
    pub fn exec(&self, pod: &RunningPod, argv: &[&str]) -> Result<ExecResult> {
        let request = m::ExecSyncRequest {
            container_id: pod.container.clone(),
            cmd: argv.iter().map(|&word| word.to_owned()).collect(),
            timeout: DEADLINE.as_secs().try_into().context("the deadline is too long")?,
        };
        let answer: m::ExecSyncResponse = self.call(RUNTIME, "ExecSync", request)?;
        Ok(ExecResult {
            code: answer.exit_code,
            stdout: String::from_utf8_lossy(&answer.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&answer.stderr).into_owned(),
        })
    }

    /// Stops the pod; the runtime calls the plugin's DEL.
    pub fn stop_pod(&self, sandbox: &str) -> Result<()> {
        let _: m::Empty = self.call(RUNTIME, "StopPodSandbox", id(sandbox))?;
        Ok(())
    }

    pub fn remove_pod(&self, sandbox: &str) -> Result<()> {
        let _: m::Empty = self.call(RUNTIME, "RemovePodSandbox", id(sandbox))?;
        Ok(())
    }

    /// IDs of all sandboxes, including stopped ones.
    pub fn sandboxes(&self) -> Result<Vec<String>> {
        let answer: m::ListPodSandboxResponse =
            self.call(RUNTIME, "ListPodSandbox", m::ListPodSandboxRequest {})?;
        Ok(answer.items.into_iter().map(|sandbox| sandbox.id).collect())
    }

    pub(crate) fn has_image(&self) -> Result<bool> {
        let request = m::ImageStatusRequest { image: Some(image_spec()) };
        let answer: m::ImageStatusResponse = self.call(IMAGES, "ImageStatus", request)?;
        Ok(answer.image.is_some())
    }

    fn sandbox_config(&self, spec: &PodSpec) -> m::PodSandboxConfig {
        let metadata = m::PodSandboxMetadata {
            name: spec.name.clone(),
            uid: format!("uid-of-{}", spec.name),
            namespace: "default".to_owned(),
            attempt: 0,
        };
        m::PodSandboxConfig {
            metadata: Some(metadata),
            hostname: spec.name.clone(),
            port_mappings: spec.ports.clone(),
            annotations: spec.annotations.iter().cloned().collect(),
            linux: Some(m::LinuxPodSandboxConfig { cgroup_parent: self.cgroup_parent.clone() }),
        }
    }

    fn call<Q, A>(&self, service: &str, method: &str, request: Q) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start an async runtime")?;
        let path = PathAndQuery::try_from(format!("{service}{method}"))
            .with_context(|| format!("{method} is not a valid method name"))?;
        runtime.block_on(async {
            let exchange = self.send(path, request);
            match tokio::time::timeout(DEADLINE, exchange).await {
                Ok(answer) => answer.with_context(|| format!("CRI {method}")),
                Err(_) => bail!("CRI {method} timed out after {DEADLINE:?}"),
            }
        })
    }

    async fn send<Q, A>(&self, path: PathAndQuery, request: Q) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.connect().await?);
        grpc.ready().await.context("the connection is not usable")?;
        let codec = ProstCodec::<Q, A>::default();
        match grpc.unary(tonic::Request::new(request), path, codec).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => bail!("{}: {}", status.code(), status.message()),
        }
    }

    async fn connect(&self) -> Result<Channel> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket.display()))
            .with_context(|| format!("{} is not a valid socket path", self.socket.display()))?;
        endpoint.connect().await.with_context(|| format!("cannot connect to {}", self.socket.display()))
    }
}

fn id(sandbox: &str) -> m::Sandbox {
    m::Sandbox { pod_sandbox_id: sandbox.to_owned() }
}

fn image_spec() -> m::ImageSpec {
    m::ImageSpec { image: IMAGE.to_owned() }
}
