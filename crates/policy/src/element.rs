//! The results of the engine: elements of the firewall's maps, and the profiles of local pods.
//!
//! The firewall judges the first packet of a flow once per direction: at the pod that sends it (egress; the peer is the
//! destination) and at the pod that receives it (ingress; the peer is the source). It determines the peer's class, then looks up
//! the verdict. The first map with a matching element decides, in the order of [`VerdictKey`]. Without any, the flow is dropped.

use std::net::IpAddr;

use model::objects::{Direction, PortRange};
use types::Protocol;

use crate::world::PodUid;

/// The number of a profile. It is the link group of the host ends of the pods with this profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileId(pub u32);

/// Addresses that no rule distinguishes.
///
/// The upper 12 bits are the slot of the tenant, the lower 20 bits the class inside the tenant. Slot 0 has the classes of addresses
/// that belong to no pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u32);

impl ProfileId {
    /// Link group 0, the default of the kernel: all flows are dropped.
    pub const CLOSED: Self = Self(0);
    /// All other numbers are at least this, so that link groups of other programs never match.
    pub const FIRST: u32 = 0x5057_0000;
    pub const LAST: u32 = Self::FIRST + 0x00ff_ffff;
}

impl ClassId {
    /// The address is not classified. No class has this number.
    pub const NONE: Self = Self(0);
    /// Not classes, but the results of a lookup, which the firewall stores in place of the class.
    pub const ACCEPTED: Self = Self(1);
    pub const DROPPED: Self = Self(2);
    /// A pod as its own peer.
    pub const SELF: Self = Self(3);
    /// Classes have at least this number.
    pub const FIRST: u32 = 16;
    pub const SLOT_SHIFT: u32 = 20;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyVerdict {
    Accept,
    Drop,
}

/// An IP protocol number.
pub type ProtocolNumber = u8;

/// The key of a verdict, in the order in which the firewall looks them up. Within a key with ports, a single port comes before a
/// range. Only protocols of [`Protocol`] have ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VerdictKey {
    PeerPort {
        profile: ProfileId,
        class: ClassId,
        protocol: Protocol,
        port: u16,
    },
    PeerRange {
        profile: ProfileId,
        class: ClassId,
        protocol: Protocol,
        ports: PortRange,
    },
    PeerProtocol {
        profile: ProfileId,
        class: ClassId,
        protocol: ProtocolNumber,
    },
    Peer {
        profile: ProfileId,
        class: ClassId,
    },
    /// For all profiles except [`ProfileId::CLOSED`].
    AnyPodPort {
        class: ClassId,
        protocol: Protocol,
        port: u16,
    },
    AnyPodRange {
        class: ClassId,
        protocol: Protocol,
        ports: PortRange,
    },
    AnyPodProtocol {
        class: ClassId,
        protocol: ProtocolNumber,
    },
    AnyPod {
        class: ClassId,
    },
    /// All classes from `first` to `last`: those of other tenants.
    PeerClasses {
        profile: ProfileId,
        first: ClassId,
        last: ClassId,
    },
    /// For all classes.
    AnyPeerPort {
        profile: ProfileId,
        protocol: Protocol,
        port: u16,
    },
    AnyPeerRange {
        profile: ProfileId,
        protocol: Protocol,
        ports: PortRange,
    },
    AnyPeerProtocol {
        profile: ProfileId,
        protocol: ProtocolNumber,
    },
    Default {
        profile: ProfileId,
    },
}

/// One element of a map of the firewall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyElement {
    /// The class of one address: of a pod or node of the cluster.
    Address {
        address: IpAddr,
        class: ClassId,
    },
    /// The class of a range of addresses that have no class of their own. Ranges do not overlap.
    Addresses {
        first: IpAddr,
        last: IpAddr,
        class: ClassId,
    },
    /// An address of a local pod: as source and destination of the same packet, its class is [`ClassId::SELF`].
    OwnAddress {
        address: IpAddr,
    },
    Verdict {
        direction: Direction,
        key: VerdictKey,
        verdict: PolicyVerdict,
    },
}

/// The changes that follow from changed inputs. To apply them without a wrong verdict in between: first `replaced` and `set` in
/// one transaction, then `profiles`, then `removed`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Elements to delete in the transaction that adds `set`. Some have the same key as an element of `set` or overlap its range. The
    /// others must disappear at the same moment, because old and new elements of one profile and class are not valid together.
    pub replaced: Vec<PolicyElement>,
    pub set: Vec<PolicyElement>,
    /// Local pods whose profile is new or changed.
    pub profiles: Vec<(PodUid, ProfileId)>,
    /// Elements of profiles that no pod has after `profiles` is applied.
    pub removed: Vec<PolicyElement>,
}

impl Delta {
    pub fn is_empty(&self) -> bool {
        self.replaced.is_empty() && self.set.is_empty() && self.profiles.is_empty() && self.removed.is_empty()
    }
}
