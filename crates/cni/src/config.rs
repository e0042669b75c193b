use serde_json::{Map, Value};
use types::{Mac, NetworkName};

use crate::address::requested;
use crate::json::{Obj, describe};
use crate::runtime::read_mac;
use crate::{Bandwidth, CniResult, Dns, Env, Error, RequestedIp, RuntimeConfig, Version};

/// A network config. Keys of the CNI specification are parsed. `map` has all keys, including those of the plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    pub version: Version,
    pub name: NetworkName,
    /// Empty if absent: only the runtime needs it, to find the plugin.
    pub plugin_type: String,
    pub prev_result: Option<CniResult>,
    pub runtime: RuntimeConfig,
    pub dns: Dns,
    /// `args.cni.ips`
    pub args_cni_ips: Vec<RequestedIp>,
    /// `args.cni.mac`
    pub args_cni_mac: Option<Mac>,
    pub ipam_type: Option<String>,
    pub map: Map<String, Value>,
    /// Stdin, byte for byte, for a delegate.
    pub raw: Vec<u8>,
    /// The variables of the request, for a delegate.
    pub variables: Env,
}

/// Which keys of a config must be valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validation {
    /// For ADD, CHECK and STATUS.
    All,
    /// For DEL and GC, which only need the network's identity. Other invalid keys count as absent: if an ADD fails because of
    /// its config, DEL with the same config must succeed.
    Identity,
}

impl Validation {
    pub(crate) fn apply<T: Default>(self, outcome: Result<T, Error>) -> Result<T, Error> {
        match self {
            Validation::All => outcome,
            Validation::Identity => Ok(outcome.unwrap_or_default()),
        }
    }
}

impl NetworkConfig {
    /// Parses a config as for ADD.
    pub fn from_slice(raw: &[u8]) -> Result<Self, Error> {
        let map = decode(raw)?;
        let version = version_of(&map)?;
        Self::read(ConfigBody { map, raw, version, variables: &Env::default() }, Validation::All)
    }

    pub(crate) fn read(body: ConfigBody<'_>, validation: Validation) -> Result<Self, Error> {
        let root = Obj::root(&body.map);
        let (args_cni_ips, args_cni_mac) = validation.apply(read_args_cni(&root))?;
        Ok(Self {
            version: body.version,
            name: read_name(&root)?,
            plugin_type: validation.apply(root.str("type"))?.unwrap_or_default().to_owned(),
            prev_result: validation.apply(read_prev_result(&root, body.version))?,
            runtime: validation.apply(read_runtime(&root))?,
            dns: validation.apply(read_dns(&root))?,
            args_cni_ips,
            args_cni_mac,
            ipam_type: validation.apply(read_ipam_type(&root))?,
            raw: body.raw.to_vec(),
            variables: body.variables.clone(),
            map: body.map,
        })
    }

    pub fn obj(&self) -> Obj<'_> {
        Obj::root(&self.map)
    }

    /// The DNS settings of the result: those of the runtime for this pod, else those of the network.
    pub fn result_dns(&self) -> &Dns {
        self.runtime.dns.as_ref().filter(|dns| !dns.is_empty()).unwrap_or(&self.dns)
    }
}

/// A decoded config of a supported version.
pub(crate) struct ConfigBody<'a> {
    pub(crate) map: Map<String, Value>,
    pub(crate) raw: &'a [u8],
    pub(crate) version: Version,
    pub(crate) variables: &'a Env,
}

pub(crate) fn decode(stdin: &[u8]) -> Result<Map<String, Value>, Error> {
    let limit = crate::MAX_STDIN;
    if stdin.len() > limit {
        return Err(Error::decode(format!("the network config on stdin is larger than {limit} bytes")));
    }
    if stdin.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::decode("stdin is empty: expected the network config, a JSON object"));
    }
    match serde_json::from_slice(stdin) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => {
            let (value, position) = (describe(&other), start_of_value(stdin));
            Err(Error::decode(format!(
                "the network config on stdin must be a JSON object, found {value} at {position}"
            )))
        }
        Err(e) => Err(Error::decode(format!("the network config on stdin is not JSON: {e}"))),
    }
}

/// The position of the first value, in the format of serde_json's errors.
fn start_of_value(stdin: &[u8]) -> String {
    let before: Vec<u8> = stdin.iter().copied().take_while(u8::is_ascii_whitespace).collect();
    let lines: Vec<_> = before.split(|b| *b == b'\n').collect();
    format!("line {} column {}", lines.len(), lines.last().map_or(0, |line| line.len()) + 1)
}

pub(crate) fn version_of(map: &Map<String, Value>) -> Result<Version, Error> {
    Ok(Version::stated(&Obj::root(map))?.unwrap_or(Version::UNSTATED))
}

fn read_name(root: &Obj<'_>) -> Result<NetworkName, Error> {
    let name = root
        .nonempty("name")?
        .ok_or_else(|| Error::config("name is missing: the network config needs one"))?;
    NetworkName::try_from(name).map_err(|e| Error::config(format!("name: {e}")))
}

fn read_prev_result(root: &Obj<'_>, version: Version) -> Result<Option<CniResult>, Error> {
    root.get("prevResult").map(|item| CniResult::read(version, &item)).transpose()
}

fn read_runtime(root: &Obj<'_>) -> Result<RuntimeConfig, Error> {
    let mut runtime =
        root.obj("runtimeConfig")?.map(|r| RuntimeConfig::read(&r)).transpose()?.unwrap_or_default();
    // Without limits for this pod, those of the network apply. The reference bandwidth plugin reads them from the top level.
    // Some configs have them in a `bandwidth` object, like `runtimeConfig`.
    if runtime.bandwidth.is_none() {
        runtime.bandwidth = root.obj("bandwidth")?.map_or(Ok(None), |b| Bandwidth::read(&b))?;
    }
    if runtime.bandwidth.is_none() {
        runtime.bandwidth = Bandwidth::read(root)?;
    }
    Ok(runtime)
}

fn read_dns(root: &Obj<'_>) -> Result<Dns, Error> {
    Ok(root.obj("dns")?.map(|dns| Dns::read(&dns)).transpose()?.unwrap_or_default())
}

fn read_args_cni(root: &Obj<'_>) -> Result<(Vec<RequestedIp>, Option<Mac>), Error> {
    let Some(args) = root.obj("args")? else { return Ok(Default::default()) };
    let Some(cni) = args.obj("cni")? else { return Ok(Default::default()) };
    Ok((requested(&cni.array("ips")?.unwrap_or_default())?, read_mac(&cni)?))
}

fn read_ipam_type(root: &Obj<'_>) -> Result<Option<String>, Error> {
    let Some(ipam) = root.obj("ipam")? else { return Ok(None) };
    Ok(ipam.nonempty("type")?.map(str::to_owned))
}
