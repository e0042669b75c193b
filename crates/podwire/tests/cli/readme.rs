use crate::common::{Host, has};

#[test]
fn the_agent_prints_its_configuration_reference_and_sample() {
    let host = Host::new("print");
    let config = host.node.dir().join("a.toml");
    std::fs::write(&config, "node = \"seven\"\n[network]\nmode = \"bridge\"\n").unwrap();
    let config = config.to_str().unwrap();
    let outcome = host.run(&["agent", "--config", config, "--workers", "3", "--print-config"]);
    assert!(outcome.success(), "{}", outcome.stderr);
    has(&outcome.stdout, &["node = \"seven\"", "workers = 3", "mode = \"bridge\"", "bridge = \"podwire0\""]);
    // What is printed gives the same again.
    let again = host.node.dir().join("b.toml");
    std::fs::write(&again, &outcome.stdout).unwrap();
    let second = host.run(&["agent", "--config", again.to_str().unwrap(), "--print-config"]);
    assert_eq!(second.stdout, outcome.stdout, "{}", second.stderr);
    assert_eq!(host.run(&["agent", "--print-config-reference"]).stdout, config::reference());
    assert_eq!(host.run(&["agent", "--print-config-sample"]).stdout, config::sample());
    // A wrong one is told, and nothing starts.
    let wrong = host.run(&["agent", "--workers", "0", "--print-config"]);
    assert!(!wrong.success());
    has(&wrong.stderr, &["workers", "256"]);
}
