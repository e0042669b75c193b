use serde_json::{Value, json};

use crate::json::Obj;
use crate::{Error, ErrorCode};

fn read_root<T>(value: &Value, read: impl Fn(&Obj<'_>) -> Result<T, Error>) -> Result<T, Error> {
    read(&Obj::root(value.as_object().unwrap()))
}

#[test]
fn e6_keys_are_case_insensitive_and_an_exact_match_wins() {
    let value = json!({ "CNIVERSION": "a", "mtu": 1, "MTU": 2, "Name": null, "nAME": "n", "dns": null });
    assert_eq!(
        read_root(&value, |o| Ok(o.str("cniVersion")?.map(str::to_owned))).unwrap().as_deref(),
        Some("a")
    );
    assert_eq!(read_root(&value, |o| o.u64("mtu")).unwrap(), Some(1));
    assert_eq!(read_root(&value, |o| o.u32("MTU")).unwrap(), Some(2));
    assert_eq!(read_root(&value, |o| Ok(o.str("Name")?.map(str::to_owned))).unwrap().as_deref(), Some("n"));
    let keys: Vec<_> = Obj::root(value.as_object().unwrap()).keys().map(str::to_owned).collect();
    assert_eq!(keys, ["CNIVERSION", "MTU", "mtu", "nAME"]);
}

#[test]
fn e6_null_is_absent_for_every_getter() {
    let value = json!({ "k": null });
    assert!(read_root(&value, |o| Ok(o.get("k").is_none() && o.get("other").is_none())).unwrap());
    assert_eq!(read_root(&value, |o| Ok(o.str("k")?.map(str::len))).unwrap(), None);
    assert_eq!(read_root(&value, |o| o.bool("k")).unwrap(), None);
    assert_eq!(read_root(&value, |o| o.u64("k")).unwrap(), None);
    assert_eq!(read_root(&value, |o| o.u16("k")).unwrap(), None);
    assert_eq!(read_root(&value, |o| Ok(o.obj("k")?.is_none())), Ok(true));
    assert_eq!(read_root(&value, |o| Ok(o.array("k")?.is_none())), Ok(true));
    assert_eq!(read_root(&value, |o| o.parse::<u8>("k", "a byte")), Ok(None));
    assert_eq!(read_root(&json!({ "k": ["a", null] }), |o| o.strings("k")), Ok(vec!["a".to_owned()]));
}

#[test]
fn e5_type_errors_name_the_full_path() {
    let value = json!({ "ipam": { "ranges": [[{}, { "subnet": 7 }]] } });
    let error = read_root(&value, |o| {
        let ranges = o.obj("ipam")?.unwrap().array("ranges")?.unwrap();
        let range = ranges[0].array()?[1].obj()?;
        assert_eq!(range.path(), "ipam.ranges[0][1]");
        Ok(range.str("subnet")?.map(str::to_owned))
    });
    let error = error.unwrap_err();
    assert_eq!(error.code, ErrorCode::Decode);
    assert_eq!(error.msg, "ipam.ranges[0][1].subnet: expected a string, found 7");
}

#[test]
fn e5_type_errors_name_the_expected_and_the_actual_type() {
    let value = json!({ "s": "x", "n": 7, "b": true, "a": [], "o": {}, "long": "y".repeat(500) });
    let message = |outcome: Result<(), Error>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.code, ErrorCode::Decode);
        error.msg
    };
    let root = Obj::root(value.as_object().unwrap());
    assert_eq!(message(root.str("b").map(drop)), "b: expected a string, found true");
    assert_eq!(message(root.bool("s").map(drop)), "s: expected true or false, found \"x\"");
    assert_eq!(message(root.u64("a").map(drop)), "a: expected a whole number, found a list");
    assert_eq!(message(root.obj("n").map(drop)), "n: expected an object, found 7");
    assert_eq!(message(root.array("o").map(drop)), "o: expected a list, found an object");
    assert_eq!(message(root.strings("s").map(drop)), "s: expected a list, found \"x\"");
    assert!(message(root.bool("long").map(drop)).len() < 120);
}

#[test]
fn e7_numbers_out_of_range_are_config_errors() {
    for (value, max) in
        [(json!(-1), "4294967295"), (json!(1.5), "4294967295"), (json!(4_294_967_296_u64), "4294967295")]
    {
        let error = read_root(&json!({ "mtu": value }), |o| o.u32("mtu")).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidConfig);
        assert_eq!(error.msg, format!("mtu: expected a whole number from 0 to {max}, found {value}"));
    }
    assert_eq!(read_root(&json!({ "n": u64::MAX }), |o| o.u64("n")), Ok(Some(u64::MAX)));
    assert_eq!(read_root(&json!({ "n": 65_535 }), |o| o.u16("n")), Ok(Some(65_535)));
    assert!(read_root(&json!({ "n": 65_536 }), |o| o.u16("n")).is_err());
}

#[test]
fn e7_strings_that_cannot_be_parsed_are_config_errors() {
    let value = json!({ "gw": "10.0.0", "none": "" });
    let error = read_root(&value, |o| o.parse::<std::net::IpAddr>("gw", "an IP address")).unwrap_err();
    assert_eq!(
        (error.code, error.msg.as_str()),
        (ErrorCode::InvalidConfig, "gw: expected an IP address, found \"10.0.0\"")
    );
    assert_eq!(read_root(&value, |o| o.parse::<std::net::IpAddr>("none", "an IP address")), Ok(None));
}
