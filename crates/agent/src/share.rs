//! This node's share of the network: its blocks and the MTU of its pods. The cluster's side finds it out, the keeper and
//! requests work with it. It may be missing (no block yet) and it may change (another block was claimed).

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use engine::state::{State, StateError};
use ipam::{Range, RangeSet};
use ipnet::IpNet;
use netconf::{Addresses, NetConf};
use serde_json::{Map, Value, json};
use types::{Code, Finding, IfName, NetworkName};

use crate::board::Board;
use crate::conditions::Source;
use crate::waker::Waker;
use config::Network;

/// Complete and checked: what requests of our network get, and what the keeper keeps.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    /// In the order in which they were claimed.
    pub(crate) blocks: Vec<IpNet>,
    pub(crate) mtu: Option<u32>,
    /// In the words of a CNI config.
    pub(crate) values: Map<String, Value>,
    pub(crate) conf: NetConf,
}

impl Share {
    pub(crate) fn new(network: &Network, blocks: Vec<IpNet>, mtu: Option<u32>) -> Result<Self, cni::Error> {
        let mtu = network.mtu.or(mtu);
        let mut values = network.request_defaults();
        values.insert("subnet".to_owned(), json!(joined(&blocks)));
        // What stays inside the whole network is not masqueraded.
        values.insert("network".to_owned(), json!(joined(&network.subnets)));
        if let Some(mtu) = mtu {
            values.insert("mtu".to_owned(), json!(mtu));
        }
        let mut text = values.clone();
        text.insert("cniVersion".to_owned(), json!(cni::Version::LATEST.as_str()));
        text.insert("name".to_owned(), json!(network.name));
        text.insert("type".to_owned(), json!("podwire-cni"));
        let conf = NetConf::parse(&cni::Config::from_slice(Value::Object(text).to_string().as_bytes())?)?;
        Ok(Self { blocks, mtu, values, conf })
    }

    /// The first address of each block: what the bridge carries.
    pub(crate) fn gateways(&self) -> Vec<IpAddr> {
        self.sets().iter().flat_map(RangeSet::ranges).map(Range::gateway).collect()
    }

    /// How much there is of each family.
    pub(crate) fn rooms(&self) -> Vec<Room> {
        let blocks = |set: &RangeSet| set.ranges().iter().map(Range::subnet).collect();
        self.sets().iter().map(|set| Room { blocks: blocks(set), capacity: set.capacity() }).collect()
    }

    /// A block of the family that has the fewest addresses left.
    pub(crate) fn fullest(&self, run_dir: &Path, network: &NetworkName) -> Option<IpNet> {
        let state = State::open_existing(run_dir).ok().flatten()?;
        let network = state.existing_network(network)?;
        let free = |set: &&RangeSet| set.capacity().saturating_sub(network.in_use_of(set).unwrap_or(0));
        Some(self.sets().iter().min_by_key(free)?.ranges().first()?.subnet())
    }

    /// The condition of a node that has no address left in a family.
    fn exhausted(&self, run_dir: &Path, name: &NetworkName) -> Result<Option<Finding>, StateError> {
        let state = State::open_existing(run_dir)?;
        let Some(network) = state.and_then(|state| state.existing_network(name)) else { return Ok(None) };
        let claimed = network.claimed()?;
        let full = self.rooms().into_iter().find(|room| {
            let used = claimed.iter().filter(|ip| room.has(**ip)).count() as u64;
            used >= room.capacity
        });
        Ok(full.map(|room| {
            let message = format!("all {} addresses of {} are in use", room.capacity, joined(&room.blocks));
            Finding::new(Code::AddressesExhausted, format_args!("network {name}"), message)
        }))
    }

    /// Does a pod have an address of it? What cannot be read may be one.
    pub(crate) fn is_used(&self, run_dir: &Path, network: &NetworkName) -> bool {
        let Ok(state) = State::open_existing(run_dir) else { return true };
        let Some(network) = state.and_then(|state| state.existing_network(network)) else { return false };
        self.sets().iter().any(|set| network.in_use_of(set).map_or(true, |count| count > 0))
    }

    fn sets(&self) -> &[RangeSet] {
        match &self.conf.addresses {
            Addresses::Own(pools) => pools.sets(),
            Addresses::Delegated(_) | Addresses::Absent => &[],
        }
    }
}

/// The blocks of one family.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// At least one.
    pub(crate) blocks: Vec<IpNet>,
    /// Addresses for pods.
    pub(crate) capacity: u64,
}

impl Room {
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        self.blocks.iter().any(|block| block.contains(&ip))
    }
}

/// The condition of records that cannot be read for an answer.
pub(crate) fn records_unreadable(run_dir: &Path, error: &StateError) -> Finding {
    let object = format!("directory {}", run_dir.display());
    Finding::new(Code::RunDirUnusable, object, format_args!("records cannot be read: {error}")).degraded()
}

fn joined(nets: &[IpNet]) -> String {
    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Why this node has no share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoBlock(pub(crate) String);

impl NoBlock {
    pub(crate) fn finding(&self, network: &NetworkName) -> Finding {
        Finding::new(Code::BlockMissing, format_args!("network {network}"), self)
    }
}

/// The slot in which membership puts this node's share. Everything else reads it.
#[derive(Debug)]
pub(crate) struct Shares {
    current: RwLock<Current>,
    /// Threads that are woken when it changes.
    readers: Vec<Waker>,
    /// What pods may send without the firewall having to know.
    room: AtomicU32,
    /// Held while addresses are counted and reported, so that no earlier count replaces a later one.
    reporting: Mutex<()>,
}

#[derive(Debug)]
struct Current {
    /// The share there is now, or why there is none.
    share: Result<Arc<Share>, NoBlock>,
    /// The last one there was.
    last: Option<Arc<Share>>,
    /// Counts the changes.
    version: u64,
}

/// A tunnel device that leads to other nodes, and how much fits through it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TunnelSize {
    pub(crate) name: IfName,
    pub(crate) mtu: u32,
}

