//! Conditions of a rule, as far as they can be evaluated: enough to know that some rules cannot match. Pure.

use netlink::wire::{attribute, attribute_at};

use crate::number;
use crate::rule::Expression;

/// A condition for a match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PacketTest {
    /// The input interface: a name with its terminating zero, or a prefix.
    Input(Vec<u8>),
    /// The output interface.
    Output(Vec<u8>),
    /// The transport protocol.
    Protocol(u8),
    /// The state of the connection is one of these bits.
    State(u32),
}

/// The value that an expression loaded for the next comparison.
#[derive(Clone, Copy)]
enum Loaded {
    Nothing,
    Input,
    Output,
    Protocol,
    State,
    MaskedState(u32),
}

pub(crate) fn tests(expressions: &[Expression<'_>]) -> Vec<PacketTest> {
    let (mut tests, mut loaded) = (Vec::new(), Loaded::Nothing);
    for expression in expressions {
        loaded = match (expression.name.as_str(), loaded) {
            ("meta", _) => meta(expression.data),
            ("ct", _) if word(expression.data, number::CT_KEY) == Some(number::CT_STATE) => Loaded::State,
            ("bitwise", Loaded::State) => mask(expression.data).map_or(Loaded::Nothing, Loaded::MaskedState),
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
        Some(number::META_IIFNAME) => Loaded::Input,
        Some(number::META_OIFNAME) => Loaded::Output,
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
    let (operation, value) =
        (word(data, number::CMP_OP)?, attribute_at(data, &[number::CMP_DATA, number::DATA_VALUE])?);
    match (loaded, operation) {
        (Loaded::Input, number::CMP_EQ) => Some(PacketTest::Input(value.to_vec())),
        (Loaded::Output, number::CMP_EQ) => Some(PacketTest::Output(value.to_vec())),
        (Loaded::Protocol, number::CMP_EQ) => value.first().copied().map(PacketTest::Protocol),
        // Any of these bits is set.
        (Loaded::MaskedState(states), number::CMP_NEQ) if value.iter().all(|byte| *byte == 0) => {
            Some(PacketTest::State(states))
        }
        (_, _) => None,
    }
}

/// Offsets in `struct xt_conntrack_mtinfo3` of iptables: match_flags, invert_flags and state_mask.
const MATCH_FLAGS: usize = 146;
const INVERT_FLAGS: usize = 148;
const STATE_MASK: usize = 150;
/// `XT_CONNTRACK_STATE`
const MATCHES_STATE: u16 = 1;
/// The revision of this structure, since Linux 2.6.29.
const REVISION: u32 = 3;

fn of_conntrack(expression: &Expression<'_>) -> Option<PacketTest> {
    if expression.xt() != "conntrack" || word(expression.data, number::MATCH_REVISION) != Some(REVISION) {
        return None;
    }
    let info = attribute(expression.data, number::MATCH_INFO)?;
    let at = |offset: usize| info.get(offset..)?.first_chunk().copied().map(u16::from_ne_bytes);
    let has_states = at(MATCH_FLAGS)? & MATCHES_STATE != 0 && at(INVERT_FLAGS)? & MATCHES_STATE == 0;
    has_states.then_some(PacketTest::State(at(STATE_MASK)?.into()))
}
