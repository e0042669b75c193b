//! E18: limits that limit.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{DEADLINE, Ns, wait_until};

use crate::common::{DUAL, Host, v4, v6};

const BYTES: usize = 2_000_000;
/// At 8 Mbit/s the bytes take 2 s, less what the bucket holds at the beginning.
const RATE: u64 = 8_000_000;
const BURST: u64 = 800_000;
const SLOW: Duration = Duration::from_secs(1);

/// How long it takes to move the bytes.
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

fn limited(mode: &str, limit: &Value, which: &str) {
    let host = Host::new("bandwidth");
    let config = host.config(&json!({"subnet": DUAL, "mode": mode}));
    let (free, free_result) = host.attached("free", &config);
    let mut slow_config = config.clone();
    slow_config["runtimeConfig"] = json!({"bandwidth": limit});
    let (slow, slow_result) = host.attached("slow", &slow_config);
    let receives = || transfer(&free, &slow, v4(&slow_result));
    let sends = || transfer(&slow, &free, v6(&free_result));
    let (held, other): (&dyn Fn() -> _, &dyn Fn() -> _) =
        if which == "ingress" { (&receives, &sends) } else { (&sends, &receives) };
    let took = held();
    assert!(took >= SLOW, "{mode} {which}: {BYTES} bytes took only {took:?}");
    // A busy machine may take as long without a limit, but not each time.
    wait_until(&format!("{mode} {which}: the other direction without a limit"), DEADLINE, || {
        Ok(other() < SLOW)
    })
    .unwrap();
    host.check(&slow, &slow_config, &slow_result).unwrap();
}

#[test]
fn e18_what_a_pod_receives_is_limited() {
    for mode in crate::common::MODES {
        limited(mode, &json!({"ingressRate": RATE, "ingressBurst": BURST}), "ingress");
    }
}

#[test]
fn e18_what_a_pod_sends_is_limited() {
    for mode in crate::common::MODES {
        limited(mode, &json!({"egressRate": RATE, "egressBurst": BURST}), "egress");
    }
}
