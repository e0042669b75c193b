//! A private mount namespace for the plugin.

use std::path::{Path, PathBuf};

use serde_json::json;
use testkit::{Call, DEADLINE, Plugin, RunningProgram, Verb, wait_until};

use crate::common::Host;
use crate::watch::wrapped;

/// A holder process keeps the namespace alive until this is dropped. Tests create it after their pods, because network
/// namespaces of pods are mounts, and drop it before their lab.
pub(crate) struct Mounts {
    /// podwire-cni, executed in the mount namespace.
    pub(crate) plugin: Plugin,
    holder: RunningProgram,
}

impl Mounts {
    /// `script` has the mount commands.
    pub(crate) fn new(host: &Host, script: &str) -> Self {
        let ready = host.lab.dir().join("mounted");
        // Network namespaces of parallel tests are unmounted here, so that the holder does not keep them alive. The holder
        // exits when its stdin is closed, at the latest when this process ends.
        let inside = format!(
            "set -e\nfor ns in /run/netns/pwt-*; do case $ns in /run/netns/{}*) ;; *) umount $ns || :; esac; done 2>&-\n\
             {script}\n: >{}\nexec cat",
            host.lab.prefix(),
            ready.display()
        );
        let inside = wrapped(host, "inside", &inside);
        let script = format!("exec unshare --mount --propagation private {}", inside.path.display());
        let holder = wrapped(host, "holder", &script);
        let holder = holder.spawn(&host.node, &Call::network(Verb::Version, &json!({}))).unwrap();
        wait_until("the mounts", DEADLINE, || Ok(ready.exists())).unwrap();
        let enter = format!("exec nsenter --target {} --mount \"$PLUGIN\"", holder.pid());
        Self { plugin: wrapped(host, "plugin", &enter), holder }
    }

    /// A path in the mount namespace, accessed from outside.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.holder.pid())).join(path.strip_prefix("/").unwrap())
    }
}
