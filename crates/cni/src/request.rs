use std::collections::BTreeSet;

use types::{AttachmentKey, ContainerId, IfName, Mac};

use crate::config::{ConfigBody, Need, decode, version_of};
use crate::json::{Item, Obj};
use crate::{Args, Command, Env, Error, ErrorCode, Failure, NetworkConfig, RequestedIp, Var, Version};

/// The largest config we read. Callers read one byte more, so that a larger one is seen as such and not cut.
pub const MAX_STDIN: usize = 1 << 20;

/// The newer key and the older one for the same list.
const VALID_ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// What a runtime asks, complete and checked.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Add(AttachmentRequest),
    Del(AttachmentRequest),
    Check(AttachmentRequest),
    Gc(Gc),
    Status(NetworkConfig),
    /// The version to answer in.
    Version(Version),
}

/// A request about one attachment.
#[derive(Debug, Clone, PartialEq)]
pub struct AttachmentRequest {
    pub container: ContainerId,
    pub ifname: IfName,
    /// Always there for ADD and CHECK. DEL comes without when the namespace is gone.
    pub netns: Option<String>,
    pub args: Args,
    pub netns_override: bool,
    pub config: NetworkConfig,
}

/// Which attachments of a network still exist; all others may go.
#[derive(Debug, Clone, PartialEq)]
pub struct Gc {
    pub config: NetworkConfig,
    pub valid: BTreeSet<(ContainerId, IfName)>,
}

impl AttachmentRequest {
    /// What the attachment is known by.
    pub fn key(&self) -> AttachmentKey {
        AttachmentKey {
            network: self.config.name.clone(),
            container: self.container.clone(),
            ifname: self.ifname.clone(),
        }
    }

    /// The addresses asked for, from CNI_ARGS, `args.cni.ips` and `runtimeConfig.ips`, each once.
    pub fn requested_ips(&self) -> Vec<RequestedIp> {
        let all = self.args.ip.iter().chain(&self.config.args_cni_ips).chain(&self.config.runtime.ips);
        let mut seen = BTreeSet::new();
        all.filter(|ip| seen.insert(ip.addr)).copied().collect()
    }

    /// The MAC asked for. The later source wins, as in the reference: CNI_ARGS, `args.cni.mac`, `runtimeConfig.mac`.
    pub fn requested_mac(&self) -> Option<Mac> {
        self.config.runtime.mac.or(self.config.args_cni_mac).or(self.args.mac)
    }
}

impl Request {
    /// The version to answer in, also with an error.
    pub fn version(&self) -> Version {
        match self {
            Request::Add(call) | Request::Del(call) | Request::Check(call) => call.config.version,
            Request::Gc(gc) => gc.config.version,
            Request::Status(config) => config.version,
            Request::Version(version) => *version,
        }
    }

    /// Understands a request, or says what is wrong with it: first with the command, then with the variables (all of
    /// them at once), then with the config.
    ///
    /// The error object is in the version of the request. Where that is not known (nothing readable on stdin) or not
    /// ours, it is in our newest: the field means the version in use by the plugin, and the object is the same in all.
    pub fn parse(env: &Env, stdin: &[u8]) -> Result<Request, Failure> {
        let map = decode(stdin);
        let version = map.as_ref().map_err(Error::clone).and_then(version_of);
        let spoken = *version.as_ref().unwrap_or(&Version::LATEST);
        let body = map.and_then(|map| Ok(ConfigBody { map, raw: stdin, version: version?, variables: env }));
        Self::read(env, body).map_err(|error| Failure { error, version: spoken })
    }

    fn read(env: &Env, body: Result<ConfigBody<'_>, Error>) -> Result<Request, Error> {
        let command = Command::parse(env.required(Var::Command)?)?;
        if env.is_delegated() && command != Command::Version {
            return Err(leads_back());
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
            Command::Status => Ok(Request::Status(NetworkConfig::read(allowed(command, body?)?, Need::All)?)),
            Command::Version => Ok(Request::Version(asked_version(body))),
        }
    }
}

/// A plugin that is its own IPAM plugin, directly or through others, would start processes without end.
fn leads_back() -> Error {
    let msg = format!("ipam.type leads back to Podwire: {} is set", Var::Delegated);
    Error::config(msg).with_details("name an IPAM plugin that does not run Podwire, or leave ipam.type out")
}

/// VERSION is how a runtime finds out what we speak, so nothing on stdin can make it fail. The answer is in the version
/// that it states, else in our newest.
fn asked_version(body: Result<ConfigBody<'_>, Error>) -> Version {
    let stated = body.and_then(|body| Version::stated(&Obj::root(&body.map)));
    stated.ok().flatten().unwrap_or(Version::LATEST)
}

/// Refuses commands that the config's version does not have.
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

/// What is wrong with the variables, collected so that one message names all of it.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn keep<T>(&mut self, outcome: Result<T, Error>) -> Option<T> {
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
        let need = if command == Command::Del { Need::Identity } else { Need::All };
        let mut problems = Problems::default();
        let container = problems.keep(parsed(env, Var::ContainerId));
        let netns = problems.keep(match need {
            Need::All => env.required(Var::Netns).map(|path| Some(path.to_owned())),
            Need::Identity => need.of(env.get(Var::Netns)).map(|path| path.map(str::to_owned)),
        });
        let ifname = problems.keep(parsed(env, Var::IfName));
        let args =
            problems.keep(need.of(env.get(Var::Args).and_then(|v| Args::parse(v.unwrap_or_default()))));
        let path = problems.keep(need.of(env.path()));
        let (Some(container), Some(netns), Some(ifname), Some(args), Some(_)) =
            (container, netns, ifname, args, path)
        else {
            return Err(problems.into_error());
        };
        let config = NetworkConfig::read(allowed(command, body?)?, need)?;
        Ok(Self { container, ifname, netns, args, netns_override: env.netns_override(), config })
    }
}

impl Gc {
    fn read(env: &Env, body: Result<ConfigBody<'_>, Error>) -> Result<Self, Error> {
        env.required(Var::Path)?;
        let config = NetworkConfig::read(allowed(Command::Gc, body?)?, Need::Identity)?;
        let valid = valid_attachments(&config.obj())?;
        Ok(Self { config, valid })
    }
}

/// The union of all lists that are there, in whatever spelling: one attachment too many is a small leak, one too few
/// cuts off a running pod. For the same reason a list that is absent, or an element that we cannot read, is an error.
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
