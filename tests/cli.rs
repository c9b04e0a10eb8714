//! The `hugearena` command, as it is run: exit status, text, JSON.

#![allow(unsafe_code)]

mod support;

#[path = "cli/arenas.rs"]
mod arenas;
#[path = "cli/doctor.rs"]
mod doctor;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hugearena::supply::Supply;
use hugearena::{Arena, PageSize};
use serde_json::Value;
use support::cgroup::{Cgroup, CgroupSpec, Limit, Version};
use support::machine::{Mounted, is_root, mount};
use support::pool::PoolLock;
use support::{Child, PoolUnchanged, is_preloadable, missing, print_skip, skip, skip_size};

const SIZE: PageSize = PageSize::HUGE_2M;
const NOBODY: u32 = 65534;

/// CI runs copies of the tests where the checkout cannot be reached, with one of the command beside them.
fn executable() -> PathBuf {
    let copy = std::env::current_exe().unwrap().with_file_name("bin").join("hugearena");
    if copy.exists() { copy } else { env!("CARGO_BIN_EXE_hugearena").into() }
}

fn run(arguments: &str) -> Output {
    run_with(arguments, &[])
}

/// With options whose values are paths, which may have blanks.
fn run_with(arguments: &str, paths: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(executable());
    command.args(arguments.split_whitespace());
    for (option, path) in paths {
        command.arg(option).arg(path);
    }
    command.output().unwrap()
}

/// After a line of shell, which changes what the command may have.
fn run_after(shell: &str, arguments: &str) -> Output {
    let line = format!("{shell}; exec \"$0\" {arguments}");
    Command::new("sh").args(["-c", &line]).arg(executable()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn wrong_usage_is_status_2() {
    let doctor = ["", "grow", "doctor --page 4K", "doctor --need lots", "reserve", "reserve 2M --node x", "holders x"];
    let arenas = ["create x", "create x 1M --node 0 --placement any", "create x 1M --placement near", "inspect", "map"];
    for arguments in doctor.into_iter().chain(arenas).chain(["remove", "remove x y", "list x", "run", "run --"]) {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments}");
    }
}

#[test]
fn help_is_a_manual() {
    for command in ["", "doctor", "reserve", "holders", "create", "inspect", "map", "list", "remove", "run"] {
        let output = run(&format!("{command} --help"));
        assert_eq!(output.status.code(), Some(0), "{command}");
        for part in ["EXIT STATUS", "EXAMPLES", "SEE ALSO", "Usage:", "--json"] {
            assert!(text(&output).contains(part), "{command}: {part}");
        }
    }
    assert_eq!(run("--version").status.code(), Some(0));
}

/// With standard output in `file`.
fn run_into(file: fs::File, arguments: &str) -> Output {
    Command::new(executable()).args(arguments.split_whitespace()).stdout(file).output().unwrap()
}

#[test]
fn an_answer_that_gets_lost_is_a_failure() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in ["doctor", "list --json", "reserve 0"] {
        let output = run_into(full(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("standard output: "), "{output:?}");
    }
    // Whoever reads has read enough.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run_into(fs::File::from(std::os::fd::OwnedFd::from(writer)), "list");
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn failures_are_no_answers() {
    let output = run("inspect .");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(output.stderr.starts_with(b"hugearena: cannot configure the name"), "{output:?}");
    let output = run("inspect . --json");
    assert_eq!((output.status.code(), &output.stderr), (Some(1), &Vec::new()));
    assert!(json(&output)["error"].as_str().unwrap().starts_with("cannot configure the name"));
}

/// Every number says in its name what it counts.
fn check_units(name: &str, value: &Value) {
    const UNITS: [&str; 5] = ["bytes", "pages", "pages_now", "pages_before", "processes"];
    const NUMBERS: [&str; 5] = ["node", "process", "inode", "refusals", "first_page"];
    match value {
        Value::Number(_) => {
            let has_unit = UNITS.iter().any(|unit| name == *unit || name.ends_with(&format!("_{unit}")));
            assert!(has_unit || NUMBERS.contains(&name), "{name} has no unit");
        }
        Value::Array(items) => items.iter().for_each(|item| check_units(name, item)),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| check_units(name, value)),
        _ => {}
    }
}

#[test]
fn numbers_have_units() {
    for command in ["doctor", "doctor --need 1024T", "holders", "reserve 0", "list"] {
        check_units("", &json(&run(&format!("{command} --json"))));
    }
}

#[test]
fn doctor_answers_what_the_supply_answers() {
    let _lock = PoolLock::take();
    for (page, need) in [("2M", 1u64), ("1G", 1), ("2M", 8 << 20), ("2M", 1 << 50)] {
        let size: PageSize = page.parse().unwrap();
        let pages = need.div_ceil(size.bytes() as u64);
        let before = Supply::read().available_pages(size);
        let output = run(&format!("doctor --page {page} --need {need} --json"));
        let after = Supply::read().available_pages(size);
        let report = &json(&output)["report"];
        assert_eq!(report["needed_pages"], pages);
        let can = report["can_be_had"].as_bool().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(!can)));
        // Others may take and give back pages meanwhile.
        assert!(can || before.min(after) < pages, "{report}");
        assert!(!can || before.max(after) >= pages, "{report}");
        let binding = report["findings"].as_array().unwrap().iter().filter(|finding| finding["weight"] == "binds");
        assert_eq!(binding.count() == 0, can, "{report}");
    }
}

