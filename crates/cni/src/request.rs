use std::collections::BTreeSet;

use types::{AttachmentKey, ContainerId, IfName, Mac};

use crate::config::{ConfigBody, Validation, decode, version_of};
use crate::json::{Item, Obj};
use crate::{Args, Command, Env, Error, ErrorCode, Failure, NetworkConfig, RequestedIp, Var, Version};

/// The size limit of a config. Callers read one byte more, so that a larger config is detected and not truncated.
pub const MAX_STDIN: usize = 1 << 20;

/// The current and the former key of the same list.
const VALID_ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// A validated request of a runtime.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Add(AttachmentRequest),
    Del(AttachmentRequest),
    Check(AttachmentRequest),
    Gc(Gc),
    Status(NetworkConfig),
    /// The CNI version of the answer.
    Version(Version),
}

/// A request about one attachment.
#[derive(Debug, Clone, PartialEq)]
pub struct AttachmentRequest {
    pub container: ContainerId,
    pub ifname: IfName,
    /// Always set for ADD and CHECK. A DEL may have none if the namespace no longer exists.
    pub netns: Option<String>,
    pub args: Args,
    pub netns_override: bool,
    pub config: NetworkConfig,
}

/// A GC request. All attachments of the network that are not in `valid` are removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Gc {
    pub config: NetworkConfig,
    pub valid: BTreeSet<(ContainerId, IfName)>,
}

impl AttachmentRequest {
    pub fn key(&self) -> AttachmentKey {
        AttachmentKey {
            network: self.config.name.clone(),
            container: self.container.clone(),
            ifname: self.ifname.clone(),
        }
    }

    /// The requested addresses of CNI_ARGS, `args.cni.ips` and `runtimeConfig.ips`, without duplicates.
    pub fn requested_ips(&self) -> Vec<RequestedIp> {
        let all = self.args.ip.iter().chain(&self.config.args_cni_ips).chain(&self.config.runtime.ips);
        let mut unique = BTreeSet::new();
        all.filter(|ip| unique.insert(ip.addr)).copied().collect()
    }

    /// The requested MAC: `runtimeConfig.mac`, else `args.cni.mac`, else CNI_ARGS, as in the reference plugins.
    pub fn requested_mac(&self) -> Option<Mac> {
        self.config.runtime.mac.or(self.config.args_cni_mac).or(self.args.mac)
    }
}

impl Request {
    /// The CNI version of the answer, also of an error.
    pub fn version(&self) -> Version {
        match self {
            Request::Add(call) | Request::Del(call) | Request::Check(call) => call.config.version,
            Request::Gc(gc) => gc.config.version,
            Request::Status(config) => config.version,
            Request::Version(version) => *version,
        }
    }

    /// Parses and validates a request. The order of checks is the command, the variables and the config. One error names all
    /// invalid variables.
    ///
    /// The error object has the version of the request. If that version is unknown or not supported, it has the newest
    /// supported version. The error object is the same in all versions.
    pub fn parse(env: &Env, stdin: &[u8]) -> Result<Request, Failure> {
        let map = decode(stdin);
        let version = map.as_ref().map_err(Error::clone).and_then(version_of);
        let answer_version = *version.as_ref().unwrap_or(&Version::LATEST);
        let body = map.and_then(|map| Ok(ConfigBody { map, raw: stdin, version: version?, variables: env }));
        Self::read(env, body).map_err(|error| Failure { error, version: answer_version })
    }

    fn read(env: &Env, body: Result<ConfigBody<'_>, Error>) -> Result<Request, Error> {
        let command = Command::parse(env.required(Var::Command)?)?;
        if env.is_delegated() && command != Command::Version {
            return Err(recursive_ipam());
        }
        match command {
            Command::Add => Ok(Request::Add(AttachmentRequest::read(command, env, body)?)),
            Command::Del => Ok(Request::Del(AttachmentRequest::read(command, env, body)?)),
            Command::Check => {
                let call = AttachmentRequest::read(command, env, body)?;
                if call.config.prev_result.is_none() {
                    return Err(Error::config("prevResult is missing: CHECK needs the result of the ADD"));
                }
                Ok(Request::Check(call))
            }
            Command::Gc => Ok(Request::Gc(Gc::read(env, body)?)),
            Command::Status => {
                Ok(Request::Status(NetworkConfig::read(allowed(command, body?)?, Validation::All)?))
            }
            Command::Version => Ok(Request::Version(stated_version(body))),
        }
    }
}

/// If Podwire were its own IPAM plugin, directly or through another plugin, it would start processes endlessly.
fn recursive_ipam() -> Error {
    let msg = format!("ipam.type leads back to Podwire: {} is set", Var::Delegated);
    Error::config(msg).with_details("use an IPAM plugin that does not run Podwire, or remove ipam.type")
}

