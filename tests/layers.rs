//! The shape of the source: imports point down, one module names `libc`, unsafe code stays where it is listed,
//! and files stay readable. ARCHITECTURE.md says why.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules from the ground up. A module may use those of lower layers, and itself.
const LAYERS: [&[&str]; 8] = [
    &["page_size", "error", "sync"],
    &["sys"],
    &["backing", "supply", "numa"],
    &["mapping", "memops", "ring", "iova"],
    &["arena", "share"],
    &["heap", "pool"],
    &["doctor", "stats"],
    &["guide"],
];

/// Imports that do not point down, each with its reason.
const EXCEPTIONS: [(&str, &str); 2] = [
    // Nodes are read from the same `Machine` as their huge pages.
    ("numa", "supply"),
    // A backing that cannot be created names the limit that bound, and asks for mounts by the same `Machine`.
    ("backing", "supply"),
];

/// Imports that the layers would allow and the design forbids: the heap must not depend on arenas.
const FORBIDDEN: [(&str, &str); 1] = [("heap", "arena")];

/// The files that contain unsafe code, tests apart.
const UNSAFE: &[&str] = &[
    "arena/allocator.rs",
    "arena/blocks.rs",
    "arena/bytes.rs",
    "arena/chunk.rs",
    "arena/mod.rs",
    "arena/resize.rs",
    "arena/scrub.rs",
    "arena/zeroing.rs",
    "heap/allocator.rs",
    "heap/central.rs",
    "heap/checks.rs",
    "heap/commit.rs",
    "heap/current.rs",
    "heap/fork.rs",
    "heap/growth.rs",
    "heap/large.rs",
    "heap/lock.rs",
    "heap/mod.rs",
    "heap/sizeless.rs",
    "heap/space.rs",
    "heap/thread.rs",
    "mapping/attach.rs",
    "mapping/growth.rs",
    "mapping/mod.rs",
    "mapping/reservation.rs",
    "mapping/resize.rs",
    "mapping/words.rs",
    "memops/dirty.rs",
    "memops/kernel/aarch64.rs",
    "memops/kernel/lines.rs",
    "memops/kernel/mod.rs",
    "memops/kernel/portable.rs",
    "memops/kernel/x86_64.rs",
    "memops/mod.rs",
    "memops/residency.rs",
    "pool/bytes.rs",
    "pool/cache.rs",
    "pool/channel.rs",
    "pool/mod.rs",
    "pool/object.rs",
    "pool/store.rs",
    "ring/block.rs",
    "ring/memory.rs",
    "ring/mod.rs",
    "ring/mpmc.rs",
    "ring/spsc.rs",
    "sys/fd.rs",
    "sys/file.rs",
    "sys/glibc.rs",
    "sys/memory.rs",
    "sys/mod.rs",
    "sys/numa.rs",
    "sys/process.rs",
    "sys/shared.rs",
];

/// Lines that a file may have, tests apart.
const LINES_MAX: usize = 500;

/// A source file: its path below `src`, its text, and its code without comments, literals and unit tests.
struct Source {
    path: String,
    text: String,
    code: String,
}

impl Source {
    /// `heap/thread.rs` is part of `heap`, `error.rs` is `error`; `lib` and `main` are no part of any layer.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for path in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(read(&root, path));
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

fn read(root: &Path, file: PathBuf) -> Source {
    let text = fs::read_to_string(&file).unwrap();
    let path = file.strip_prefix(root).unwrap().to_str().unwrap().to_string();
    let is_test = path.ends_with("/tests.rs");
    let code = if is_test { String::new() } else { without_tests(&plain_code(&text)) };
    Source { path, text, code }
}

/// Blanks out comments and the contents of string and character literals; line breaks stay.
fn plain_code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = literal_or_comment(rest);
        if skipped > 0 {
            code.push(' ');
            code.extend(rest[..skipped].chars().filter(|char| *char == '\n'));
            rest = &rest[skipped..];
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

/// Bytes of the comment or literal at the start of `text`; 0 when there is none.
fn literal_or_comment(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return text.find("*/").map_or(text.len(), |at| at + 2);
    }
    if let Some(raw) = text.strip_prefix("r#\"") {
        return raw.find("\"#").map_or(text.len(), |at| at + 5);
    }
    if text.starts_with('"') {
        return quoted(text, '"');
    }
    // A character, not a lifetime.
    let mut chars = text.chars();
    if chars.next() == Some('\'') && (chars.next() == Some('\\') || chars.next() == Some('\'')) {
        return quoted(text, '\'');
    }
    0
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        if char == quote && !escaped {
            return at + 1;
        }
        escaped = char == '\\' && !escaped;
    }
    text.len()
}

