use api::{BlockUse, Repair, Timestamp};
use types::{Code, Finding, Fix};

use super::*;

fn status() -> Status {
    let block = |cidr: &str, used, free| BlockUse {
        block: cidr.parse().unwrap(),
        used: Some(used),
        free: Some(free),
    };
    Status {
        mode: api::NodeMode::Agent,
        node: "worker-1".to_owned(),
        version: "0.1.0".to_owned(),
        pid: 4711,
        started_at: Timestamp(1_000_000),
        ready: true,
        store: "embedded".to_owned(),
        run_dir: "/run/podwire".into(),
        socket: "/run/podwire/agent.sock".into(),
        rss_bytes: 6_500_000,
        network: NetworkStatus {
            name: "podwire".to_owned(),
            mode: "routed".to_owned(),
            bridge: "podwire0".to_owned(),
            mtu: None,
            masquerade: true,
            subnets: vec!["10.83.0.0/16".parse().unwrap(), "fd00:88::/64".parse().unwrap()],
            blocks: vec![block("10.83.0.0/16", 32_766, 32_766), block("fd00:88::/64", 2, 1_048_573)],
        },
        attachments: Some(Counts { ready: 2, pending: 0, unreadable: 0 }),
        reconcile: ReconcileStatus {
            last_round_at: Some(Timestamp(1_003_590)),
            duration_ms: 3,
            rounds: 7,
            ..Default::default()
        },
        installed: vec![InstalledFile { path: "/opt/cni/bin/podwire-cni".into(), ok: true, message: None }],
        inactive_ports: Vec::new(),
        conditions: Vec::new(),
    }
}

#[test]
fn a_node_without_a_block_has_no_table_of_blocks() {
    let mut status = status();
    status.network.blocks.clear();
    assert!(!page(&status, 1_003_600).contains("BLOCK"));
}

#[test]
fn a_ready_node_is_shown_on_one_page() {
    let wanted = "\
podwire 0.1.0 on worker-1: ready

agent          process 4711, up 60m since 1970-01-12 13:46:40 UTC
memory         6.1 MiB
store          embedded
run directory  /run/podwire
socket         /run/podwire/agent.sock
network        podwire: routed, bridge podwire0, MTU of the bridge, masqueraded
attachments    2 ready, 0 pending
reconcile      10s ago in 3 ms; 7 rounds, 0 repairs
installed      ok   /opt/cni/bin/podwire-cni

BLOCK         USED   FREE
10.83.0.0/16  32766  32766    ██████████░░░░░░░░░░  50 %
fd00:88::/64  2      1048573  █░░░░░░░░░░░░░░░░░░░  <1 %

no problems; podwire doctor also tests peers and MTU";
    assert_eq!(page(&status(), 1_003_600), wanted);
}

#[test]
fn a3_numbers_of_unreadable_records_are_unknown() {
    let mut status = status();
    status.attachments = None;
    for block in &mut status.network.blocks {
        (block.used, block.free) = (None, None);
    }
    let page = page(&status, 1_003_600);
    assert!(page.contains("attachments    unknown\n") && !page.contains("0 ready"), "{page}");
    assert!(page.contains("\n10.83.0.0/16  unknown  unknown"), "{page}");
    assert!(page.contains("\nfd00:88::/64  unknown  unknown"), "{page}");
}

#[test]
fn a_node_of_a_cluster_names_the_network_of_its_blocks() {
    let mut status = status();
    status.network.blocks[0].block = "10.83.7.0/24".parse().unwrap();
    let page = page(&status, 1_003_600);
    assert!(page.contains("<1 %\nof the network 10.83.0.0/16 fd00:88::/64; 'podwire blocks'"), "{page}");
}

#[test]
fn problems_are_shown_with_fixes_and_fit_the_width() {
    let mut status = status();
    let long = "another firewall ".repeat(20);
    let command = format!("nft insert rule inet filter forward {}", "iifname podwire0 ".repeat(9).trim_end());
    status.ready = false;
    status.installed[0].ok = false;
    status.installed[0].message = Some(long.clone());
    status.reconcile.recent_repairs =
        (0..9).map(|n| Repair { at: Timestamp(1_003_000 + n), message: format!("{n} {long}") }).collect();
    let missing = Finding::new(Code::NftMissing, "program nft", "short");
    let dropped = Finding::new(Code::PodTrafficDropped, "chain inet filter forward", long)
        .fix(Fix::words(command.split(' ')));
    status.conditions = [missing, dropped].map(|found| Condition::new(found, Timestamp(1_003_558))).to_vec();
    let page = page(&status, 1_003_600);
    assert!(page.starts_with("podwire 0.1.0 on worker-1: not ready\n"), "{page}");
    for word in [
        "\n\nREPAIRED: the agent found and corrected these differences; no action is needed\n",
        "wait /opt",
        "\n\nNOT READY\n- NftMissing program nft, for 42s\n  short\n  advice: `apt install nftables`\n\n",
        "\n\nDEGRADED\n- PodTrafficDropped chain inet filter forward, for 42s\n  another",
        " ago  8 another",
    ] {
        assert!(page.contains(word), "{word:?} in {page}");
    }
    assert!(!page.contains(" ago  3 another"), "only the latest: {page}");
    assert!(page.contains("\n4 repairs before; see 'journalctl -u podwire'\n\n"), "{page}");
    assert!(page.ends_with(&format!("\n    {command}")), "{page}");
    let wide: Vec<&str> = page.lines().filter(|line| line.chars().count() > print::width()).collect();
    assert_eq!(wide, [format!("    {command}")], "only the command is wider");
}

#[test]
fn unreadable_records_are_counted() {
    assert_eq!(
        attachments(Counts { ready: 1, pending: 2, unreadable: 3 }),
        "1 ready, 2 pending, 3 unreadable (GC removes them)"
    );
}
