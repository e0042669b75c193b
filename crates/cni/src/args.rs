use types::Mac;

use crate::{Error, RequestedIp};

/// The limits of Kubernetes, in bytes. Names are written to the store, so their size is bounded.
const MAX_POD_NAMESPACE: usize = 63;
pub const MAX_POD_NAME: usize = 253;
/// Kubernetes has no limit. A uid has 36 bytes.
const MAX_POD_UID: usize = 128;

/// The parsed CNI_ARGS. Empty values are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Args {
    pub ignore_unknown: bool,
    pub pod_namespace: Option<String>,
    pub pod_name: Option<String>,
    pub infra_container_id: Option<String>,
    pub pod_uid: Option<String>,
    pub ip: Option<RequestedIp>,
    pub mac: Option<Mac>,
    /// The pod's placement. The keys are the label names of Podwire and Contiv.
    pub tenant: Option<String>,
    pub network: Option<String>,
    pub group: Option<String>,
}

impl Args {
    /// `K=V;K=V`. Keys are case-sensitive and values contain no `=`, as in the reference plugins. Unknown keys are an error
    /// unless the list contains IgnoreUnknown=1.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut args = Self::default();
        let mut unknown = Vec::new();
        if text.is_empty() {
            return Ok(args);
        }
        for pair in text.split(';') {
            match pair.split_once('=') {
                Some((key, value)) if !key.is_empty() && !value.contains('=') => {
                    if args.set(key, value)? == ArgKey::Unknown {
                        unknown.push(key);
                    }
                }
                Some(_) | None => {
                    return Err(Error::environment(format!(
                        "CNI_ARGS: {pair:?} is not KEY=VALUE; pairs are separated by one ';'"
                    )));
                }
            }
        }
        if unknown.is_empty() || args.ignore_unknown {
            return Ok(args);
        }
        let keys = unknown.join(", ");
        Err(Error::environment(format!("CNI_ARGS: unknown keys {keys}; IgnoreUnknown=1 ignores them")))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<ArgKey, Error> {
        let text = || Some(value.to_owned()).filter(|v| !v.is_empty());
        match key {
            "IgnoreUnknown" => self.ignore_unknown = go_bool(key, value)?,
            "K8S_POD_NAMESPACE" => self.pod_namespace = bounded(key, value, MAX_POD_NAMESPACE)?,
            "K8S_POD_NAME" => self.pod_name = bounded(key, value, MAX_POD_NAME)?,
            "K8S_POD_INFRA_CONTAINER_ID" => self.infra_container_id = text(),
            "K8S_POD_UID" => self.pod_uid = bounded(key, value, MAX_POD_UID)?,
            "podwire.io/tenant" | "io.contiv.tenant" => self.tenant = text(),
            "podwire.io/network" | "io.contiv.network" => self.network = text(),
            "podwire.io/group" | "io.contiv.net-group" => self.group = text(),
            "IP" => {
                self.ip = text().map(|v| v.parse()).transpose().map_err(|e: Error| invalid(key, &e.msg))?;
            }
            "MAC" => self.mac = text().map(|v| v.parse()).transpose().map_err(|e| invalid(key, &e))?,
            _ => return Ok(ArgKey::Unknown),
        }
        Ok(ArgKey::Known)
    }
}

#[derive(PartialEq, Eq)]
enum ArgKey {
    Known,
    Unknown,
}

/// An empty value is absent. The error does not quote the value.
fn bounded(key: &str, value: &str, max: usize) -> Result<Option<String>, Error> {
    match value.len() {
        0 => Ok(None),
        length if length <= max => Ok(Some(value.to_owned())),
        length => Err(invalid(key, &format_args!("it has {length} bytes; the maximum is {max}"))),
    }
}

/// `UnmarshallableBool` of the reference library.
fn go_bool(key: &str, value: &str) -> Result<bool, Error> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(invalid(key, &format_args!("{value:?} is not 1, true, 0 or false"))),
    }
}

fn invalid(key: &str, reason: &dyn std::fmt::Display) -> Error {
    Error::environment(format!("CNI_ARGS: {key}: {reason}"))
}
