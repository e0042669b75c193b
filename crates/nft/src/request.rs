//! Our elements, chains and tables as requests to nf_tables, and what its answers say of them.

use std::net::IpAddr;

use netlink::wire::{Body, NLM_F_CREATE, attribute, attribute_at, attributes, read_text};

use crate::element::{Data, Element, bytes};
use crate::number;
use crate::ruleset::{Family, TABLE};
use crate::socket::{Request, Verb};

fn verb(family: Family, kind: u16) -> Verb {
    let family = match family {
        Family::Inet => libc::NFPROTO_INET,
        Family::Bridge => libc::NFPROTO_BRIDGE,
    };
    Verb { kind, flags: 0, family: u8::try_from(family).unwrap_or_default(), version: 0 }
}

/// Adds an element; one that is there with the same data is left as it is, with other data it is EEXIST.
pub(crate) fn add<'e>(element: &'e Element<'e>) -> Request<'e> {
    let verb = Verb { flags: NLM_F_CREATE, ..verb(element.family, number::NEWSETELEM) };
    Request::new(verb, move |body| write(body, element, Part::KeyAndData))
}

/// Lets an element expire at once. Since Linux 6.12 this changes an element that is there; before, it leaves it alone. One
/// that is not there is made, and gone again.
///
/// Why not delete: the kernel frees deleted elements after a grace period (some 16 ms), and whoever closes a netfilter
/// socket in the meantime waits for that with all tables locked. A program that starts, deletes and ends would hold
/// up every other one; an expired element is collected later, and nobody waits.
pub(crate) fn expire<'e>(element: &'e Element<'e>) -> Request<'e> {
    let verb = Verb { flags: NLM_F_CREATE, ..verb(element.family, number::NEWSETELEM) };
    Request::new(verb, move |body| write(body, element, Part::KeyAndDataForNow))
}

/// Whether the element that was found is about to expire.
pub(crate) fn expires(answer: &[u8]) -> bool {
    elements(answer).next().is_some_and(|element| element.expires)
}

/// Deletes an element whatever its data is: the kernel looks at the key alone.
pub(crate) fn delete<'e>(element: &'e Element<'e>) -> Request<'e> {
    Request::new(verb(element.family, number::DELSETELEM), move |body| write(body, element, Part::Key))
}

pub(crate) fn get<'e>(element: &'e Element<'e>) -> Request<'e> {
    Request::new(verb(element.family, number::GETSETELEM), move |body| write(body, element, Part::Key))
}

pub(crate) fn get_chain(family: Family, chain: &str) -> Request<'_> {
    Request::new(verb(family, number::GETCHAIN), move |body| {
        body.str(number::CHAIN_TABLE, TABLE);
        body.str(number::CHAIN_NAME, chain);
    })
}

pub(crate) fn get_sets(family: Family) -> Request<'static> {
    Request::new(verb(family, number::GETSET), |body| body.str(number::SET_TABLE, TABLE))
}

pub(crate) fn name_of_set(set: &[u8]) -> Option<String> {
    attribute(set, number::SET_NAME).map(read_text)
}

/// All elements of a set.
pub(crate) fn get_elements(family: Family, set: &str) -> Request<'_> {
    Request::new(verb(family, number::GETSETELEM), move |body| write_set(body, set))
}

/// An element as it was read.
pub(crate) struct Found<'a> {
    pub(crate) key: &'a [u8],
    /// Of a map.
    pub(crate) value: Option<&'a [u8]>,
    /// Its pod has left.
    pub(crate) expires: bool,
}

pub(crate) fn elements(answer: &[u8]) -> impl Iterator<Item = Found<'_>> {
    let list = attribute(answer, number::LIST_ELEMENTS).unwrap_or_default();
    let each = attributes(list).filter(|(kind, _)| *kind == number::LIST_ELEM);
    each.filter_map(|(_, element)| {
        let key = attribute_at(element, &[number::ELEM_KEY, number::DATA_VALUE])?;
        let value = attribute_at(element, &[number::ELEM_DATA, number::DATA_VALUE]);
        Some(Found { key, value, expires: attribute(element, number::ELEM_TIMEOUT).is_some() })
    })
}

