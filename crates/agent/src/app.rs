//! The agent from start to end, in order.

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
use types::{Code, Finding};

use crate::agent_status::AgentStatus;
use crate::allocation::{NodeAllocations, TunnelSize};
use crate::conditions::Source;
use crate::installation::{self, InstallState, Installation};
use crate::lock::{self, LockError};
use crate::log;
use crate::membership::{self, BlockRequests, ClusterError, Membership, MembershipHandle};
use crate::memory;
use crate::metrics::Metrics;
use crate::notify;
use crate::peers::{self, PeerQueue};
use crate::privileges;
use crate::queue::Queue;
use crate::reconciler::inspector::Inspector;
use crate::reconciler::{self, ReconcileRequests, Reconciler, ReconcilerError};
use crate::server::{self, AllowedUsers, ApiService, Endpoints, NodeDescription, ServerError};
use crate::thread::AgentThread;
use crate::waker::{Slot, Waker};
use crate::work::{self, RequestSettings, Work};
use config::{Config, LogFormat, LogLevel, StoreChoice};
use install::runtimes::Runtimes;
use install::{InstallError, Installer};

/// How long what is under way may take after SIGTERM; less than systemd and Kubernetes wait before they kill.
const STOP_TIME: Duration = Duration::from_secs(20);
/// How long deletions that were answered may keep the process: the kernel needs some 20 ms for each.
const GRACE: Duration = Duration::from_secs(2);
/// How often it is checked whether a thread hangs.
const HANG_CHECK: Duration = Duration::from_secs(2);
/// How long the end of a thread may take that may hang.
const THREAD_END: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error("the agent's own network: {0}")]
    Network(cni::Error),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Reconciler(#[from] ReconcilerError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Log(#[from] log::LogError),
    #[error("cannot {operation}: {source}")]
    Start { operation: &'static str, source: io::Error },
    #[error(
        "the reconciler, which repairs, ended by a mistake of its own: restart the agent and report this with its log"
    )]
    ReconcilerEnded,
}

fn cannot(operation: &'static str) -> impl Fn(io::Error) -> AppError {
    move |source| AppError::Start { operation, source }
}

/// Runs until SIGTERM or SIGINT; or until another agent has its run directory, which is an error.
pub fn run(config: Config) -> Result<(), AppError> {
    let begun = Instant::now();
    memory::share_heaps();
    // Threads for what reads files, such as a status: a few with small stacks. None is started yet.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_stack_size(512 << 10)
        .build()
        .map_err(cannot("start the server"))?;
    // Before anything that takes time: until then these signals end the process.
    let ignored = {
        let _entered = runtime.enter();
        Ignored::new().map_err(cannot("handle SIGHUP, SIGUSR1 and SIGUSR2"))?
    };
    log::start(format_of(config.log_format), level_of(config.log_level))?;
    privileges::drop_others();
    let (network_lock, lock) = lock::take_both(&config.network.name, &config.run_dir)?;
    let config = Arc::new(config);

    // One waker for each thread that sleeps in poll(2), and the slots through which the threads pass values on.
    let waker = || Waker::new().map_err(|errno| cannot("make an eventfd")(errno.into()));
    let (peers_waker, install_waker, requests) = (waker()?, waker()?, ReconcileRequests::new(waker()?));
    let inspector_waker = waker()?;
    let readers = vec![requests.waker().clone(), peers_waker.clone(), install_waker.clone()];
    let allocations = Arc::new(first_allocation(&config, readers).map_err(AppError::Network)?);
    let tunnels = Arc::new(Slot::new(Vec::new(), vec![requests.waker().clone()]));
    let (peers, peer_queue) = peers::inputs::inputs(peers_waker);
    let commands = membership::commands();
    let blocks = BlockRequests::new(&config, Arc::clone(&allocations), commands.0.clone());
    let install_state = Arc::new(InstallState::new(&install_waker));

    let installer = Installer::new(&config)?.map(Arc::new);
    if let Some(install) = &config.install {
        let complaints = Runtimes::detect(Path::new("/")).complaints(&install.directories());
        complaints.iter().for_each(|problem| warn!(problem, "runtime uses other directories"));
    }
    let agent_status = Arc::new(AgentStatus::new());
    agent_status.set(Source::Config, config.exposed_key().into_iter().collect());
    agent_status.set_installed(installer.as_ref().map(|installer| installer.planned()).unwrap_or_default());
    let metrics = Arc::new(Metrics::new());
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
    }));
    let queue = Arc::new(Queue::start(config.workers).map_err(cannot("start workers"))?);
    let membership_parts = membership::MembershipParts {
        config: Arc::clone(&config),
        allocations: Arc::clone(&allocations),
        agent_status: Arc::clone(&agent_status),
        peers,
        commands,
    };
    let kernel_side = KernelSide { metrics: Arc::clone(&metrics), tunnels: Arc::clone(&tunnels), peer_queue };
    let cluster = join(membership_parts, kernel_side)?;
    let installing = installer.as_ref().map(|installer| {
        start_installation(installation::InstallationParts {
            config: Arc::clone(&config),
            installer: Arc::clone(installer),
            state: Arc::clone(&install_state),
            allocations: Arc::clone(&allocations),
            agent_status: Arc::clone(&agent_status),
            reconciler: requests.clone(),
            waker: install_waker,
            begun,
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
        cni_config: rendering(installer.clone(), Arc::clone(&allocations)),
    });
    runtime.block_on(async move {
        tokio::spawn(ignored.log());
        let socket = server::bind(&config.socket)?;
        let tcp = match config.metrics {
            Some(address) => Some((address, server::bind_tcp(address).await)),
            None => None,
        };
        info!(
            version = env!("CARGO_PKG_VERSION"),
            node = config.node,
            socket = %config.socket.display(),
            "the agent starts"
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
            begun,
        })?;
        let (keeping, kept) = keep(reconciler, requests)?;
        let inspecting =
            AgentThread::start("podwire-inspect", inspector_waker, move |stop| inspector.run(stop));
        let inspecting = inspecting.map_err(cannot("start the inspector"))?;
        let endpoints = Endpoints { socket, tcp, users: AllowedUsers::root_and_self() };
        let stop = stopped(Arc::clone(&agent_status), kept)?;
        tokio::spawn(report_hangs(agent_status));
        let left = server::run(endpoints, Arc::clone(&service), stop).await;
        if left.waiting + left.running > 0 {
            warn!("{} requests were still running and {} waiting", left.running, left.waiting);
        }
        if let Some(cluster) = &service.cluster {
            cluster.end();
        }
        if let Some(installing) = &installing {
            installing.end(THREAD_END);
        }
        inspecting.end(THREAD_END);
        keeping.end()
    })
}

