//! `podwire pods`: what is attached on this node.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use engine::state::{Attachment, Phase, State};
use serde_json::json;

use crate::cli::{Output, Pods};
use crate::print;

pub(crate) fn run(args: &Pods) -> Result<()> {
    let mut found = Vec::new();
    let mut unreadable = Vec::new();
    if let Some(state) = State::open_existing(&args.run_dir)? {
        for network in state.networks()? {
            for listed in network.list()? {
                match listed.attachment {
                    Some(attachment) => found.push((attachment, listed.phase)),
                    None => unreadable.push(format!("{}/{}", network.name(), listed.stem)),
                }
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
    for name in &unreadable {
        eprintln!("podwire: the record of {name} cannot be read; DEL or GC removes it");
    }
    match args.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&as_json(&found))?),
        Output::Table if found.is_empty() => println!("no pods in {}", args.run_dir.display()),
        Output::Table => {
            let header =
                ["NETWORK", "CONTAINER", "POD", "IF", "ADDRESSES", "MODE", "HOST LINK", "STATE", "AGE"];
            println!("{}", print::table(&header, found.iter().map(row)));
        }
    }
    Ok(())
}

fn state(phase: Phase) -> &'static str {
    match phase {
        Phase::Pending => "pending",
        Phase::Ready => "ready",
    }
}

fn as_json(found: &[(Attachment, Phase)]) -> serde_json::Value {
    let pods =
        found.iter().map(|(attachment, phase)| json!({ "state": state(*phase), "attachment": attachment }));
    pods.collect()
}

fn row((attachment, phase): &(Attachment, Phase)) -> Vec<String> {
    let pod = attachment
        .pod
        .as_ref()
        .map_or_else(|| "-".to_owned(), |pod| format!("{}/{}", pod.namespace, pod.name));
    let addresses: Vec<String> = attachment.ips().map(|ip| ip.to_string()).collect();
    // Runtimes make ids of 64 hex digits, of which people use the first twelve.
    let container: String = attachment.key.container.as_str().chars().take(12).collect();
    vec![
        attachment.key.network.to_string(),
        container,
        pod,
        attachment.key.ifname.to_string(),
        addresses.join(" "),
        attachment.mode.to_string(),
        attachment.host_link.to_string(),
        state(*phase).to_owned(),
        age(attachment.created),
    ]
}

fn age(created: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    match now.saturating_sub(created) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}
