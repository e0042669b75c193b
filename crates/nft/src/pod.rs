//! A pod as the firewall needs it.

use std::net::IpAddr;

use ipnet::IpNet;
pub use types::{AttachMode, Protocol};
use types::{AttachmentKey, Digest, IfName, Mac, NetworkName};

/// One attachment. `add_pod`, `missing` and `remove_pod` get the same value.
#[derive(Debug, Clone, Copy)]
pub struct FirewallPod<'a> {
    /// The host end of the pod's link.
    pub link: &'a IfName,
    /// The MAC of the pod's end.
    pub mac: Mac,
    pub mode: AttachMode,
    /// In mode `bridge`: the bridge on which all packets of the pod reach the host. None if it is not known, or if another router is
    /// the pod's gateway and its packets may arrive on another link.
    pub bridge: Option<&'a IfName>,
    pub addresses: &'a [IpAddr],
    /// The chain that masquerades traffic of this pod. None: no masquerading.
    pub masquerade: Option<&'a NetworkChain>,
    pub guard: Guard,
    pub ports: &'a [HostPort],
}

/// The permitted sources of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Its own MAC and addresses, and nothing but IPv4, IPv6 and ARP.
    On,
    /// As `On`. In mode `bridge` it may also send DHCP requests from 0.0.0.0.
    Dhcp,
    /// Its own MAC, in mode `bridge`. Its addresses are not known.
    Mac,
    Off,
}

/// One published port. A port on one address of the host has precedence over the same port on all addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPort {
    /// The address of the host. None, `0.0.0.0` and `::` mean every address of the pod's family.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub protocol: Protocol,
    pub pod: IpAddr,
    pub pod_port: u16,
}

/// Suffixes of a chain's sets: IPv4, IPv6.
const SUFFIXES: [&str; 2] = ["-4", "-6"];

/// The chain of all pods of one network. Traffic to `cidrs` keeps its source, all other traffic is masqueraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkChain {
    id: String,
    set4: String,
    set6: String,
    cidrs: Vec<IpNet>,
}

impl NetworkChain {
    /// The prefix of names of these chains and their sets.
    pub(crate) const PREFIX: &'static str = "net-";

    /// The chain's name is derived from both. Other CIDRs result in another chain, so an existing one is never outdated. All chains of
    /// one network have the same prefix.
    pub fn new(network: &NetworkName, cidrs: &[IpNet]) -> Self {
        // nft refuses a set whose ranges overlap.
        let mut cidrs = IpNet::aggregate(&cidrs.iter().map(IpNet::trunc).collect::<Vec<_>>());
        cidrs.sort();
        let texts: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
        let words: Vec<&str> =
            ["network chain 3"].into_iter().chain(texts.iter().map(String::as_str)).collect();
        let id = format!(
            "{}{}",
            Self::prefix_of(&AttachmentKey::network_dir(network)),
            Digest::of(&words).base32(7)
        );
        let [set4, set6] = Self::sets_of(&id);
        Self { id, set4, set6, cidrs }
    }

    fn prefix_of(network: &str) -> String {
        format!("{}{}", Self::PREFIX, Digest::of(&["network", network]).base32(6))
    }

    /// Whether a chain or set of this name belongs to the network, which is named as its directory.
    pub(crate) fn is_of(name: &str, network: &str) -> bool {
        name.starts_with(&Self::prefix_of(network))
    }

    /// The chain that a set belongs to, if it is a set of a network.
    pub(crate) fn id_of_set(set: &str) -> Option<&str> {
        let id = SUFFIXES.iter().find_map(|suffix| set.strip_suffix(suffix))?;
        Self::is_id(id).then_some(id)
    }

    pub(crate) fn is_id(name: &str) -> bool {
        name.starts_with(Self::PREFIX)
    }

    /// The sets of the chain of this name.
    pub(crate) fn sets_of(id: &str) -> [String; 2] {
        SUFFIXES.map(|suffix| format!("{id}{suffix}"))
    }

    /// The chain's name in table `inet podwire`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The set of the network's IPv4 pods that are masqueraded.
    pub(crate) fn set4(&self) -> &str {
        &self.set4
    }

    pub(crate) fn set6(&self) -> &str {
        &self.set6
    }

    pub(crate) fn has_set(&self, name: &str) -> bool {
        self.set4 == name || self.set6 == name
    }

    pub fn cidrs(&self) -> &[IpNet] {
        &self.cidrs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(name: &str, cidrs: &[&str]) -> NetworkChain {
        let cidrs: Vec<IpNet> = cidrs.iter().map(|c| c.parse().unwrap()).collect();
        NetworkChain::new(&name.try_into().unwrap(), &cidrs)
    }

    #[test]
    fn a_chain_is_named_by_network_and_cidrs_in_any_order() {
        let a = chain("blue", &["10.1.0.0/16", "fd00::/48"]);
        assert_eq!(a.id(), chain("blue", &["fd00::/48", "10.1.0.7/16"]).id());
        assert_ne!(a.id(), chain("red", &["10.1.0.0/16", "fd00::/48"]).id());
        assert_ne!(a.id(), chain("blue", &["10.1.0.0/16"]).id());
        assert_eq!(a.id().len(), 17);
        let other = chain("blue", &["10.1.0.0/16"]);
        assert!(NetworkChain::is_of(other.id(), "blue"));
        assert!(!NetworkChain::is_of(other.id(), "red"));
    }

    #[test]
    fn overlapping_cidrs_are_merged() {
        let a = chain("blue", &["10.0.0.0/8", "10.1.0.0/16", "fd00::/48", "fd00::/64"]);
        assert_eq!(
            a.cidrs().iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.0/8", "fd00::/48"]
        );
    }
}
