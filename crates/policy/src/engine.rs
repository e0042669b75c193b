//! The engine: inputs, results, and the changes between them.

mod update;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use model::objects::{ClusterAction, ClusterPeer, Direction};
use types::NodeName;

use crate::address::AddressTable;
use crate::any_pod::AnyPods;
use crate::cidr::Cidrs;
use crate::class::Classes;
use crate::counts::PolicyCounts;
use crate::direction::PerDirection;
use crate::dirty::{Dirty, Inputs};
use crate::element::{Delta, PolicyElement, ProfileId};
use crate::elements;
use crate::numbers::TenantSlots;
use crate::predicate::Predicates;
use crate::problems::{
    PolicyObject, PolicyProblem, ProblemReason, missing_objects, refused_tenants, unsupported_peers,
};
use crate::profiles::Profiles;
use crate::rules::{RuleInputs, Suspended};
use crate::side::RulePlan;
use crate::uses::Uses;
use crate::world::{PodUid, World, WorldChange};

/// The largest number of verdicts that the firewall gets.
const MAX_VERDICTS: usize = 200_000;

/// Compiles the world into elements of the firewall.
#[derive(Debug, Clone)]
pub struct PolicyEngine {
    pub(crate) world: World,
    pub(crate) uses: Uses,
    pub(crate) networks: Cidrs,
    pub(crate) addresses: AddressTable,
    pub(crate) slots: TenantSlots,
    pub(crate) classes: Classes,
    pub(crate) predicates: Predicates,
    /// The rules of all pods.
    pub(crate) universal: PerDirection<RulePlan>,
    any_pods: PerDirection<AnyPods>,
    pub(crate) profiles: Profiles,
    pub(crate) suspended: Suspended,
    /// The reason why each suspended policy is not compiled.
    too_large: BTreeMap<PolicyObject, update::TooLarge>,
    max_verdicts: usize,
}

impl PolicyEngine {
    /// An engine without inputs. It has the elements of [`Self::elements`] from the start.
    pub fn new(local_node: NodeName) -> Self {
        Self::with_limit(local_node, MAX_VERDICTS)
    }

    /// Policies that would need more than `max_verdicts` elements are not compiled.
    pub fn with_limit(local_node: NodeName, max_verdicts: usize) -> Self {
        let mut engine = Self {
            world: World::new(local_node),
            uses: Uses::default(),
            networks: Cidrs::default(),
            addresses: AddressTable::default(),
            slots: TenantSlots::default(),
            classes: Classes::default(),
            predicates: Predicates::default(),
            universal: PerDirection::default(),
            any_pods: PerDirection::default(),
            profiles: Profiles::default(),
            suspended: Suspended::default(),
            too_large: BTreeMap::new(),
            max_verdicts,
        };
        engine.update(Dirty { ranges: true, ..Dirty::default() });
        engine
    }

    /// Applies changes together. The result is the same as after applying them one by one.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = WorldChange>) -> Delta {
        let mut dirty = Dirty::default();
        for change in changes {
            let mut inputs = Inputs {
                world: &mut self.world,
                uses: &mut self.uses,
                addresses: &mut self.addresses,
                networks: &mut self.networks,
                dirty: &mut dirty,
            };
            inputs.apply(change);
        }
        self.update(dirty)
    }

    /// All elements, without order.
    pub fn elements(&self) -> impl Iterator<Item = PolicyElement> {
        elements::all(self)
    }

    /// None if the pod is not a local pod with addresses of its own.
    pub fn profile(&self, pod: &PodUid) -> Option<ProfileId> {
        self.profiles.of_pods.get(pod).copied()
    }

    /// The profiles of all local pods.
    pub fn profiles(&self) -> impl Iterator<Item = (&PodUid, ProfileId)> {
        self.profiles.of_pods.iter().map(|(pod, profile)| (pod, *profile))
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    /// The smallest address block in a rule that contains the address.
    pub fn smallest_block(&self, address: IpAddr) -> Option<IpNet> {
        self.uses.cidrs.smallest(address)
    }

    /// Whether flows of local pods to this node must be judged, too.
    pub fn judges_own_node(&self) -> bool {
        let mut rules =
            self.world.cluster_policies.values().flat_map(|policy| policy.rules(Direction::Egress));
        rules.any(|rule| {
            rule.peers.iter().any(|peer| match peer {
                ClusterPeer::Nodes(_) | ClusterPeer::Networks(_) => true,
                ClusterPeer::Unknown => rule.action != ClusterAction::Accept,
                ClusterPeer::Namespaces(_) | ClusterPeer::Pods { .. } | ClusterPeer::DomainNames => false,
            })
        })
    }

    /// Objects that are not, or not completely, in force.
    pub fn problems(&self) -> Vec<PolicyProblem> {
        let too_large = self.too_large.iter().map(|(object, reason)| PolicyProblem {
            object: object.clone(),
            reason: ProblemReason::TooLarge { elements: reason.elements, limit: self.max_verdicts },
        });
        let mut problems: Vec<_> = too_large.collect();
        problems.extend(unsupported_peers(&self.world));
        let missing = missing_objects(&self.world).into_iter();
        problems.extend(missing.map(|object| PolicyProblem { object, reason: ProblemReason::Missing }));
        problems.extend(refused_tenants(&self.world, &self.slots).into_iter().map(|tenant| PolicyProblem {
            object: PolicyObject::Tenant(tenant),
            reason: ProblemReason::TooManyTenants,
        }));
        problems
    }

    /// Numbers of objects, for metrics.
    pub fn counts(&self) -> PolicyCounts {
        PolicyCounts::of(self)
    }

    pub(crate) fn rule_inputs(&self) -> RuleInputs<'_> {
        RuleInputs { world: &self.world, suspended: &self.suspended }
    }
}