/// Deletes the element with this key.
pub(crate) fn delete_key<'a>(family: Family, set: &'a str, key: &[u8]) -> Request<'a> {
    let key = key.to_vec();
    Request::new(verb(family, number::DELSETELEM), move |body| {
        write_element(body, set, |element| write_value(element, number::ELEM_KEY, &key));
    })
}

pub(crate) fn get_table(family: Family) -> Request<'static> {
    Request::new(verb(family, number::GETTABLE), |body| body.str(number::TABLE_NAME, TABLE))
}

/// For a dump; the kernel lists the chains of all tables of the family.
pub(crate) fn get_chains(family: Family) -> Request<'static> {
    Request::new(verb(family, number::GETCHAIN), |_| {})
}

pub(crate) fn get_rules(family: Family) -> Request<'static> {
    Request::new(verb(family, number::GETRULE), |body| body.str(number::RULE_TABLE, TABLE))
}

pub(crate) fn delete_table(family: Family) -> Request<'static> {
    Request::new(verb(family, number::DELTABLE), |body| body.str(number::TABLE_NAME, TABLE))
}

/// Deletes a chain with its rules.
pub(crate) fn delete_chain(family: Family, chain: &str) -> Request<'_> {
    Request::new(verb(family, number::DELCHAIN), move |body| {
        body.str(number::CHAIN_TABLE, TABLE);
        body.str(number::CHAIN_NAME, chain);
    })
}

/// Deletes a set with its elements; one that a rule uses is EBUSY.
pub(crate) fn delete_set<'a>(family: Family, set: String) -> Request<'a> {
    Request::new(verb(family, number::DELSET), move |body| {
        body.str(number::SET_TABLE, TABLE);
        body.str(number::SET_NAME, &set);
    })
}

/// Asks for the number that every change of any table increases.
pub(crate) fn get_generation() -> Request<'static> {
    Request::new(Verb { kind: number::GETGEN, flags: 0, family: 0, version: 0 }, |_| {})
}

#[derive(Clone, Copy)]
enum Part {
    Key,
    KeyAndData,
    KeyAndDataForNow,
}

/// The shortest life an element can have, in milliseconds.
const SHORTEST: u64 = 1;

fn write(body: &mut Body<'_>, element: &Element<'_>, part: Part) {
    write_element(body, element.set, |body| {
        write_value(body, number::ELEM_KEY, &bytes(&element.key));
        match part {
            Part::Key => {}
            Part::KeyAndData => write_data(body, &element.data),
            Part::KeyAndDataForNow => {
                write_data(body, &element.data);
                body.bytes(number::ELEM_TIMEOUT, &SHORTEST.to_be_bytes());
            }
        }
    });
}

fn write_set(body: &mut Body<'_>, set: &str) {
    body.str(number::LIST_TABLE, TABLE);
    body.str(number::LIST_SET, set);
}

fn write_element(body: &mut Body<'_>, set: &str, parts: impl FnOnce(&mut Body<'_>)) {
    write_set(body, set);
    body.nest(number::LIST_ELEMENTS, |list| list.nest(number::LIST_ELEM, parts));
}

fn write_data(body: &mut Body<'_>, data: &Data<'_>) {
    match data {
        Data::None => {}
        Data::Value(fields) => write_value(body, number::ELEM_DATA, &bytes(fields)),
    }
}

fn write_value(body: &mut Body<'_>, kind: u16, value: &[u8]) {
    body.nest(kind, |data| data.bytes(number::DATA_VALUE, value));
}

pub(crate) fn generation(answer: &[u8]) -> Option<u32> {
    attribute(answer, number::GEN_ID)?.first_chunk().copied().map(u32::from_be_bytes)
}

