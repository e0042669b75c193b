//! Starts, runs and stops the components of the agent.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netconf::{Network, NodeAllocation};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;
use tracing::{info, warn};
use types::{Code, Finding, cause};

use crate::agent_status::AgentStatus;
use crate::allocation::{NodeAllocations, TunnelSize};
use crate::conditions::Source;
use crate::identities::{self, LocalIdentities};
use crate::installation::{self, InstallState, Installation};
use crate::lock::{self, LockError};
use crate::log;
use crate::membership::{self, BlockRequests, ClusterError, Membership, MembershipHandle};
use crate::memory;
use crate::metrics::Metrics;
use crate::notify;
use crate::peers::{self, PeerQueue};
use crate::policies::{self, Policies, PolicyStartError};
use crate::privileges;
use crate::queue::{Queue, UnfinishedRequests};
use crate::reconciler::inspector::Inspector;
use crate::reconciler::{self, ReconcileRequests, Reconciler, ReconcilerError};
use crate::server::{self, AllowedUsers, ApiService, Endpoints, NodeDescription, ServerError};
use crate::thread::AgentThread;
use crate::waker::{Slot, Waker};
use crate::work::{self, RequestSettings, Work};
use config::{Config, LogFormat, LogLevel, StoreChoice};
use install::runtimes::Runtimes;
use install::{InstallError, Installer};

