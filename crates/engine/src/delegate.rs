//! Another IPAM plugin, called as the spec says: the whole config on stdin, its stderr forwarded. A child process of a
//! request, and only where a config asks for it.
//!
//! Limits, because a delegate runs as root:
//! - [`Delegate::choose`] is the only place that chooses a program. The agent takes it from directories of its own
//!   configuration, whatever CNI_PATH a client sends, and runs nothing that another user could have changed.
//! - The plugin itself is refused: by device and inode here, and through copies or other plugins by the variable
//!   CNI_PODWIRE_DELEGATED, which every delegate has and no request may have (`cni::Request`).
//! - It gets the CNI variables and PATH, and nothing else of this process's environment.
//! - A client of the agent cannot have it read a file as `resolvConf`, whose lines would be in the result.
//! - It has a process group of its own, which is killed when it takes too long.

mod talk;

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

use talk::{Broken, DelegateLife, Talk, remaining};

use crate::Error;

/// How long an IPAM plugin may take. `podwire-cni` waits longer for the agent's answer.
pub const DELEGATE_TIMEOUT: Duration = Duration::from_secs(55);
/// How long an ADD may hold its record: the plugin is called, and called once more to give the addresses back.
pub(crate) const LONGEST: Duration = Duration::from_secs(130);
/// How long the kernel may take to end one that was killed.
const DYING: Duration = Duration::from_secs(5);
/// No result of an IPAM plugin is larger than a request may be.
const LARGEST_ANSWER: usize = cni::MAX_STDIN;
/// Where a delegate that is a script finds its programs.
const PROGRAMS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The files that a client of the agent may name as `ipam.resolvConf`.
const RESOLV_CONF: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// Which IPAM plugins a request may have run.
#[derive(Debug, Clone, Copy)]
pub enum Delegates<'a> {
    /// Those in its CNI_PATH: this process was started by the runtime that set it.
    InCniPath,
    /// Those that the operator allows.
    Allowed(&'a AllowedDelegates),
}

/// What the agent's configuration says about IPAM plugins. The default allows none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedDelegates {
    /// `delegate.directories`: absolute paths, in the order of the search.
    pub directories: Vec<PathBuf>,
    /// `delegate.plugins`: file names in them.
    pub plugins: Vec<String>,
}

/// For callers that run none.
pub(crate) static NONE_ALLOWED: AllowedDelegates =
    AllowedDelegates { directories: Vec::new(), plugins: Vec::new() };

/// What it is run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DelegatePurpose {
    Use,
    /// DEL and GC, which must work with a config whose ADD would be refused now.
    Removal,
}

#[derive(Clone)]
pub(crate) struct Delegate<'a> {
    name: String,
    program: PathBuf,
    config: &'a NetworkConfig,
    stdin: Cow<'a, [u8]>,
    /// CNI_PATH, where it is not the request's own.
    path: Option<OsString>,
    call_timeout: Duration,
    /// The attachment that it is called about, where it is not the request's.
    about: Vec<(&'static str, String)>,
}

impl<'a> Delegate<'a> {
    /// Waits at most so long for an answer.
    pub(crate) fn within(self, call_timeout: Duration) -> Self {
        Self { call_timeout, ..self }
    }

