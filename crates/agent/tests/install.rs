//! Tests of the files in deploy/: with systemd's tools if they are installed, and against the agent's configuration.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use config::{Config, Flags, StoreChoice};
use install::VARIABLES;

/// systemd's exposure level, from 0 (best) to 10. CAP_SYS_ADMIN and writable sysctls account for most of it.
const MAX_EXPOSURE: f64 = 3.2;

fn deploy(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn unit() -> String {
    fs::read_to_string(deploy("podwire.service")).unwrap()
}

/// None without systemd.
fn analyze(arguments: &[&str]) -> Option<Output> {
    match Command::new("systemd-analyze").args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("systemd-analyze is not installed; skipping its checks of the unit");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The unit with a program that exists on every host.
fn patched(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("podwire.service");
    let text = unit();
    assert!(text.contains("\nExecStart=/usr/local/bin/podwire agent\n"), "{text}");
    fs::write(&path, text.replace("/usr/local/bin/podwire", "/bin/true")).unwrap();
    path
}

fn all_output(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_unit_is_valid() {
    let directory = tempfile::tempdir().unwrap();
    let unit = patched(&directory);
    let Some(output) = analyze(&["verify", "--man=no", "--recursive-errors=one", unit.to_str().unwrap()])
    else {
        return;
    };
    let text = all_output(&output);
    // systemd only warns about an invalid line and ignores it.
    assert!(output.status.success() && !text.contains("podwire.service"), "{text}");
}

#[test]
fn the_unit_is_hardened() {
    let directory = tempfile::tempdir().unwrap();
    let unit = patched(&directory);
    let arguments = ["security", "--offline=yes", "--no-pager", unit.to_str().unwrap()];
    let Some(output) = analyze(&arguments) else { return };
    let text = all_output(&output);
    if !output.status.success() && text.contains("offline") {
        eprintln!("this systemd does not support --offline; skipping the exposure level");
        return;
    }
    let words = text
        .lines()
        .rev()
        .find(|line| line.contains("Overall exposure level"))
        .unwrap_or_else(|| panic!("{text}"));
    let level = words.split_whitespace().find_map(|word| word.parse::<f64>().ok()).unwrap();
    println!("{}", words.trim());
    assert!(level <= MAX_EXPOSURE, "{text}");
}

/// Settings that running pods depend on. The lack of each of them has caused an outage.
#[test]
fn the_unit_has_the_settings_that_running_pods_need() {
    let unit = unit();
    for line in [
        "RuntimeDirectoryPreserve=yes",
        "KillMode=mixed",
        "Restart=always",
        "StartLimitIntervalSec=0",
        "MountFlags=slave",
        "ProtectKernelTunables=no",
        "RestrictNamespaces=net",
        "WatchdogSec=120",
        "LimitCORE=0",
        "TasksMax=512",
        "MemoryMax=1G",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "ReadWritePaths=/proc/sys/net",
        "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_NET_ADMIN CAP_NET_BROADCAST CAP_SYS_ADMIN CAP_SYS_PTRACE",
    ] {
        assert!(unit.lines().any(|present| present == line), "{line}");
    }
}

#[test]
fn a7_the_readme_lists_every_template_variable() {
    let text = fs::read_to_string(deploy("README.md")).unwrap();
    let listed: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| `{{ ").and_then(|line| line.split_once(" }}`")).map(|(name, _)| name)
        })
        .collect();
    assert_eq!(listed, VARIABLES);
}

/// A manifest as PATH → VALUE, for example `spec.containers.0.name` → `agent`. Supports only the YAML subset that deploy/ uses.
struct Manifest(BTreeMap<String, String>);

impl Manifest {
    fn read(name: &str) -> Self {
        let text = fs::read_to_string(deploy(name)).unwrap();
        let mut values = BTreeMap::new();
        // The path to the previous line: indentation and name of each part.
        let mut parents: Vec<(usize, String)> = Vec::new();
        for line in text.lines() {
            let line = line.split(" # ").next().unwrap().trim_end();
            let mut rest = line.trim_start();
            if rest.is_empty() || rest.starts_with('#') {
                continue;
            }
            assert!(!line.contains('\t'), "{line:?}");
            let mut indent = line.len() - rest.len();
            let mut last = parents.iter().rposition(|(at, _)| *at < indent).map_or(0, |at| at + 1);
            let same =
                parents.get(last).filter(|(at, _)| *at == indent).and_then(|(_, name)| name.parse().ok());
            parents.truncate(last);
            if let Some(item) = rest.strip_prefix("- ") {
                let number: usize = same.map_or(0, |number: usize| number + 1);
                parents.push((indent, number.to_string()));
                (rest, indent, last) = (item, indent + 2, last + 1);
            }
            let (name, value) = match rest.split_once(':') {
                Some((name, value)) if value.is_empty() || value.starts_with(' ') => (name, value.trim()),
                Some(_) | None => ("", rest),
            };
            if !name.is_empty() {
                parents.truncate(last);
                parents.push((indent, name.to_owned()));
            }
            let path = parents.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(".");
            if !value.is_empty() {
                let previous = values.insert(path, value.trim_matches('"').to_owned());
                assert_eq!(previous, None, "duplicate key: {line}");
            }
        }
        Self(values)
    }

    /// A value in the pod spec.
    fn pod(&self, path: &str) -> Option<&str> {
        self.0.get(&format!("spec.template.spec.{path}")).map(String::as_str)
    }

    fn agent(&self, path: &str) -> Option<&str> {
        self.pod(&format!("containers.0.{path}"))
    }

    /// A value of each item of a list. With an empty `path`, the items themselves.
    fn list(&self, list: &str, path: &str) -> Vec<&str> {
        let dot = if path.is_empty() { "" } else { "." };
        let item = |n: usize| self.pod(&format!("{list}.{n}{dot}{path}"));
        (0..).map_while(item).collect()
    }
}

#[test]
fn a10_the_daemonset_runs_on_every_node_in_the_host_network() {
    let manifest = Manifest::read("daemonset.yaml");
    assert_eq!(manifest.0["apiVersion"], "apps/v1");
    assert_eq!(manifest.0["kind"], "DaemonSet");
    let label = "app.kubernetes.io/name";
    assert_eq!(
        manifest.0[&format!("spec.selector.matchLabels.{label}")],
        manifest.0[&format!("spec.template.metadata.labels.{label}")]
    );
    assert_eq!(manifest.pod("hostNetwork"), Some("true"));
    assert_eq!(manifest.pod("priorityClassName"), Some("system-node-critical"));
    // All taints: neither key nor effect.
    let tolerations: Vec<_> = manifest.0.keys().filter(|key| key.contains(".tolerations.")).collect();
    assert_eq!(tolerations, ["spec.template.spec.tolerations.0.operator"]);
    assert_eq!(manifest.pod("tolerations.0.operator"), Some("Exists"));
    // The agent would reject service variables as unknown settings.
    assert_eq!(manifest.pod("enableServiceLinks"), Some("false"));
    assert_eq!(manifest.pod("automountServiceAccountToken"), Some("false"));
    for request in ["cpu", "memory"] {
        assert!(manifest.agent(&format!("resources.requests.{request}")).is_some(), "{request}");
    }
    // The agent takes up to 20 s to stop.
    assert!(manifest.pod("terminationGracePeriodSeconds").unwrap().parse::<u32>().unwrap() > 20);
}

#[test]
fn a10_the_daemonset_mounts_the_agents_directories() {
    let manifest = Manifest::read("daemonset.yaml");
    let names = manifest.list("containers.0.volumeMounts", "name");
    let mounts = manifest.list("containers.0.volumeMounts", "mountPath");
    let expected = [
        "/etc/cni/net.d",
        "/opt/cni/bin",
        "/run/netns",
        "/run/podwire",
        "/run/podwire-locks",
        "/var/lib/podwire",
    ];
    assert_eq!(mounts, expected);
    assert_eq!(manifest.list("volumes", "name"), names);
    // Plugin and runtime on the host use the same paths.
    assert_eq!(manifest.list("volumes", "hostPath.path"), mounts);
    assert_eq!(manifest.agent("volumeMounts.2.mountPropagation"), Some("HostToContainer"));
    let config = daemonset_config(&manifest);
    let install = config.install.unwrap();
    for directory in [install.config_dir, install.plugin_dir, config.run_dir, config.state_dir] {
        assert!(mounts.contains(&directory.to_str().unwrap()), "{}", directory.display());
    }
}

/// The agent's configuration from the environment in the manifest.
fn daemonset_config(manifest: &Manifest) -> Config {
    let names = manifest.list("containers.0.env", "name");
    let env = names.iter().enumerate().map(|(n, name)| {
        let value = manifest.agent(&format!("env.{n}.value"));
        let field = manifest.agent(&format!("env.{n}.valueFrom.fieldRef.fieldPath"));
        let value = match (value, field) {
            (Some(value), None) => value,
            (None, Some("spec.nodeName")) => "node-7",
            unexpected => panic!("{name}: {unexpected:?}"),
        };
        (OsString::from(name), OsString::from(value))
    });
    Config::load(&Flags::default(), env).unwrap()
}

#[test]
fn a10_the_daemonset_configures_and_probes_the_agent() {
    let manifest = Manifest::read("daemonset.yaml");
    let config = daemonset_config(&manifest);
    assert_eq!(config.node, "node-7");
    assert!(matches!(config.store, StoreChoice::Etcd(_)));
    assert_eq!(config.cluster.margin, 8);
    assert!(config.install.is_some());
    let metrics = config.metrics.unwrap();
    for (probe, path) in [("livenessProbe", api::HEALTH), ("readinessProbe", api::READY)] {
        let get = |key: &str| manifest.agent(&format!("{probe}.httpGet.{key}")).unwrap();
        assert_eq!(format!("{}:{}", get("host"), get("port")), metrics.to_string());
        assert_eq!(get("path"), path);
    }
}

#[test]
fn a10_the_daemonset_has_no_more_privileges_than_the_unit() {
    let manifest = Manifest::read("daemonset.yaml");
    let list = |name: &str| manifest.list(&format!("containers.0.securityContext.capabilities.{name}"), "");
    assert_eq!(list("drop"), ["ALL"]);
    assert_eq!(list("add"), ["DAC_OVERRIDE", "NET_ADMIN", "NET_BROADCAST", "SYS_ADMIN"]);
    let unit = unit();
    let bounding = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    for capability in list("add") {
        assert!(
            bounding.split(' ').any(|present| present.strip_prefix("CAP_") == Some(capability)),
            "{capability}"
        );
    }
    let context = |key: &str| manifest.agent(&format!("securityContext.{key}"));
    assert_eq!(context("readOnlyRootFilesystem"), Some("true"));
    assert_eq!(context("seccompProfile.type"), Some("RuntimeDefault"));
    assert_eq!(context("privileged"), None);
    // Kubernetes rejects `false` together with SYS_ADMIN.
    assert_eq!(context("allowPrivilegeEscalation"), None);
    for shared in ["hostPID", "hostIPC"] {
        assert_eq!(manifest.pod(shared), None, "{shared}");
    }
    // Without this mount, sysctls are read-only.
    let command = manifest.list("containers.0.command", "");
    assert!(command[2].starts_with("mount -o remount,bind,rw /proc/sys && exec "), "{command:?}");
}
