use super::*;
use crate::index::{CHUNK, first_free};
use crate::window::Span;

/// Counts loads and stores, because durations depend on the machine.
#[derive(Default)]
struct CountingWords {
    words: Vec<u64>,
    loads: u32,
    loaded: u32,
    stores: u32,
}

impl Words for CountingWords {
    type Error = Infallible;

    fn load(&mut self, first: u32, into: &mut [u64]) -> Result<(), Infallible> {
        self.loads += 1;
        self.loaded += into.len() as u32;
        self.words.load(first, into)
    }

    fn store(&mut self, index: u32, word: u64) -> Result<(), Infallible> {
        self.stores += 1;
        self.words.store(index, word)
    }
}

/// The first free offset after `after`, else before it, else `after` itself. Without `after`, or if it is outside the window,
/// the search starts at offset 0.
fn next_free<W: Words>(words: &mut W, range: &Range, after: Option<u32>) -> Result<Option<u32>, W::Error> {
    let len = range.window_len();
    let start = after.filter(|a| *a < len).map_or(0, |a| a + 1);
    match first_free(words, range, Span { from: start, to: len })? {
        Some(offset) => Ok(Some(offset)),
        None => first_free(words, range, Span { from: 0, to: start }),
    }
}

fn full_index(range: &Range) -> CountingWords {
    CountingWords { words: vec![u64::MAX; range.window_words() as usize], ..CountingWords::default() }
}

#[test]
fn c2_a_typical_search_needs_one_load() {
    for subnet in ["10.0.0.0/30", "10.0.0.0/24", "10.0.0.0/16", "10.0.0.0/8", "fd00::/64", "2000::/3"] {
        let r = range(spec(subnet));
        let mut words = CountingWords::default();
        assert_eq!(next_free(&mut words, &r, None), Ok(Some(1)), "{subnet}");
        assert_eq!((words.loads, words.loaded), (1, r.window_words().min(CHUNK)), "{subnet}");
    }
}

#[test]
fn c2_the_longest_search_loads_the_index_once() {
    for subnet in ["10.0.0.0/8", "2000::/3"] {
        let r = range(spec(subnet));
        // The only free offset is before the start of the search, so the search wraps around.
        for (free, after) in [(700_000, 700_001), (1, 1), (WINDOW - 1, WINDOW - 1), (1, WINDOW - 1)] {
            let mut words = full_index(&r);
            let Ok(()) = clear(&mut words.words, free);
            assert_eq!(next_free(&mut words, &r, Some(after)), Ok(Some(free)), "{subnet}");
            let chunks = r.window_words().div_ceil(CHUNK);
            assert!(words.loads <= chunks + 1 && words.loaded <= r.window_words() + CHUNK, "{subnet}");
        }
    }
}

#[test]
fn c2_large_exclusions_are_skipped() {
    let (first, large) = ("10.0.0.0/24", "10.8.0.0/13");
    let r = range(without("10.0.0.0/12", &[first, large]));
    let before = r.offset(ip("10.7.255.255"));
    let mut words = CountingWords::default();
    // No address follows the /13: the search wraps around and also skips the first exclusion.
    assert_eq!(next_free(&mut words, &r, before), Ok(r.offset(ip("10.0.1.0"))));
    assert_eq!(words.loads, 1);
}

#[test]
fn c2_many_small_exclusions_share_a_load() {
    let odd: Vec<_> = (0..16_384u32).map(|i| format!("10.0.{}.{}/32", i / 128, i % 128 * 2 + 1)).collect();
    let odd: Vec<_> = odd.iter().map(String::as_str).collect();
    let r = range(without("10.0.0.0/17", &odd));
    let mut words = full_index(&r);
    assert_eq!(next_free(&mut words, &r, None), Ok(None));
    assert_eq!(words.loads, 1);
}

#[test]
fn c3_bits_of_addresses_that_are_not_allocatable_are_ignored() {
    let r = range(spec("10.0.0.0/29"));
    // The range is .1 to .6 with gateway .1: all allocatable offsets (1 to 5) are set, all other bits are clear.
    let mut words = vec![0b11_1110u64];
    assert_eq!(next_free(&mut words, &r, None), Ok(None));
    assert_eq!(next_free(&mut words, &r, Some(3)), Ok(None));
    // Only offset 3 is free. Set bits outside the window are ignored.
    let mut words = vec![!0b1000u64, u64::MAX];
    assert_eq!(next_free(&mut words, &r, None), Ok(Some(3)));
}