/// The limit named first, and the remedy for it.
fn binding(output: &Output) -> (String, String) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = &json(output)["report"];
    let finding = &report["findings"][0];
    assert_eq!(finding["weight"], "binds", "{report}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&report["tightest"]["kind"]), text(&finding["remedy"]))
}

#[test]
fn doctor_names_a_short_pool() {
    if Supply::read().pool(SIZE).is_none() {
        return skip_size(SIZE, "this kernel has none");
    }
    let (kind, remedy) = binding(&run("doctor --need 1024T --json"));
    assert_eq!(kind, "the huge page pool");
    assert!(remedy.starts_with("echo ") && remedy.ends_with("hugepages-2048kB/nr_hugepages"), "{remedy}");
}

#[test]
fn doctor_names_the_address_space() {
    let _lock = PoolLock::take();
    if let Some(reason) = missing(SIZE, 60) {
        return skip_size(SIZE, &format!("doctor under ulimit -v: {reason}"));
    }
    let (kind, remedy) = binding(&run_after("ulimit -v 90000", "doctor --need 100M --json"));
    assert_eq!(kind, "RLIMIT_AS");
    // With what it says, it can be had.
    let output = run_after(&remedy, "doctor --need 100M --json");
    assert_eq!(json(&output)["report"]["tightest"]["kind"], "RLIMIT_AS");
}

/// Takes from a pool what was added to it, when dropped: whatever the test did not.
struct Restored {
    file: PathBuf,
    total: u64,
}

impl Restored {
    fn count(&self) -> u64 {
        fs::read_to_string(&self.file).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        if self.count() != self.total {
            let _ = fs::write(&self.file, self.total.to_string());
        }
    }
}

/// Experiments: 75.
#[test]
fn reserve_adds_what_is_missing_and_gives_it_back() {
    let _lock = PoolLock::take();
    if Supply::read().pool(SIZE).is_none() {
        return skip_size(SIZE, "reserve: no pool");
    }
    if !is_root() {
        return skip("reserve", "needs root");
    }
    let mut wrong = String::new();
    // Others may take and give back pages between two commands.
    for _ in 0..5 {
        match reserve_and_give_back() {
            Ok(()) => return,
            Err(what) => wrong = what,
        }
    }
    panic!("{wrong}");
}

/// What is wrong, if it is.
fn reserve_and_give_back() -> Result<(), String> {
    let right = |is_right: bool, said: &dyn std::fmt::Debug| if is_right { Ok(()) } else { Err(format!("{said:?}")) };
    let pool = *Supply::read().pool(SIZE).unwrap();
    let file = PathBuf::from("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    let restored = Restored { file, total: pool.total };
    let asked = pool.unreserved_pages() + 4;
    let output = run(&format!("reserve {}M --json", asked * 2));
    let said = json(&output);
    let total = restored.count();
    if said["is_complete"] != true {
        print_skip("reserve", &format!("no memory for four more pages: {said}"));
        return Ok(());
    }
    right(said["asked_pages"] == asked && output.status.success(), &output)?;
    right(total > pool.total && said["total_pages_now"] == total, &(output, total))?;

    let again = run(&format!("reserve {}M", asked * 2 - 8));
    right(restored.count() == total && again.status.success(), &again)?;
    let back = run(&format!("reserve --total {}M", pool.total * 2));
    right(restored.count() == pool.total && back.status.success(), &back)
}

/// Experiments: 75.
#[test]
fn reserve_says_why_not() {
    let output = run("reserve 1024T");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("why: "), "{output:?}");
    let output = run("reserve 2M --node 4095");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("no pages of 2M on node 4095"), "{output:?}");
    let mut command = Command::new(executable());
    command.args(["reserve", "--total", "2M"]);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    match (command.output(), Supply::read().pool(SIZE)) {
        (Err(error), _) => print_skip("reserve without privileges", &error.to_string()),
        (_, None) => skip_size(SIZE, "reserve: no pool"),
        // One page is what there is: nothing to refuse.
        (_, Some(pool)) if pool.total == 1 => {}
        (Ok(output), _) => {
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(text(&output).contains("only root may"), "{output:?}");
        }
    }
}

