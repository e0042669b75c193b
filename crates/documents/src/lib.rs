//! Text to documents and back: YAML or JSON (which is YAML), several documents per file.
//!
//! Called by the CLI for `podwire apply -f` and for output as YAML. Pure: the caller reads the file.

#![forbid(unsafe_code)]

use model::Document;
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options, Spanned};
use types::printable;

/// The maximum size of a file. A policy with 1,000 rules has about 100 KiB.
pub const MAX_SIZE: usize = 4 << 20;
/// The deepest object is a field of the peer of a rule, with 7 levels.
const MAX_DEPTH: usize = 32;
const MAX_DOCUMENTS: usize = 10_000;
/// The maximum length of a parser's message, which may quote the text.
const MAX_REASON: usize = 500;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("{file} is too large: it has {size} bytes; the maximum is {MAX_SIZE}")]
    TooLarge { file: String, size: usize },
    #[error("{file} is not UTF-8 text")]
    NotUtf8 { file: String },
    #[error("{file}: {reason}")]
    Syntax { file: String, reason: String },
    #[error("{file} contains no documents")]
    Empty { file: String },
}

/// The documents of a file. Empty documents are skipped. The name of the file and the line become the origin of a document.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Document>, TextError> {
    let file = printable(file).into_owned();
    if bytes.len() > MAX_SIZE {
        return Err(TextError::TooLarge { file, size: bytes.len() });
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return Err(TextError::NotUtf8 { file }) };
    let read: Result<Vec<Spanned<Value>>, _> = serde_saphyr::from_multiple_with_options(text, options());
    let read = match read {
        Ok(read) => read,
        Err(error) => {
            let reason = error.without_snippet().render();
            let reason: String = printable(&reason).chars().take(MAX_REASON).collect();
            return Err(TextError::Syntax { file, reason });
        }
    };
    if read.is_empty() {
        return Err(TextError::Empty { file });
    }
    let documents = read.into_iter().map(|document| Document {
        origin: format!("{file}:{}", document.referenced.line()),
        body: document.value,
    });
    Ok(documents.collect())
}

/// Documents as one YAML text that [`parse`] reads.
pub fn to_yaml(documents: &[Value]) -> Result<String, String> {
    let texts: Result<Vec<String>, _> = documents.iter().map(serde_saphyr::to_string).collect();
    Ok(texts.map_err(|error| error.to_string())?.join("---\n"))
}

/// No aliases, because a few lines with aliases expand to any size. Only `true` and `false` are booleans, so that a tenant can be
/// named `no`.
fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: Some(MAX_SIZE),
            max_aliases: 0,
            max_anchors: 0,
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: MAX_DOCUMENTS,
            max_merge_keys: 0,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
    }
}

#[cfg(test)]
mod tests;
