//! The two calls of Contiv's netplugin, in the format of its CNI plugin. They become an ADD and a DEL of the agent's network,
//! and the answer is converted to Contiv's format.

use std::collections::BTreeMap;

use api::CniCall;
use cni::{CniResult, Command, Var, Version};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use types::{NetworkName, RequestId};

pub(crate) const ADD_POD: &str = "/ContivCNI.AddPod";
pub(crate) const DEL_POD: &str = "/ContivCNI.DelPod";

/// Identity of a pod; Contiv's `CNIPodAttr`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContivPod {
    #[serde(rename = "K8S_POD_NAME")]
    name: String,
    #[serde(rename = "K8S_POD_NAMESPACE")]
    namespace: String,
    #[serde(rename = "K8S_POD_INFRA_CONTAINER_ID")]
    container: String,
    #[serde(rename = "CNI_NETNS")]
    netns: String,
    #[serde(rename = "CNI_IFNAME")]
    ifname: String,
}

/// Contiv's `RspAddPod`.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PodAnswer {
    /// 0 is success.
    result: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    endpointid: String,
    /// With prefix length, because the client parses it with ParseCIDR.
    #[serde(skip_serializing_if = "String::is_empty")]
    ipaddress: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    ipv6address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    errmsg: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    errinfo: String,
}

impl ContivPod {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Box<PodAnswer>> {
        let pod: Self = serde_json::from_slice(body).map_err(|e| {
            Box::new(PodAnswer::failed("cannot parse the request of Contiv's plugin", &e.to_string()))
        })?;
        for (field, value) in [("K8S_POD_NAME", &pod.name), ("K8S_POD_NAMESPACE", &pod.namespace)] {
            // Both become part of CNI_ARGS, where ';' and '=' are separators.
            if value.contains([';', '=']) {
                return Err(Box::new(PodAnswer::failed(
                    &format!("{field} must not contain ';' or '='"),
                    value,
                )));
            }
        }
        Ok(pod)
    }

    /// The same request as a CNI call of a runtime.
    pub(crate) fn call(&self, command: Command, network: &NetworkName, request_id: RequestId) -> CniCall {
        let mut args = vec!["IgnoreUnknown=1".to_owned()];
        let named = [
            ("K8S_POD_NAMESPACE", &self.namespace),
            ("K8S_POD_NAME", &self.name),
            ("K8S_POD_INFRA_CONTAINER_ID", &self.container),
        ];
        args.extend(named.iter().filter(|(_, v)| !v.is_empty()).map(|(key, value)| format!("{key}={value}")));
        let env = [
            (Var::Command, command.as_str()),
            (Var::ContainerId, &self.container),
            (Var::Netns, &self.netns),
            (Var::IfName, &self.ifname),
            (Var::Args, &args.join(";")),
        ];
        let env: BTreeMap<String, String> =
            env.iter().map(|(var, value)| (var.name().to_owned(), (*value).to_owned())).collect();
        let config =
            json!({ "cniVersion": Version::LATEST.as_str(), "name": network, "type": "podwire-cni" });
        CniCall { request_id, env, config: config.to_string() }
    }

    /// The endpoint ID in the answer.
    fn endpoint(&self, network: &NetworkName) -> String {
        format!("{network}/{}/{}", self.container, self.ifname)
    }

    /// The answer to a successful call. Only an ADD has a `result`.
    pub(crate) fn done(&self, network: &NetworkName, result: Option<&Value>) -> PodAnswer {
        let Some(result) = result else { return PodAnswer::default() };
        match CniResult::from_json(Version::LATEST, result) {
            Ok(result) => {
                let first = |is_v4: bool| {
                    let mut of_family = result.ips.iter().filter(|ip| ip.address.addr().is_ipv4() == is_v4);
                    of_family.next().map(|ip| ip.address.to_string()).unwrap_or_default()
                };
                PodAnswer {
                    endpointid: self.endpoint(network),
                    ipaddress: first(true),
                    ipv6address: first(false),
                    ..PodAnswer::default()
                }
            }
            Err(error) => PodAnswer::from(&error),
        }
    }
}

impl PodAnswer {
    pub(crate) fn failed(msg: &str, info: &str) -> Self {
        Self { result: 1, errmsg: msg.to_owned(), errinfo: info.to_owned(), ..Self::default() }
    }

