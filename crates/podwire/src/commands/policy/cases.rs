//! Documents of kind PolicyTest: flows and the expected verdicts.

use anyhow::{Context as _, Result, bail};
use api::FlowVerdict;
use policy::FlowTraffic;
use serde::Deserialize;
use serde_json::Value;
use types::Protocol;

use model::Document;

/// One expected verdict.
#[derive(Debug, Clone)]
pub(super) struct PolicyCase {
    /// File and line of its document, and its number there.
    pub(super) origin: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) traffic: FlowTraffic,
    pub(super) expected: FlowVerdict,
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
            Expectation::Allow => FlowVerdict::Accept,
            Expectation::Deny => FlowVerdict::Drop,
        };
        Ok(PolicyCase { origin, from: case.from, to: case.to, traffic, expected })
    });
    cases.collect()
}
