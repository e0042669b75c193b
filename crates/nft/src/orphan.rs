//! Elements that are left of pods that are gone: their link does not exist, or no pod has the address that they are for. They
//! are reported, not removed: an ADD that is under way has its elements before its link. Reads all sets.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;
use types::Protocol;

use crate::error::Error;
use crate::firewall::Firewall;
use crate::pod::NetworkChain;
use crate::request;
use crate::ruleset::{Family, TABLE};

const UNBIND: &str = "remove bindings of addresses that no pod has";

/// The links and addresses that may have elements.
#[derive(Debug, Default)]
pub struct Alive {
    pub links: HashSet<String>,
    pub addresses: HashSet<IpAddr>,
    /// Pods may have addresses that are not in `addresses`: no element of an address is an orphan.
    pub has_more_addresses: bool,
}

/// The sets that bind addresses to links: a packet from such an address is dropped if another link receives it.
const BINDINGS: [&str; 4] = ["bound4", "bound6", "via4", "via6"];

/// The elements of [`BINDINGS`], and the generation of the tables in which they were read.
#[derive(Debug)]
pub struct Bindings {
    pub elements: Vec<Orphan>,
    generation: u32,
}

/// An element of a pod; an orphan where [`Alive::lacks`] it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    pub what: String,
    /// As nft names it, without its data: `inet podwire pods4 { 10.0.0.2 }`.
    pub element: String,
    /// The link or address that it is for.
    owner: Owner,
    set: String,
    key: Vec<u8>,
}

