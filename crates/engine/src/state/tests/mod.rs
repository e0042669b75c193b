use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use ipam::{Pools, RangeSpec};
use ipnet::IpNet;
use tempfile::TempDir;
use types::{AttachMode, AttachmentKey, NetworkName};

use super::*;

mod corruption;
mod kills;
mod lifecycle;
mod parallel;
mod properties;

/// 13 addresses of each family. The first address is the gateway.
const DUAL: &str = "10.0.0.0/28,fd00::/124";

/// A temporary state directory with one network.
struct TestState {
    dir: TempDir,
    network: NetworkState,
    pools: Pools,
}

impl TestState {
    fn new(subnets: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let network = open(dir.path());
        Self { dir, network, pools: pools(subnets) }
    }

    fn begin(&self, key: &AttachmentKey) -> Result<Begin, StateError> {
        begin(&self.network, key, Some(&self.pools), &[])
    }

    fn started(&self, key: &AttachmentKey) -> HeldAttachment {
        started(self.begin(key))
    }

    fn ready(&self, key: &AttachmentKey) -> HeldAttachment {
        let mut held = self.started(key);
        held.commit().unwrap();
        held
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.network.dir.join(inside)
    }

    fn names(&self, inside: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.path(inside)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Simulates a process that was killed in the critical section.
    fn mark(&self) {
        let lock = fs::File::options().write(true).open(self.path("lock")).unwrap();
        lock.write_at(b"1", 0).unwrap();
    }

    /// Every claim has a record, every record has its claims, and there are no other files.
    #[track_caller]
    fn expect_consistent(&self) {
        let mut owners = BTreeMap::new();
        for name in self.names("attachments") {
            assert!(!name.starts_with(".new-"), "unfinished record {name} was not removed");
            let stem = name.strip_suffix(".ready").or(name.strip_suffix(".pending")).unwrap().to_owned();
            assert!(!owners.values().any(|owner| *owner == stem), "{stem} has two records");
            owners.insert(self.inode("attachments", &name), stem);
        }
        for claim in self.names("addresses") {
            let inode = self.inode("addresses", &claim);
            assert!(owners.contains_key(&inode), "claim {claim} has no record");
        }
        for ListedRecord { stem, attachment, .. } in self.network.list().unwrap() {
            for ip in attachment.iter().flat_map(Attachment::ips) {
                let owner = owners.get(&self.inode("addresses", &ip.to_string()));
                assert_eq!(owner, Some(&stem), "{stem} lost {ip}");
            }
        }
    }

    /// 0 if the file does not exist.
    fn inode(&self, directory: &str, name: &str) -> u64 {
        fs::metadata(self.path(directory).join(name)).map_or(0, |meta| meta.ino())
    }

    #[track_caller]
    fn expect_empty(&self) {
        assert_eq!(self.names("attachments"), BTreeSet::new());
        assert_eq!(self.names("addresses"), BTreeSet::new());
    }

    /// Begins attachments until the pool is exhausted. Returns their number. They are pending and not locked.
    fn fill(&self, prefix: &str) -> usize {
        let mut count = 0;
        loop {
            match self.begin(&key(&format!("{prefix}{count}"))) {
                Ok(Begin::Started(_)) => count += 1,
                Ok(other) => panic!("{other:?}"),
                Err(StateError::Exhausted { .. }) => return count,
                Err(other) => panic!("{other}"),
            }
        }
    }
}

fn open(dir: &Path) -> NetworkState {
    let no_links = || Ok::<_, StateError>(Vec::new());
    NodeState::open(dir).unwrap().network(&network_name(), no_links).unwrap()
}

fn network_name() -> NetworkName {
    "blue".try_into().unwrap()
}

/// One set per subnet.
fn pools(subnets: &str) -> Pools {
    let spec = |subnet: &str| RangeSpec {
        subnet: subnet.parse().unwrap(),
        start: None,
        end: None,
        gateway: None,
        exclude: Vec::new(),
    };
    Pools::try_from(subnets.split(',').map(|subnet| vec![spec(subnet)]).collect::<Vec<_>>()).unwrap()
}

fn key(container: &str) -> AttachmentKey {
    AttachmentKey {
        network: network_name(),
        container: container.try_into().unwrap(),
        ifname: "eth0".try_into().unwrap(),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn begin(
    network: &NetworkState,
    key: &AttachmentKey,
    pools: Option<&Pools>,
    requested: &[(IpAddr, Option<u8>)],
) -> Result<Begin, StateError> {
    network.begin(
        &AllocationRequest {
            key,
            pools,
            requested,
            remove_conntrack: &|_, _| Ok(()),
            is_avoided: &|_| false,
        },
        |allocated| record(key, allocated),
    )
}

#[track_caller]
fn started(begun: Result<Begin, StateError>) -> HeldAttachment {
    match begun.unwrap() {
        Begin::Started(held) => *held,
        other => panic!("not started: {other:?}"),
    }
}

fn ips(held: &HeldAttachment) -> Vec<IpAddr> {
    held.attachment().unwrap().ips().collect()
}

fn record(key: &AttachmentKey, allocated: &[Allocation]) -> Attachment {
    let address = |a: &Allocation| PodAddress {
        address: IpNet::new(a.address, a.prefix_len).unwrap(),
        gateway: Some(a.gateway),
    };
    Attachment {
        schema: Addressing::Assigned.schema(),
        netns: "/run/netns/x".to_owned(),
        netns_cookie: Some(7),
        mode: AttachMode::Bridge,
        bridge: "pw0".try_into().unwrap(),
        host_link: key.host_link(0),
        host_mac: key.host_mac(),
        pod_mac: key.pod_mac(),
        mtu: 1500,
        addresses: allocated.iter().map(address).collect(),
        delegated: false,
        ipam_plugin: None,
        addressing: Addressing::Assigned,
        masquerade_outside: None,
        spoof_check: true,
        ports: Vec::new(),
        bandwidth: None,
        pod: None,
        placement: None,
        request: None,
        wiring: Wiring::default(),
        created: 0,
        key: key.clone(),
    }
}
