//! What only shows when several keys are looked at together.

use std::os::unix::ffi::OsStrExt;

use serde_json::{Map, Value, json};
use types::MIN_MTU_V6;

use crate::config::draft::Origins;
use crate::config::{Config, Network, Origin, Problem};

/// `sun_path` has 108 bytes, the last of which ends it.
const MAX_SOCKET: usize = 107;

pub(super) fn across(config: &Config, origins: &Origins, refused: &[&str]) -> Vec<Problem> {
    let found = [socket(config, origins), folders(config), mtu(config), network(config)];
    let mut problems = Vec::new();
    for Finding { key, also, allowed } in found.into_iter().flatten() {
        // A value that was refused is replaced by a lower layer's here, which nobody asked about.
        if refused.contains(&key) || also.is_some_and(|also| refused.contains(&also)) {
            continue;
        }
        let (origin, value) = origins.get(key).cloned().unwrap_or((Origin::Default, String::new()));
        problems.push(Problem::Value { origin, key, value, allowed });
    }
    problems
}

struct Finding {
    key: &'static str,
    /// The other key that takes part in it.
    also: Option<&'static str>,
    allowed: String,
}

fn socket(config: &Config, origins: &Origins) -> Option<Finding> {
    let length = config.socket.as_os_str().as_bytes().len();
    if length <= MAX_SOCKET {
        return None;
    }
    // The default lies in the run folder; then that is what must change.
    let key = if origins.contains_key("socket") { "socket" } else { "run_dir" };
    let allowed = format!(
        "makes the socket's path {} {length} bytes long; the kernel takes {MAX_SOCKET}: use a shorter path",
        config.socket.display()
    );
    Some(Finding { key, also: Some("socket"), allowed })
}

fn folders(config: &Config) -> Option<Finding> {
    (config.run_dir == config.state_dir).then(|| Finding {
        key: "state_dir",
        also: Some("run_dir"),
        allowed: "must not be run_dir, which is emptied after a boot".to_owned(),
    })
}

fn mtu(config: &Config) -> Option<Finding> {
    let mtu = config.network.mtu.filter(|mtu| *mtu < MIN_MTU_V6)?;
    config.network.subnets.iter().find(|net| net.addr().is_ipv6()).map(|net| Finding {
        key: "network.mtu",
        also: Some("network.subnets"),
        allowed: format!("must be {MIN_MTU_V6} or more with the IPv6 subnet {net}, not {mtu}"),
    })
}

/// The plugin's own eyes on what a request will look like: whatever was forgotten above is found here.
fn network(config: &Config) -> Option<Finding> {
    if mtu(config).is_some() {
        return None;
    }
    let error = parse(&config.network).err()?;
    Some(Finding { key: "network.subnets", also: None, allowed: format!("cannot be used: {}", error.msg) })
}

fn parse(network: &Network) -> Result<netconf::NetConf, cni::Error> {
    let mut request: Map<String, Value> = network.request_defaults();
    request.insert("cniVersion".to_owned(), json!("1.1.0"));
    request.insert("name".to_owned(), json!(network.name.as_str()));
    netconf::NetConf::parse(&cni::Config::from_slice(Value::Object(request).to_string().as_bytes())?)
}
