//! `podwire demo`: an agent with default settings and two pods, in network namespaces. The pods reach each other with IPv4 and
//! IPv6, also while the agent is killed and after routes and firewall were deleted. Pods of two tenants cannot, until a share allows
//! it. At the end everything is removed.

mod stream;
mod tenants;

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Agent, Call, Lab, Node, Ns, Plugin, Pod, Snapshot, Verb, ping, wait_until};
use serde_json::Value;

use stream::Stream;

use crate::print;

/// The demo fails if a repair takes longer.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(5);

/// The node with its agent, and the plugin and config that a runtime would use.
struct RunningDemo<'a> {
    node: &'a Node,
    agent: Agent,
    plugin: Plugin,
    config: Value,
}

/// An attached pod.
struct DemoPod {
    pod: Pod,
    name: &'static str,
    result: Value,
}

pub(crate) fn run() -> Result<()> {
    let started = Instant::now();
    let lab = Lab::new("demo").context("cannot create namespaces")?;
    let node = lab.node("node")?;
    let before = Snapshot::of(&node)?;
    let mut demo = RunningDemo::start(&node)?;
    let (a, b) = (demo.attach("a")?, demo.attach("b")?);
    demo.ping_all(&a, &b)?;
    demo.kill_agent(&a, &b)?;
    demo.repair(&a, &b)?;
    let [c, d] = demo.tenants()?;
    demo.show_status()?;
    demo.detach(&[a, b, c, d])?;
    demo.cleanup()?;
    before.expect_same(&node).context("the demo did not remove all kernel objects")?;
    drop(node);
    drop(lab);
    println!("\nEverything was removed; links, routes, firewall and files are as before.");
    println!("The demo took {:.1} s.", started.elapsed().as_secs_f64());
    Ok(())
}

fn title(text: &str) {
    println!("\n{}\n", print::wrap(text, print::width()));
}

fn line(action: &str, result: &str, duration: Option<Duration>) {
    let duration = duration.map_or_else(String::new, |time| format!("{:.1} ms", time.as_secs_f64() * 1000.0));
    let column = print::width() - 39;
    println!("{}", format!("  {action:<27}{result:<column$}{duration:>10}").trim_end());
}

impl<'a> RunningDemo<'a> {
    /// The agent runs with default settings, except for its directories. It installs plugin and config as on a real node.
    fn start(node: &'a Node) -> Result<Self> {
        title("An empty node. The agent starts without a config file:");
        let (plugins, configs) = (node.dir().join("opt/cni/bin"), node.dir().join("etc/cni/net.d"));
        let built = Plugin::podwire()?.path;
        let [built, plugin_dir, config_dir] =
            [&built, &plugins, &configs].map(|path| path.display().to_string());
        let flags = [
            "--install",
            "--install-plugin",
            &built,
            "--install-plugin-dir",
            &plugin_dir,
            "--install-config-dir",
            &config_dir,
        ];
        let program = std::env::current_exe().context("cannot determine the path of this program")?;
        let mut agent = Agent::of_program(program, (node, node.dir()), &flags)?;
        let started = Instant::now();
        agent.launch()?;
        agent.wait_ready()?;
        line("podwire agent", "ready", Some(started.elapsed()));
        let config = configs.join("10-podwire.conflist");
        wait_until("the CNI config", REPAIR_TIMEOUT, || Ok(config.exists()))?;
        line("for the container runtime", "plugin and config installed", None);
        let list: Value = serde_json::from_slice(&fs::read(&config)?)?;
        let mut config = list["plugins"][0].clone();
        for key in ["cniVersion", "name"] {
            config[key] = list[key].clone();
        }
        config["logFile"] = node.log_file().display().to_string().into();
        title("Two pods are attached (CNI ADD) and ping each other:");
        Ok(Self { node, agent, plugin: Plugin { path: plugins.join("podwire-cni") }, config })
    }

    fn attach(&self, name: &'static str) -> Result<DemoPod> {
        self.attach_in(name, None)
    }

