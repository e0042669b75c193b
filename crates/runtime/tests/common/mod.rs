//! What the tests with a real runtime share: a machine with containerd and a network on it, and what pods may leave behind.

#![allow(dead_code, reason = "every test binary uses only a part of what they share")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use runtime::{Containerd, Cri, Machine, PodSpec, RunningPod};
use serde_json::{Value, json};
use testkit::{DEADLINE, Lab, Node, Plugin, Snapshot, copy_program, wait_until};

const TIMEOUT: Duration = DEADLINE;
/// What the kernel and a shim finish by themselves after they have answered.
const SOON: Duration = DEADLINE;

/// Dropped from top to bottom: what runs on the machine, the machine, the lab.
pub(crate) struct World {
    pub(crate) containerd: Containerd,
    pub(crate) machine: Machine,
    pub(crate) node: Node,
    pub(crate) lab: Lab,
}

impl World {
    /// `network` puts plugins into /opt/cni/bin and a conflist into /etc/cni/net.d.
    pub(crate) fn new(label: &str, network: impl FnOnce(&Machine) -> Result<()>) -> Self {
        let world = Self::with(label, network);
        world.wait_until_ready();
        world
    }

    /// containerd answers, and says that it has no network.
    pub(crate) fn without_network(label: &str) -> Self {
        Self::with(label, |_| Ok(()))
    }

    fn with(label: &str, network: impl FnOnce(&Machine) -> Result<()>) -> Self {
        Self::configured(label, "", network)
    }

    /// containerd's configuration has `more`, and exists when `network` is called.
    pub(crate) fn configured(label: &str, more: &str, network: impl FnOnce(&Machine) -> Result<()>) -> Self {
        let lab = Lab::new(label).unwrap();
        let node = lab.node("n1").unwrap();
        let machine = Machine::new(&node).unwrap();
        Containerd::configure(&machine, more).unwrap();
        network(&machine).unwrap();
        let containerd = Containerd::start_configured(&machine).unwrap();
        Self { containerd, machine, node, lab }
    }

    /// RuntimeReady and NetworkReady, as a kubelet waits for them.
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

    /// Each reaches itself, has an address of both families, and all of them answer the other pod.
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

/// podwire-cni without an agent.
pub(crate) fn standalone(machine: &Machine) -> Result<()> {
    place_plugins(machine)?;
    let network = json!({
        "type": "podwire-cni", "bridge": "pw0", "subnet": "10.83.0.0/24,fd00:88::/64",
        "capabilities": { "portMappings": true },
    });
    place_conflist(machine, &network)
}

pub(crate) fn place_plugins(machine: &Machine) -> Result<()> {
    let bin = machine.path("/opt/cni/bin");
    fs::create_dir_all(&bin)?;
    let plugin = Plugin::podwire()?.path;
    // Runtimes before containerd 2.0 have every pod's loopback set up by a plugin of that name: ours, too.
    for name in ["podwire-cni", "loopback"] {
        copy_program(&plugin, &bin.join(name))?;
    }
    Ok(())
}

pub(crate) fn place_conflist(machine: &Machine, network: &Value) -> Result<()> {
    place_conflist_named(machine, "podwire", network)
}

pub(crate) fn place_conflist_named(machine: &Machine, name: &str, network: &Value) -> Result<()> {
    let directory = machine.path("/etc/cni/net.d");
    fs::create_dir_all(&directory)?;
    let conflist = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [network] });
    fs::write(directory.join(format!("10-{name}.conflist")), conflist.to_string())
        .context("cannot write the conflist")
}

/// All that pods can leave behind: in the node's network, on the machine, in our state.
pub(crate) struct Traces {
    node: Snapshot,
    machine: Vec<String>,
}

impl Traces {
    /// One pod comes and goes first: it makes what is the node's and stays, such as the bridge and our tables.
    pub(crate) fn before_pods(world: &World) -> Self {
        world.remove(&world.run("first"));
        Self::after_first(&world.node, &world.machine)
    }

    /// The first pod is gone; its shim may still be ending.
    pub(crate) fn after_first(node: &Node, machine: &Machine) -> Self {
        wait_until("the first pod's shim to end", SOON, || {
            Ok(!machine.remains()?.iter().any(|line| line.starts_with("process")))
        })
        .unwrap();
        Self { node: Snapshot::of(node).unwrap(), machine: machine.remains().unwrap() }
    }

    pub(crate) fn expect_same(&self, world: &World) {
        assert_eq!(world.cri().sandboxes().unwrap(), Vec::<String>::new());
        self.expect_same_on(&world.node, &world.machine);
    }

    pub(crate) fn expect_same_on(&self, node: &Node, machine: &Machine) {
        self.node.wait_for_same(node, SOON).unwrap();
        wait_until("the machine to be as it was", SOON, || {
            let now = machine.remains()?;
            ensure!(now == self.machine, "before: {:#?}\nnow: {now:#?}", self.machine);
            Ok(true)
        })
        .unwrap();
        let attachments = machine.path("/run/podwire/networks/podwire/attachments");
        let left: Vec<_> = fs::read_dir(attachments).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.is_empty(), "attachments are left: {left:?}");
    }
}

/// What a web server answers to a client in that namespace.
pub(crate) fn get(from: &Node, server: SocketAddr) -> std::io::Result<String> {
    from.enter(|| {
        let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
    .unwrap()
}
