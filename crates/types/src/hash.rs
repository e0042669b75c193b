use sha2::{Digest as _, Sha256};

/// A digest of a list of words. It must not change between versions of Podwire: names in the kernel and on disk are derived
/// from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 32]);

/// The RFC 4648 alphabet in lower case. All characters are legal in link and file names.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl Digest {
    /// Each word is preceded by its length, so that `["ab", "c"]` and `["a", "bc"]` differ.
    pub fn of(words: &[&str]) -> Self {
        let mut hasher = Sha256::new();
        for word in words {
            hasher.update((word.len() as u64).to_be_bytes());
            hasher.update(word.as_bytes());
        }
        Self(hasher.finalize().into())
    }

    /// The plain SHA-256, for the content of a file.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The first `chars` base32 characters, at most 51 (256 bits).
    pub fn base32(&self, chars: usize) -> String {
        let bit = |i: usize| (self.0[i / 8] >> (7 - i % 8)) & 1;
        (0..chars.min(51))
            .map(|c| {
                let index = (0..5).fold(0u8, |acc, b| (acc << 1) | bit(c * 5 + b));
                char::from(BASE32[usize::from(index)])
            })
            .collect()
    }

    pub fn first5(&self) -> [u8; 5] {
        let [a, b, c, d, e, ..] = self.0;
        [a, b, c, d, e]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_stable_and_separates_words() {
        assert_eq!(
            Digest::of(&["net", "c1", "eth0"]).base32(13),
            Digest::of(&["net", "c1", "eth0"]).base32(13)
        );
        assert_ne!(Digest::of(&["ab", "c"]), Digest::of(&["a", "bc"]));
        assert_eq!(Digest::of(&[]).base32(99).len(), 51);
        // The SHA-256 of no input starts with e3 b0 c4 42 98.
        assert_eq!(Digest::of(&[]).base32(8), "4oymiquy");
    }
}
