//! An IPAM plugin that blocks ADDs: an ADD that uses it stays in flight until the test lets it continue.

use std::fs;
use std::path::PathBuf;
use std::thread::JoinHandle;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Outcome, Pod, Verb, wait_until};

use crate::common::{DELEGATES, Host, with};

/// An IPAM plugin with ADDs that wait for a file. It allocates addresses of its own network in order.
pub(crate) struct BlockingIpam {
    dir: PathBuf,
    /// The config of the network that uses it.
    pub(crate) config: Value,
}

/// A call in flight.
pub(crate) struct RunningCall(JoinHandle<Outcome>);

impl RunningCall {
    /// Starts the call on its own thread.
    pub(crate) fn start(host: &Host, call: Call) -> Self {
        let (plugin, node) = (host.plugin.clone(), (*host.node).clone());
        Self(std::thread::spawn(move || plugin.call(&node, &call).unwrap()))
    }

    pub(crate) fn outcome(self) -> Outcome {
        self.0.join().unwrap()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

const NAME: &str = "blocking-ipam";

impl BlockingIpam {
    pub(crate) fn new(host: &Host) -> Self {
        let dir = host.lab.dir().join(DELEGATES);
        fs::create_dir(&dir).unwrap();
        // Each ADD creates a directory. Its number becomes part of the address.
        let script = format!(
            r#"#!/bin/sh
cat >/dev/null
cd {} || exit 1
tr '\0' '\n' </proc/$$/environ >env-$CNI_COMMAND
case $CNI_COMMAND in
ADD) n=2; until mkdir waiting-$n 2>/dev/null; do n=$((n + 1)); [ $n -lt 250 ] || exit 1; done
     i=0; until [ -e unblocked ]; do i=$((i + 1)); [ $i -lt 12000 ] || exit 1; sleep 0.01; done
     echo "{{\"cniVersion\":\"1.1.0\",\"ips\":[{{\"address\":\"10.77.0.$n/24\",\"gateway\":\"10.77.0.1\"}},{{\"address\":\"fd00:77::$n/64\",\"gateway\":\"fd00:77::1\"}}]}}" ;;
DEL) echo del >>dels ;;
esac
"#,
            dir.display()
        );
        let path = dir.join(NAME);
        // Another process writes the file: a child process of another test could inherit a descriptor of this process, and then the
        // kernel refuses to execute the file (ETXTBSY).
        let write = format!("cat >{0} && chmod 755 {0}", path.display());
        let outcome = host.node.run(&["sh", "-c", &write], script.as_bytes()).unwrap();
        assert!(outcome.success(), "{}", outcome.stderr);
        let config = with(
            &host.config(&json!({"name": "delegated", "bridge": "delegated0"})),
            &json!({"ipam": {"type": NAME}, "isGateway": true}),
        );
        Self { dir, config }
    }

    /// Starts a call for the network of this plugin.
    pub(crate) fn spawn(&self, host: &Host, verb: Verb, pod: &Pod) -> RunningCall {
        RunningCall::start(host, self.request(verb, pod))
    }

    pub(crate) fn call(&self, host: &Host, verb: Verb, pod: &Pod) -> Outcome {
        host.plugin.call(&host.node, &self.request(verb, pod)).unwrap()
    }

    pub(crate) fn request(&self, verb: Verb, pod: &Pod) -> Call {
        Call::pod(verb, pod, &self.config)
    }

    /// Waits until this many ADDs are blocked.
    pub(crate) fn wait_for(&self, count: usize) {
        wait_until("blocked ADDs", DEADLINE, || Ok(self.arrived() >= count)).unwrap();
    }

    fn arrived(&self) -> usize {
        let names = fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().starts_with("waiting-")).count()
    }

    /// The environment of the last call of this verb.
    pub(crate) fn environment(&self, verb: Verb) -> String {
        fs::read_to_string(self.dir.join(format!("env-{}", verb.as_str()))).unwrap()
    }

    /// The number of DELs.
    pub(crate) fn dels(&self) -> usize {
        fs::read_to_string(self.dir.join("dels")).unwrap_or_default().lines().count()
    }

    /// Blocks later ADDs again.
    pub(crate) fn block(&self) {
        fs::remove_file(self.dir.join("unblocked")).unwrap();
    }

    /// Lets all ADDs continue.
    pub(crate) fn unblock(&self) {
        fs::write(self.dir.join("unblocked"), "").unwrap();
    }
}
