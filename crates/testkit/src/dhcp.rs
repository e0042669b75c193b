//! A DHCP server (busybox) on a bridge of the node, and the daemon of the reference plugin `dhcp`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{DEADLINE, Node, Pod, REFERENCE_DIR, RunningProgram, wait_until};

/// The server's address. It leases addresses of the same /24.
pub const DHCP_SERVER: &str = "10.55.0.1";
/// Lease time in seconds. A client renews after half of it.
const LEASE: u32 = 6;

/// The DHCP server and the plugin's daemon. Both are killed on drop.
#[derive(Debug)]
pub struct Dhcp {
    socket: PathBuf,
    log: PathBuf,
    server: Option<RunningProgram>,
    _daemon: RunningProgram,
    lan: Pod,
}

/// Counts DHCPRELEASE messages: the first option is 53 (message type) with the value 7.
const COUNTER: &str = "table inet watch { counter released { }; chain clients { type filter hook prerouting priority 0; \
                       udp dport 67 @th,1984,24 0x350107 counter name released; }; }";

impl Dhcp {
    /// Creates the bridge and starts the server and the daemon.
    pub fn start(node: &Node, bridge: &str) -> Result<Self> {
        let lan = node.pod("lan")?;
        let (server, port) = (format!("{DHCP_SERVER}/24"), format!("{bridge}-lan"));
        for argv in [
            vec!["ip", "link", "add", bridge, "type", "bridge"],
            vec!["ip", "link", "set", bridge, "up"],
            vec!["ip", "link", "add", &port, "type", "veth", "peer", "name", "lan0", "netns", lan.name()],
            vec!["ip", "link", "set", &port, "master", bridge, "up"],
        ] {
            node.sh(&argv)?;
        }
        lan.sh(&["ip", "addr", "add", &server, "dev", "lan0"])?;
        lan.sh(&["ip", "link", "set", "lan0", "up"])?;
        lan.sh(&["nft", COUNTER])?;
        let file = |name: &str| node.dir().join(name);
        let (conf, log, socket) = (file("udhcpd.conf"), file("udhcpd.log"), file("dhcp.sock"));
        let text = format!(
            "start 10.55.0.50\nend 10.55.0.60\ninterface lan0\nmin_lease 2\nlease_file {}\npidfile {}\n\
             option subnet 255.255.255.0\noption router {DHCP_SERVER}\noption lease {LEASE}\n",
            file("udhcpd.leases").display(),
            file("udhcpd.pid").display(),
        );
        std::fs::write(&conf, text)?;
        std::fs::write(file("udhcpd.leases"), "")?;
        let mut command = Command::new("sh");
        let serve = format!("exec busybox udhcpd -f {} 2>{}", conf.display(), log.display());
        command.args(["-c", &serve]);
        let server = Some(lan.start(command, Vec::new())?);
        let mut command = Command::new(format!("{REFERENCE_DIR}/dhcp"));
        // Short timeouts, because tests also stop the server.
        command.args(["daemon", "-timeout", "1s", "-resendmax", "2s", "-socketpath"]).arg(&socket);
        let daemon = node.start(command, Vec::new())?;
        wait_until("the DHCP daemon", DEADLINE, || Ok(socket.exists()))?;
        let dhcp = Self { socket, log, server, _daemon: daemon, lan };
        wait_until("the DHCP server", DEADLINE, || {
            Ok(std::fs::read_to_string(&dhcp.log).is_ok_and(|log| log.contains("started")))
        })?;
        Ok(dhcp)
    }

    /// The IPAM section of a network config.
    pub fn ipam(&self) -> Value {
        json!({ "type": "dhcp", "daemonSocketPath": self.socket })
    }

    /// Number of granted and renewed leases.
    pub fn acknowledged(&self) -> Result<usize> {
        let log = std::fs::read_to_string(&self.log).context("cannot read the log of the DHCP server")?;
        Ok(log.lines().filter(|line| line.contains("sending ACK")).count())
    }

    /// Number of released addresses.
    pub fn released(&self) -> Result<u64> {
        let output = self.lan.json(&["nft", "-j", "list", "counter", "inet", "watch", "released"])?;
        output["nftables"][1]["counter"]["packets"]
            .as_u64()
            .with_context(|| format!("nft listed no counter: {output}"))
    }

    /// Stops the server, so that requests of clients time out.
    pub fn stop_server(&mut self) {
        self.server = None;
    }
}
