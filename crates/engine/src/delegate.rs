//! Runs a delegated IPAM plugin as the CNI specification defines: it gets the complete config on stdin, and its stderr is
//! forwarded. It is the only child process of a request, and runs only if the config names one.
//!
//! A delegate runs as root, so it is restricted:
//! - Only [`Delegate::choose`] chooses a program. The agent uses directories from its own configuration and ignores the CNI_PATH
//!   of a client. It runs no program that another user could have changed.
//! - Podwire's own plugin is refused. It is detected by device and inode. Copies and chains of plugins are detected by the
//!   variable CNI_PODWIRE_DELEGATED, which every delegate gets and no request may have (`cni::Request`).
//! - The delegate gets the CNI variables and PATH, but no other variables of this process.
//! - A client of the agent cannot make it read an arbitrary file as `resolvConf` and return its lines in the result.
//! - The delegate has its own process group, which is killed on timeout.

mod exchange;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cni::{CniResult, NetworkConfig, Var};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde_json::{Map, Value};
use types::AttachmentKey;

use exchange::{DelegateExchange, DelegateState, ExchangeError, remaining};

use crate::Error;

/// Timeout of an IPAM plugin. `podwire-cni` waits longer for the agent's answer.
pub const DELEGATE_TIMEOUT: Duration = Duration::from_secs(55);
/// Maximum time that an ADD holds its record: it may call the plugin twice, for ADD and for DEL.
pub(crate) const MAX_HOLD_TIME: Duration = Duration::from_secs(130);
/// How long to wait for a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// A result of an IPAM plugin is not larger than a request.
const MAX_ANSWER: usize = cni::MAX_STDIN;
/// PATH of a delegate, for scripts.
const DELEGATE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The files that a client of the agent may name as `ipam.resolvConf`.
const RESOLV_CONF: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// The IPAM plugins that a request may run.
#[derive(Debug, Clone, Copy)]
pub enum Delegates<'a> {
    /// Plugins in its CNI_PATH. The runtime that started this process has set it.
    InCniPath,
    /// Plugins that the operator allows.
    Allowed(&'a AllowedDelegates),
}

/// The IPAM plugins in the agent's configuration. The default allows none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedDelegates {
    /// `delegate.directories`: absolute paths in search order.
    pub directories: Vec<PathBuf>,
    /// `delegate.plugins`: file names in these directories.
    pub plugins: Vec<String>,
}

/// For callers that run no delegates.
pub(crate) static NONE_ALLOWED: AllowedDelegates =
    AllowedDelegates { directories: Vec::new(), plugins: Vec::new() };

/// The purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DelegatePurpose {
    Use,
    /// DEL and GC. They must work with a config that an ADD would refuse now.
    Removal,
}

#[derive(Clone)]
pub(crate) struct Delegate<'a> {
    name: String,
    program: PathBuf,
    config: &'a NetworkConfig,
    stdin: Cow<'a, [u8]>,
    /// CNI_PATH, if it differs from the request's.
    path: Option<OsString>,
    call_timeout: Duration,
    /// Variables of the attachment, if it is not the request's.
    attachment: Vec<(&'static str, String)>,
}

impl<'a> Delegate<'a> {
    /// Sets the timeout of a call.
    pub(crate) fn within(self, call_timeout: Duration) -> Self {
        Self { call_timeout, ..self }
    }

    pub(crate) fn plugin(&self) -> &str {
        &self.name
    }

    pub(crate) fn find(name: &str, config: &'a NetworkConfig, allowed: Delegates<'_>) -> Result<Self, Error> {
        Self::choose(name, config, allowed, DelegatePurpose::Use)
    }

    fn choose(
        name: &str,
        config: &'a NetworkConfig,
        allowed: Delegates<'_>,
        purpose: DelegatePurpose,
    ) -> Result<Self, Error> {
        let failed = |reason: String| Error::Delegate { name: name.to_owned(), reason };
        let (directories, setting) = match allowed {
            Delegates::InCniPath => {
                let path = config.variables.path().unwrap_or_default();
                (path.into_iter().map(PathBuf::from).collect(), "CNI_PATH")
            }
            Delegates::Allowed(allowed) if allowed.plugins.iter().any(|plugin| plugin == name) => {
                (allowed.directories.clone(), "delegate.directories of the agent")
            }
            Delegates::Allowed(allowed) => {
                let plugins = allowed.plugins.join(", ");
                return Err(failed(format!("it is not in delegate.plugins of the agent ({plugins})")));
            }
        };
        let Some(program) = directories.iter().map(|dir| dir.join(name)).find(|program| program.is_file())
        else {
            let directories: Vec<_> = directories.iter().map(|dir| dir.display().to_string()).collect();
            return Err(failed(format!("not found in {setting} ({})", directories.join(":"))));
        };
        if is_podwire(&program, &directories, config) {
            return Err(Error::OwnDelegate { name: name.to_owned(), program });
        }
        let (stdin, path) = match allowed {
            Delegates::InCniPath => (Cow::Borrowed(config.raw.as_slice()), None),
            Delegates::Allowed(_) => {
                not_writable_by_all(&program).map_err(failed)?;
                let stdin = without_other_files(&config.raw, purpose).map_err(failed)?;
                let path =
                    std::env::join_paths(&directories).map_err(|e| failed(format!("{setting}: {e}")))?;
                (Cow::Owned(stdin), Some(path))
            }
        };
        Ok(Self {
            name: name.to_owned(),
            program,
            config,
            stdin,
            path,
            call_timeout: DELEGATE_TIMEOUT,
            attachment: Vec::new(),
        })
    }