/// What `holders` says about this process.
fn own_entry(said: &Value) -> Option<&Value> {
    said["processes"].as_array().unwrap().iter().find(|one| one["process"] == std::process::id())
}

/// Experiments: 16.
#[test]
fn holders_finds_a_memfd_of_this_process() {
    let _guard = PoolUnchanged::begin();
    if let Some(reason) = missing(SIZE, 2) {
        let said = json(&run("holders --json"));
        assert!(own_entry(&said).is_none(), "{said}");
        return skip_size(SIZE, &format!("holders: {reason}"));
    }
    let arena = Arena::builder().page_size(SIZE).capacity(4 << 20).strict().open().unwrap();
    let output = run("holders --json");
    let said = json(&output);
    let own = own_entry(&said).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(own["counted_bytes"], 4 << 20);
    let held: Vec<_> = own["held"].as_array().unwrap().iter().filter(|held| held["bytes"] == 4 << 20).collect();
    assert_eq!(held.len(), 1, "{own}");
    assert_eq!((&held[0]["via"], &held[0]["page_bytes"]), (&"shared".into(), &(2 << 20).into()));
    assert!(held[0]["name"].as_str().unwrap().starts_with("/memfd:"), "{own}");
    assert!(text(&run("holders")).contains("4M on pages of 2M, shared, 4M mapped: /memfd:"));
    drop(arena);
}

/// Experiments: 16.
#[test]
fn holders_finds_files_that_are_open_and_files_that_nobody_has() {
    Child::new().in_mount_namespace().needs_pages(SIZE, 3).run(|| {
        let mounted = Mounted::hugetlbfs(SIZE, "", 0);
        fs::create_dir(mounted.path().join("below")).unwrap();
        let fill = |name: &str, pages: i64| {
            use std::os::fd::AsRawFd;
            let path = mounted.path().join(name);
            let file = fs::File::options().create_new(true).read(true).write(true).open(path).unwrap();
            // SAFETY: a call on a descriptor that is open.
            assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, pages << 21) }, 0);
            file
        };
        drop(fill("below/left behind", 1));
        let open = fill("open", 2);
        let said = json(&run("holders --json"));
        let files = said["files"].as_array().unwrap();
        let of = |name: &str| files.iter().find(|file| file["path"].as_str().unwrap().ends_with(name)).unwrap();
        assert_eq!(
            (&of("left behind")["bytes"], &of("left behind")["processes"]),
            (&(2 << 20).into(), &Value::from(Vec::<u32>::new()))
        );
        assert_eq!(of("/open")["processes"], Value::from(vec![std::process::id()]), "{said}");
        assert_eq!(own_entry(&said).unwrap()["held"][0]["via"], "descriptor", "{said}");
        drop(open);
        fs::remove_file(mounted.path().join("open")).unwrap();
        fs::remove_dir_all(mounted.path().join("below")).unwrap();
    });
}

/// The library as cargo lays it out, or beside CI's copy of the command; it is built with the feature `preload`.
fn preload_library() -> Option<PathBuf> {
    let places = ["libpreload.so", "examples/libpreload.so"];
    places.map(|place| executable().with_file_name(place)).into_iter().find(|path| path.exists())
}

/// A shell script, run on the heap by `hugearena run` with these options.
fn run_on_heap(options: &str, script: &str) -> Output {
    let mut command = Command::new(executable());
    command.arg("run").args(options.split_whitespace()).args(["--", "/bin/sh", "-c", script]);
    command.env_remove("HUGEARENA_PRELOAD").output().unwrap()
}