/// How long in-flight requests may take after SIGTERM. Shorter than the grace periods of systemd and Kubernetes.
const STOP_TIME: Duration = Duration::from_secs(20);
/// How long the agent waits at its end for link deletions that were already answered. The kernel needs about 20 ms for each.
const GRACE: Duration = Duration::from_secs(2);
/// How often the agent checks for threads that hang.
const HANG_CHECK: Duration = Duration::from_secs(2);
/// How long the agent waits for a thread to end. The thread may hang.
const THREAD_END: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error("network of the agent: {0}")]
    Network(cni::Error),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Reconciler(#[from] ReconcilerError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Policies(#[from] PolicyStartError),
    #[error(transparent)]
    Name(#[from] types::NameError),
    #[error(transparent)]
    Log(#[from] log::LogError),
    #[error("cannot {operation}: {}", cause(source))]
    Start { operation: &'static str, source: io::Error },
    #[error("the reconciler thread panicked: restart the agent, and report the bug with the agent's log")]
    ReconcilerEnded,
}

fn cannot(operation: &'static str) -> impl Fn(io::Error) -> AppError {
    move |source| AppError::Start { operation, source }
}

/// Runs until SIGTERM or SIGINT. Fails if another agent takes over the run directory.
pub fn run(config: Config) -> Result<(), AppError> {
    let started = Instant::now();
    memory::limit_arenas();
    // Blocking tasks read files, for example for a status. They start on demand and need small stacks.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_stack_size(512 << 10)
        .build()
        .map_err(cannot("start the server"))?;
    // Installed first: until then the default action of these signals ends the process.
    let ignored_signals = {
        let _entered = runtime.enter();
        IgnoredSignals::new().map_err(cannot("handle SIGHUP, SIGUSR1 and SIGUSR2"))?
    };
    log::start(format_of(config.log_format), level_of(config.log_level))?;
    privileges::drop_unneeded();
    let (network_lock, lock) = lock::take_both(&config.network.name, &config.run_dir)?;
    let config = Arc::new(config);

    // One waker for each thread that sleeps in poll(2). Slots pass values between these threads.
    let waker = || Waker::new().map_err(|errno| cannot("create an eventfd")(errno.into()));
    let (peers_waker, install_waker, requests) = (waker()?, waker()?, ReconcileRequests::new(waker()?));
    let (inspector_waker, policy_waker) = (waker()?, waker()?);
    let readers = vec![requests.waker().clone(), peers_waker.clone(), install_waker.clone()];
    let allocations = Arc::new(initial_allocation(&config, readers).map_err(AppError::Network)?);
    let tunnels = Arc::new(Slot::new(Vec::new(), vec![requests.waker().clone()]));
    let (peers, peer_queue) = peers::inputs::inputs(peers_waker);
    let commands = membership::commands();
    let blocks = BlockRequests::new(&config, Arc::clone(&allocations), commands.0.clone());
    let install_state = Arc::new(InstallState::new(&install_waker));

    let installer = Installer::new(&config)?.map(Arc::new);
    if let Some(install) = &config.install {
        let mismatches = Runtimes::detect(Path::new("/")).mismatches(&install.directories());
        mismatches.iter().for_each(|problem| warn!(problem, "runtime uses other directories"));
    }
    let agent_status = Arc::new(AgentStatus::new());
    agent_status.set(Source::Config, config.exposed_key().into_iter().collect());
    agent_status.set_installed(installer.as_ref().map(|installer| installer.planned()).unwrap_or_default());
    let metrics = Arc::new(Metrics::new());
    let node = types::NodeName::try_from(config.node.as_str())?;
    let mut policies = Policies::new(node, policy_waker, Arc::clone(&agent_status));
    if identities::are_published(&config) {
        policies = policies.publishing(LocalIdentities::new());
    }
    let policies = Arc::new(policies.with_profile_readers(requests.clone(), inspector_waker.clone()));
    let work = Arc::new(Work::new(work::WorkParts {
        settings: RequestSettings {
            run_dir: config.run_dir.clone(),
            network: config.network.name.clone(),
            mode: config.network.mode,
            delegates: config.delegates.clone(),
        },
        agent_status: Arc::clone(&agent_status),
        metrics: Arc::clone(&metrics),
        allocations: Arc::clone(&allocations),
        blocks: blocks.clone(),
        reconciler: requests.clone(),
        policies: Arc::clone(&policies),
    }));
    let queue = Arc::new(Queue::start(config.workers).map_err(cannot("start workers"))?);
    let membership_parts = membership::MembershipParts {
        config: Arc::clone(&config),
        allocations: Arc::clone(&allocations),
        agent_status: Arc::clone(&agent_status),
        peers,
        policies: Arc::clone(&policies),
        commands,
    };
    let kernel_side = KernelSide { metrics: Arc::clone(&metrics), tunnels: Arc::clone(&tunnels), peer_queue };
    let cluster = join(membership_parts, kernel_side)?;
    let enforcing = policies::start(policies::PolicyParts {
        config: Arc::clone(&config),
        agent_status: Arc::clone(&agent_status),
        metrics: Arc::clone(&metrics),
        policies,
    })?;
    let installing = installer.as_ref().map(|installer| {
        start_installation(installation::InstallationParts {
            config: Arc::clone(&config),
            installer: Arc::clone(installer),
            state: Arc::clone(&install_state),
            allocations: Arc::clone(&allocations),
            agent_status: Arc::clone(&agent_status),
            reconciler: requests.clone(),
            waker: install_waker,
            started,
        })
    });
    let installing = installing.transpose()?;
    let service = Arc::new(ApiService {
        agent_status: Arc::clone(&agent_status),
        metrics: Arc::clone(&metrics),
        work: Arc::clone(&work),
        queue,
        description: description(&config),
        allocations: Arc::clone(&allocations),
        reconciler: requests.clone(),
        cluster,
        cni_config: cni_config_renderer(installer.clone(), Arc::clone(&allocations)),
    });
    runtime.block_on(async move {
        tokio::spawn(ignored_signals.log());
        let socket = server::bind(&config.socket)?;
        let tcp = match config.metrics {
            Some(address) => Some((address, server::bind_tcp(address).await)),
            None => None,
        };
        info!(
            version = env!("CARGO_PKG_VERSION"),
            node = config.node,
            socket = %config.socket.display(),
            "agent starting"
        );
        let inspector = Inspector {
            config: Arc::clone(&config),
            allocations: Arc::clone(&allocations),
            agent_status: Arc::clone(&agent_status),
            metrics: Arc::clone(&metrics),
            work: Arc::clone(&work),
            waker: inspector_waker.clone(),
        };
        let reconciler = Reconciler::new(reconciler::ReconcilerParts {
            config,
            allocations,
            tunnels,
            blocks,
            agent_status: Arc::clone(&agent_status),
            metrics,
            work,
            install: installing.as_ref().map(|_| install_state),
            requests: requests.clone(),
            inspector: inspector_waker.clone(),
            lock,
            network_lock,
            socket: socket.watch(),
            begun: started,
        })?;
        let (reconciler_thread, reconciler_exit) = start_reconciler(reconciler, requests)?;
        let inspecting =
            AgentThread::start("podwire-inspect", inspector_waker, move |stop| inspector.run(stop));
        let inspecting = inspecting.map_err(cannot("start the inspector"))?;
        let endpoints = Endpoints { socket, tcp, users: AllowedUsers::root_and_self() };
        let stop = stop_requested(Arc::clone(&agent_status), reconciler_exit)?;
        tokio::spawn(report_hangs(agent_status));
        let unfinished = server::run(endpoints, Arc::clone(&service), stop).await;
        if unfinished.waiting + unfinished.running > 0 {
            let UnfinishedRequests { waiting, running } = unfinished;
            warn!(running, waiting, "stopped before all requests were served");
        }
        // All threads are asked to end before the first wait, so that they end at the same time.
        let threads: Vec<&AgentThread> = installing
            .iter()
            .chain([&inspecting, &enforcing.policies, &enforcing.flows, &enforcing.denied])
            .collect();
        threads.iter().for_each(|thread| thread.stop());
        reconciler_thread.requests.stop();
        if let Some(cluster) = &service.cluster {
            cluster.stop();
            cluster.wait();
        }
        threads.iter().for_each(|thread| thread.wait(THREAD_END));
        reconciler_thread.wait()
    })
}

/// The reconciler's thread and the requests that stop it.
struct ReconcilerThread {
    thread: std::thread::JoinHandle<Result<(), LockError>>,
    requests: ReconcileRequests,
}

/// Never carries a value. It closes when the reconciler's thread ends, also by a panic.
type ReconcilerExit = oneshot::Receiver<Infallible>;

fn start_reconciler(
    reconciler: Reconciler,
    requests: ReconcileRequests,
) -> Result<(ReconcilerThread, ReconcilerExit), AppError> {
    let (alive, exit) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("podwire-repair".to_owned())
        .stack_size(512 << 10)
        .spawn(move || {
            let _alive = alive;
            reconciler.run()
        })
        .map_err(cannot("start the reconciler"))?;
    Ok((ReconcilerThread { thread, requests }, exit))
}

impl ReconcilerThread {
    /// Waits for the end of the current round, after the thread was asked to stop.
    fn wait(self) -> Result<(), AppError> {
        let ended = self.thread.join();
        let end = Instant::now() + GRACE;
        while netlink::pending_deletions() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        info!("agent stopped");
        Ok(ended.map_err(|_| AppError::ReconcilerEnded)??)
    }
}

/// Completes on SIGTERM, on SIGINT, or when the reconciler has ended.
fn stop_requested(
    agent_status: Arc<AgentStatus>,
    reconciler_exit: ReconcilerExit,
) -> Result<impl Future<Output = Duration>, AppError> {
    let mut term = signal(SignalKind::terminate()).map_err(cannot("listen to SIGTERM"))?;
    let mut int = signal(SignalKind::interrupt()).map_err(cannot("listen to SIGINT"))?;
    Ok(async move {
        let cause = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
            _ = reconciler_exit => "the reconciler ended",
        };
        info!(cause, "stopping; finishing in-flight requests");
        notify::notify("STOPPING=1");
        agent_status.set_stopping();
        STOP_TIME
    })
}

/// Operators send these signals to daemons to reload a configuration, to reopen a log or to dump state. By default they would
/// end the process. The agent supports none of these actions and only logs the signal.
struct IgnoredSignals {
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl IgnoredSignals {
    fn new() -> io::Result<Self> {
        let [hangup, user1, user2] =
            [SignalKind::hangup(), SignalKind::user_defined1(), SignalKind::user_defined2()].map(signal);
        Ok(Self { hangup: hangup?, user1: user1?, user2: user2? })
    }

    async fn log(mut self) {
        loop {
            let name = tokio::select! {
                _ = self.hangup.recv() => "SIGHUP",
                _ = self.user1.recv() => "SIGUSR1",
                _ = self.user2.recv() => "SIGUSR2",
            };
            info!(signal = name, "signal ignored; restart the agent to apply a changed configuration");
        }
    }
}

async fn report_hangs(agent_status: Arc<AgentStatus>) {
    loop {
        tokio::time::sleep(HANG_CHECK).await;
        agent_status.check_hangs(Instant::now());
    }
}

/// A single node owns the whole network from the start. Nodes of a cluster claim blocks.
fn initial_allocation(config: &Config, readers: Vec<Waker>) -> Result<NodeAllocations, cni::Error> {
    let allocations = NodeAllocations::none("this node has no block yet", readers);
    // Also in a cluster: an invalid network is reported at the start.
    let whole = Network::whole(&config.network)?;
    if membership::is_alone(config) {
        allocations.set(whole.blocks().to_vec(), Ok(NodeAllocation::of_default(Arc::new(whole))));
    }
    Ok(allocations)
}

/// Parts of the peers thread that membership does not need.
struct KernelSide {
    metrics: Arc<Metrics>,
    tunnels: Arc<Slot<Vec<TunnelSize>>>,
    peer_queue: PeerQueue,
}

/// A single node works without its store and reports the failure as a condition.
fn join(
    parts: membership::MembershipParts,
    kernel_side: KernelSide,
) -> Result<Option<MembershipHandle>, ClusterError> {
    let (is_alone, agent_status) = (membership::is_alone(&parts.config), Arc::clone(&parts.agent_status));
    match start_cluster(parts, kernel_side) {
        Ok(cluster) => Ok(Some(cluster)),
        Err(error) if is_alone => {
            // The agent opens the store only once.
            let message = format!("{error}; restart the agent when the cause is removed");
            agent_status.set(Source::Cluster, vec![Finding::new(Code::StoreFailed, "store", message)]);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Starts the peers thread with the stored state of this node, then the membership thread.
fn start_cluster(
    parts: membership::MembershipParts,
    kernel_side: KernelSide,
) -> Result<MembershipHandle, ClusterError> {
    let KernelSide { metrics, tunnels, peer_queue } = kernel_side;
    let (config, allocations, agent_status) =
        (Arc::clone(&parts.config), Arc::clone(&parts.allocations), Arc::clone(&parts.agent_status));
    let membership = Membership::load(parts)?;
    let (reports, received) = peers::inputs::reports();
    let worker = peers::start(peers::PeerRoutesParts {
        is_alone: membership::is_alone(&config),
        config,
        allocations,
        agent_status,
        metrics,
        tunnels,
        queue: peer_queue,
        reports,
        record: membership.record.clone(),
        known: membership.known_peers(),
    })?;
    membership.start(received, worker)
}

fn start_installation(parts: installation::InstallationParts) -> Result<AgentThread, AppError> {
    let waker = parts.waker.clone();
    let installation = Installation::new(parts)?;
    let worker = AgentThread::start("podwire-install", waker, move |stop| installation.run(stop));
    worker.map_err(cannot("start the installation thread"))
}

fn format_of(format: LogFormat) -> log::Format {
    match format {
        LogFormat::Text => log::Format::Text,
        LogFormat::Json => log::Format::Json,
    }
}

fn level_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}

fn description(config: &Config) -> NodeDescription {
    let network = &config.network;
    NodeDescription {
        node: config.node.clone(),
        store: match config.store {
            StoreChoice::Embedded => "embedded".to_owned(),
            StoreChoice::Etcd(_) => "etcd".to_owned(),
        },
        run_dir: config.run_dir.clone(),
        socket: config.socket.clone(),
        network: api::NetworkStatus {
            name: network.name.to_string(),
            mode: network.mode.to_string(),
            bridge: network.bridge.to_string(),
            mtu: network.mtu,
            masquerade: network.masquerade,
            subnets: network.subnets.clone(),
            blocks: Vec::new(),
        },
    }
}

fn cni_config_renderer(
    installer: Option<Arc<Installer>>,
    allocations: Arc<NodeAllocations>,
) -> Box<dyn Fn() -> Result<String, String> + Send + Sync> {
    Box::new(move || {
        let Some(installer) = &installer else {
            return Err("this agent installs nothing (install.enabled is false)".to_owned());
        };
        let rendered = match allocations.default_network() {
            Ok(network) => installer.render_for(&network),
            Err(_) => installer.render(),
        };
        rendered.map_err(|error| error.to_string())
    })
}
