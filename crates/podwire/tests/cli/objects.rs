//! Commands for tenants, networks, groups, policies, profiles and shares, with a real agent.

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use serde_json::{Value, json};
use testkit::{Agent, Call, DEADLINE, Pod, Verb, wait_until};

use crate::common::{Host, has, tenant_blue};
use crate::schemas::expect_valid;

struct Objects {
    agent: Agent,
    /// Last, because its destructor removes the node.
    host: Host,
}

impl Objects {
    fn new(label: &str) -> Self {
        let host = Host::new(label);
        let agent = host.agent(&["--no-install"]);
        Self { agent, host }
    }

    fn run(&self, command: &str) -> testkit::Outcome {
        self.host.ask(&command.split(' ').collect::<Vec<_>>())
    }

    /// The output of a command that must succeed.
    #[track_caller]
    fn ok(&self, command: &str) -> String {
        let done = self.run(command);
        assert!(done.success(), "{command}: {done:?}");
        assert_eq!(done.stderr, "", "{command}");
        done.stdout
    }

    /// The error of a command that must fail.
    #[track_caller]
    fn error(&self, command: &str) -> String {
        let done = self.run(command);
        assert_eq!(done.status.code(), Some(1), "{command}: {done:?}");
        done.stderr
    }

    /// The agent receives its own changes from the store.
    #[track_caller]
    fn wait_for(&self, command: &str, words: &[&str]) -> String {
        let shown = || self.run(command).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let found = wait_until(command, DEADLINE, || Ok(words.iter().all(|word| shown().contains(word))));
        assert!(found.is_ok(), "{command}: {words:?} in {}", shown());
        self.run(command).stdout
    }

    fn json(&self, command: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("{command} -o json"))).unwrap()
    }

    /// A pod in group `web` of tenant `blue`, in the agent's own network.
    fn pod(&self, name: &str, placement: &Value) -> Pod {
        let pod = self.host.node.pod(name).unwrap();
        let args = Some(format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}"));
        let config = self.agent.config(placement);
        let call = Call { args, ..Call::pod(Verb::Add, &pod, &config) };
        self.host.plugin.call(&self.host.node, &call).unwrap().ok().unwrap();
        pod
    }
}

#[test]
fn d_every_kind_is_created_listed_shown_and_removed() {
    let objects = Objects::new("objects");
    for (command, done) in [
        ("tenant create blue", "tenant blue created\n"),
        ("tenant create red --nodes deny", "tenant red created\n"),
        (
            "network create front --tenant blue --subnet 10.3.0.0/16 --subnet fd00:3::/64 --mtu 1400 --no-masquerade",
            "network front of tenant blue created\n",
        ),
        (
            "profile create gold -t blue --ingress 100M --egress 50M --burst 1M --dscp 10",
            "profile gold of tenant blue created\n",
        ),
        ("policy create p1 -t blue", "policy p1 of tenant blue created\n"),
        (
            "group create web -t blue --network front --policy p1 --profile gold --pool 10.3.1.0/24",
            "group web of tenant blue created\n",
        ),
        (
            "share create dns -t blue --with red --group web --port udp/53",
            "share dns of tenant blue created\n",
        ),
    ] {
        assert_eq!(objects.ok(&format!("{command} --dry-run")), done.replace("created", "would be created"));
        assert_eq!(objects.ok(command), done);
        let exists = objects.error(command);
        has(&exists, &["it exists already; 'podwire apply' changes it"]);
    }
    expect_valid("object-steps", &objects.ok("tenant create green --dry-run -o json"));
    for (command, words) in [
        ("tenant ls", &["blue allow - 1 1 1", "red deny", "default allow default-net"][..]),
        ("network ls -t blue", &["blue front 10.3.0.0/16 1400 no web", "fd00:3::/64"]),
        ("group ls", &["blue web front 10.3.1.0/24 p1 gold"]),
        ("policy ls", &["blue p1 0 web"]),
        ("profile ls", &["100 Mbit/s, burst 1 Mbit", "50 Mbit/s", "10 web"]),
        ("share ls", &["blue dns group web red udp/53"]),
    ] {
        objects.wait_for(command, words);
        expect_valid("objects", &objects.ok(&format!("{command} -o json")));
    }
    assert_eq!(objects.ok("share ls -t red"), "no shares of tenant red\n");
    for (command, words) in [
        ("tenant inspect blue", &["network blue/front", "share blue/dns", "no pods"][..]),
        ("network inspect front -t blue", &["10.3.0.0/16", "masquerade no", "group blue/web", "no blocks"]),
        ("network inspect default-net", &["10.83.0.0/16", "BLOCK", "USED"]),
        ("group inspect web -t blue", &["policies p1", "used by share blue/dns"]),
        ("profile inspect gold -t blue", &["100 Mbit/s", "group blue/web"]),
        ("share inspect dns -t blue", &["with red", "ports udp/53", "used by -"]),
    ] {
        objects.wait_for(command, words);
        expect_valid("object-inspect", &objects.ok(&format!("{command} -o json")));
    }
    has(&objects.ok("policy inspect p1 -t blue -o yaml"), &["document:", "kind: Policy"]);
    has(
        &objects.error("group inspect wbe -t blue"),
        &["group wbe of tenant blue", "it does not exist", "are: web"],
    );
    has(&objects.error("tenant rm blue"), &["in use by network front of tenant blue, profile gold"]);
    assert_eq!(objects.ok("share rm dns -t blue --dry-run"), "share dns of tenant blue would be deleted\n");
    assert_eq!(objects.ok("share rm dns -t blue"), "share dns of tenant blue deleted\n");
    assert_eq!(objects.ok("tenant rm red"), "tenant red deleted\n");
    has(&objects.error("share rm dns -t blue"), &["it does not exist; there are no shares of tenant blue"]);
    has(&objects.error("network rm default-net"), &["exists in every cluster"]);
}

