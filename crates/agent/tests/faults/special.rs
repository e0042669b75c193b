//! A FIFO or a device in the place of a file that the agent reads: it starts and serves pods, or ends and says which file.

use std::path::Path;

use testkit::{DEADLINE, wait_until};

use crate::common::Host;

const KINDS: [(&str, &str); 2] = [("mkfifo", ""), ("mknod", "c 1 5")];

fn plant(host: &Host, (program, more): (&str, &str), path: &Path) {
    let line = format!(
        "mkdir -p {2} && rm -f {1} && {0} {1} {more}",
        program,
        path.display(),
        path.parent().unwrap().display()
    );
    host.node.sh(&["sh", "-c", &line]).unwrap();
}

#[test]
fn a10_the_agent_starts_with_a_fifo_where_it_remembers() {
    for kind in KINDS {
        let mut host = Host::new("fifostart");
        host.agent.kill().unwrap();
        let home = host.node.dir().join("lib/podwire");
        for name in ["node.json", "peers.json", "mtu", ".node.json.podwire-tmp", ".peers.json.podwire-tmp"] {
            plant(&host, kind, &home.join(name));
        }
        plant(&host, kind, &host.agent.run_dir().join("tombstones/stone"));
        host.agent.launch().unwrap();
        host.agent.wait_ready().unwrap();
        let (pod, _) = host.attached("a");
        host.del(&pod);
        let stone = host.agent.run_dir().join("tombstones/stone");
        wait_until("the tombstone to be put aside", DEADLINE, || Ok(stone.symlink_metadata().is_err()))
            .unwrap();
        // While it runs, too.
        plant(&host, kind, &stone);
        wait_until("the next to be put aside", DEADLINE, || Ok(stone.symlink_metadata().is_err())).unwrap();
        host.attached("b");
    }
}

#[test]
fn a10_the_agent_ends_and_names_the_fifo_it_needs() {
    for kind in KINDS {
        for name in ["lib/podwire/uid", "state/agent.lock", "state/boot"] {
            let mut host = Host::new("fifoend");
            host.agent.kill().unwrap();
            let path = host.node.dir().join(name);
            plant(&host, kind, &path);
            host.agent.launch().unwrap();
            let says = || {
                let log = host.agent.log()?;
                Ok(log
                    .lines()
                    .any(|line| line.contains(path.to_str().unwrap()) && line.contains("not a regular file")))
            };
            wait_until(&format!("{name} to be named"), DEADLINE, says).unwrap();
        }
    }
}
