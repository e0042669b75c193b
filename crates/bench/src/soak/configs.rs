//! Hostile configs and requests on a separate node. Each call must return in time with a result or an error object.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testkit::{Call, DEADLINE, Outcome, Pod, Random, Verb};

use crate::load::error_object;
use crate::options::Attack;
use crate::site::{ServedBy, SoakSite};
use crate::{Soak, jail};

const READ_LIMIT: Duration = Duration::from_secs(5);
/// Keys with paths of files and sockets, which are not mutated.
const PATHS: [&str; 3] = ["runDir", "logFile", "agent"];
const RESERVED_SUBNETS: [&str; 12] = [
    "127.0.0.0/24",
    "224.0.0.0/24",
    "240.0.0.0/24",
    "255.255.255.0/24",
    "0.0.0.0/24",
    "169.254.0.0/24",
    "fe80::/64",
    "ff02::/64",
    "::/120",
    "10.0.0.0/33",
    "10.0.0.7",
    "::ffff:10.0.0.0/120",
];
/// Fake IPAM plugin that creates a file when it runs.
const TRAP: &str = "#!/bin/sh\ntouch \"${0%/*}/ran\"\n[ \"$CNI_COMMAND\" = DEL ]\n";

/// A client with hostile configs.
struct HostileCaller<'a> {
    soak: &'a Soak,
    site: &'a SoakSite,
    random: Random,
    through: ServedBy,
    sandbox: Pod,
    number: u64,
    made: usize,
    /// Directory with fake IPAM plugins.
    traps: PathBuf,
    attacks: Vec<Attack>,
}

pub(crate) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    soak: &'scope Soak,
    site: &'scope SoakSite,
) -> Result<()> {
    let traps = traps(site)?;
    for (number, through) in [ServedBy::Plugin, ServedBy::Agent, ServedBy::Agent].into_iter().enumerate() {
        let all = [Attack::Configs, Attack::Subnets, Attack::SelfDelegation, Attack::CniPath];
        let fits = |attack: &Attack| match attack {
            // Without an agent the runtime's CNI_PATH is used by design.
            Attack::CniPath => through == ServedBy::Agent,
            Attack::Subnets => through == ServedBy::Plugin,
            Attack::SelfDelegation => std::env::var_os(jail::UNLIMITED).is_none(),
            _ => true,
        };
        let mut caller = HostileCaller {
            soak,
            site,
            random: soak.random(500 + number as u64),
            through,
            sandbox: site.hostile.node.pod(&format!("c{number}"))?,
            number: number as u64,
            made: 0,
            traps: traps.clone(),
            attacks: all.into_iter().filter(|attack| soak.has(*attack) && fits(attack)).collect(),
        };
        scope.spawn(move || caller.run());
    }
    if soak.has(Attack::Requests) {
        scope.spawn(move || requests(soak, site));
    }
    Ok(())
}

/// Creates a directory with the fake IPAM plugin and the real plugin under other names.
fn traps(site: &SoakSite) -> Result<PathBuf> {
    let dir = site.hostile.node.dir().join("traps");
    let (path, plugin) = (dir.display(), site.plugin.path.display());
    let script = format!(
        "mkdir {path} && cat >{path}/trap && chmod 755 {path}/trap && cp {plugin} {path}/copy && ln -s {plugin} {path}/link"
    );
    let made = site.hostile.node.run(&["sh", "-c", &script], TRAP.as_bytes())?;
    made.ok().context("cannot write the fake plugins")?;
    Ok(dir)
}

