//! What is in deploy/ is what a machine gets: checked with systemd's own eyes, where they are.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use config::{Config, Flags, StoreChoice};
use install::VARIABLES;

/// systemd's measure of exposure: 0 is none, 10 all. CAP_SYS_ADMIN and writable sysctls are what is left.
const MOST_EXPOSURE: f64 = 3.2;

fn deploy(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn unit() -> String {
    fs::read_to_string(deploy("podwire.service")).unwrap()
}

/// None: there is no systemd here.
fn analyze(arguments: &[&str]) -> Option<Output> {
    match Command::new("systemd-analyze").args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("systemd-analyze is not installed: the unit is not checked by it");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The unit with programs that exist here.
fn patched(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("podwire.service");
    let text = unit();
    assert!(text.contains("\nExecStart=/usr/local/bin/podwire agent\n"), "{text}");
    fs::write(&path, text.replace("/usr/local/bin/podwire", "/bin/true")).unwrap();
    path
}

fn both(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_unit_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let unit = patched(&directory);
    let Some(output) = analyze(&["verify", "--man=no", "--recursive-errors=one", unit.to_str().unwrap()])
    else {
        return;
    };
    let text = both(&output);
    // A mistake in a line is only a warning, and then the line does nothing.
    assert!(output.status.success() && !text.contains("podwire.service"), "{text}");
}

#[test]
fn the_unit_is_hardened() {
    let directory = tempfile::tempdir().unwrap();
    let unit = patched(&directory);
    let arguments = ["security", "--offline=yes", "--no-pager", unit.to_str().unwrap()];
    let Some(output) = analyze(&arguments) else { return };
    let text = both(&output);
    if !output.status.success() && text.contains("offline") {
        eprintln!("this systemd knows no --offline: exposure is not measured");
        return;
    }
    let words = text
        .lines()
        .rev()
        .find(|line| line.contains("Overall exposure level"))
        .unwrap_or_else(|| panic!("{text}"));
    let level = words.split_whitespace().find_map(|word| word.parse::<f64>().ok()).unwrap();
    println!("{}", words.trim());
    assert!(level <= MOST_EXPOSURE, "{text}");
}

/// What a pod's life depends on; each of these lines was somebody's outage.
#[test]
fn the_unit_keeps_what_running_pods_need() {
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
        assert!(unit.lines().any(|there| there == line), "{line}");
    }
}

#[test]
fn a7_the_readme_names_every_variable_of_the_template() {
    let text = fs::read_to_string(deploy("README.md")).unwrap();
    let named: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| `{{ ").and_then(|rest| rest.split_once(" }}`")).map(|(name, _)| name)
        })
        .collect();
    assert_eq!(named, VARIABLES);
}

/// A manifest in the plain style that ours has, as PATH → VALUE: `spec.containers.0.name` → `agent`.
struct Manifest(BTreeMap<String, String>);

impl Manifest {
    fn read(name: &str) -> Self {
        let text = fs::read_to_string(deploy(name)).unwrap();
        let mut values = BTreeMap::new();
        // The way to the line before: how far each part is indented, and its name.
        let mut way: Vec<(usize, String)> = Vec::new();
        for line in text.lines() {
            let line = line.split(" # ").next().unwrap().trim_end();
            let mut rest = line.trim_start();
            if rest.is_empty() || rest.starts_with('#') {
                continue;
            }
            assert!(!line.contains('\t'), "{line:?}");
            let mut indent = line.len() - rest.len();
            let mut last = way.iter().rposition(|(at, _)| *at < indent).map_or(0, |at| at + 1);
            let same = way.get(last).filter(|(at, _)| *at == indent).and_then(|(_, name)| name.parse().ok());
            way.truncate(last);
            if let Some(item) = rest.strip_prefix("- ") {
                let number: usize = same.map_or(0, |number: usize| number + 1);
                way.push((indent, number.to_string()));
                (rest, indent, last) = (item, indent + 2, last + 1);
            }
            let (name, value) = match rest.split_once(':') {
                Some((name, value)) if value.is_empty() || value.starts_with(' ') => (name, value.trim()),
                Some(_) | None => ("", rest),
            };
            if !name.is_empty() {
                way.truncate(last);
                way.push((indent, name.to_owned()));
            }
            let path = way.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(".");
            if !value.is_empty() {
                let earlier = values.insert(path, value.trim_matches('"').to_owned());
                assert_eq!(earlier, None, "twice: {line}");
            }
        }
        Self(values)
    }

    /// In a pod's own part.
    fn pod(&self, path: &str) -> Option<&str> {
        self.0.get(&format!("spec.template.spec.{path}")).map(String::as_str)
    }

    fn agent(&self, path: &str) -> Option<&str> {
        self.pod(&format!("containers.0.{path}"))
    }

