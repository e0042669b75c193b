//! Clients that hang, crowd, hang up, or may not ask at all.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::Client;
use serde_json::{Value, json};
use testkit::{DEADLINE, Plugin, Pod, Verb, inspect, soak, wait_until};

use crate::common::{Host, addresses_of, ips};
use crate::gate::Gate;
use crate::load::rounds;
use crate::raw::{self, Size, about, ask, bytes_of, fresh_id, passed_on, stuck};

/// Less than the 5 s after which the agent closes a connection without a request.
const CONNECTED: Duration = Duration::from_secs(4);
const CROWD: usize = 1000;
/// What the agent may keep of a crowd of clients.
const MOST_KEPT_KIB: u64 = 16 << 10;
/// Each worker keeps its way home from pods open, once it was in one.
const WORKERS: usize = 16;
/// The agent keeps so many of links and of the firewall open for the next calls.
const SPARE_SOCKETS: usize = 2 * 8;
/// Files that the agent opens now and then for something else.
const FEW_FILES: usize = 4;

fn pods(host: &Host, count: usize) -> Vec<Pod> {
    (0..count).map(|n| host.pod(&format!("p{n}"))).collect()
}

/// So many ADDs and DELs, one after the other.
fn serve(host: &Host, pods: &[Pod]) {
    for pod in pods {
        host.add(pod);
        host.del(pod);
    }
}

