//! Finds and removes surplus elements of pods. Each element belongs to a link or an address. It is surplus if the link does not
//! exist or no pod has the address ([`LiveOwners::is_orphan`]), or if the pod that has them should not have this element
//! ([`LiveOwners::is_unwanted`]). It lists all sets, which is too slow for every ADD and DEL.
//!
//! Surplus elements are removed only if no table changed since they were listed. That is not enough for a concurrent ADD of a pod
//! with the same addresses: if all its elements exist already, its transaction changes nothing, and the generation stays. An ADD
//! claims its address and writes its record before it adds elements. So records are read once more after the removal, and elements
//! that a pod has by now are restored ([`Firewall::remove_surplus`]).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;
use types::{IfName, Protocol};

use crate::desired::pods::{self, BINDINGS, SETS4, SETS6};
use crate::desired::{SetValue, TABLE, TableFamily, TableId, Type};
use crate::element::bytes;
use crate::error::Error;
use crate::firewall::Firewall;
use crate::listing::ListedElements;
use crate::observe::ObservedSet;
use crate::pod::{FirewallPod, NetworkChain};
use crate::pod_elements;
use crate::request;

const REMOVE: &str = "remove surplus elements";

/// The links and addresses that may have elements.
#[derive(Debug, Default)]
pub struct LiveOwners {
    pub links: HashSet<String>,
    pub addresses: HashSet<IpAddr>,
    /// Pods may have further addresses, so that no element of an address is an orphan.
    pub has_more_addresses: bool,
    pub known: KnownPods,
}

/// Known pods, and the elements that they should have.
#[derive(Debug, Default)]
pub struct KnownPods {
    links: HashSet<String>,
    addresses: HashSet<IpAddr>,
    wanted: HashMap<(TableFamily, String), WantedKeys>,
}

/// The keys that a set should have. If two pods request one host port, both values are valid.
type WantedKeys = HashMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

impl KnownPods {
    /// Adds the elements of a pod.
    pub fn add_elements(&mut self, pod: &FirewallPod<'_>) -> Result<(), Error> {
        for element in pod_elements::of(pod)? {
            let set = self.wanted.entry((element.table.family, element.set.to_string())).or_default();
            set.entry(bytes(&element.key)).or_default().push(element.value());
        }
        Ok(())
    }

    /// This link and these addresses belong to one pod. All their other elements are surplus.
    pub fn set_exclusive(&mut self, link: &IfName, addresses: impl IntoIterator<Item = IpAddr>) {
        self.links.insert(link.to_string());
        self.addresses.extend(addresses);
    }

    /// A pod with an incomplete record has this link and these addresses. They may have elements that are not known.
    pub fn set_shared(&mut self, link: &str, addresses: impl IntoIterator<Item = IpAddr>) {
        self.links.remove(link);
        for address in addresses {
            self.addresses.remove(&address);
        }
    }

    /// A pod with an incomplete record may have any address.
    pub fn set_addresses_shared(&mut self) {
        self.addresses.clear();
    }

    fn is_exclusive(&self, element: &PodElement) -> bool {
        match element.owners.first() {
            Some(ElementOwner::Link(link)) => self.links.contains(link),
            Some(ElementOwner::Address(address)) => self.addresses.contains(address),
            None => false,
        }
    }

    fn wants(&self, element: &PodElement) -> bool {
        let set = self.wanted.get(&(element.family, element.set.clone()));
        set.is_some_and(|set| has(set, &element.key, element.value.as_ref()))
    }
}

fn has(set: &WantedKeys, key: &[u8], value: Option<&Vec<u8>>) -> bool {
    set.get(key).is_some_and(|values| values.iter().any(|wanted| wanted.as_ref() == value))
}

/// Elements of pods, and the generation of the tables when they were listed.
#[derive(Debug)]
pub struct PodElements {
    pub elements: Vec<PodElement>,
    /// None if the kernel lacks nf_tables.
    generation: Option<u32>,
}

/// A pod without a record. Only its links and addresses are known.
#[derive(Debug, Clone, Copy)]
pub struct RecordlessPod<'a> {
    /// The host ends of its links, if they are known.
    pub links: &'a [IfName],
    pub addresses: &'a [IpAddr],
}

/// An element of a pod. It is surplus if [`LiveOwners::is_orphan`] or [`LiveOwners::is_unwanted`] is true.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodElement {
    pub what: String,
    /// In the syntax of nft, without its data: `inet podwire pods4 { 10.0.0.2 }`.
    pub element: String,
    /// The links and addresses in it. It belongs to the first one.
    owners: Vec<ElementOwner>,
    family: TableFamily,
    set: String,
    key: Vec<u8>,
    /// The value of a map's element.
    value: Option<Vec<u8>>,
}

