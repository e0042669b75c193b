//! `podwire demo`: the main job, shown. On a node (a namespace) the agent runs with its defaults; two pods (namespaces) get
//! their network through it, talk in both families, and do not notice that the agent is killed, that somebody deletes
//! their routes, and at the end everything goes away again.

mod stream;

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Agent, Call, Lab, Node, Ns, Plugin, Pod, Snapshot, Verb, ping, wait_until};
use serde_json::Value;

use stream::Stream;

use crate::print;

/// How long a repair may take before the demo calls it failed.
const REPAIR: Duration = Duration::from_secs(5);

/// The demo while it runs: the node, its agent, what a runtime would call, and with which config.
struct RunningDemo<'a> {
    node: &'a Node,
    agent: Agent,
    plugin: Plugin,
    config: Value,
}

/// A pod that is attached.
struct DemoPod {
    pod: Pod,
    name: &'static str,
    result: Value,
}

pub(crate) fn run() -> Result<()> {
    let begun = Instant::now();
    let lab = Lab::new("demo").context("cannot make namespaces")?;
    let node = lab.node("node")?;
    let before = Snapshot::of(&node)?;
    let mut show = RunningDemo::start(&node)?;
    let (a, b) = (show.attach("a")?, show.attach("b")?);
    show.talk(&a, &b)?;
    show.survive(&a, &b)?;
    show.repair(&a, &b)?;
    show.status()?;
    show.detach(&[a, b])?;
    show.leave()?;
    before.expect_same(&node).context("the demo left something in the kernel")?;
    drop(node);
    drop(lab);
    println!("\nNothing is left: links, addresses, routes, firewall and files are as before.");
    println!("All of it took {:.1} s.", begun.elapsed().as_secs_f64());
    Ok(())
}

fn title(text: &str) {
    println!("\n{}\n", print::wrap(text, print::width()));
}

fn line(what: &str, result: &str, took: Option<Duration>) {
    let took = took.map_or_else(String::new, |took| format!("{:.1} ms", took.as_secs_f64() * 1000.0));
    let column = print::width() - 39;
    println!("{}", format!("  {what:<27}{result:<column$}{took:>10}").trim_end());
}

impl<'a> RunningDemo<'a> {
    /// The agent on its defaults; only its directories are the demo's own. It installs itself as on a real node.
    fn start(node: &'a Node) -> Result<Self> {
        title("A node with nothing on it. The agent starts, without any configuration:");
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
        let own = std::env::current_exe().context("cannot find my own program file")?;
        let mut agent = Agent::of_program(own, (node, node.dir()), &flags)?;
        let begun = Instant::now();
        agent.launch()?;
        agent.wait_ready()?;
        line("podwire agent", "ready", Some(begun.elapsed()));
        let config = configs.join("10-podwire.conflist");
        wait_until("the CNI config", REPAIR, || Ok(config.exists()))?;
        line("for the container runtime", "plugin and config are in place", None);
        let list: Value = serde_json::from_slice(&fs::read(&config)?)?;
        let mut config = list["plugins"][0].clone();
        for key in ["cniVersion", "name"] {
            config[key] = list[key].clone();
        }
        config["logFile"] = node.log_file().display().to_string().into();
        title("Two pods come, as a container runtime brings them (ADD), and talk:");
        Ok(Self { node, agent, plugin: Plugin { path: plugins.join("podwire-cni") }, config })
    }

    fn attach(&self, name: &'static str) -> Result<DemoPod> {
        let pod = self.node.pod(name)?;
        let outcome = self.plugin.call(self.node, &self.call(Verb::Add, &pod, name))?;
        let result = outcome.ok().with_context(|| format!("ADD of pod {name}"))?;
        let got: Vec<String> = ips(&result, "address")?.iter().map(ToString::to_string).collect();
        line(&format!("ADD pod {name}"), &got.join("  "), Some(outcome.elapsed));
        Ok(DemoPod { pod, name, result })
    }

    /// Container and pod are called as Kubernetes and containerd would.
    fn call(&self, verb: Verb, pod: &Pod, name: &str) -> Call {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME={name}");
        let container = Some(name.repeat(64));
        Call { args: Some(args), container, ..Call::pod(verb, pod, &self.config) }
    }

    /// A command's output, without the directory that only this run has.
    fn quote(&self, stdout: &str) {
        let directory = self.node.dir().display().to_string();
        stdout.lines().for_each(|text| println!("{}", text.replace(&directory, "…")));
    }

    fn talk(&self, a: &DemoPod, b: &DemoPod) -> Result<()> {
        for ((to_b, to_a), gateway) in
            b.addresses()?.into_iter().zip(a.addresses()?).zip(ips(&a.result, "gateway")?)
        {
            reach(&a.pod, "pod a → pod b", to_b)?;
            reach(self.node, "node → pod a", to_a)?;
            reach(&a.pod, "pod a → node", gateway)?;
        }
        Ok(())
    }

