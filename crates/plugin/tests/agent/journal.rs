//! The log as journald gets it.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use serde_json::json;
use testkit::{Plugin, uninterrupted};

use crate::common::Host;
use crate::standin::{Reply, Standin, config};
use crate::watch::{refused, wrapped};

/// The plugin in a mount namespace of its own, with `dir` as the journal's directory.
fn with_journal(host: &Host, dir: &str) -> Plugin {
    let mount = format!(
        "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind {dir} /run/systemd/journal"
    );
    wrapped(host, "journal", &format!("exec unshare -m sh -c '{mount} && exec \"$0\"' \"$PLUGIN\""))
}

fn receive(journal: &UnixDatagram) -> String {
    let mut bytes = [0; 65536];
    let read = uninterrupted(|| journal.recv(&mut bytes)).unwrap();
    String::from_utf8(bytes[..read].to_vec()).unwrap()
}

#[test]
fn b9_a_line_goes_to_the_journal() {
    let host = Host::new("b9journal");
    let dir = host.node.dir().join("journal");
    std::fs::create_dir(&dir).unwrap();
    let journal = UnixDatagram::bind(dir.join("socket")).unwrap();
    journal.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let plugin = with_journal(&host, dir.to_str().unwrap());
    let agent = Standin::new(&host.node, vec![Reply::done(), Reply::error(500, 50, "no address left")]);
    let config = config(&host, &json!({"logFile": "journal"}));
    let outcome = plugin.status(&host.node, &config).unwrap();
    assert_eq!((outcome.success(), outcome.stderr.as_str()), (true, ""), "{outcome:?}");
    let text = receive(&journal);
    assert!(text.starts_with("MESSAGE=STATUS blue: ok in "), "{text}");
    let id = agent.asked()[0].call["requestId"].as_str().unwrap().to_owned();
    for line in
        ["PRIORITY=6", "SYSLOG_IDENTIFIER=podwire-cni", "PODWIRE_COMMAND=STATUS", "PODWIRE_NETWORK=blue"]
    {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(text.contains(&format!("\nPODWIRE_REQUEST_ID={id}\n")), "{text}");
    refused("STATUS", &plugin.status(&host.node, &config).unwrap());
    let text = receive(&journal);
    assert!(text.starts_with("MESSAGE=STATUS blue: failed: no address left"), "{text}");
    assert!(text.contains("\nPRIORITY=3\n") && text.contains("\nPODWIRE_CODE=50\n"), "{text}");
}

#[test]
fn b9_a_journal_that_is_not_there_or_full_never_fails_a_pod() {
    let host = Host::new("b9nojournal");
    let dir = host.node.dir().join("journal");
    std::fs::create_dir(&dir).unwrap();
    let plugin = with_journal(&host, dir.to_str().unwrap());
    let _agent = Standin::new(&host.node, vec![Reply::done()]);
    let config = config(&host, &json!({"logFile": "journal"}));
    let missing = plugin.status(&host.node, &config).unwrap();
    assert!(missing.success() && missing.stderr.contains("/run/systemd/journal/socket"), "{missing:?}");
    let full = UnixDatagram::bind(dir.join("socket")).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send_to(b"x", dir.join("socket")).is_ok() {}
    let outcome = plugin.status(&host.node, &config).unwrap();
    assert!(outcome.success() && outcome.stderr.contains("cannot write the log"), "{outcome:?}");
    drop(full);
}
