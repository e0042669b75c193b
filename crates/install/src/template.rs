//! Renders the CNI config from a template: JSON with `{{ NAME }}` for values of the agent.

use std::sync::Arc;

use netconf::{Addresses, NetConf, Network, NodeAllocation, NodeNetworks, comma_separated};
use serde_json::{Map, Value};

use crate::{InstallError, InstalledBy, Installer};

/// The variables of a template. Texts are escaped for use between quotes. MTU (0 if unset) and MASQUERADE are used without
/// quotes.
pub const VARIABLES: &[&str] = &[
    "CNI_VERSION",
    "NAME",
    "TYPE",
    "MODE",
    "BRIDGE",
    "BLOCK",
    "NETWORK",
    "GATEWAY",
    "MTU",
    "MASQUERADE",
    "SOCKET",
    "RUN_DIR",
];

/// One plugin implements all capabilities. No other plugin is chained.
const CAPABILITIES: &str =
    r#""capabilities": { "portMappings": true, "bandwidth": true, "ips": true, "mac": true, "dns": true }"#;

/// With an agent, the config contains only the socket. The agent knows the network.
const AGENT: &str = r#""agent": "{{ SOCKET }}""#;
const STANDALONE: &str = r#""mode": "{{ MODE }}",
      "bridge": "{{ BRIDGE }}",
      "subnet": "{{ BLOCK }}",
      "mtu": {{ MTU }},
      "isDefaultGateway": true,
      "ipMasq": {{ MASQUERADE }}"#;

fn built_in(installed_by: InstalledBy) -> String {
    let network = match installed_by {
        InstalledBy::Agent => AGENT,
        InstalledBy::Standalone => STANDALONE,
    };
    format!(
        r#"{{
  "cniVersion": "{{{{ CNI_VERSION }}}}",
  "cniVersions": ["0.4.0", "1.0.0", "1.1.0"],
  "name": "{{{{ NAME }}}}",
  "plugins": [
    {{
      "type": "{{{{ TYPE }}}}",
      {network},
      "runDir": "{{{{ RUN_DIR }}}}",
      {CAPABILITIES}
    }}
  ]
}}
"#
    )
}

/// Renders with sample blocks, to detect an invalid template before this node has joined the cluster.
pub(super) fn check_at_start(installer: &Installer) -> Result<(), InstallError> {
    render(installer, Some(&installer.sample_network)).map(|_| ())
}

pub(super) fn render(installer: &Installer, network: Option<&Arc<Network>>) -> Result<String, InstallError> {
    let (template, text) = match &installer.install.template {
        None => ("the built-in template".to_owned(), built_in(installer.installed_by)),
        Some(path) => {
            let text = ::files::open_config(path)
                .and_then(std::io::read_to_string)
                .map_err(|source| InstallError::TemplateFile { path: path.clone(), source })?;
            (format!("template {}", path.display()), text)
        }
    };
    let draft = ConfigDraft { installer, network };
    fill(&text, |name| draft.value(name))
        .and_then(|config| draft.check(&config).map(|()| config))
        .and_then(|config| {
            if installer.install.config_name.ends_with(".conf") { single_plugin(&config) } else { Ok(config) }
        })
        .map_err(|problem| InstallError::Template { template, problem })
}

/// The inputs of a config.
struct ConfigDraft<'a> {
    installer: &'a Installer,
    /// None if this node owns no block yet.
    network: Option<&'a Arc<Network>>,
}

