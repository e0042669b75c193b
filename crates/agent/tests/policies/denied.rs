//! Denied packets: floods, and other listeners of the NFLOG group.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nft::DeniedLog;
use serde_json::Value;
use testkit::{DEADLINE, wait_until};

use crate::common::v4;
use crate::scene::{PlacedPod, Scene, tenant};

/// Logged packets per second, and the burst. Both directions have a limit.
const RATE: u64 = 10;

fn denied(scene: &Scene) -> Value {
    scene.host.agent.get("/v1/denied").unwrap()
}

fn number(view: &Value, pointer: &str) -> u64 {
    view.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} in {view:#}"))
}

fn send(from: &PlacedPod, to: &PlacedPod, packets: u32) {
    let target = SocketAddr::new(v4(&to.result), 4242);
    let sender = from.pod.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    for _ in 0..packets {
        // The kernel may have no buffer for a packet of a flood.
        let _ = sender.send_to(b"x", target);
    }
}

#[test]
fn a_flood_is_counted_exactly_and_sampled_within_bounds() {
    const SENT: u32 = 100_000;
    let scene = Scene::new("denied-flood", &[]);
    scene.apply(&[tenant("blue"), tenant("red")]);
    scene.wait_for_table(true);
    let (blue, red) = (scene.pod("a", "blue", ""), scene.pod("b", "red", ""));
    let memory = || number(&scene.host.agent.get("/v1/status").unwrap(), "/rssBytes");
    let before = memory();
    let start = Instant::now();
    send(&blue, &red, SENT);
    wait_until("the first samples", DEADLINE, || Ok(number(&denied(&scene), "/sampled") >= RATE)).unwrap();
    // Packets may still be on their way.
    let mut total = number(&denied(&scene), "/packets/egress");
    wait_until("the last packet", DEADLINE, || {
        let before = std::mem::replace(&mut total, number(&denied(&scene), "/packets/egress"));
        std::thread::sleep(Duration::from_millis(50));
        Ok(before == total)
    })
    .unwrap();
    // The kernel drops packets of a flood before the firewall only if its queue is full.
    assert!(total > u64::from(SENT) / 2 && total <= u64::from(SENT), "{total}");
    let view = denied(&scene);
    let allowed = RATE + RATE * (start.elapsed().as_secs() + 1);
    assert!(number(&view, "/sampled") + number(&view, "/lost") <= allowed, "{view:#}");
    let flows = view["flows"].as_array().unwrap();
    assert_eq!(flows.len(), 1, "{view:#}");
    assert_eq!(flows[0]["samples"], view["sampled"]);
    assert!(memory() < before + (16 << 20), "{before} bytes before, {} after", memory());
    let counted =
        scene.node().sh(&["nft", "list", "chain", "inet", "podwire-policy", "egress-deny"]).unwrap();
    assert!(counted.contains(&format!("packets {total} ")), "{total} in {counted}");
    let series = r#"podwire_policy_denied_sampled_packets_total{direction="egress",tier="tenant",policy="tenant blue"} "#;
    // The last samples may still be on their way.
    wait_until("the metric to have all samples", DEADLINE, || {
        let page = scene.host.agent.metrics()?;
        let sampled = page.lines().find_map(|line| line.strip_prefix(series));
        Ok(sampled == Some(denied(&scene)["sampled"].to_string().as_str()))
    })
    .unwrap();
}

#[test]
fn another_listener_of_the_group_is_a_condition_until_it_ends() {
    let scene = Scene::new("denied-listener", &[]);
    let other = scene.node().enter(|| DeniedLog::open().unwrap()).unwrap();
    scene.apply(&[tenant("blue"), tenant("red")]);
    scene.wait_for_table(true);
    let condition = || {
        let status = scene.host.agent.get("/v1/status").unwrap();
        let all = status["conditions"].as_array().unwrap();
        all.iter().find(|it| it["code"] == "DeniedLogFailed").cloned()
    };
    wait_until("the condition", DEADLINE, || Ok(condition().is_some())).unwrap();
    let shown = condition().unwrap();
    assert_eq!(shown["object"], "NFLOG group 113");
    let message = shown["message"].as_str().unwrap();
    assert!(message.contains("another process listens") && message.contains("has port ID"), "{message}");
    // Policies are enforced, and packets are counted.
    let (blue, red) = (scene.pod("a", "blue", ""), scene.pod("b", "red", ""));
    send(&blue, &red, 3);
    wait_until("the packets", DEADLINE, || Ok(number(&denied(&scene), "/packets/egress") == 3)).unwrap();
    drop(other);
    wait_until("the end of the condition", DEADLINE, || Ok(condition().is_none())).unwrap();
    wait_until("a sample", DEADLINE, || {
        send(&blue, &red, 1);
        Ok(number(&denied(&scene), "/sampled") > 0)
    })
    .unwrap();
}
