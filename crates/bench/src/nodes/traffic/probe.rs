//! TCP throughput and round-trip time of one byte between two namespaces. Both ends are in this process.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::net::sockopt;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testkit::uninterrupted;

use super::NamespacePair;
use crate::stats::median;

/// Socket timeout.
const TIMEOUT: Duration = Duration::from_secs(10);
const CHUNK: usize = 128 * 1024;

/// With one stream the receiver sleeps between packets, and its wake-up time dominates and varies by 50 % between runs.
/// Several streams keep it busy.
const STREAMS: usize = 4;

/// Throughput of several parallel connections in Gbit/s, as counted by the receivers.
pub(crate) fn streams(pair: &NamespacePair, lasting: Duration) -> Result<f64> {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..STREAMS).map(|_| scope.spawn(|| stream(pair, lasting))).collect();
        let rates = all.into_iter().map(|one| one.join().map_err(|_| anyhow!("a stream panicked"))?);
        rates.sum()
    })
}

fn stream(pair: &NamespacePair, lasting: Duration) -> Result<f64> {
    let (count, ()) = talk(pair, drain, |stream| {
        let chunk = vec![0x42; CHUNK];
        let start = Instant::now();
        while start.elapsed() < lasting {
            write(stream, &chunk)?;
        }
        Ok(())
    })?;
    ensure!(count.took > Duration::ZERO, "nothing arrived");
    Ok(count.bytes as f64 * 8.0 / count.took.as_secs_f64() / 1e9)
}

/// Median round-trip time of one byte in microseconds. Each end has its own core, as on two hosts. On one core no wake-up is
/// needed, and some round trips would take a third of the time.
pub(crate) fn trips(pair: &NamespacePair, lasting: Duration) -> Result<f64> {
    let cores = cores()?;
    trips_on(pair, lasting, (cores.first().copied(), cores.last().copied()))
}

/// The same with both ends on one core, without the wake-up time of another core.
pub(crate) fn trips_on_one_core(pair: &NamespacePair, lasting: Duration) -> Result<f64> {
    let last = cores()?.last().copied();
    trips_on(pair, lasting, (last, last))
}

/// New connections per second, one after the other, with both ends on one core. They are reset, so that no port stays in use.
pub(crate) fn connections_on_one_core(pair: &NamespacePair, lasting: Duration) -> Result<f64> {
    let core = cores()?.last().copied();
    let connect = || -> Result<f64> {
        settle(core)?;
        let listener = pair.to.enter(|| TcpListener::bind(SocketAddr::new(pair.address, pair.port)))??;
        let at = listener.local_addr()?;
        pair.from.enter(|| {
            let (mut count, start) = (0_u32, Instant::now());
            while start.elapsed() < lasting {
                let caller = TcpStream::connect_timeout(&at, TIMEOUT)?;
                uninterrupted(|| listener.accept())?;
                sockopt::set_socket_linger(&caller, Some(Duration::ZERO))?;
                count += 1;
            }
            Ok(f64::from(count) / start.elapsed().as_secs_f64())
        })?
    };
    // A thread of its own, because it is pinned.
    std::thread::scope(|scope| scope.spawn(connect).join()).map_err(|_| anyhow!("the thread panicked"))?
}

fn trips_on(
    pair: &NamespacePair,
    lasting: Duration,
    (first, last): (Option<usize>, Option<usize>),
) -> Result<f64> {
    let listening = move |stream| {
        settle(last)?;
        echo(stream)
    };
    let (_, trips) = talk(pair, listening, |stream| {
        settle(first)?;
        let mut times = Vec::new();
        let start = Instant::now();
        while start.elapsed() < lasting {
            let one = Instant::now();
            write(stream, &[1])?;
            ensure!(read(stream, &mut [0])? == 1, "the peer closed the connection");
            times.push(one.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    })?;
    median(&trips).context("no reply was received")
}

/// Runs both ends of one connection and returns the results of the listener and the client.
fn talk<L: Send, C: Send>(
    pair: &NamespacePair,
    listening: impl FnOnce(TcpStream) -> Result<L> + Send,
    calling: impl FnOnce(&mut TcpStream) -> Result<C> + Send,
) -> Result<(L, C)> {
    let listener = pair.to.enter(|| TcpListener::bind(SocketAddr::new(pair.address, pair.port)))?;
    let listener = listener.with_context(|| format!("cannot listen at {}", pair.address))?;
    let at = listener.local_addr()?;
    let caller = pair.from.enter(|| TcpStream::connect_timeout(&at, TIMEOUT))?;
    let mut caller = ready(caller.with_context(|| format!("cannot connect to {at}"))?)?;
    // The connection is established, so accept does not block.
    let (listener, _) = uninterrupted(|| listener.accept())?;
    let listener = ready(listener)?;
    std::thread::scope(|scope| {
        let listening = scope.spawn(move || listening(listener));
        let calling = scope.spawn(move || {
            let result = calling(&mut caller);
            caller.shutdown(Shutdown::Write)?;
            result
        });
        let sent = calling.join().map_err(|_| anyhow!("the client thread panicked"))?;
        let observed = listening.join().map_err(|_| anyhow!("the listener thread panicked"))?;
        let sent = sent?;
        Ok((observed?, sent))
    })
}

/// The cores that this thread may use.
fn cores() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("cannot list the available cores")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
}

/// Pins the calling thread to this core.
fn settle(core: Option<usize>) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(core.context("no core is available")?);
    sched_setaffinity(None, &one).context("cannot pin the thread to a core")
}

fn ready(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

struct Count {
    bytes: u64,
    /// Time from the first to the last byte.
    took: Duration,
}

fn drain(mut stream: TcpStream) -> Result<Count> {
    let mut chunk = vec![0; CHUNK];
    let mut bytes = read(&mut stream, &mut chunk)? as u64;
    let start = Instant::now();
    loop {
        match read(&mut stream, &mut chunk)? {
            0 => return Ok(Count { bytes, took: start.elapsed() }),
            more => bytes += more as u64,
        }
    }
}

fn echo(mut stream: TcpStream) -> Result<()> {
    let mut byte = [0];
    while read(&mut stream, &mut byte)? == 1 {
        write(&mut stream, &byte)?;
    }
    Ok(())
}

fn read(stream: &mut TcpStream, into: &mut [u8]) -> Result<usize> {
    uninterrupted(|| stream.read(into)).context("cannot read from the peer")
}

/// `write_all` resumes an interrupted write.
fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    stream.write_all(bytes).context("cannot write to the peer")
}
