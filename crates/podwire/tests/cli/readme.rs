use crate::common::{Host, has};
use testkit::{DEADLINE, wait_until};

#[test]
fn the_readmes_table_of_the_agents_keys_is_the_generated_one() {
    let readme = include_str!("../../../../README.md");
    let part =
        readme.split("\n## The agent's configuration\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let table: String =
        part.lines().filter(|line| line.starts_with('|')).map(|line| format!("{line}\n")).collect();
    assert_eq!(table, agent::config::reference(), "`podwire agent --print-config-reference` prints it");
}

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
    assert_eq!(host.run(&["agent", "--print-config-reference"]).stdout, agent::config::reference());
    assert_eq!(host.run(&["agent", "--print-config-sample"]).stdout, agent::config::sample());
    // A wrong one is told, and nothing starts.
    let wrong = host.run(&["agent", "--workers", "0", "--print-config"]);
    assert!(!wrong.success());
    has(&wrong.stderr, &["workers", "256"]);
}

/// Every path of the API that the README lists is one that the agent knows.
#[test]
fn the_readmes_api_is_the_agents() {
    let readme = include_str!("../../../../README.md");
    let known = [
        api::CNI,
        api::HEALTH,
        api::READY,
        api::ATTACHMENTS,
        api::VERSION,
        api::STATUS,
        api::CNI_CONFIG,
        api::METRICS,
    ];
    for path in known {
        assert!(readme.contains(&format!("{path}`")), "{path} is not in the README");
    }
}

/// Every metric that the README names is one that an agent shows.
#[test]
fn the_readmes_metrics_are_the_agents() {
    let host = Host::new("metrics");
    let agent = host.agent(&["--no-install"]);
    let pod = host.node.pod("a").unwrap();
    host.plugin.add(&pod, &agent.config(&serde_json::json!({}))).unwrap().ok().unwrap();
    // A request is counted after it was answered.
    let mut page = String::new();
    wait_until("the request to be counted", DEADLINE, || {
        page = agent.metrics()?;
        Ok(page.contains("podwire_requests_total{"))
    })
    .unwrap();
    let readme = include_str!("../../../../README.md");
    let named: Vec<&str> = readme
        .split('`')
        .filter(|word| word.starts_with("podwire_") || word.starts_with("process_"))
        .collect();
    assert!(named.len() >= 8, "{named:?}");
    for name in named {
        let name = name.split('{').next().unwrap();
        assert!(page.contains(&format!("# TYPE {} ", name.trim_end_matches("_total"))), "{name} in:\n{page}");
    }
}
