//! Restores changed sysctls, unless another program needs them.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use netlink::Link;

use super::CleanupRun;
use super::dependants::Dependants;
use crate::Error;
use crate::state::{NodeState, Sysctl, SysctlChange, sysctl_key};

/// Host-wide settings that every network needs.
const FORWARDING: [&str; 2] = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"];

impl CleanupRun {
    /// A sysctl that another program changed afterwards is not restored (F7).
    pub(super) fn restore_sysctls(&mut self, state: &NodeState) -> Result<(), Error> {
        let changes = state.sysctls().read()?;
        self.report.remaining.extend(changes.refused.iter().map(|path| {
            format!("{path:?} is recorded as a changed sysctl, but Podwire never changes it: not restored")
        }));
        if changes.known.is_empty() {
            return Ok(());
        }
        let dependants = Dependants::observe(&mut self.host)?;
        let mut settings: Vec<Setting> = changes.known.into_iter().filter_map(Setting::read).collect();
        // Host-wide settings first: the kernel applies them to all links.
        settings.sort_by_key(|setting| !setting.sysctl.applies_to_all_links());
        settings.iter().try_for_each(|setting| self.restore(setting, &dependants))
    }

    /// The old values are lost with the state directory. If cleanup found no objects of Podwire, another program may have enabled
    /// forwarding, and nothing is reported.
    pub(super) fn report_sysctls(&mut self) {
        if self.report.changes.is_empty() {
            return;
        }
        for path in FORWARDING.map(Path::new) {
            if let Some(now) = read_sysctl(path).filter(|now| now != "0") {
                let key = sysctl_key(path);
                self.report
                    .kept_settings
                    .push(format!("{key} is {now}; its value before Podwire is not known"));
            }
        }
    }

    fn restore(&mut self, setting: &Setting, dependants: &Dependants) -> Result<(), Error> {
        let Setting { sysctl, change, now } = setting;
        let (path, before) = (sysctl.path().display(), &change.before);
        if change.is_unchanged() {
            // Podwire did not change this value, but restoring a host-wide setting may just have overwritten it.
            return if setting.is_changed() { self.write(setting) } else { Ok(()) };
        }
        if *now != change.after {
            if now != before {
                self.report.remaining.push(format!(
                    "{path} is {now}: it was {before} before Podwire set {}, and another program changed it since",
                    change.after
                ));
            }
            return Ok(());
        }
        let user = if self.is_shared(&path.to_string())? {
            Some(self.other_networks.names())
        } else {
            dependants.of(sysctl, change).map(ToOwned::to_owned)
        };
        let Some(user) = user else { return self.write(setting) };
        self.report.kept_settings.push(format!(
            "{path} stays {now}: {user} needs it; it was {before} before (sysctl -w {}={before})",
            sysctl.key()
        ));
        Ok(())
    }

    fn write(&mut self, setting: &Setting) -> Result<(), Error> {
        let (path, value) = (setting.sysctl.path(), setting.change.before.clone());
        write_sysctl(path, &value).map_err(|source| Error::Sysctl {
            path: path.to_owned(),
            value: value.clone(),
            source,
        })?;
        self.report.changes.push(format!("{} restored to {value}", path.display()));
        Ok(())
    }

    /// Whether pods of other run directories need the setting: all host-wide settings, for example forwarding, and those of
    /// bridges that they use.
    fn is_shared(&mut self, path: &str) -> Result<bool, Error> {
        if self.other_networks.is_empty() {
            return Ok(false);
        }
        let links = self.host.links()?;
        let is_of = |link: &&Link| path.split('/').any(|part| part == link.name);
        let own = links.iter().filter(|link| self.own.bridges.contains(&link.name)).find(is_of);
        let Some(bridge) = own else { return Ok(true) };
        let is_port = |link: &Link| link.master == Some(bridge.index) && self.other_networks.has(link);
        Ok(links.iter().any(is_port) || self.may_be_needed(bridge)?)
    }
}

/// A recorded setting, and its value before cleanup restored any setting.
struct Setting {
    sysctl: Sysctl,
    change: SysctlChange,
    now: String,
}

impl Setting {
    /// None if its link does not exist.
    fn read((sysctl, change): (Sysctl, SysctlChange)) -> Option<Self> {
        let now = read_sysctl(sysctl.path())?;
        Some(Self { sysctl, change, now })
    }

    /// Whether the value changed after it was read.
    fn is_changed(&self) -> bool {
        read_sysctl(self.sysctl.path()).is_some_and(|now| now != self.now)
    }
}

fn read_sysctl(path: &Path) -> Option<String> {
    files::read_text(path).ok().map(|text| text.trim().to_owned())
}

fn write_sysctl(path: &Path, value: &str) -> std::io::Result<()> {
    files::open(path, File::options().write(true))?.write_all(value.as_bytes())
}
