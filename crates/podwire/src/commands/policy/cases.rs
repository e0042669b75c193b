//! Documents of kind PolicyTest: flows and the expected verdicts.

use anyhow::{Context as _, Result, anyhow, bail};
use policy::{PolicyVerdict, ProtocolNumber};
use serde::Deserialize;
use serde_json::Value;
use types::Protocol;

use model::Document;

const ICMP: ProtocolNumber = 1;

/// One expected verdict.
#[derive(Debug, Clone)]
pub(super) struct PolicyCase {
    /// File and line of its document, and its number there.
    pub(super) origin: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) traffic: FlowTraffic,
    pub(super) expected: PolicyVerdict,
}

/// Protocol and destination port of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowTraffic {
    pub(super) protocol: ProtocolNumber,
    pub(super) port: Option<u16>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestDocument {
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: Value,
    spec: TestSpec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestSpec {
    cases: Vec<TestCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestCase {
    from: String,
    to: String,
    #[serde(default = "tcp")]
    protocol: String,
    port: Option<u16>,
    expect: Expectation,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expectation {
    Allow,
    Deny,
}

fn tcp() -> String {
    Protocol::Tcp.to_string()
}

/// The cases of a document of kind PolicyTest.
pub(super) fn cases(document: Document) -> Result<Vec<PolicyCase>> {
    let Document { origin, body } = document;
    let parsed: TestDocument =
        serde_json::from_value(body).with_context(|| format!("{origin}: PolicyTest"))?;
    if parsed.api_version != model::API_VERSION {
        bail!("{origin}: PolicyTest: apiVersion: {:?} is not {}", parsed.api_version, model::API_VERSION);
    }
    let cases = parsed.spec.cases.into_iter().zip(1..).map(|(case, number)| {
        let origin = format!("{origin} case {number}");
        let traffic = FlowTraffic::parse(&case.protocol, case.port).with_context(|| origin.clone())?;
        let expected = match case.expect {
            Expectation::Allow => PolicyVerdict::Accept,
            Expectation::Deny => PolicyVerdict::Drop,
        };
        Ok(PolicyCase { origin, from: case.from, to: case.to, traffic, expected })
    });
    cases.collect()
}

impl FlowTraffic {
    /// `icmp` is ICMP between IPv4 addresses and ICMPv6 between IPv6 addresses.
    pub(super) fn parse(protocol: &str, port: Option<u16>) -> Result<Self> {
        let with_ports: Option<Protocol> = protocol.parse().ok();
        match (with_ports, port) {
            (Some(protocol), Some(port)) => Ok(Self { protocol: protocol.number(), port: Some(port) }),
            (Some(protocol), None) => bail!("protocol {protocol} needs a port"),
            (None, Some(_)) => {
                bail!("protocol {protocol:?} has no ports: leave out the port, or use tcp, udp or sctp")
            }
            (None, None) if protocol.eq_ignore_ascii_case("icmp") => Ok(Self { protocol: ICMP, port: None }),
            (None, None) => {
                let number = protocol.parse().map_err(|_| {
                    anyhow!("{protocol:?} is not a protocol: tcp, udp, sctp, icmp or a number up to 255")
                });
                Ok(Self { protocol: number?, port: None })
            }
        }
    }

    pub(super) fn is_icmp(self) -> bool {
        self.protocol == ICMP
    }
}

impl std::fmt::Display for FlowTraffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = Protocol::ALL.into_iter().find(|protocol| protocol.number() == self.protocol);
        match (name, self.port) {
            (Some(protocol), Some(port)) => write!(f, "{protocol}/{port}"),
            (None, None) if self.is_icmp() => f.write_str("icmp"),
            (Some(_) | None, _) => write!(f, "protocol {}", self.protocol),
        }
    }
}
