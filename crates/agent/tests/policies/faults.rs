//! Agents that are killed during a change, and changes of thousands of objects. Longer with `PODWIRE_SOAK=1`.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::trace::kill_at_stop_of_thread;
use testkit::{DEADLINE, is_soak, uninterrupted, wait_until};

use crate::common::ips;
use crate::scene::{PlacedPod, Scene, document, network, tenant};

const ALLOWED: u16 = 7000;
const DENIED: u16 = 7001;
/// The time in which a reply must arrive. Only a lost packet takes longer than a moment.
const REPLY: Duration = Duration::from_secs(20);

fn group(name: &str, policies: &[String]) -> Value {
    document("Group", ("blue", name), &json!({ "network": "front", "policies": policies }))
}

fn policy(name: &str, rules: &[Value]) -> Value {
    document("Policy", ("blue", name), &json!({ "rules": rules }))
}

fn objects() -> [Value; 5] {
    let policies = ["from-web".to_owned()];
    [tenant("blue"), tenant("red"), network("blue", "front"), group("web", &[]), group("db", &policies)]
}

/// The policy denies port 5432, or has no rule.
fn from_web(denies: bool) -> Value {
    let deny = json!({ "direction": "in", "priority": 10, "peer": { "group": "web" }, "protocol": "tcp", "port": 5432, "action": "deny" });
    policy("from-web", if denies { std::slice::from_ref(&deny) } else { &[] })
}

fn bind(pod: &PlacedPod, ip: IpAddr, port: u16) -> UdpSocket {
    pod.pod.enter(|| UdpSocket::bind((ip, port)).unwrap()).unwrap()
}

/// The sockets of one address family.
struct Receiver {
    ip: IpAddr,
    allowed: UdpSocket,
    denied: UdpSocket,
}

impl Receiver {
    fn new(pod: &PlacedPod, ip: IpAddr) -> Self {
        let receiver = Self { ip, allowed: bind(pod, ip, ALLOWED), denied: bind(pod, ip, DENIED) };
        receiver.allowed.set_read_timeout(Some(REPLY)).unwrap();
        receiver.denied.set_nonblocking(true).unwrap();
        receiver
    }

    /// Sends packets of new flows. Those of `web` must arrive, those of `red` must not.
    fn check(&self, web: &PlacedPod, red: &PlacedPod) {
        let ip = self.ip;
        let own =
            |pod: &PlacedPod| ips(&pod.result).into_iter().find(|own| own.is_ipv4() == ip.is_ipv4()).unwrap();
        bind(red, own(red), 0).send_to(b"denied", SocketAddr::new(ip, DENIED)).unwrap();
        bind(web, own(web), 0).send_to(b"allowed", SocketAddr::new(ip, ALLOWED)).unwrap();
        let received = uninterrupted(|| self.allowed.recv(&mut [0; 20]));
        assert!(received.is_ok(), "{ip}: an allowed packet was lost: {received:?}");
        assert!(self.denied.recv(&mut [0; 20]).is_err(), "{ip}: a denied packet arrived");
    }
}

/// Ends the sender, also if the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_agent_killed_at_any_step_of_a_change_neither_opens_nor_closes_other_flows() {
    let mut scene = Scene::new("policy-kill", &[]);
    scene.apply(&[&objects()[..], &[from_web(false)]].concat());
    scene.wait_for_table(true);
    let (web, db, red) =
        (scene.pod("a", "blue", "web"), scene.pod("b", "blue", "db"), scene.pod("c", "red", ""));
    scene.expect((&web, &db), 5432, true);
    scene.expect((&red, &db), 5432, false);
    let (is_done, sent) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let receivers: Vec<Receiver> = ips(&db.result).into_iter().map(|ip| Receiver::new(&db, ip)).collect();
        let (web, red, is_done, sent) = (&web, &red, &is_done, &sent);
        let sending = scope.spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                receivers.iter().for_each(|receiver| receiver.check(web, red));
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _end = SetOnDrop(is_done);
        let stride = if is_soak() { 1 } else { 5 };
        let mut killed = 0;
        for n in (1..).step_by(stride) {
            let (denies, before) = (killed % 2 == 0, sent.load(Ordering::Relaxed));
            let pid = scene.host.agent.pid().unwrap();
            let change = || {
                let (status, answer) = scene.change(&[from_web(denies)], &[], false);
                assert_eq!(status, 200, "{answer}");
                // A document without rules has no such field.
                wait_until("the agent to know the policy", DEADLINE, || {
                    let known = scene.host.agent.get("/v1/objects/policies/blue/from-web")?;
                    Ok(known["spec"]["rules"].is_array() == denies)
                })
                .unwrap();
            };
            let is_at_step = kill_at_stop_of_thread(pid, "podwire-policy", n, change).unwrap();
            // Without an agent.
            wait_until("packets", DEADLINE, || Ok(sent.load(Ordering::Relaxed) > before + 20)).unwrap();
            scene.host.agent.kill().unwrap();
            scene.host.agent.launch().unwrap();
            scene.host.agent.wait_ready().unwrap();
            scene.expect((web, &db), 5432, !denies);
            killed += 1;
            assert!(!sending.is_finished(), "the sender failed");
            if !is_at_step {
                break;
            }
        }
        is_done.store(true, Ordering::Relaxed);
        sending.join().unwrap();
        assert!(killed > 2, "only {killed} steps");
        println!("killed {killed} times, {} packets", sent.load(Ordering::Relaxed));
    });
}

