//! The CNI config from a template: JSON with `{{ NAME }}` for what only the agent knows.

use std::sync::Arc;

use netconf::{Addresses, NetConf, Network, NodeAllocation, NodeNetworks, comma_separated};
use serde_json::{Map, Value};

use crate::{InstallError, InstalledBy, Installer};

/// What a template may name. Texts are escaped for use between quotes; MTU (0 where none is set) and MASQUERADE stand
/// without them.
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

/// One plugin that does it all: hostPort and bandwidth are inside, nothing is chained.
const CAPABILITIES: &str =
    r#""capabilities": { "portMappings": true, "bandwidth": true, "ips": true, "mac": true, "dns": true }"#;

/// With an agent the config says only where it is: what the network is like is the agent's to know.
const AGENT: &str = r#""agent": "{{ SOCKET }}""#;
const STANDALONE: &str = r#""mode": "{{ MODE }}",
      "bridge": "{{ BRIDGE }}",
      "subnet": "{{ BLOCK }}",
      "mtu": {{ MTU }},
      "isDefaultGateway": true,
      "ipMasq": {{ MASQUERADE }}"#;

fn built_in(maker: InstalledBy) -> String {
    let network = match maker {
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

/// A template that cannot be used is found out before this node has joined.
pub(super) fn check_at_start(installer: &Installer) -> Result<(), InstallError> {
    render(installer, Some(&installer.stand_in)).map(|_| ())
}

pub(super) fn render(installer: &Installer, network: Option<&Arc<Network>>) -> Result<String, InstallError> {
    let (template, text) = match &installer.install.template {
        None => ("the built-in template".to_owned(), built_in(installer.maker)),
        Some(path) => {
            let text = ::files::open_config(path)
                .and_then(std::io::read_to_string)
                .map_err(|source| InstallError::TemplateFile { path: path.clone(), source })?;
            (format!("the template {}", path.display()), text)
        }
    };
    let draft = ConfigDraft { installer, network };
    fill(&text, |name| draft.value(name))
        .and_then(|config| draft.check(&config).map(|()| config))
        .and_then(
            |config| {
                if installer.install.config_name.ends_with(".conf") { single(&config) } else { Ok(config) }
            },
        )
        .map_err(|problem| InstallError::Template { template, problem })
}

/// A config while it is made.
struct ConfigDraft<'a> {
    installer: &'a Installer,
    /// None: this node owns no block yet.
    network: Option<&'a Arc<Network>>,
}

/// Replaces every `{{ NAME }}`.
fn fill(template: &str, value: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let (name, tail) =
            after.split_once("}}").ok_or_else(|| format!("no }}}} after {{{{{}", start_of(after)))?;
        out.push_str(&value(name.trim())?);
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

/// Enough to find the place.
fn start_of(text: &str) -> String {
    text.chars().take(40).collect()
}

impl ConfigDraft<'_> {
    fn value(&self, name: &str) -> Result<String, String> {
        let (installer, settings) = (self.installer, &self.installer.settings);
        let network = || {
            let error = || format!("{{{{ {name} }}}} is not known before this node has its block");
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
                return Err(format!("unknown variable {:?}; {hint}", start_of(name)));
            }
        };
        let quoted = Value::String(text).to_string();
        // Without the quotes around it, which the template has.
        let inner = quoted.strip_prefix('"').and_then(|inner| inner.strip_suffix('"'));
        Ok(inner.unwrap_or(&quoted).to_owned())
    }

    /// The plugin's own eyes on the config, as a runtime would hand it over.
    fn check(&self, text: &str) -> Result<(), String> {
        let list: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))?;
        let plugins = list.get("plugins").and_then(Value::as_array).filter(|plugins| !plugins.is_empty());
        let plugins = plugins.ok_or("it has no list \"plugins\"")?;
        let ours = self.installer.plugin.name.as_str();
        let mut count = 0;
        for plugin in plugins {
            let plugin = plugin.as_object().ok_or("a plugin in \"plugins\" is not an object")?;
            match plugin.get("type").and_then(Value::as_str) {
                None | Some("") => return Err("a plugin in \"plugins\" has no \"type\"".to_owned()),
                Some(kind) if kind == ours => {
                    count += 1;
                    self.check_ours(&list, plugin.clone())?;
                }
                Some(_) => {}
            }
        }
        if count == 0 { Err(format!("no plugin in \"plugins\" has the type {ours:?}")) } else { Ok(()) }
    }

    fn check_ours(&self, list: &Map<String, Value>, mut plugin: Map<String, Value>) -> Result<(), String> {
        let installer = self.installer;
        for key in ["cniVersion", "name"] {
            let value = list.get(key).ok_or_else(|| format!("it has no {key:?}"))?;
            plugin.insert(key.to_owned(), value.clone());
        }
        let raw = Value::Object(plugin).to_string();
        let config = cni::NetworkConfig::from_slice(raw.as_bytes()).map_err(|error| error.msg.clone())?;
        let place = netconf::LocalPaths::parse(&config).map_err(|error| error.msg.clone())?;
        check_place(installer, &place)?;
        match self.merged(&config).map_err(|error| error.msg.clone())?.addresses {
            Addresses::Own(_) | Addresses::Delegated(_) => Ok(()),
            // A runtime's own network: pods without an address are a mistake in the template.
            Addresses::Absent => Err("no addresses to assign: set \"subnet\" or \"ipam\"".to_owned()),
        }
    }

    /// The network that requests with this config get.
    fn merged(&self, config: &cni::NetworkConfig) -> Result<NetConf, cni::Error> {
        let installer = self.installer;
        if installer.maker == InstalledBy::Standalone || config.name != installer.settings.name {
            return NetConf::parse(config);
        }
        let network = Arc::clone(self.network.unwrap_or(&installer.stand_in));
        let node = NodeNetworks {
            name: &installer.settings.name,
            mode: installer.settings.mode,
            run_dir: &installer.run_dir,
            allocation: Ok(&NodeAllocation::of_default(network)),
        };
        NetConf::merge(config, Some(&node))
    }
}

/// A list as the one plugin in it: what runtimes expect in a file of that ending.
fn single(text: &str) -> Result<String, String> {
    let list: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let plugin = match list["plugins"].as_array().map(Vec::as_slice) {
        Some([one]) => one.as_object(),
        Some(_) | None => None,
    };
    let error = "a .conf holds one plugin, and it has several: let install.config_name end in .conflist";
    let mut plugin = plugin.cloned().ok_or(error)?;
    for key in ["cniVersion", "name"] {
        plugin.insert(key.to_owned(), list[key].clone());
    }
    serde_json::to_string_pretty(&plugin).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// A plugin that looks for the agent elsewhere never finds it, and leaves its tombstones where nobody reads them.
fn check_place(installer: &Installer, place: &netconf::LocalPaths) -> Result<(), String> {
    let Some(socket) = place.agent.as_ref().filter(|_| installer.maker == InstalledBy::Agent) else {
        return Ok(());
    };
    if *socket != installer.socket {
        return Err(format!(
            "its \"agent\" means the socket {}, and this agent listens on {}: write \"agent\": \"{{{{ SOCKET }}}}\"",
            socket.display(),
            installer.socket.display()
        ));
    }
    if place.run_dir != installer.run_dir {
        return Err(format!(
            "its \"runDir\" means {}, and this agent works in {}: write \"runDir\": \"{{{{ RUN_DIR }}}}\"",
            place.run_dir.display(),
            installer.run_dir.display()
        ));
    }
    Ok(())
}
