//! Hostile records in the store. They are written, kept briefly and removed. None may redirect a node's packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use model::{BlockClaim, KeyLayout, NodeRecord, Object as _};
use serde_json::{Value, json};
use store::{Change, EtcdConfig, Store, StoreConfig};
use testkit::{Ns, Random, inspect};
use tokio::runtime::Runtime;
use types::NetworkRef;

use crate::Soak;
use crate::options::Attack;
use crate::site::{EXTERNAL_HOST, SoakNode, SoakSite};

/// The agents' default.
const PREFIX: &str = "/podwire";
const DEADLINE: Duration = Duration::from_secs(2);
const RECHECK: Duration = Duration::from_millis(300);
/// The nodes that hostile records and claims are about.
const NAMES: [&str; 4] = ["a-thief", "zz-thief", "n1x", "n2-twin"];
const POD_NETWORKS: [&str; 2] = ["10.42.0.0/16", "fd42::/64"];

pub(crate) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    soak: &'scope Soak,
    site: &'scope SoakSite,
) -> Result<()> {
    let attacks: Vec<Attack> =
        [Attack::Records, Attack::UnreadableRecords].into_iter().filter(|attack| soak.has(*attack)).collect();
    if attacks.is_empty() {
        return Ok(());
    }
    let desk = Desk::open(site)?;
    let known = desk.nodes()?;
    scope.spawn(move || {
        let mut random = soak.random(600);
        while !soak.is_over() {
            soak.pause(&mut random, 300, 1500);
            let attack = random.pick(&attacks);
            let keys = match attack {
                Attack::Records => hostile(&known, &mut random),
                _ => unreadable(&mut random),
            };
            let names: Vec<String> = keys.iter().map(|(key, _)| key.clone()).collect();
            // etcd is stopped from time to time.
            if desk.put(keys).is_err() {
                soak.ledger.count("hostile records not written: etcd is unreachable");
                continue;
            }
            soak.ledger.count(&format!("hostile records: {attack:?}"));
            soak.pause(&mut random, 500, 2500);
            for machine in &site.machines {
                match hijacked_for_long(machine, &known) {
                    Ok(found) => found.into_iter().for_each(|text| {
                        soak.ledger.find(
                            "a record redirected packets",
                            format!("{text}; records: {}", names.join(", ")),
                        );
                    }),
                    Err(error) => soak.ledger.find("routes cannot be read", format!("{error:#}")),
                }
            }
            // Otherwise they are removed at the end.
            let _ = desk.delete(&names);
        }
    });
    Ok(())
}

/// Removes all hostile keys. The remaining keys must belong to the nodes.
pub(crate) fn audit(soak: &Soak, site: &SoakSite) -> Result<()> {
    let desk = Desk::open(site)?;
    let names: BTreeSet<&str> = site.machines.iter().map(|machine| machine.name).collect();
    let keys = desk.keys()?;
    let layout = KeyLayout::new(PREFIX, None);
    let nodes = keys.iter().filter(|key| key.starts_with(&layout.nodes()));
    let strays = nodes.filter(|key| !names.contains(&key[layout.nodes().len()..]));
    desk.delete(&strays.cloned().collect::<Vec<_>>())?;
    let records = desk.nodes()?;
    let owned: BTreeSet<String> = records
        .values()
        .flat_map(|record| record.blocks.iter())
        .map(|block| layout.default_block(block))
        .collect();
    let claims: Vec<String> = desk
        .keys()?
        .into_iter()
        .filter(|key| key.starts_with(&layout.network_blocks(&NetworkRef::default())))
        .collect();
    for key in claims.iter().filter(|key| !owned.contains(*key)) {
        // Hostile keys that could not be removed while etcd was unreachable.
        let claim = BlockClaim::decode(desk.value(key)?.as_bytes());
        if claim.is_ok_and(|claim| !NAMES.contains(&claim.node.as_str())) {
            soak.ledger.find("a claim without a record", key.clone());
        }
        desk.delete(std::slice::from_ref(key))?;
    }
    for key in owned.iter().filter(|key| !claims.contains(key)) {
        soak.ledger.find("a block without a claim", key.clone());
    }
    for name in names.iter().filter(|name| !records.contains_key(**name)) {
        soak.ledger.find("a node without a record", (*name).to_owned());
    }
    Ok(())
}

/// Writes to the store from inside the underlay.
struct Desk {
    ns: Ns,
    runtime: Runtime,
    store: Store,
}

