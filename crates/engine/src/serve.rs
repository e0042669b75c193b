//! Dispatches a CNI request to the implementation of its command.

use std::net::IpAddr;

use cni::{AttachmentRequest, NetworkConfig, Request, Version};
use netconf::{LocalPaths, NetConf, NodeNetworks};
use serde_json::Value;
use types::{AttachMode, RequestId};

use crate::policy::PodPolicies;
use crate::{Delegates, KernelCache, attach, check, detach, gc, status};

/// The outcome of a request, for stdout and the log.
#[derive(Debug, Default)]
pub struct Done {
    /// Printed to stdout: one JSON value for ADD and VERSION, None for the other commands.
    pub answer: Option<Value>,
    pub addresses: Vec<IpAddr>,
    /// The MTU of the link of the added pod.
    pub mtu: Option<u32>,
    /// Number of attachments that GC removed.
    pub collected: usize,
    /// The mode of the pod that was added or removed.
    pub mode: Option<AttachMode>,
}

/// The caller and its parameters.
pub struct Caller<'a> {
    /// Recorded with the attachment. If the same plugin run repeats an ADD that is ready, it gets the recorded result.
    pub request: Option<&'a RequestId>,
    /// Polled while a delegated IPAM plugin runs, and right before an attachment is committed. True undoes the ADD.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    pub wait: Wait,
    /// Set if the caller's process serves many requests.
    pub kernel_cache: Option<&'a KernelCache>,
    pub delegates: Delegates<'a>,
    /// The agent's networks. None if the request's config is complete.
    pub networks: Option<NodeNetworks<'a>>,
    /// The policies of the agent. None for a standalone plugin.
    pub policies: Option<&'a dyn PodPolicies>,
    pub warn: Warn<'a>,
}

/// Receives a problem that does not fail the request. The plugin prints it, the agent logs it.
pub type Warn<'a> = &'a (dyn Fn(&str) + Sync);

impl<'a> Caller<'a> {
    /// A process that serves one request and exits.
    pub fn standalone(warn: Warn<'a>) -> Self {
        Self {
            request: None,
            cancelled: &|| false,
            wait: Wait::ForGracePeriod,
            kernel_cache: None,
            delegates: Delegates::InCniPath,
            networks: None,
            policies: None,
            warn,
        }
    }

    /// The network of a config, for requests without a pod.
    pub(crate) fn network(&self, config: &NetworkConfig) -> Result<NetConf, cni::Error> {
        NetConf::merge(config, self.networks.as_ref())
    }

    fn network_of(&self, call: &AttachmentRequest) -> Result<NetConf, cni::Error> {
        NetConf::for_call(call, self.networks.as_ref())
    }

    fn paths(&self, config: &NetworkConfig) -> Result<LocalPaths, cni::Error> {
        LocalPaths::merge(config, self.networks.as_ref())
    }
}

/// Deletion of a link returns only after a grace period of the kernel, but the link disappears earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    ForGracePeriod,
    /// For a long-running process: another thread waits for the grace period.
    UntilLinkRemoved,
}

pub fn serve(request: &Request, caller: &Caller<'_>) -> Result<Done, cni::Error> {
    match request {
        Request::Add(call) => add(call, caller),
        Request::Del(call) => del(call, caller),
        Request::Check(call) => {
            check::check(call, &caller.network_of(call)?, &caller.paths(&call.config)?, caller)?;
            Ok(Done::default())
        }
        Request::Gc(request) => {
            let collected = gc::collect(request, &caller.paths(&request.config)?, caller)?;
            Ok(Done { collected, ..Done::default() })
        }
        Request::Status(config) => status_of(config, caller),
        Request::Version(requested) => Ok(version(*requested)),
    }
}

fn add(call: &AttachmentRequest, caller: &Caller<'_>) -> Result<Done, cni::Error> {
    let (conf, paths) = (caller.network_of(call)?, caller.paths(&call.config)?);
    let (result, attachment) = attach::attach(call, &conf, &paths, caller)?;
    let answer = Some(result.to_json(call.config.version));
    let (addresses, mtu, mode) = (attachment.ips().collect(), Some(attachment.mtu), Some(attachment.mode));
    Ok(Done { answer, addresses, mtu, collected: 0, mode })
}

fn del(call: &AttachmentRequest, caller: &Caller<'_>) -> Result<Done, cni::Error> {
    let removed = detach::detach(call, &caller.paths(&call.config)?, caller)?;
    let mode = removed.as_ref().map(|attachment| attachment.mode);
    let addresses = removed.map(|attachment| attachment.ips().collect()).unwrap_or_default();
    Ok(Done { addresses, mode, ..Done::default() })
}

fn status_of(config: &NetworkConfig, caller: &Caller<'_>) -> Result<Done, cni::Error> {
    status::status(config, &caller.network(config)?, &caller.paths(config)?, caller)?;
    Ok(Done::default())
}

fn version(requested: Version) -> Done {
    Done { answer: Some(cni::version_answer(requested)), ..Done::default() }
}