#[test]
fn run_becomes_the_program() {
    // Programs on the heap take pages.
    let _lock = PoolLock::take();
    if support::skips_short_pool("hugearena run") {
        return;
    }
    let Some(library) = preload_library() else {
        return skip("hugearena run", "libpreload.so is not built: cargo build --example preload --features preload");
    };
    if !is_preloadable(&library) {
        return print_skip("hugearena run", &format!("LD_PRELOAD cannot hold {}", library.display()));
    }
    let output = run_on_heap("", "grep -c libpreload.so /proc/self/maps; exit 7");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(text(&output).trim().parse::<u32>().unwrap() > 0, "what a shell starts is on the heap as well");
    let output = run_on_heap("--stats --limit 1G", "echo $HUGEARENA_LIMIT; kill -TERM $$");
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{output:?}");
    assert_eq!(text(&output), "1073741824\n");
    // The shell itself ends by _exit(2).
    let output = run_on_heap("--stats", "exec ls /");
    assert!(String::from_utf8_lossy(&output.stderr).contains("MiB mapped"), "{output:?}");
    // Behind what was there before, which stays.
    let mut command = Command::new(executable());
    command.args(["run", "/bin/sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", "libm.so.6");
    let list = text(&command.output().unwrap());
    assert!(list.starts_with('/') && list.ends_with("libpreload.so:libm.so.6\n"), "{list}");
}

#[test]
fn run_says_why_not() {
    let status = |output: &Output, reason: &str| {
        assert!(String::from_utf8_lossy(&output.stderr).contains(reason), "{reason}: {output:?}");
        assert!(output.stdout.is_empty());
        output.status.code()
    };
    let missing = run_on_heap("--lib /nowhere/libpreload.so", "echo no");
    assert_eq!(status(&missing, "cargo build --release --example preload --features preload"), Some(125));
    let mut command = Command::new(executable());
    command.args(["run", "true"]).env("HUGEARENA_PRELOAD", "/nowhere/libpreload.so");
    assert_eq!(status(&command.output().unwrap(), "/nowhere/libpreload.so"), Some(125));
    // Any file stands in for the library: the program is not started.
    let lib = "/bin/sh";
    let refused = |program: &str| {
        let mut command = Command::new(executable());
        // A directory that this user may not search would make it 126, as for env(1).
        command.args(["run", "--lib", lib, "--", program]).env("PATH", "/usr/bin:/bin");
        command.output().unwrap()
    };
    assert_eq!(status(&refused("/nowhere/program"), "/nowhere/program"), Some(127));
    assert_eq!(status(&refused("no-such-program-here"), "no-such-program-here"), Some(127));
    assert_eq!(status(&refused("/"), "/"), Some(126));
    if let Some(program) =
        ["/usr/bin/passwd", "/usr/bin/su", "/bin/su"].into_iter().find(|path| fs::metadata(path).is_ok())
    {
        assert_eq!(status(&refused(program), "setuid"), Some(126));
    }
    if fs::metadata("/sbin/ldconfig").is_ok_and(|file| file.len() > 100_000) {
        assert_eq!(status(&refused("/sbin/ldconfig"), "statically linked"), Some(126));
    }
}

/// The loader would say nothing, and the program run on another malloc.
#[test]
fn run_refuses_programs_with_file_capabilities() {
    Child::new().in_mount_namespace().run(|| {
        // Where another user can reach it, and capabilities count; neither is sure of the directory for temporary files.
        let directory = Path::new("/mnt");
        if let Err(error) = mount(c"tmpfs", directory, "mode=755", 0) {
            return skip("file capabilities", &format!("a tmpfs on /mnt: {error}"));
        }
        let [program, command] = ["true", "hugearena"].map(|name| directory.join(name));
        fs::copy("/bin/true", &program).unwrap();
        fs::copy(executable(), &command).unwrap();
        for file in [&program, &command] {
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let run_as = |user: u32| {
            let mut run = Command::new(&command);
            run.args(["run", "--lib"]).arg(&command).arg("--").arg(&program);
            run.uid(user).gid(user).env("LD_PRELOAD", "").output().unwrap()
        };
        let starts = |output: Output| assert_eq!(output.status.code(), Some(0), "{output:?}");
        let refuses = |output: Output| {
            assert_eq!(output.status.code(), Some(126), "{output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("has file capabilities"), "{output:?}");
        };
        starts(run_as(NOBODY));
        give_capabilities(&program, 0);
        starts(run_as(NOBODY));
        // CAP_NET_RAW.
        give_capabilities(&program, 1 << 13);
        refuses(run_as(NOBODY));
        starts(run_as(0));
        mount(c"tmpfs", directory, "", libc::MS_REMOUNT | libc::MS_NOSUID).unwrap();
        starts(run_as(NOBODY));
    });
}

/// Permitted, and not effective.
fn give_capabilities(program: &Path, set: u32) {
    // struct vfs_cap_data of linux/capability.h, version 2.
    let attribute = [0x0200_0000u32, set, 0, 0, 0].map(u32::to_le_bytes).concat();
    let path = std::ffi::CString::new(program.to_str().unwrap()).unwrap();
    let name = c"security.capability".as_ptr();
    // SAFETY: C strings, and a buffer of that length.
    let result = unsafe { libc::setxattr(path.as_ptr(), name, attribute.as_ptr().cast(), attribute.len(), 0) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
