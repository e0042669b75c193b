//! What a process that stays remembers of the kernel, so that the way of a pod asks less. Every question about a link waits
//! for the one lock over all links, for which sixteen pods at once queue.
//!
//! Nothing here is believed without a look that needs no lock: a link's index is never given to another one, so a name
//! that still has the index that we remember is still the same link. What happens to it meanwhile is the reconcile's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netconf::NetConf;
use netlink::RtSocket;
use nft::{Firewall, PodElement};
use rustix::fd::OwnedFd;
use types::{AttachMode, AttachmentKey, IfName};

use crate::Error;
use crate::bridge::Bridge;
use crate::state::Attachment;
use crate::sysctl;

#[derive(Debug, Default)]
pub struct KernelCache {
    bridges: Mutex<HashMap<IfName, KnownBridge>>,
    /// The indexes of bridges that had our mark when a round last saw them.
    own_bridges: Mutex<HashMap<IfName, u32>>,
    /// Bindings of the firewall that the last round found without a pod.
    unowned: Mutex<BTreeSet<PodElement>>,
    /// The firewall's chain of the agent's own network, which stays without pods.
    kept_chain: Mutex<Option<String>>,
    /// When tables of another version were replaced, by their revision.
    replaced: Mutex<HashMap<u32, Instant>>,
    host_ends: Mutex<HashMap<AttachmentKey, u32>>,
    settings: OnceLock<OwnedFd>,
    sockets: Spare<RtSocket>,
    firewalls: Spare<Firewall>,
}

/// Tables of one other version are replaced at most so often.
const REPLACE_PAUSE: Duration = Duration::from_secs(60);

/// Of each kind, for as many calls as are usually served at once.
const SPARE: usize = 8;

/// Open, and not in use. To open and close one takes some 10 µs each; a socket of netfilter that is closed waits for all
/// tables besides.
struct Spare<T>(Mutex<Vec<T>>);

impl<T> Spare<T> {
    fn take(&self) -> Option<T> {
        lock(&self.0).pop()
    }

    fn put(&self, one: T) {
        let mut all = lock(&self.0);
        if all.len() < SPARE {
            all.push(one);
        }
    }
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for Spare<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} spare", lock(&self.0).len())
    }
}

/// A bridge that was all right when a pod was attached.
#[derive(Debug, Clone)]
pub(crate) struct KnownBridge {
    pub(crate) bridge: Bridge,
    pub(crate) mtu: u32,
    /// The addresses that it carries for pods, as pods of this mode need them; the host forwards for them.
    pub(crate) gateways: BTreeMap<IpNet, AttachMode>,
}

impl KernelCache {
    /// The config's bridge, if it is the one we know and as the config wants it.
    pub(crate) fn bridge(&self, host: &RtSocket, conf: &NetConf) -> Result<Option<KnownBridge>, Error> {
        let known = lock(&self.bridges).get(&conf.bridge).cloned();
        let Some(known) = known.filter(|known| !conf.promisc && conf.mtu.is_none_or(|mtu| mtu == known.mtu))
        else {
            return Ok(None);
        };
        Ok((host.index_of(&conf.bridge)? == Some(known.bridge.index)).then_some(known))
    }

    /// After a pod was attached to it.
    pub(crate) fn remember_bridge(&self, bridge: &Bridge, pod: &Attachment) {
        let mut bridges = lock(&self.bridges);
        // Pods have the bridge's MTU, or the one that the config gives to both.
        let new = KnownBridge { bridge: bridge.clone(), mtu: pod.mtu, gateways: BTreeMap::new() };
        let known = bridges.entry(bridge.name.clone()).or_insert_with(|| new.clone());
        if known.bridge.index != bridge.index || known.mtu != pod.mtu {
            *known = new;
        }
        known.gateways.extend(pod.wiring.gateways.iter().map(|gateway| (*gateway, pod.mode)));
    }

    /// Where the IPv6 settings of the host's links are: see [`sysctl::all_settings`].
    pub(crate) fn settings(&self) -> Result<Option<&OwnedFd>, Error> {
        if self.settings.get().is_none()
            && let Some(found) = sysctl::all_settings()?
        {
            // Another thread may have been quicker; it found the same.
            let _ = self.settings.set(found);
        }
        Ok(self.settings.get())
    }

    /// Somebody changed something on this node: what we know of bridges may be wrong.
    pub fn forget_bridges(&self) {
        lock(&self.bridges).clear();
    }

    pub(crate) fn remember_own_bridge(&self, bridge: &Bridge) {
        lock(&self.own_bridges).insert(bridge.name.clone(), bridge.index);
    }

    /// Whether this very bridge had our mark.
    pub(crate) fn was_own_bridge(&self, name: &IfName, index: u32) -> bool {
        lock(&self.own_bridges).get(name) == Some(&index)
    }

    /// Remembers bindings without a pod, and returns those that the round before had found.
    pub(crate) fn replace_unowned(&self, now: BTreeSet<PodElement>) -> BTreeSet<PodElement> {
        std::mem::replace(&mut *lock(&self.unowned), now)
    }

    pub(crate) fn keep_chain(&self, id: Option<&str>) {
        *lock(&self.kept_chain) = id.map(str::to_owned);
    }

    pub(crate) fn kept_chain(&self) -> Option<String> {
        lock(&self.kept_chain).clone()
    }

    /// Whether tables of this revision may be replaced now. An agent of that version would replace them again.
    pub(crate) fn may_replace(&self, revision: u32) -> bool {
        let (now, mut replaced) = (Instant::now(), lock(&self.replaced));
        let may = replaced.get(&revision).is_none_or(|last| now.duration_since(*last) >= REPLACE_PAUSE);
        if may {
            replaced.insert(revision, now);
        }
        may
    }

    pub(crate) fn remember_host_end(&self, key: &AttachmentKey, index: u32) {
        lock(&self.host_ends).insert(key.clone(), index);
    }

    /// The host end that we made for this key, if it is still there. It is forgotten: whoever asks will delete it.
    pub(crate) fn take_host_end(
        &self,
        host: &RtSocket,
        key: &AttachmentKey,
        name: &IfName,
    ) -> Result<Option<u32>, Error> {
        let Some(index) = lock(&self.host_ends).remove(key) else { return Ok(None) };
        Ok(host.index_of(name)?.filter(|now| *now == index))
    }
}

/// A socket for the host's links and routes; a spare one where there is one.
pub(crate) fn socket(kernel_cache: Option<&KernelCache>) -> Result<RtSocket, Error> {
    kernel_cache.and_then(|r| r.sockets.take()).map_or_else(|| Ok(RtSocket::open()?), Ok)
}

/// Only after all went well: nothing is on its way to it any more.
pub(crate) fn spare_socket(kernel_cache: Option<&KernelCache>, socket: RtSocket) {
    if let Some(kernel_cache) = kernel_cache {
        kernel_cache.sockets.put(socket);
    }
}

/// Does something with the host's firewall, through a spare socket where there is one.
pub(crate) fn with_firewall<T>(
    kernel_cache: Option<&KernelCache>,
    act: impl FnOnce(&mut Firewall) -> Result<T, nft::Error>,
) -> Result<T, Error> {
    let spare = kernel_cache.and_then(|r| r.firewalls.take());
    let mut firewall = spare.map_or_else(Firewall::open, Ok)?;
    let done = act(&mut firewall)?;
    if let Some(kernel_cache) = kernel_cache {
        kernel_cache.firewalls.put(firewall);
    }
    Ok(done)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
