//! Commands with which an operator changes a configuration value permanently.

use std::collections::BTreeMap;
use std::path::PathBuf;

use types::{Finding, Fix};

use super::{Config, Key, Origin};

/// The environment file of deploy/podwire.service.
const ENV_FILE: &str = "/etc/podwire/agent.env";
/// Makes a changed configuration effective.
pub const RESTART: &str = "systemctl restart podwire";

/// Where keys were set, and the config file. It does not take part in comparisons: two configurations with the same values are
/// equal.
#[derive(Debug, Clone, Default)]
pub struct KeyOrigins {
    origins: BTreeMap<&'static str, Origin>,
    file: PathBuf,
}

impl PartialEq for KeyOrigins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for KeyOrigins {}

impl KeyOrigins {
    pub(super) fn new<'a>(
        origins: impl IntoIterator<Item = (&'a &'static str, &'a Origin)>,
        file: PathBuf,
    ) -> Self {
        let origins = origins.into_iter().map(|(name, origin)| (*name, origin.clone()));
        Self { origins: origins.collect(), file }
    }
}

impl Config {
    /// Where this key is set: `etcd.endpoints in FILE`, or the flag or variable that overrides the file.
    pub fn place(&self, key: &'static str) -> String {
        let KeyOrigins { origins, file } = &self.key_origins;
        match origins.get(key) {
            Some(Origin::Flag(flag)) => format!("the agent's flag --{flag}"),
            Some(Origin::Variable(name)) => format!("the variable {name}"),
            Some(Origin::File { .. } | Origin::Default) | None => format!("{key} in {}", file.display()),
        }
    }

    /// Asks the operator to set these values where the keys are set now, and to restart the agent.
    pub fn instruction(&self, values: &[(&'static str, String)]) -> String {
        let places: Vec<String> =
            values.iter().map(|(key, value)| format!("{} to {value}", self.place(key))).collect();
        format!("set {}, then restart the agent: {RESTART}", places.join(" and "))
    }

    /// Adds the command that sets the key to a finding. Flags override variables, so for a key set by a flag the message names
    /// the flag instead.
    pub fn propose(&self, finding: Finding, key: &str, value: &str) -> Finding {
        let Some(key) = Key::find(key) else { return finding };
        if let Some(Origin::Flag(_)) = self.key_origins.origins.get(key.name) {
            let message = format!("{}; start the agent with --{} {value}", finding.message, key.flag);
            return Finding { message, ..finding };
        }
        // The last line of the file may lack a trailing newline.
        let set =
            Fix::words(["printf", r"\n%s\n", &format!("{}={value}", key.variable())]).append_to(ENV_FILE);
        finding.fix(set.and(RESTART))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::{Args, FromArgMatches};
    use types::Code;

    use super::*;
    use crate::Flags;

    #[test]
    fn an_instruction_names_the_place_that_sets_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("agent.toml");
        std::fs::write(&file, "[network]\nmargin = 6\n").unwrap();
        let flags = Flags { config: Some(file.clone()), ..Flags::default() };
        let instruction = |env: &[(&str, &str)]| {
            let env = env.iter().map(|(k, v)| (k.into(), v.into()));
            let config = Config::load(&flags, [("PODWIRE_NODE".into(), "n".into())].into_iter().chain(env));
            config.unwrap().instruction(&[("network.margin", "8".to_owned())])
        };
        let restart = "then restart the agent: systemctl restart podwire";
        let wanted = format!("set network.margin in {} to 8, {restart}", file.display());
        assert_eq!(instruction(&[]), wanted);
        let by_variable = instruction(&[("PODWIRE_NETWORK_MARGIN", "5")]);
        assert_eq!(by_variable, format!("set the variable PODWIRE_NETWORK_MARGIN to 8, {restart}"));
    }

    #[test]
    fn b10_the_proposed_command_overrides_the_effective_value() {
        let proposed = |env: &[(&str, &str)], argv: &[&str]| {
            let matches = Flags::augment_args(clap::Command::new("agent"))
                .try_get_matches_from([&["agent", "--node", "n"], argv].concat())
                .unwrap();
            let env: Vec<(OsString, OsString)> = env.iter().map(|(k, v)| (k.into(), v.into())).collect();
            let config = Config::load(&Flags::from_arg_matches(&matches).unwrap(), env).unwrap();
            let finding = Finding::new(Code::SubnetOverlap, "link other", "it overlaps");
            config.propose(finding, "network.subnets", "10.84.0.0/16")
        };
        for env in [&[][..], &[("IP_SUBNET", "10.1.0.0/16")], &[("PODWIRE_NETWORK_SUBNETS", "10.1.0.0/16")]] {
            let command = r"printf '\n%s\n' PODWIRE_NETWORK_SUBNETS=10.84.0.0/16 >> /etc/podwire/agent.env && systemctl restart podwire";
            assert_eq!(proposed(env, &[]).fix.as_deref(), Some(command), "{env:?}");
        }
        let by_flag = proposed(&[], &["--network-subnet", "10.1.0.0/16"]);
        assert_eq!(by_flag.fix, None);
        assert_eq!(by_flag.message, "it overlaps; start the agent with --network-subnet 10.84.0.0/16");
    }
}
