//! Clients that hang, arrive in large numbers, hang up, or have no permission.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::Client;
use serde_json::{Value, json};
use testkit::{DEADLINE, Plugin, Pod, Verb, inspect, is_soak, wait_until};

use crate::blocking_ipam::BlockingIpam;
use crate::common::{Host, addresses_of, ips};
use crate::load::rounds;
use crate::raw::{
    self, ProcessUsage, api_call, bytes_of, connect_and_send, interface_call, new_request_id, post_call,
};

/// Less than the 5 s after which the agent closes a connection without a request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
const CLIENTS: usize = 1000;
/// The memory that the agent may keep after many clients.
const MAX_GROWTH_KIB: u64 = 16 << 10;
/// Each worker that has entered a pod keeps the file descriptor of the host's namespace.
const WORKERS: usize = 16;
/// Netlink and nftables sockets that the agent keeps open for the next calls.
const SPARE_SOCKETS: usize = 2 * 8;
/// Files that the agent opens from time to time for other purposes.
const FEW_FILES: usize = 4;

fn pods(host: &Host, count: usize) -> Vec<Pod> {
    (0..count).map(|n| host.pod(&format!("p{n}"))).collect()
}

/// An ADD and a DEL of each pod, one after the other.
fn serve(host: &Host, pods: &[Pod]) {
    for pod in pods {
        host.add(pod);
        host.del(pod);
    }
}

/// Whether the agent still waits for the remainder of the request.
fn is_awaited(mut client: &UnixStream) -> bool {
    client.set_nonblocking(true).unwrap();
    client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn stuck_clients_do_not_block_other_clients() {
    raw::raise_file_limit();
    let host = Host::new("stuck");
    let pods = pods(&host, 5);
    serve(&host, &pods);
    let size = ProcessUsage::of(&host);
    let whole = bytes_of(&interface_call(&host, Verb::Status, (&pods[0], "eth0")));
    let requests: [&[u8]; 4] = [
        b"",
        b"POST /v1/cni HTTP/1.1\r\nHo",
        &whole[..whole.len() - 10],
        b"GET /v1/attachments HTTP/1.1\r\n\r\n",
    ];
    for count in [1, 300] {
        // The agent waits 10 s for the remainder of a request, then closes the connection. If ADDs waited for that, no attempt
        // would succeed. On a busy host the first attempt may take longer.
        wait_until(&format!("pods to be served with {count} stuck clients"), DEADLINE, || {
            // Counted again, because files of the first pods may have been closed.
            let before = ProcessUsage::of(&host).files;
            let clients: Vec<_> =
                (0..count).map(|n| connect_and_send(&host, requests[(n + 2) % requests.len()])).collect();
            wait_until("all to be connected", CONNECT_TIMEOUT, || {
                Ok(ProcessUsage::of(&host).files >= before + count)
            })?;
            serve(&host, &pods);
            Ok(clients.iter().step_by(requests.len()).all(is_awaited))
        })
        .unwrap();
    }
    wait_until("their connections to be closed", DEADLINE, || {
        Ok(ProcessUsage::of(&host).files <= size.files + WORKERS + SPARE_SOCKETS + FEW_FILES)
    })
    .unwrap();
}

/// The calls of concurrent clients. Each ADD is for another attachment.
fn concurrent_call(host: &Host, pods: &[Pod], number: usize) -> api::CniCall {
    let verb = match number % 8 {
        0..4 if is_soak() => Verb::Add,
        0 => Verb::Add,
        1..4 => Verb::Check,
        _ => Verb::Status,
    };
    interface_call(host, verb, (&pods[number % pods.len()], &format!("e{number}")))
}

/// The result of an ADD. None for other calls, and for an expected refusal.
fn concurrent_result(client: &Client, call: &api::CniCall) -> Option<Value> {
    let answer = post_call(client, call);
    let body = raw::json(&answer);
    match (call.env["CNI_COMMAND"].as_str(), answer.status) {
        ("ADD", 200) => Some(body["result"].clone()),
        ("STATUS", 200) => None,
        // The attachment does not exist.
        ("CHECK", 500) => None,
        (_, 503) if body["code"].is_u64() && body["msg"].is_string() => None,
        (verb, status) => panic!("{verb}: {status} {body}"),
    }
}

/// Sends all calls concurrently. Then deletes the attachments that they created.
fn run_concurrent_clients(host: &Host, pods: &[Pod]) {
    let barrier = Barrier::new(CLIENTS);
    let calls: Vec<_> = (0..CLIENTS).map(|n| concurrent_call(host, pods, n)).collect();
    let started = Instant::now();
    let results: Vec<Option<Value>> = std::thread::scope(|scope| {
        let start = |call| {
            let (client, barrier) = (host.agent.client(), &barrier);
            let work = move || {
                barrier.wait();
                concurrent_result(&client, call)
            };
            std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, work).unwrap()
        };
        let clients: Vec<_> = calls.iter().map(start).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let mut addresses: Vec<_> = results.iter().flatten().flat_map(ips).collect();
    println!("{CLIENTS} clients, {} of them with ADDs, in {:?}", addresses.len() / 2, started.elapsed());
    let adds = calls.iter().filter(|call| call.env["CNI_COMMAND"] == "ADD").count();
    assert_eq!(addresses.len() / 2, adds, "some ADDs were refused");
    let count = addresses.len();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), count, "an address was allocated twice");
    for (number, _) in results.iter().enumerate().filter(|(_, result)| result.is_some()) {
        let del = interface_call(host, Verb::Del, (&pods[number % pods.len()], &format!("e{number}")));
        assert_eq!(post_call(&host.agent.client(), &del).status, 200);
    }
    assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
}