#[test]
fn d_rules_are_added_and_removed_by_id_and_apply_to_the_pods_of_the_group() {
    let objects = Objects::new("rules");
    objects.host.apply(&tenant_blue()[..1]);
    for command in [
        "network create default-net -t blue --subnet 10.91.0.0/16",
        "policy create p1 -t blue",
        "group create db -t blue --network default-net",
        "group create web -t blue --network default-net --policy p1",
    ] {
        objects.ok(command);
    }
    let add = "policy rule add p1 -t blue --in";
    let first = objects.ok(&format!("{add} --protocol tcp --port 5432 --deny"));
    assert_eq!(first, "rule 1 of policy p1 of tenant blue added\n");
    // The agent answers when it knows its own change.
    has(&objects.ok("policy rule ls p1 -t blue"), &["tcp/5432"]);
    let planned = objects.ok(&format!("{add} --from group:db --allow --priority 10 --dry-run"));
    assert_eq!(planned, "rule 2 of policy p1 of tenant blue would be added\n");
    let steps: Value = objects.json(&format!("{add} --from group:db --allow --priority 10"));
    assert_eq!(
        (&steps["steps"][0]["newRules"], &steps["steps"][0]["action"]),
        (&json!([2]), &json!("update"))
    );
    objects.ok("policy rule add p1 -t blue --out --to 192.0.2.1 --deny --priority 10");
    has(&objects.error(&format!("{add} --protocol tcp --port 5432 --deny")), &["rule 1 is the same"]);
    has(
        &objects.error(&format!("{add} --from group:dbx --deny")),
        &["group dbx of tenant blue does not exist"],
    );
    has(&objects.error(&format!("{add} --protocol tcp --port 70000 --deny")), &["port", "70000", "65535"]);
    // The rules in the order of evaluation.
    objects.wait_for(
        "policy rule ls p1 -t blue",
        &["10 2 in group:db any allow 10 3 out 192.0.2.1/32 any deny 1 1 in any tcp/5432 deny"],
    );
    expect_valid("policy-rules", &objects.ok("policy rule ls p1 -t blue -o json"));
    let pod = objects.pod("web-1", &json!({ "tenant": "blue", "group": "web" }));
    objects.pod("db-1", &json!({ "tenant": "blue", "group": "db" }));
    let shown = objects.wait_for("policy inspect p1 -t blue", &["used by group blue/web", "shop/web-1 10."]);
    assert!(!shown.contains("db-1"), "{shown}");
    expect_valid("object-inspect", &objects.ok("policy inspect p1 -t blue -o json"));
    let attachment = objects.ok(&format!("attachment show {}", pod.id()));
    has(&attachment, &["group web", "policies p1", "profile -", "10 p1 2 in group:db any allow"]);
    expect_valid("attachment-show", &objects.ok(&format!("attachment show {} -o json", pod.id())));
    has(&objects.error("group rm web -t blue"), &["in use by 1 pod"]);

    has(&objects.error("policy rule rm p1 7 -t blue"), &["it has no rule 7; its rules are 1, 2, 3"]);
    let removed = "rule 1 of policy p1 of tenant blue deleted\nrule 3 of policy p1 of tenant blue deleted\n";
    assert_eq!(objects.ok("policy rule rm p1 1 3 -t blue"), removed);
    objects.wait_for("policy ls", &["blue p1 1 web"]);
    let rules = objects.json("policy rule ls p1 -t blue");
    assert_eq!((rules["rules"].as_array().unwrap().len(), &rules["rules"][0]["id"]), (1, &json!(2)));
    // Rules keep their ids when the agent starts again, and no id is used twice.
    let Objects { mut agent, host } = objects;
    agent.restart().unwrap();
    agent.wait_ready().unwrap();
    let objects = Objects { agent, host };
    let next = objects.ok("policy rule add p1 -t blue --out --deny");
    assert_eq!(next, "rule 4 of policy p1 of tenant blue added\n");
}

#[test]
fn b10_the_defaults_exist_at_the_first_start() {
    let objects = Objects::new("defaults");
    objects.wait_for("tenant ls", &["default allow default-net 1 0 0"]);
    objects.wait_for("network ls", &["default default-net 10.83.0.0/16 - yes - fd00:88::/64"]);
    has(&objects.error("tenant rm default"), &["exists in every cluster"]);
    has(
        &objects.error("network create mine --subnet 10.83.128.0/17"),
        &["overlaps 10.83.0.0/16 of network default-net"],
    );
}