impl Orphan {
    /// The pod's address, where the element has one.
    pub fn address(&self) -> Option<IpAddr> {
        match self.owner {
            Owner::Address(address) => Some(address),
            Owner::Link(_) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Link(String),
    Address(IpAddr),
}

impl Alive {
    /// Whether the element is for none of these.
    pub fn lacks(&self, orphan: &Orphan) -> bool {
        match &orphan.owner {
            Owner::Link(link) => !self.links.contains(link),
            Owner::Address(address) => !self.has_more_addresses && !self.addresses.contains(address),
        }
    }
}

impl Firewall {
    /// The elements of all pods, each with its link or address. To be compared with what [`Alive`] knows after this returned.
    pub fn owned(&mut self) -> Result<Vec<Orphan>, Error> {
        let mut owned = Vec::new();
        for family in [Family::Inet, Family::Bridge] {
            for set in self.sets(family)? {
                owned.extend(self.owned_in(family, &set)?);
            }
        }
        Ok(owned)
    }

    fn owned_in(&mut self, family: Family, set: &str) -> Result<Vec<Orphan>, Error> {
        let (mut owned, place) = (Vec::new(), Place { family, set });
        let Some(layout) = Layout::of(set) else { return Ok(owned) };
        self.dump_if_there(&request::get_elements(family, set), |answer| {
            let lasting = request::elements(answer).filter(|e| !e.expires);
            owned.extend(lasting.filter_map(|e| layout.element(place, e.key, e.value)));
        })?;
        Ok(owned)
    }

    /// The elements that bind addresses to links. None without nf_tables.
    pub fn bindings(&mut self) -> Result<Option<Bindings>, Error> {
        // Read first: a change after it is then noticed.
        let Some(generation) = self.generation()? else { return Ok(None) };
        let mut elements = Vec::new();
        for set in BINDINGS {
            elements.extend(self.owned_in(Family::Inet, set)?);
        }
        Ok(Some(Bindings { elements, generation }))
    }

    /// Removes these bindings if no table was changed since they were read. False: it was, and nothing is removed.
    pub fn unbind(&mut self, bindings: &Bindings) -> Result<bool, Error> {
        let elements = bindings.elements.iter();
        let deletions: Vec<_> = elements.map(|e| request::delete_key(Family::Inet, &e.set, &e.key)).collect();
        let Err(refused) = self.socket.transact(&deletions, Some(bindings.generation))? else {
            return Ok(true);
        };
        match refused.whole.into_iter().chain(refused.requests.into_iter().map(|(_, r)| r)).next() {
            Some(refusal) if !matches!(refusal.errno, Errno::RESTART | Errno::NOENT) => {
                Err(Error::refused(UNBIND, TABLE.to_owned(), refusal))
            }
            Some(_) | None => Ok(false),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Link,
    Mac,
    Ip4,
    Ip6,
    Protocol,
    Port,
    /// The target of neighbour discovery, which nft writes as a number.
    Target,
}

use Part::{Ip4, Ip6, Link, Mac, Port, Target};

/// The parts of the keys of a pod's sets, and of the values of its maps.
const LAYOUTS: [(&str, &[Part], &[Part]); 23] = [
    ("pods4", &[Ip4], &[]),
    ("pods6", &[Ip6], &[]),
    ("self4", &[Ip4, Ip4], &[]),
    ("self6", &[Ip6, Ip6], &[]),
    ("addr4", &[Link, Ip4], &[]),
    ("addr6", &[Link, Ip6], &[]),
    ("source4", &[Link, Ip4, Mac], &[]),
    ("source6", &[Link, Ip6, Mac], &[]),
    ("bound4", &[Ip4], &[]),
    ("bound6", &[Ip6], &[]),
    ("via4", &[Ip4, Link], &[]),
    ("via6", &[Ip6, Link], &[]),
    ("targets6", &[Link, Target], &[]),
    ("ports", &[Link], &[]),
    ("macs", &[Link, Mac], &[]),
    ("dhcp_ports", &[Link], &[]),
    ("mac_ports", &[Link], &[]),
    ("hairpin4", &[Ip4, Part::Protocol, Port, Port], &[]),
    ("hairpin6", &[Ip6, Part::Protocol, Port, Port], &[]),
    ("hostport4", &[Ip4, Part::Protocol, Port], &[Ip4, Port]),
    ("hostport6", &[Ip6, Part::Protocol, Port], &[Ip6, Port]),
    ("hostport4_any", &[Part::Protocol, Port], &[Ip4, Port]),
    ("hostport6_any", &[Part::Protocol, Port], &[Ip6, Port]),
];

#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    family: Family,
    set: &'a str,
}

#[derive(Debug, Clone, Copy)]
struct Layout {
    key: &'static [Part],
    value: &'static [Part],
}

impl Layout {
    /// None for sets that have nothing of pods.
    fn of(set: &str) -> Option<Self> {
        let pods = LAYOUTS.iter().find(|(name, ..)| *name == set).map(|(_, key, value)| Self { key, value });
        // The sources that a network masquerades.
        let sources = || {
            let [set4, _] = NetworkChain::sets_of(NetworkChain::id_of_set(set)?);
            let key: &[Part] = if set == set4 { &[Ip4] } else { &[Ip6] };
            Some(Self { key, value: &[] })
        };
        pods.or_else(sources)
    }

    /// None where the bytes do not fit the layout: then its pod is not known.
    fn element(self, place: Place<'_>, key: &[u8], value: Option<&[u8]>) -> Option<Orphan> {
        let Place { family, set } = place;
        let (words, of_key) = decode(self.key, key)?;
        let (target, of_value) = decode(self.value, value.unwrap_or_default())?;
        let owner = of_value.or(of_key)?;
        let element = format!("{} {TABLE} {set} {{ {words} }}", family.word());
        let what = match &owner {
            Owner::Address(_) if !self.value.is_empty() => format!("host port {words} to {target}"),
            Owner::Address(address) if set.starts_with("bound") => {
                format!("{element}, which drops traffic from {address} of pods on other nodes")
            }
            Owner::Address(_) | Owner::Link(_) => element.clone(),
        };
        Some(Orphan { what, element, owner, set: set.to_owned(), key: key.to_vec() })
    }
}

/// The text of a key or value, and the link or address that comes first in it.
fn decode(parts: &[Part], bytes: &[u8]) -> Option<(String, Option<Owner>)> {
    let (mut words, mut owner, mut at) = (Vec::new(), None, 0);
    for part in parts {
        let rest = bytes.get(at..)?;
        let (word, found, length) = part.decode(rest)?;
        words.push(word);
        owner = owner.or(found);
        // Every part of a concatenation begins at a multiple of four.
        at += usize::next_multiple_of(length, 4);
    }
    Some((words.join(" . "), owner))
}

impl Part {
    fn decode(self, bytes: &[u8]) -> Option<(String, Option<Owner>, usize)> {
        let address = |ip: IpAddr, length| Some((ip.to_string(), Some(Owner::Address(ip)), length));
        match self {
            Self::Link => {
                let name: &[u8; libc::IFNAMSIZ] = bytes.first_chunk()?;
                let name = name.split(|byte| *byte == 0).next()?;
                let name = std::str::from_utf8(name).ok()?.to_owned();
                Some((name.clone(), Some(Owner::Link(name)), libc::IFNAMSIZ))
            }
            Self::Mac => {
                let octets: Vec<String> =
                    bytes.first_chunk::<6>()?.iter().map(|b| format!("{b:02x}")).collect();
                Some((octets.join(":"), None, 6))
            }
            Self::Ip4 => address(Ipv4Addr::from(*bytes.first_chunk()?).into(), 4),
            Self::Ip6 => address(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into(), 16),
            Self::Target => Some((format!("{:#034x}", u128::from_be_bytes(*bytes.first_chunk()?)), None, 16)),
            Self::Protocol => {
                let number = *bytes.first()?;
                let known = Protocol::ALL.into_iter().find(|protocol| protocol.number() == number);
                Some((known.map_or_else(|| number.to_string(), |protocol| protocol.to_string()), None, 1))
            }
            Self::Port => Some((u16::from_be_bytes(*bytes.first_chunk()?).to_string(), None, 2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element;
    use crate::pod::{Guard, HostPort, Mode, Pod};

    /// Every element that a pod has is known to be this pod's, and is written as nft writes it.
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
        let alive = Alive {
            links: [String::from("pwabc")].into(),
            addresses: addresses.into(),
            has_more_addresses: false,
        };
        for (mode, guard) in [
            (Mode::Bridge, Guard::On),
            (Mode::Bridge, Guard::Dhcp),
            (Mode::Bridge, Guard::Mac),
            (Mode::Routed, Guard::On),
        ] {
            let mac = "02:00:00:00:00:07".parse().unwrap();
            let pod = Pod {
                link: &link,
                mac,
                mode,
                bridge: (mode == Mode::Bridge).then_some(&bridge),
                addresses: &addresses,
                masquerade: Some(&chain),
                guard,
                ports: &ports,
            };
            for element in element::of(&pod).unwrap() {
                let value = match &element.data {
                    element::Data::None => None,
                    element::Data::Value(fields) => Some(element::bytes(fields)),
                };
                let layout = Layout::of(element.set).unwrap_or_else(|| panic!("{element}"));
                let key = element::bytes(&element.key);
                let found = layout
                    .element(Place { family: element.family, set: element.set }, &key, value.as_deref())
                    .unwrap();
                assert!(!alive.lacks(&found) && Alive::default().lacks(&found), "{found:?}");
                let line = element.line();
                let text = found.element.trim_end_matches(" }");
                assert!(line.starts_with(&format!("add element {text} ")), "{line} {text}");
            }
        }
    }

    #[test]
    fn a_hostport_is_for_the_pod_that_it_leads_to() {
        let layout = Layout::of("hostport4_any").unwrap();
        let place = Place { family: Family::Inet, set: "hostport4_any" };
        let found = layout.element(place, &[6, 0, 0, 0, 0x1f, 0x90, 0, 0], Some(&[10, 0, 0, 2, 0, 80, 0, 0]));
        let found = found.unwrap();
        assert_eq!(found.what, "host port tcp . 8080 to 10.0.0.2 . 80");
        assert_eq!(found.element, "inet podwire hostport4_any { tcp . 8080 }");
        assert_eq!(found.owner, Owner::Address("10.0.0.2".parse().unwrap()));
        assert!(layout.element(place, &[6], None).is_none());
        assert!(Layout::of("tunnels").is_none() && Layout::of("revision").is_none());
    }

    #[test]
    fn a13_bindings_stay_if_a_pod_came_after_the_look() {
        let in_a_namespace = || {
            let (link, bridge) = ("pwabc".try_into().unwrap(), "br0".try_into().unwrap());
            let pod = Pod {
                link: &link,
                mac: "02:00:00:00:00:07".parse().unwrap(),
                mode: Mode::Bridge,
                bridge: Some(&bridge),
                addresses: &["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
                masquerade: None,
                guard: Guard::Off,
                ports: &[],
            };
            let mut firewall = Firewall::open().unwrap();
            firewall.admit(&pod).unwrap();
            let seen = firewall.bindings().unwrap().unwrap();
            assert_eq!(seen.elements.len(), 4, "{seen:?}");
            Firewall::open()
                .unwrap()
                .admit(&Pod { addresses: &["10.0.0.3".parse().unwrap()], ..pod })
                .unwrap();
            assert!(!firewall.unbind(&seen).unwrap());
            assert_eq!(firewall.missing(&pod).unwrap(), [""; 0]);
            let seen = firewall.bindings().unwrap().unwrap();
            assert_eq!(seen.elements.len(), 6, "{seen:?}");
            assert!(firewall.unbind(&seen).unwrap());
            assert_eq!(firewall.bindings().unwrap().unwrap().elements, []);
            assert_eq!(firewall.missing(&pod).unwrap().len(), 4, "only bindings are removed");
        };
        netlink::NetNs::create().unwrap().run(in_a_namespace).unwrap();
    }
}
