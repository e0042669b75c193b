//! Refuses features of the reference plugins that Podwire does not support (CNI error 2). Ignoring such a key, for example a
//! VLAN, would connect the pod to the wrong network.

use cni::json::Obj;
use cni::{Error, ErrorCode};
use serde_json::Value;

/// Unsupported keys of the reference `bridge` plugin. They are accepted only if they are off.
const TOP_LEVEL: &[&str] =
    &["vlan", "vlanTrunk", "disableContainerInterface", "portIsolation", "enabledad", "preserveDefaultVlan"];
/// Unsupported keys in `ipam`.
const IPAM: &[&str] = &["resolvConf"];

/// null, false, 0, "", [] and {} turn a feature off.
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

pub(crate) fn refuse_unsupported(top: &Obj<'_>, ipam: Option<&Obj<'_>>) -> Result<(), Error> {
    for key in TOP_LEVEL {
        match top.get(key).map(|item| item.value()) {
            // True is the default of the reference plugin and has no effect without VLANs.
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
