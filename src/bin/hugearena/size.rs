//! Sizes as people write and read them.

use hugearena::PageSize;

/// `4G`, `1536M`, `64K`, `1T` or a number of bytes; binary units, any case, `B` or `iB` behind.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: want a number of bytes, or one with K, M, G or T, such as 4G");
    let upper = text.trim().to_ascii_uppercase();
    let digits = upper.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = upper[..digits].parse().map_err(|_| wrong())?;
    let shift = match &upper[digits..] {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than 2^64 bytes"))
}

/// As `PageSize`, but no base page: there is no pool of these.
pub fn parse_page(text: &str) -> Result<PageSize, String> {
    let size: PageSize = text.parse().map_err(|error| format!("{error}"))?;
    if size.is_huge() { Ok(size) } else { Err(format!("{size} is no huge page size")) }
}

/// Exact in the largest unit that leaves no remainder: `4G`, `1536M`, `12K`.
pub fn print(bytes: u64) -> String {
    let units = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
    let fits = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    fits.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_trip() {
        for (text, bytes) in [("4G", 4 << 30), ("1536M", 1536 << 20), ("12K", 12 << 10), ("5", 5), ("1T", 1 << 40)] {
            assert_eq!(parse(text), Ok(bytes));
            assert_eq!(print(bytes), text);
        }
        assert_eq!(parse("2mib"), Ok(2 << 20));
        assert_eq!(print(0), "0");
        for text in ["", "G", "-1", "1.5G", "4X", "18446744073709551615K", "4 G"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("16777216T").unwrap_err().ends_with("more than 2^64 bytes"));
        assert!(parse_page("4K").is_err() && parse_page("3M").is_err());
        assert_eq!(parse_page("2M"), Ok(PageSize::HUGE_2M));
    }
}
