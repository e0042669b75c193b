//! `podwire pods`: the attachments of this node. They are read from the state files, so no agent is needed.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use api::{AttachmentPhase, AttachmentView, AttachmentsView, Tombstones};
use engine::state::{Addressing, Attachment, NodeState};

use crate::cli::{Output, PodsArgs};
use crate::directories::AgentDirectories;
use crate::exit::ExitStatus;
use crate::{print, time};

/// Shown instead of tenant, network and group for a pod without a placement.
pub(super) const UNPLACED: &str = "unplaced";

/// Shown instead of addresses for a pod of a network without IPAM.
pub(super) const LAYER_2: &str = "none (layer 2)";

/// An attachment with a readable record.
pub(super) struct RecordedAttachment {
    pub(super) attachment: Attachment,
    pub(super) view: AttachmentView,
}

pub(crate) fn run(args: &PodsArgs) -> Result<ExitStatus> {
    let run_dir = AgentDirectories::run_dir(args.run_dir.clone());
    let AttachmentRecords { readable, unreadable } = list(&run_dir)?;
    match args.output {
        Output::Json => {
            let attachments =
                readable.into_iter().map(|recorded| recorded.view).chain(unreadable.iter().cloned());
            print::json(&AttachmentsView { attachments: attachments.collect() })?;
        }
        Output::Table | Output::Wide if readable.is_empty() && unreadable.is_empty() => {
            print::sentence(format_args!("no pods in {}", run_dir.display()))?;
        }
        Output::Table => print::line(table(&readable))?,
        Output::Wide => print::line(wide_table(&readable))?,
    }
    Ok(ExitStatus::problem_unless(unreadable.is_empty()))
}

/// The attachments of a run directory, sorted by key.
pub(super) struct AttachmentRecords {
    pub(super) readable: Vec<RecordedAttachment>,
    /// Each one is also reported on stderr.
    pub(super) unreadable: Vec<AttachmentView>,
}

pub(super) fn list(run_dir: &Path) -> Result<AttachmentRecords> {
    let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
    let Some(state) = NodeState::open_existing(run_dir)? else {
        return Ok(AttachmentRecords { readable, unreadable });
    };
    let tombstones = Tombstones::new(run_dir);
    for network in state.networks()? {
        for listed in network.list()? {
            let view = agent::attachment_view(&network.name(), &listed, &tombstones)?;
            match listed.attachment {
                Some(attachment) => readable.push(RecordedAttachment { attachment, view }),
                None => {
                    unreadable.push(view);
                    print::warn(format_args!(
                        "podwire: the record of {}/{} cannot be read; a DEL or GC removes it",
                        network.name(),
                        print::one_line(&listed.stem)
                    ));
                }
            }
        }
    }
    readable.sort_by(|a, b| a.attachment.key.cmp(&b.attachment.key));
    Ok(AttachmentRecords { readable, unreadable })
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

    /// The name from the runtime, or the container ID if there is none.
    pub(super) fn pod(&self) -> String {
        match &self.attachment.pod {
            Some(pod) if pod.namespace.is_empty() => print::one_line(&pod.name),
            Some(pod) => print::one_line(&format!("{}/{}", pod.namespace, pod.name)),
            None => print::short_ids(self.attachment.key.container.as_str()),
        }
    }

    /// `TENANT/NETWORK/GROUP`.
    pub(super) fn placement(&self) -> String {
        let Some(placement) = &self.attachment.placement else { return UNPLACED.to_owned() };
        let group = placement.group.as_ref().map_or("-", |group| group.as_str());
        format!("{}/{}/{group}", placement.tenant, placement.network)
    }

    /// One address on each line, without prefix length.
    fn addresses(&self) -> String {
        let attachment = &self.attachment;
        let addresses: Vec<_> = attachment.ips().collect();
        match (addresses.as_slice(), attachment.addressing) {
            ([], Addressing::None) => LAYER_2.to_owned(),
            // Empty while the IPAM plugin runs.
            (addresses, _) => print::list(addresses),
        }
    }

    fn cell(&self, column: Column) -> String {
        let attachment = &self.attachment;
        match column {
            Column::Network => attachment.key.network.to_string(),
            Column::Pod => self.pod(),
            Column::Container => print::short_ids(attachment.key.container.as_str()),
            Column::Interface => print::one_line(attachment.key.ifname.as_str()),
            Column::Addresses => self.addresses(),
            Column::WideAddresses => self.addresses().replace('\n', " "),
            Column::HostLink => print::one_line(attachment.host_link.as_str()),
            Column::Mode => attachment.mode.to_string(),
            Column::Phase => self.phase(),
            Column::Placement => self.placement(),
            Column::Age => age(attachment),
        }
    }
}

/// `unknown` for a record that was recovered from the link.
fn age(attachment: &Attachment) -> String {
    attachment.created_at().map_or_else(|| "unknown".to_owned(), |created| time::age(created, time::now()))
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

fn table(records: &[RecordedAttachment]) -> String {
    let columns = [identifying_columns(records), &[Column::Addresses, Column::Phase, Column::Age]].concat();
    let (header, rows) = cells(records, &columns);
    print::table(&header, rows)
}

fn wide_table(records: &[RecordedAttachment]) -> String {
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
    let (header, rows) = cells(records, &columns);
    print::wide_table(&header, rows)
}

fn cells(records: &[RecordedAttachment], columns: &[Column]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let row = |record: &RecordedAttachment| columns.iter().map(|column| record.cell(*column)).collect();
    (columns.iter().map(|column| column.title()).collect(), records.iter().map(row).collect())
}

/// The fewest columns that distinguish all rows. Most pods have a unique name and one interface.
fn identifying_columns(records: &[RecordedAttachment]) -> &'static [Column] {
    const CHOICES: [&[Column]; 5] = [
        &[Column::Pod],
        &[Column::Pod, Column::Interface],
        &[Column::Pod, Column::Container],
        &[Column::Pod, Column::Container, Column::Interface],
        &[Column::Network, Column::Pod, Column::Container, Column::Interface],
    ];
    let is_unique = |columns: &&&[Column]| {
        let keys = records
            .iter()
            .map(|record| columns.iter().map(|column| record.cell(*column)).collect::<Vec<_>>());
        keys.collect::<BTreeSet<_>>().len() == records.len()
    };
    CHOICES.iter().find(is_unique).copied().unwrap_or(CHOICES[4])
}
