//! Records that are not what they should be.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// The owner, the peer and `remove` refuse it and leave it and the arena alone.
fn assert_refused(ground: &Ground, contents: &[u8], reason: &str) {
    std::fs::write(ground.record(), contents).unwrap();
    let errors = [
        ground.builder(2).open().map(drop),
        ground.attach().open().map(drop),
        arena::remove_from(ground.records.path(), "x"),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert_eq!(error.operation(), Operation::Record, "{error}");
        let path = ground.record().display().to_string();
        assert!(error.to_string().contains(&path) && error.to_string().contains(reason), "{error}");
    }
    assert_eq!(std::fs::read(ground.record()).unwrap(), contents);
    assert_eq!(std::fs::metadata(ground.file()).unwrap().len(), 2 * HUGE as u64);
}

#[test]
fn what_is_no_record_is_refused_and_left_as_it_is() {
    child(3).run(|| {
        let ground = Ground::new();
        ground.open(2);
        let good = std::fs::read(ground.record()).unwrap();
        assert_eq!(good.len(), 4096 + 3 * 8);
        assert_refused(&ground, b"", "no record");
        assert_refused(&ground, b"#!/bin/sh\n", "no record");
        assert_refused(&ground, &good[..100], "cut short");
        assert_refused(&ground, &good[..4096], "do not fit");
        assert_refused(&ground, &[&good[..], &[0; 8]].concat(), "do not fit");
        let changed = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        };
        assert_refused(&ground, &changed(72), "checksum");
        let mut newer = good.clone();
        newer[8] = 9;
        assert_refused(&ground, &newer, "format version 9");
        // The record of another arena.
        ground.builder(1).name("y").open().unwrap();
        let other = std::fs::read(ground.records.path().join("y.record")).unwrap();
        assert_refused(&ground, &other, "is the record of");
        arena::remove_from(ground.records.path(), "y").unwrap();
        // One that others can write.
        std::fs::write(ground.record(), &good).unwrap();
        std::fs::set_permissions(ground.record(), std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_refused(&ground, &good, "others may write");
        std::fs::set_permissions(ground.record(), std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(restarted(&ground.open(2)), &Restart::Known { clean: 2 });
        ground.remove();
    });
}

#[test]
fn a_record_that_does_not_fit_its_file_says_nothing() {
    child(4).run(|| {
        let ground = Ground::new();
        let dirty = || {
            let arena = ground.builder(0).open().unwrap();
            assert_eq!((restarted(&arena), arena.stats().dirty), (&Restart::Unknown, 2));
            assert!(arena.claim_zeroed(2, FirstTouch::unknown()).is_some());
        };
        ground.open(2).claim(1).iter_mut().for_each(scribble);
        // Truncated and grown again: other pages, and the kernel says so by the time.
        let file = std::fs::OpenOptions::new().write(true).open(ground.file()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.set_len(HUGE as u64).unwrap();
        file.set_len(2 * HUGE as u64).unwrap();
        assert_eq!(ground.attach().open().unwrap_err().operation(), Operation::Attach);
        dirty();
        // No record.
        std::fs::remove_file(ground.record()).unwrap();
        assert_eq!(ground.attach().open().unwrap_err().operation(), Operation::Attach);
        dirty();
        // Another file by the same name.
        std::fs::remove_file(ground.file()).unwrap();
        let arena = ground.open(2);
        assert_eq!((restarted(&arena), arena.stats().fresh), (&Restart::Created, 2));
        drop(arena);
        // A file that was created and got no further.
        std::fs::remove_file(ground.file()).unwrap();
        std::fs::File::create(ground.file()).unwrap().set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(restarted(&ground.open(2)), &Restart::Created);
        ground.remove();
    });
}

#[test]
fn a_file_that_only_use_has_touched_is_the_same_file() {
    child(4).run(|| {
        let ground = Ground::new();
        for _ in 0..3 {
            let arena = ground.open(2);
            let mut chunk = arena.claim(1).unwrap();
            scribble(&mut chunk);
            drop((ground.attach().read_only().open().unwrap(), ground.attach().open().unwrap()));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(restarted(&ground.open(2)), &Restart::Known { clean: 1 });
        ground.remove();
    });
}
