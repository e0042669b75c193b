//! The settings of a node's agent, as flags or as a config file. A saved lab uses a file, so that commands that the user runs
//! on a node read the node's settings and not those of the host.

use std::path::Path;

use ipnet::IpNet;

use super::plan::{LabStore, Plan, Tls};

/// One key of the agent's configuration.
pub(super) struct AgentSetting {
    /// As in the config file; the part before the dot is the TOML table.
    key: &'static str,
    flag: &'static str,
    value: SettingValue,
}

enum SettingValue {
    Text(String),
    Number(u8),
    List(Vec<String>),
    No,
}

impl AgentSetting {
    fn text(key: &'static str, flag: &'static str, value: impl Into<String>) -> Self {
        Self { key, flag, value: SettingValue::Text(value.into()) }
    }

    fn list(key: &'static str, flag: &'static str, items: impl IntoIterator<Item = impl ToString>) -> Self {
        Self {
            key,
            flag,
            value: SettingValue::List(items.into_iter().map(|item| item.to_string()).collect()),
        }
    }

    fn path(key: &'static str, flag: &'static str, path: &Path) -> Self {
        Self::text(key, flag, path.display().to_string())
    }
}

/// The settings of a node; `index` counts from 0.
pub(super) fn of_node(plan: &Plan, index: usize, endpoints: &[String], lab: &Path) -> Vec<AgentSetting> {
    let mut all = vec![
        AgentSetting { key: "install.enabled", flag: "--no-install", value: SettingValue::No },
        AgentSetting::text("node", "--node", format!("n{}", index + 1)),
    ];
    let subnets = |nets: &[IpNet]| AgentSetting::list("network.subnets", "--network-subnet", nets);
    match plan.store {
        LabStore::Alone => {
            all.push(subnets(&plan.standalone_block(index)));
            return all;
        }
        LabStore::Etcd { .. } => {
            all.push(AgentSetting::text("store", "--store", "etcd"));
            all.push(AgentSetting::list("etcd.endpoints", "--etcd-endpoints", endpoints));
            if let Some(Tls { ca, cert, key }) = &plan.etcd_tls {
                all.push(AgentSetting::path("etcd.ca", "--etcd-ca", ca));
                all.push(AgentSetting::path("etcd.cert", "--etcd-cert", cert));
                all.push(AgentSetting::path("etcd.key", "--etcd-key", key));
            }
        }
        LabStore::Embedded => {
            all.push(AgentSetting::text("store", "--store", "embedded"));
            all.push(AgentSetting::path("store_dir", "--store-dir", &lab.join("store")));
        }
    }
    all.push(subnets(&plan.pods));
    all.push(AgentSetting {
        key: "network.margin",
        flag: "--network-margin",
        value: SettingValue::Number(plan.margin),
    });
    all.push(AgentSetting::text("network.transport", "--network-transport", plan.transport.as_str()));
    all
}

/// The directories of a node's agent, and the CNI directories of a container runtime on the node.
pub(super) fn of_directories(node: &Path) -> Vec<AgentSetting> {
    vec![
        AgentSetting::path("run_dir", "--run-dir", &node.join("state")),
        AgentSetting::path("state_dir", "--state-dir", &node.join("lib")),
        AgentSetting::path("install.plugin_dir", "--install-plugin-dir", &node.join("cni/bin")),
        AgentSetting::path("install.config_dir", "--install-config-dir", &node.join("cni/net.d")),
    ]
}

pub(super) fn as_flags(settings: &[AgentSetting]) -> Vec<String> {
    let flags = settings.iter().flat_map(|AgentSetting { flag, value, .. }| {
        let value = match value {
            SettingValue::Text(text) => Some(text.clone()),
            SettingValue::Number(number) => Some(number.to_string()),
            SettingValue::List(items) => Some(items.join(",")),
            SettingValue::No => None,
        };
        [Some((*flag).to_owned()), value].into_iter().flatten()
    });
    flags.collect()
}

pub(super) fn as_file(settings: &[AgentSetting]) -> String {
    let mut text = "# Config of this node's agent; read at start.\n".to_owned();
    for table in ["", "etcd", "network", "install"] {
        let split = |key: &'static str| key.split_once('.').unwrap_or(("", key));
        let lines = settings.iter().filter_map(|AgentSetting { key, value, .. }| {
            let (key_table, name) = split(key);
            (key_table == table).then(|| format!("{name} = {}\n", in_toml(value)))
        });
        let lines: String = lines.collect();
        if !table.is_empty() && !lines.is_empty() {
            text.push_str(&format!("\n[{table}]\n"));
        }
        text.push_str(&lines);
    }
    text
}

fn in_toml(value: &SettingValue) -> String {
    // The values are names, addresses and paths. Of the characters that TOML escapes, a path may contain these two.
    let quoted = |text: &String| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    match value {
        SettingValue::Text(text) => quoted(text),
        SettingValue::Number(number) => number.to_string(),
        SettingValue::List(items) => format!("[{}]", items.iter().map(quoted).collect::<Vec<_>>().join(", ")),
        SettingValue::No => "false".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standalone_agents_have_different_blocks() {
        let plan = Plan { store: LabStore::Alone, ..Plan::default() };
        let flags = as_flags(&of_node(&plan, 2, &[], Path::new("/x")));
        assert!(flags.contains(&"10.42.2.0/24,fd42::2:0:0:0/80".to_owned()), "{flags:?}");
    }

    #[test]
    fn file_and_flags_hold_the_same_settings() {
        let endpoints = ["http://10.199.0.1:2379".to_owned()];
        let settings = of_node(&Plan::default(), 0, &endpoints, Path::new("/x"));
        let flags = as_flags(&settings).join(" ");
        assert_eq!(
            flags,
            "--no-install --node n1 --store etcd --etcd-endpoints http://10.199.0.1:2379 \
             --network-subnet 10.42.0.0/16,fd42::/64 --network-margin 8 --network-transport auto"
        );
        let all: Vec<AgentSetting> = settings.into_iter().chain(of_directories(Path::new("/x/n1"))).collect();
        let file = r#"# Config of this node's agent; read at start.
node = "n1"
store = "etcd"
run_dir = "/x/n1/state"
state_dir = "/x/n1/lib"

[etcd]
endpoints = ["http://10.199.0.1:2379"]

[network]
subnets = ["10.42.0.0/16", "fd42::/64"]
margin = 8
transport = "auto"

[install]
enabled = false
plugin_dir = "/x/n1/cni/bin"
config_dir = "/x/n1/cni/net.d"
"#;
        assert_eq!(as_file(&all), file);
    }
}
