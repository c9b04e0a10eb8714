//! The kernel's lists of numbers: `0-3,8,10-11`, as in `cpulist`, `has_memory` and `Mems_allowed_list`.

/// No machine has CPUs or nodes beyond; a longer list is not one of the kernel's.
const LARGEST: u32 = 1 << 16;

/// The numbers of a list, ascending, each once; empty for an empty list; `None` for anything else.
pub(crate) fn parse(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        numbers.extend(first..=last);
        // Ranges that overlap would let a short text ask for much memory.
        if numbers.len() > LARGEST as usize {
            return None;
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

fn number(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && *number < LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_of_the_kernel() {
        for (text, numbers) in [
            ("0\n", vec![0]),
            ("\n", vec![]),
            ("0-3,8,10-11\n", vec![0, 1, 2, 3, 8, 10, 11]),
            ("63-64,1023", vec![63, 64, 1023]),
            ("5,5,4", vec![4, 5]),
        ] {
            assert_eq!(parse(text), Some(numbers), "{text:?}");
        }
        for text in ["a", "1-", "-1", "3-1", "+1", "1 2", "0-99999999999", "0-65536", "0x1"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    /// As the kernel prints it: runs as ranges.
    fn print(numbers: &[u32]) -> String {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &number in numbers {
            match runs.last_mut() {
                Some(run) if run.1 + 1 == number => run.1 = number,
                _ => runs.push((number, number)),
            }
        }
        let text = runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
        text.collect::<Vec<_>>().join(",")
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read(numbers in proptest::collection::btree_set(0u32..1024, 0..200)) {
            let numbers: Vec<_> = numbers.into_iter().collect();
            prop_assert_eq!(parse(&(print(&numbers) + "\n")), Some(numbers));
        }

        #[test]
        fn garbage_never_panics(text: String, likely in "[-0-9, \n]{0,40}") {
            parse(&text);
            parse(&likely);
        }
    }
}
