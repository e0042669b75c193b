//! The blocks that this node owns, and how many of their addresses are in use. Membership sets the allocation. The reconciler
//! and requests use it. It can be absent (no block yet) and can change (another block was claimed).

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use engine::state::{NodeState, StateError};
use ipam::{Range, RangeSet};
use ipnet::IpNet;
use netconf::{Network, NodeAllocation, comma_separated};
use types::{Code, Finding, IfName, NetworkName, NetworkRef};

use crate::agent_status::AgentStatus;
use crate::conditions::Source;
use crate::waker::Waker;

/// The blocks of a network and the records of the pods that use them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockUsage<'a> {
    pub(crate) network: &'a Network,
    pub(crate) name: &'a NetworkName,
    pub(crate) run_dir: &'a Path,
}

impl BlockUsage<'_> {
    /// The first block of the family with the fewest free addresses.
    pub(crate) fn fullest(self) -> Option<IpNet> {
        let state = NodeState::open_existing(self.run_dir).ok().flatten()?;
        let records = state.existing_network(self.name)?;
        let free = |set: &&RangeSet| set.capacity().saturating_sub(records.in_use_of(set).unwrap_or(0));
        Some(self.network.ranges().iter().min_by_key(free)?.ranges().first()?.subnet())
    }

    /// The condition of a node without a free address in a family.
    fn exhausted(self) -> Result<Option<Finding>, StateError> {
        let name = self.name;
        let state = NodeState::open_existing(self.run_dir)?;
        let Some(records) = state.and_then(|state| state.existing_network(name)) else { return Ok(None) };
        let claimed = records.claimed()?;
        let full = family_blocks(self.network).find(|family| {
            let used = claimed.iter().filter(|ip| family.has(**ip)).count() as u64;
            used >= family.capacity
        });
        Ok(full.map(|family| {
            let blocks = comma_separated(&family.blocks);
            let message = format!("all {} addresses of {blocks} are in use", family.capacity);
            Finding::new(Code::AddressesExhausted, format_args!("network {name}"), message)
        }))
    }

    /// Whether a pod uses an address of the blocks. True if the records cannot be read.
    pub(crate) fn is_used(self) -> bool {
        let Ok(state) = NodeState::open_existing(self.run_dir) else { return true };
        let Some(records) = state.and_then(|state| state.existing_network(self.name)) else { return false };
        self.network.ranges().iter().any(|set| records.in_use_of(set).map_or(true, |count| count > 0))
    }
}

/// The blocks of a network, by family.
pub(crate) fn family_blocks(network: &Network) -> impl Iterator<Item = FamilyBlocks> {
    let blocks = |set: &RangeSet| set.ranges().iter().map(Range::subnet).collect();
    network.ranges().iter().map(move |set| FamilyBlocks { blocks: blocks(set), capacity: set.capacity() })
}

/// The blocks of one family.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FamilyBlocks {
    /// At least one.
    pub(crate) blocks: Vec<IpNet>,
    /// Addresses for pods.
    pub(crate) capacity: u64,
}

impl FamilyBlocks {
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        self.blocks.iter().any(|block| block.contains(&ip))
    }
}

/// The condition of records that cannot be read.
pub(crate) fn records_unreadable(run_dir: &Path, error: &StateError) -> Finding {
    let object = format!("directory {}", run_dir.display());
    Finding::new(Code::RunDirUnusable, object, format_args!("records cannot be read: {}", error.with_cause()))
        .degraded()
}

/// Why this node owns no block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoBlock(pub(crate) String);

impl NoBlock {
    pub(crate) fn finding(&self, network: &NetworkName) -> Finding {
        Finding::new(Code::BlockMissing, format_args!("network {network}"), self)
    }
}

