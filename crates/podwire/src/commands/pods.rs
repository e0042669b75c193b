//! `podwire pods`: what is attached on this node, as the state files tell it: they are true with and without an agent.

use std::path::Path;

use anyhow::Result;
use api::{AttachmentPhase, AttachmentView, AttachmentsView};
use engine::state::{Addressing, Attachment, State};

use crate::cli::{Output, Pods};
use crate::exit::ExitStatus;
use crate::folders::Folders;
use crate::{print, when};

/// In the place of tenant, network and group, for a pod that belongs to none.
pub(super) const UNPLACED: &str = "unplaced";

/// In the place of addresses, for a pod of a network that gives none.
pub(super) const LAYER_2: &str = "none (layer 2)";

/// An attachment whose record can be read.
pub(super) struct Found {
    pub(super) attachment: Attachment,
    pub(super) view: AttachmentView,
}

pub(crate) fn run(args: &Pods) -> Result<ExitStatus> {
    let run_dir = Folders::run_dir(args.run_dir.clone());
    let All { found, unreadable } = list(&run_dir)?;
    match args.output {
        Output::Json => {
            let attachments = found.into_iter().map(|found| found.view).chain(unreadable.iter().cloned());
            print::say_json(&AttachmentsView { attachments: attachments.collect() })?;
        }
        Output::Table if found.is_empty() && unreadable.is_empty() => {
            print::say(format_args!("no pods in {}", run_dir.display()))?;
        }
        Output::Table => print::say(table(&found))?,
    }
    Ok(ExitStatus::problem_unless(unreadable.is_empty()))
}

/// The attachments of a run directory, sorted by key.
pub(super) struct All {
    pub(super) found: Vec<Found>,
    /// Each is reported on stderr, too.
    pub(super) unreadable: Vec<AttachmentView>,
}

pub(super) fn list(run_dir: &Path) -> Result<All> {
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    let Some(state) = State::open_existing(run_dir)? else { return Ok(All { found, unreadable }) };
    for network in state.networks()? {
        for listed in network.list()? {
            let view = agent::attachment_view(&network.name(), &listed);
            match listed.attachment {
                Some(attachment) => found.push(Found { attachment, view }),
                None => {
                    unreadable.push(view);
                    print::warn(format_args!(
                        "podwire: the record of {}/{} cannot be read; DEL or GC removes it",
                        network.name(),
                        print::value(&listed.stem)
                    ));
                }
            }
        }
    }
    found.sort_by(|a, b| a.attachment.key.cmp(&b.attachment.key));
    Ok(All { found, unreadable })
}

impl Found {
    pub(super) fn phase(&self) -> &'static str {
        match self.view.phase {
            AttachmentPhase::Pending => "pending",
            AttachmentPhase::Ready => "ready",
            AttachmentPhase::Unreadable => "unreadable",
        }
    }

    /// Without a name from the runtime the container's id stands in.
    pub(super) fn pod(&self) -> String {
        match &self.attachment.pod {
            Some(pod) if pod.namespace.is_empty() => print::value(&pod.name),
            Some(pod) => print::value(&format!("{}/{}", pod.namespace, pod.name)),
            None => print::short_ids(self.attachment.key.container.as_str()),
        }
    }

    /// Tenant, the tenant's network, group.
    pub(super) fn placement(&self) -> String {
        let Some(placement) = &self.attachment.placement else { return UNPLACED.to_owned() };
        let group = placement.group.as_ref().map_or("-", |group| group.as_str());
        format!("{}/{}/{group}", placement.tenant, placement.network)
    }

    /// Without prefix lengths.
    fn addresses(&self) -> String {
        let attachment = &self.attachment;
        let addresses: Vec<String> = attachment.ips().map(|ip| ip.to_string()).collect();
        match (addresses.as_slice(), attachment.addressing) {
            ([], Addressing::None) => LAYER_2.to_owned(),
            // Its IPAM plugin is being asked.
            ([], Addressing::Assigned | Addressing::Dhcp) => "-".to_owned(),
            (addresses, _) => addresses.join(" "),
        }
    }

    fn row(&self) -> Vec<String> {
        let attachment = &self.attachment;
        vec![
            self.pod(),
            print::short_ids(attachment.key.container.as_str()),
            print::value(attachment.key.ifname.as_str()),
            self.addresses(),
            print::value(attachment.host_link.as_str()),
            attachment.mode.to_string(),
            self.phase().to_owned(),
            self.placement(),
            when::since(attachment.created, when::now()),
        ]
    }
}

/// The name of the CNI network is of interest only where there are several.
fn table(found: &[Found]) -> String {
    let mut header = vec![
        "POD",
        "CONTAINER",
        "IF",
        "ADDRESSES",
        "NODE LINK",
        "MODE",
        "PHASE",
        "TENANT/NETWORK/GROUP",
        "AGE",
    ];
    let of = |found: &Found| found.attachment.key.network.to_string();
    let is_one = found.iter().all(|other| found.first().is_some_and(|first| of(first) == of(other)));
    if is_one {
        return print::table(&header, found.iter().map(Found::row));
    }
    header.insert(0, "CNI NETWORK");
    print::table(&header, found.iter().map(|found| [vec![of(found)], found.row()].concat()))
}
