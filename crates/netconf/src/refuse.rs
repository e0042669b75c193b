//! What the reference plugins can do and we do not is refused by name (code 2), never ignored: a config that asks for
//! a VLAN and gets none is worse than one that fails.

use cni::json::Obj;
use cni::{Error, ErrorCode};
use serde_json::Value;

/// Keys of the reference `bridge` plugin that are not served here unless they are off.
const TOP: &[&str] =
    &["vlan", "vlanTrunk", "disableContainerInterface", "portIsolation", "enabledad", "preserveDefaultVlan"];
const IPAM: &[&str] = &["resolvConf"];

/// False, 0, "", [] and {} ask for nothing.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

fn refuse(key: &str, value: &Value) -> Error {
    Error::new(
        ErrorCode::UnsupportedField,
        format!("unsupported field {key}: {value}; remove it from the network config"),
    )
}

pub(crate) fn unsupported(top: &Obj<'_>, ipam: Option<&Obj<'_>>) -> Result<(), Error> {
    for key in TOP {
        match top.get(key).map(|item| item.value()) {
            // The reference's default is true and means nothing without VLANs.
            Some(Value::Bool(true)) if *key == "preserveDefaultVlan" => {}
            Some(value) if !is_off(value) => return Err(refuse(key, value)),
            Some(_) | None => {}
        }
    }
    if let Some(value) = top.get("ipMasqBackend").map(|item| item.value())
        && !is_off(value)
        && value != "nftables"
    {
        return Err(refuse("ipMasqBackend", value));
    }
    for key in IPAM {
        if let Some(value) = ipam.and_then(|o| o.get(key)).map(|item| item.value())
            && !is_off(value)
        {
            return Err(refuse(&format!("ipam.{key}"), value));
        }
    }
    Ok(())
}
