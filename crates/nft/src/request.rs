//! Our elements, chains and tables as requests to nf_tables, and what its answers say of them.

use std::net::IpAddr;

use crate::element::{Data, Element, bytes};
use crate::ruleset::{Family, TABLE};
use crate::socket::{NLM_F_CREATE, Request, Verb};
use crate::wire::{self, Attributes, number};

fn verb(family: Family, kind: u16) -> Verb {
    let family = match family {
        Family::Inet => libc::NFPROTO_INET,
        Family::Bridge => libc::NFPROTO_BRIDGE,
    };
    Verb { kind, flags: 0, family: u8::try_from(family).unwrap_or_default(), version: 0 }
}

/// Adds an element; one that is there with the same data is left as it is, with other data it is EEXIST.
pub(crate) fn add(element: &Element<'_>) -> Request {
    let verb = Verb { flags: NLM_F_CREATE, ..verb(element.family, number::NEWSETELEM) };
    Request { verb, attributes: attributes(element, Part::KeyAndData) }
}

/// Lets an element expire at once. Since Linux 6.12 this changes an element that is there; before, it leaves it alone. One
/// that is not there is made, and gone again.
///
/// Why not delete: the kernel frees deleted elements after a grace period (some 16 ms), and whoever closes a netfilter
/// socket in the meantime waits for that with all tables locked. A program that starts, deletes and ends would hold
/// up every other one; an expired element is collected later, and nobody waits.
pub(crate) fn expire(element: &Element<'_>) -> Request {
    let verb = Verb { flags: NLM_F_CREATE, ..verb(element.family, number::NEWSETELEM) };
    Request { verb, attributes: attributes(element, Part::KeyAndDataForNow) }
}

/// Whether the element that was found is about to expire.
pub(crate) fn expires(answer: &[u8]) -> bool {
    let path = [number::LIST_ELEMENTS, number::LIST_ELEM, number::ELEM_TIMEOUT];
    wire::find_path(answer, &path).is_some()
}

/// Deletes an element whatever its data is: the kernel looks at the key alone.
pub(crate) fn delete(element: &Element<'_>) -> Request {
    Request { verb: verb(element.family, number::DELSETELEM), attributes: attributes(element, Part::Key) }
}

pub(crate) fn get(element: &Element<'_>) -> Request {
    Request { verb: verb(element.family, number::GETSETELEM), attributes: attributes(element, Part::Key) }
}

pub(crate) fn get_chain(family: Family, chain: &str) -> Request {
    let attributes = Attributes::new(|a| {
        a.put_str(number::CHAIN_TABLE, TABLE);
        a.put_str(number::CHAIN_NAME, chain);
    });
    Request { verb: verb(family, number::GETCHAIN), attributes }
}

pub(crate) fn get_rules(family: Family) -> Request {
    let attributes = Attributes::new(|a| a.put_str(number::RULE_TABLE, TABLE));
    Request { verb: verb(family, number::GETRULE), attributes }
}

pub(crate) fn delete_table(family: Family) -> Request {
    let attributes = Attributes::new(|a| a.put_str(number::TABLE_NAME, TABLE));
    Request { verb: verb(family, number::DELTABLE), attributes }
}

/// Asks for the number that every change of any table increases.
pub(crate) fn get_generation() -> Request {
    let verb = Verb { kind: number::GETGEN, flags: 0, family: 0, version: 0 };
    Request { verb, attributes: Attributes::default() }
}

#[derive(Clone, Copy)]
enum Part {
    Key,
    KeyAndData,
    KeyAndDataForNow,
}

/// The shortest life an element can have, in milliseconds.
const SHORTEST: u64 = 1;

fn attributes(element: &Element<'_>, part: Part) -> Attributes {
    Attributes::new(|a| {
        a.put_str(number::LIST_TABLE, TABLE);
        a.put_str(number::LIST_SET, element.set);
        a.nest(number::LIST_ELEMENTS, |a| {
            a.nest(number::LIST_ELEM, |a| {
                a.nest(number::ELEM_KEY, |a| a.put(number::DATA_VALUE, &bytes(&element.key)));
                match part {
                    Part::Key => {}
                    Part::KeyAndData => write_data(a, &element.data),
                    Part::KeyAndDataForNow => {
                        write_data(a, &element.data);
                        a.put(number::ELEM_TIMEOUT, &SHORTEST.to_be_bytes());
                    }
                }
            });
        });
    })
}

fn write_data(a: &mut Attributes, data: &Data<'_>) {
    match data {
        Data::None => {}
        Data::Value(fields) => a.nest(number::ELEM_DATA, |a| a.put(number::DATA_VALUE, &bytes(fields))),
    }
}

pub(crate) fn generation(answer: &[u8]) -> Option<u32> {
    wire::find(answer, number::GEN_ID)?.first_chunk().copied().map(u32::from_be_bytes)
}

pub(crate) fn chain_of_rule(rule: &[u8]) -> Option<String> {
    wire::find(rule, number::RULE_CHAIN).map(wire::text)
}

/// Whether the element that was found has our data.
pub(crate) fn holds(element: &Element<'_>, answer: &[u8]) -> bool {
    let found = |kinds: &[u16]| wire::find_path(data(answer)?, kinds);
    match &element.data {
        Data::None => true,
        Data::Value(fields) => found(&[number::DATA_VALUE]).is_some_and(|value| value == bytes(fields)),
    }
}

/// The pod that a host port's element leads to: its value is an address and a port, each padded to four bytes.
pub(crate) fn pod_address(answer: &[u8]) -> Option<IpAddr> {
    let (address, _port) = wire::find(data(answer)?, number::DATA_VALUE)?.split_last_chunk::<4>()?;
    match address.len() {
        4 => address.first_chunk::<4>().map(|ip| IpAddr::from(*ip)),
        16 => address.first_chunk::<16>().map(|ip| IpAddr::from(*ip)),
        _ => None,
    }
}

fn data(answer: &[u8]) -> Option<&[u8]> {
    wire::find_path(answer, &[number::LIST_ELEMENTS, number::LIST_ELEM, number::ELEM_DATA])
}
