//! Chunks as `Bytes`: no copy, given back by whoever drops the last clone.

#![allow(unsafe_code)]

mod support;

use hugearena::backing::BackingKind;
use hugearena::pool::Pool;
use hugearena::{Arena, PageSize};

use support::for_each_page_size;

fn open(size: PageSize, pages: usize, kind: BackingKind) -> Arena {
    Arena::builder().page_size(size).capacity(pages * size.bytes()).backing(kind).strict().open().unwrap()
}

#[test]
fn the_last_clone_gives_the_chunk_back_from_any_thread() {
    for_each_page_size(3, |size, pages| {
        let arena = open(size, pages, BackingKind::Anonymous);
        let mut chunk = arena.claim(1).unwrap();
        chunk.as_mut_slice().unwrap()[..4096].fill(7);
        let (at, len) = (chunk.as_ptr().as_ptr().cast_const(), chunk.len());
        let bytes = chunk.into_bytes().unwrap();
        assert_eq!((bytes.as_ptr(), bytes.len()), (at, len), "not copied");
        let slices: Vec<_> = (0..8).map(|index| bytes.slice(index * 512..(index + 1) * 512)).collect();
        drop(bytes);
        let threads: Vec<_> = slices
            .into_iter()
            .map(|slice| std::thread::spawn(move || assert!(slice.clone().iter().all(|byte| *byte == 7))))
            .collect();
        assert!(arena.stats().claimed <= 1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((arena.stats().claimed, arena.stats().dirty), (0, 1));
    });
}

#[test]
fn bytes_outlive_every_handle_of_the_arena() {
    for_each_page_size(1, |size, _| {
        let bytes = open(size, 1, BackingKind::Anonymous).claim(1).unwrap().into_bytes().unwrap();
        assert_eq!(bytes.iter().take(4096).map(|byte| usize::from(*byte)).sum::<usize>(), 0);
    });
}

#[test]
fn shared_memory_is_refused_and_comes_back() {
    for_each_page_size(1, |size, _| {
        let arena = open(size, 1, BackingKind::Memfd);
        let chunk = arena.claim(1).unwrap().into_bytes().unwrap_err();
        // SAFETY: nobody else has the arena.
        let bytes = unsafe { chunk.into_bytes_unchecked() };
        assert_eq!((bytes.len(), arena.stats().claimed), (size.bytes(), 1));
        drop(bytes);
        assert_eq!(arena.stats().claimed, 0);
        drop(arena);
        // Nobody else can write to this one.
        let builder = Arena::builder().page_size(size).capacity(size.bytes()).strict();
        let arena = builder.read_only_peers().open().unwrap();
        assert!(arena.claim(1).unwrap().into_bytes().is_ok());
        assert_eq!(arena.stats().claimed, 0);
    });
}

#[test]
fn objects_of_a_pool_go_home_with_the_last_clone() {
    for_each_page_size(2, |size, pages| {
        let arena = open(size, pages, BackingKind::Anonymous);
        let pool = Pool::builder().object_size(100).headroom(28).count(8).build(&arena).unwrap();
        let mut object = pool.get().unwrap();
        object.as_mut_slice().unwrap().fill(9);
        let at = object.as_ptr().as_ptr().cast_const();
        let bytes = object.into_bytes().unwrap();
        assert_eq!((bytes.as_ptr(), bytes.len()), (at, 100), "not copied, and without the headroom");
        let last = bytes.slice(90..);
        drop((bytes, arena));
        assert_eq!(pool.stats().in_use, 1);
        std::thread::spawn(move || assert_eq!(last, [9; 10][..])).join().unwrap();
        assert_eq!(pool.stats().in_use, 0);
        // It outlives the pool, as any object does.
        let bytes = pool.get().unwrap().into_bytes().unwrap();
        drop(pool);
        assert_eq!(bytes.len(), 100);
        drop(bytes);

        let shared = open(size, pages, BackingKind::Memfd);
        let pool = Pool::builder().object_size(100).count(8).build(&shared).unwrap();
        assert_eq!(pool.get().unwrap().into_bytes().unwrap_err().len(), 100);
        assert_eq!(pool.stats().in_use, 0);
    });
}
