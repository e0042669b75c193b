//! A private mount namespace: what is mounted in it is seen by the programs that run there, and by nobody else.

use std::path::{Path, PathBuf};

use serde_json::json;
use testkit::{Call, DEADLINE, Plugin, RunningProgram, Verb, wait_until};

use crate::common::Host;
use crate::watch::wrapped;

/// Lives as long as this: nobody but the holder is in it for longer than a call. A test makes it after its pods, whose
/// namespaces are mounts themselves, and drops it before its lab.
pub(crate) struct Mounts {
    /// Our plugin, called inside.
    pub(crate) plugin: Plugin,
    holder: RunningProgram,
}

impl Mounts {
    /// `script` is what is mounted.
    pub(crate) fn new(host: &Host, script: &str) -> Self {
        let ready = host.lab.dir().join("mounted");
        // Other tests' namespaces are let go, so that they end when those tests say so. The holder ends with its stdin,
        // which is when this process does, however that ends.
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

    /// A path in there, seen from out here.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.holder.pid())).join(path.strip_prefix("/").unwrap())
    }
}
