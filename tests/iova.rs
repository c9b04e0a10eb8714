//! What devices call chunks, on every page size; and without privileges, where it must be an error.

#![allow(unsafe_code)]

mod support;

use std::os::unix::net::UnixStream;

use hugearena::arena::View;
use hugearena::backing::BackingKind;
use hugearena::error::{LimitKind, Operation};
use hugearena::iova::{IovaMap, IovaMode};
use hugearena::{Arena, PageSize};

use support::machine::{become_nobody, is_root};
use support::{Child, for_each_page_size, fork, skip};

fn open(size: PageSize, pages: usize, kind: BackingKind) -> Arena {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).backing(kind).strict().open().unwrap()
}

/// What every map must be: all of the bytes, in order, and no two ranges that could be one.
fn check(map: &IovaMap, len: usize) {
    let ranges = map.ranges();
    let mut end = 0;
    for range in ranges {
        assert_eq!(range.offset, end, "{ranges:x?}");
        assert_ne!(range.iova, 0);
        end += range.len;
    }
    assert_eq!(end, len);
    let joins = |pair: &[hugearena::iova::IovaRange]| pair[0].iova + pair[0].len as u64 == pair[1].iova;
    assert!(!ranges.windows(2).any(joins), "{ranges:x?}");
}

#[test]
fn a_chunk_is_one_range_by_its_own_addresses() {
    for_each_page_size(4, |size, pages| {
        for kind in [BackingKind::Memfd, BackingKind::Anonymous] {
            let arena = open(size, pages, kind);
            let chunk = arena.claim(pages).unwrap();
            let map = chunk.iova(IovaMode::Virtual).unwrap();
            check(&map, chunk.len());
            assert_eq!(map.ranges().len(), 1);
            assert_eq!(map.iova_of(5, 1), Some(chunk.as_ptr().addr().get() as u64 + 5));
        }
    });
}

#[test]
fn physical_addresses_are_those_of_the_pages() {
    if !is_root() {
        return skip("physical addresses", "not root");
    }
    for_each_page_size(64, |size, pages| {
        let arena = open(size, pages, BackingKind::Memfd);
        let chunk = arena.claim(pages).unwrap();
        let map = match chunk.iova(IovaMode::Physical) {
            Err(error) if !size.is_huge() => return assert!(error.to_string().contains("base pages move"), "{error}"),
            map => map.unwrap(),
        };
        check(&map, chunk.len());
        assert!(map.ranges().iter().all(|range| range.iova % size.bytes() as u64 == 0));
        eprintln!("{pages} pages of {size} are {} ranges", map.ranges().len());
        // A second mapping of the same pages, at another address, has the same ones.
        let (ours, theirs) = UnixStream::pair().unwrap();
        arena.share(&ours).unwrap();
        let view = View::receive(&theirs).unwrap();
        assert_eq!(view.iova(IovaMode::Physical).unwrap(), map);
        // Page by page, nothing is lost by joining.
        drop(chunk);
        for page in 0..pages {
            let chunk = arena.claim(1).unwrap();
            let one = chunk.iova(IovaMode::Physical).unwrap();
            assert_eq!(one.iova_of(0, chunk.len()), map.iova_of(chunk.offset(), chunk.len()), "page {page}");
        }
    });
}

#[test]
fn pages_that_fork_would_replace_have_no_physical_address() {
    for_each_page_size(1, |size, _| {
        let chunk = open(size, 1, BackingKind::Anonymous).claim(1).unwrap();
        let error = chunk.iova(IovaMode::Physical).unwrap_err();
        assert_eq!(error.operation(), Operation::Translate);
    });
}

/// It may have mapped something else where the chunk was, whose addresses are not the chunk's.
#[test]
fn a_child_of_fork_has_no_physical_address_of_a_shared_chunk() {
    for_each_page_size(1, |size, _| {
        if !size.is_huge() {
            return;
        }
        let chunk = open(size, 1, BackingKind::Memfd).claim(1).unwrap();
        let status = fork(|| {
            let error = chunk.iova(IovaMode::Physical).unwrap_err();
            i32::from(!error.to_string().contains("a child of fork(2) does not have them"))
        });
        assert!(status.success(), "{status}");
    });
}

#[test]
fn without_privileges_it_is_an_error_that_says_what_to_do() {
    for size in [PageSize::HUGE_2M, PageSize::HUGE_1G] {
        let check = move || {
            let arena = open(size, 1, BackingKind::Memfd);
            let chunk = arena.claim(1).unwrap();
            become_nobody();
            let error = chunk.iova(IovaMode::Physical).unwrap_err();
            let limit = error.limit().expect("the limit is named");
            assert_eq!(limit.kind, LimitKind::Permission);
            assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
            assert!(chunk.iova(IovaMode::Virtual).is_ok());
        };
        Child::new().needs_pages(size, 1).run(check);
    }
}

#[test]
fn regions_cover_a_chunk_and_locate_its_bytes() {
    for_each_page_size(5, |size, pages| {
        let arena = open(size, pages, BackingKind::Memfd);
        let chunk = arena.claim(pages).unwrap();
        for max_bytes in [0, 1, size.bytes(), 2 * size.bytes() + 1, usize::MAX] {
            let regions = chunk.regions(max_bytes);
            let mut next = chunk.as_ptr();
            for (index, region) in regions.iter().enumerate() {
                let start = region.cast::<u8>();
                assert_eq!(start, next);
                assert!(region.len() <= max_bytes.max(size.bytes()));
                let offset = start.addr().get() - chunk.as_ptr().addr().get();
                assert_eq!(regions.locate(offset, region.len()), Some((index, start)));
                assert_eq!(regions.locate(offset, region.len() + 1), None, "beyond the region");
                // SAFETY: one past the end of a region of the chunk at most.
                next = unsafe { start.add(region.len()) };
            }
            assert_eq!(next.addr().get(), chunk.as_ptr().addr().get() + chunk.len());
            assert_eq!(regions.locate(chunk.len(), 0), None);
            assert_eq!(regions.locate(usize::MAX, 2), None);
        }
    });
}
