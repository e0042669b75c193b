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

pub(crate) fn run() -> Result<()> {
    let plugin = Plugin::podwire()?;
    let lab = Lab::new("demo").context("cannot make namespaces: run as root")?;
    let node = lab.node("node")?;
    let before = Snapshot::of(&node)?;
    let config = config_for(&node);
    println!("One node, no daemon, no database: {} and this network config\n", plugin.path.display());
    println!("{}\n", serde_json::to_string_pretty(&config)?);

    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let mut steps = Vec::new();
    let first = attach(&plugin, &a, "a", &config, &mut steps)?;
    let second = attach(&plugin, &b, "b", &config, &mut steps)?;
    println!("{}\n", links(&[("a", &first), ("b", &second)]));
    for (to_b, to_a) in addresses(&second)?.into_iter().zip(addresses(&first)?) {
        reach(&a, ("pod a", "pod b"), to_b, &mut steps)?;
        reach(&node, ("node", "pod a"), to_a, &mut steps)?;
    }
    for gateway in gateways(&first)? {
        reach(&a, ("pod a", "node"), gateway, &mut steps)?;
    }
    detach(&plugin, &a, "a", &config, &mut steps)?;
    detach(&plugin, &b, "b", &config, &mut steps)?;
    println!("{}\n", print::table(&["STEP", "RESULT", "TIME"], steps.iter().map(row)));

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
        "stateDir": node.state_dir(),
        "logFile": node.log_file(),
    })
}

fn attach(plugin: &Plugin, pod: &Pod, name: &str, config: &Value, steps: &mut Vec<Step>) -> Result<Value> {
    let outcome = plugin.add(pod, config)?;
    let result = outcome.ok().with_context(|| format!("ADD of pod {name}"))?;
    let got: Vec<String> = addresses(&result)?.iter().map(ToString::to_string).collect();
    steps.push(Step { what: format!("ADD pod {name}"), result: got.join(" "), took: outcome.elapsed });
    Ok(result)
}

fn detach(plugin: &Plugin, pod: &Pod, name: &str, config: &Value, steps: &mut Vec<Step>) -> Result<()> {
    let outcome = plugin.del(pod, config)?;
    ensure!(outcome.success(), "DEL of pod {name}: {}{}", outcome.stdout, outcome.stderr);
    steps.push(Step { what: format!("DEL pod {name}"), result: "gone".to_owned(), took: outcome.elapsed });
    Ok(())
}

fn reach(from: &Ns, (who, whom): (&str, &str), to: IpAddr, steps: &mut Vec<Step>) -> Result<()> {
    let start = Instant::now();
    ensure!(ping(from, to, 1)?.all(), "{who} does not reach {whom} at {to}");
    steps
        .push(Step { what: format!("ping {who} → {whom}"), result: to.to_string(), took: start.elapsed() });
    Ok(())
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
    let state_dir = node.state_dir();
    let report = node.enter(|| engine::cleanup(&state_dir))??;
    ensure!(report.left.is_empty(), "cleanup left: {}", report.left.join(", "));
    println!("podwire cleanup: {}\n", report.done.join(", "));
    Ok(())
}