impl PodElement {
    /// The address that it belongs to, if any.
    pub fn address(&self) -> Option<IpAddr> {
        match self.owners.first() {
            Some(ElementOwner::Address(address)) => Some(*address),
            Some(ElementOwner::Link(_)) | None => None,
        }
    }

    /// Whether it binds an address to a link. A packet from the address is dropped if another link receives it.
    pub fn is_binding(&self) -> bool {
        BINDINGS.contains(&self.set.as_str())
    }

    fn is_of(&self, pod: &RecordlessPod<'_>) -> bool {
        self.owners.iter().any(|owner| match owner {
            ElementOwner::Link(name) => pod.links.iter().any(|link| link.as_str() == name),
            ElementOwner::Address(address) => pod.addresses.contains(address),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ElementOwner {
    Link(String),
    Address(IpAddr),
}

impl LiveOwners {
    /// Whether the element belongs to none of these.
    pub fn is_orphan(&self, element: &PodElement) -> bool {
        match element.owners.first() {
            Some(ElementOwner::Link(link)) => !self.links.contains(link),
            Some(ElementOwner::Address(address)) => {
                !self.has_more_addresses && !self.addresses.contains(address)
            }
            None => false,
        }
    }

    /// Whether the element belongs to a known pod that should not have it.
    pub fn is_unwanted(&self, element: &PodElement) -> bool {
        self.known.is_exclusive(element) && !self.known.wants(element)
    }
}

/// Whether the set has elements of pods.
pub(crate) fn is_of_pods(family: TableFamily, set: &ObservedSet) -> bool {
    SetLayout::of(family, set).is_some()
}

impl ListedElements {
    /// All elements. To be compared with [`LiveOwners`] that were read after the listing.
    pub fn elements(&self) -> PodElements {
        self.elements_without(&KnownPods::default())
    }

    /// The elements of these pods that they should not have. Records that were read before the listing lack the pods of concurrent
    /// ADDs: to be compared with [`LiveOwners`] that were read after the listing.
    pub fn surplus_of(&self, known: &KnownPods) -> PodElements {
        let mut found = self.elements_without(known);
        found.elements.retain(|element| known.is_exclusive(element));
        found.elements.sort();
        found
    }

    /// The elements that these pods do not want.
    fn elements_without(&self, known: &KnownPods) -> PodElements {
        let mut elements = Vec::new();
        for (family, set, contents) in &self.sets {
            let Some(layout) = SetLayout::of(*family, set) else { continue };
            let wanted = known.wanted.get(&(*family, set.name.clone()));
            let is_wanted =
                |key: &[u8], value: Option<&Vec<u8>>| wanted.is_some_and(|wanted| has(wanted, key, value));
            let unwanted = contents.iter().filter(|(key, value)| !is_wanted(key, value.as_ref()));
            let decode = |(key, value): (&Vec<u8>, &Option<Vec<u8>>)| {
                layout.element((*family, &set.name), key, value.as_deref())
            };
            elements.extend(unwanted.filter_map(decode));
        }
        PodElements { elements, generation: self.generation }
    }
}

impl Firewall {
    /// The elements of all pods. To be compared with [`LiveOwners`] that are read afterwards.
    pub fn pod_elements(&mut self) -> Result<PodElements, Error> {
        self.list_elements().map(|listing| listing.elements())
    }

    /// Removes these elements if no table was changed since they were listed. `now` lists the pods once more: elements that one of
    /// them has by now are restored. Returns the removed elements.
    pub fn remove_surplus<E: From<Error>>(
        &mut self,
        surplus: PodElements,
        now: impl FnOnce() -> Result<LiveOwners, E>,
    ) -> Result<Vec<PodElement>, E> {
        let PodElements { elements, generation } = surplus;
        if elements.is_empty() || !self.remove_at(&elements, generation)? {
            return Ok(Vec::new());
        }
        let alive = now();
        // If the pods cannot be listed, all elements are restored, and the next call removes surplus ones.
        let is_surplus = |element: &PodElement| {
            alive.as_ref().is_ok_and(|alive| alive.is_orphan(element) || alive.is_unwanted(element))
        };
        let (removed, owned): (Vec<_>, Vec<_>) = elements.into_iter().partition(is_surplus);
        for element in &owned {
            self.restore(element)?;
        }
        alive.map(|_| removed)
    }

    /// False if a table was changed since that generation. Then nothing is removed.
    fn remove_at(&mut self, elements: &[PodElement], generation: Option<u32>) -> Result<bool, Error> {
        let Some(generation) = generation else { return Ok(false) };
        let deletions: Vec<_> = elements.iter().map(PodElement::deletion).collect();
        let Err(refused) = self.socket.transact(&deletions, Some(generation))? else { return Ok(true) };
        match refused.first() {
            Some(refusal) if !matches!(refusal.errno, Errno::RESTART | Errno::NOENT) => {
                Err(Error::refused(REMOVE, TABLE.to_owned(), refusal))
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Its pod may have added it with another value, or the table may not exist any more.
    fn restore(&mut self, element: &PodElement) -> Result<(), Error> {
        let table = TableId::of_pods(element.family);
        let addition = request::add_key((table, &element.set), &element.key, element.value.as_deref());
        let Err(refused) = self.socket.transact(&[addition], None)? else { return Ok(()) };
        match refused.first() {
            Some(refusal) if !matches!(refusal.errno, Errno::EXIST | Errno::NOENT) => {
                Err(Error::refused(REMOVE, element.element.clone(), refusal))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Removes all elements of these links and addresses. The caller knows that no pod has them.
    pub fn sweep(&mut self, pod: &RecordlessPod<'_>) -> Result<(), Error> {
        let all = self.pod_elements()?.elements;
        let own = all.iter().filter(|element| element.is_of(pod));
        self.delete_all(own.map(PodElement::deletion).collect())
    }
}

impl PodElement {
    fn deletion(&self) -> crate::socket::NftRequest<'_> {
        request::delete_key(TableId::of_pods(self.family), &self.set, &self.key)
    }
}

/// The types of a set's keys and values.
#[derive(Debug, Clone, Copy)]
struct SetLayout<'a> {
    key: &'a [Type],
    value: &'a [Type],
}

impl SetLayout<'static> {
    /// None for sets without elements of pods.
    fn of(family: TableFamily, set: &ObservedSet) -> Option<Self> {
        if family == TableFamily::Inet && NetworkChain::id_of_set(&set.name).is_some() {
            // The addresses that a network masquerades.
            let key: &[Type] = if set.key_length == 4 { &[Type::Ip4] } else { &[Type::Ip6] };
            return Some(Self { key, value: &[] });
        }
        let known = pods::base(family).filled_sets().find(|known| known.name == set.name)?;
        let value: &[Type] = match &known.value {
            SetValue::Data(types) => types,
            SetValue::None | SetValue::Verdict => &[],
        };
        Some(Self { key: &known.key, value })
    }
}

impl SetLayout<'_> {
    /// None if the bytes do not fit the layout.
    fn element(
        self,
        (family, set): (TableFamily, &str),
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Option<PodElement> {
        let (words, of_key) = decode(self.key, key)?;
        let (target, of_value) = decode(self.value, value.unwrap_or_default())?;
        // The value of a map is the pod. Its key is an address of the host.
        let owners = if self.value.is_empty() { of_key } else { of_value };
        let element = format!("{} {set} {{ {words} }}", TableId::of_pods(family));
        let what = match owners.first()? {
            ElementOwner::Address(_) if !self.value.is_empty() => format!("host port {words} to {target}"),
            ElementOwner::Address(address) if [SETS4.bound, SETS6.bound].contains(&set) => {
                format!("{element}, which drops traffic from {address} of pods on other nodes")
            }
            ElementOwner::Address(_) | ElementOwner::Link(_) => element.clone(),
        };
        let (key, value) = (key.to_vec(), value.map(<[u8]>::to_vec));
        Some(PodElement { what, element, owners, family, set: set.to_owned(), key, value })
    }
}

/// The text of a key or value, and the links and addresses in it.
fn decode(parts: &[Type], bytes: &[u8]) -> Option<(String, Vec<ElementOwner>)> {
    let (mut words, mut owners, mut at) = (Vec::new(), Vec::new(), 0);
    for part in parts {
        let rest = bytes.get(at..)?;
        let (word, found, length) = part.decode(rest)?;
        words.push(word);
        owners.extend(found);
        // Every field of a concatenation begins at a multiple of four.
        at += usize::next_multiple_of(length, 4);
    }
    Some((words.join(" . "), owners))
}

impl Type {
    fn decode(self, bytes: &[u8]) -> Option<(String, Option<ElementOwner>, usize)> {
        let address = |ip: IpAddr, length| Some((ip.to_string(), Some(ElementOwner::Address(ip)), length));
        match self {
            Self::Link => {
                let name: &[u8; libc::IFNAMSIZ] = bytes.first_chunk()?;
                let name = name.split(|byte| *byte == 0).next()?;
                let name = std::str::from_utf8(name).ok()?.to_owned();
                Some((name.clone(), Some(ElementOwner::Link(name)), libc::IFNAMSIZ))
            }
            Self::Mac => {
                let octets: Vec<String> =
                    bytes.first_chunk::<6>()?.iter().map(|b| format!("{b:02x}")).collect();
                Some((octets.join(":"), None, 6))
            }
            Self::Ip4 => address(Ipv4Addr::from(*bytes.first_chunk()?).into(), 4),
            Self::Ip6 => address(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into(), 16),
            Self::Bits { length, .. } => {
                let length = usize::from(length / 8);
                let digits: String = bytes.get(..length)?.iter().map(|b| format!("{b:02x}")).collect();
                Some((format!("0x{digits}"), None, length))
            }
            Self::Protocol => {
                let number = *bytes.first()?;
                let known = Protocol::ALL.into_iter().find(|protocol| protocol.number() == number);
                Some((known.map_or_else(|| number.to_string(), |protocol| protocol.to_string()), None, 1))
            }
            Self::Port => Some((u16::from_be_bytes(*bytes.first_chunk()?).to_string(), None, 2)),
            Self::LinkGroup | Self::Mark | Self::Class => {
                Some((format!("{:#x}", u32::from_ne_bytes(*bytes.first_chunk()?)), None, 4))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Field;
    use crate::pod::{AttachMode, Guard, HostPort};

    /// Every element of a pod is recognised as this pod's, and is written as nft writes it.
    #[test]
    fn a8_every_element_of_a_pod_has_a_layout() {
        let (link, bridge) = ("pwabc".try_into().unwrap(), "br0".try_into().unwrap());
        let addresses = ["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let chain = NetworkChain::new(&"blue".try_into().unwrap(), &["10.0.0.0/24".parse().unwrap()]);
        let port = |host_ip: Option<&str>, pod| HostPort {
            host_ip: host_ip.map(|ip| ip.parse().unwrap()),
            host_port: 8080,
            protocol: Protocol::Tcp,
            pod,
            pod_port: 80,
        };
        let ports = [
            port(None, addresses[0]),
            port(None, addresses[1]),
            port(Some("192.0.2.1"), addresses[0]),
            port(Some("2001:db8::1"), addresses[1]),
        ];
        let alive = LiveOwners {
            links: [String::from("pwabc")].into(),
            addresses: addresses.into(),
            ..LiveOwners::default()
        };
        for (mode, guard) in [
            (AttachMode::Bridge, Guard::On),
            (AttachMode::Bridge, Guard::Dhcp),
            (AttachMode::Bridge, Guard::Mac),
            (AttachMode::Routed, Guard::On),
        ] {
            let mac = "02:00:00:00:00:07".parse().unwrap();
            let pod = FirewallPod {
                link: &link,
                mac,
                mode,
                bridge: (mode == AttachMode::Bridge).then_some(&bridge),
                addresses: &addresses,
                masquerade: Some(&chain),
                guard,
                ports: &ports,
            };
            for element in pod_elements::of(&pod).unwrap() {
                let (value, mut known) = (element.value(), KnownPods::default());
                let key = bytes(&element.key);
                let family = element.table.family;
                let layout = layout(family, &element.set, key.len());
                let found = layout.element((family, &element.set), &key, value.as_deref()).unwrap();
                assert!(!alive.is_orphan(&found) && LiveOwners::default().is_orphan(&found), "{found:?}");
                known.set_exclusive(&link, addresses);
                let mut alive = LiveOwners { known, ..LiveOwners::default() };
                assert!(alive.is_unwanted(&found), "{found:?}");
                alive.known.add_elements(&pod).unwrap();
                assert!(!alive.is_unwanted(&found), "{found:?}");
                let text = found.element.trim_end_matches(" }");
                assert!(element.to_string().starts_with(&format!("{text} ")), "{element} {text}");
            }
        }
    }

    fn layout(family: TableFamily, set: &str, length: usize) -> SetLayout<'static> {
        let key_length = u32::try_from(length).unwrap();
        SetLayout::of(family, &ObservedSet { name: set.to_owned(), key_length, size: None, digest: 0 })
            .unwrap()
    }

    #[test]
    fn a_hostport_belongs_to_the_pod_of_its_value() {
        let layout = layout(TableFamily::Inet, "hostport4_any", 8);
        let set = (TableFamily::Inet, "hostport4_any");
        let found = layout.element(set, &[6, 0, 0, 0, 0x1f, 0x90, 0, 0], Some(&[10, 0, 0, 2, 0, 80, 0, 0]));
        let found = found.unwrap();
        assert_eq!(found.what, "host port tcp . 8080 to 10.0.0.2 . 80");
        assert_eq!(found.element, "inet podwire hostport4_any { tcp . 8080 }");
        assert_eq!(found.address(), Some("10.0.0.2".parse().unwrap()));
        assert!(layout.element(set, &[6], None).is_none());
        for name in ["revision", "applied", "__set0"] {
            let set = ObservedSet { name: name.to_owned(), key_length: 4, size: None, digest: 0 };
            assert!(SetLayout::of(TableFamily::Inet, &set).is_none(), "{name}");
        }
    }

    #[test]
    fn an_element_belongs_to_a_pod_by_link_address_or_value() {
        let link = IfName::try_from("pwabc").unwrap();
        let addresses = ["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let pod = RecordlessPod { links: std::slice::from_ref(&link), addresses: &addresses };
        let other = IfName::try_from("pwabcd").unwrap();
        let (own, unmanaged) = (Field::Ip(addresses[0]), Field::Ip("10.0.0.20".parse().unwrap()));
        let (tcp, port) = (Field::Protocol(Protocol::Tcp), Field::Port(80));
        for (family, set, key, value, has) in [
            (TableFamily::Inet, "pods4", vec![own], None, true),
            (TableFamily::Inet, "pods4", vec![unmanaged], None, false),
            (TableFamily::Inet, "pods6", vec![Field::Ip(addresses[1])], None, true),
            (TableFamily::Inet, "net-abc6-4", vec![own], None, true),
            (TableFamily::Inet, "ports", vec![Field::Link(&link)], None, true),
            (TableFamily::Bridge, "addr4", vec![Field::Link(&link), unmanaged], None, true),
            (TableFamily::Bridge, "addr4", vec![Field::Link(&other), unmanaged], None, false),
            (TableFamily::Inet, "via4", vec![own, Field::Link(&other)], None, true),
            (TableFamily::Inet, "via4", vec![unmanaged, Field::Link(&other)], None, false),
            (TableFamily::Inet, "hostport4_any", vec![tcp, port], Some(vec![own, port]), true),
            (TableFamily::Inet, "hostport4", vec![own, tcp, port], Some(vec![unmanaged, port]), false),
        ] {
            let (key, value) = (bytes(&key), value.map(|fields| bytes(&fields)));
            let layout = layout(family, set, key.len());
            let element = layout.element((family, set), &key, value.as_deref()).unwrap();
            assert_eq!(element.is_of(&pod), has, "{set}");
        }
    }

    fn bindings(firewall: &mut Firewall) -> PodElements {
        let mut all = firewall.pod_elements().unwrap();
        all.elements.retain(PodElement::is_binding);
        all
    }

    #[test]
    fn a13_bindings_stay_if_a_pod_was_added_after_the_listing() {
        let in_a_namespace = || {
            let (link, bridge) = ("pwabc".try_into().unwrap(), "br0".try_into().unwrap());
            let pod = FirewallPod {
                link: &link,
                mac: "02:00:00:00:00:07".parse().unwrap(),
                mode: AttachMode::Bridge,
                bridge: Some(&bridge),
                addresses: &["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
                masquerade: None,
                guard: Guard::Off,
                ports: &[],
            };
            let mut firewall = Firewall::open().unwrap();
            firewall.add_pod(&pod).unwrap();
            let listed = bindings(&mut firewall);
            assert_eq!(listed.elements.len(), 4, "{listed:?}");
            Firewall::open()
                .unwrap()
                .add_pod(&FirewallPod { addresses: &["10.0.0.3".parse().unwrap()], ..pod })
                .unwrap();
            let none = || Ok::<_, Error>(LiveOwners::default());
            assert_eq!(firewall.remove_surplus(listed, none).unwrap(), []);
            assert_eq!(firewall.missing(&pod).unwrap(), [""; 0]);
            let listed = bindings(&mut firewall);
            assert_eq!(listed.elements.len(), 6, "{listed:?}");
            assert_eq!(firewall.remove_surplus(listed, none).unwrap().len(), 6);
            assert_eq!(bindings(&mut firewall).elements, []);
            assert_eq!(firewall.missing(&pod).unwrap().len(), 4, "only bindings are removed");
        };
        netlink::NetNs::create().unwrap().run(in_a_namespace).unwrap();
    }
}
