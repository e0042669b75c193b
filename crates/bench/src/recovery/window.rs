//! The time without spoofing protection after `nft flush ruleset`, measured with forged frames that reach another pod.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use testkit::{DEADLINE, PacketSocket, frames, wait_until};

use super::node::Host;
use crate::firewall::{Timed, note};
use crate::stats::median;

/// Interval of frames: short enough for a sub-millisecond resolution, long enough to leave CPU time for the agent.
const PACE: Duration = Duration::from_micros(100);
/// Number of frames before the flush; all are dropped.
const BEFORE: usize = 20;
/// A frame in flight arrives within this time.
const DRAIN: Duration = Duration::from_millis(200);
const PORT: u16 = 9;

/// One time per round.
#[derive(Default)]
pub(super) struct Windows {
    /// From the first to the last delivered hostile frame.
    open: Vec<Duration>,
    delivered: Vec<f64>,
    /// Hostile frames per millisecond of the window, sent and delivered.
    sent_rate: Vec<f64>,
    rate: Vec<f64>,
}

impl Windows {
    pub(super) fn report(&self, case: &str, times: &mut Timed, remarks: &mut Vec<String>) {
        let family = case.rsplit(' ').next().unwrap_or(case);
        for open in &self.open {
            note(times, &format!("unprotected after a flush, {family}"), *open);
        }
        let shown = |values: &[f64]| median(values).map_or_else(|| "-".to_owned(), |m| format!("{m:.1}"));
        remarks.push(format!(
            "recovery, {case}: of {} hostile frames sent per ms, {} arrive while pods are unprotected, {} after each flush \
             (medians of {} flushes)",
            shown(&self.sent_rate),
            shown(&self.rate),
            shown(&self.delivered),
            self.open.len()
        ));
    }
}

pub(super) fn measure(host: &Host, is_bridged: bool, is_v4: bool, rounds: usize) -> Result<Windows> {
    let victim = host.victim.address(is_v4)?;
    // On a bridge to the pod; otherwise to the host end, which forwards.
    let to = if is_bridged { host.victim.macs()?.1 } else { host.attacker.macs()?.0 };
    let between = (frames::mac(to)?, frames::mac(host.attacker.macs()?.1)?);
    let forged = SocketAddr::from((neighbour(victim), PORT));
    let target = SocketAddr::from((victim, PORT));
    let socket = host.victim.pod.enter(|| UdpSocket::bind(target))?.context("cannot listen in the pod")?;
    socket.set_read_timeout(Some(DRAIN))?;
    let link = PacketSocket::open(&host.attacker.pod, "eth0")?;
    let send = |number: u64| {
        link.send(&frames::framed(between, &frames::udp(forged, target, &number.to_be_bytes())))
    };
    let before = host.ruleset()?;
    let mut windows = Windows::default();
    for _ in 0..rounds {
        let round = round(host, (&socket, &send), &before)?;
        let (Some(first), Some(last)) = (round.arrived.first(), round.arrived.last()) else {
            windows.open.push(Duration::ZERO);
            windows.delivered.push(0.0);
            continue;
        };
        let open = round.sent[*last].saturating_duration_since(round.sent[*first]);
        let ms = open.as_secs_f64().max(PACE.as_secs_f64()) * 1000.0;
        windows.open.push(open);
        windows.delivered.push(round.arrived.len() as f64);
        windows.rate.push(round.arrived.len() as f64 / ms);
        windows.sent_rate.push((last - first + 1) as f64 / ms);
    }
    Ok(windows)
}

/// An unused address of the same network.
fn neighbour(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(v4) => {
            let [a, b, _, _] = v4.octets();
            [a, b, 200, 77].into()
        }
        IpAddr::V6(v6) => {
            let mut octets = v6.octets();
            octets[14..].copy_from_slice(&[0x77, 0x77]);
            octets.into()
        }
    }
}

struct FrameRound {
    /// Send time of each frame.
    sent: Vec<Instant>,
    /// Numbers of the delivered frames.
    arrived: BTreeSet<usize>,
}

type Send<'a> = &'a (dyn Fn(u64) -> std::io::Result<()> + Sync);

fn round(
    host: &Host,
    (socket, send): (&UdpSocket, Send<'_>),
    before: &BTreeSet<String>,
) -> Result<FrameRound> {
    let (over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(socket, &over));
        let sender = scope.spawn(|| {
            let mut sent = Vec::new();
            while !over.load(Ordering::Relaxed) {
                sent.push(Instant::now());
                send(count.fetch_add(1, Ordering::Relaxed) as u64)?;
                std::thread::sleep(PACE);
            }
            Ok::<_, std::io::Error>(sent)
        });
        let flushed =
            wait_until("frames before the flush", DEADLINE, || Ok(count.load(Ordering::Relaxed) > BEFORE))
                .and_then(|()| host.flush())
                .and_then(|()| host.wait_until_restored(before));
        over.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a thread of the measurement panicked");
        let sent = sender.join().map_err(panicked)?.context("cannot send hostile frames")?;
        let arrived = receiver.join().map_err(panicked)?.context("cannot receive hostile frames")?;
        flushed?;
        Ok(FrameRound { sent, arrived })
    })
}

/// Receives until the end of the round and until no frame is in flight.
fn receive(socket: &UdpSocket, over: &AtomicBool) -> std::io::Result<BTreeSet<usize>> {
    let mut arrived = BTreeSet::new();
    let mut number = [0; 8];
    loop {
        match socket.recv(&mut number) {
            Ok(_) => {
                arrived.extend(usize::try_from(u64::from_be_bytes(number)).ok());
            }
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                if over.load(Ordering::Relaxed) {
                    return Ok(arrived);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