impl Shares {
    pub(crate) fn none(reason: impl Into<String>, readers: Vec<Waker>) -> Self {
        let current = Current { share: Err(NoBlock(reason.into())), last: None, version: 0 };
        let current = RwLock::new(current);
        Self { current, readers, room: AtomicU32::new(u32::MAX), reporting: Mutex::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Result<Arc<Share>, NoBlock> {
        self.read().share.clone()
    }

    /// The last share there was, also if it was withdrawn.
    pub(crate) fn last(&self) -> Option<Arc<Share>> {
        self.read().last.clone()
    }

    /// Another number means that the share changed, or the reason why there is none.
    pub(crate) fn version(&self) -> u64 {
        self.read().version
    }

    /// Changes it if there is a change, and wakes all readers.
    fn change(&self, change: impl FnOnce(&mut Current) -> bool) -> bool {
        let is_changed = {
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            let is_changed = change(&mut current);
            current.version += u64::from(is_changed);
            is_changed
        };
        if is_changed {
            self.readers.iter().for_each(Waker::wake);
        }
        is_changed
    }

    /// Reports whether the node has a block. The lock is held meanwhile: a block that is withdrawn now is reported later.
    pub(crate) fn report_block(&self, board: &Board, network: &NetworkName) {
        let current = self.read();
        let missing = current.share.as_ref().err().map(|none| none.finding(network));
        board.set(Source::Block, missing.into_iter().collect());
    }

    /// Whether the node has addresses left, and records that cannot be read for that.
    pub(crate) fn address_findings(&self, run_dir: &Path, name: &NetworkName) -> Vec<(Source, Vec<Finding>)> {
        let exhausted = self.get().map_or(Ok(None), |share| share.exhausted(run_dir, name));
        let unreadable = exhausted.as_ref().err().map(|error| records_unreadable(run_dir, error));
        let exhausted = exhausted.ok().flatten();
        vec![
            (Source::Records, unreadable.into_iter().collect()),
            (Source::Addresses, exhausted.into_iter().collect()),
        ]
    }

    pub(crate) fn report_addresses(&self, board: &Board, run_dir: &Path, name: &NetworkName) {
        let _reporting = self.reporting.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, findings) in self.address_findings(run_dir, name) {
            board.set(source, findings);
        }
    }

    pub(crate) fn set(&self, share: Arc<Share>) {
        self.change(|current| {
            (current.share, current.last) = (Ok(Arc::clone(&share)), Some(share));
            true
        });
    }

    /// There is none any more. Was there one?
    pub(crate) fn withdraw(&self, reason: impl Into<String>) -> bool {
        self.change(|current| {
            let was_there = current.share.is_ok();
            if was_there {
                current.share = Err(NoBlock(reason.into()));
            }
            was_there
        })
    }

    /// Says why there is none yet; a share that is there stays.
    pub(crate) fn explain(&self, reason: impl Into<String>) {
        let reason = NoBlock(reason.into());
        self.change(|current| {
            let is_other = current.share.as_ref().is_err_and(|before| *before != reason);
            if is_other {
                current.share = Err(reason);
            }
            is_other
        });
    }

    /// Is a pod's link of this size a reason for the keeper to look?
    pub(crate) fn is_too_large(&self, mtu: u32) -> bool {
        mtu > self.room.load(Ordering::SeqCst)
    }

    /// Is it less than before? Somebody may have got more in the meantime.
    pub(crate) fn set_room(&self, mtu: u32) -> bool {
        mtu < self.room.swap(mtu, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        Network {
            name: "podwire".try_into().unwrap(),
            mode: types::AttachMode::Routed,
            bridge: "pw0".try_into().unwrap(),
            subnets: vec!["10.9.0.0/24".parse().unwrap(), "fd00:9::/64".parse().unwrap()],
            mtu: None,
            connections_per_pod: None,
            masquerade: true,
        }
    }

    #[test]
    fn each_change_of_the_share_has_another_version_and_a_withdrawn_share_stays_known() {
        let (network, shares) = (network(), Shares::none("not yet", Vec::new()));
        let mut versions = vec![shares.version()];
        shares.explain("not yet");
        assert_eq!(shares.version(), versions[0], "nothing changed");
        shares.explain("etcd is asked");
        versions.push(shares.version());
        assert!(shares.last().is_none());
        shares.set(Arc::new(Share::new(&network, network.subnets.clone(), None).unwrap()));
        versions.push(shares.version());
        shares.explain("a share that is there stays");
        assert!(shares.withdraw("another node has it") && !shares.withdraw("again"));
        versions.push(shares.version());
        assert_eq!(versions, [0, 1, 2, 3]);
        assert!(shares.get().is_err_and(|why| why.0 == "another node has it"));
        assert_eq!(shares.last().unwrap().blocks, network.subnets);
    }

    #[test]
    fn a1_a_round_that_ends_meanwhile_does_not_hide_that_the_block_was_withdrawn() {
        let network = network();
        for _ in 0..1000 {
            let (board, shares) = (Board::new(), Shares::none("not yet", Vec::new()));
            shares.set(Arc::new(Share::new(&network, network.subnets.clone(), None).unwrap()));
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    both.wait();
                    shares.report_block(&board, &network.name);
                });
                both.wait();
                shares.withdraw("another node has it");
                shares.report_block(&board, &network.name);
            });
            assert!(board.has(Code::BlockMissing));
        }
    }
}
