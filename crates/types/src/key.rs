use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ContainerId, Digest, IfName, Mac, NetworkName};

/// What an attachment is known by. Every name we derive includes all three parts, so that one container may have
/// several interfaces, in several networks, independent of each other (CNI: ADD).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentKey {
    pub network: NetworkName,
    pub container: ContainerId,
    pub ifname: IfName,
}

/// Longer ids are hashed where a file name (255 bytes) or a link alias (255 bytes) must hold them.
const LONGEST_PLAIN_ID: usize = 64;

/// `id` as it is, or `#` and a digest where it is too long. `#` cannot be in an id, so the two never meet.
fn short(id: &str) -> String {
    if id.len() <= LONGEST_PLAIN_ID { id.to_owned() } else { format!("#{}", Digest::of(&[id]).base32(51)) }
}

impl AttachmentKey {
    /// The host end's link name: `pw` and 13 base32 characters. `salt` is 0 but for a clash with a foreign link.
    pub fn host_link(&self, salt: u8) -> IfName {
        let name = format!("pw{}", self.digest("link", salt).base32(13));
        IfName::try_from(name).unwrap_or_else(|e| unreachable!("15 characters of [a-z2-7]: {e}"))
    }

    /// The helper link that shapes what the pod sends, one per attachment that asks for it.
    pub fn shaper_link(&self) -> IfName {
        let name = format!("pi{}", self.digest("shaper", 0).base32(13));
        IfName::try_from(name).unwrap_or_else(|e| unreachable!("15 characters of [a-z2-7]: {e}"))
    }

    pub fn host_mac(&self) -> Mac {
        Mac::local(self.digest("host mac", 0).first5())
    }

    pub fn pod_mac(&self) -> Mac {
        Mac::local(self.digest("pod mac", 0).first5())
    }

    /// The attachment's file name in its network's directory. `@` cannot be in a container id: the first one separates.
    pub fn file_stem(&self) -> String {
        format!("{}@{}", short(self.container.as_str()), self.ifname)
    }

    /// The network's directory name.
    pub fn network_dir(network: &NetworkName) -> String {
        short(network.as_str())
    }

    /// What marks the host end as ours, and whose it is. The addresses follow after a space, as far as 255 bytes go.
    pub fn alias(&self) -> String {
        let network = Self::network_dir(&self.network);
        format!("podwire:{network}/{}/{}", short(self.container.as_str()), self.ifname)
    }

    fn digest(&self, purpose: &str, salt: u8) -> Digest {
        let salt = salt.to_string();
        Digest::of(&[purpose, self.network.as_str(), self.container.as_str(), self.ifname.as_str(), &salt])
    }
}

impl fmt::Display for AttachmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container, self.ifname)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(network: &str, container: &str, ifname: &str) -> AttachmentKey {
        AttachmentKey {
            network: network.try_into().unwrap(),
            container: container.try_into().unwrap(),
            ifname: ifname.try_into().unwrap(),
        }
    }

    #[test]
    fn e9_every_derived_name_includes_the_ifname() {
        let (a, b) = (key("n", "c", "eth0"), key("n", "c", "eth1"));
        assert_ne!(a.host_link(0), b.host_link(0));
        assert_ne!(a.shaper_link(), b.shaper_link());
        assert_ne!(a.file_stem(), b.file_stem());
        assert_ne!(a.alias(), b.alias());
        assert_ne!(a.pod_mac(), b.pod_mac());
        assert_ne!(a.host_mac(), b.host_mac());
        assert_ne!(a.host_mac(), a.pod_mac());
    }

    #[test]
    fn f5_host_links_are_pw_and_13_characters_and_a_salt_changes_them() {
        let k = key("n", "c", "eth0");
        assert_eq!(k.host_link(0).as_str().len(), 15);
        assert!(k.host_link(0).as_str().starts_with("pw"));
        assert_ne!(k.host_link(0), k.host_link(1));
        assert_ne!(k.host_link(0), key("m", "c", "eth0").host_link(0));
    }

    proptest! {
        #[test]
        fn f5_long_ids_fit_a_file_name_and_an_alias(
            net in "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,400}", id in "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,400}",
            ifname in "[a-z0-9]{1,15}",
        ) {
            let k = key(&net, &id, &ifname);
            // Room for a suffix such as ".pending", and in the alias for an IPv4 and an IPv6 address (42 + 16 + 1).
            prop_assert!(k.file_stem().len() <= 240);
            prop_assert!(k.alias().len() <= 255 - 59);
            prop_assert!(AttachmentKey::network_dir(&k.network).len() <= 240);
        }
    }
}
