use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use netlink::Refusal;
use rustix::io::Errno;
use types::{Code, Finding, Fix, cause};

use crate::pod::Protocol;
use crate::program::INSTALL;

/// Errors of the firewall. `source` has the errno of the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the nft program is not installed, and the firewall's tables cannot be created without it")]
    NftMissing,
    #[error("{} is not executable, and the firewall's tables cannot be created without it", path.display())]
    NftNotExecutable { path: PathBuf },
    #[error("the kernel lacks {what}: build or load it with {option}")]
    Unsupported { what: String, option: &'static str },
    #[error("no permission to {operation}: it needs root, or CAP_NET_ADMIN in this network namespace")]
    Permission { operation: &'static str },
    #[error("host port {port}/{protocol} on {} is taken by {}: choose another hostPort or remove the other pod",
        host_ip.map_or("every address".to_owned(), |ip| ip.to_string()),
        holder.map_or("another pod, or by another entry of this one".to_owned(), |ip| format!("the pod with address {ip}")))]
    PortTaken { port: u16, protocol: Protocol, host_ip: Option<IpAddr>, holder: Option<IpAddr> },
    #[error("host port {port} cannot be published on hostIP {host_ip}: {reason}")]
    HostAddress { host_ip: IpAddr, port: u16, reason: &'static str },
    #[error("the kernel refused to {operation} ({object}){}: {}",
        if reason.is_empty() { String::new() } else { format!(", {reason}") }, cause(source))]
    Transaction { operation: &'static str, object: String, reason: String, source: io::Error },
    #[error("the nft program refused the firewall's tables: {message}")]
    Structure { message: String },
    #[error("could not {operation}: {}", cause(source))]
    Io { operation: &'static str, source: io::Error },
    #[error("{operation} did not finish within 10 seconds")]
    Timeout { operation: &'static str },
}

impl Error {
    /// The condition of a node without an executable nft program.
    pub fn missing_program(&self) -> Option<Finding> {
        let fix = match self {
            Self::NftMissing => INSTALL.into(),
            Self::NftNotExecutable { path } => Fix::words(["chmod", "a+x", &path.to_string_lossy()]),
            _ => return None,
        };
        Some(Finding::new(Code::NftMissing, "program nft", self).fix(fix))
    }

    /// The kernel module that is missing. None if it is a part of another module.
    pub fn module(&self) -> Option<String> {
        let Self::Unsupported { option, .. } = self else { return None };
        match option.strip_prefix("CONFIG_")? {
            "NF_CT_NETLINK" => Some("nf_conntrack_netlink".to_owned()),
            "NF_TABLES" => Some("nf_tables".to_owned()),
            name => name.starts_with("NFT_").then(|| name.to_ascii_lowercase()),
        }
    }

    /// A set has its largest number of elements.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Transaction { source, .. } if source.raw_os_error() == Some(libc::ENFILE))
    }

    /// The error of a system call.
    pub(crate) fn io(operation: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Permission { operation },
            Some(libc::EAGAIN | libc::ETIMEDOUT) => Self::Timeout { operation },
            Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => netfilter_missing(),
            Some(_) | None => Self::Io { operation, source },
        }
    }

    /// The netlink socket failed.
    pub(crate) fn netlink(operation: &'static str, error: netlink::Error) -> Self {
        match (&error, error.errno()) {
            (netlink::Error::Timeout { .. }, _) => Self::Timeout { operation },
            (_, Some(errno)) => Self::io(operation, errno),
            (_, None) => Self::io(operation, io::Error::other(error)),
        }
    }

    /// A request that the kernel refused.
    pub(crate) fn refused(operation: &'static str, object: String, refusal: Refusal) -> Self {
        match refusal.errno {
            Errno::PERM | Errno::ACCESS => Self::Permission { operation },
            Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT => netfilter_missing(),
            errno => {
                let reason = refusal.message.unwrap_or_default();
                Self::Transaction { operation, object, reason, source: errno.into() }
            }
        }
    }
}

fn netfilter_missing() -> Error {
    Error::Unsupported { what: "nftables (nf_tables over nfnetlink)".to_owned(), option: "CONFIG_NF_TABLES" }
}
