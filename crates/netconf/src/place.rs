use std::path::{Path, PathBuf};

use cni::json::Obj;
use cni::{Error, NetworkConfig};
use serde_json::Value;

use crate::{NodeNetworks, invalid};

/// What dies with a boot, as DESIGN says: attachments and addresses.
pub const DEFAULT_RUN_DIR: &str = "/run/podwire";
pub const DEFAULT_LOG_FILE: &str = "/var/log/podwire-cni.log";

/// Where node-local state and the log are. DEL and GC read nothing else of the config, so that a config that was
/// broken in the meantime never keeps a pod from going away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPaths {
    pub run_dir: PathBuf,
    pub log: Log,
    /// The agent's socket. None: standalone.
    pub agent: Option<PathBuf>,
}

/// Where the plugin's lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Log {
    None,
    File(PathBuf),
    Journal,
}

impl Log {
    /// `logFile`: a path, `journal`, or empty for none. Of a config that may be wrong in all else.
    pub fn parse(top: &Obj<'_>) -> Result<Self, Error> {
        match top.str("logFile")? {
            Some("") => Ok(Self::None),
            Some("journal") => Ok(Self::Journal),
            Some(path) => absolute("logFile", path.to_owned()).map(Self::File),
            None => Ok(Self::File(PathBuf::from(DEFAULT_LOG_FILE))),
        }
    }
}

/// Where the agent of this node listens unless told otherwise.
pub fn default_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("agent.sock")
}

impl LocalPaths {
    /// As [`Self::parse`]; an agent uses its own directory, whatever the config names.
    pub fn merge(config: &NetworkConfig, node: Option<&NodeNetworks<'_>>) -> Result<Self, Error> {
        let Some(node) = node else { return Self::parse(config) };
        let (log, agent) = (Log::parse(&config.obj())?, agent(config, node.run_dir)?);
        Ok(Self { run_dir: node.run_dir.to_owned(), log, agent })
    }

    /// `runDir`; else a directory of its own in `ipam.dataDir`, which is where users of host-local say it; else the default.
    pub fn parse(config: &NetworkConfig) -> Result<Self, Error> {
        let top = config.obj();
        // What else `ipam` says, and whether it makes sense, is not asked here.
        let data_dir = match top.obj("ipam") {
            Ok(Some(ipam)) if crate::external_ipam(config).is_none() => {
                ipam.nonempty("dataDir")?.map(|dir| format!("{}/podwire", dir.trim_end_matches('/')))
            }
            Ok(_) | Err(_) => None,
        };
        let run_dir = match top.str("runDir")?.map(str::to_owned).or(data_dir) {
            Some(dir) if dir.is_empty() => PathBuf::from(DEFAULT_RUN_DIR),
            Some(dir) => absolute("runDir", dir)?,
            None => PathBuf::from(DEFAULT_RUN_DIR),
        };
        let (log, agent) = (Log::parse(&top)?, agent(config, &run_dir)?);
        Ok(Self { run_dir, log, agent })
    }
}

/// `agent`: the socket's path, or true for the one in `runDir`.
fn agent(config: &NetworkConfig, run_dir: &Path) -> Result<Option<PathBuf>, Error> {
    let top = config.obj();
    match top.get("agent").map(|item| item.value()) {
        None | Some(Value::Null | Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => Ok(Some(default_socket(run_dir))),
        Some(Value::String(path)) if path.is_empty() => Ok(None),
        Some(Value::String(path)) => absolute("agent", path.clone()).map(Some),
        Some(other) => {
            Err(invalid("agent", format_args!("{other} must be true or the path of the agent's socket")))
        }
    }
}

fn absolute(key: &str, path: String) -> Result<PathBuf, Error> {
    if path.starts_with('/') && !path.contains('\0') {
        Ok(PathBuf::from(path))
    } else {
        let or = if key == "logFile" { ", or `journal`" } else { "" };
        Err(invalid(key, format_args!("{path:?} must be an absolute path{or}")))
    }
}
