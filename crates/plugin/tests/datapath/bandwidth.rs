//! E18: bandwidth limits.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{DEADLINE, Ns, wait_until};

use crate::common::{DUAL, Host, v4, v6};

const BYTES: usize = 2_000_000;
/// At 8 Mbit/s the transfer takes 2 s, minus the initial burst.
const RATE: u64 = 8_000_000;
const BURST: u64 = 800_000;
const SLOW: Duration = Duration::from_secs(1);

/// The duration of a transfer of `BYTES`.
fn transfer(from: &Ns, to: &Ns, address: IpAddr) -> Duration {
    let listener = to.enter(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = Vec::with_capacity(BYTES);
            stream.read_to_end(&mut all).unwrap();
            all.len()
        });
        let mut stream = from.enter(|| TcpStream::connect(target).unwrap()).unwrap();
        stream.write_all(&vec![7; BYTES]).unwrap();
        drop(stream);
        assert_eq!(reader.join().unwrap(), BYTES);
    });
    start.elapsed()
}

fn expect_limited(mode: &str, limit: &Value, direction: &str) {
    let host = Host::new("bandwidth");
    let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
    let (unlimited, unlimited_result) = host.attached("unlimited", &config);
    let mut slow_config = config.clone();
    slow_config["runtimeConfig"] = json!({"bandwidth": limit});
    let (slow, slow_result) = host.attached("slow", &slow_config);
    let ingress = || transfer(&unlimited, &slow, v4(&slow_result));
    let egress = || transfer(&slow, &unlimited, v6(&unlimited_result));
    let (limited, opposite): (&dyn Fn() -> _, &dyn Fn() -> _) =
        if direction == "ingress" { (&ingress, &egress) } else { (&egress, &ingress) };
    let took = limited();
    assert!(took >= SLOW, "{mode} {direction}: {BYTES} bytes took only {took:?}");
    // On a busy machine, single transfers without a limit may be slow, too.
    wait_until(&format!("{mode} {direction}: a fast transfer in the opposite direction"), DEADLINE, || {
        Ok(opposite() < SLOW)
    })
    .unwrap();
    host.check(&slow, &slow_config, &slow_result).unwrap();
}

#[test]
fn e18_ingress_of_a_pod_is_limited() {
    for mode in crate::common::MODES {
        expect_limited(mode, &json!({"ingressRate": RATE, "ingressBurst": BURST}), "ingress");
    }
}

#[test]
fn e18_egress_of_a_pod_is_limited() {
    for mode in crate::common::MODES {
        expect_limited(mode, &json!({"egressRate": RATE, "egressBurst": BURST}), "egress");
    }
}
