//! The bitmap that hands chunks out.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::bitmap::{Bitmap, Contents, Counts, Prefer};
use crate::explore;

/// Pages that loom watches: two owners at a time, or an owner that does not see what the last one did, are an error.
struct Pages(Vec<UnsafeCell<u32>>);

// SAFETY: loom finds every access that is not ordered.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

fn pages(count: usize) -> (Arc<Bitmap>, Arc<Pages>) {
    let bitmap = Bitmap::new(count);
    // So that every word is there before other threads know of it; nobody looked at the pages.
    assert_eq!(bitmap.claim(count, Prefer::Dirty), Some(0));
    bitmap.release(0, count);
    (Arc::new(bitmap), Arc::new(Pages((0..count).map(|_| UnsafeCell::new(0)).collect())))
}

/// Claims `count` pages once, writes to them, and gives them back; returns how many it got.
fn claim(bitmap: &Bitmap, pages: &Pages, count: usize, prefer: Prefer) -> usize {
    let Some(first) = bitmap.claim(count, prefer) else {
        return 0;
    };
    for page in first..first + count {
        // SAFETY: loom panics if anybody else has access now.
        pages.0[page].with_mut(|value| unsafe {
            match bitmap.take_contents(page) {
                Contents::Fresh => assert_eq!(*value, 0, "a fresh page that somebody had"),
                Contents::Clean => assert_eq!(*value, 0, "a clean page that nobody cleared"),
                Contents::Dirty => assert_ne!(*value, 0, "nobody had it, and it is dirty"),
            }
            *value += 1;
        });
    }
    bitmap.release(first, count);
    count
}

fn all_came_back(bitmap: &Bitmap, count: usize) {
    assert_eq!(bitmap.counts().claimed, 0);
    assert_eq!(bitmap.claim(count, Prefer::Dirty), Some(0));
}

pub fn explore_all() {
    explore("chunks: single pages have one owner at a time", 3, || {
        let (bitmap, pages) = pages(2);
        let threads: Vec<_> = [Prefer::Zero, Prefer::Dirty]
            .map(|prefer| {
                let (bitmap, pages) = (Arc::clone(&bitmap), Arc::clone(&pages));
                thread::spawn(move || claim(&bitmap, &pages, 1, prefer))
            })
            .into();
        let mut got = claim(&bitmap, &pages, 1, Prefer::Zero);
        for thread in threads {
            got += thread.join().unwrap();
        }
        assert!(got >= 2, "two pages were free, {got} of three claims got one");
        all_came_back(&bitmap, 2);
    });

    explore("chunks: a run and a single page do not share", 2, || {
        let (bitmap, pages) = pages(3);
        let other = (Arc::clone(&bitmap), Arc::clone(&pages));
        let thread = thread::spawn(move || claim(&other.0, &other.1, 2, Prefer::Dirty));
        let got = claim(&bitmap, &pages, 1, Prefer::Zero);
        let run = thread.join().unwrap();
        assert!(got + run >= 1);
        all_came_back(&bitmap, 3);
    });

    explore("chunks: a run across words that loses its middle gives the rest back", 2, || {
        let (bitmap, pages) = pages(66);
        let first = bitmap.claim(62, Prefer::Dirty).unwrap();
        assert_eq!(first, 0);
        let other = (Arc::clone(&bitmap), Arc::clone(&pages));
        let thread = thread::spawn(move || claim(&other.0, &other.1, 4, Prefer::Dirty));
        claim(&bitmap, &pages, 1, Prefer::Zero);
        thread.join().unwrap();
        assert_eq!(bitmap.counts(), Counts { claimed: 62, ..bitmap.counts() });
        bitmap.release(0, 62);
        all_came_back(&bitmap, 66);
    });

    explore("chunks: what the scrubber cleared is clean, and a claim waits for it", 2, || {
        let (bitmap, pages) = pages(1);
        assert_eq!(claim(&bitmap, &pages, 1, Prefer::Zero), 1);
        let other = (Arc::clone(&bitmap), Arc::clone(&pages));
        let scrubber = thread::spawn(move || {
            let (bitmap, pages) = other;
            if let Some(page) = bitmap.begin_scrub() {
                // SAFETY: loom panics if anybody else has access now.
                pages.0[page].with_mut(|value| unsafe { *value = 0 });
                bitmap.end_scrub(page, true);
            }
        });
        claim(&bitmap, &pages, 1, Prefer::Dirty);
        scrubber.join().unwrap();
        all_came_back(&bitmap, 1);
    });
}
