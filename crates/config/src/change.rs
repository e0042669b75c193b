//! Commands with which an operator changes a configuration value permanently.

use types::{Finding, Fix};

use super::{Config, Key, Origin};

/// The environment file of deploy/podwire.service.
const ENV_FILE: &str = "/etc/podwire/agent.env";

/// The keys that were set by flags. They do not take part in comparisons: two configurations with the same values are equal.
#[derive(Debug, Clone, Default)]
pub struct FlagKeys(Vec<&'static str>);

impl PartialEq for FlagKeys {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for FlagKeys {}

impl FlagKeys {
    pub(super) fn new<'a>(origins: impl IntoIterator<Item = (&'a &'static str, &'a Origin)>) -> Self {
        let is_flag = |(_, origin): &(&&'static str, &Origin)| matches!(origin, Origin::Flag(_));
        Self(origins.into_iter().filter(is_flag).map(|(name, _)| *name).collect())
    }
}

impl Config {
    /// Adds the command that sets the key to a finding. Flags override variables, so for a key set by a flag the message names
    /// the flag instead.
    pub fn propose(&self, finding: Finding, key: &str, value: &str) -> Finding {
        let Some(key) = Key::find(key) else { return finding };
        if self.flag_keys.0.contains(&key.name) {
            let message = format!("{}; start the agent with --{} {value}", finding.message, key.flag);
            return Finding { message, ..finding };
        }
        // The last line of the file may lack a trailing newline.
        let set =
            Fix::words(["printf", r"\n%s\n", &format!("{}={value}", key.variable())]).append_to(ENV_FILE);
        finding.fix(set.and("systemctl restart podwire"))
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
