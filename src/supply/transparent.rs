//! What the system's settings say about transparent huge pages.

use std::fmt;
use std::path::Path;

use super::machine::{Machine, ThisMachine};
use crate::page_size::PageSize;

/// When the kernel uses transparent huge pages, in the words of its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransparentMode {
    /// `always`: wherever they fit.
    Always,
    /// `within_size`: where they fit the file, and on advice. Shared memory only.
    WithinSize,
    /// `madvise` or `advise`: where `MADV_HUGEPAGE` asked for them.
    Advised,
    /// `never`.
    Never,
    /// `deny`: never, for testing. Shared memory only.
    Deny,
    /// `force`: always, for testing. Shared memory only.
    Force,
}

impl TransparentMode {
    /// Whether `MADV_HUGEPAGE` can have an effect.
    #[must_use]
    pub fn follows_advice(self) -> bool {
        !matches!(self, TransparentMode::Never | TransparentMode::Deny)
    }

    /// The chosen word is in brackets: `always [madvise] never`.
    fn parse(text: &str) -> Option<TransparentMode> {
        let (_, rest) = text.split_once('[')?;
        let (word, _) = rest.split_once(']')?;
        Some(match word {
            "always" => TransparentMode::Always,
            "within_size" => TransparentMode::WithinSize,
            "madvise" | "advise" => TransparentMode::Advised,
            "never" => TransparentMode::Never,
            "deny" => TransparentMode::Deny,
            "force" => TransparentMode::Force,
            _ => return None,
        })
    }
}

impl fmt::Display for TransparentMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransparentMode::Always => "always",
            TransparentMode::WithinSize => "within size",
            TransparentMode::Advised => "on advice",
            TransparentMode::Never => "never",
            TransparentMode::Deny => "denied",
            TransparentMode::Force => "forced",
        })
    }
}

/// The system's settings for transparent huge pages; `None` where the kernel has no such setting.
///
/// They say what may happen. What did happen to a mapping is in `/proc/self/smaps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransparentHuge {
    /// For private anonymous memory.
    pub anonymous: Option<TransparentMode>,
    /// For shared anonymous memory and for memfds without hugetlb.
    pub shared: Option<TransparentMode>,
    /// The size of one transparent huge page.
    pub page_size: Option<PageSize>,
}

impl TransparentHuge {
    pub(super) fn of(machine: &dyn Machine) -> TransparentHuge {
        let directory = Path::new("/sys/kernel/mm/transparent_hugepage");
        let mode = |name| TransparentMode::parse(&machine.text(&directory.join(name))?);
        TransparentHuge {
            anonymous: mode("enabled"),
            shared: mode("shmem_enabled"),
            page_size: machine.number(&directory.join("hpage_pmd_size")).and_then(PageSize::from_bytes),
        }
    }
}

impl fmt::Display for TransparentHuge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = |mode: Option<TransparentMode>| mode.map_or("not there".into(), |mode| mode.to_string());
        write!(f, "transparent huge pages: anonymous {}, shared {}", mode(self.anonymous), mode(self.shared))
    }
}

/// Reads the settings for transparent huge pages.
///
/// # Examples
///
/// ```
/// println!("{}", hugearena::supply::transparent_huge());
/// ```
///
/// # Sources
///
/// Linux, `Documentation/admin-guide/mm/transhuge.rst`.
#[must_use]
pub fn transparent_huge() -> TransparentHuge {
    TransparentHuge::of(&ThisMachine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_word_in_brackets_counts() {
        for (text, mode) in [
            ("always [madvise] never\n", Some(TransparentMode::Advised)),
            ("always within_size advise [never] deny force\n", Some(TransparentMode::Never)),
            ("always [within_size] advise never deny force\n", Some(TransparentMode::WithinSize)),
            ("always madvise never", None),
            ("[sometimes]", None),
            ("]always[", None),
        ] {
            assert_eq!(TransparentMode::parse(text), mode, "{text}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text: String) {
            TransparentMode::parse(&text);
        }
    }
}
