//! The tools of the other tests notice what they are there to notice.

#![allow(unsafe_code)]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use hugearena::backing::BackingKind;
use hugearena::{Arena, PageSize};

use support::pool::DISTURBED;
use support::{Child, PoolUnchanged, print_skip};

fn panics(body: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(body)).is_err()
}

#[test]
fn a_child_that_fails_is_noticed() {
    assert!(panics(|| Child::new().run(|| panic!("as it should"))));
    assert!(!support::child::is_child(), "the child fails as well");
}

/// Each in a process of its own, which has what it needs.
#[test]
fn a_test_may_have_several_children() {
    static RAN: AtomicUsize = AtomicUsize::new(0);
    for one in 0..3 {
        Child::new().run(move || assert_eq!((one, RAN.fetch_add(1, Relaxed)), (support::child::call(), 0)));
    }
    Child::new().run(|| assert_eq!((support::child::call(), RAN.fetch_add(1, Relaxed)), (3, 0)));
    assert_eq!(RAN.load(Relaxed), usize::from(support::child::is_child()));
}

#[test]
fn a_child_that_is_killed_is_noticed() {
    assert!(panics(|| Child::new().run(|| std::process::abort())));
}

#[test]
fn a_system_call_is_noticed() {
    let call = |(): &mut ()| {
        // SAFETY: no preconditions.
        std::hint::black_box(unsafe { libc::getppid() });
    };
    let signal = |status| std::os::unix::process::ExitStatusExt::signal(&status);
    match support::child::with_calls_forbidden(|| (), call) {
        None => support::skip("system calls", "seccomp is not allowed here"),
        Some(status) => assert_eq!(signal(status), Some(libc::SIGSYS)),
    }
}

/// Experiments: 23, 24.
#[test]
fn pages_that_are_lost_are_noticed() {
    const TRIES: usize = 10;
    Child::new().needs_pages(PageSize::HUGE_2M, TRIES).run(|| {
        let builder = Arena::builder().capacity(2 << 20).backing(BackingKind::Anonymous).strict();
        let lose = || {
            let _guard = PoolUnchanged::begin_with(Duration::from_secs(1));
            std::mem::forget(builder.clone().open().unwrap());
        };
        // The guard says nothing when another process changed the pool in the same second.
        let is_noticed = (0..TRIES).any(|_| panics(lose));
        if !is_noticed && DISTURBED.load(Relaxed) > 0 {
            return print_skip("pages that are lost", "others take and give back pages all the time");
        }
        assert!(is_noticed);
    });
}

#[test]
fn a_pool_can_be_made_short() {
    Child::new().pool_of(1).run(|| {
        let open = |pages: usize| Arena::builder().capacity(pages << 21).strict().open();
        assert!(open(2).is_err() && open(1).is_ok());
    });
}
