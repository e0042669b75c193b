use serde_json::{Map, Value, json};

use super::{ObjectId, put};
use crate::fields::{FieldError, Fields, UnknownPolicy, quoted};
use crate::objects::{TrafficLimit, TrafficProfile};

/// The kernel counts bytes per second: 1 kbit/s to 1 Tbit/s.
const MIN_RATE: u64 = 1_000;
const MAX_RATE: u64 = 1_000_000_000_000;
/// The kernel stores a burst as 32-bit bytes.
const MAX_BURST: u64 = (u32::MAX as u64) * 8 - 1;
/// The default burst is the traffic of 100 ms, but at least 16 KiB: a smaller one would block full packets.
const MIN_DEFAULT_BURST: u64 = 16 * 1024 * 8;

pub(super) fn read(
    id: &ObjectId,
    spec: &mut Fields,
    policy: &mut UnknownPolicy,
) -> Result<TrafficProfile, FieldError> {
    let ingress = read_limit(spec, "ingress", policy)?;
    let egress = read_limit(spec, "egress", policy)?;
    let dscp = spec.number("dscp", 0..=63)?;
    Ok(TrafficProfile {
        tenant: id.tenant_name().clone(),
        name: id.name().to_owned(),
        ingress,
        egress,
        dscp: dscp.and_then(|dscp| u8::try_from(dscp).ok()),
    })
}

fn read_limit(
    spec: &mut Fields,
    name: &'static str,
    policy: &mut UnknownPolicy,
) -> Result<Option<TrafficLimit>, FieldError> {
    let Some(value) = spec.take(name) else { return Ok(None) };
    spec.put_back(name, value);
    let mut limit = spec.object(name)?;
    let rate = read_bits(&mut limit, "rate", MIN_RATE, MAX_RATE)?;
    let burst = read_bits(&mut limit, "burst", 1, MAX_BURST)?;
    let rate = rate.ok_or_else(|| limit.missing("rate"))?;
    limit.finish(policy)?;
    let burst = burst.unwrap_or_else(|| (rate / 10).clamp(MIN_DEFAULT_BURST, MAX_BURST));
    Ok(Some(TrafficLimit { rate, burst }))
}

/// A number of bits, or text with a decimal unit.
fn read_bits(limit: &mut Fields, name: &'static str, min: u64, max: u64) -> Result<Option<u64>, FieldError> {
    let path = limit.path_of(name);
    let Some(value) = limit.take(name) else { return Ok(None) };
    let bits = match &value {
        Value::String(text) => with_unit(text),
        other => other.as_u64(),
    };
    bits.filter(|bits| (min..=max).contains(bits)).map(Some).ok_or_else(|| {
        let allowed =
            format!("bits from {min} to {max}, as a number or with a unit such as 100M (k, M or G)");
        FieldError::refused(&path, quoted(&value), allowed)
    })
}

fn with_unit(text: &str) -> Option<u64> {
    let units = [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
    let unit = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (digits, factor) = unit.unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

pub(super) fn spec(profile: &TrafficProfile) -> Map<String, Value> {
    let limit = |limit: TrafficLimit| json!({ "rate": limit.rate, "burst": limit.burst });
    let mut spec = Map::new();
    put(&mut spec, "ingress", profile.ingress.map(limit));
    put(&mut spec, "egress", profile.egress.map(limit));
    put(&mut spec, "dscp", profile.dscp);
    spec
}