pub(crate) fn chain_of_rule(rule: &[u8]) -> Option<String> {
    attribute(rule, number::RULE_CHAIN).map(read_text)
}

/// Whether the element that was found has our data.
pub(crate) fn holds(element: &Element<'_>, answer: &[u8]) -> bool {
    match &element.data {
        Data::None => true,
        Data::Value(fields) => value(answer).is_some_and(|value| value == bytes(fields)),
    }
}

/// The pod that a host port's element leads to: its value is an address and a port, each padded to four bytes.
pub(crate) fn pod_address(answer: &[u8]) -> Option<IpAddr> {
    let (address, _port) = value(answer)?.split_last_chunk::<4>()?;
    match address.len() {
        4 => address.first_chunk::<4>().map(|ip| IpAddr::from(*ip)),
        16 => address.first_chunk::<16>().map(|ip| IpAddr::from(*ip)),
        _ => None,
    }
}

/// What the first element of an answer leads to.
fn value(answer: &[u8]) -> Option<&[u8]> {
    elements(answer).next()?.value
}

/// A set of a table of family inet that is not the pods' table.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) table: &'a str,
    pub(crate) set: &'a str,
}

fn at(place: Place<'_>, body: &mut Body<'_>, parts: impl FnOnce(&mut Body<'_>)) {
    body.str(number::LIST_TABLE, place.table);
    body.str(number::LIST_SET, place.set);
    parts(body);
}

pub(crate) fn elements_at(place: Place<'_>) -> Request<'_> {
    Request::new(verb(Family::Inet, number::GETSETELEM), move |body| at(place, body, |_| {}))
}

pub(crate) fn add_key<'a>(place: Place<'a>, key: &'a [u8]) -> Request<'a> {
    let verb = Verb { flags: NLM_F_CREATE, ..verb(Family::Inet, number::NEWSETELEM) };
    Request::new(verb, move |body| at(place, body, |body| write_key(body, key)))
}

pub(crate) fn delete_key_at<'a>(place: Place<'a>, key: &'a [u8]) -> Request<'a> {
    Request::new(verb(Family::Inet, number::DELSETELEM), move |body| {
        at(place, body, |body| write_key(body, key));
    })
}

fn write_key(body: &mut Body<'_>, key: &[u8]) {
    let element = |element: &mut Body<'_>| write_value(element, number::ELEM_KEY, key);
    body.nest(number::LIST_ELEMENTS, |list| list.nest(number::LIST_ELEM, element));
}

/// All tables of family inet, for a dump.
pub(crate) fn tables() -> Request<'static> {
    Request::new(verb(Family::Inet, number::GETTABLE), |_| {})
}

pub(crate) fn name_of_table(table: &[u8]) -> Option<String> {
    attribute(table, number::TABLE_NAME).map(read_text)
}

pub(crate) fn table_named(name: &str) -> Request<'_> {
    Request::new(verb(Family::Inet, number::GETTABLE), move |body| body.str(number::TABLE_NAME, name))
}

pub(crate) fn is_dormant(table: &[u8]) -> bool {
    let flags = attribute(table, number::TABLE_FLAGS).and_then(|flags| flags.first_chunk());
    flags.copied().map_or(0, u32::from_be_bytes) & number::TABLE_DORMANT != 0
}

pub(crate) fn delete_table_of(name: &str) -> Request<'_> {
    Request::new(verb(Family::Inet, number::DELTABLE), move |body| body.str(number::TABLE_NAME, name))
}

pub(crate) fn sets_of(table: &str) -> Request<'_> {
    Request::new(verb(Family::Inet, number::GETSET), move |body| body.str(number::SET_TABLE, table))
}

pub(crate) fn rules_of(table: &str) -> Request<'_> {
    Request::new(verb(Family::Inet, number::GETRULE), move |body| body.str(number::RULE_TABLE, table))
}