impl HostileCaller<'_> {
    fn run(&mut self) {
        while !self.soak.is_over() && !self.attacks.is_empty() {
            self.soak.pause(&mut self.random, 10, 150);
            self.made += 1;
            let attack = self.random.pick(&self.attacks);
            let done = match attack {
                Attack::Subnets => self.reserved_subnet(),
                Attack::SelfDelegation => self.delegate(attack, &["podwire-cni", "copy", "link"]),
                Attack::CniPath => self.delegate(attack, &["trap"]),
                _ => self.mutated(),
            };
            self.soak.ledger.count(&format!("hostile configs: {attack:?}"));
            self.soak.step("a hostile config cannot be tried", done);
        }
        let removed = self.sandbox.destroy();
        self.soak.step("a sandbox cannot be removed", removed);
    }

    /// A valid config.
    fn config(&mut self) -> Value {
        let dir = self.site.hostile.node.dir();
        match self.through {
            ServedBy::Agent => self.site.hostile_agent().config(&json!({})),
            ServedBy::Plugin => json!({
                "cniVersion": "1.1.0", "name": "hostile", "type": "podwire-cni", "bridge": "hostile0",
                "subnet": "10.66.0.0/24,fd66::/120", "mode": self.random.pick(&["bridge", "routed"]), "ipMasq": true,
                "runDir": dir.join("alone"), "logFile": dir.join("alone.log"),
            }),
        }
    }

    fn call(&self, verb: Verb, stdin: &[u8]) -> Call {
        Call {
            container: Some(format!("hostile-{}-{}", self.number, self.made)),
            stdin: stdin.to_vec(),
            ..Call::pod(verb, &self.sandbox, &Value::Null)
        }
    }

    /// Checks that the call returns in time and does not panic. Otherwise records a finding and returns `None`.
    fn called(&self, attack: Attack, call: &Call) -> Option<Outcome> {
        let running = self.site.plugin.spawn(&self.site.hostile.node, call);
        match running.and_then(|running| running.wait(DEADLINE)) {
            Ok(outcome) => Some(outcome),
            Err(error) => {
                let config = String::from_utf8_lossy(&call.stdin).chars().take(300).collect::<String>();
                let (kind, verb) = (format!("{attack:?}: a call hangs"), call.verb.as_str());
                self.soak.ledger.find(&kind, format!("{verb} {config}: {error:#}"));
                None
            }
        }
    }

    /// True if ADD succeeded. A failed ADD must print an error object.
    fn added(&self, attack: Attack, add: &Call) -> bool {
        let Some(outcome) = self.called(attack, add) else { return false };
        if outcome.success() {
            return true;
        }
        if let Err(error) = error_object(&outcome) {
            let config = String::from_utf8_lossy(&add.stdin).chars().take(300).collect::<String>();
            self.soak.ledger.find(&format!("{attack:?}: invalid response"), format!("{config}: {error:#}"));
        }
        false
    }

    /// Sends a DEL after every ADD. It must succeed only if the ADD succeeded.
    fn deleted(&self, attack: Attack, del: &Call, is_needed: bool) {
        for _ in 0..10 {
            match self.called(attack, del) {
                Some(outcome) if outcome.success() || !is_needed => return,
                Some(_) => std::thread::sleep(Duration::from_millis(500)),
                None => return,
            }
        }
        self.soak
            .ledger
            .find(&format!("{attack:?}: DEL fails repeatedly"), String::from_utf8_lossy(&del.stdin));
    }

    fn mutated(&mut self) -> Result<()> {
        let config = self.config();
        let stdin = if self.random.coin() {
            self.with_hostile_value(&config)
        } else {
            self.with_hostile_bytes(&config)
        };
        let mut add = self.call(Verb::Add, &stdin);
        if self.random.below(4) == 0 {
            self.hostile_environment(&mut add);
        }
        let is_added = self.added(Attack::Configs, &add);
        let del = Call { verb: Verb::Del, ..add.clone() };
        self.deleted(Attack::Configs, &del, is_added);
        if !is_added {
            // With a valid config: the container has no objects.
            let del = Call {
                container: self.call(Verb::Del, b"").container,
                ..self.call(Verb::Del, config.to_string().as_bytes())
            };
            self.deleted(Attack::Configs, &del, true);
        }
        Ok(())
    }

    fn with_hostile_value(&mut self, config: &Value) -> Vec<u8> {
        let mut config = config.clone();
        let keys = [
            "cniVersion",
            "bridge",
            "subnet",
            "mode",
            "mtu",
            "ipMasq",
            "ipam",
            "dns",
            "args",
            "runtimeConfig",
            "capabilities",
            "isGateway",
            "isDefaultGateway",
            "hairpinMode",
            "prevResult",
            "spoofCheck",
            "tenant",
            "group",
            "network",
            "ranges",
        ];
        let values = [
            json!(null),
            json!(-1),
            json!(1e300),
            json!(u64::MAX),
            json!(true),
            json!(""),
            json!("a".repeat(100_000)),
            json!("../../../../etc"),
            json!("\u{1b}[2J\u{0}\n"),
            json!([[[[[[[[[[[[]]]]]]]]]]]]),
            json!({}),
            json!({"type": "../../bin/sh"}),
            json!({"type": ""}),
            json!({"type": "podwire", "ranges": vec![json!([{"subnet": "10.1.0.0/24"}]); 500]}),
            json!({"portMappings": [{"hostPort": 70000, "containerPort": -1, "protocol": "xx"}]}),
            json!({"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp", "hostIP": "224.0.0.1"}]}),
            json!({"bandwidth": {"ingressRate": -5, "ingressBurst": u64::MAX}}),
            json!({"ips": ["999.1.1.1/99", "::/0"]}),
            json!({"mac": "ff:ff:ff:ff:ff:ff"}),
            json!("10.66.0.0/0"),
            json!("10.66.0.0/24,10.67.0.0/24"),
        ];
        for _ in 0..=self.random.below(2) {
            let key = self.random.pick(&keys);
            config[key] = values[self.random.below(values.len() as u64) as usize].clone();
        }
        config.to_string().into_bytes()
    }

    /// Mutates bytes outside of paths.
    fn with_hostile_bytes(&mut self, config: &Value) -> Vec<u8> {
        let mut bytes = config.to_string().into_bytes();
        for _ in 0..=self.random.below(4) {
            let at = self.random.below(bytes.len() as u64) as usize;
            match self.random.below(4) {
                0 => bytes[at] = self.random.below(256) as u8,
                1 => bytes.truncate(at + 1),
                2 => bytes.insert(at, self.random.below(256) as u8),
                _ => {
                    let snippet: &[u8] = self.random.pick(&[
                        &b"[[[["[..],
                        b"\"\\u0000\"",
                        b"1e999",
                        b"\xff\xfe",
                        b"}{",
                        b"\\ud800",
                        b",,",
                        b"/*",
                    ]);
                    bytes.splice(at..at, snippet.iter().copied());
                }
            }
        }
        let same = |key: &str| {
            serde_json::from_slice::<Value>(&bytes).is_ok_and(|mutated| mutated[key] == config[key])
        };
        let is_json = serde_json::from_slice::<Value>(&bytes).is_ok();
        if is_json && !PATHS.iter().all(|key| same(key)) {
            return b"{}".to_vec();
        }
        bytes
    }

    fn hostile_environment(&mut self, call: &mut Call) {
        match self.random.below(6) {
            0 => call.container = Some("../../../x".to_owned()),
            1 => call.ifname = Some("a/b c".to_owned()),
            2 => call.netns = Some("/etc/passwd".to_owned()),
            3 => call.args = Some("K8S_POD_NAME=\u{1b}]0;x\u{7};IP=0.0.0.0;;=;".to_owned()),
            4 => call.ifname = Some("x".repeat(5000)),
            _ => call.netns = None,
        }
    }

    fn reserved_subnet(&mut self) -> Result<()> {
        let subnet = self.random.pick(&RESERVED_SUBNETS);
        let mut config = self.config();
        config["subnet"] = json!(subnet);
        config["name"] = json!(format!("reserved{}", self.random.below(4)));
        let add = self.call(Verb::Add, config.to_string().as_bytes());
        let is_added = self.added(Attack::Subnets, &add);
        if is_added {
            self.soak.ledger.find("a reserved pod subnet was accepted", subnet);
        }
        self.deleted(Attack::Subnets, &Call { verb: Verb::Del, ..add }, is_added);
        Ok(())
    }

    /// IPAM delegation to the plugin itself or to a program of the caller.
    fn delegate(&mut self, attack: Attack, types: &[&'static str]) -> Result<()> {
        let mut config = self.config();
        config["ipam"] = json!({"type": self.random.pick(types)});
        let own_dir = self.site.plugin.path.parent().unwrap_or(Path::new("/"));
        let path = format!("{}:{}", self.traps.display(), own_dir.display());
        let call = |verb| Call {
            env: vec![("CNI_PATH".to_owned(), path.clone())],
            ..self.call(verb, config.to_string().as_bytes())
        };
        let is_added = self.added(attack, &call(Verb::Add));
        if is_added {
            self.soak.ledger.find(&format!("{attack:?}: ADD succeeded"), config["ipam"].to_string());
        }
        self.deleted(attack, &call(Verb::Del), is_added);
        if attack == Attack::CniPath && self.traps.join("ran").exists() {
            self.soak
                .ledger
                .find("the agent ran a program of the caller's CNI_PATH", config["ipam"].to_string());
            std::fs::remove_file(self.traps.join("ran")).context("cannot remove the marker file")?;
        }
        Ok(())
    }
}

