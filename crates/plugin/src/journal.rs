//! The native protocol of journald: one datagram with fields.

use std::io::Error as IoError;
use std::os::unix::net::UnixDatagram;

use serde_json::{Map, Value};

pub(crate) const SOCKET: &str = "/run/systemd/journal/socket";
/// The size limit of a field. A datagram that is larger than the socket's buffer would be refused.
const MAX_FIELD: usize = 8 * 1024;

/// Severities of syslog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// Sends an entry with `message` and with each field as `PODWIRE_…`.
pub(crate) fn send(priority: Priority, message: &str, fields: &Map<String, Value>) -> Result<(), IoError> {
    let socket = UnixDatagram::unbound()?;
    // A journal that does not read must not block a pod.
    socket.set_nonblocking(true)?;
    socket.send_to(&datagram(priority, message, fields), SOCKET)?;
    Ok(())
}

fn datagram(priority: Priority, message: &str, fields: &Map<String, Value>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    put(&mut out, "MESSAGE", message);
    put(&mut out, "PRIORITY", &(priority as u8).to_string());
    put(&mut out, "SYSLOG_IDENTIFIER", "podwire-cni");
    for (key, value) in fields {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        put(&mut out, &format!("PODWIRE_{}", field_name(key)), &text);
    }
    out
}

/// Converts `requestId` to `REQUEST_ID`: the journal only accepts upper-case letters, digits and underscores.
fn field_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 2);
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    }
    name
}

/// Appends `KEY=value`. A value with a line break is preceded by its length instead.
fn put(out: &mut Vec<u8>, key: &str, value: &str) {
    let value = &value[..value.floor_char_boundary(MAX_FIELD)];
    out.extend_from_slice(key.as_bytes());
    if value.contains('\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend_from_slice(value.as_bytes());
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn b9_fields_with_line_breaks_are_sent_with_their_length() {
        let fields =
            json!({"requestId": "a0", "ms": 1.5, "error": "two\nlines", "long": "ä".repeat(MAX_FIELD)});
        let text = datagram(Priority::Warning, "DEL x", fields.as_object().unwrap());
        assert!(text.starts_with(b"MESSAGE=DEL x\nPRIORITY=4\nSYSLOG_IDENTIFIER=podwire-cni\n"));
        let has = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
        assert!(has(b"\nPODWIRE_REQUEST_ID=a0\n") && has(b"\nPODWIRE_MS=1.5\n"));
        assert!(has(b"\nPODWIRE_ERROR\n\x09\0\0\0\0\0\0\0two\nlines\n"));
        assert!(text.len() < MAX_FIELD + 300);
    }
}