    fn attach_in(&self, name: &'static str, tenant: Option<&str>) -> Result<DemoPod> {
        let pod = self.node.pod(name)?;
        let mut config = self.config.clone();
        if let Some(tenant) = tenant {
            config["tenant"] = tenant.into();
        }
        let outcome = self.plugin.call(self.node, &call(Verb::Add, &pod, name, &config))?;
        let result = outcome.ok().with_context(|| format!("ADD of pod {name}"))?;
        let addresses: Vec<String> = ips(&result, "address")?.iter().map(ToString::to_string).collect();
        line(&format!("ADD pod {name}"), &addresses.join("  "), Some(outcome.elapsed));
        Ok(DemoPod { pod, name, result })
    }

    /// Prints the output of a command without the temporary directory.
    fn quote(&self, stdout: &str) {
        let directory = self.node.dir().display().to_string();
        stdout.lines().for_each(|text| println!("{}", text.replace(&directory, "…")));
    }

    fn ping_all(&self, a: &DemoPod, b: &DemoPod) -> Result<()> {
        for ((to_b, to_a), gateway) in
            b.addresses()?.into_iter().zip(a.addresses()?).zip(ips(&a.result, "gateway")?)
        {
            ping_once(&a.pod, "pod a → pod b", to_b)?;
            ping_once(self.node, "node → pod a", to_a)?;
            ping_once(&a.pod, "pod a → node", gateway)?;
        }
        Ok(())
    }

    /// Kills the agent while one pod pings the other.
    fn kill_agent(&mut self, a: &DemoPod, b: &DemoPod) -> Result<()> {
        title("While pod a pings pod b 100 times a second, the agent is killed (kill -9):");
        let streams = b
            .addresses()?
            .into_iter()
            .map(|to| Stream::start(&a.pod, self.node.dir(), to))
            .collect::<Result<Vec<_>>>()?;
        for stream in &streams {
            stream.wait_for(20)?;
        }
        let old = self.agent.pid().context("the agent is not running")?;
        self.agent.kill()?;
        line("kill -9 of the agent", &format!("process {old} ended"), None);
        for stream in &streams {
            stream.wait_for(stream.replies()? + 30)?;
        }
        let started = Instant::now();
        self.agent.launch()?;
        self.agent.wait_ready()?;
        line("podwire agent, restarted", "ready with both pods", Some(started.elapsed()));
        for stream in &streams {
            stream.wait_for(stream.replies()? + 20)?;
        }
        for stream in streams {
            let (to, report) = (stream.to, stream.end()?);
            ensure!(
                report.received == report.sent,
                "{} of {} replies from {to} were lost",
                report.sent - report.received,
                report.sent
            );
            line(
                &format!("ping {to}"),
                &format!("{} of {} replies, none lost", report.received, report.sent),
                None,
            );
        }
        Ok(())
    }

    /// Deletes the routes to a pod and all firewall tables.
    fn repair(&self, a: &DemoPod, b: &DemoPod) -> Result<()> {
        title("The routes to pod b and all firewall tables are deleted:");
        for to in b.addresses()? {
            let (family, text) = (if to.is_ipv6() { "-6" } else { "-4" }, to.to_string());
            self.node.sh(&["ip", family, "route", "del", &text])?;
            let started = Instant::now();
            wait_until("the route", REPAIR_TIMEOUT, || {
                Ok(!self.node.sh(&["ip", family, "route", "show", &text])?.trim().is_empty())
            })?;
            line(&format!("ip route del {text}"), "restored", Some(started.elapsed()));
            // The agent reports the repair after the kernel has the route.
            self.wait_for_report("the repair of the route", |repair| {
                repair.split(' ').any(|word| word == text)
            })?;
        }
        let rules = || self.node.sh(&["nft", "-s", "list", "ruleset"]);
        let before = rules()?;
        self.node.sh(&["nft", "flush", "ruleset"])?;
        let started = Instant::now();
        wait_until("Podwire's tables", REPAIR_TIMEOUT, || Ok(rules()? == before))?;
        line("nft flush ruleset", "tables restored", Some(started.elapsed()));
        self.wait_for_report("the repair of the firewall", |repair| repair.contains("firewall"))?;
        for to in b.addresses()? {
            ping_once(&a.pod, "pod a → pod b", to)?;
        }
        Ok(())
    }

