//! A request in, an answer out: which verb does what.

use std::net::IpAddr;

use cni::{AttachmentRequest, NetworkConfig, Request, Version};
use netconf::{LocalPaths, NetConf, NodeNetworks};
use serde_json::Value;
use types::{AttachMode, RequestId};

use crate::{Delegates, KernelCache, attach, check, detach, gc, status};

/// What was done, for the answer on stdout and for the log.
#[derive(Debug, Default)]
pub struct Done {
    /// What goes to stdout: exactly one JSON value for ADD and VERSION, nothing for the others.
    pub answer: Option<Value>,
    pub addresses: Vec<IpAddr>,
    /// What the link of the pod that was added carries.
    pub mtu: Option<u32>,
    /// How many attachments GC collected.
    pub collected: usize,
    /// The mode of the pod that was added or removed.
    pub mode: Option<AttachMode>,
}

/// Who asks, and what they need of the engine.
pub struct Caller<'a> {
    /// Recorded with the attachment: the same run of the plugin gets the recorded result of an ADD that is ready.
    pub request: Option<&'a RequestId>,
    /// Asked while another IPAM plugin runs, and right before an attachment is committed. True: the ADD is undone.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    pub wait: Wait,
    /// What the caller's process remembers, if it stays.
    pub kernel_cache: Option<&'a KernelCache>,
    pub delegates: Delegates<'a>,
    /// The agent's part of the request. None: the request's config is complete.
    pub networks: Option<NodeNetworks<'a>>,
    pub warn: Warn<'a>,
}

/// Receives a problem that does not fail the request. The plugin prints it, the agent logs it.
pub type Warn<'a> = &'a (dyn Fn(&str) + Sync);

impl<'a> Caller<'a> {
    /// A process that serves one request and ends.
    pub fn standalone(warn: Warn<'a>) -> Self {
        Self {
            request: None,
            cancelled: &|| false,
            wait: Wait::ForTheEnd,
            kernel_cache: None,
            delegates: Delegates::InCniPath,
            networks: None,
            warn,
        }
    }

    /// The network of a config without a pod.
    pub(crate) fn network(&self, config: &NetworkConfig) -> Result<NetConf, cni::Error> {
        NetConf::merge(config, self.networks.as_ref())
    }

    fn network_of(&self, call: &AttachmentRequest) -> Result<NetConf, cni::Error> {
        NetConf::for_call(call, self.networks.as_ref())
    }

    fn place(&self, config: &NetworkConfig) -> Result<LocalPaths, cni::Error> {
        LocalPaths::merge(config, self.networks.as_ref())
    }
}

/// The kernel holds whoever deletes a link for a grace period, but the link is gone long before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    ForTheEnd,
    /// A process that stays lets a thread of its own wait for the rest.
    UntilGone,
}

/// Serves one request.
pub fn serve(request: &Request, caller: &Caller<'_>) -> Result<Done, cni::Error> {
    match request {
        Request::Add(call) => add(call, caller),
        Request::Del(call) => del(call, caller),
        Request::Check(call) => {
            check::check(call, &caller.network_of(call)?, &caller.place(&call.config)?, caller)?;
            Ok(Done::default())
        }
        Request::Gc(request) => {
            let collected = gc::collect(request, &caller.place(&request.config)?, caller)?;
            Ok(Done { collected, ..Done::default() })
        }
        Request::Status(config) => status_of(config, caller),
        Request::Version(asked) => Ok(version(*asked)),
    }
}

fn add(call: &AttachmentRequest, caller: &Caller<'_>) -> Result<Done, cni::Error> {
    let (conf, place) = (caller.network_of(call)?, caller.place(&call.config)?);
    let (result, attachment) = attach::attach(call, &conf, &place, caller)?;
    let answer = Some(result.to_json(call.config.version));
    let (addresses, mtu, mode) = (attachment.ips().collect(), Some(attachment.mtu), Some(attachment.mode));
    Ok(Done { answer, addresses, mtu, collected: 0, mode })
}

fn del(call: &AttachmentRequest, caller: &Caller<'_>) -> Result<Done, cni::Error> {
    let was = detach::detach(call, &caller.place(&call.config)?, caller)?;
    let mode = was.as_ref().map(|attachment| attachment.mode);
    let addresses = was.map(|attachment| attachment.ips().collect()).unwrap_or_default();
    Ok(Done { addresses, mode, ..Done::default() })
}

fn status_of(config: &NetworkConfig, caller: &Caller<'_>) -> Result<Done, cni::Error> {
    status::status(config, &caller.network(config)?, &caller.place(config)?, caller)?;
    Ok(Done::default())
}

fn version(asked: Version) -> Done {
    Done { answer: Some(cni::version_answer(asked)), ..Done::default() }
}