/// Runtimes use VERSION to find the supported versions, so it succeeds with any stdin. The answer has the version in stdin,
/// else the newest supported version.
fn stated_version(body: Result<ConfigBody<'_>, Error>) -> Version {
    let stated = body.and_then(|body| Version::stated(&Obj::root(&body.map)));
    stated.ok().flatten().unwrap_or(Version::LATEST)
}

/// Refuses commands that the config's version does not define.
fn allowed(command: Command, body: ConfigBody<'_>) -> Result<ConfigBody<'_>, Error> {
    let since = match command {
        Command::Add | Command::Del | Command::Version => Version::V0_1_0,
        Command::Check => Version::V0_4_0,
        Command::Gc | Command::Status => Version::V1_1_0,
    };
    if body.version >= since {
        return Ok(body);
    }
    let msg = format!("config version does not allow {command}");
    let details = format!("cniVersion is {}, {command} needs {since} or newer", body.version);
    Err(Error::new(ErrorCode::IncompatibleVersion, msg).with_details(details))
}

/// Collects the errors of all variables for one message.
#[derive(Default)]
struct VariableErrors(Vec<String>);

impl VariableErrors {
    fn collect<T>(&mut self, outcome: Result<T, Error>) -> Option<T> {
        outcome.map_err(|e| self.0.push(e.msg)).ok()
    }

    fn into_error(self) -> Error {
        Error::environment(self.0.join("; "))
    }
}

fn parsed<'e, T, E>(env: &'e Env, var: Var) -> Result<T, Error>
where
    T: TryFrom<&'e str, Error = E>,
    E: std::fmt::Display,
{
    T::try_from(env.required(var)?).map_err(|e| Error::environment(format!("{var}: {e}")))
}

impl AttachmentRequest {
    fn read(command: Command, env: &Env, body: Result<ConfigBody<'_>, Error>) -> Result<Self, Error> {
        let validation = if command == Command::Del { Validation::Identity } else { Validation::All };
        let mut errors = VariableErrors::default();
        let container = errors.collect(parsed(env, Var::ContainerId));
        let netns = errors.collect(match validation {
            Validation::All => env.required(Var::Netns).map(|path| Some(path.to_owned())),
            Validation::Identity => validation.apply(env.get(Var::Netns)).map(|path| path.map(str::to_owned)),
        });
        let ifname = errors.collect(parsed(env, Var::IfName));
        let args = env.get(Var::Args).and_then(|v| Args::parse(v.unwrap_or_default()));
        let args = errors.collect(validation.apply(args));
        let path = errors.collect(validation.apply(env.path()));
        let (Some(container), Some(netns), Some(ifname), Some(args), Some(_)) =
            (container, netns, ifname, args, path)
        else {
            return Err(errors.into_error());
        };
        let config = NetworkConfig::read(allowed(command, body?)?, validation)?;
        Ok(Self { container, ifname, netns, args, netns_override: env.netns_override(), config })
    }
}

impl Gc {
    fn read(env: &Env, body: Result<ConfigBody<'_>, Error>) -> Result<Self, Error> {
        env.required(Var::Path)?;
        let config = NetworkConfig::read(allowed(Command::Gc, body?)?, Validation::Identity)?;
        let valid = valid_attachments(&config.obj())?;
        Ok(Self { config, valid })
    }
}

/// The union of all lists, with keys in any case. A surplus attachment is a small leak, but a missing one would disconnect a
/// running pod. For the same reason, a missing list or an invalid element is an error.
fn valid_attachments(config: &Obj<'_>) -> Result<BTreeSet<(ContainerId, IfName)>, Error> {
    let lists: Vec<_> = VALID_ATTACHMENTS.into_iter().flat_map(|key| config.spellings(key)).collect();
    if lists.is_empty() {
        let key = VALID_ATTACHMENTS[0];
        return Err(Error::config(format!("{key} is missing: GC needs the list of attachments to keep")));
    }
    let mut valid = BTreeSet::new();
    for list in lists.iter().filter(|list| !list.is_null()) {
        for element in list.array()? {
            valid.insert(attachment(&element).map_err(|e| Error { code: ErrorCode::InvalidConfig, ..e })?);
        }
    }
    Ok(valid)
}

fn attachment(element: &Item<'_>) -> Result<(ContainerId, IfName), Error> {
    let object = element.obj()?;
    let container = ContainerId::try_from(object.str("containerID")?.unwrap_or_default());
    let ifname = IfName::try_from(object.str("ifname")?.unwrap_or_default());
    match (container, ifname) {
        (Ok(container), Ok(ifname)) => Ok((container, ifname)),
        (Err(e), _) => Err(Error::config(format!("{}.containerID: {e}", element.path()))),
        (_, Err(e)) => Err(Error::config(format!("{}.ifname: {e}", element.path()))),
    }
}