    /// The plugin's name.
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
        let failed = |what: String| Error::Delegate { name: name.to_owned(), what };
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
            about: Vec::new(),
        })
    }

    /// For DEL and GC. None: it is Podwire itself, whose ADD is refused, so that it has nothing to give back.
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

    /// For DEL and GC: the IPAM plugin that the config names, if it names one.
    pub(crate) fn of_config(
        config: &'a NetworkConfig,
        allowed: Delegates<'_>,
    ) -> Result<Option<Self>, Error> {
        let plugin = netconf::external_ipam(config);
        plugin.map_or(Ok(None), |plugin| Self::find_for_removal(plugin, config, allowed))
    }

    /// The same plugin, called about this attachment.
    pub(crate) fn about(&self, key: &AttachmentKey, netns: Option<&str>) -> Self {
        let about = [
            (Var::ContainerId.name(), key.container.to_string()),
            (Var::IfName.name(), key.ifname.to_string()),
        ];
        let netns = netns.map(|netns| (Var::Netns.name(), netns.to_owned()));
        Self { about: about.into_iter().chain(netns).collect(), ..self.clone() }
    }

    /// Ends with an error soon after `cancelled` returns true. [`Error::Cni`] is the plugin's own refusal.
    pub(crate) fn add(&self, cancelled: &dyn Fn() -> bool) -> Result<Vec<u8>, Error> {
        self.call_while("ADD", &|| !cancelled())
    }

    /// The answer to an ADD.
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
            // Not those of this process: an agent serves many requests.
            .envs(self.config.variables.all())
            .envs(self.path.as_ref().map(|path| (Var::Path.name(), path)))
            .envs(self.about.iter().map(|(name, value)| (name, value)))
            .env(Var::Command.name(), verb)
            .env(Var::Delegated.name(), "1")
            .env("PATH", PROGRAMS)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| self.failed(format!("cannot run {}: {e}", self.program.display())))?;
        let answer = self.converse(&mut child, is_wanted);
        if answer.is_err() {
            // With everything that it started. It is not reaped yet, so the group is still its own; it may be empty.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        }
        let status = self.reap(&mut child).map_err(|e| self.failed(format!("{verb}: {e}")));
        let (answer, status) = (answer?, status?);
        if status.success() {
            return Ok(answer);
        }
        // Its own error, with its own code, says it best.
        let theirs = serde_json::from_slice(&answer).ok().and_then(|value| cni::Error::from_json(&value));
        Err(match theirs {
            Some(mut error) => {
                error.msg = format!("IPAM plugin {}: {}", self.name, error.msg);
                Error::Cni(error)
            }
            None => self.failed(format!("{verb} ended with {status}")),
        })
    }

    /// Writes the config and reads the answer until the child has ended, with an end to the wait.
    fn converse(&self, child: &mut Child, is_wanted: &dyn Fn() -> bool) -> Result<Vec<u8>, Error> {
        let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
            .map_err(|e| self.failed(format!("cannot watch it: {e}")))?;
        let mut talk = Talk {
            stdin: child.stdin.take(),
            unsent: &self.stdin,
            stdout: child.stdout.take(),
            answer: Vec::new(),
            life: DelegateLife::Running(ended),
        };
        talk.run(Instant::now() + self.call_timeout, is_wanted).map_err(|e| match e {
            Broken::Unwanted => self.failed("its addresses are not wanted any more".to_owned()),
            Broken::Late => self.failed(format!("it did not end within {:?}", self.call_timeout)),
            Broken::TooLarge => self.failed(format!("its answer is larger than {LARGEST_ANSWER} bytes")),
            Broken::Io(e) => self.failed(format!("cannot talk to it: {e}")),
        })?;
        Ok(talk.answer)
    }

    /// It has ended, or was killed.
    fn reap(&self, child: &mut Child) -> std::io::Result<std::process::ExitStatus> {
        let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let deadline = Instant::now() + DYING;
        while let Some(timeout) = remaining(deadline) {
            match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return child.wait(),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(std::io::Error::new(
            ErrorKind::TimedOut,
            format!("it was killed and is still there after {DYING:?}"),
        ))
    }

    /// Whether it sends through the pod's interface, also to give the addresses back.
    pub(crate) fn needs_interface(&self) -> bool {
        netconf::is_dhcp(&self.name)
    }

    pub(crate) fn failed(&self, what: String) -> Error {
        Error::Delegate { name: self.name.clone(), what }
    }
}

/// Whether this file is the plugin: the running program, or the one that the config's type names. Links have its inode.
fn is_podwire(program: &Path, directories: &[PathBuf], config: &NetworkConfig) -> bool {
    let inode = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    let named = Path::new(&config.plugin_type).file_name();
    let named = named.into_iter().flat_map(|own| directories.iter().map(move |dir| dir.join(own)));
    let found = inode(program);
    found.is_some() && named.chain([PathBuf::from("/proc/self/exe")]).any(|own| inode(&own) == found)
}

/// Refuses a program that every user can change or replace, also where a link leads to it. Another owner or group is accepted:
/// archives of plugins unpack so, and the runtime runs the plugins of that directory as root anyway.
fn not_writable_by_all(program: &Path) -> Result<(), String> {
    let real = program.canonicalize().map_err(|e| format!("cannot follow {}: {e}", program.display()))?;
    for path in [program, &real] {
        for (height, part) in path.ancestors().enumerate() {
            let meta = part.metadata().map_err(|e| format!("cannot inspect {}: {e}", part.display()))?;
            let mode = meta.mode();
            // Further up, a sticky directory (/tmp) lets other users add names, but not change this one.
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

/// The config of a client of the agent, which may not name a file to read; a removal reads none, so the key is left out.
/// Serialized again, because of a key that is there twice another parser may take the other value.
fn without_other_files(raw: &[u8], purpose: DelegatePurpose) -> Result<Vec<u8>, String> {
    let mut config: Map<String, Value> =
        serde_json::from_slice(raw).map_err(|e| format!("cannot read the config: {e}"))?;
    // Go takes a key in any case, and a long s for an s.
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
