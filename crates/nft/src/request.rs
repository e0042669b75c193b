//! Elements, chains and tables as requests to nf_tables, and what its answers say about them.

use std::net::IpAddr;

use netlink::wire::{Body, NLM_F_CREATE, attribute, attribute_at, attributes, read_text};

use crate::desired::{TableFamily, TableId};
use crate::element::{Data, Element, bytes};
use crate::number;
use crate::socket::{MessageHeader, NftRequest};

fn verb(family: TableFamily, kind: u16) -> MessageHeader {
    let family = match family {
        TableFamily::Inet => libc::NFPROTO_INET,
        TableFamily::Bridge => libc::NFPROTO_BRIDGE,
    };
    MessageHeader { kind, flags: 0, family: u8::try_from(family).unwrap_or_default(), version: 0 }
}

/// Adds an element; one that is there with the same data is left as it is, with other data it is EEXIST.
pub(crate) fn add<'e>(element: &'e Element<'e>) -> NftRequest<'e> {
    let verb = MessageHeader { flags: NLM_F_CREATE, ..verb(element.table.family, number::NEWSETELEM) };
    NftRequest::new(verb, move |body| write(body, element, ElementPart::KeyAndData))
}

/// Lets an element expire at once. Since Linux 6.12 this changes an element that exists; before, the kernel leaves it alone. One
/// that does not exist is made, and expires.
///
/// Why not delete: the kernel frees deleted elements after a grace period (some 16 ms), and a process that closes a netfilter
/// socket in the meantime waits for that with all tables locked. A program that starts, deletes and ends would delay
/// every other one. An expired element is collected later, and no process waits.
pub(crate) fn expire<'e>(element: &'e Element<'e>) -> NftRequest<'e> {
    let verb = MessageHeader { flags: NLM_F_CREATE, ..verb(element.table.family, number::NEWSETELEM) };
    NftRequest::new(verb, move |body| write(body, element, ElementPart::KeyAndDataForNow))
}

/// Whether the element that was found is about to expire.
pub(crate) fn expires(answer: &[u8]) -> bool {
    elements(answer).next().is_some_and(|element| element.expires)
}

/// Deletes an element whatever its data is: the kernel looks at the key alone.
pub(crate) fn delete<'e>(element: &'e Element<'e>) -> NftRequest<'e> {
    NftRequest::new(verb(element.table.family, number::DELSETELEM), move |body| {
        write(body, element, ElementPart::Key);
    })
}

pub(crate) fn get<'e>(element: &'e Element<'e>) -> NftRequest<'e> {
    NftRequest::new(verb(element.table.family, number::GETSETELEM), move |body| {
        write(body, element, ElementPart::Key);
    })
}

pub(crate) fn get_sets(table: TableId<'_>) -> NftRequest<'_> {
    NftRequest::new(verb(table.family, number::GETSET), move |body| body.str(number::SET_TABLE, table.name))
}

/// All elements of a set.
pub(crate) fn get_elements<'a>(table: TableId<'a>, set: &'a str) -> NftRequest<'a> {
    NftRequest::new(verb(table.family, number::GETSETELEM), move |body| write_set(body, table, set))
}

/// An element as it was read.
pub(crate) struct ReadElement<'a> {
    pub(crate) key: &'a [u8],
    /// Of a map.
    pub(crate) value: Option<&'a [u8]>,
    /// Its pod has left.
    pub(crate) expires: bool,
}

pub(crate) fn elements(answer: &[u8]) -> impl Iterator<Item = ReadElement<'_>> {
    raw_elements(answer).filter_map(|element| {
        let key = attribute_at(element, &[number::ELEM_KEY, number::DATA_VALUE])?;
        let value = attribute_at(element, &[number::ELEM_DATA, number::DATA_VALUE]);
        Some(ReadElement { key, value, expires: attribute(element, number::ELEM_TIMEOUT).is_some() })
    })
}

/// The elements of an answer, each as its attributes.
pub(crate) fn raw_elements(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
    let list = attribute(answer, number::LIST_ELEMENTS).unwrap_or_default();
    attributes(list).filter(|(kind, _)| *kind == number::LIST_ELEM).map(|(_, element)| element)
}

