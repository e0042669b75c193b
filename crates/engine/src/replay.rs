//! The answer of an ADD once more: the one before got lost on its way, because whoever gave it died.

use std::path::Path;

use cni::{AttachmentRequest, CniResult, PodRoute};
use netconf::NetConf;
use netlink::{NetNs, RouteFilter, RtSocket};

use crate::bridge::{self, Spec};
use crate::state::Attachment;
use crate::{Error, result};

pub(crate) fn answer(
    attachment: &Attachment,
    call: &AttachmentRequest,
    conf: &NetConf,
) -> Result<CniResult, Error> {
    let mut host = RtSocket::open()?;
    let found = host.link(&attachment.bridge)?;
    let spec = Spec { name: &attachment.bridge, mtu: None, promisc: false };
    let bridge = bridge::ensure(&mut host, &spec, found)?;
    let routes = routes_of(attachment)?;
    let answer = result::of_attachment(attachment, &bridge, &routes, call.config.prev_result.as_ref());
    Ok(result::with_dns(answer, &conf.dns, &attachment.wiring.dns))
}

/// The routes that are this attachment's: where another interface of the pod had the same route first, it has it still.
fn routes_of(attachment: &Attachment) -> Result<Vec<PodRoute>, Error> {
    let netns = NetNs::open(Path::new(&attachment.netns))?;
    let mut pod = RtSocket::open_in(&netns)?;
    let Some(link) = pod.link(&attachment.key.ifname)? else { return Ok(attachment.wiring.routes.clone()) };
    let has = pod.routes(RouteFilter { link: Some(link.index), ..RouteFilter::default() })?;
    let is_set = |route: &&PodRoute| has.iter().any(|r| r.dst.trunc() == route.dst.trunc());
    Ok(attachment.wiring.routes.iter().filter(is_set).cloned().collect())
}