#[test]
fn c3_the_last_offset_is_searched_last_and_a_stale_one_ignored() {
    let r = range(spec("10.0.0.0/29"));
    let mut words = vec![0u64];
    assert_eq!(next_free(&mut words, &r, Some(3)), Ok(Some(4)));
    assert_eq!(next_free(&mut words, &r, Some(5)), Ok(Some(1)));
    for stale in [6, 64, u32::MAX] {
        assert_eq!(next_free(&mut words, &r, Some(stale)), Ok(Some(1)), "{stale}");
    }
    let mut words = vec![!0b1000u64];
    assert_eq!(next_free(&mut words, &r, Some(3)), Ok(Some(3)));
}

#[test]
fn c3_set_and_clear_change_one_bit_and_store_only_changes() {
    let mut words = CountingWords::default();
    for (offset, at, bit) in [(0, 0, 0), (63, 0, 63), (64, 1, 0), (130, 2, 2)] {
        assert_eq!(is_set(&mut words, offset), Ok(false));
        assert_eq!(set(&mut words, offset), Ok(false));
        assert_eq!(is_set(&mut words, offset), Ok(true));
        assert_eq!(words.words[at] >> bit & 1, 1);
    }
    assert_eq!(words.words, [1 | 1 << 63, 1, 4]);
    let stores = words.stores;
    assert_eq!(set(&mut words, 64), Ok(true));
    assert_eq!(clear(&mut words, 65), Ok(()));
    assert_eq!(clear(&mut words, 9_999), Ok(()));
    assert_eq!(words.stores, stores);
    assert_eq!(clear(&mut words, 63), Ok(()));
    assert_eq!(words.words, [1, 1, 4]);
}

#[test]
fn c3_an_unreadable_index_is_not_reported_as_exhausted() {
    struct Broken;
    impl Words for Broken {
        type Error = &'static str;
        fn load(&mut self, _: u32, _: &mut [u64]) -> Result<(), &'static str> {
            Err("cannot read")
        }
        fn store(&mut self, _: u32, _: u64) -> Result<(), &'static str> {
            Err("cannot write")
        }
    }
    let pool = RangeSet::new(vec![range(spec("10.0.0.0/24"))]).unwrap();
    assert_eq!(pool.next_after(None, |_| Ok(Broken)), Err("cannot read"));
    assert_eq!(pool.next_after(None, |_| Err::<Broken, _>("cannot open")), Err("cannot open"));
    assert_eq!(set(&mut Broken, 3), Err("cannot read"));
}

#[test]
fn c3_words_that_were_never_stored_are_zero() {
    let mut words = vec![5u64, 6];
    let mut into = [9u64; 3];
    assert_eq!(words.load(1, &mut into), Ok(()));
    assert_eq!(into, [6, 0, 0]);
    assert_eq!(words.load(7, &mut into), Ok(()));
    assert_eq!(into, [0, 0, 0]);
}

#[test]
fn c3_an_index_is_opened_right_before_its_search() {
    let pool = RangeSet::new(vec![range(spec("10.1.0.0/24")), range(spec("10.2.0.0/24"))]).unwrap();
    let opened = |last: Option<&str>, word: u64| {
        let mut names = Vec::new();
        let Ok(_) = pool.next_after(last.map(ip), |r| {
            names.push(r.start().to_string());
            Ok(vec![word; 4])
        });
        names.join(" ")
    };
    assert_eq!(opened(None, 0), "10.1.0.1");
    assert_eq!(opened(Some("10.2.0.9"), 0), "10.2.0.1");
    assert_eq!(opened(None, u64::MAX), "10.1.0.1 10.2.0.1");
    assert_eq!(opened(Some("10.1.0.254"), u64::MAX), "10.2.0.1 10.1.0.1");
    assert_eq!(opened(Some("10.1.0.9"), u64::MAX), "10.1.0.1 10.2.0.1 10.1.0.1");
}
