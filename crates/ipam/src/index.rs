use std::cell::RefCell;
use std::convert::Infallible;
use std::net::IpAddr;

use crate::range::Range;
use crate::window::Span;

/// A stored bitmap of 64-bit words. Bit `o % 64` of word `o / 64` is set if offset `o` is in use. A word that was never stored
/// is 0. Callers hold a lock, because changing a bit is a load and a store.
pub trait Words {
    type Error;
    /// Fills `into` with words, starting at index `first`.
    fn load(&mut self, first: u32, into: &mut [u64]) -> Result<(), Self::Error>;
    fn store(&mut self, index: u32, word: u64) -> Result<(), Self::Error>;
}

/// The in-memory implementation.
impl Words for Vec<u64> {
    type Error = Infallible;

    fn load(&mut self, first: u32, into: &mut [u64]) -> Result<(), Infallible> {
        let stored = self.get(first as usize..).unwrap_or_default();
        let (head, tail) = into.split_at_mut(stored.len().min(into.len()));
        head.copy_from_slice(&stored[..head.len()]);
        tail.fill(0);
        Ok(())
    }

    fn store(&mut self, index: u32, word: u64) -> Result<(), Infallible> {
        let index = index as usize;
        if index >= self.len() {
            self.resize(index + 1, 0);
        }
        self[index] = word;
        Ok(())
    }
}

/// Allows the `words_for` argument of `next_after` to return a shared reference.
impl<W: Words> Words for &RefCell<W> {
    type Error = W::Error;

    fn load(&mut self, first: u32, into: &mut [u64]) -> Result<(), W::Error> {
        self.borrow_mut().load(first, into)
    }

    fn store(&mut self, index: u32, word: u64) -> Result<(), W::Error> {
        self.borrow_mut().store(index, word)
    }
}

pub fn is_set<W: Words>(words: &mut W, offset: u32) -> Result<bool, W::Error> {
    let (index, bit) = position(offset);
    Ok(load_one(words, index)? & bit != 0)
}

/// Returns whether the bit was set before.
pub fn set<W: Words>(words: &mut W, offset: u32) -> Result<bool, W::Error> {
    let (index, bit) = position(offset);
    let word = load_one(words, index)?;
    if word & bit == 0 {
        words.store(index, word | bit)?;
    }
    Ok(word & bit != 0)
}

pub fn clear<W: Words>(words: &mut W, offset: u32) -> Result<(), W::Error> {
    let (index, bit) = position(offset);
    let word = load_one(words, index)?;
    if word & bit == 0 { Ok(()) } else { words.store(index, word & !bit) }
}

/// Computes the index of a range from all claims. Claims outside the window are ignored.
pub fn rebuild(range: &Range, claimed: impl IntoIterator<Item = IpAddr>) -> Vec<u64> {
    let mut words = vec![0; range.window_words() as usize];
    for offset in claimed.into_iter().filter_map(|ip| range.offset(ip)) {
        let (index, bit) = position(offset);
        words[index as usize] |= bit;
    }
    words
}

/// The first free allocatable offset in `within`.
pub(crate) fn first_free<W: Words>(
    words: &mut W,
    range: &Range,
    within: Span,
) -> Result<Option<u32>, W::Error> {
    let mut reader = Reader { words, count: range.window_words(), loaded: None, chunk: [0; CHUNK as usize] };
    for span in range.allocatable_within(within) {
        if let Some(offset) = reader.first_zero(span)? {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}

/// Words per load: one 4 KiB page, 32,768 addresses. A /17 needs one read, a full window 32.
pub(crate) const CHUNK: u32 = 512;

/// Loads the index in chunks that are aligned to the pages of a stored index.
struct Reader<'a, W> {
    words: &'a mut W,
    count: u32,
    /// The index of the first word in `chunk`, if a chunk is loaded.
    loaded: Option<u32>,
    chunk: [u64; CHUNK as usize],
}

impl<W: Words> Reader<'_, W> {
    fn first_zero(&mut self, span: Span) -> Result<Option<u32>, W::Error> {
        let mut from = span.from;
        while from < span.to {
            let base = from - from % u64::BITS;
            let free = !self.word(base / u64::BITS)? & (u64::MAX << (from - base));
            if free != 0 {
                let offset = base + free.trailing_zeros();
                return Ok((offset < span.to).then_some(offset));
            }
            from = base + u64::BITS;
        }
        Ok(None)
    }

    fn word(&mut self, index: u32) -> Result<u64, W::Error> {
        let first = index - index % CHUNK;
        if self.loaded != Some(first) {
            let len = CHUNK.min(self.count - first) as usize;
            self.words.load(first, &mut self.chunk[..len])?;
            self.loaded = Some(first);
        }
        Ok(self.chunk[(index - first) as usize])
    }
}

fn position(offset: u32) -> (u32, u64) {
    (offset / u64::BITS, 1 << (offset % u64::BITS))
}

fn load_one<W: Words>(words: &mut W, index: u32) -> Result<u64, W::Error> {
    let mut word = [0];
    words.load(index, &mut word)?;
    Ok(word[0])
}
