//! `create`, `inspect`, `map`, `list`, `remove`: named arenas by command.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child as Process, Stdio};
use std::time::Duration;

use hugearena::backing::BackingKind;
use hugearena::{Chunk, FirstTouch};

use super::support::machine::TempDir;
use super::*;

/// A mount and a directory of records for one test, and the options that name them.
struct Ground {
    mount: Mounted,
    records: TempDir,
}

impl Ground {
    fn new() -> Ground {
        Ground { mount: Mounted::hugetlbfs(SIZE, "", 0), records: TempDir::new() }
    }

    /// With the directory of records.
    fn run(&self, arguments: &str) -> Output {
        run_with(arguments, &[("--record-dir", self.records.path())])
    }

    fn create(&self, arguments: &str) -> Output {
        self.create_in(self.mount.path(), arguments)
    }

    fn create_in(&self, mount: &Path, arguments: &str) -> Output {
        let paths = [("--record-dir", self.records.path()), ("--huge-dir", mount)];
        run_with(&format!("create {arguments}"), &paths)
    }

    fn open(&self, pages: usize) -> Arena {
        let kind = BackingKind::Hugetlbfs { dir: Some(self.mount.path().into()) };
        let builder = Arena::builder().name("x").record_dir(self.records.path()).backing(kind);
        builder.capacity(pages * SIZE.bytes()).open().unwrap()
    }

    fn is_empty(&self) -> bool {
        [self.mount.path(), self.records.path()].iter().all(|path| fs::read_dir(path).unwrap().next().is_none())
    }
}

/// Answers are on standard output and failures on standard error: nobody takes one for the other.
#[track_caller]
fn expect(output: &Output, status: i32, parts: &[&str]) {
    let (said, elsewhere) =
        if status == 0 { (&output.stdout, &output.stderr) } else { (&output.stderr, &output.stdout) };
    let said = String::from_utf8_lossy(said);
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    assert!(elsewhere.is_empty() && (status == 0 || said.starts_with("hugearena: ")), "{output:?}");
    for part in parts {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

fn child(pages: usize) -> Child {
    Child::new().in_mount_namespace().needs_pages(SIZE, pages)
}

#[test]
fn an_arena_is_made_looked_at_and_removed() {
    child(6).run(|| {
        let ground = Ground::new();
        expect(&ground.create("x 9M"), 0, &["x: 10M on 5 pages of 2M, created", "hugearena.x", "x.record"]);
        expect(&ground.create("x 10M"), 0, &["restarted, 5 pages known to be zero"]);
        expect(&ground.create("x 4M"), 1, &["it exists with 5 pages of 2M, not 2"]);
        let said = json(&ground.create("x 10M --json"));
        assert_eq!((&said["is_new"], &said["pages"], &said["clean_pages"]), (&false.into(), &5.into(), &5.into()));

        expect(&ground.run("inspect x"), 0, &["owned by nobody", "5 clean\n", "fits", "out of core dumps"]);
        expect(&ground.run("map x"), 0, &["0 .....\n", ". clean"]);
        expect(&ground.run("list"), 0, &["x ", "10M", "nobody"]);
        let said = json(&ground.run("inspect x --json"));
        assert_eq!((&said["present_pages"], &said["is_owned"]), (&5.into(), &false.into()), "{said}");
        assert_eq!(json(&ground.run("list --json"))["arenas"][0], said);
        let map = json(&ground.run("map x --json"));
        assert_eq!(map["runs"].as_array().unwrap().len(), 1);
        [&said, &map].into_iter().for_each(|said| check_units("", said));

        let said = json(&ground.run("remove x --json"));
        assert_eq!(said["removed"], "x");
        assert!(ground.is_empty());
        for command in ["remove x", "inspect x", "map x"] {
            expect(&ground.run(command), 1, &["there is none"]);
        }
        expect(&ground.run("list"), 0, &["no arena is seen"]);
    });
}

/// Claims a page and writes to it.
fn dirty(arena: &Arena) -> Chunk {
    let mut chunk = arena.claim(1).unwrap();
    // SAFETY: our own chunk, in nobody else's hands.
    unsafe { chunk.slice_mut()[0] = 1 };
    chunk
}

#[test]
fn an_owned_arena_is_looked_at_without_being_in_its_way() {
    child(4).run(|| {
        let ground = Ground::new();
        let arena = ground.open(4);
        let held = dirty(&arena);
        drop((dirty(&arena), arena.claim_zeroed(1, FirstTouch::unknown())));
        let expected = arena.stats().fresh + arena.stats().clean;
        let me = format!("owned by process {}", std::process::id());
        let said = text(&ground.run("inspect x"));
        assert!(said.contains(&me) && said.contains(&format!("{expected} clean, ")), "{said}");
        assert!(said.contains("1 claimed"), "{said}");
        expect(&ground.run("map x"), 0, &[&me, "@ claimed", ". clean"]);
        let said = json(&ground.run("inspect x --json"));
        assert_eq!(said["owner_process"], std::process::id(), "{said}");
        for said in [ground.run("remove x"), ground.create("x 8M")] {
            expect(&said, 1, &["another owner lives"]);
        }
        drop((held, arena));
        // The pages that were in use are dirty for the next.
        expect(&ground.run("inspect x"), 0, &["owned by nobody", &format!("{expected} clean, ")]);
        expect(&ground.run("remove x"), 0, &["removed"]);
    });
}

/// While somebody looks all the time, an owner opens as ever: looking takes no lock, and every answer is one of two.
#[test]
fn looking_never_keeps_an_owner_out() {
    child(2).run(|| {
        let ground = Ground::new();
        drop(ground.open(1));
        let records = ground.records.path();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                // At least once, however late this thread gets to run.
                loop {
                    let found = hugearena::arena::inspect_from(records, "x").unwrap();
                    assert_eq!(found.page_states(), [hugearena::arena::PageState::Clean]);
                    if done.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                }
            });
            (0..200).for_each(|_| drop(ground.open(1)));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            looker.join().unwrap();
        });
        expect(&ground.run("remove x"), 0, &[]);
    });
}

