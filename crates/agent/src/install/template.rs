//! The CNI config from a template: JSON with `{{ NAME }}` for what only the agent knows.

use std::fs;

use ipam::{Range, RangeSpec};
use ipnet::IpNet;
use serde_json::{Map, Value};

use crate::install::{InstallError, Installer, Maker, PLUGIN};

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

/// For runtimes that do not know `cniVersions`: before containerd 2.0 none can read a result of 1.1.0. The others take the
/// newest of `cniVersions`.
const CNI_VERSION: &str = "1.0.0";

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

fn built_in(maker: Maker) -> String {
    let network = match maker {
        Maker::Agent => AGENT,
        Maker::Standalone => STANDALONE,
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

pub(super) fn render(installer: &Installer) -> Result<String, InstallError> {
    let (template, text) = match &installer.install.template {
        None => ("the built-in template".to_owned(), built_in(installer.maker)),
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|source| InstallError::TemplateFile { path: path.clone(), source })?;
            (format!("the template {}", path.display()), text)
        }
    };
    fill(&text, |name| value(installer, name))
        .and_then(|config| check(installer, &config).map(|()| config))
        .map_err(|problem| InstallError::Template { template, problem })
}

/// Replaces every `{{ NAME }}`.
fn fill(template: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let (name, tail) =
            after.split_once("}}").ok_or_else(|| format!("no }}}} after {{{{{}", start_of(after)))?;
        let name = name.trim();
        let value = value(name).ok_or_else(|| {
            format!("unknown variable {:?}; the variables are {}", start_of(name), VARIABLES.join(", "))
        })?;
        out.push_str(&value);
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

/// Enough to find the place.
fn start_of(text: &str) -> String {
    text.chars().take(40).collect()
}

fn value(installer: &Installer, name: &str) -> Option<String> {
    let network = &installer.network;
    let text = match name {
        "CNI_VERSION" => CNI_VERSION.to_owned(),
        "NAME" => network.name.to_string(),
        "TYPE" => PLUGIN.to_owned(),
        "MODE" => network.mode.to_string(),
        "BRIDGE" => network.bridge.to_string(),
        // One node: its block is the whole network.
        "BLOCK" | "NETWORK" => network.block(),
        "GATEWAY" => network.subnets.iter().filter_map(gateway).collect::<Vec<_>>().join(","),
        "MTU" => network.mtu.unwrap_or(0).to_string(),
        "MASQUERADE" => network.masquerade.to_string(),
        "SOCKET" => installer.socket.to_string_lossy().into_owned(),
        "RUN_DIR" => installer.run_dir.to_string_lossy().into_owned(),
        _ => return None,
    };
    let quoted = Value::String(text).to_string();
    // Without the quotes around it, which the template has.
    quoted.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).map(str::to_owned)
}

fn gateway(subnet: &IpNet) -> Option<String> {
    let spec = RangeSpec { subnet: *subnet, start: None, end: None, gateway: None, exclude: Vec::new() };
    Range::new(spec).ok().map(|range| range.gateway().to_string())
}

/// The plugin's own eyes on the config, as a runtime would hand it over.
fn check(installer: &Installer, text: &str) -> Result<(), String> {
    let list: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))?;
    let plugins = list.get("plugins").and_then(Value::as_array).filter(|plugins| !plugins.is_empty());
    let plugins = plugins.ok_or("it has no list \"plugins\"")?;
    let mut ours = 0;
    for plugin in plugins {
        let plugin = plugin.as_object().ok_or("a plugin in \"plugins\" is not an object")?;
        match plugin.get("type").and_then(Value::as_str) {
            None | Some("") => return Err("a plugin in \"plugins\" has no \"type\"".to_owned()),
            Some(PLUGIN) => {
                ours += 1;
                check_ours(installer, &list, plugin.clone())?;
            }
            Some(_) => {}
        }
    }
    if ours == 0 { Err(format!("no plugin in \"plugins\" has the type {PLUGIN:?}")) } else { Ok(()) }
}

fn check_ours(
    installer: &Installer,
    list: &Map<String, Value>,
    mut plugin: Map<String, Value>,
) -> Result<(), String> {
    for key in ["cniVersion", "name"] {
        let value = list.get(key).ok_or_else(|| format!("it has no {key:?}"))?;
        plugin.insert(key.to_owned(), value.clone());
    }
    let of_agent = list.get("name").and_then(Value::as_str) == Some(installer.network.name.as_str());
    if installer.maker == Maker::Agent && of_agent {
        // As the agent will: what the config says stays.
        for (key, value) in installer.network.request_defaults() {
            plugin.entry(key).or_insert(value);
        }
    }
    let raw = Value::Object(plugin).to_string();
    let config = cni::Config::from_slice(raw.as_bytes()).map_err(|error| error.msg.clone())?;
    let place = netconf::Place::parse(&config).map_err(|error| error.msg.clone())?;
    check_place(installer, &place)?;
    netconf::NetConf::parse(&config).map(|_| ()).map_err(|error| error.msg.clone())
}

/// A plugin that looks for the agent elsewhere never finds it, and leaves its tombstones where nobody reads them.
fn check_place(installer: &Installer, place: &netconf::Place) -> Result<(), String> {
    let Some(socket) = place.agent.as_ref().filter(|_| installer.maker == Maker::Agent) else {
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
