//! Bandwidth limits. Traffic to the pod is shaped on the host end. Traffic from the pod is redirected to an ifb link and shaped
//! there, because ingress traffic of a link cannot be queued. The limits come from the runtime, from the CNI config or from the
//! profile of the pod's group (`limits`).

mod limits;

use netlink::{AddTbf, Link, LinkRef, Op, QdiscAt, RtSocket, SetLink};
use types::AttachmentKey;

use self::limits::{DesiredLimits, HandledTbf, LimitStep, ObservedLimits, diff};
use crate::detach::delete_link;
use crate::policy::PodProfile;
use crate::state::Attachment;
use crate::sysctl::HostSettings;
use crate::{Error, alias};

pub(crate) use self::limits::Qdiscs;

/// Whether the pod may have limits, now or after a change of its group's profile.
pub(crate) fn may_have_limits(attachment: &Attachment) -> bool {
    let has_group = || attachment.placement.as_ref().is_some_and(|placement| placement.group.is_some());
    attachment.bandwidth.is_some() || has_group()
}

/// Applies the limits to a new host end. Without `profile`, the profile is not known.
pub(crate) fn apply(
    host: &mut RtSocket,
    attachment: &Attachment,
    host_index: u32,
    profile: Option<&PodProfile>,
) -> Result<(), Error> {
    let (desired, observed) = (DesiredLimits::of(attachment, profile), ObservedLimits::default());
    let steps = diff(&desired, &observed);
    steps.iter().try_for_each(|step| run(host, attachment, host_index, (step, &observed)))
}

/// Repairs the limits of a running pod. Returns the changes in words.
pub(crate) fn repair(
    host: &mut RtSocket,
    attachment: &Attachment,
    host_link: &Link,
    profile: Option<&PodProfile>,
) -> Result<Vec<String>, Error> {
    let observed = observe(host, attachment, host_link)?;
    let steps = diff(&DesiredLimits::of(attachment, profile), &observed);
    for step in &steps {
        run(host, attachment, host_link.index, (step, &observed))?;
    }
    Ok(steps.iter().map(|step| words(attachment, step)).collect())
}

/// Describes missing limits.
pub(crate) fn missing(
    host: &mut RtSocket,
    attachment: &Attachment,
    host_link: &Link,
    profile: Option<&PodProfile>,
) -> Result<Vec<String>, Error> {
    if !may_have_limits(attachment) {
        return Ok(Vec::new());
    }
    let observed = observe(host, attachment, host_link)?;
    let steps = diff(&DesiredLimits::of(attachment, profile), &observed);
    Ok(steps.iter().filter(|step| step.sets()).map(|step| words(attachment, step)).collect())
}

/// Whether the limits differ from the desired ones. `shaper` is the pod's ifb link. Pure.
pub(crate) fn has_drift(
    attachment: &Attachment,
    profile: Option<&PodProfile>,
    qdiscs: &Qdiscs,
    (host_link, shaper): (u32, Option<u32>),
) -> bool {
    let observed = ObservedLimits::of(qdiscs, host_link, shaper);
    !diff(&DesiredLimits::of(attachment, profile), &observed).is_empty()
}

fn words(attachment: &Attachment, step: &LimitStep) -> String {
    step.describe(&attachment.host_link, &attachment.key.shaper_link()).to_string()
}

fn observe(host: &mut RtSocket, attachment: &Attachment, host_link: &Link) -> Result<ObservedLimits, Error> {
    let shaper = host.link(&attachment.key.shaper_link())?;
    let shaper = shaper.filter(|link| alias::is_of(link, &attachment.key)).map(|link| link.index);
    Ok(ObservedLimits::of(&Qdiscs::new(host.qdiscs(None)?), host_link.index, shaper))
}

fn run(
    host: &mut RtSocket,
    attachment: &Attachment,
    host_index: u32,
    (step, observed): (&LimitStep, &ObservedLimits),
) -> Result<(), Error> {
    let set = |link, HandledTbf { tbf, handle }| Op::AddTbf(AddTbf { link, handle, tbf });
    match *step {
        LimitStep::SetIngress(limit) => Ok(host.run(&set(host_index, limit))?),
        LimitStep::RemoveIngress => remove_qdisc(host, host_index, QdiscAt::Root),
        LimitStep::ChangeShaper { link, to } => Ok(host.run(&set(link, to))?),
        LimitStep::CreateShaper(limit) => {
            if observed.has_ingress_qdisc {
                remove_qdisc(host, host_index, QdiscAt::Ingress)?;
            }
            create_shaper(host, attachment, host_index, limit)
        }
        LimitStep::RemoveShaper { link } => {
            // Packets that are redirected to a removed link are lost.
            if host.redirects(host_index)?.contains(&link) {
                remove_qdisc(host, host_index, QdiscAt::Ingress)?;
            }
            delete_link(host, link)
        }
    }
}

fn create_shaper(
    host: &mut RtSocket,
    attachment: &Attachment,
    host_index: u32,
    HandledTbf { tbf, handle }: HandledTbf,
) -> Result<(), Error> {
    let name = attachment.key.shaper_link();
    let alias = attachment.key.alias();
    remove_leftover(host, &attachment.key)?;
    for answer in host.run_all(&[
        Op::AddIfb { name: &name, mtu: attachment.mtu },
        Op::SetLink(SetLink {
            alias: Some(&alias),
            no_link_local: HostSettings::open(None)?.has_ipv6(attachment.mtu),
            ..SetLink::of(LinkRef::Name(&name))
        }),
    ])? {
        answer?;
    }
    let vanished = || Error::NotAvailable(format!("link {name} was removed while it was configured"));
    let ifb = host.link(&name)?.ok_or_else(vanished)?.index;
    for answer in host.run_all(&[
        Op::AddTbf(AddTbf { link: ifb, handle, tbf }),
        Op::AddIngress { link: host_index },
        Op::RedirectIngress { from: host_index, to: ifb },
    ])? {
        answer?;
    }
    Ok(())
}

fn remove_qdisc(host: &mut RtSocket, link: u32, at: QdiscAt) -> Result<(), Error> {
    match host.run(&Op::DelQdisc { link, at }) {
        Err(error) if error.is_missing() => Ok(()),
        other => Ok(other?),
    }
}

/// Removes a leftover ifb link of the same attachment. An unmanaged link with this name is an error: the following operations
/// address the link by name.
fn remove_leftover(host: &mut RtSocket, key: &AttachmentKey) -> Result<(), Error> {
    let Some(link) = host.link(&key.shaper_link())? else { return Ok(()) };
    if alias::is_of(&link, key) {
        return delete_link(host, link.index);
    }
    Err(Error::UnmanagedLink(key.shaper_link()))
}
