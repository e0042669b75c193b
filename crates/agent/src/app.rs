//! The agent from start to end, in order.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netconf::{Network, NodeAllocation};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;
use tracing::{info, warn};
use types::{Code, Finding};

use crate::allocation::NodeAllocations;
use crate::board::Board;
use crate::conditions::Source;
use crate::keeper::{self, Keeper, KeeperError};
use crate::lock::{self, LockError};
use crate::log;
use crate::membership::{self, Cluster, ClusterError};
use crate::memory;
use crate::metrics::Metrics;
use crate::notify;
use crate::privileges;
use crate::queue::Queue;
use crate::server::{self, AllowedUsers, ApiService, Endpoints, NodeDescription, ServerError};
use crate::work::{Settings, Work};
use config::{Config, LogFormat, LogLevel, Store};
use install::runtimes::Runtimes;
use install::{InstallError, Installer};

/// How long what is under way may take after SIGTERM; less than systemd and Kubernetes wait before they kill.
const STOP_TIME: Duration = Duration::from_secs(20);
/// How long deletions that were answered may keep the process: the kernel needs some 20 ms for each.
const GRACE: Duration = Duration::from_secs(2);
/// How often somebody looks whether the keeper hangs.
const LOOK: Duration = Duration::from_secs(10);

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
    Keeper(#[from] KeeperError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Log(#[from] log::LogError),
    #[error("cannot {operation}: {source}")]
    Start { operation: &'static str, source: io::Error },
    #[error(
        "the keeper, which repairs, ended by a mistake of its own: restart the agent and report this with its log"
    )]
    KeeperEnded,
}

fn cannot(operation: &'static str) -> impl Fn(io::Error) -> AppError {
    move |source| AppError::Start { operation, source }
}

/// Runs until SIGTERM or SIGINT; or until another agent has its run folder, which is an error.
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
    let shares = Arc::new(first_allocation(&config).map_err(AppError::Network)?);
    let installer = Installer::new(&config)?.map(Arc::new);
    if let Some(install) = &config.install {
        let complaints = Runtimes::detect(Path::new("/")).complaints(&install.directories());
        complaints.iter().for_each(|problem| warn!(problem, "runtime uses other directories"));
    }
    let config = Arc::new(config);
    let board = Arc::new(Board::new());
    board.set(Source::Config, config.exposed_key().into_iter().collect());
    board.set_installed(installer.as_ref().map(|installer| installer.planned()).unwrap_or_default());
    let metrics = Arc::new(Metrics::new());
    let settings = Settings {
        run_dir: config.run_dir.clone(),
        network: config.network.name.clone(),
        mode: config.network.mode,
        shares: Arc::clone(&shares),
        delegates: config.delegates.clone(),
    };
    let work = Arc::new(Work::new(settings, Arc::clone(&board), Arc::clone(&metrics)));
    let queue = Arc::new(Queue::start(config.workers).map_err(cannot("start workers"))?);
    let bell = keeper::Bell::new().map_err(|errno| cannot("make a bell for the keeper")(errno.into()))?;
    let cluster = join(membership::Parts {
        config: Arc::clone(&config),
        shares: Arc::clone(&shares),
        board: Arc::clone(&board),
        metrics: Arc::clone(&metrics),
        bell: bell.clone(),
        installer: installer.clone(),
    })?;
    if let Some(cluster) = cluster.clone() {
        work.grow_by(Box::new(move |seen| cluster.grow(seen)));
    }
    let (hears, shares_) = (bell.clone(), Arc::clone(&shares));
    work.tell_sizes(Box::new(move |mtu| {
        if shares_.is_too_large(mtu) {
            hears.ring();
        }
    }));
    let waker = bell.clone();
    work.notify_failures(Box::new(move || waker.request_failed()));
    let (reporting, run_dir, network) =
        (Arc::clone(&board), config.run_dir.clone(), config.network.name.clone());
    let shares_ = Arc::clone(&shares);
    work.count_addresses(Box::new(move || shares_.report_addresses(&reporting, &run_dir, &network)));
    let (board_, metrics_, work_) = (Arc::clone(&board), Arc::clone(&metrics), Arc::clone(&work));
    let service = Arc::new(ApiService {
        board: board_,
        metrics: metrics_,
        work: work_,
        queue,
        facts: facts(&config),
        shares: Arc::clone(&shares),
        bell: bell.clone(),
        cluster: cluster.clone(),
        cni_config: rendering(installer.clone()),
    });
    runtime.block_on(async move {
        tokio::spawn(ignored.log());
        let socket = server::bind(&config.socket)?;
        let tcp = match config.metrics {
            Some(address) => Some((address, server::bind_tcp(address).await)),
            None => None,
        };
        let parts = keeper::Parts {
            shares,
            cluster,
            metrics,
            work,
            installer,
            lock,
            network_lock,
            socket: socket.watch(),
            begun,
            board,
            config,
        };
        let board = Arc::clone(&parts.board);
        info!(
            version = env!("CARGO_PKG_VERSION"),
            node = parts.config.node,
            socket = %parts.config.socket.display(),
            "the agent starts"
        );
        let (keeping, kept) = keep(Keeper::new(parts, bell)?)?;
        let endpoints = Endpoints { socket, tcp, users: AllowedUsers::root_and_self() };
        let stop = stopped(Arc::clone(&board), kept)?;
        tokio::spawn(look_after(board));
        let left = server::run(endpoints, Arc::clone(&service), stop).await;
        if left.waiting + left.running > 0 {
            warn!("{} requests were still running and {} waiting", left.running, left.waiting);
        }
        if let Some(cluster) = &service.cluster {
            cluster.end();
        }
        keeping.end()
    })
}

