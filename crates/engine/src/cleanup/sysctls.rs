//! The sysctls that were changed, as they were before, unless another program needs them by now.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use netlink::Link;

use super::Leaving;
use super::dependants::Dependants;
use crate::Error;
use crate::state::{Changed, NodeState, Sysctl, sysctl_key};

/// The settings of the whole machine that every network needs.
const FORWARDING: [&str; 2] = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"];

impl Leaving {
    /// A sysctl that another program changed afterwards stays as it is (F7).
    pub(super) fn restore_sysctls(&mut self, state: &NodeState) -> Result<(), Error> {
        let changes = state.sysctls().read()?;
        self.report.left.extend(changes.refused.iter().map(|path| {
            format!("{path:?} is recorded as a setting that Podwire changed, which it never is: not touched")
        }));
        if changes.known.is_empty() {
            return Ok(());
        }
        let dependants = Dependants::observe(&mut self.host)?;
        let mut settings: Vec<Setting> = changes.known.into_iter().filter_map(Setting::read).collect();
        // The machine's first: the kernel sets those of all links with them.
        settings.sort_by_key(|setting| !setting.sysctl.is_of_all_links());
        settings.iter().try_for_each(|setting| self.restore(setting, &dependants))
    }

    /// The record of the earlier values is lost with the state directory. Without anything else of Podwire, forwarding is
    /// another program's.
    pub(super) fn report_sysctls(&mut self) {
        if self.report.done.is_empty() {
            return;
        }
        for path in FORWARDING.map(Path::new) {
            if let Some(now) = read_sysctl(path).filter(|now| now != "0") {
                let key = sysctl_key(path);
                self.report.kept.push(format!("{key} is {now}; its value before Podwire is not known"));
            }
        }
    }

    fn restore(&mut self, setting: &Setting, dependants: &Dependants) -> Result<(), Error> {
        let Setting { sysctl, changed, now } = setting;
        let (path, before) = (sysctl.path().display(), &changed.before);
        if changed.is_kept() {
            // It was so before the whole machine's was, and is restored with that.
            return if setting.is_changed() { self.write(setting) } else { Ok(()) };
        }
        if *now != changed.ours {
            if now != before {
                self.report.left.push(format!(
                    "{path} is {now}: it was {before} before Podwire set {}, and another program changed it since",
                    changed.ours
                ));
            }
            return Ok(());
        }
        let user = if self.is_shared(&path.to_string())? {
            Some(self.others.names())
        } else {
            dependants.of(sysctl, changed).map(ToOwned::to_owned)
        };
        let Some(user) = user else { return self.write(setting) };
        self.report.kept.push(format!(
            "{path} stays {now}: {user} needs it; it was {before} before (sysctl -w {}={before})",
            sysctl.key()
        ));
        Ok(())
    }

    fn write(&mut self, setting: &Setting) -> Result<(), Error> {
        let (path, value) = (setting.sysctl.path(), setting.changed.before.clone());
        write_sysctl(path, &value).map_err(|source| Error::Sysctl {
            path: path.to_owned(),
            value: value.clone(),
            source,
        })?;
        self.report.done.push(format!("{} back to {value}", path.display()));
        Ok(())
    }

    /// Everything but the settings of a bridge that only this run directory used. A setting of the whole node serves the pods
    /// of other run directories, too: without forwarding they would be cut off.
    fn is_shared(&mut self, path: &str) -> Result<bool, Error> {
        if self.others.is_empty() {
            return Ok(false);
        }
        let links = self.host.links()?;
        let is_of = |link: &&Link| path.split('/').any(|part| part == link.name);
        let own = links.iter().filter(|link| self.own.bridges.contains(&link.name)).find(is_of);
        let Some(bridge) = own else { return Ok(true) };
        let is_port = |link: &Link| link.master == Some(bridge.index) && self.others.has(link);
        Ok(links.iter().any(is_port) || self.may_need(bridge)?)
    }
}

/// A setting that was recorded, and what it was when cleanup began with them.
struct Setting {
    sysctl: Sysctl,
    changed: Changed,
    now: String,
}

impl Setting {
    /// None: its link is gone.
    fn read((sysctl, changed): (Sysctl, Changed)) -> Option<Self> {
        let now = read_sysctl(sysctl.path())?;
        Some(Self { sysctl, changed, now })
    }

    /// Whether it was changed since it was read.
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