/// Whether the agent still waits for the rest of the request.
fn is_awaited(mut client: &UnixStream) -> bool {
    client.set_nonblocking(true).unwrap();
    client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn stuck_clients_do_not_hold_up_others() {
    raw::raise_file_limit();
    let host = Host::new("stuck");
    let pods = pods(&host, 5);
    serve(&host, &pods);
    let size = Size::of(&host);
    let whole = bytes_of(&about(&host, Verb::Status, (&pods[0], "eth0")));
    let ways: [&[u8]; 4] = [
        b"",
        b"POST /v1/cni HTTP/1.1\r\nHo",
        &whole[..whole.len() - 10],
        b"GET /v1/attachments HTTP/1.1\r\n\r\n",
    ];
    for count in [1, 300] {
        // The agent waits 10 s for the rest of a request and closes the connection then. If ADDs waited for that, no round
        // would end before; on a busy machine the first one may end later.
        wait_until(&format!("pods to be served beside {count} stuck clients"), DEADLINE, || {
            // Not what the first pods left open: that may be closed by now.
            let before = Size::of(&host).files;
            let crowd: Vec<_> = (0..count).map(|n| stuck(&host, ways[(n + 2) % ways.len()])).collect();
            wait_until("all to be connected", CONNECTED, || Ok(Size::of(&host).files >= before + count))?;
            serve(&host, &pods);
            Ok(crowd.iter().step_by(ways.len()).all(is_awaited))
        })
        .unwrap();
    }
    wait_until("their connections to be closed", DEADLINE, || {
        Ok(Size::of(&host).files <= size.files + WORKERS + SPARE_SOCKETS + FEW_FILES)
    })
    .unwrap();
}

/// What the clients of a crowd ask for: ADDs among them, each of another attachment.
fn crowds_question(host: &Host, pods: &[Pod], number: usize) -> api::CniCall {
    let verb = match number % 8 {
        0..4 if soak() => Verb::Add,
        0 => Verb::Add,
        1..4 => Verb::Check,
        _ => Verb::Status,
    };
    about(host, verb, (&pods[number % pods.len()], &format!("e{number}")))
}

/// The result of an ADD; None for what is no ADD, or was refused as it should be.
fn crowds_answer(client: &Client, call: &api::CniCall) -> Option<Value> {
    let answer = ask(client, call);
    let body = raw::json(&answer);
    match (call.env["CNI_COMMAND"].as_str(), answer.status) {
        ("ADD", 200) => Some(body["result"].clone()),
        ("STATUS", 200) => None,
        // Nobody is attached there.
        ("CHECK", 500) => None,
        (_, 503) if body["code"].is_u64() && body["msg"].is_string() => None,
        (verb, status) => panic!("{verb}: {status} {body}"),
    }
}

/// All at once. Then what they made is deleted.
fn crowd(host: &Host, pods: &[Pod]) {
    let barrier = Barrier::new(CROWD);
    let calls: Vec<_> = (0..CROWD).map(|n| crowds_question(host, pods, n)).collect();
    let started = Instant::now();
    let results: Vec<Option<Value>> = std::thread::scope(|scope| {
        let start = |call| {
            let (client, barrier) = (host.agent.client(), &barrier);
            let work = move || {
                barrier.wait();
                crowds_answer(&client, call)
            };
            std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, work).unwrap()
        };
        let clients: Vec<_> = calls.iter().map(start).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let mut given: Vec<_> = results.iter().flatten().flat_map(ips).collect();
    println!("{CROWD} clients, {} of them with ADDs, in {:?}", given.len() / 2, started.elapsed());
    let adds = calls.iter().filter(|call| call.env["CNI_COMMAND"] == "ADD").count();
    assert_eq!(given.len() / 2, adds, "some were refused");
    let count = given.len();
    given.sort();
    given.dedup();
    assert_eq!(given.len(), count, "an address was given twice");
    for (number, _) in results.iter().enumerate().filter(|(_, result)| result.is_some()) {
        let del = about(host, Verb::Del, (&pods[number % pods.len()], &format!("e{number}")));
        assert_eq!(ask(&host.agent.client(), &del).status, 200);
    }
    assert!(host.held().is_empty(), "{:?}", host.held());
}

#[test]
fn a_thousand_clients_at_once_are_all_answered() {
    raw::raise_file_limit();
    let host = Host::with_flags("crowd", &["--network-mode", "bridge"]);
    let pods = pods(&host, 20);
    serve(&host, &pods[..2]);
    let before = Size::of(&host);
    // An allocator may keep what it had once; but not more with every crowd.
    for number in 1..=rounds(1, 3) {
        crowd(&host, &pods);
        let closed = || Ok(Size::of(&host).files <= before.files + WORKERS + SPARE_SOCKETS + FEW_FILES);
        wait_until("files to be closed", DEADLINE, closed).unwrap();
        let small = || Ok(Size::of(&host).rss_kib < before.rss_kib + MOST_KEPT_KIB);
        let given_back = wait_until("memory to be given back", DEADLINE, small);
        println!("before {before:?}, after {number} crowds {:?}", Size::of(&host));
        given_back.unwrap();
    }
}

#[test]
fn a_burst_of_adds_does_not_starve_a_del() {
    const BURST: usize = 200;
    raw::raise_file_limit();
    let host = Host::with_flags("burst", &["--network-mode", "bridge"]);
    let (pods, done) = (pods(&host, 10), AtomicUsize::new(0));
    let (other, _) = host.attached("other");
    let left = std::thread::scope(|scope| {
        for number in 0..BURST {
            let call = about(&host, Verb::Add, (&pods[number % 10], &format!("e{number}")));
            let (client, done) = (host.agent.client(), &done);
            let work = move || {
                let answer = ask(&client, &call);
                assert_eq!(answer.status, 200, "{}", raw::json(&answer));
                done.fetch_add(1, Ordering::Relaxed);
            };
            std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, work).unwrap();
        }
        wait_until("the burst to be under way", DEADLINE, || Ok(done.load(Ordering::Relaxed) > 2)).unwrap();
        let begun = done.load(Ordering::Relaxed);
        let deleted = ask(&host.agent.client(), &about(&host, Verb::Del, (&other, "eth0")));
        assert_eq!(deleted.status, 200);
        let end = done.load(Ordering::Relaxed);
        println!("{begun} ADDs were answered before the DEL came, {end} when it was answered");
        BURST - end
    });
    assert!(left > BURST / 3, "the DEL waited for the burst: only {left} ADDs were left");
    assert!(inspect::link(&other, "eth0").is_err());
}

/// Two interfaces of one pod in one network, made at the same time.
#[test]
fn adds_of_several_interfaces_of_one_pod_at_once() {
    let host = Host::new("ifaces");
    let pod = host.pod("a");
    for _ in 0..30 {
        let names = ["e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"];
        std::thread::scope(|scope| {
            for name in names {
                let (client, add) = (host.agent.client(), about(&host, Verb::Add, (&pod, name)));
                scope.spawn(move || {
                    let answer = ask(&client, &add);
                    assert_eq!(answer.status, 200, "{}", raw::json(&answer));
                });
            }
        });
        for name in names {
            assert_eq!(ask(&host.agent.client(), &about(&host, Verb::Del, (&pod, name))).status, 200);
        }
    }
}

/// Whoever hangs up before the attachment is complete does not want it.
#[test]
fn a_client_that_hangs_up_before_the_commit_leaves_nothing() {
    let host = Host::new("hangup");
    let (gate, pod) = (Gate::new(&host), host.pod("a"));
    let client = stuck(&host, &bytes_of(&passed_on(&gate.of(Verb::Add, &pod))));
    gate.wait_for(1);
    drop(client);
    let told = || Ok(host.agent.log()?.contains("ADD cancelled"));
    wait_until("the ADD to be cancelled", DEADLINE, told).unwrap();
    assert!(inspect::link(&pod, "eth0").is_err());
    assert!(host.held().is_empty(), "{:?}", host.held());
    assert_eq!(gate.dels(), 1, "its addresses were not given back");
}

/// The answer gets lost after the commit: the attachment is there, and who asks again with the same id is told.
#[test]
fn b8_the_same_request_gets_the_same_result_and_another_one_102() {
    let host = Host::new("sameid");
    let pod = host.pod("a");
    let add = about(&host, Verb::Add, (&pod, "eth0"));
    let client = host.agent.client();
    // Sent, and never read.
    let lost = stuck(&host, &bytes_of(&add));
    let there = || Ok(host.held().iter().any(|name| name.ends_with(".ready")));
    wait_until("the attachment", DEADLINE, there).unwrap();
    drop(lost);
    let (first, second) = (ask(&client, &add), ask(&client, &add));
    assert_eq!((first.status, &first.body), (200, &second.body));
    assert_eq!(addresses_of(&pod, "eth0"), ips(&raw::json(&first)["result"]).into_iter().collect());
    let other = api::CniCall { request_id: fresh_id(), ..add.clone() };
    let refused = ask(&client, &other);
    assert_eq!((refused.status, &raw::json(&refused)["code"]), (500, &json!(102)));
    // Also after a restart.
    let mut host = host;
    host.agent.restart().unwrap();
    assert_eq!(ask(&host.agent.client(), &add).body, first.body);
    assert_eq!(ask(&host.agent.client(), &other).status, 500);
    host.del(&pod);
}

/// The plugin, run by somebody who is not root.
fn as_nobody(host: &Host) -> Plugin {
    let dir = host.lab.dir();
    let (copy, path) = (dir.join("podwire-cni"), dir.join("as-nobody"));
    let script = format!(
        "cp {} {1} && chmod 755 {1} && printf '#!/bin/sh\\nexec setpriv --reuid 65534 --regid 65534 --clear-groups {1}\\n' >{2} && chmod 755 {2}",
        host.plugin.path.display(),
        copy.display(),
        path.display()
    );
    host.node.sh(&["sh", "-c", &script]).unwrap();
    Plugin { path }
}

#[test]
fn who_is_not_root_is_refused_also_where_the_socket_is_open_to_all() {
    let host = Host::new("nobody");
    let (plugin, config) = (as_nobody(&host), host.config(&json!({"logFile": null})));
    let closed = plugin.status(&host.node, &config).unwrap().error().unwrap();
    assert!(closed.code == 50 && closed.msg.contains("root"), "{closed:?}");
    // Somebody opened the directory and the socket: the agent looks at who asks.
    fs::set_permissions(host.agent.run_dir(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(host.agent.socket(), Permissions::from_mode(0o666)).unwrap();
    let denied = plugin.status(&host.node, &config).unwrap().error().unwrap();
    assert_eq!((denied.code, denied.msg.as_str()), (50, "access denied"), "{denied:?}");
    assert!(denied.details.contains("403"), "{denied:?}");
    let pod = host.pod("a");
    let add = plugin.add(&pod, &config).unwrap().error().unwrap();
    assert_eq!(add.msg, "access denied", "{add:?}");
    assert!(host.held().is_empty() && inspect::link(&pod, "eth0").is_err());
    host.plugin.status(&host.node, &host.config(&json!({}))).unwrap().ok().unwrap();
}
