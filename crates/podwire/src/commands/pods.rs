//! `podwire pods`: what is attached on this node, as the state files tell it: they are true with and without an agent.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use api::{AttachmentPhase, AttachmentView, AttachmentsView, Tombstones};
use engine::state::{Addressing, Attachment, NodeState};

use crate::cli::{Output, Pods};
use crate::directories::AgentDirectories;
use crate::exit::ExitStatus;
use crate::{print, when};

/// In the place of tenant, network and group, for a pod that belongs to none.
pub(super) const UNPLACED: &str = "unplaced";

/// In the place of addresses, for a pod of a network that gives none.
pub(super) const LAYER_2: &str = "none (layer 2)";

/// An attachment whose record can be read.
pub(super) struct RecordedAttachment {
    pub(super) attachment: Attachment,
    pub(super) view: AttachmentView,
}

pub(crate) fn run(args: &Pods) -> Result<ExitStatus> {
    let run_dir = AgentDirectories::run_dir(args.run_dir.clone());
    let All { found, unreadable } = list(&run_dir)?;
    match args.output {
        Output::Json => {
            let attachments = found.into_iter().map(|found| found.view).chain(unreadable.iter().cloned());
            print::say_json(&AttachmentsView { attachments: attachments.collect() })?;
        }
        Output::Table | Output::Wide if found.is_empty() && unreadable.is_empty() => {
            print::say_wrapped(format_args!("no pods in {}", run_dir.display()))?;
        }
        Output::Table => print::say(table(&found))?,
        Output::Wide => print::say(wide_table(&found))?,
    }
    Ok(ExitStatus::problem_unless(unreadable.is_empty()))
}

/// The attachments of a run directory, sorted by key.
pub(super) struct All {
    pub(super) found: Vec<RecordedAttachment>,
    /// Each is reported on stderr, too.
    pub(super) unreadable: Vec<AttachmentView>,
}

pub(super) fn list(run_dir: &Path) -> Result<All> {
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    let Some(state) = NodeState::open_existing(run_dir)? else { return Ok(All { found, unreadable }) };
    let tombstones = Tombstones::new(run_dir);
    for network in state.networks()? {
        for listed in network.list()? {
            let view = agent::attachment_view(&network.name(), &listed, &tombstones)?;
            match listed.attachment {
                Some(attachment) => found.push(RecordedAttachment { attachment, view }),
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

impl RecordedAttachment {
    pub(super) fn phase(&self) -> String {
        match self.view.phase {
            AttachmentPhase::Pending => print::degraded("pending"),
            AttachmentPhase::Ready => print::good("ready"),
            AttachmentPhase::Deleting => print::degraded("deleting"),
            AttachmentPhase::Unreadable => print::bad("unreadable"),
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

    /// Without prefix lengths, one on each line.
    fn addresses(&self) -> String {
        let attachment = &self.attachment;
        let addresses: Vec<_> = attachment.ips().collect();
        match (addresses.as_slice(), attachment.addressing) {
            ([], Addressing::None) => LAYER_2.to_owned(),
            // While its IPAM plugin runs there are none yet.
            (addresses, _) => print::list(addresses),
        }
    }

    fn cell(&self, column: Column) -> String {
        let attachment = &self.attachment;
        match column {
            Column::Network => attachment.key.network.to_string(),
            Column::Pod => self.pod(),
            Column::Container => print::short_ids(attachment.key.container.as_str()),
            Column::Interface => print::value(attachment.key.ifname.as_str()),
            Column::Addresses => self.addresses(),
            Column::WideAddresses => self.addresses().replace('\n', " "),
            Column::HostLink => print::value(attachment.host_link.as_str()),
            Column::Mode => attachment.mode.to_string(),
            Column::Phase => self.phase(),
            Column::Placement => self.placement(),
            Column::Age => when::since(attachment.created, when::now()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Network,
    Pod,
    Container,
    Interface,
    Addresses,
    WideAddresses,
    HostLink,
    Mode,
    Phase,
    Placement,
    Age,
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Network => "CNI NETWORK",
            Self::Pod => "POD",
            Self::Container => "CONTAINER",
            Self::Interface => "IF",
            Self::Addresses | Self::WideAddresses => "ADDRESSES",
            Self::HostLink => "NODE LINK",
            Self::Mode => "MODE",
            Self::Phase => "PHASE",
            Self::Placement => "TENANT/NETWORK/GROUP",
            Self::Age => "AGE",
        }
    }
}

fn table(found: &[RecordedAttachment]) -> String {
    let columns = [identity(found), &[Column::Addresses, Column::Phase, Column::Age]].concat();
    let (header, rows) = cells(found, &columns);
    print::table(&header, rows)
}

fn wide_table(found: &[RecordedAttachment]) -> String {
    let columns = [
        Column::Network,
        Column::Pod,
        Column::Container,
        Column::Interface,
        Column::WideAddresses,
        Column::HostLink,
        Column::Mode,
        Column::Phase,
        Column::Placement,
        Column::Age,
    ];
    let (header, rows) = cells(found, &columns);
    print::unlimited(&header, rows)
}

fn cells(found: &[RecordedAttachment], columns: &[Column]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let row = |found: &RecordedAttachment| columns.iter().map(|column| found.cell(*column)).collect();
    (columns.iter().map(|column| column.title()).collect(), found.iter().map(row).collect())
}

/// As few columns as distinguish all rows: most pods have a name of their own and one interface.
fn identity(found: &[RecordedAttachment]) -> &'static [Column] {
    const CHOICES: [&[Column]; 5] = [
        &[Column::Pod],
        &[Column::Pod, Column::Interface],
        &[Column::Pod, Column::Container],
        &[Column::Pod, Column::Container, Column::Interface],
        &[Column::Network, Column::Pod, Column::Container, Column::Interface],
    ];
    let is_unique = |columns: &&&[Column]| {
        let keys = found.iter().map(|one| columns.iter().map(|column| one.cell(*column)).collect::<Vec<_>>());
        keys.collect::<BTreeSet<_>>().len() == found.len()
    };
    CHOICES.iter().find(is_unique).copied().unwrap_or(CHOICES[4])
}
