//! Errors of the engine, and the only place that maps them to CNI error codes.

use std::net::IpAddr;
use std::path::PathBuf;

use cni::ErrorCode;
use types::{AttachmentKey, Finding, IfName};

use crate::condition::LinkUse;
use crate::state::StateError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid request, or the error of a delegated plugin.
    #[error(transparent)]
    Cni(#[from] cni::Error),
    #[error("node-local state: {0}")]
    State(#[from] StateError),
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
    #[error(transparent)]
    Namespace(#[from] netlink::NetNsError),
    #[error("firewall: {0}")]
    Firewall(#[from] nft::Error),
    #[error("cannot read {}; its addresses stay in use", record.display())]
    Unreadable { record: PathBuf },
    #[error(
        "{} was written by a newer version of Podwire (schema {schema}) and was not changed",
        record.display()
    )]
    NewerRecord { record: PathBuf, schema: u32 },
    #[error("{0} was not attached: the caller disconnected, or the pod was deleted in the meantime")]
    Cancelled(AttachmentKey),
    #[error("{reason}")]
    AddressInUse { ip: IpAddr, reason: String },
    #[error("{0} is already attached; delete it first (DEL)")]
    AlreadyAttached(AttachmentKey),
    #[error("link {0} exists and is not managed by Podwire; remove it")]
    UnmanagedLink(IfName),
    #[error("interface {ifname} already exists in {netns}: choose another CNI_IFNAME or remove it")]
    LinkExists { ifname: IfName, netns: String },
    #[error(
        "CNI_NETNS {0} is the plugin's own namespace; a pod needs its own namespace (CNI_NETNS_OVERRIDE=1 overrides this check)"
    )]
    OwnNamespace(String),
    #[error(
        "{name} exists but is a {kind}, not a bridge: set `bridge`, with an agent `network.bridge`, to another name"
    )]
    NotABridge { name: IfName, kind: String, link_use: LinkUse },
    #[error(
        "bridge {bridge} has {existing}, which overlaps the gateway {gateway}: remove it, or set forceAddress"
    )]
    ConflictingAddress { bridge: IfName, existing: ipnet::IpNet, gateway: ipnet::IpNet },
    #[error(
        "bridge {bridge} has {conflict}, and pods without addresses (layer 2 only) could take over the addresses of other pods and \
         of the gateway there: set \"bridge\" to another name"
    )]
    SharedBridge { bridge: IfName, conflict: String },
    #[error("cannot set {} to {value}: {}; set it by hand", path.display(), types::cause(source))]
    Sysctl { path: PathBuf, value: String, source: std::io::Error },
    #[error("mtu {mtu} is too small for IPv6; the minimum is {}", types::MIN_MTU_V6)]
    MtuTooSmall { mtu: u32 },
    #[error(
        "no permission to set up networks: this process lacks {0}; run podwire-cni as root, with all capabilities"
    )]
    Privileges(String),
    #[error("{missing}")]
    Check { missing: String },
    #[error("{0}")]
    NotAvailable(String),
    /// STATUS: an ADD would fail.
    #[error("{}", .0.message)]
    NotReady(Finding),
    /// STATUS: running pods are affected.
    #[error("{}", .0.message)]
    Degraded(Finding),
    #[error("IPAM plugin {name}: {reason}")]
    Delegate { name: String, reason: String },
    #[error(
        "ipam.type {name} leads back to Podwire: {} is the plugin itself; name another plugin, or omit ipam.type",
        program.display()
    )]
    OwnDelegate { name: String, program: PathBuf },
    /// Several steps failed. Every step was tried.
    #[error("{}", join(.0))]
    Several(Vec<Error>),
}

fn join(errors: &[Error]) -> String {
    errors.iter().map(Error::chain).collect::<Vec<_>>().join("; ")
}

