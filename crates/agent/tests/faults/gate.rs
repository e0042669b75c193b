//! An IPAM plugin that waits: an ADD that uses it is in flight until the test lets it go on.

use std::fs;
use std::path::PathBuf;
use std::thread::JoinHandle;

use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Outcome, Pod, Verb, wait_until};

use crate::common::{DELEGATES, Host, with};

/// Its ADDs wait for a file. What they give are addresses of a network of its own, by turns.
pub(crate) struct Gate {
    dir: PathBuf,
    /// The network whose addresses come through it.
    pub(crate) config: Value,
}

/// A call under way.
pub(crate) struct Calling(JoinHandle<Outcome>);

impl Calling {
    /// On a thread of its own.
    pub(crate) fn start(host: &Host, call: Call) -> Self {
        let (plugin, node) = (host.plugin.clone(), (*host.node).clone());
        Self(std::thread::spawn(move || plugin.call(&node, &call).unwrap()))
    }

    pub(crate) fn outcome(self) -> Outcome {
        self.0.join().unwrap()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}

const NAME: &str = "gate-ipam";

impl Gate {
    pub(crate) fn new(host: &Host) -> Self {
        let dir = host.lab.dir().join(DELEGATES);
        fs::create_dir(&dir).unwrap();
        // Every ADD leaves a file of its own, whose number becomes the address.
        let script = format!(
            r#"#!/bin/sh
cat >/dev/null
cd {} || exit 1
tr '\0' '\n' </proc/$$/environ >env-$CNI_COMMAND
case $CNI_COMMAND in
ADD) n=2; until mkdir waiting-$n 2>/dev/null; do n=$((n + 1)); [ $n -lt 250 ] || exit 1; done
     i=0; until [ -e open ]; do i=$((i + 1)); [ $i -lt 12000 ] || exit 1; sleep 0.01; done
     echo "{{\"cniVersion\":\"1.1.0\",\"ips\":[{{\"address\":\"10.77.0.$n/24\",\"gateway\":\"10.77.0.1\"}},{{\"address\":\"fd00:77::$n/64\",\"gateway\":\"fd00:77::1\"}}]}}" ;;
DEL) echo del >>dels ;;
esac
"#,
            dir.display()
        );
        let path = dir.join(NAME);
        // Not by this process: another test's child could inherit the descriptor, and then it cannot be executed.
        let write = format!("cat >{0} && chmod 755 {0}", path.display());
        let outcome = host.node.run(&["sh", "-c", &write], script.as_bytes()).unwrap();
        assert!(outcome.success(), "{}", outcome.stderr);
        let config = with(
            &host.config(&json!({"name": "gated", "bridge": "gated0"})),
            &json!({"ipam": {"type": NAME}, "isGateway": true}),
        );
        Self { dir, config }
    }

    /// A call about the gated network, under way.
    pub(crate) fn spawn(&self, host: &Host, verb: Verb, pod: &Pod) -> Calling {
        Calling::start(host, self.of(verb, pod))
    }

    pub(crate) fn call(&self, host: &Host, verb: Verb, pod: &Pod) -> Outcome {
        host.plugin.call(&host.node, &self.of(verb, pod)).unwrap()
    }

    pub(crate) fn of(&self, verb: Verb, pod: &Pod) -> Call {
        Call::pod(verb, pod, &self.config)
    }

    /// Until so many ADDs stand at the gate.
    pub(crate) fn wait_for(&self, count: usize) {
        wait_until("ADDs at the gate", DEADLINE, || Ok(self.arrived() >= count)).unwrap();
    }

    fn arrived(&self) -> usize {
        let names = fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().starts_with("waiting-")).count()
    }

    /// The environment of the last call of this verb.
    pub(crate) fn environment(&self, verb: Verb) -> String {
        fs::read_to_string(self.dir.join(format!("env-{}", verb.as_str()))).unwrap()
    }

    /// How often addresses were given back.
    pub(crate) fn dels(&self) -> usize {
        fs::read_to_string(self.dir.join("dels")).unwrap_or_default().lines().count()
    }

    pub(crate) fn close(&self) {
        fs::remove_file(self.dir.join("open")).unwrap();
    }

    pub(crate) fn open(&self) {
        fs::write(self.dir.join("open"), "").unwrap();
    }
}
