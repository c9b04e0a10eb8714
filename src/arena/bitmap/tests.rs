//! Claims and releases, by one thread and by several, against a list of flags.

use super::*;
use proptest::prelude::*;

#[test]
fn every_page_is_claimed_once_and_comes_back() {
    for pages in [1, 2, 63, 64, 65, 128, 200] {
        let bitmap = Bitmap::new(pages);
        let mut claimed: Vec<usize> =
            std::iter::from_fn(|| bitmap.claim(1, Prefer::Zero)).inspect(|page| assert!(*page < pages)).collect();
        claimed.sort_unstable();
        claimed.dedup();
        assert_eq!(claimed.len(), pages);
        for page in claimed {
            assert_eq!(bitmap.take_contents(page), Contents::Fresh);
            bitmap.release(page, 1);
        }
        assert_eq!(bitmap.counts(), Counts { dirty: pages, ..Counts::default() });
        assert_eq!(bitmap.claim(pages, Prefer::Zero), Some(0));
    }
}

#[test]
fn zero_and_dirty_pages_go_to_those_who_want_them() {
    let bitmap = Bitmap::new(130);
    let page = bitmap.claim(1, Prefer::Zero).unwrap();
    bitmap.take_contents(page);
    bitmap.release(page, 1);
    assert_ne!(bitmap.claim(1, Prefer::Zero), Some(page));
    assert_eq!(bitmap.claim(1, Prefer::Dirty), Some(page));
    assert_eq!(bitmap.take_contents(page), Contents::Dirty);
}

#[test]
fn runs_do_not_fit_where_a_page_is_missing() {
    let bitmap = Bitmap::new(130);
    assert_eq!(bitmap.claim(131, Prefer::Dirty), None);
    assert_eq!(bitmap.claim(0, Prefer::Dirty), None);
    assert_eq!(bitmap.claim(65, Prefer::Dirty), Some(0));
    assert_eq!(bitmap.claim(66, Prefer::Dirty), None);
    assert_eq!(bitmap.claim(65, Prefer::Dirty), Some(65));
    bitmap.release(3, 10);
    bitmap.release(60, 20);
    assert_eq!(bitmap.claim(11, Prefer::Dirty), Some(60));
    assert_eq!(bitmap.claim(10, Prefer::Dirty), Some(3));
}

#[test]
fn a_place_is_claimed_whole_or_not_at_all() {
    let bitmap = Bitmap::new(130);
    assert!(bitmap.claim_at(60, 70));
    assert!(!bitmap.claim_at(59, 2));
    assert!(!bitmap.claim_at(130, 1) && !bitmap.claim_at(usize::MAX, 2));
    assert!(bitmap.claim_at(0, 60));
    assert_eq!(bitmap.counts().claimed, 130);
    bitmap.release(129, 1);
    assert!(!bitmap.claim_at(129, 2));
    assert!(bitmap.claim_at(129, 1));
}

#[test]
fn no_pages_are_in_no_word() {
    for first in [0, 1, 63, 64, 65] {
        assert_eq!(masks(first, 0).count(), 0, "from page {first}");
        assert_eq!(
            masks(first, 1).map(|(word, mask)| (word, mask.count_ones())).collect::<Vec<_>>(),
            [(first / 64, 1)]
        );
    }
}

#[test]
fn threads_never_share_a_page() {
    const PAGES: usize = 150;
    let bitmap = Bitmap::new(PAGES);
    let owners: Vec<AtomicUsize> = (0..PAGES).map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 1..=4usize {
            let (bitmap, owners) = (&bitmap, &owners);
            scope.spawn(move || {
                for turn in 0..5_000 {
                    let count = 1 + (turn * thread) % 9;
                    let Some(first) = bitmap.claim(count, Prefer::Dirty) else {
                        continue;
                    };
                    for owner in &owners[first..first + count] {
                        assert_eq!(owner.swap(thread, SeqCst), 0);
                    }
                    for owner in &owners[first..first + count] {
                        assert_eq!(owner.swap(0, SeqCst), thread);
                    }
                    bitmap.release(first, count);
                }
            });
        }
    });
    assert_eq!(bitmap.counts().claimed, 0);
}

#[test]
fn of_two_that_want_most_of_the_room_one_gets_it() {
    for _ in 0..200 {
        let bitmap = Bitmap::new(30_000).with_room(1);
        let take = |barrier: &std::sync::Barrier| {
            barrier.wait();
            bitmap.take_absent(20_000).is_ok()
        };
        let barrier = std::sync::Barrier::new(2);
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| take(&barrier));
            (take(&barrier), other.join().unwrap())
        });
        assert!(one != other, "{one} {other}");
        assert_eq!(bitmap.absent_pages(), 9_999);
    }
}

#[test]
fn whoever_looks_at_the_room_is_in_no_claims_way() {
    let bitmap = Bitmap::new(8).with_room(4);
    let mut seen = 0;
    bitmap.for_each_absent(|room| {
        assert_eq!((room.start, room.end), (4, 8));
        assert_eq!(bitmap.claim(2, Prefer::Dirty), Some(0));
        seen += 1;
    });
    assert_eq!((seen, bitmap.take_absent(4).map_err(drop).is_ok()), (1, true));
}

proptest! {
    /// Against a naive oracle: one flag per page.
    #[test]
    fn claims_agree_with_a_list_of_flags(
        pages in 1usize..200,
        steps in proptest::collection::vec((any::<bool>(), 1usize..70, any::<usize>()), 1..100),
    ) {
        let bitmap = Bitmap::new(pages);
        let mut used = vec![false; pages];
        let mut live = Vec::new();
        for (is_claim, count, at) in steps {
            if is_claim {
                let possible = (0..pages.saturating_sub(count - 1))
                    .any(|first| used[first..first + count].iter().all(|used| !used));
                let got = bitmap.claim(count, Prefer::Dirty);
                prop_assert_eq!(got.is_some(), possible);
                if let Some(first) = got {
                    prop_assert!(used[first..first + count].iter().all(|used| !used));
                    used[first..first + count].fill(true);
                    live.push((first, count));
                }
            } else if !live.is_empty() {
                let (first, count) = live.swap_remove(at % live.len());
                bitmap.release(first, count);
                used[first..first + count].fill(false);
            }
            prop_assert_eq!(bitmap.counts().claimed, used.iter().filter(|used| **used).count());
        }
    }
}