/// Replaces all `{{ NAME }}`.
fn fill(template: &str, value: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let (name, tail) =
            after.split_once("}}").ok_or_else(|| format!("no }}}} after {{{{{}", excerpt(after)))?;
        out.push_str(&value(name.trim())?);
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

/// The first characters of a text, for error messages.
fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

impl ConfigDraft<'_> {
    fn value(&self, name: &str) -> Result<String, String> {
        let (installer, settings) = (self.installer, &self.installer.settings);
        let network = || {
            let error = || format!("{{{{ {name} }}}} is unknown before this node has a block");
            self.network.ok_or_else(error)
        };
        let text = match name {
            "CNI_VERSION" => installer.plugin.version.to_string(),
            "NAME" => settings.name.to_string(),
            "TYPE" => installer.plugin.name.clone(),
            "MODE" => settings.mode.to_string(),
            "BRIDGE" => settings.bridge.to_string(),
            "BLOCK" => comma_separated(network()?.blocks()),
            "NETWORK" => settings.subnet_list(),
            "GATEWAY" => comma_separated(&network()?.gateways().collect::<Vec<_>>()),
            "MTU" => network()?.mtu().unwrap_or(0).to_string(),
            "MASQUERADE" => settings.masquerade.to_string(),
            "SOCKET" => installer.socket.to_string_lossy().into_owned(),
            "RUN_DIR" => installer.run_dir.to_string_lossy().into_owned(),
            _ => {
                let hint = match types::closest(name, VARIABLES.iter().copied()) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => format!("the variables are {}", VARIABLES.join(", ")),
                };
                return Err(format!("unknown variable {:?}; {hint}", excerpt(name)));
            }
        };
        let quoted = Value::String(text).to_string();
        // Without the surrounding quotes, which the template contains.
        let inner = quoted.strip_prefix('"').and_then(|inner| inner.strip_suffix('"'));
        Ok(inner.unwrap_or(&quoted).to_owned())
    }

    /// Parses the config like the plugin, as a runtime passes it.
    fn check(&self, text: &str) -> Result<(), String> {
        let list: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))?;
        let plugins = list.get("plugins").and_then(Value::as_array).filter(|plugins| !plugins.is_empty());
        let plugins = plugins.ok_or("it has no list \"plugins\"")?;
        let own_type = self.installer.plugin.name.as_str();
        let mut count = 0;
        for plugin in plugins {
            let plugin = plugin.as_object().ok_or("a plugin in \"plugins\" is not an object")?;
            match plugin.get("type").and_then(Value::as_str) {
                None | Some("") => return Err("a plugin in \"plugins\" has no \"type\"".to_owned()),
                Some(kind) if kind == own_type => {
                    count += 1;
                    self.check_plugin(&list, plugin.clone())?;
                }
                Some(_) => {}
            }
        }
        if count == 0 { Err(format!("no plugin in \"plugins\" has the type {own_type:?}")) } else { Ok(()) }
    }

    fn check_plugin(&self, list: &Map<String, Value>, mut plugin: Map<String, Value>) -> Result<(), String> {
        let installer = self.installer;
        for key in ["cniVersion", "name"] {
            let value = list.get(key).ok_or_else(|| format!("it has no {key:?}"))?;
            plugin.insert(key.to_owned(), value.clone());
        }
        let raw = Value::Object(plugin).to_string();
        let config = cni::NetworkConfig::from_slice(raw.as_bytes()).map_err(|error| error.msg.clone())?;
        let paths = netconf::LocalPaths::parse(&config).map_err(|error| error.msg.clone())?;
        check_paths(installer, &paths)?;
        match self.merged(&config).map_err(|error| error.msg.clone())?.addresses {
            Addresses::Own(_) | Addresses::Delegated(_) => Ok(()),
            // A network of a runtime whose pods have no addresses is a mistake in the template.
            Addresses::Absent => Err("no addresses to assign: set \"subnet\" or \"ipam\"".to_owned()),
        }
    }

    /// The network of requests with this config.
    fn merged(&self, config: &cni::NetworkConfig) -> Result<NetConf, cni::Error> {
        let installer = self.installer;
        if installer.installed_by == InstalledBy::Standalone || config.name != installer.settings.name {
            return NetConf::parse(config);
        }
        let network = Arc::clone(self.network.unwrap_or(&installer.sample_network));
        let node = NodeNetworks {
            name: &installer.settings.name,
            mode: installer.settings.mode,
            run_dir: &installer.run_dir,
            unnamed: None,
            allocation: Ok(&NodeAllocation::of_default(network)),
        };
        NetConf::merge(config, Some(&node))
    }
}

/// Converts a list with one plugin into a single plugin, which runtimes expect in a `.conf` file.
fn single_plugin(text: &str) -> Result<String, String> {
    let list: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let plugin = match list["plugins"].as_array().map(Vec::as_slice) {
        Some([one]) => one.as_object(),
        Some(_) | None => None,
    };
    let error = "a .conf file holds one plugin, but the template has several: use an install.config_name that ends in .conflist";
    let mut plugin = plugin.cloned().ok_or(error)?;
    for key in ["cniVersion", "name"] {
        plugin.insert(key.to_owned(), list[key].clone());
    }
    serde_json::to_string_pretty(&plugin).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// With a different socket the plugin never finds the agent. With a different runDir it writes its tombstones to a directory
/// that the agent does not read.
fn check_paths(installer: &Installer, paths: &netconf::LocalPaths) -> Result<(), String> {
    let Some(socket) = paths.agent.as_ref().filter(|_| installer.installed_by == InstalledBy::Agent) else {
        return Ok(());
    };
    if *socket != installer.socket {
        return Err(format!(
            "\"agent\" is the socket {}, but this agent listens on {}: write \"agent\": \"{{{{ SOCKET }}}}\"",
            socket.display(),
            installer.socket.display()
        ));
    }
    if paths.run_dir != installer.run_dir {
        return Err(format!(
            "\"runDir\" is {}, but this agent uses {}: write \"runDir\": \"{{{{ RUN_DIR }}}}\"",
            paths.run_dir.display(),
            installer.run_dir.display()
        ));
    }
    Ok(())
}