impl Desk {
    fn open(site: &SoakSite) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot create a runtime")?;
        let store = {
            let _inside = runtime.enter();
            let config = EtcdConfig { endpoints: site.endpoints.clone(), ..EtcdConfig::default() };
            Store::open(&StoreConfig::Etcd(config))?.with_deadline(DEADLINE)
        };
        Ok(Self { ns: site.underlay.clone(), runtime, store })
    }

    fn put(&self, keys: Vec<(String, Vec<u8>)>) -> Result<()> {
        let put = |(key, value)| Change::Put { key, value, lease: None };
        let changes: Vec<Change> = keys.into_iter().map(put).collect();
        self.ns.enter(|| self.runtime.block_on(self.store.commit(&[], &changes)))??;
        Ok(())
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let changes: Vec<Change> = keys.iter().cloned().map(Change::Delete).collect();
        self.ns.enter(|| self.runtime.block_on(self.store.commit(&[], &changes)))??;
        Ok(())
    }

    fn keys(&self) -> Result<Vec<String>> {
        Ok(self.ns.enter(|| self.runtime.block_on(self.store.keys(&format!("{PREFIX}/"))))??)
    }

    fn value(&self, key: &str) -> Result<String> {
        let entry = self.ns.enter(|| self.runtime.block_on(self.store.get(key)))??;
        Ok(entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()).unwrap_or_default())
    }

    /// The records that can be read.
    fn nodes(&self) -> Result<BTreeMap<String, NodeRecord>> {
        let layout = KeyLayout::new(PREFIX, None);
        let listing = self.ns.enter(|| self.runtime.block_on(self.store.list(&layout.nodes())))??;
        let read = listing.entries.iter().filter_map(|entry| layout.node_at(&entry.key, &entry.value));
        Ok(read.filter_map(|(name, record)| Some((name.to_string(), record.ok()?))).collect())
    }
}

/// A record with blocks, MACs or addresses of another node, and its claims.
fn hostile(known: &BTreeMap<String, NodeRecord>, random: &mut Random) -> Vec<(String, Vec<u8>)> {
    let layout = KeyLayout::new(PREFIX, None);
    let records: Vec<&NodeRecord> = known.values().collect();
    let other = records[random.below(records.len() as u64) as usize];
    // A name that sorts first is processed first.
    let name = if random.coin() { NAMES[0] } else { random.pick(&NAMES) };
    // Unused blocks at the end of the network.
    let number = 200 + random.below(40);
    let free = [format!("10.42.{number}.0/24"), format!("fd42:0:0:0:{number:x}00::/72")];
    let stolen: Vec<String> = other.blocks.iter().map(ToString::to_string).collect();
    let single: Vec<String> =
        other.blocks.iter().map(|block| IpNet::from(late_host(block)).to_string()).collect();
    let mut addresses = vec![json!(EXTERNAL_HOST[0]), json!(EXTERNAL_HOST[1])];
    let mut mac = json!("02:ba:d0:00:00:02");
    let (mut blocks, mut is_claimed) = (json!(free), false);
    match random.below(10) {
        0..=2 => blocks = json!(stolen),
        3 => blocks = json!(single),
        4 => (blocks, is_claimed) = (json!(single), true),
        5 => (mac, is_claimed) = (json!(other.tunnel_mac), true),
        6 => (addresses, is_claimed) = (other.addresses.iter().map(|ip| json!(ip)).collect(), true),
        7 => {
            let odd = [
                "::ffff:10.199.1.1",
                "10.42.0.7",
                "fd42::7",
                "0.0.0.0",
                "127.0.0.1",
                "224.0.0.1",
                "255.255.255.255",
                "::",
                "ff02::1",
            ];
            (addresses, is_claimed) = (vec![json!(random.pick(&odd))], true);
        }
        8 => blocks = json!(["10.199.1.0/24", "8.8.8.0/24", "0.0.0.0/0", "::/0", "fd99:1::/64"]),
        _ => blocks = (0..3000u32).map(|n| json!(format!("10.42.{}.{}/32", n / 256, n % 256))).collect(),
    }
    let record = json!({"schema": 1, "node": {
        "name": name, "uid": "0b".repeat(16), "addresses": addresses, "blocks": blocks,
        "tunnel_mac": mac, "version": "0.1.0"}});
    let mut keys = vec![(format!("{}{name}", layout.nodes()), record.to_string().into_bytes())];
    if is_claimed {
        let claim = json!({"schema": 1, "claim": {"node": name}}).to_string().into_bytes();
        let claimed = blocks.as_array().into_iter().flatten().filter_map(Value::as_str);
        let claimed = claimed.filter_map(|block| block.parse::<IpNet>().ok());
        keys.extend(claimed.map(|block| (layout.default_block(&block), claim.clone())));
    }
    keys
}

