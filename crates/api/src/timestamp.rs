//! Timestamps in messages and in JSON.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Seconds since 1970. In JSON: RFC 3339 in UTC, `2026-11-15T21:13:04Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timestamp(
    #[cfg_attr(feature = "schema", schemars(with = "String", extend("format" = "date-time")))] pub u64,
);

/// The last second of RFC 3339. Other nodes may publish later ones.
const MAX: u64 = 253_402_300_799;

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [year, month, day, hour, minute, second] = fields(self.0.min(MAX));
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| de::Error::custom(format!("{text:?} is not an RFC 3339 time in UTC")))
    }
}

/// Accepts the format that Podwire writes: whole seconds, UTC.
fn parse(text: &str) -> Option<Timestamp> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, separator| -> Option<[u64; 3]> {
        let all: Vec<u64> = text.split(separator).map(|part| part.parse().ok()).collect::<Option<_>>()?;
        all.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years start in March: see `date`.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (years / 400, years % 400);
    let day_of_year = (153 * months + 2) / 5 + day - 1;
    let days =
        era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    let time = Timestamp(days * 86_400 + hour * 3600 + minute * 60 + second);
    (time.to_string() == text).then_some(time)
}

/// `2026-11-15 21:13:04 UTC`.
pub fn utc(time: u64) -> String {
    let [year, month, day, hour, minute, second] = fields(time);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

fn fields(time: u64) -> [u64; 6] {
    let (days, second) = (time / 86_400, time % 86_400);
    let (year, month, day) = date(days);
    [year, month, day, second / 3600, second / 60 % 60, second % 60]
}

/// Year, month and day of a number of days since 1970. Years are counted from March, so that a leap day is the last day of
/// its year.
fn date(days: u64) -> (u64, u64, u64) {
    // 0000-03-01 is 719,468 days before 1970-01-01. 400 years have 146,097 days.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_are_formatted_and_parsed() {
        for (time, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_868_799, "2000-02-29 23:59:59 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(time), text);
            let formatted = Timestamp(time).to_string();
            assert_eq!(formatted, text.replacen(' ', "T", 1).replace(" UTC", "Z"));
            assert_eq!(parse(&formatted), Some(Timestamp(time)));
        }
        let last = "9999-12-31T23:59:59Z";
        assert_eq!(
            (Timestamp(MAX).to_string().as_str(), Timestamp(u64::MAX).to_string().as_str()),
            (last, last)
        );
        assert_eq!(parse(last), Some(Timestamp(MAX)));
        for bad in ["", "2026", "2025-02-30T00:00:00Z", "2025-01-01T24:00:00Z", "2025-01-01T00:00:00+01:00"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
