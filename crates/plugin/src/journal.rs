//! journald's native protocol: one datagram of fields.

use std::io::Error as IoError;
use std::os::unix::net::UnixDatagram;

use serde_json::{Map, Value};

pub(crate) const SOCKET: &str = "/run/systemd/journal/socket";
/// A datagram that is longer than the socket's buffer is refused: a field says no more than this.
const LONGEST: usize = 8 * 1024;

/// syslog's severities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// Sends a line: `message` for people, and each field as `PODWIRE_…`.
pub(crate) fn send(priority: Priority, message: &str, fields: &Map<String, Value>) -> Result<(), IoError> {
    let socket = UnixDatagram::unbound()?;
    // A journal that is stuck must not hold a pod.
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

/// `requestId` becomes `REQUEST_ID`: the journal takes capitals, digits and underscores.
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

/// `KEY=value`, or with a length before a value that holds a line break.
fn put(out: &mut Vec<u8>, key: &str, value: &str) {
    let value = &value[..value.floor_char_boundary(LONGEST)];
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
    fn b9_fields_are_lines_and_line_breaks_have_a_length() {
        let fields =
            json!({"requestId": "a0", "ms": 1.5, "error": "two\nlines", "long": "ä".repeat(LONGEST)});
        let text = datagram(Priority::Warning, "DEL x", fields.as_object().unwrap());
        assert!(text.starts_with(b"MESSAGE=DEL x\nPRIORITY=4\nSYSLOG_IDENTIFIER=podwire-cni\n"));
        let has = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
        assert!(has(b"\nPODWIRE_REQUEST_ID=a0\n") && has(b"\nPODWIRE_MS=1.5\n"));
        assert!(has(b"\nPODWIRE_ERROR\n\x09\0\0\0\0\0\0\0two\nlines\n"));
        assert!(text.len() < LONGEST + 300);
    }
}