    /// Waits until the agent's status shows a repair.
    fn wait_for_report(&self, name: &str, is_repair: impl Fn(&str) -> bool) -> Result<()> {
        wait_until(name, REPAIR_TIMEOUT, || {
            let status: api::Status = serde_json::from_value(self.agent.get(api::STATUS)?)?;
            Ok(status.reconcile.recent_repairs.iter().any(|repair| is_repair(&repair.message)))
        })
    }

    fn show_status(&self) -> Result<()> {
        title("Output of `podwire status`:");
        let run_dir = self.agent.run_dir().display().to_string();
        // Paths are replaced before the layout.
        let status =
            self.agent.get(api::STATUS)?.to_string().replace(&self.node.dir().display().to_string(), "…");
        print::line(super::status::page(&serde_json::from_str(&status)?))?;
        title("Output of `podwire pods`:");
        let outcome = self.agent.podwire(&["pods", "--run-dir", &run_dir])?;
        ensure!(outcome.success(), "podwire pods: {}{}", outcome.stdout, outcome.stderr);
        self.quote(&outcome.stdout);
        Ok(())
    }

    fn detach(&self, pods: &[DemoPod]) -> Result<()> {
        title("The pods are detached (CNI DEL), the agent stops, and `podwire cleanup` runs:");
        for DemoPod { pod, name, .. } in pods {
            let outcome = self.plugin.call(self.node, &call(Verb::Del, pod, name, &self.config))?;
            ensure!(outcome.success(), "DEL of pod {name}: {}{}", outcome.stdout, outcome.stderr);
            line(&format!("DEL pod {name}"), "detached", Some(outcome.elapsed));
        }
        Ok(())
    }

    fn cleanup(mut self) -> Result<()> {
        let status = self.agent.stop()?;
        ensure!(status.success(), "the agent exited with {status}");
        let (run_dir, state_dir) = (self.agent.run_dir().to_owned(), self.node.dir().join("lib"));
        let [run, state] = [&run_dir, &state_dir].map(|path| path.display().to_string());
        let outcome = self.agent.podwire(&["cleanup", "--run-dir", &run, "--state-dir", &state])?;
        ensure!(outcome.success(), "podwire cleanup: {}{}", outcome.stdout, outcome.stderr);
        // The lines were wrapped with the temporary directory in them.
        let directory = self.node.dir().display().to_string();
        let lines = outcome.stdout.replace("\n  ", " ").replace(&directory, "…");
        lines.lines().try_for_each(print::sentence)?;
        for path in [run_dir, state_dir, self.node.dir().join("opt"), self.node.dir().join("etc")] {
            ensure!(!path.exists(), "the demo did not remove {}", path.display());
        }
        Ok(())
    }
}

impl DemoPod {
    fn addresses(&self) -> Result<Vec<IpAddr>> {
        ips(&self.result, "address")
    }
}

/// With the container ID and pod name that containerd and Kubernetes would pass.
fn call(verb: Verb, pod: &Pod, name: &str, config: &Value) -> Call {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME={name}");
    let container = Some(name.repeat(64));
    Call { args: Some(args), container, ..Call::pod(verb, pod, config) }
}

fn ping_once(from: &Ns, path: &str, to: IpAddr) -> Result<()> {
    let started = Instant::now();
    ensure!(ping(from, to, 1)?.all(), "{path}: {to} does not reply");
    line(&format!("ping {path}"), &to.to_string(), Some(started.elapsed()));
    Ok(())
}

fn ips(result: &Value, key: &str) -> Result<Vec<IpAddr>> {
    let ips = result["ips"].as_array().context("the CNI result has no ips")?;
    ips.iter()
        .map(|ip| {
            let text = ip[key].as_str().context("an address is missing in the CNI result")?;
            Ok(text.split('/').next().unwrap_or(text).parse()?)
        })
        .collect()
}
