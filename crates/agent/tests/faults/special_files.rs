//! A FIFO or a device at the path of a file that the agent reads: the agent starts, or exits with an error that names the file.

use std::path::Path;

use testkit::{DEADLINE, wait_until};

use crate::common::Host;

/// A FIFO and /dev/zero: the program that creates it, and its arguments after the path.
const KINDS: [(&str, &str); 2] = [("mkfifo", ""), ("mknod", "c 1 5")];

fn create_special(host: &Host, (program, more): (&str, &str), path: &Path) {
    let line = format!(
        "mkdir -p {2} && rm -f {1} && {0} {1} {more}",
        program,
        path.display(),
        path.parent().unwrap().display()
    );
    host.node.sh(&["sh", "-c", &line]).unwrap();
}

#[test]
fn a10_the_agent_starts_with_fifos_in_its_state_directory() {
    for kind in KINDS {
        let mut host = Host::new("fifostart");
        host.agent.kill().unwrap();
        let state_dir = host.node.dir().join("lib/podwire");
        for name in ["node.json", "peers.json", "mtu", ".node.json.podwire-tmp", ".peers.json.podwire-tmp"] {
            create_special(&host, kind, &state_dir.join(name));
        }
        create_special(&host, kind, &host.agent.run_dir().join("tombstones/tombstone"));
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        let (pod, _) = host.attached("a");
        host.del(&pod);
        let tombstone = host.agent.run_dir().join("tombstones/tombstone");
        wait_until("the tombstone to be put aside", DEADLINE, || Ok(tombstone.symlink_metadata().is_err()))
            .unwrap();
        // Also while the agent runs.
        create_special(&host, kind, &tombstone);
        wait_until("the next tombstone to be put aside", DEADLINE, || {
            Ok(tombstone.symlink_metadata().is_err())
        })
        .unwrap();
        host.attached("b");
    }
}

#[test]
fn a10_the_agent_ends_and_names_a_fifo_it_cannot_use() {
    for kind in KINDS {
        for name in ["lib/podwire/uid", "state/agent.lock", "state/boot"] {
            let mut host = Host::new("fifoend");
            host.agent.kill().unwrap();
            let path = host.node.dir().join(name);
            create_special(&host, kind, &path);
            host.agent.launch().unwrap();
            let is_logged = || {
                let log = host.agent.log()?;
                Ok(log
                    .lines()
                    .any(|line| line.contains(path.to_str().unwrap()) && line.contains("not a regular file")))
            };
            wait_until(&format!("{name} to be logged"), DEADLINE, is_logged).unwrap();
        }
    }
}
