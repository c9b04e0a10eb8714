//! A process at its limit of mappings (`vm.max_map_count`): errors, and nothing else.

use std::ptr;

use super::*;

/// Mappings of the test's own, as many as the process may have.
struct Filled(Vec<*mut libc::c_void>);

impl Filled {
    fn new(most: usize) -> Filled {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mut taken = Vec::with_capacity(most);
        for index in 0..most {
            // Neighbours that differ are not joined.
            let access = if index % 2 == 0 { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
            // SAFETY: a new mapping at an address of the kernel's choice.
            let at = unsafe { libc::mmap(ptr::null_mut(), PageSize::base().bytes(), access, anonymous, -1, 0) };
            if at == libc::MAP_FAILED {
                break;
            }
            taken.push(at);
        }
        Filled(taken)
    }

    /// From now on the process may have one more.
    fn give_one(&mut self) {
        if let Some(at) = self.0.pop() {
            // SAFETY: our own, never used.
            unsafe { libc::munmap(at, PageSize::base().bytes()) };
        }
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        while !self.0.is_empty() {
            self.give_one();
        }
    }
}

/// A growth that needs borders in the middle of the room, a shrinking that needs them in the middle of the pages.
#[test]
fn at_the_limit_of_mappings_growing_and_shrinking_are_errors() {
    let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    if most > 1 << 17 {
        return support::print_skip("the limit of mappings", "vm.max_map_count is so large that it takes minutes");
    }
    Child::new().needs_pages(PageSize::HUGE_2M, 12).run(|| {
        for (size, kind, first) in [
            (PageSize::base(), BackingKind::Anonymous, 0),
            (PageSize::base(), BackingKind::Anonymous, 5),
            (PageSize::HUGE_2M, BackingKind::Anonymous, 0),
            (PageSize::HUGE_2M, BackingKind::Anonymous, 5),
            (PageSize::HUGE_2M, BackingKind::Memfd, 5),
        ] {
            let arena = builder(size, 5, 12).backing(kind.clone()).open().unwrap();
            let mut held = (first > 0).then(|| arena.claim(first).unwrap());
            held.iter_mut().for_each(|chunk| mark(chunk, 3));
            arena.trim().unwrap();
            let mut filled = Filled::new(most);
            for left in 0..10 {
                let grown = [arena.grow(1), arena.grow(2)].map(|result| result.is_ok());
                let given = arena.shrink(2);
                let stats = arena.stats();
                assert_eq!(stats.pages + stats.absent, 12, "{size} {kind} {left} left: {grown:?} {given:?} {stats}");
                assert_eq!(stats.claimed, first);
                filled.give_one();
            }
            drop(filled);
            // The range is whole: what it lacks can be had, is zero, and nobody else's mapping has come to lie in it.
            arena.trim().unwrap();
            arena.grow(arena.stats().absent).unwrap();
            let mut rest = arena.claim_zeroed(12 - first, FirstTouch::unknown()).unwrap();
            assert!(is_marked(&mut rest, 0));
            mark(&mut rest, 5);
            assert!(held.iter_mut().all(|chunk| is_marked(chunk, 3)));
        }
    });
}