#[test]
fn records_that_are_not_to_be_believed_are_told() {
    child(2).run(|| {
        let ground = Ground::new();
        drop(ground.open(2));
        let record = ground.records.path().join("x.record");
        let good = fs::read(&record).unwrap();
        // Of another boot.
        let mut bytes = good.clone();
        bytes[20] ^= 1;
        fs::write(&record, &bytes).unwrap();
        expect(&ground.run("inspect x"), 0, &["unreadable", "checksum is wrong"]);
        expect(&ground.run("list"), 0, &["(see inspect)"]);
        // Missing: the file is found in the mounts.
        fs::remove_file(&record).unwrap();
        expect(&ground.run("inspect x"), 0, &["2 dirty", "missing: all pages dirty"]);
        expect(&ground.run("list"), 0, &["x "]);
        // Of a file that was made since.
        fs::write(&record, &good).unwrap();
        fs::set_permissions(&record, fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(ground.mount.path().join("hugearena.x")).unwrap();
        expect(&ground.run("inspect x"), 0, &["out of reach", "speaks of another file"]);
        expect(&ground.run("remove x"), 0, &[]);
        assert!(ground.is_empty());
    });
}

#[test]
fn create_says_which_limit_bound_and_leaves_nothing() {
    Child::new().in_mount_namespace().pool_of(3).run(|| {
        let ground = Ground::new();
        expect(&ground.create("x 8M"), 1, &["limited by the huge page pool"]);
        let said = json(&ground.create("x 8M --json"));
        assert_eq!(
            (&said["limit"]["kind"], &said["operation"]),
            (&"the huge page pool".into(), &"map".into()),
            "{said}"
        );
        expect(&ground.create("x 2M --placement strict:1023"), 1, &["no such node"]);
        expect(&ground.create("x 2M --page 1G"), 1, &["has pages of 2M, not of 1G"]);
        expect(&ground.create(".x 2M"), 1, &["wanted 1 to 64 letters"]);
        assert!(ground.is_empty());
        let small = Mounted::hugetlbfs(SIZE, "size=2M", 0);
        let said = ground.create_in(small.path(), "x 4M");
        expect(&said, 1, &["limited by the size of the hugetlbfs mount"]);
        assert!(ground.is_empty() && fs::read_dir(small.path()).unwrap().next().is_none());
    });
}

fn signal(process: &Process, signal: i32) {
    // SAFETY: our own child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(process.id() as i32, signal) }, 0);
}

/// Bytes that the mount still has room for.
fn room(mount: &Path) -> u64 {
    let mounts = hugearena::doctor::Facts::collect(SIZE, 1).mounts;
    mounts.iter().find(|one| one.path == mount).and_then(|one| one.room_bytes).unwrap()
}

fn is_created(mount: &Path) -> bool {
    fs::metadata(mount.join("hugearena.x")).is_ok_and(|file| std::os::unix::fs::MetadataExt::blocks(&file) > 0)
}

#[test]
fn an_interrupted_create_leaves_nothing() {
    const PAGES: usize = 300;
    child(PAGES).run(|| {
        // Others use the pool too; the mount is ours.
        let mount = Mounted::hugetlbfs(SIZE, &format!("size={}M", PAGES * 2), 0);
        let ground = Ground { mount, records: TempDir::new() };
        // How many come too late depends on the machine; those that do not are enough at some time.
        let (mut round, mut interrupted) = (0, 0);
        while round < 20 || interrupted < 10 {
            assert!(round < 1000, "{interrupted} of {round} were interrupted");
            let mut command = Command::new(executable());
            command.args(["create", "x", &format!("{}M", PAGES * 2), "--threads", "1", "--record-dir"]);
            command.arg(ground.records.path()).arg("--huge-dir").arg(ground.mount.path());
            let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // A process that has been waited for cannot be signalled.
            while process.try_wait().unwrap().is_none() {
                if is_created(ground.mount.path()) {
                    std::thread::sleep(Duration::from_millis(round % 20));
                    signal(&process, [libc::SIGINT, libc::SIGTERM, libc::SIGHUP][round as usize % 3]);
                    break;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            let status = process.wait().unwrap();
            assert_eq!(status.signal(), None);
            match status.code() {
                Some(130) => interrupted += 1,
                // Others took the pages.
                Some(1) => {}
                _ => expect(&ground.run("remove x"), 0, &[]),
            }
            assert!(ground.is_empty(), "round {round}: {status}");
            let all = PAGES as u64 * SIZE.bytes() as u64;
            assert_eq!(room(ground.mount.path()), all, "round {round}: pages are missing");
            round += 1;
        }
    });
}