    /// The items of a list, each by what it has at `path`; empty for what the item itself is.
    fn list(&self, list: &str, path: &str) -> Vec<&str> {
        let dot = if path.is_empty() { "" } else { "." };
        let item = |n: usize| self.pod(&format!("{list}.{n}{dot}{path}"));
        (0..).map_while(item).collect()
    }
}

#[test]
fn a10_the_daemonset_is_on_every_node_and_in_its_network() {
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
    // All taints: no key and no effect.
    let tolerations: Vec<_> = manifest.0.keys().filter(|key| key.contains(".tolerations.")).collect();
    assert_eq!(tolerations, ["spec.template.spec.tolerations.0.operator"]);
    assert_eq!(manifest.pod("tolerations.0.operator"), Some("Exists"));
    // Variables of services would be taken for mistyped ones of ours.
    assert_eq!(manifest.pod("enableServiceLinks"), Some("false"));
    assert_eq!(manifest.pod("automountServiceAccountToken"), Some("false"));
    for request in ["cpu", "memory"] {
        assert!(manifest.agent(&format!("resources.requests.{request}")).is_some(), "{request}");
    }
    // The agent takes up to 20 s to end.
    assert!(manifest.pod("terminationGracePeriodSeconds").unwrap().parse::<u32>().unwrap() > 20);
}

#[test]
fn a10_the_daemonsets_mounts_are_the_agents_directories() {
    let manifest = Manifest::read("daemonset.yaml");
    let names = manifest.list("containers.0.volumeMounts", "name");
    let mounts = manifest.list("containers.0.volumeMounts", "mountPath");
    let wanted = [
        "/etc/cni/net.d",
        "/opt/cni/bin",
        "/run/netns",
        "/run/podwire",
        "/run/podwire-locks",
        "/var/lib/podwire",
    ];
    assert_eq!(mounts, wanted);
    assert_eq!(manifest.list("volumes", "name"), names);
    // Plugin and runtime, outside, know the same paths.
    assert_eq!(manifest.list("volumes", "hostPath.path"), mounts);
    assert_eq!(manifest.agent("volumeMounts.2.mountPropagation"), Some("HostToContainer"));
    let config = daemons_config(&manifest);
    let install = config.install.unwrap();
    for directory in [install.config_dir, install.plugin_dir, config.run_dir, config.state_dir] {
        assert!(mounts.contains(&directory.to_str().unwrap()), "{}", directory.display());
    }
}

/// What the agent makes of the manifest's variables.
fn daemons_config(manifest: &Manifest) -> Config {
    let names = manifest.list("containers.0.env", "name");
    let env = names.iter().enumerate().map(|(n, name)| {
        let value = manifest.agent(&format!("env.{n}.value"));
        let field = manifest.agent(&format!("env.{n}.valueFrom.fieldRef.fieldPath"));
        let value = match (value, field) {
            (Some(value), None) => value,
            (None, Some("spec.nodeName")) => "node-7",
            other => panic!("{name}: {other:?}"),
        };
        (OsString::from(name), OsString::from(value))
    });
    Config::load(&Flags::default(), env).unwrap()
}

#[test]
fn a10_the_daemonset_configures_the_agent_and_asks_it() {
    let manifest = Manifest::read("daemonset.yaml");
    let config = daemons_config(&manifest);
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
fn a10_the_daemonset_may_do_no_more_than_the_unit() {
    let manifest = Manifest::read("daemonset.yaml");
    let list = |name: &str| manifest.list(&format!("containers.0.securityContext.capabilities.{name}"), "");
    assert_eq!(list("drop"), ["ALL"]);
    assert_eq!(list("add"), ["DAC_OVERRIDE", "NET_ADMIN", "NET_BROADCAST", "SYS_ADMIN"]);
    let unit = unit();
    let bounding = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    for capability in list("add") {
        assert!(
            bounding.split(' ').any(|there| there.strip_prefix("CAP_") == Some(capability)),
            "{capability}"
        );
    }
    let context = |key: &str| manifest.agent(&format!("securityContext.{key}"));
    assert_eq!(context("readOnlyRootFilesystem"), Some("true"));
    assert_eq!(context("seccompProfile.type"), Some("RuntimeDefault"));
    assert_eq!(context("privileged"), None);
    // Kubernetes refuses `false` beside SYS_ADMIN.
    assert_eq!(context("allowPrivilegeEscalation"), None);
    for shared in ["hostPID", "hostIPC"] {
        assert_eq!(manifest.pod(shared), None, "{shared}");
    }
    // Without this no sysctl can be written.
    let command = manifest.list("containers.0.command", "");
    assert!(command[2].starts_with("mount -o remount,bind,rw /proc/sys && exec "), "{command:?}");
}