impl Error {
    /// Returns a single error unchanged, and wraps several.
    pub(crate) fn collect(mut errors: Vec<Error>) -> Result<(), Error> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }

    /// The message, followed by its causes.
    pub(crate) fn chain(&self) -> String {
        let mut text = types::cause(self);
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let message = types::cause(cause);
            if !text.contains(&message) {
                text.push_str(": ");
                text.push_str(&message);
            }
            source = cause.source();
        }
        text
    }

    fn code(&self) -> ErrorCode {
        match self {
            Self::Cni(e) => e.code,
            Self::State(e) => match e {
                StateError::Io { .. } => ErrorCode::Io,
                StateError::Newer { .. } => ErrorCode::State,
                StateError::Busy { .. } => ErrorCode::TryAgainLater,
                StateError::Exhausted { .. } => ErrorCode::AddressesExhausted,
                StateError::Taken { .. } => ErrorCode::AddressTaken,
                StateError::FormerOwner { .. } => ErrorCode::Kernel,
                StateError::Unmanaged { .. } | StateError::Unsafe(_) | StateError::Request(_) => {
                    ErrorCode::InvalidConfig
                }
            },
            Self::AddressInUse { .. } => ErrorCode::AddressTaken,
            Self::Kernel(_)
            | Self::Firewall(_)
            | Self::Sysctl { .. }
            | Self::Privileges(_)
            | Self::UnmanagedLink(_) => ErrorCode::Kernel,
            // The CNI specification uses this code for a container that is unknown or does not exist.
            Self::Namespace(e) if e.is_gone() => ErrorCode::UnknownContainer,
            Self::Namespace(netlink::NetNsError::OtherKind { .. }) | Self::OwnNamespace(_) => {
                ErrorCode::InvalidEnvironment
            }
            Self::Namespace(_) => ErrorCode::Kernel,
            Self::AlreadyAttached(_) | Self::LinkExists { .. } => ErrorCode::AlreadyAttached,
            Self::NotABridge { .. }
            | Self::ConflictingAddress { .. }
            | Self::SharedBridge { .. }
            | Self::MtuTooSmall { .. }
            | Self::OwnDelegate { .. } => ErrorCode::InvalidConfig,
            Self::Unreadable { .. } | Self::NewerRecord { .. } => ErrorCode::State,
            Self::Cancelled(_) => ErrorCode::TryAgainLater,
            Self::Check { .. } => ErrorCode::CheckFailed,
            Self::NotAvailable(_) | Self::NotReady(_) => ErrorCode::NotAvailable,
            Self::Degraded(_) => ErrorCode::LimitedConnectivity,
            Self::Delegate { .. } => ErrorCode::Delegate,
            Self::Several(errors) => errors.first().map_or(ErrorCode::Internal, Error::code),
        }
    }

    /// The fix, if the message does not contain it.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Self::State(e) if e.is_full() => {
                "the file system of the state directory is full: free space or set runDir (with an agent: run_dir)"
            }
            Self::State(StateError::Io { source, .. }) => match source.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    "run as root, or set runDir (with an agent: run_dir) to a writable directory"
                }
                std::io::ErrorKind::ReadOnlyFilesystem => {
                    "set runDir (with an agent: run_dir) to a writable directory"
                }
                std::io::ErrorKind::NotADirectory | std::io::ErrorKind::AlreadyExists => {
                    "a component of the path is not a directory: set runDir (with an agent: run_dir)"
                }
                _ => "",
            },
            Self::State(StateError::Exhausted { .. }) => {
                "remove pods, enlarge the range, or run GC if containers were removed without a DEL"
            }
            Self::State(StateError::Busy { .. }) => {
                "retry; if the error persists, look for a stopped podwire-cni process"
            }
            Self::Unreadable { .. } => types::Code::RecordUnreadable.advice(),
            Self::NewerRecord { .. } => types::Code::RecordNewer.advice(),
            Self::Firewall(nft::Error::NftMissing) => nft::INSTALL,
            Self::Kernel(e) if e.is_permission() => "run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN",
            Self::Kernel(e) if e.is_unsupported() => {
                "the kernel lacks a feature; bridge and veth are required"
            }
            _ => "",
        }
    }
}

impl From<Error> for cni::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Cni(inner) => inner,
            Error::NotReady(ref finding) | Error::Degraded(ref finding) => {
                cni::Error::new(error.code(), finding.message.clone()).with_details(finding.summary())
            }
            error => cni::Error::new(error.code(), error.chain()).with_details(error.advice()),
        }
    }
}
