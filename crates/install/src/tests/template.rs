use super::*;

#[test]
fn a7_all_variables_are_known_and_values_are_escaped() {
    let mut site = Site::new();
    let run = "/tmp/a \"quoted\" \\ directory";
    site.config.run_dir = run.into();
    site.config.network.mtu = Some(1300);
    site.template(
        r#"{"cniVersion":"{{CNI_VERSION}}","name":"{{ NAME }}","plugins":[{"type":"{{ TYPE }}","mode":"{{MODE}}",
        "bridge":"{{BRIDGE}}","subnet":"{{BLOCK}}","network":"{{NETWORK}}","x-gateway":"{{ GATEWAY }}","mtu":{{MTU}},
        "ipMasq":{{MASQUERADE}},"agent":"{{SOCKET}}","runDir":"{{RUN_DIR}}"}]}"#,
    );
    let list: Value = serde_json::from_str(&site.installer().render().unwrap()).unwrap();
    let plugin = &list["plugins"][0];
    assert_eq!(plugin["runDir"], run);
    assert_eq!(plugin["x-gateway"], "10.83.0.1,fd00:88::1");
    assert_eq!(plugin["mtu"], 1300);
    assert_eq!(plugin["subnet"], "10.83.0.0/16,fd00:88::/64");
    for name in VARIABLES {
        site.template(&format!(r#"{{"cniVersion":"1.1.0","name":"podwire","x":"{{{{{name}}}}}","plugins":[{{"type":"podwire-cni"}}]}}"#));
        assert!(Installer::new(&site.config).is_ok(), "{name}");
    }
}

#[test]
fn a7_an_invalid_template_is_reported_with_its_path() {
    for (template, expect) in [
        ("{{ NETWROK }}", "unknown variable \"NETWROK\"; did you mean NETWORK?"),
        ("{ \"a\": \"{{ NAME\" }", "no }} after {{ NAME"),
        ("{", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{}", "no list \"plugins\""),
        (r#"{"cniVersion":"1.1.0","name":"a","plugins":[]}"#, "no list \"plugins\""),
        (r#"{"cniVersion":"1.1.0","name":"a","plugins":[{}]}"#, "no \"type\""),
        (r#"{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"bridge"}]}"#, "type \"podwire-cni\""),
        (r#"{"name":"podwire","plugins":[{"type":"podwire-cni"}]}"#, "no \"cniVersion\""),
        (r#"{"cniVersion":"1.1.0","plugins":[{"type":"podwire-cni"}]}"#, "no \"name\""),
        (r#"{"cniVersion":"7.0.0","name":"podwire","plugins":[{"type":"podwire-cni"}]}"#, "7.0.0"),
        (r#"{"cniVersion":"1.1.0","name":"podwire","plugins":[{"type":"podwire-cni","vlan":3}]}"#, "vlan"),
        (
            r#"{"cniVersion":"1.1.0","name":"podwire","plugins":[{"type":"podwire-cni","agent":"x"}]}"#,
            "agent",
        ),
        // Another network than the agent's, without a subnet.
        (
            r#"{"cniVersion":"1.1.0","name":"other","plugins":[{"type":"podwire-cni"}]}"#,
            "no addresses to assign",
        ),
    ] {
        let mut site = Site::new();
        site.template(template);
        let error = Installer::new(&site.config).unwrap_err().to_string();
        assert!(error.contains("template.json") && error.contains(expect), "{template}: {error}");
    }
    let mut site = Site::new();
    site.install().template = Some("/nonexistent/t.json".into());
    let error = Installer::new(&site.config).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/t.json"), "{error}");
}

#[test]
fn a_template_that_becomes_invalid_is_reported_and_the_config_stays() {
    let mut site = Site::new();
    site.template(r#"{"cniVersion":"1.1.0","name":"podwire","plugins":[{"type":"podwire-cni"}]}"#);
    let installer = site.installer();
    installer.install().unwrap();
    let before = text(&site.conflist());
    fs::write(site.at("template.json"), "{{ X }}").unwrap();
    assert!(installer.install().is_err());
    assert!(installer.check()[0].message.as_ref().unwrap().contains("\"X\""));
    assert_eq!(text(&site.conflist()), before);
}

#[test]
fn a_template_with_another_socket_or_run_dir_is_refused() {
    let refused = |site: &mut Site, keys: &str| {
        site.template(&format!(
            r#"{{"cniVersion":"1.1.0","name":"podwire","plugins":[{{"type":"podwire-cni",{keys}}}]}}"#
        ));
        Installer::new(&site.config).err().map(|error| error.to_string())
    };
    let mut site = Site::new();
    for keys in [
        r#""agent":"{{ SOCKET }}""#,
        r#""agent":"{{ SOCKET }}","runDir":"/run/other""#,
        r#""agent":"{{ SOCKET }}","ipam":{"dataDir":"/run/other"}"#,
    ] {
        let error = refused(&mut site, keys).unwrap();
        assert!(error.contains("runDir") && error.contains("template.json"), "{keys}: {error}");
    }
    for keys in [r#""agent":true"#, r#""agent":"/run/other/agent.sock","runDir":"{{ RUN_DIR }}""#] {
        let error = refused(&mut site, keys).unwrap();
        assert!(error.contains("{{ SOCKET }}"), "{keys}: {error}");
    }
    assert_eq!(refused(&mut site, r#""agent":"{{ SOCKET }}","runDir":"{{ RUN_DIR }}/""#), None);
    // The default directories can be omitted.
    site.config.run_dir = netconf::DEFAULT_RUN_DIR.into();
    site.config.socket = netconf::default_socket(&site.config.run_dir);
    assert_eq!(refused(&mut site, r#""agent":true"#), None);
    assert_eq!(refused(&mut site, r#""agent":"{{ SOCKET }}""#), None);
}