/// Adds an element of which only the bytes are known.
pub(crate) fn add_key<'a>(
    place: (TableId<'a>, &'a str),
    key: &'a [u8],
    value: Option<&'a [u8]>,
) -> NftRequest<'a> {
    let verb = MessageHeader { flags: NLM_F_CREATE, ..verb(place.0.family, number::NEWSETELEM) };
    NftRequest::new(verb, move |body| {
        write_element(body, place, |element| {
            write_value(element, number::ELEM_KEY, key);
            if let Some(value) = value {
                write_value(element, number::ELEM_DATA, value);
            }
        });
    })
}

/// Deletes the element with this key.
pub(crate) fn delete_key<'a>(table: TableId<'a>, set: &'a str, key: &[u8]) -> NftRequest<'a> {
    let key = key.to_vec();
    NftRequest::new(verb(table.family, number::DELSETELEM), move |body| {
        write_element(body, (table, set), |element| write_value(element, number::ELEM_KEY, &key));
    })
}

pub(crate) fn get_table(table: TableId<'_>) -> NftRequest<'_> {
    NftRequest::new(verb(table.family, number::GETTABLE), move |body| {
        body.str(number::TABLE_NAME, table.name);
    })
}

/// All tables of the family, for a dump.
pub(crate) fn get_tables(family: TableFamily) -> NftRequest<'static> {
    NftRequest::new(verb(family, number::GETTABLE), |_| {})
}

pub(crate) fn name_of_table(table: &[u8]) -> Option<String> {
    attribute(table, number::TABLE_NAME).map(read_text)
}

pub(crate) fn is_dormant(table: &[u8]) -> bool {
    let flags = attribute(table, number::TABLE_FLAGS).and_then(|flags| flags.first_chunk());
    flags.copied().map_or(0, u32::from_be_bytes) & number::TABLE_DORMANT != 0
}

/// For a dump; the kernel lists the chains of all tables of the family.
pub(crate) fn get_chains(family: TableFamily) -> NftRequest<'static> {
    NftRequest::new(verb(family, number::GETCHAIN), |_| {})
}

pub(crate) fn get_rules(table: TableId<'_>) -> NftRequest<'_> {
    NftRequest::new(verb(table.family, number::GETRULE), move |body| body.str(number::RULE_TABLE, table.name))
}

pub(crate) fn delete_table(table: TableId<'_>) -> NftRequest<'_> {
    NftRequest::new(verb(table.family, number::DELTABLE), move |body| {
        body.str(number::TABLE_NAME, table.name);
    })
}

/// Deletes a chain with its rules.
pub(crate) fn delete_chain<'a>(table: TableId<'a>, chain: &'a str) -> NftRequest<'a> {
    NftRequest::new(verb(table.family, number::DELCHAIN), move |body| {
        body.str(number::CHAIN_TABLE, table.name);
        body.str(number::CHAIN_NAME, chain);
    })
}

/// Deletes a set with its elements; one that a rule uses is EBUSY.
pub(crate) fn delete_set<'a>(table: TableId<'a>, set: String) -> NftRequest<'a> {
    NftRequest::new(verb(table.family, number::DELSET), move |body| {
        body.str(number::SET_TABLE, table.name);
        body.str(number::SET_NAME, &set);
    })
}

/// Asks for the number that every change of any table increases.
pub(crate) fn get_generation() -> NftRequest<'static> {
    NftRequest::new(MessageHeader { kind: number::GETGEN, flags: 0, family: 0, version: 0 }, |_| {})
}

#[derive(Clone, Copy)]
enum ElementPart {
    Key,
    KeyAndData,
    KeyAndDataForNow,
}

/// The shortest life an element can have, in milliseconds.
const SHORTEST: u64 = 1;

fn write(body: &mut Body<'_>, element: &Element<'_>, part: ElementPart) {
    write_element(body, (element.table, &element.set), |body| {
        write_value(body, number::ELEM_KEY, &bytes(&element.key));
        match part {
            ElementPart::Key => {}
            ElementPart::KeyAndData => write_data(body, &element.data),
            ElementPart::KeyAndDataForNow => {
                write_data(body, &element.data);
                body.bytes(number::ELEM_TIMEOUT, &SHORTEST.to_be_bytes());
            }
        }
    });
}

fn write_set(body: &mut Body<'_>, table: TableId<'_>, set: &str) {
    body.str(number::LIST_TABLE, table.name);
    body.str(number::LIST_SET, set);
}

fn write_element(body: &mut Body<'_>, (table, set): (TableId<'_>, &str), parts: impl FnOnce(&mut Body<'_>)) {
    write_set(body, table, set);
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