    /// For DEL and GC. None if the plugin is Podwire itself: its ADD is refused, so there is nothing to release.
    pub(crate) fn find_for_removal(
        name: &str,
        config: &'a NetworkConfig,
        allowed: Delegates<'_>,
    ) -> Result<Option<Self>, Error> {
        match Self::choose(name, config, allowed, DelegatePurpose::Removal) {
            Err(Error::OwnDelegate { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// For DEL and GC: the IPAM plugin of the config. None if it names none.
    pub(crate) fn of_config(
        config: &'a NetworkConfig,
        allowed: Delegates<'_>,
    ) -> Result<Option<Self>, Error> {
        let plugin = netconf::external_ipam(config);
        plugin.map_or(Ok(None), |plugin| Self::find_for_removal(plugin, config, allowed))
    }

    /// The same plugin, called for this attachment.
    pub(crate) fn for_attachment(&self, key: &AttachmentKey, netns: Option<&str>) -> Self {
        let variables = [
            (Var::ContainerId.name(), key.container.to_string()),
            (Var::IfName.name(), key.ifname.to_string()),
        ];
        let netns = netns.map(|netns| (Var::Netns.name(), netns.to_owned()));
        Self { attachment: variables.into_iter().chain(netns).collect(), ..self.clone() }
    }

    /// Fails soon after `cancelled` returns true. [`Error::Cni`] is an error that the plugin returned.
    pub(crate) fn add(&self, cancelled: &dyn Fn() -> bool) -> Result<Vec<u8>, Error> {
        self.call_while("ADD", &|| !cancelled())
    }

    /// Parses the answer to an ADD.
    pub(crate) fn read(&self, answer: &[u8]) -> Result<CniResult, Error> {
        let value: Value =
            serde_json::from_slice(answer).map_err(|e| self.failed(format!("unreadable answer: {e}")))?;
        Ok(CniResult::from_json(self.config.version, &value)?)
    }

    pub(crate) fn del(&self) -> Result<(), Error> {
        self.call("DEL").map(drop)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.call("CHECK").map(drop)
    }

    pub(crate) fn gc(&self) -> Result<(), Error> {
        self.call("GC").map(drop)
    }

    pub(crate) fn status(&self) -> Result<(), Error> {
        self.call("STATUS").map(drop)
    }

    fn call(&self, verb: &str) -> Result<Vec<u8>, Error> {
        self.call_while(verb, &|| true)
    }

    fn call_while(&self, verb: &str, is_wanted: &dyn Fn() -> bool) -> Result<Vec<u8>, Error> {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            // The variables of the request, not of this process: an agent serves many requests.
            .envs(self.config.variables.all())
            .envs(self.path.as_ref().map(|path| (Var::Path.name(), path)))
            .envs(self.attachment.iter().map(|(name, value)| (name, value)))
            .env(Var::Command.name(), verb)
            .env(Var::Delegated.name(), "1")
            .env("PATH", DELEGATE_PATH)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| self.failed(format!("cannot run {}: {e}", self.program.display())))?;
        let answer = self.exchange(&mut child, is_wanted);
        if answer.is_err() {
            // Kills its children too. The child is not reaped yet, so the group ID is still valid. The group may be empty.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        }
        let status = self.reap(&mut child).map_err(|e| self.failed(format!("{verb}: {e}")));
        let (answer, status) = (answer?, status?);
        if status.success() {
            return Ok(answer);
        }
        // The plugin's error has its own code and message.
        let returned = serde_json::from_slice(&answer).ok().and_then(|value| cni::Error::from_json(&value));
        Err(match returned {
            Some(mut error) => {
                error.msg = format!("IPAM plugin {}: {}", self.name, error.msg);
                Error::Cni(error)
            }
            None => self.failed(format!("{verb} failed: {status}")),
        })
    }

    /// Writes the config and reads the answer until the child exits or the timeout expires.
    fn exchange(&self, child: &mut Child, is_wanted: &dyn Fn() -> bool) -> Result<Vec<u8>, Error> {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
            .map_err(|e| self.failed(format!("cannot watch the process: {e}")))?;
        let mut exchange = DelegateExchange {
            stdin: child.stdin.take(),
            unsent: &self.stdin,
            stdout: child.stdout.take(),
            answer: Vec::new(),
            child: DelegateState::Running(pidfd),
        };
        exchange.run(Instant::now() + self.call_timeout, is_wanted).map_err(|e| match e {
            ExchangeError::Cancelled => self.failed("the request was cancelled".to_owned()),
            ExchangeError::Timeout => {
                self.failed(format!("the process did not exit within {:?}", self.call_timeout))
            }
            ExchangeError::TooLarge => self.failed(format!("the answer is larger than {MAX_ANSWER} bytes")),
            ExchangeError::Io(e) => self.failed(format!("cannot communicate with the process: {e}")),
        })?;
        Ok(exchange.answer)
    }

    /// Reaps a child that exited or was killed.
    fn reap(&self, child: &mut Child) -> std::io::Result<std::process::ExitStatus> {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let deadline = Instant::now() + KILL_TIMEOUT;
        while let Some(timeout) = remaining(deadline) {
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return child.wait(),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(std::io::Error::new(
            ErrorKind::TimedOut,
            format!("the process was killed and still exists after {KILL_TIMEOUT:?}"),
        ))
    }

    /// Whether the plugin sends through the pod's interface, also to release the addresses.
    pub(crate) fn needs_interface(&self) -> bool {
        netconf::is_dhcp(&self.name)
    }

    pub(crate) fn failed(&self, reason: String) -> Error {
        Error::Delegate { name: self.name.clone(), reason }
    }
}

/// Whether this file is Podwire's plugin: the running program, or the program of the config's type. Links have the same inode.
fn is_podwire(program: &Path, directories: &[PathBuf], config: &NetworkConfig) -> bool {
    let inode = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    let named = Path::new(&config.plugin_type).file_name();
    let named = named.into_iter().flat_map(|own| directories.iter().map(move |dir| dir.join(own)));
    let target = inode(program);
    target.is_some() && named.chain([PathBuf::from("/proc/self/exe")]).any(|own| inode(&own) == target)
}

/// Refuses a program that every user can change or replace, also through a symlink. Another owner or group is accepted: plugin
/// archives are unpacked with them, and the runtime runs the plugins of that directory as root anyway.
fn not_writable_by_all(program: &Path) -> Result<(), String> {
    let real = program.canonicalize().map_err(|e| format!("cannot resolve {}: {e}", program.display()))?;
    for path in [program, &real] {
        for (height, part) in path.ancestors().enumerate() {
            let meta = part.metadata().map_err(|e| format!("cannot inspect {}: {e}", part.display()))?;
            let mode = meta.mode();
            // In a sticky parent directory (/tmp), other users can add files but not replace this one.
            let is_protected = height > 1 && mode & 0o1000 != 0;
            if mode & 0o002 != 0 && !is_protected {
                let (path, name) = (part.display(), part.to_string_lossy());
                let fix = types::Fix::words(["chmod", "o-w", &name]);
                return Err(format!("every user can change {path}: {fix}"));
            }
        }
    }
    Ok(())
}

/// Checks the config of a client of the agent, which may not name arbitrary files. A removal reads none, so the key is removed
/// then. The config is serialized again: if a key occurs twice, another parser may use the other value.
fn without_other_files(raw: &[u8], purpose: DelegatePurpose) -> Result<Vec<u8>, String> {
    let mut config: Map<String, Value> =
        serde_json::from_slice(raw).map_err(|e| format!("cannot read the config: {e}"))?;
    // Go ignores the case of keys, and accepts a long s for an s.
    let is_refused = |key: &str, file: &Value| {
        let is_allowed = file.is_null() || file == "" || RESOLV_CONF.iter().any(|allowed| file == allowed);
        key.to_uppercase() == "RESOLVCONF" && !is_allowed
    };
    for (_, ipam) in config.iter_mut().filter(|(key, _)| key.to_uppercase() == "IPAM") {
        let Some(ipam) = ipam.as_object_mut() else { continue };
        match purpose {
            DelegatePurpose::Removal => ipam.retain(|key, file| !is_refused(key, file)),
            DelegatePurpose::Use => {
                if let Some((_, file)) = ipam.iter().find(|(key, file)| is_refused(key, file)) {
                    let allowed = RESOLV_CONF.join(" or ");
                    return Err(format!("ipam.resolvConf {file} must be {allowed} with the agent"));
                }
            }
        }
    }
    serde_json::to_vec(&config).map_err(|e| format!("cannot write the config: {e}"))
}

#[cfg(test)]
mod tests;