/// Leaves out modules that are compiled for tests only.
fn without_tests(code: &str) -> String {
    let mut lines = code.lines();
    let mut kept = String::new();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept += line;
            kept.push('\n');
            continue;
        }
        let opening = lines.next().unwrap_or_default();
        let indent = opening.len() - opening.trim_start().len();
        if opening.trim_end().ends_with('{') {
            let closing = format!("{}}}", " ".repeat(indent));
            lines.by_ref().find(|line| *line == closing);
        }
    }
    kept
}

/// Every word of the code, with what stands before it: `crate::` matters.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|char: char| !(char.is_alphanumeric() || char == '_')).filter(|word| !word.is_empty())
}

/// The modules named in paths that start with `crate`: `crate::a::b` and `crate::{a, b::c}`.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => found.extend(words(rest).next().map(str::to_owned)),
            Some(list) => found.extend(heads(list)),
        }
    }
    found
}

/// The first words of the paths of a list in braces.
fn heads(list: &str) -> Vec<String> {
    let mut depth = 0;
    let mut heads = Vec::new();
    let mut item = String::new();
    for char in list.chars() {
        match char {
            '}' if depth == 0 => break,
            ',' if depth == 0 => heads.push(std::mem::take(&mut item)),
            _ => item.push(char),
        }
        depth += i32::from(char == '{') - i32::from(char == '}');
    }
    heads.push(item);
    heads.iter().filter_map(|item| words(item).next().map(str::to_owned)).collect()
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

#[test]
fn imports_point_down() {
    for source in sources() {
        let own = source.module();
        if matches!(own, "lib" | "bin" | "main") {
            continue;
        }
        let own_layer = layer(own).unwrap_or_else(|| panic!("{}: {own} has no layer", source.path));
        for import in imports(&source.code) {
            // What the crate exports at its root is one of the modules' too; such a path hides which.
            let used = layer(&import).unwrap_or_else(|| panic!("{}: crate::{import} has no layer", source.path));
            let pair = (own, import.as_str());
            assert!(!FORBIDDEN.contains(&pair), "{}: {own} must not use {import}", source.path);
            let is_down = used < own_layer || import == own || EXCEPTIONS.contains(&pair);
            assert!(is_down, "{}: {own} (layer {own_layer}) uses {import} (layer {used})", source.path);
        }
    }
}

#[test]
fn every_exception_is_needed() {
    let sources = sources();
    for (own, import) in EXCEPTIONS {
        let mut files = sources.iter().filter(|source| source.module() == own);
        assert!(files.any(|source| imports(&source.code).contains(import)), "{own} does not use {import}");
    }
}

#[test]
fn only_sys_names_libc() {
    for source in sources().iter().filter(|source| source.module() != "sys") {
        assert!(!words(&source.code).any(|word| word == "libc"), "{} names libc", source.path);
    }
}

#[test]
fn unsafe_code_is_where_it_is_listed() {
    let sources = sources();
    let found: Vec<_> = sources.iter().filter(|source| words(&source.code).any(|word| word == "unsafe")).collect();
    let found: Vec<_> = found.iter().map(|source| source.path.as_str()).collect();
    assert_eq!(found, UNSAFE);
}

#[test]
fn every_file_says_what_it_is() {
    for source in sources() {
        assert!(source.text.starts_with("//! "), "{} does not start with a //! line", source.path);
    }
}

#[test]
fn files_are_short() {
    for source in sources() {
        let tests = source.text.lines().position(|line| line == "#[cfg(test)]");
        let lines = tests.unwrap_or(source.text.lines().count());
        assert!(lines <= LINES_MAX, "{} has {lines} lines", source.path);
    }
}

#[test]
fn code_is_told_from_comments_and_literals() {
    let text = "a // unsafe\nlet s = \"libc \\\" unsafe\"; let c = '\"'; let l: &'static str = r#\"unsafe\"#; b\n\
        #[cfg(test)]\nmod tests {\n    unsafe\n}\nc /* unsafe */ d\n";
    let code = without_tests(&plain_code(text));
    let found: Vec<_> = words(&code).collect();
    assert_eq!(found, ["a", "let", "s", "let", "c", "let", "l", "static", "str", "b", "c", "d"]);
    let found = imports("use crate::sys::{self, memory}; use crate::{error::{A, B}, heap}; crate::supply::x()");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["error", "heap", "supply", "sys"]);
}