/// The reconciler's thread, and how to end it.
struct ReconcilerThread {
    thread: std::thread::JoinHandle<Result<(), LockError>>,
    requests: ReconcileRequests,
}

/// Nothing is ever sent: it closes when the reconciler's thread ends, however it does.
type ReconcilerExit = oneshot::Receiver<Infallible>;

fn keep(
    reconciler: Reconciler,
    requests: ReconcileRequests,
) -> Result<(ReconcilerThread, ReconcilerExit), AppError> {
    let (alive, kept) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("podwire-repair".to_owned())
        .stack_size(512 << 10)
        .spawn(move || {
            let _alive = alive;
            reconciler.run()
        })
        .map_err(cannot("start the reconciler"))?;
    Ok((ReconcilerThread { thread, requests }, kept))
}

impl ReconcilerThread {
    /// A round that is under way comes to its end.
    fn end(self) -> Result<(), AppError> {
        self.requests.stop();
        let ended = self.thread.join();
        let end = Instant::now() + GRACE;
        while netlink::deletions_under_way() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        info!("the agent ends");
        Ok(ended.map_err(|_| AppError::ReconcilerEnded)??)
    }
}

/// Comes true with SIGTERM or SIGINT, or when the reconciler has ended.
fn stopped(
    agent_status: Arc<AgentStatus>,
    kept: ReconcilerExit,
) -> Result<impl Future<Output = Duration>, AppError> {
    let mut term = signal(SignalKind::terminate()).map_err(cannot("listen to SIGTERM"))?;
    let mut int = signal(SignalKind::interrupt()).map_err(cannot("listen to SIGINT"))?;
    Ok(async move {
        let why = tokio::select! {
            _ = term.recv() => "asked to stop",
            _ = int.recv() => "asked to stop",
            _ = kept => "the agent gives up",
        };
        info!("{why}: what is under way comes to its end");
        notify::notify("STOPPING=1");
        agent_status.set_stopping();
        STOP_TIME
    })
}

/// Signals that by default would end the process, and that operators send to daemons to reload a configuration, to reopen a
/// log or to dump state. There is nothing to reload or reopen: they are logged.
struct Ignored {
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl Ignored {
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

/// Reports threads that hang.
async fn report_hangs(agent_status: Arc<AgentStatus>) {
    loop {
        tokio::time::sleep(HANG_CHECK).await;
        agent_status.check_hangs(Instant::now());
    }
}

/// A node that is alone owns the whole network from the start. Other nodes claim blocks.
fn first_allocation(config: &Config, readers: Vec<Waker>) -> Result<NodeAllocations, cni::Error> {
    let allocations = NodeAllocations::none("this node has no block yet", readers);
    // For every node: an invalid network is reported at the start.
    let whole = Network::whole(&config.network)?;
    if membership::is_alone(config) {
        allocations.set(NodeAllocation::of_default(Arc::new(whole)));
    }
    Ok(allocations)
}

/// What the peers thread needs beside membership's parts.
struct KernelSide {
    metrics: Arc<Metrics>,
    tunnels: Arc<Slot<Vec<TunnelSize>>>,
    peer_queue: PeerQueue,
}

/// A node that is alone works without its store, and says that something is wrong with it.
fn join(
    parts: membership::MembershipParts,
    kernel_side: KernelSide,
) -> Result<Option<MembershipHandle>, ClusterError> {
    let (is_alone, agent_status) = (membership::is_alone(&parts.config), Arc::clone(&parts.agent_status));
    match start_cluster(parts, kernel_side) {
        Ok(cluster) => Ok(Some(cluster)),
        Err(error) if is_alone => {
            // Nothing opens the store again in this process.
            let message = format!("{error}; restart the agent when the cause is removed");
            agent_status.set(Source::Cluster, vec![Finding::new(Code::StoreFailed, "store", message)]);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Starts the peers thread with what this node remembers, then the thread that follows the store.
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
        block_layouts: membership::block_layouts(config),
    }
}

fn rendering(
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