#[test]
fn a_thousand_concurrent_clients_are_answered() {
    raw::raise_file_limit();
    let host = Host::with_flags("crowd", &["--network-mode", "bridge"]);
    let pods = pods(&host, 20);
    serve(&host, &pods[..2]);
    let before = ProcessUsage::of(&host);
    // The allocator may keep memory, but its use must not grow with each repetition.
    for number in 1..=rounds(1, 3) {
        run_concurrent_clients(&host, &pods);
        let closed =
            || Ok(ProcessUsage::of(&host).files <= before.files + WORKERS + SPARE_SOCKETS + FEW_FILES);
        wait_until("files to be closed", DEADLINE, closed).unwrap();
        let small = || Ok(ProcessUsage::of(&host).rss_kib < before.rss_kib + MAX_GROWTH_KIB);
        let released = wait_until("memory to be released", DEADLINE, small);
        println!("before {before:?}, after {number} repetitions {:?}", ProcessUsage::of(&host));
        released.unwrap();
    }
}

#[test]
fn a_burst_of_adds_does_not_starve_a_del() {
    const BURST: usize = 200;
    raw::raise_file_limit();
    let host = Host::with_flags("burst", &["--network-mode", "bridge"]);
    let (pods, done) = (pods(&host, 10), AtomicUsize::new(0));
    let (other, _) = host.attached("other");
    let remaining = std::thread::scope(|scope| {
        for number in 0..BURST {
            let call = interface_call(&host, Verb::Add, (&pods[number % 10], &format!("e{number}")));
            let (client, done) = (host.agent.client(), &done);
            let work = move || {
                let answer = post_call(&client, &call);
                assert_eq!(answer.status, 200, "{}", raw::json(&answer));
                done.fetch_add(1, Ordering::Relaxed);
            };
            std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, work).unwrap();
        }
        wait_until("the burst to start", DEADLINE, || Ok(done.load(Ordering::Relaxed) > 2)).unwrap();
        let before = done.load(Ordering::Relaxed);
        let deleted = post_call(&host.agent.client(), &interface_call(&host, Verb::Del, (&other, "eth0")));
        assert_eq!(deleted.status, 200);
        let end = done.load(Ordering::Relaxed);
        println!("{before} ADDs were answered before the DEL was sent, {end} when it was answered");
        BURST - end
    });
    assert!(remaining > BURST / 3, "the DEL waited for the burst: only {remaining} ADDs remained");
    assert!(inspect::link(&other, "eth0").is_err());
}