/// Holds this node's allocation. Membership sets it; the other components read it.
#[derive(Debug)]
pub(crate) struct NodeAllocations {
    current: RwLock<Current>,
    /// Threads that are woken when the allocation changes.
    readers: Vec<Waker>,
    /// The largest pod MTU that needs no clamping by the firewall.
    largest_mtu: AtomicU32,
    /// Held while addresses are counted and reported, so that an earlier count cannot replace a later one.
    reporting: Mutex<()>,
}

#[derive(Debug)]
struct Current {
    /// The blocks that this node owns. An allocation needs one of each subnet.
    blocks: Vec<IpNet>,
    /// The allocation in force, or why there is none.
    allocation: Result<Arc<NodeAllocation>, NoBlock>,
    /// Incremented by each change.
    version: u64,
}

/// A tunnel device to peers, and its MTU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TunnelSize {
    pub(crate) name: IfName,
    pub(crate) mtu: u32,
}

impl NodeAllocations {
    pub(crate) fn none(reason: impl Into<String>, readers: Vec<Waker>) -> Self {
        let current = Current { blocks: Vec::new(), allocation: Err(NoBlock(reason.into())), version: 0 };
        let current = RwLock::new(current);
        Self { current, readers, largest_mtu: AtomicU32::new(u32::MAX), reporting: Mutex::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Result<Arc<NodeAllocation>, NoBlock> {
        self.read().allocation.clone()
    }

    pub(crate) fn default_network(&self) -> Result<Arc<Network>, NoBlock> {
        let network = self.get()?.default_network().cloned();
        network.ok_or_else(|| NoBlock("this node has no block of the default network".to_owned()))
    }

    /// A network of which this node has blocks.
    pub(crate) fn network(&self, network: &NetworkRef) -> Result<Arc<Network>, NoBlock> {
        let none = || NoBlock(format!("this node has no block of network {network}"));
        self.get()?.ready(network).cloned().ok_or_else(none)
    }

    /// The blocks of all networks that this node owns, also if it has no allocation because it lacks a block of a subnet.
    pub(crate) fn blocks(&self) -> Vec<IpNet> {
        self.read().blocks.clone()
    }

    /// Another number means that the blocks, the allocation or the reason for its absence changed.
    pub(crate) fn version(&self) -> u64 {
        self.read().version
    }

    /// Applies `change`, and wakes all readers if it returns true.
    fn change(&self, change: impl FnOnce(&mut Current) -> bool) {
        let is_changed = {
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            let is_changed = change(&mut current);
            current.version += u64::from(is_changed);
            is_changed
        };
        if is_changed {
            self.readers.iter().for_each(Waker::wake);
        }
    }

    /// Reports whether the node has a block. Holds the lock meanwhile, so that a concurrent withdrawal is reported afterwards.
    pub(crate) fn report_block(&self, agent_status: &AgentStatus, network: &NetworkName) {
        let current = self.read();
        let missing = current.allocation.as_ref().err().map(|none| none.finding(network));
        agent_status.set(Source::Block, missing.into_iter().collect());
    }

    /// Findings about exhausted addresses and unreadable records.
    pub(crate) fn address_findings(&self, run_dir: &Path, name: &NetworkName) -> Vec<(Source, Vec<Finding>)> {
        let usage = |network: &Network| BlockUsage { network, name, run_dir }.exhausted();
        let exhausted = self.default_network().map_or(Ok(None), |network| usage(&network));
        let unreadable = exhausted.as_ref().err().map(|error| records_unreadable(run_dir, error));
        let exhausted = exhausted.ok().flatten();
        vec![
            (Source::Records, unreadable.into_iter().collect()),
            (Source::Addresses, exhausted.into_iter().collect()),
        ]
    }

    pub(crate) fn report_addresses(&self, agent_status: &AgentStatus, run_dir: &Path, name: &NetworkName) {
        let _reporting = self.reporting.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, findings) in self.address_findings(run_dir, name) {
            agent_status.set(source, findings);
        }
    }

    /// Sets the blocks that this node owns together with its allocation, so that readers see one change. Returns whether an
    /// allocation was withdrawn. If there was none before, the earlier reason stays.
    pub(crate) fn set(&self, blocks: Vec<IpNet>, allocation: Result<NodeAllocation, NoBlock>) -> bool {
        let mut is_withdrawn = false;
        self.change(|current| {
            is_withdrawn = allocation.is_err() && current.allocation.is_ok();
            let replaces_allocation = is_withdrawn || allocation.is_ok();
            let is_changed = replaces_allocation || current.blocks != blocks;
            current.blocks = blocks;
            if replaces_allocation {
                current.allocation = allocation.map(Arc::new);
            }
            is_changed
        });
        is_withdrawn
    }

    /// Sets the reason why the node has no block yet. Does not replace an allocation.
    pub(crate) fn explain(&self, reason: impl Into<String>) {
        let reason = NoBlock(reason.into());
        self.change(|current| {
            let differs = current.allocation.as_ref().is_err_and(|before| *before != reason);
            if differs {
                current.allocation = Err(reason);
            }
            differs
        });
    }

    /// Whether a pod link of this MTU needs clamping, so that the reconciler has to update the firewall.
    pub(crate) fn is_too_large(&self, mtu: u32) -> bool {
        mtu > self.largest_mtu.load(Ordering::SeqCst)
    }

    /// Returns whether the value decreased. A pod may have got a larger MTU in the meantime.
    pub(crate) fn set_largest_mtu(&self, mtu: u32) -> bool {
        mtu < self.largest_mtu.swap(mtu, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use netconf::NetworkSettings;

    use super::*;

    fn settings() -> NetworkSettings {
        NetworkSettings {
            name: "podwire".try_into().unwrap(),
            mode: types::AttachMode::Routed,
            bridge: "pw0".try_into().unwrap(),
            subnets: vec!["10.9.0.0/24".parse().unwrap(), "fd00:9::/64".parse().unwrap()],
            mtu: None,
            connections_per_pod: None,
            masquerade: true,
        }
    }

    fn whole() -> NodeAllocation {
        NodeAllocation::of_default(Arc::new(Network::whole(&settings()).unwrap()))
    }

    #[test]
    fn each_change_of_the_allocation_increments_the_version() {
        let allocations = NodeAllocations::none("not yet", Vec::new());
        let mut versions = vec![allocations.version()];
        allocations.explain("not yet");
        assert_eq!(allocations.version(), versions[0], "nothing changed");
        allocations.explain("waiting for etcd");
        versions.push(allocations.version());
        assert!(!allocations.set(settings().subnets, Ok(whole())));
        versions.push(allocations.version());
        assert_eq!(allocations.blocks(), settings().subnets, "one change sets blocks and allocation");
        allocations.explain("must not replace an allocation");
        assert_eq!(allocations.default_network().unwrap().blocks(), settings().subnets);
        let withdraw = |reason: &str| allocations.set(Vec::new(), Err(NoBlock(reason.to_owned())));
        assert!(withdraw("another node owns it") && !withdraw("second withdrawal"));
        versions.push(allocations.version());
        assert_eq!(versions, [0, 1, 2, 3]);
        assert_eq!(allocations.blocks(), []);
        assert!(allocations.get().is_err_and(|none| none.0 == "another node owns it"));
    }

    #[test]
    fn a1_a_concurrent_report_does_not_hide_a_withdrawn_block() {
        let network = settings().name;
        for _ in 0..1000 {
            let (agent_status, allocations) =
                (AgentStatus::new(), NodeAllocations::none("not yet", Vec::new()));
            allocations.set(settings().subnets, Ok(whole()));
            let both = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    both.wait();
                    allocations.report_block(&agent_status, &network);
                });
                both.wait();
                allocations.set(Vec::new(), Err(NoBlock("another node owns it".to_owned())));
                allocations.report_block(&agent_status, &network);
            });
            assert!(agent_status.has(Code::BlockMissing));
        }
    }
}