    pub(crate) fn is_success(&self) -> bool {
        self.result == 0
    }
}

impl From<&cni::Error> for PodAnswer {
    fn from(error: &cni::Error) -> Self {
        Self::failed(&error.msg, &error.details)
    }
}

#[cfg(test)]
mod tests {
    use cni::{Env, ErrorCode, Request};

    use super::*;

    fn network() -> NetworkName {
        "podwire".try_into().unwrap()
    }

    fn id() -> RequestId {
        RequestId::from_random([7; 16])
    }

    fn pod() -> ContivPod {
        let body = json!({
            "K8S_POD_NAME": "web-1", "K8S_POD_NAMESPACE": "default", "K8S_POD_INFRA_CONTAINER_ID": "c0ffee",
            "CNI_NETNS": "/proc/4390/ns/net", "CNI_IFNAME": "eth0", "more": 1,
        });
        ContivPod::parse(body.to_string().as_bytes()).unwrap()
    }

    fn parsed(call: &CniCall) -> Request {
        let env = Env::from_vars(call.env.iter().map(|(k, v)| (k.into(), v.into())));
        Request::parse(&env, call.config.as_bytes()).unwrap()
    }

    #[test]
    fn b3_add_pod_becomes_an_add_of_the_agents_network() {
        let Request::Add(call) = parsed(&pod().call(Command::Add, &network(), id())) else { panic!() };
        assert_eq!(call.container.as_str(), "c0ffee");
        assert_eq!(call.ifname.as_str(), "eth0");
        assert_eq!(call.netns.as_deref(), Some("/proc/4390/ns/net"));
        assert_eq!(call.args.pod_namespace.as_deref(), Some("default"));
        assert_eq!(call.args.pod_name.as_deref(), Some("web-1"));
        assert_eq!(call.args.infra_container_id.as_deref(), Some("c0ffee"));
        assert_eq!(call.config.name, network());
    }

    #[test]
    fn b3_del_pod_needs_no_namespace() {
        let body = json!({ "K8S_POD_INFRA_CONTAINER_ID": "c0ffee", "CNI_IFNAME": "eth0" });
        let pod = ContivPod::parse(body.to_string().as_bytes()).unwrap();
        let Request::Del(call) = parsed(&pod.call(Command::Del, &network(), id())) else { panic!() };
        assert_eq!((call.container.as_str(), call.netns), ("c0ffee", None));
        assert_eq!(serde_json::to_value(pod.done(&network(), None)).unwrap(), json!({ "result": 0 }));
    }

    #[test]
    fn b3_the_answer_has_both_families_with_prefix_lengths() {
        let result = json!({ "cniVersion": "1.1.0", "ips": [
            { "address": "fd00:9::5/64" }, { "address": "10.9.0.5/24", "gateway": "10.9.0.1" } ] });
        let answer = pod().done(&network(), Some(&result));
        assert!(answer.is_success());
        assert_eq!(
            serde_json::to_value(answer).unwrap(),
            json!({ "result": 0, "endpointid": "podwire/c0ffee/eth0", "ipaddress": "10.9.0.5/24",
                    "ipv6address": "fd00:9::5/64" })
        );
    }

    #[test]
    fn b3_a_failure_has_result_1_message_and_details() {
        let error =
            cni::Error::new(ErrorCode::AddressesExhausted, "no address left").with_details("254 in use");
        let answer = PodAnswer::from(&error);
        assert!(!answer.is_success());
        assert_eq!(
            serde_json::to_value(answer).unwrap(),
            json!({ "result": 1, "errmsg": "no address left", "errinfo": "254 in use" })
        );
    }

    #[test]
    fn b3_a_pod_name_cannot_inject_cni_args() {
        let body = json!({ "K8S_POD_NAME": "x;IP=10.0.0.1", "K8S_POD_INFRA_CONTAINER_ID": "c" });
        assert!(!ContivPod::parse(body.to_string().as_bytes()).unwrap_err().is_success());
        assert!(!ContivPod::parse(b"7").unwrap_err().is_success());
        assert!(!ContivPod::parse(b"{").unwrap_err().is_success());
    }
}