/// Several interfaces of one pod in one network, added concurrently.
#[test]
fn concurrent_adds_of_several_interfaces_of_one_pod_succeed() {
    let host = Host::new("ifaces");
    let pod = host.pod("a");
    for _ in 0..30 {
        let names = ["e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"];
        std::thread::scope(|scope| {
            for name in names {
                let (client, add) = (host.agent.client(), interface_call(&host, Verb::Add, (&pod, name)));
                scope.spawn(move || {
                    let answer = post_call(&client, &add);
                    assert_eq!(answer.status, 200, "{}", raw::json(&answer));
                });
            }
        });
        for name in names {
            assert_eq!(
                post_call(&host.agent.client(), &interface_call(&host, Verb::Del, (&pod, name))).status,
                200
            );
        }
    }
}

/// A client that hangs up before the commit does not get the attachment.
#[test]
fn an_add_is_undone_if_its_client_hangs_up_before_the_commit() {
    let host = Host::new("hangup");
    let (ipam, pod) = (BlockingIpam::new(&host), host.pod("a"));
    let client = connect_and_send(&host, &bytes_of(&api_call(&ipam.request(Verb::Add, &pod))));
    ipam.wait_for(1);
    drop(client);
    let is_logged = || Ok(host.agent.log()?.contains("ADD cancelled"));
    wait_until("the ADD to be cancelled", DEADLINE, is_logged).unwrap();
    assert!(inspect::link(&pod, "eth0").is_err());
    assert!(host.state_entries().is_empty(), "{:?}", host.state_entries());
    assert_eq!(ipam.dels(), 1, "its addresses were not released");
}

/// The answer is lost after the commit. A retry with the same request ID gets the same result.
#[test]
fn b8_a_repeated_request_gets_the_same_result_and_a_new_one_102() {
    let host = Host::new("sameid");
    let pod = host.pod("a");
    let add = interface_call(&host, Verb::Add, (&pod, "eth0"));
    let client = host.agent.client();
    // Sent, but the answer is never read.
    let lost = connect_and_send(&host, &bytes_of(&add));
    let is_attached = || Ok(host.state_entries().iter().any(|name| name.ends_with(".ready")));
    wait_until("the attachment", DEADLINE, is_attached).unwrap();
    drop(lost);
    let (first, second) = (post_call(&client, &add), post_call(&client, &add));
    assert_eq!((first.status, &first.body), (200, &second.body));
    assert_eq!(addresses_of(&pod, "eth0"), ips(&raw::json(&first)["result"]).into_iter().collect());
    let other = api::CniCall { request_id: new_request_id(), ..add.clone() };
    let refused = post_call(&client, &other);
    assert_eq!((refused.status, &raw::json(&refused)["code"]), (500, &json!(102)));
    // The same after a restart.
    let mut host = host;
    host.agent.restart().unwrap();
    assert_eq!(post_call(&host.agent.client(), &add).body, first.body);
    assert_eq!(post_call(&host.agent.client(), &other).status, 500);
    host.del(&pod);
}

/// The plugin, run by an unprivileged user.
fn unprivileged_plugin(host: &Host) -> Plugin {
    let dir = host.lab.dir();
    let (copy, path) = (dir.join("podwire-cni"), dir.join("unprivileged"));
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
fn users_other_than_root_are_refused_even_with_an_open_socket() {
    let host = Host::new("unprivileged");
    let (plugin, config) = (unprivileged_plugin(&host), host.config(&json!({"logFile": null})));
    let closed = plugin.status(&host.node, &config).unwrap().error().unwrap();
    assert!(closed.code == 50 && closed.msg.contains("root"), "{closed:?}");
    // With open permissions of directory and socket, the agent checks the user ID of the client.
    fs::set_permissions(host.agent.run_dir(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(host.agent.socket(), Permissions::from_mode(0o666)).unwrap();
    let denied = plugin.status(&host.node, &config).unwrap().error().unwrap();
    assert_eq!((denied.code, denied.msg.as_str()), (50, "access denied"), "{denied:?}");
    assert!(denied.details.contains("403"), "{denied:?}");
    let pod = host.pod("a");
    let add = plugin.add(&pod, &config).unwrap().error().unwrap();
    assert_eq!(add.msg, "access denied", "{add:?}");
    assert!(host.state_entries().is_empty() && inspect::link(&pod, "eth0").is_err());
    host.plugin.status(&host.node, &host.config(&json!({}))).unwrap().ok().unwrap();
}