    /// The agent dies in the middle of their talk.
    fn survive(&mut self, a: &DemoPod, b: &DemoPod) -> Result<()> {
        title("While pod a pings pod b 100 times a second, the agent is killed (kill -9):");
        let streams = b
            .addresses()?
            .into_iter()
            .map(|to| Stream::start(&a.pod, self.node.dir(), to))
            .collect::<Result<Vec<_>>>()?;
        for stream in &streams {
            stream.wait_for(20)?;
        }
        let old = self.agent.pid().context("the agent does not run")?;
        self.agent.kill()?;
        line("kill -9 of the agent", &format!("process {old} is gone"), None);
        for stream in &streams {
            stream.wait_for(stream.answers()? + 30)?;
        }
        let begun = Instant::now();
        self.agent.launch()?;
        self.agent.wait_ready()?;
        line("podwire agent, again", "ready, with both pods", Some(begun.elapsed()));
        for stream in &streams {
            stream.wait_for(stream.answers()? + 20)?;
        }
        for stream in streams {
            let (to, report) = (stream.to, stream.end()?);
            ensure!(
                report.received == report.sent,
                "{} of {} answers from {to} were lost",
                report.sent - report.received,
                report.sent
            );
            line(
                &format!("ping {to}"),
                &format!("{} of {} answered, none lost", report.received, report.sent),
                None,
            );
        }
        Ok(())
    }

    /// Somebody deletes the routes to a pod.
    fn repair(&self, a: &DemoPod, b: &DemoPod) -> Result<()> {
        title("Somebody deletes the routes to pod b by hand, and flushes the whole firewall:");
        for to in b.addresses()? {
            let (family, text) = (if to.is_ipv6() { "-6" } else { "-4" }, to.to_string());
            self.node.sh(&["ip", family, "route", "del", &text])?;
            let begun = Instant::now();
            wait_until("the route", REPAIR, || {
                Ok(!self.node.sh(&["ip", family, "route", "show", &text])?.trim().is_empty())
            })?;
            line(&format!("ip route del {text}"), "is back", Some(begun.elapsed()));
            // The kernel has it before the agent has reported it.
            self.reported("the repair of the route", |repair| repair.split(' ').any(|word| word == text))?;
        }
        let rules = || self.node.sh(&["nft", "-s", "list", "ruleset"]);
        let before = rules()?;
        self.node.sh(&["nft", "flush", "ruleset"])?;
        let begun = Instant::now();
        wait_until("our tables", REPAIR, || Ok(rules()? == before))?;
        line("nft flush ruleset", "ours is back", Some(begun.elapsed()));
        self.reported("the repair of the firewall", |repair| repair.contains("firewall"))?;
        for to in b.addresses()? {
            reach(&a.pod, "pod a → pod b", to)?;
        }
        Ok(())
    }

    /// Waits until the agent's status shows a repair.
    fn reported(&self, what: &str, is_it: impl Fn(&str) -> bool) -> Result<()> {
        wait_until(what, REPAIR, || {
            let status: api::Status = serde_json::from_value(self.agent.get(api::STATUS)?)?;
            Ok(status.reconcile.recent_repairs.iter().any(|repair| is_it(&repair.message)))
        })
    }

    /// What a person sees of all this.
    fn status(&self) -> Result<()> {
        title("What `podwire status` says:");
        let run_dir = self.agent.run_dir().display().to_string();
        // Paths are replaced before the page is laid out.
        let status =
            self.agent.get(api::STATUS)?.to_string().replace(&self.node.dir().display().to_string(), "…");
        print::say(super::status::page(&serde_json::from_str(&status)?))?;
        title("And `podwire pods`:");
        let outcome = self.agent.podwire(&["pods", "--run-dir", &run_dir])?;
        ensure!(outcome.success(), "podwire pods: {}{}", outcome.stdout, outcome.stderr);
        self.quote(&outcome.stdout);
        Ok(())
    }

    fn detach(&self, pods: &[DemoPod]) -> Result<()> {
        title("The pods go (DEL), the agent ends, and `podwire cleanup` takes away what is left of it:");
        for DemoPod { pod, name, .. } in pods {
            let outcome = self.plugin.call(self.node, &self.call(Verb::Del, pod, name))?;
            ensure!(outcome.success(), "DEL of pod {name}: {}{}", outcome.stdout, outcome.stderr);
            line(&format!("DEL pod {name}"), "gone", Some(outcome.elapsed));
        }
        Ok(())
    }

    fn leave(mut self) -> Result<()> {
        let status = self.agent.stop()?;
        ensure!(status.success(), "the agent ended with {status}");
        let (run_dir, state_dir) = (self.agent.run_dir().to_owned(), self.node.dir().join("lib"));
        let [run, state] = [&run_dir, &state_dir].map(|path| path.display().to_string());
        let outcome = self.agent.podwire(&["cleanup", "--run-dir", &run, "--state-dir", &state])?;
        ensure!(outcome.success(), "podwire cleanup: {}{}", outcome.stdout, outcome.stderr);
        // Its lines were wrapped with the long directory in them.
        let directory = self.node.dir().display().to_string();
        let lines = outcome.stdout.replace("\n  ", " ").replace(&directory, "…");
        lines.lines().try_for_each(print::say_wrapped)?;
        for path in [run_dir, state_dir, self.node.dir().join("opt"), self.node.dir().join("etc")] {
            ensure!(!path.exists(), "the demo left {}", path.display());
        }
        Ok(())
    }
}

impl DemoPod {
    fn addresses(&self) -> Result<Vec<IpAddr>> {
        ips(&self.result, "address")
    }
}

fn reach(from: &Ns, way: &str, to: IpAddr) -> Result<()> {
    let begun = Instant::now();
    ensure!(ping(from, to, 1)?.all(), "{way}: {to} does not answer");
    line(&format!("ping {way}"), &to.to_string(), Some(begun.elapsed()));
    Ok(())
}

fn ips(result: &Value, key: &str) -> Result<Vec<IpAddr>> {
    let ips = result["ips"].as_array().context("the result has no ips")?;
    ips.iter()
        .map(|ip| {
            let text = ip[key].as_str().context("an address is missing in the result")?;
            Ok(text.split('/').next().unwrap_or(text).parse()?)
        })
        .collect()
}