#[test]
fn d_all_files_of_a_directory_are_applied_together() {
    let objects = Objects::new("directory");
    let dir = objects.host.node.dir().join("objects");
    fs::create_dir_all(dir.join("inner.yaml")).unwrap();
    let write = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
    let [tenant, network, group] = tenant_blue().map(|document| document.to_string());
    // The group refers to objects of later files.
    write("a.json", group);
    write("b.yaml", tenant);
    write("c.yml", network);
    write("README.md", "no document".to_owned());
    let dir = dir.to_str().unwrap();
    let applied = objects.ok(&format!("apply -f {dir}"));
    has(
        &applied,
        &["tenant blue created", "network front of tenant blue created", "group web of tenant blue created"],
    );
    objects.wait_for("group ls", &["blue web front"]);
    write("b.yaml", "kind: Tenant".to_owned());
    has(&objects.error(&format!("apply -f {dir} --dry-run")), &["b.yaml:1", "apiVersion"]);
    fs::remove_file(format!("{dir}/b.yaml")).unwrap();
    has(&objects.ok(&format!("delete -f {dir}")), &["group web of tenant blue deleted"]);
    for name in ["a.json", "c.yml"] {
        fs::remove_file(format!("{dir}/{name}")).unwrap();
    }
    has(&objects.error(&format!("apply -f {dir}")), &["has no file that ends with .yaml, .yml or .json"]);
}

/// All writers read the same version at first.
#[test]
fn d_no_rule_of_parallel_writers_is_lost() {
    const WRITERS: u16 = 4;
    let objects = Objects::new("writers");
    objects.ok("policy create p1");
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let objects = &objects;
            scope.spawn(move || {
                for port in [2 * writer + 1, 2 * writer + 2] {
                    let command = format!("policy rule add p1 --in --protocol tcp --port {port} --deny");
                    // A loaded store may write the rule and answer too late.
                    let added = || {
                        let done = objects.run(&command);
                        Ok(done.success() || done.stderr.contains("is the same"))
                    };
                    wait_until(&command, DEADLINE, added).unwrap();
                }
            });
        }
    });
    objects.wait_for("policy ls", &[&format!("default p1 {} -", 2 * WRITERS)]);
    let answer = objects.json("policy rule ls p1");
    let rules = answer["rules"].as_array().unwrap();
    let of = |field: &str| rules.iter().map(|rule| rule[field].to_string()).collect::<BTreeSet<_>>();
    assert_eq!((of("id").len(), of("traffic").len()), (usize::from(2 * WRITERS), usize::from(2 * WRITERS)));
}

/// `Objects::run` measures every line.
#[test]
fn d_names_of_maximum_length_fit_80_columns() {
    let objects = Objects::new("longnames");
    let name = "x".repeat(63);
    for command in [
        format!("tenant create {name}"),
        format!("network create {name} -t {name} --subnet fd00:1234:5678:9abc::/64 --block-margin 32"),
        format!("policy create {name} -t {name}"),
        format!("profile create {name} -t {name} --ingress 999999999 --egress 7777777"),
        format!("group create {name} -t {name} --network {name} --policy {name} --profile {name}"),
        format!(
            "policy rule add {name} -t {name} --in --from group:{name} --protocol tcp --port 60000-60001 --deny"
        ),
        format!(
            "policy rule add {name} -t {name} --out --to fd00:1234:5678:9abc:def0:1234:5678:9abc --allow"
        ),
        format!("share create {name} -t {name} --with default --group {name} --port tcp/60000-60001"),
    ] {
        objects.ok(&command);
    }
    objects.ok("get");
    objects.ok(&format!("policy rule ls {name} -t {name}"));
    for kind in ["tenant", "network", "policy", "profile", "group", "share"] {
        let owner = if kind == "tenant" { String::new() } else { format!(" -t {name}") };
        assert!(objects.ok(&format!("{kind} ls")).contains("xxx"));
        assert!(objects.ok(&format!("{kind} inspect {name}{owner}")).contains("xxx"));
    }
    let refused = objects.error(&format!("tenant rm {name}"));
    has(&refused, &["in use by"]);
}

#[test]
fn d_arguments_that_cannot_be_right_are_refused_with_a_hint() {
    let host = Host::new("objectargs");
    for (command, words) in [
        ("tennant ls", &["tenant"][..]),
        ("policy rule add p1 --deny", &["--in", "--out"]),
        ("policy rule add p1 --in --from dbx --deny", &["group:NAME"]),
        ("policy rule add p1 --in --to any --deny", &["--to"]),
        ("policy rule add p1 --in --port 80 --deny", &["--protocol"]),
        ("profile create gold --burst 1M", &["--ingress"]),
        ("share create dns --port udp/53", &["--with"]),
        ("network create front", &["--subnet"]),
    ] {
        let done = host.run(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(done.status.code(), Some(2), "{command}: {done:?}");
        has(&done.stderr, words);
    }
}