fn unreadable(random: &mut Random) -> Vec<(String, Vec<u8>)> {
    let layout = KeyLayout::new(PREFIX, None);
    let name = random.pick(&NAMES);
    let values = [
        b"{".to_vec(),
        Vec::new(),
        vec![0xff; 64],
        json!({"schema": 99, "node": {"name": name}}).to_string().into_bytes(),
        json!({"schema": 1, "node": {"name": "other"}}).to_string().into_bytes(),
        json!({"schema": 1, "node": {"name": "\u{1b}[2J"}}).to_string().into_bytes(),
        vec![b'['; 100_000],
        json!({"schema": 1, "node": {"name": name, "version": "x".repeat(200_000)}}).to_string().into_bytes(),
    ];
    let value = values[random.below(values.len() as u64) as usize].clone();
    let key = match random.below(4) {
        0 => {
            format!("{}10.42.{}.0-24", layout.network_blocks(&NetworkRef::default()), 240 + random.below(10))
        }
        1 => format!("{}{name}", layout.alives()),
        2 => format!("{}\u{1b}[31m", layout.nodes()),
        _ => format!("{}{name}", layout.nodes()),
    };
    vec![(key, value)]
}

/// An address of a block that is allocated late.
fn late_host(block: &IpNet) -> IpAddr {
    match block {
        IpNet::V4(net) => IpAddr::V4((net.network().to_bits() | 0xc8).into()),
        IpNet::V6(net) => IpAddr::V6((net.network().to_bits() | 0xc8).into()),
    }
}

/// Wrong routes that persist. Routes and tunnels are continuously deleted and repaired.
fn hijacked_for_long(machine: &SoakNode, known: &BTreeMap<String, NodeRecord>) -> Result<Vec<String>> {
    let first = hijacked(machine, known)?;
    if first.is_empty() {
        return Ok(first);
    }
    std::thread::sleep(RECHECK);
    let second = hijacked(machine, known)?;
    Ok(first.into_iter().filter(|text| second.contains(text)).collect())
}

/// A node's routes to another node's pods through a wrong host, or to addresses outside the pod network.
fn hijacked(machine: &SoakNode, known: &BTreeMap<String, NodeRecord>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let networks: Vec<IpNet> = POD_NETWORKS.iter().filter_map(|net| net.parse().ok()).collect();
    let neighbours = inspect::neighbours(&machine.node)?;
    let forwarding = forwarding(&machine.node)?;
    for family in [inspect::Family::V4, inspect::Family::V6] {
        for route in inspect::routes(&machine.node, family)? {
            if route.protocol.as_deref() != Some("113") {
                continue;
            }
            let dst =
                route.dst.parse::<IpNet>().ok().or_else(|| route.dst.parse::<IpAddr>().ok().map(IpNet::from));
            let Some(dst) = dst.filter(|dst| networks.iter().any(|net| net.contains(dst))) else {
                found.push(format!("{}: a route to {}", machine.name, route.dst));
                continue;
            };
            let owner = known.values().find(|record| record.blocks.iter().any(|block| block.contains(&dst)));
            let (Some(owner), Some(gateway)) = (owner, route.gateway) else { continue };
            if owner.addresses.contains(&gateway) {
                continue;
            }
            // Through the tunnel: the neighbour's MAC selects the remote host.
            let dev = route.dev.as_deref().unwrap_or_default();
            let mac =
                neighbours.iter().find(|n| n.dst == gateway && n.dev == dev).and_then(|n| n.mac.clone());
            let remote = mac.as_ref().and_then(|mac| forwarding.get(&(dev.to_owned(), mac.clone())));
            match remote {
                Some(remote) if owner.addresses.contains(remote) => {}
                // The entry is being created or repaired.
                None if dev.starts_with("pwvx") => {}
                _ => found.push(format!(
                    "{}: {} of {} goes to {gateway} on {dev}, {remote:?}",
                    machine.name, route.dst, owner.name
                )),
            }
        }
    }
    Ok(found)
}

/// Remote addresses of tunnel devices by device and MAC.
fn forwarding(node: &Ns) -> Result<BTreeMap<(String, String), IpAddr>> {
    let entries = node.json(&["bridge", "-j", "fdb", "show"])?;
    let entry = |entry: &Value| {
        let text = |key: &str| entry[key].as_str().map(str::to_owned);
        Some(((text("ifname")?, text("mac")?), text("dst")?.parse().ok()?))
    };
    Ok(entries.as_array().into_iter().flatten().filter_map(entry).collect())
}
