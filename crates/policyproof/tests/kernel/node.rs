//! The engine, the table of policies and the groups of links of one node, changed in the order of the agent.

use nft::desired::Table;
use nft::desired::policy::{MarkBit, OwnNode, PolicyOptions, PolicySizes, table};
use nft::{Firewall, Surplus};
use policy::{Delta, PodUid, PolicyElement, PolicyEngine, ProfileId, WorldChange};
use policyproof::compare::PodProfiles;

use crate::common;

const FORBIDDEN_BIT: u8 = 28;
/// High enough that no denied packet of a test is missing in the log.
const LOGS_PER_SECOND: u32 = 100_000;

/// All calls are made in the network namespace of the node.
pub(crate) struct Node {
    pub(crate) engine: PolicyEngine,
    firewall: Firewall,
    own_node: OwnNode,
    sizes: PolicySizes,
    /// The groups of links, as the steps of the deltas set them.
    pub(crate) profiles: PodProfiles,
}

impl Node {
    /// Loads the results of the engine into a new table.
    pub(crate) fn new(engine: PolicyEngine) -> Self {
        let mut node = Self {
            profiles: common::profiles(&engine),
            engine,
            firewall: Firewall::open().unwrap(),
            own_node: OwnNode::Accepted,
            sizes: PolicySizes::default(),
        };
        node.keep(&[]);
        node
    }

    /// Compiles the changes and applies the delta. `set_groups` sets the groups of links, between the transactions.
    pub(crate) fn apply(
        &mut self,
        changes: Vec<WorldChange>,
        set_groups: impl FnOnce(&[(PodUid, ProfileId)]),
    ) {
        let Delta { replaced, set, profiles, removed } = self.engine.apply(changes);
        // Rules change if flows to the own node must be judged from now on. A map can become full.
        let is_unjudged = self.own_node != OwnNode::Judged && self.engine.judges_own_node();
        if is_unjudged || self.firewall.apply_policy(&replaced, &set).is_err() {
            self.keep(&removed);
        }
        set_groups(&profiles);
        self.profiles.extend(profiles);
        self.firewall.remove_policy(&removed).unwrap();
        let engine = &self.engine;
        self.profiles.retain(|uid, _| engine.profile(uid).is_some());
    }

    /// Applies the whole table, with the elements that are still removed later.
    fn keep(&mut self, removed: &[PolicyElement]) {
        let wanted: Vec<PolicyElement> = self.engine.elements().chain(removed.iter().copied()).collect();
        self.sizes = self.sizes.raised_for(&wanted);
        if self.engine.judges_own_node() {
            self.own_node = OwnNode::Judged;
        }
        let table = self.table();
        self.firewall.reconcile_policies(&table, &wanted, Surplus::Remove).unwrap();
    }

    /// Stops judging flows to the own node if no rule needs it. A change of rules is slow, so deltas do not do this.
    pub(crate) fn relax(&mut self) {
        self.own_node = OwnNode::Accepted;
        self.keep(&[]);
    }

    pub(crate) fn table(&self) -> Table {
        table(&PolicyOptions {
            forbidden: MarkBit::new(FORBIDDEN_BIT).unwrap(),
            own_node: self.own_node,
            logs_per_second: Some(LOGS_PER_SECOND),
            sizes: self.sizes,
        })
    }

    /// What a repair of the table would change: nothing.
    pub(crate) fn drift(&mut self) -> Vec<String> {
        let (table, wanted): (_, Vec<PolicyElement>) = (self.table(), self.engine.elements().collect());
        self.firewall.reconcile_policies(&table, &wanted, Surplus::Remove).unwrap()
    }

    /// The elements as Podwire reads them from the kernel.
    pub(crate) fn read_elements(&mut self) -> Vec<PolicyElement> {
        let table = self.table();
        self.firewall.policy_elements(&table).unwrap()
    }
}
