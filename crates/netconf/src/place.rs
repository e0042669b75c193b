use std::path::PathBuf;

use cni::{Config, Error};

use crate::invalid;

/// What dies with a boot, as DESIGN says: attachments and addresses.
pub const DEFAULT_STATE_DIR: &str = "/run/podwire";
pub const DEFAULT_LOG_FILE: &str = "/var/log/podwire-cni.log";

/// Where node-local state and the log are. DEL and GC read nothing else of the config, so that a config that was
/// broken in the meantime never keeps a pod from going away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub state_dir: PathBuf,
    /// None: no log is written.
    pub log_file: Option<PathBuf>,
}

impl Place {
    /// `stateDir`; else a folder of its own in `ipam.dataDir`, which is where users of host-local say it; else the default.
    pub fn parse(config: &Config) -> Result<Self, Error> {
        let top = config.obj();
        // What else `ipam` says, and whether it makes sense, is not asked here.
        let data_dir = match top.obj("ipam") {
            Ok(Some(ipam)) if crate::foreign_ipam(config).is_none() => {
                ipam.nonempty("dataDir")?.map(|dir| format!("{}/podwire", dir.trim_end_matches('/')))
            }
            Ok(_) | Err(_) => None,
        };
        let state_dir = match top.str("stateDir")?.map(str::to_owned).or(data_dir) {
            Some(dir) if dir.is_empty() => PathBuf::from(DEFAULT_STATE_DIR),
            Some(dir) => absolute("stateDir", dir)?,
            None => PathBuf::from(DEFAULT_STATE_DIR),
        };
        let log_file = match top.str("logFile")? {
            Some("") => None,
            Some(path) => Some(absolute("logFile", path.to_owned())?),
            None => Some(PathBuf::from(DEFAULT_LOG_FILE)),
        };
        Ok(Self { state_dir, log_file })
    }
}

fn absolute(key: &str, path: String) -> Result<PathBuf, Error> {
    if path.starts_with('/') && !path.contains('\0') {
        Ok(PathBuf::from(path))
    } else {
        Err(invalid(key, format_args!("{path:?} must be an absolute path")))
    }
}
