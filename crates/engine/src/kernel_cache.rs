//! Kernel state that a long-running process caches, so that attaching a pod needs fewer requests. Every request about a link
//! waits for RTNL, and concurrent ADDs queue for it.
//!
//! A cached entry is used only after a check that needs no lock. The kernel does not reuse link indexes, so a name that still
//! has the cached index is the same link. Changes of the link itself are repaired by reconcile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netconf::{BridgeMtu, NetConf};
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
    bridges: Mutex<HashMap<IfName, CachedBridge>>,
    /// Indexes of bridges that had Podwire's mark in the last reconcile round.
    managed_bridges: Mutex<HashMap<IfName, u32>>,
    /// Firewall elements without a pod in the last reconcile round.
    orphans: Mutex<BTreeSet<PodElement>>,
    /// The firewall chain of the agent's network. It is retained without pods.
    retained_chain: Mutex<Option<String>>,
    /// When tables of another version were last replaced, by revision.
    replaced: Mutex<HashMap<u32, Instant>>,
    host_ends: Mutex<HashMap<AttachmentKey, u32>>,
    settings: OnceLock<OwnedFd>,
    sockets: IdlePool<RtSocket>,
    firewalls: IdlePool<Firewall>,
}

/// Minimum time between two replacements of tables of the same revision.
const REPLACE_PAUSE: Duration = Duration::from_secs(60);

/// Size of each pool: about the number of concurrent calls.
const POOL_SIZE: usize = 8;

/// Idle open sockets. Opening and closing one takes about 10 µs each. Closing a netfilter socket also waits for all
/// tables.
struct IdlePool<T>(Mutex<Vec<T>>);

impl<T> IdlePool<T> {
    fn take(&self) -> Option<T> {
        lock(&self.0).pop()
    }

    fn put(&self, item: T) {
        let mut items = lock(&self.0);
        if items.len() < POOL_SIZE {
            items.push(item);
        }
    }
}

impl<T> Default for IdlePool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for IdlePool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} idle", lock(&self.0).len())
    }
}

/// A bridge that was valid when a pod was last attached.
#[derive(Debug, Clone)]
pub(crate) struct CachedBridge {
    pub(crate) bridge: Bridge,
    pub(crate) mtu: u32,
    /// Gateway addresses on the bridge, and the mode of the pods that use them. The host forwards for them.
    pub(crate) gateways: BTreeMap<IpNet, AttachMode>,
}

impl KernelCache {
    /// The config's bridge, if it is cached, unchanged and matches the config.
    pub(crate) fn bridge(&self, host: &RtSocket, conf: &NetConf) -> Result<Option<CachedBridge>, Error> {
        let cached = lock(&self.bridges).get(&conf.bridge).cloned();
        let Some(cached) = cached.filter(|cached| !conf.promisc && has_mtu(cached, conf)) else {
            return Ok(None);
        };
        Ok((host.index_of(&conf.bridge)? == Some(cached.bridge.index)).then_some(cached))
    }

    /// Called after a pod was attached to the bridge.
    pub(crate) fn remember_bridge(&self, bridge: &Bridge, pod: &Attachment, mtu: BridgeMtu) {
        let mut bridges = lock(&self.bridges);
        let gateways = pod.wiring.gateways.iter().map(|gateway| (*gateway, pod.mode));
        match (mtu, bridges.get_mut(&bridge.name)) {
            // The pod's MTU is not that of the bridge.
            (BridgeMtu::OfOtherNetwork, Some(cached)) if cached.bridge.index == bridge.index => {
                return cached.gateways.extend(gateways);
            }
            (BridgeMtu::OfOtherNetwork, Some(_) | None) => return,
            (BridgeMtu::OfThisNetwork, _) => {}
        }
        // A pod has the bridge's MTU, or the one that the config sets for both.
        let new = CachedBridge { bridge: bridge.clone(), mtu: pod.mtu, gateways: BTreeMap::new() };
        let cached = bridges.entry(bridge.name.clone()).or_insert_with(|| new.clone());
        if cached.bridge.index != bridge.index || cached.mtu != pod.mtu {
            *cached = new;
        }
        cached.gateways.extend(gateways);
    }

    /// The IPv6 sysctl directory of the host's links: see [`sysctl::open_ipv6_conf`].
    pub(crate) fn settings(&self) -> Result<Option<&OwnedFd>, Error> {
        if self.settings.get().is_none()
            && let Some(directory) = sysctl::open_ipv6_conf()?
        {
            // Another thread may have set the same value first.
            let _ = self.settings.set(directory);
        }
        Ok(self.settings.get())
    }

    /// Called after changes by other processes: cached bridges may be wrong.
    pub fn forget_bridges(&self) {
        lock(&self.bridges).clear();
    }

    pub(crate) fn remember_managed_bridge(&self, bridge: &Bridge) {
        lock(&self.managed_bridges).insert(bridge.name.clone(), bridge.index);
    }

    /// Whether the bridge with this name and index had Podwire's mark.
    pub(crate) fn was_managed_bridge(&self, name: &IfName, index: u32) -> bool {
        lock(&self.managed_bridges).get(name) == Some(&index)
    }

    /// Stores the elements without a pod, and returns those of the previous round.
    pub(crate) fn replace_orphans(&self, now: BTreeSet<PodElement>) -> BTreeSet<PodElement> {
        std::mem::replace(&mut *lock(&self.orphans), now)
    }

    pub(crate) fn retain_chain(&self, id: Option<&str>) {
        *lock(&self.retained_chain) = id.map(str::to_owned);
    }

    pub(crate) fn retained_chain(&self) -> Option<String> {
        lock(&self.retained_chain).clone()
    }

    /// Whether tables of this revision may be replaced now. The pause limits a conflict with a running agent of that version.
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

    /// Removes and returns the host end of this key, if the link still exists. The caller deletes the link.
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

/// A socket for the host's links and routes, from the pool if possible.
pub(crate) fn socket(kernel_cache: Option<&KernelCache>) -> Result<RtSocket, Error> {
    kernel_cache.and_then(|r| r.sockets.take()).map_or_else(|| Ok(RtSocket::open()?), Ok)
}

/// Returns a socket to the pool. Only after success: then no reply is pending on it.
pub(crate) fn recycle_socket(kernel_cache: Option<&KernelCache>, socket: RtSocket) {
    if let Some(kernel_cache) = kernel_cache {
        kernel_cache.sockets.put(socket);
    }
}

/// Calls `act` with the host's firewall, through a pooled socket if possible.
pub(crate) fn with_firewall<T>(
    kernel_cache: Option<&KernelCache>,
    act: impl FnOnce(&mut Firewall) -> Result<T, nft::Error>,
) -> Result<T, Error> {
    let pooled = kernel_cache.and_then(|r| r.firewalls.take());
    let mut firewall = pooled.map_or_else(Firewall::open, Ok)?;
    let result = act(&mut firewall)?;
    if let Some(kernel_cache) = kernel_cache {
        kernel_cache.firewalls.put(firewall);
    }
    Ok(result)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
fn has_mtu(cached: &CachedBridge, conf: &NetConf) -> bool {
    match conf.bridge_mtu {
        BridgeMtu::OfThisNetwork => conf.mtu.is_none_or(|mtu| mtu == cached.mtu),
        BridgeMtu::OfOtherNetwork => true,
    }
}