/// Sends malformed requests to the sockets of all agents. Each must get a response or a close in time. The monitor checks that
/// the agent keeps running.
fn requests(soak: &Soak, site: &SoakSite) {
    let mut random = soak.random(520);
    let sockets = || -> Result<Vec<PathBuf>> {
        let cluster = site.cluster();
        let nodes = site.machines.iter().map(|machine| Ok(cluster.agent(machine.name)?.socket()));
        nodes.chain([Ok(site.hostile_agent().socket())]).collect()
    };
    let Ok(sockets) = sockets() else {
        soak.ledger.find("malformed requests cannot be sent", "no sockets");
        return;
    };
    let large = vec![b'x'; 2 << 20];
    while !soak.is_over() {
        soak.pause(&mut random, 50, 300);
        let socket = &sockets[random.below(sockets.len() as u64) as usize];
        let noise: Vec<u8> = (0..random.below(2000)).map(|_| random.below(256) as u8).collect();
        let head = |path: &str, length: u64| {
            format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n").into_bytes()
        };
        let bytes = match random.below(8) {
            0 => noise,
            1 => [head("/v1/cni", noise.len() as u64), noise].concat(),
            2 => [head("/v1/cni", large.len() as u64), large.clone()].concat(),
            3 => head("/v1/cni", u64::MAX),
            4 => format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(70_000)).into_bytes(),
            5 => format!("GET /v1/status HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(300_000)).into_bytes(),
            6 => [
                head("/v1/cni", 60),
                br#"{"request_id":"x","env":{"CNI_COMMAND":"\u0000"},"config":7}"#.to_vec(),
            ]
            .concat(),
            _ => b"GET /v1/attachments/..%2f..%2f\x1b[2J HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        };
        // A killed agent accepts no connection.
        if send(socket, &bytes).is_ok() {
            soak.ledger.count("malformed requests");
        }
    }
}

fn send(socket: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(READ_LIMIT))?;
    stream.set_read_timeout(Some(READ_LIMIT))?;
    // The agent may reject the request before it has read all of it.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = [0; 4096];
    let _ = stream.read(&mut answer);
    Ok(())
}
