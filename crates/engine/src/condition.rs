//! Which condition an error is a sign of.

use std::path::Path;

use types::{Code, Finding, IfName};

use crate::Error;

/// What failed, for errors that have no code of their own.
pub(crate) struct Failed<'a> {
    pub(crate) code: Code,
    pub(crate) object: &'a str,
    pub(crate) run_dir: &'a Path,
}

impl Error {
    /// The condition of the failed operation. Known causes have their own codes and objects, whichever operation they stop.
    pub(crate) fn finding(self, failed: &Failed<'_>) -> Finding {
        let (text, advice) = (self.chain(), self.advice());
        let known = self.cause(failed.run_dir);
        let found = known.unwrap_or_else(|| Finding::new(failed.code, failed.object, ""));
        // The advice of an error is for callers that see no fix.
        let message =
            if found.fix.is_some() || advice.is_empty() { text } else { format!("{text}: {advice}") };
        Finding { message, ..found }
    }

    /// Code, object and fix of a known cause.
    fn cause(&self, run_dir: &Path) -> Option<Finding> {
        let found = |code, object: String| Some(Finding::new(code, object, ""));
        match self {
            Self::NotReady(finding) | Self::Degraded(finding) => Some(finding.clone()),
            Self::Firewall(nft::Error::NftMissing) => Some(nft::missing_program()),
            Self::Firewall(nft::Error::Unsupported { option, .. }) => {
                found(Code::KernelFeatureMissing, format!("kernel option {option}"))
            }
            Self::Firewall(nft::Error::Permission { .. }) | Self::Privileges(_) => {
                found(Code::PermissionDenied, "process".to_owned())
            }
            Self::State(error) if error.is_full() => {
                let dir = run_dir.display();
                let found = Finding::new(Code::RunDirFull, format_args!("directory {dir}"), "");
                Some(found.fix(format!("df -h {dir}; df -i {dir}")))
            }
            Self::Unreadable { record } => {
                found(Code::RecordUnreadable, format!("file {}", record.display()))
            }
            Self::NewerRecord { record, .. } => {
                found(Code::RecordNewer, format!("file {}", record.display()))
            }
            Self::NotABridge(name, _) => {
                let found = Finding::new(Code::BridgeNameTaken, format_args!("link {name}"), "");
                Some(found.fix(renaming(name)))
            }
            Self::Several(errors) => errors.iter().find_map(|error| error.cause(run_dir)),
            _ => None,
        }
    }
}

/// Frees the name and keeps the link.
fn renaming(name: &IfName) -> String {
    let kept: String = name.as_str().chars().take(11).collect();
    format!("ip link set dev {name} down && ip link set dev {name} name old-{kept}")
}
