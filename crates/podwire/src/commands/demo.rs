//! `podwire demo`: the main job, shown. Two pods (namespaces) on a node (a namespace) get their network through the real
//! plugin, talk to each other and to the node in both families, and everything goes away again.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::{Lab, Node, Ns, Plugin, Pod, Snapshot, ping};

use crate::print;

/// What was done, and how long it took.
struct Step {
    what: String,
    result: String,
    took: Duration,
}

/// The demo while it runs: what it calls, with which config, and what was done so far.
struct Show {
    plugin: Plugin,
    config: Value,
    steps: Vec<Step>,
}

pub(crate) fn run() -> Result<()> {
    let plugin = Plugin::podwire()?;
    let lab = Lab::new("demo").context("cannot make namespaces: run as root")?;
    let node = lab.node("node")?;
    let before = Snapshot::of(&node)?;
    let mut show = Show { plugin, config: config_for(&node), steps: Vec::new() };
    println!("One node, no daemon, no database: {} and this network config\n", show.plugin.path.display());
    println!("{}\n", serde_json::to_string_pretty(&show.config)?);

    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let (first, second) = (show.attach(&a, "a")?, show.attach(&b, "b")?);
    println!("{}\n", links(&[("a", &first), ("b", &second)]));
    for (to_b, to_a) in addresses(&second)?.into_iter().zip(addresses(&first)?) {
        show.reach(&a, ("pod a", "pod b"), to_b)?;
        show.reach(&node, ("node", "pod a"), to_a)?;
    }
    for gateway in gateways(&first)? {
        show.reach(&a, ("pod a", "node"), gateway)?;
    }
    show.detach(&a, "a")?;
    show.detach(&b, "b")?;
    println!("{}\n", print::table(&["STEP", "RESULT", "TIME"], show.steps.iter().map(row)));

    cleanup(&node)?;
    before.expect_same(&node).context("the demo left something behind")?;
    drop((a, b, node));
    drop(lab);
    println!("Nothing is left: links, addresses, routes, firewall and namespaces are as before.");
    Ok(())
}

fn config_for(node: &Node) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "demo",
        "type": "podwire-cni",
        "bridge": "podwire0",
        "subnet": "10.88.0.0/16,fd00:88::/64",
        "ipMasq": true,
        "runDir": node.run_dir(),
        "logFile": node.log_file(),
    })
}

impl Show {
    fn attach(&mut self, pod: &Pod, name: &str) -> Result<Value> {
        let outcome = self.plugin.add(pod, &self.config)?;
        let result = outcome.ok().with_context(|| format!("ADD of pod {name}"))?;
        let got: Vec<String> = addresses(&result)?.iter().map(ToString::to_string).collect();
        self.done(format!("ADD pod {name}"), got.join(" "), outcome.elapsed);
        Ok(result)
    }

    fn detach(&mut self, pod: &Pod, name: &str) -> Result<()> {
        let outcome = self.plugin.del(pod, &self.config)?;
        ensure!(outcome.success(), "DEL of pod {name}: {}{}", outcome.stdout, outcome.stderr);
        self.done(format!("DEL pod {name}"), "gone".to_owned(), outcome.elapsed);
        Ok(())
    }

    fn reach(&mut self, from: &Ns, (who, whom): (&str, &str), to: IpAddr) -> Result<()> {
        let start = Instant::now();
        ensure!(ping(from, to, 1)?.all(), "{who} does not reach {whom} at {to}");
        self.done(format!("ping {who} → {whom}"), to.to_string(), start.elapsed());
        Ok(())
    }

    fn done(&mut self, what: String, result: String, took: Duration) {
        self.steps.push(Step { what, result, took });
    }
}

fn row(step: &Step) -> Vec<String> {
    vec![step.what.clone(), step.result.clone(), format!("{:.1} ms", step.took.as_secs_f64() * 1000.0)]
}

/// What was made for each pod, as its result says.
fn links(pods: &[(&str, &Value)]) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let rows = pods.iter().map(|(pod, result)| {
        let interfaces = &result["interfaces"];
        vec![
            (*pod).to_owned(),
            text(&interfaces[2]["name"]),
            text(&interfaces[2]["mac"]),
            text(&interfaces[1]["name"]),
            text(&interfaces[0]["name"]),
            text(&result["ips"][0]["address"]),
            text(&result["ips"][1]["address"]),
        ]
    });
    print::table(&["POD", "IF", "MAC", "HOST LINK", "BRIDGE", "IPV4", "IPV6"], rows)
}

fn addresses(result: &Value) -> Result<Vec<IpAddr>> {
    ips(result, "address")
}

fn gateways(result: &Value) -> Result<Vec<IpAddr>> {
    ips(result, "gateway")
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

/// The bridge, the tables and the state belong to the node, not to a pod: `podwire cleanup` removes them.
fn cleanup(node: &Node) -> Result<()> {
    let run_dir = node.run_dir();
    let report = node.enter(|| engine::cleanup(&run_dir))??;
    ensure!(report.left.is_empty(), "cleanup left: {}", report.left.join(", "));
    println!("podwire cleanup: {}\n", report.done.join(", "));
    Ok(())
}
