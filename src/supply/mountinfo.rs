//! The mount table of this process, `/proc/self/mountinfo`.
//!
//! Fields are taken by position, so neither the order of options nor their text matters; the number of optional
//! fields varies and ends at a lone `-`. A line that does not fit is skipped: other lines may still be good.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::machine::Machine;

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Which directory of the file system is mounted; `/` unless it is a bind mount or a namespace is involved.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// The type of the file system, such as `hugetlbfs`.
    pub kind: String,
    /// The options of the file system, separated by commas. For a version 1 cgroup: its controllers.
    pub options: String,
}

impl Mount {
    /// Whether `option` is among the file system's options.
    pub(crate) fn has_option(&self, option: &str) -> bool {
        self.options.split(',').any(|found| found == option)
    }
}

/// The mounts that this process sees; empty when procfs cannot be read.
pub(crate) fn read(machine: &dyn Machine) -> Vec<Mount> {
    read_of(machine, Path::new("/proc/self"))
}

/// The mounts that a process sees, by its directory in procfs: it may live in another namespace.
pub(crate) fn read_of(machine: &dyn Machine, process: &Path) -> Vec<Mount> {
    machine.bytes(&process.join("mountinfo")).map_or_else(Vec::new, |text| parse(&text))
}

/// Bytes, not text: a mount point may have any name.
fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /point rw,noatime master:1 - kind source options`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let root = path(fields.nth(3)?);
    let point = path(fields.next()?);
    let _per_mount_options = fields.next()?;
    fields.find(|&field| field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let _source = fields.next()?;
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    point.is_absolute().then_some(Mount { root, point, kind, options })
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

/// The kernel writes blanks and backslashes in names as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let (byte, tail) = octal_escape(rest).unwrap_or((*first, tail));
        plain.push(byte);
        rest = tail;
    }
    plain
}

fn octal_escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let [b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', tail @ ..] = text else { return None };
    Some(((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'), tail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Experiments: 44.
    #[test]
    fn fields_go_by_position_whatever_the_optional_ones() {
        let text = b"31 23 0:28 / /dev/huge\\040pages rw shared:5 master:2 - hugetlbfs none rw,gid=7,pagesize=2M\n\
            garbage\n\
            32 23 0:29 /docker/a /sys/fs/cgroup/hugetlb rw - cgroup none rw,hugetlb\n\
            33 23 0:30 / relative rw - tmpfs none rw\n\
            34 23 0:31 / /cut rw shared:5\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2, "{mounts:?}");
        assert_eq!(mounts[0].point, Path::new("/dev/huge pages"));
        assert_eq!(mounts[0].kind, "hugetlbfs");
        assert!(mounts[0].has_option("gid=7") && !mounts[0].has_option("gid"));
        assert_eq!(mounts[1].root, Path::new("/docker/a"));
        assert!(mounts[1].has_option("hugetlb"));
    }

    /// Experiments: 44.
    #[test]
    fn a_line_of_many_kilobytes_is_a_line() {
        let options = "lowerdir=/x,".repeat(2000);
        let text = format!("1 2 0:3 / /a rw - overlay none rw,{options}\n4 5 0:6 / /b rw - hugetlbfs none rw\n");
        let points: Vec<_> = parse(text.as_bytes()).into_iter().map(|mount| mount.point).collect();
        assert_eq!(points, [Path::new("/a"), Path::new("/b")]);
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        for (field, plain) in
            [("\\134", "\\"), ("\\40", "\\40"), ("\\999", "\\999"), ("\\777", "\\777"), ("a\\", "a\\")]
        {
            assert_eq!(unescape(field.as_bytes()), plain.as_bytes(), "{field}");
        }
    }

    fn escape(name: &[u8]) -> Vec<u8> {
        let escaped = |&byte: &u8| match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}").into_bytes(),
            _ => vec![byte],
        };
        name.iter().flat_map(escaped).collect()
    }

    proptest! {
        /// Experiments: 44.
        #[test]
        fn any_name_survives_escaping(name: Vec<u8>) {
            let mut line = b"1 2 0:3 / /".to_vec();
            line.extend(escape(&name));
            line.extend(b" rw - hugetlbfs none rw");
            let mounts = parse(&line);
            prop_assert_eq!(mounts.len(), 1);
            let mut want = b"/".to_vec();
            want.extend(&name);
            prop_assert_eq!(mounts[0].point.as_os_str().as_encoded_bytes(), want);
        }

        /// Experiments: 44.
        #[test]
        fn garbage_never_panics(text: Vec<u8>, words in "[-0-9 /\\\\\n:a-c]{0,200}") {
            parse(&text);
            parse(words.as_bytes());
        }
    }
}
