use serde_json::Value;

use crate::common::Host;

#[test]
fn version_is_shown_as_text_and_as_json() {
    let host = Host::new("version");
    let version = env!("CARGO_PKG_VERSION");
    let text = host.run(&["version"]);
    assert!(text.success(), "{text:?}");
    assert_eq!(
        text.stdout,
        format!(
            "podwire  {version}\nAPI      v1\nCNI      0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"
        )
    );
    let json: Value = serde_json::from_str(&host.run(&["version", "-o", "json"]).stdout).unwrap();
    assert_eq!(json["version"], version);
    let agent = host.agent(&["--no-install"]);
    assert_eq!(json, agent.get(api::VERSION).unwrap(), "the agent of the same version answers the same");
}