/// The keeper's thread, and how to end it.
struct Keeping {
    thread: std::thread::JoinHandle<Result<(), LockError>>,
    bell: keeper::Bell,
    over: Arc<AtomicBool>,
}

/// Nothing is ever sent: it closes when the keeper's thread ends, however it does.
type Kept = oneshot::Receiver<Infallible>;

fn keep(keeper: Keeper) -> Result<(Keeping, Kept), AppError> {
    let (bell, over) = (keeper.bell(), Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&over);
    let (alive, kept) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("podwire-keeper".to_owned())
        .stack_size(512 << 10)
        .spawn(move || {
            let _alive = alive;
            keeper.run(|| stop.load(Ordering::Acquire))
        })
        .map_err(cannot("start the keeper"))?;
    Ok((Keeping { thread, bell, over }, kept))
}

impl Keeping {
    /// A round that is under way comes to its end.
    fn end(self) -> Result<(), AppError> {
        self.over.store(true, Ordering::Release);
        self.bell.ring();
        let ended = self.thread.join();
        let end = Instant::now() + GRACE;
        while netlink::deletions_under_way() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        info!("the agent ends");
        Ok(ended.map_err(|_| AppError::KeeperEnded)??)
    }
}

/// Comes true with SIGTERM or SIGINT, or when the keeper has ended.
fn stopped(board: Arc<Board>, kept: Kept) -> Result<impl Future<Output = Duration>, AppError> {
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
        board.set_stopping();
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

/// Reports a reconcile that hangs also while no client asks.
async fn look_after(board: Arc<Board>) {
    loop {
        tokio::time::sleep(LOOK).await;
        board.check_reconcile(Instant::now());
    }
}

/// A node that is alone owns the whole network from the start. Other nodes claim blocks.
fn first_allocation(config: &Config) -> Result<NodeAllocations, cni::Error> {
    let shares = NodeAllocations::none("this node has no block yet");
    // For every node: an invalid network is reported at the start.
    let whole = Network::whole(&config.network)?;
    if membership::is_alone(config) {
        shares.set(NodeAllocation::of_default(Arc::new(whole)));
    }
    Ok(shares)
}

/// A node that is alone works without its store, and says that something is wrong with it.
fn join(parts: membership::Parts) -> Result<Option<Cluster>, ClusterError> {
    let (is_alone, board) = (membership::is_alone(&parts.config), Arc::clone(&parts.board));
    match Cluster::start(parts) {
        Ok(cluster) => Ok(Some(cluster)),
        Err(error) if is_alone => {
            board.set(Source::Cluster, vec![Finding::new(Code::StoreFailed, "store", error)]);
            Ok(None)
        }
        Err(error) => Err(error),
    }
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

fn facts(config: &Config) -> NodeDescription {
    let network = &config.network;
    NodeDescription {
        node: config.node.clone(),
        store: match config.store {
            Store::Embedded => "embedded".to_owned(),
            Store::Etcd(_) => "etcd".to_owned(),
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
        cuts: membership::cuts(config),
    }
}

fn rendering(installer: Option<Arc<Installer>>) -> Box<dyn Fn() -> Result<String, String> + Send + Sync> {
    Box::new(move || match &installer {
        Some(installer) => installer.render().map_err(|e| e.to_string()),
        None => Err("this agent installs nothing (install.enabled is false)".to_owned()),
    })
}