fn resident(scene: &Scene) -> u64 {
    let pid = scene.host.agent.pid().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_thousand_policies_that_are_created_and_deleted_leave_nothing() {
    const COUNT: usize = 1000;
    let scene = Scene::new("policy-loop", &[]);
    scene.apply(&[&objects()[..], &[from_web(true)]].concat());
    scene.wait_for_table(true);
    let (web, db) = (scene.pod("a", "blue", "web"), scene.pod("b", "blue", "db"));
    scene.expect((&web, &db), 5432, false);
    let known = || scene.host.agent.get("/v1/objects").unwrap();
    let (table, before) = (scene.table(), known());
    let names: Vec<String> = (0..COUNT).map(|n| format!("p{n}")).collect();
    let rule = |n: usize| json!({ "direction": "in", "priority": 20, "peer": { "group": "web" }, "protocol": "tcp", "port": 10_000 + 2 * n, "action": "deny" });
    let mut documents: Vec<Value> =
        names.iter().enumerate().map(|(n, name)| policy(name, &[rule(n)])).collect();
    let bound = [&names[..], &["from-web".to_owned()]].concat();
    documents.push(group("db", &bound));
    let removed: Vec<(&str, &str, &str)> =
        names.iter().map(|name| ("Policy", "blue", name.as_str())).collect();
    let rounds = if is_soak() { 20 } else { 2 };
    let mut used = Vec::new();
    for _ in 0..rounds {
        scene.apply(&documents);
        wait_until("the last policy in force", DEADLINE, || Ok(scene.table().len() >= table.len() + COUNT))
            .unwrap();
        let group = group("db", &["from-web".to_owned()]);
        let (status, answer) = scene.change(&[group], &removed, false);
        assert_eq!(status, 200, "{answer}");
        wait_until("the earlier table", DEADLINE, || Ok(scene.table() == table)).unwrap();
        used.push(resident(&scene));
    }
    let kinds = |list: &Value| {
        let of =
            |it: &Value| (it["kind"].to_string(), it["metadata"]["name"].to_string(), it["spec"].to_string());
        list["items"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&known()), kinds(&before));
    scene.expect((&web, &db), 5432, false);
    scene.expect((&web, &db), 10_000, true);
    // The allocator keeps some memory of the first round.
    let grown = used[used.len() - 1].saturating_sub(used[0]);
    assert!(grown < 16 << 20, "the agent's memory grows: {used:?}");
}

/// More than 200,000 elements: each group would have an element for each port and each class of peers. A test of the engine has a
/// small limit.
#[test]
fn a_policy_that_needs_too_many_elements_isolates_its_pods_and_all_others_stay_in_force() {
    const GROUPS: usize = 20;
    const PORTS: usize = 1000;
    /// For the compilation of all elements.
    const COMPILED: Duration = Duration::from_secs(300);
    let scene = Scene::new("policy-large", &[]);
    let names: Vec<String> = (0..GROUPS).map(|n| format!("g{n}")).collect();
    let group = |name: &str, policies: &[&str]| {
        document("Group", ("", name), &json!({ "network": "default-net", "policies": policies }))
    };
    let rule = |direction: &str, peer: &Value, port: usize, action: &str| json!({ "direction": direction, "priority": 10, "peer": peer, "protocol": "tcp", "port": port, "action": action });
    // Peers of these groups have different classes.
    let mut denied: Vec<Value> =
        names.iter().map(|name| rule("in", &json!({ "group": name }), 82, "deny")).collect();
    denied.push(rule("in", &json!("any"), 81, "deny"));
    let small = document("Policy", ("", "small"), &json!({ "rules": denied }));
    let mut groups: Vec<Value> = names.iter().map(|name| group(name, &[])).collect();
    groups.push(group("other", &["small"]));
    scene.apply(&[&groups[..], &[small]].concat());
    scene.wait_for_table(true);
    let pods: Vec<PlacedPod> = names.iter().map(|name| scene.pod(name, "", name)).collect();
    let (other, client) = (scene.pod("other", "", "other"), scene.pod("client", "", ""));
    scene.expect((&client, &pods[0]), 80, true);

    // The addresses of 14 pods.
    let of_addresses = json!({ "cidr": "10.83.0.0/28" });
    let rules: Vec<Value> = (0..PORTS).map(|n| rule("in", &of_addresses, 10_000 + 2 * n, "deny")).collect();
    let large = document("Policy", ("", "large"), &json!({ "rules": rules }));
    let mut bound: Vec<Value> = names.iter().map(|name| group(name, &["large"])).collect();
    bound.push(large);
    scene.apply(&bound);
    let conditions = || scene.host.agent.get("/v1/status").unwrap()["conditions"].to_string();
    let reported = wait_until("the condition", COMPILED, || Ok(conditions().contains("PolicyTooLarge")));
    assert!(reported.is_ok(), "{}", conditions());
    scene.expect((&client, &pods[0]), 80, false);
    scene.expect((&client, &other), 80, true);
    scene.expect((&client, &other), 81, false);
    // With fewer rules it is in force.
    let fits = document("Policy", ("", "large"), &json!({ "rules": rules[..10] }));
    scene.apply(&[fits]);
    scene.expect((&client, &pods[0]), 80, true);
    scene.expect((&pods[1], &pods[0]), 10_000, false);
    wait_until("no condition", DEADLINE, || Ok(!conditions().contains("PolicyTooLarge"))).unwrap();
}
