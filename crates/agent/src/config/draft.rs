//! A configuration while it is put together.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use types::{AttachMode, IfName, NetworkName};

use crate::config::layers::Given;
use crate::config::{
    Config, ConfigError, Fallback, Install, KEYS, LogFormat, LogLevel, Network, Origin, Problem, Store,
    check, values,
};

const PLUGIN: &str = "podwire-cni";

#[derive(Default)]
pub(super) struct Draft {
    pub(super) node: Option<String>,
    pub(super) run_dir: Option<PathBuf>,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) socket: Option<PathBuf>,
    pub(super) store: Option<Store>,
    pub(super) log_format: Option<LogFormat>,
    pub(super) log_level: Option<LogLevel>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) workers: Option<usize>,
    pub(super) reconcile_seconds: Option<u64>,
    pub(super) network_name: Option<NetworkName>,
    pub(super) mode: Option<AttachMode>,
    pub(super) bridge: Option<IfName>,
    pub(super) subnets: Option<Vec<IpNet>>,
    pub(super) mtu: Option<u32>,
    pub(super) masquerade: Option<bool>,
    pub(super) install_enabled: Option<bool>,
    pub(super) plugin: Option<PathBuf>,
    pub(super) plugin_dir: Option<PathBuf>,
    pub(super) config_dir: Option<PathBuf>,
    pub(super) config_name: Option<String>,
    pub(super) template: Option<PathBuf>,
}

/// Who said what holds now, and in which words.
pub(super) type Origins = BTreeMap<&'static str, (Origin, String)>;

pub(super) fn build(given: Vec<Given>, mut problems: Vec<Problem>) -> Result<Config, ConfigError> {
    let defaults = KEYS.iter().filter_map(|key| match key.fallback {
        Fallback::Is(text) => Some(Given { key, text: text.to_owned(), origin: Origin::Default }),
        Fallback::Found(_) => None,
    });
    let (mut draft, mut origins, mut refused) = (Draft::default(), Origins::new(), Vec::new());
    for Given { key, text, origin } in defaults.chain(given) {
        match (key.set)(&mut draft, &text) {
            Ok(()) => {
                origins.insert(key.name, (origin, text));
            }
            Err(allowed) => {
                refused.push(key.name);
                problems.push(Problem::Value { origin, key: key.name, value: text, allowed });
            }
        }
    }
    let config = draft.find_out(&mut problems).finish();
    if let Some(config) = &config {
        problems.extend(check::across(config, &origins, &refused));
    }
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        Some(_) | None => Err(ConfigError { problems }),
    }
}

impl Draft {
    /// Fills in what is found out on this machine.
    fn find_out(mut self, problems: &mut Vec<Problem>) -> Self {
        if self.node.is_none() {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            match values::node(&host) {
                Ok(node) => self.node = Some(node),
                Err(allowed) => {
                    let allowed = format!("(the host's name) {allowed}; set --node");
                    problems.push(Problem::Value {
                        origin: Origin::Default,
                        key: "node",
                        value: host,
                        allowed,
                    });
                }
            }
        }
        if self.plugin.is_none() && self.install_enabled == Some(true) {
            match std::env::current_exe() {
                Ok(us) => self.plugin = Some(us.with_file_name(PLUGIN)),
                Err(error) => problems.push(Problem::OwnProgram(error)),
            }
        }
        if self.socket.is_none() {
            self.socket = self.run_dir.as_deref().map(netconf::default_socket);
        }
        self
    }

    /// None only where a value could not be found out.
    fn finish(self) -> Option<Config> {
        let install = match self.install_enabled? {
            false => None,
            true => Some(Install {
                plugin: self.plugin?,
                plugin_dir: self.plugin_dir?,
                config_dir: self.config_dir?,
                config_name: self.config_name?,
                template: self.template,
            }),
        };
        Some(Config {
            node: self.node?,
            run_dir: self.run_dir?,
            state_dir: self.state_dir?,
            socket: self.socket?,
            store: self.store?,
            log_format: self.log_format?,
            log_level: self.log_level?,
            metrics: self.metrics,
            workers: self.workers?,
            reconcile: Duration::from_secs(self.reconcile_seconds?),
            network: Network {
                name: self.network_name?,
                mode: self.mode?,
                bridge: self.bridge?,
                subnets: self.subnets?,
                mtu: self.mtu,
                masquerade: self.masquerade?,
            },
            install,
        })
    }
}
