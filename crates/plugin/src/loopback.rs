//! The `loopback` plugin, for runtimes that need one (containerd before 2.0). It sets `lo` up in the pod's namespace. Behaviour
//! and answers are those of the reference plugin.

use std::path::Path;

use cni::{AttachmentRequest, CniResult, Error, ErrorCode, Interface, IpConfig, Request};
use netlink::{Link, LinkRef, NetNs, NetNsError, Op, RtSocket, SetLink};
use serde_json::Value;
use types::IfName;

/// The reference plugin also reports this MAC for `lo`.
const NO_MAC: &str = "00:00:00:00:00:00";

/// Returns the answer for stdout, if any.
pub(crate) fn serve(request: &Request) -> Result<Option<Value>, Error> {
    match request {
        Request::Add(call) => add(call).map(Some),
        Request::Del(call) => del(call).map(|()| None),
        Request::Check(call) => check(call).map(|()| None),
        // The plugin has no state.
        Request::Gc(_) | Request::Status(_) => Ok(None),
        Request::Version(version) => Ok(Some(cni::version_answer(*version))),
    }
}

fn add(call: &AttachmentRequest) -> Result<Value, Error> {
    let mut loopback = PodLoopback::open(call)?;
    loopback.set_up(true)?;
    let result = match &call.config.prev_result {
        Some(previous) => previous.clone(),
        None => loopback.result(call.netns.clone())?,
    };
    Ok(result.to_json(call.config.version))
}

fn check(call: &AttachmentRequest) -> Result<(), Error> {
    let link = PodLoopback::open(call)?.link()?;
    if link.up {
        return Ok(());
    }
    let path = call.netns.as_deref().unwrap_or_default();
    Err(Error::new(ErrorCode::CheckFailed, format!("lo in {path} is down")))
}

/// Succeeds without a change if the namespace no longer exists, or if it is the plugin's own namespace.
fn del(call: &AttachmentRequest) -> Result<(), Error> {
    let Some(path) = call.netns.as_deref() else { return Ok(()) };
    match NetNs::open(Path::new(path)) {
        Ok(netns) if is_own(&netns)? && !call.netns_override => Ok(()),
        Ok(netns) => PodLoopback::of(&netns)?.set_up(false),
        Err(e) if e.is_gone() => Ok(()),
        Err(e) => Err(netns_error(&e)),
    }
}

/// `lo` in a network namespace.
struct PodLoopback {
    socket: RtSocket,
    name: IfName,
}

impl PodLoopback {
    fn open(call: &AttachmentRequest) -> Result<Self, Error> {
        let path = call.netns.as_deref().unwrap_or_default();
        let netns = NetNs::open(Path::new(path)).map_err(|e| netns_error(&e))?;
        if is_own(&netns)? && !call.netns_override {
            let msg = format!("CNI_NETNS {path} is the plugin's own namespace, not a pod's");
            return Err(Error::new(ErrorCode::InvalidEnvironment, msg)
                .with_details("CNI_NETNS_OVERRIDE=1 disables this check"));
        }
        Self::of(&netns)
    }

    fn of(netns: &NetNs) -> Result<Self, Error> {
        let name = IfName::try_from("lo").map_err(|e| Error::new(ErrorCode::Internal, e.to_string()))?;
        Ok(Self { socket: RtSocket::open_in(netns).map_err(|e| kernel_error(&e))?, name })
    }

    fn set_up(&mut self, up: bool) -> Result<(), Error> {
        let change = SetLink { up: Some(up), ..SetLink::of(LinkRef::Name(&self.name)) };
        self.socket.run(&Op::SetLink(change)).map_err(|e| kernel_error(&e))
    }

    fn link(&mut self) -> Result<Link, Error> {
        let link = self.socket.link(&self.name).map_err(|e| kernel_error(&e))?;
        link.ok_or_else(|| Error::new(ErrorCode::Kernel, "the namespace has no link lo"))
    }

    /// The first address of each family. Without IPv6, only the IPv4 address.
    fn result(&mut self, sandbox: Option<String>) -> Result<CniResult, Error> {
        let link = self.link()?;
        let all = self.socket.addresses(Some(link.index)).map_err(|e| kernel_error(&e))?;
        let first = |is_v4: bool| all.iter().map(|a| a.addr).find(|net| net.addr().is_ipv4() == is_v4);
        let ips = [first(true), first(false)].into_iter().flatten();
        Ok(CniResult {
            interfaces: vec![Interface {
                name: link.name,
                mac: Some(NO_MAC.to_owned()),
                sandbox,
                ..Interface::default()
            }],
            ips: ips.map(|address| IpConfig { address, gateway: None, interface: Some(0) }).collect(),
            ..CniResult::default()
        })
    }
}

fn is_own(netns: &NetNs) -> Result<bool, Error> {
    NetNs::current().and_then(|own| own.is_same(netns)).map_err(|e| netns_error(&e))
}

fn netns_error(error: &NetNsError) -> Error {
    let code = match error {
        NetNsError::Missing { .. } | NetNsError::NotNamespace { .. } => ErrorCode::UnknownContainer,
        NetNsError::OtherKind { .. } => ErrorCode::InvalidEnvironment,
        NetNsError::Permission { .. }
        | NetNsError::Open { .. }
        | NetNsError::Enter { .. }
        | NetNsError::Cookie { .. }
        | NetNsError::Create { .. } => ErrorCode::Kernel,
    };
    Error::new(code, error.to_string())
}

fn kernel_error(error: &netlink::Error) -> Error {
    Error::new(ErrorCode::Kernel, error.to_string())
}
