//! Backings against the kernel: what is made, what is refused and how, and that nothing stays open.

use super::*;
use crate::error::LimitKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_memfd_has_the_length_the_mode_and_the_seal() {
    let sizes = supply::page_sizes();
    for size in sizes.into_iter().chain([PageSize::base()]) {
        let backing = Backing::create(&BackingKind::Memfd, size, 3).unwrap();
        assert_eq!((backing.pages(), backing.page_size(), backing.directory()), (3, size, None));
        assert_eq!(backing.memory_class(), MemoryClass::Shared);
        let file = backing.file.as_ref().unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), backing.len_bytes() as u64);
        assert_eq!(metadata.blksize(), size.bytes() as u64);
        assert_eq!((metadata.mode() & 0o777, metadata.blocks()), (0o600, 0));
        let shrunk = file.set_len(size.bytes() as u64).unwrap_err();
        assert_eq!(Errno(shrunk.raw_os_error().unwrap()), sys::EPERM);
        file.set_len(4 * size.bytes() as u64).expect("growing is not sealed");
    }
}

#[test]
fn anonymous_memory_has_no_file_and_is_private() {
    let backing = Backing::create(&BackingKind::Anonymous, PageSize::HUGE_2M, 5).unwrap();
    assert!(backing.fd().is_none());
    assert_eq!(backing.memory_class(), BackingKind::Anonymous.memory_class());
    assert_eq!(backing.memory_class(), MemoryClass::Private);
    assert_eq!(backing.len_bytes(), 5 * PageSize::HUGE_2M.bytes());
}

#[test]
fn numbers_that_make_no_sense_are_refused_before_anything_happens() {
    for pages in [0, usize::MAX, isize::MAX as usize / PageSize::HUGE_2M.bytes() + 1] {
        let error = Backing::create(&BackingKind::Memfd, PageSize::HUGE_2M, pages).unwrap_err();
        assert_eq!(error.operation(), Operation::Configure, "{error}");
    }
    let error = Backing::create(&BackingKind::Hugetlbfs { dir: None }, PageSize::base(), 1).unwrap_err();
    assert_eq!(error.operation(), Operation::Configure, "{error}");
}

#[test]
fn a_page_size_that_the_kernel_lacks_is_named() {
    // No architecture has all of these.
    let offered = supply::page_sizes();
    let missing = [8 << 20, 128 << 20].map(|bytes| PageSize::from_bytes(bytes).unwrap());
    for size in missing.into_iter().filter(|size| !offered.contains(size)) {
        for kind in [BackingKind::Memfd, BackingKind::Hugetlbfs { dir: None }] {
            let error = Backing::create(&kind, size, 1).unwrap_err();
            assert_eq!(error.operation(), Operation::CreateBacking);
            let limit = error.limit().unwrap_or_else(|| panic!("{error}"));
            assert_eq!(limit.kind, LimitKind::PageSizeMissing, "{error}");
        }
    }
}

#[test]
fn a_directory_that_is_no_hugetlbfs_is_refused_with_the_reason() {
    let in_dir = |dir: &str| {
        let kind = BackingKind::Hugetlbfs { dir: Some(dir.into()) };
        Backing::create(&kind, PageSize::HUGE_2M, 1).unwrap_err()
    };
    let error = in_dir("/proc");
    assert_eq!(error.operation(), Operation::Configure);
    assert!(error.to_string().contains("/proc: the directory is not on a hugetlbfs"), "{error}");
    let error = in_dir("/no/such/place");
    assert_eq!(error.operation(), Operation::CreateBacking);
    assert_eq!(error.os_error().map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
    in_dir("/nul\0byte");
}

#[test]
fn any_mount_will_do_or_the_error_says_how_to_make_one() {
    match Backing::create(&BackingKind::Hugetlbfs { dir: None }, PageSize::HUGE_2M, 2) {
        Ok(backing) => {
            let file = backing.file.as_ref().unwrap().metadata().unwrap();
            assert_eq!((file.len(), file.nlink()), (4 << 20, 0));
            assert!(backing.directory().is_some());
        }
        Err(error) => assert!(error.os_error().is_some() || error.to_string().contains("memfd"), "{error}"),
    }
}

#[test]
fn nothing_is_left_open() {
    // Other tests open and close files meanwhile, so a leak has to show as a trend.
    let backing = Backing::create(&BackingKind::Memfd, PageSize::base(), 1).unwrap();
    assert!(backing.fd().unwrap().as_raw_fd() >= 0);
    let before = open_descriptors();
    for _ in 0..200 {
        drop(Backing::create(&BackingKind::Memfd, PageSize::base(), 1).unwrap());
        Backing::create(&BackingKind::Memfd, PageSize::base(), isize::MAX as usize / 4096 - 1).ok();
        Backing::create(&BackingKind::Hugetlbfs { dir: Some("/proc".into()) }, PageSize::HUGE_2M, 1).unwrap_err();
    }
    assert!(open_descriptors() < before + 100);
}
