use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::Pod;

/// The operations of a CNI plugin: the value of CNI_COMMAND.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

/// One call of a plugin. A variable that is `None` is not set in the environment.
///
/// Tests override single fields with struct update: `Call { args: Some("K=v".into()), ..Call::pod(Verb::Add, &pod, &config) }`.
#[derive(Debug, Clone)]
pub struct Call {
    pub verb: Verb,
    pub container: Option<String>,
    pub netns: Option<String>,
    pub ifname: Option<String>,
    pub args: Option<String>,
    /// Additional variables; they override those above.
    pub env: Vec<(String, String)>,
    /// The network configuration, or any other input of a test.
    pub stdin: Vec<u8>,
}

impl Verb {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

impl Call {
    /// A call for a pod's `eth0`.
    pub fn pod(verb: Verb, pod: &Pod, config: &Value) -> Self {
        Self {
            container: Some(pod.id().to_owned()),
            netns: Some(pod.netns_path().display().to_string()),
            ifname: Some("eth0".to_owned()),
            ..Self::network(verb, config)
        }
    }

    /// A call without a container: GC, STATUS, VERSION.
    pub fn network(verb: Verb, config: &Value) -> Self {
        Self {
            verb,
            container: None,
            netns: None,
            ifname: None,
            args: None,
            env: vec![],
            stdin: config.to_string().into_bytes(),
        }
    }

    pub(crate) fn variables(&self) -> Vec<(&str, &str)> {
        let named = [
            ("CNI_CONTAINERID", &self.container),
            ("CNI_NETNS", &self.netns),
            ("CNI_IFNAME", &self.ifname),
            ("CNI_ARGS", &self.args),
        ];
        let defined = named.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        let extra = self.env.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        [("CNI_COMMAND", self.verb.as_str())].into_iter().chain(defined).chain(extra).collect()
    }
}

/// Adds the result of an earlier ADD to the configuration, as a runtime does for CHECK and DEL.
pub fn with_prev_result(config: &Value, result: &Value) -> Result<Value> {
    with_key(config, "prevResult", result.clone())
}

/// Adds the valid attachments of a GC. An early draft of the specification named the key `attachments`; libcni sends both.
pub(crate) fn with_valid_attachments(config: &Value, valid: &[(&str, &str)]) -> Result<Value> {
    let list: Value =
        valid.iter().map(|(container, ifname)| json!({"containerID": container, "ifname": ifname})).collect();
    let config = with_key(config, "cni.dev/valid-attachments", list.clone())?;
    with_key(&config, "cni.dev/attachments", list)
}

fn with_key(config: &Value, key: &str, value: Value) -> Result<Value> {
    let mut config = config.clone();
    let kind = "a plugin's network configuration, not a list of plugins";
    ensure!(config.get("plugins").is_none(), "{key} must be part of {kind}");
    let object =
        config.as_object_mut().with_context(|| format!("{key} must be part of an object: {kind}"))?;
    object.insert(key.to_owned(), value);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_variables_are_absent_and_extra_variables_override() {
        let call = Call {
            netns: Some(String::new()),
            env: vec![("CNI_NETNS".into(), "/x".into()), ("CNI_NETNS_OVERRIDE".into(), "1".into())],
            ..Call::network(Verb::Del, &json!({}))
        };
        let expected =
            [("CNI_COMMAND", "DEL"), ("CNI_NETNS", ""), ("CNI_NETNS", "/x"), ("CNI_NETNS_OVERRIDE", "1")];
        assert_eq!(call.variables(), expected);
    }

    #[test]
    fn prev_result_and_valid_attachments_are_added_to_the_config() {
        let config = with_prev_result(&json!({"name": "n"}), &json!({"ips": []})).unwrap();
        assert_eq!(config, json!({"name": "n", "prevResult": {"ips": []}}));
        let config = with_valid_attachments(&json!({"name": "n"}), &[("c1", "eth0")]).unwrap();
        let list = json!([{"containerID": "c1", "ifname": "eth0"}]);
        assert_eq!(config["cni.dev/valid-attachments"], list);
        assert_eq!(config["cni.dev/attachments"], list);
        assert!(with_prev_result(&json!([]), &json!({})).is_err());
        assert!(with_prev_result(&json!({"plugins": []}), &json!({})).is_err());
    }
}
