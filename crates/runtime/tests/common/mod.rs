//! Shared code of the tests with a real runtime: a machine with containerd and a network, and a check for leftovers of pods.

#![allow(dead_code, reason = "every test binary uses only a part of this module")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use runtime::{Containerd, Cri, Machine, PodSpec, RunningPod};
use serde_json::{Value, json};
use testkit::{DEADLINE, Lab, Node, Plugin, Snapshot, copy_program, wait_until};

/// Timeout of all waits in these tests.
const TIMEOUT: Duration = DEADLINE;

/// Fields are dropped from top to bottom: the services, the machine, the lab.
pub(crate) struct Testbed {
    pub(crate) containerd: Containerd,
    pub(crate) machine: Machine,
    pub(crate) node: Node,
    pub(crate) lab: Lab,
}

impl Testbed {
    /// `network` installs plugins into /opt/cni/bin and a conflist into /etc/cni/net.d.
    pub(crate) fn new(label: &str, network: impl FnOnce(&Machine) -> Result<()>) -> Self {
        let testbed = Self::with(label, network);
        testbed.wait_until_ready();
        testbed
    }

    /// containerd runs without a network.
    pub(crate) fn without_network(label: &str) -> Self {
        Self::with(label, |_| Ok(()))
    }

    fn with(label: &str, network: impl FnOnce(&Machine) -> Result<()>) -> Self {
        Self::configured(label, "", network)
    }

    /// `more` is appended to containerd's configuration, which exists when `network` is called.
    pub(crate) fn configured(label: &str, more: &str, network: impl FnOnce(&Machine) -> Result<()>) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n1").unwrap();
        let machine = Machine::new(&node).unwrap();
        Containerd::configure(&machine, more).unwrap();
        network(&machine).unwrap();
        let containerd = Containerd::start_configured(&machine).unwrap();
        Self { containerd, machine, node, lab }
    }

    /// Waits for RuntimeReady and NetworkReady, as a kubelet does.
    pub(crate) fn wait_until_ready(&self) {
        wait_until("the network to be ready", DEADLINE, || self.cri().ready().map(|()| true)).unwrap();
    }

    pub(crate) fn cri(&self) -> &Cri {
        self.containerd.cri()
    }

    pub(crate) fn run(&self, name: &str) -> RunningPod {
        self.cri().run_pod(&PodSpec::named(name)).unwrap()
    }

    pub(crate) fn addresses(&self, pod: &RunningPod) -> Vec<IpAddr> {
        self.cri().addresses(&pod.sandbox).unwrap()
    }

    pub(crate) fn remove(&self, pod: &RunningPod) {
        self.cri().stop_pod(&pod.sandbox).unwrap();
        self.cri().remove_pod(&pod.sandbox).unwrap();
    }

    /// Runs a program in the pod, which must succeed.
    pub(crate) fn exec(&self, pod: &RunningPod, argv: &[&str]) -> String {
        let outcome = self.cri().exec(pod, argv).unwrap();
        assert_eq!(outcome.code, 0, "{argv:?}: {outcome:?}");
        outcome.stdout
    }

    /// Each pod has an address of both families, reaches itself and reaches all addresses of the other pod.
    pub(crate) fn expect_pings(&self, pods: [&RunningPod; 2]) {
        for pod in pods {
            self.exec(pod, &["ping", "-c", "1", "-W", "2", "127.0.0.1"]);
            self.exec(pod, &["ping6", "-c", "1", "-W", "2", "::1"]);
        }
        for (from, to) in [(pods[0], pods[1]), (pods[1], pods[0])] {
            let addresses = self.addresses(to);
            let families: Vec<bool> = addresses.iter().map(IpAddr::is_ipv6).collect();
            assert_eq!(families, [false, true], "one IPv4 and one IPv6 address expected: {addresses:?}");
            for address in addresses {
                self.expect_ping(from, address);
            }
        }
    }

    pub(crate) fn expect_ping(&self, from: &RunningPod, to: IpAddr) {
        let program = if to.is_ipv6() { "ping6" } else { "ping" };
        self.exec(from, &[program, "-c", "1", "-W", "5", &to.to_string()]);
    }
}

/// Installs podwire-cni with a config that needs no agent.
pub(crate) fn standalone(machine: &Machine) -> Result<()> {
    install_plugins(machine)?;
    let network = json!({
        "type": "podwire-cni", "bridge": "pw0", "subnet": "10.83.0.0/24,fd00:88::/64",
        "capabilities": { "portMappings": true },
    });
    install_conflist(machine, &network)
}

pub(crate) fn install_plugins(machine: &Machine) -> Result<()> {
    let bin = machine.path("/opt/cni/bin");
    fs::create_dir_all(&bin)?;
    let plugin = Plugin::podwire()?.path;
    // containerd before 2.0 needs a plugin named `loopback`; Podwire's plugin also implements it.
    for name in ["podwire-cni", "loopback"] {
        copy_program(&plugin, &bin.join(name))?;
    }
    Ok(())
}

pub(crate) fn install_conflist(machine: &Machine, network: &Value) -> Result<()> {
    install_conflist_named(machine, "podwire", network)
}

pub(crate) fn install_conflist_named(machine: &Machine, name: &str, network: &Value) -> Result<()> {
    let directory = machine.path("/etc/cni/net.d");
    fs::create_dir_all(&directory)?;
    let conflist = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [network] });
    fs::write(directory.join(format!("10-{name}.conflist")), conflist.to_string())
        .context("cannot write the conflist")
}

/// The state that pods can change: the node's network, the machine and Podwire's state.
pub(crate) struct Traces {
    node: Snapshot,
    machine: Vec<String>,
}

impl Traces {
    /// First adds and removes one pod, which creates the node's permanent objects such as the bridge and the nft tables.
    pub(crate) fn before_pods(testbed: &Testbed) -> Self {
        testbed.remove(&testbed.run("first"));
        Self::after_first(&testbed.node, &testbed.machine)
    }

    /// Waits for the exit of the first pod's shim.
    pub(crate) fn after_first(node: &Node, machine: &Machine) -> Self {
        wait_until("the exit of the first pod's shim", TIMEOUT, || {
            Ok(!machine.remains()?.iter().any(|line| line.starts_with("process")))
        })
        .unwrap();
        Self { node: Snapshot::of(node).unwrap(), machine: machine.remains().unwrap() }
    }

    pub(crate) fn expect_same(&self, testbed: &Testbed) {
        assert_eq!(testbed.cri().sandboxes().unwrap(), Vec::<String>::new());
        self.expect_same_on(&testbed.node, &testbed.machine);
    }

    pub(crate) fn expect_same_on(&self, node: &Node, machine: &Machine) {
        self.node.wait_for_same(node, TIMEOUT).unwrap();
        wait_until("the machine to match the earlier state", TIMEOUT, || {
            let now = machine.remains()?;
            ensure!(now == self.machine, "before: {:#?}\nnow: {now:#?}", self.machine);
            Ok(true)
        })
        .unwrap();
        let attachments = machine.path("/run/podwire/networks/podwire/attachments");
        let remaining: Vec<_> = fs::read_dir(attachments).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(remaining.is_empty(), "attachments were not removed: {remaining:?}");
    }
}

/// The response of a web server to a client in this namespace.
pub(crate) fn get(from: &Node, server: SocketAddr) -> std::io::Result<String> {
    from.enter(|| {
        let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    })
    .unwrap()
}
