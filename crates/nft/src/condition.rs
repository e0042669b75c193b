//! What a rule asks of a packet, as far as it can be told: enough to say of some rules that they cannot match. Pure.

use netlink::wire::{attribute, attribute_at};

use crate::number;
use crate::rule::Expression;

/// Something that must hold for a packet to match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PacketTest {
    /// The link that it came by: a name with its end, or the beginning of one.
    From(Vec<u8>),
    /// The link that it leaves by.
    Towards(Vec<u8>),
    /// The protocol above IP.
    Protocol(u8),
    /// The state of its connection is one of these bits.
    State(u32),
}

/// What the expressions so far have put aside to be compared.
#[derive(Clone, Copy)]
enum Loaded {
    Nothing,
    From,
    Towards,
    Protocol,
    State,
    SomeOf(u32),
}

pub(crate) fn tests(expressions: &[Expression<'_>]) -> Vec<PacketTest> {
    let (mut tests, mut loaded) = (Vec::new(), Loaded::Nothing);
    for expression in expressions {
        loaded = match (expression.name.as_str(), loaded) {
            ("meta", _) => meta(expression.data),
            ("ct", _) if word(expression.data, number::CT_KEY) == Some(number::CT_STATE) => Loaded::State,
            ("bitwise", Loaded::State) => mask(expression.data).map_or(Loaded::Nothing, Loaded::SomeOf),
            ("cmp", loaded) => {
                tests.extend(compared(expression.data, loaded));
                Loaded::Nothing
            }
            ("match", _) => {
                tests.extend(of_conntrack(expression));
                Loaded::Nothing
            }
            (_, _) => Loaded::Nothing,
        };
    }
    tests
}

fn meta(data: &[u8]) -> Loaded {
    match word(data, number::META_KEY) {
        Some(number::META_IIFNAME) => Loaded::From,
        Some(number::META_OIFNAME) => Loaded::Towards,
        Some(number::META_L4PROTO) => Loaded::Protocol,
        Some(_) | None => Loaded::Nothing,
    }
}

fn word(data: &[u8], kind: u16) -> Option<u32> {
    attribute(data, kind)?.first_chunk().copied().map(u32::from_be_bytes)
}

/// The bits of a connection's state, in the host's byte order.
fn mask(data: &[u8]) -> Option<u32> {
    let mask = attribute_at(data, &[number::BITWISE_MASK, number::DATA_VALUE])?;
    mask.first_chunk().copied().map(u32::from_ne_bytes)
}

fn compared(data: &[u8], loaded: Loaded) -> Option<PacketTest> {
    let (how, value) =
        (word(data, number::CMP_OP)?, attribute_at(data, &[number::CMP_DATA, number::DATA_VALUE])?);
    match (loaded, how) {
        (Loaded::From, number::CMP_EQ) => Some(PacketTest::From(value.to_vec())),
        (Loaded::Towards, number::CMP_EQ) => Some(PacketTest::Towards(value.to_vec())),
        (Loaded::Protocol, number::CMP_EQ) => value.first().copied().map(PacketTest::Protocol),
        // Any bit of these is set.
        (Loaded::SomeOf(states), number::CMP_NEQ) if value.iter().all(|byte| *byte == 0) => {
            Some(PacketTest::State(states))
        }
        (_, _) => None,
    }
}

/// Where iptables' match `conntrack` has what it looks at, what of that is turned round, and the states
/// (`struct xt_conntrack_mtinfo3`).
const LOOKS_AT: usize = 146;
const TURNED: usize = 148;
const STATES: usize = 150;
/// That it looks at the state.
const AT_STATE: u16 = 1;
/// The structure that is meant has had this number since Linux 2.6.29.
const REVISION: u32 = 3;

fn of_conntrack(expression: &Expression<'_>) -> Option<PacketTest> {
    if expression.xt() != "conntrack" || word(expression.data, number::MATCH_REVISION) != Some(REVISION) {
        return None;
    }
    let info = attribute(expression.data, number::MATCH_INFO)?;
    let at = |place: usize| info.get(place..)?.first_chunk().copied().map(u16::from_ne_bytes);
    let is_plain = at(LOOKS_AT)? & AT_STATE != 0 && at(TURNED)? & AT_STATE == 0;
    is_plain.then_some(PacketTest::State(at(STATES)?.into()))
}
