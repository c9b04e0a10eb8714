//! `doctor` under every limit that can be provoked here: it names the right one, n of n times.

use super::support::child::deny_calls;
use super::support::print_figure;
use super::*;

/// What is provoked, the limit that is to be named, and what `doctor` said; `Err`: why it cannot be provoked here.
type Case = (String, &'static str, Result<Output, String>);

const POOL: &str = "the huge page pool";
const MAX: &str = "a hugetlb cgroup limit";
const RESERVED: &str = "a hugetlb cgroup reservation limit";
const PERMISSION: &str = "permissions";

/// Experiments: 5.
#[test]
fn doctor_names_the_right_limit_in_every_provoked_case() {
    Child::new().in_mount_namespace().needs_pages(SIZE, 60).run(|| {
        let cases = [everywhere(), mounts(), permissions(), cgroups()].concat_all();
        let mut named = 0;
        let mut provoked = 0;
        for (title, wanted, output) in cases {
            let output = match output {
                Ok(output) => output,
                Err(reason) => {
                    print_skip(&format!("doctor: {title}"), &reason);
                    continue;
                }
            };
            provoked += 1;
            let report = &json(&output)["report"];
            let tightest = report["tightest"]["kind"].as_str().unwrap_or("nothing");
            let first = report["findings"][0]["weight"].as_str().unwrap_or("nothing");
            let has_remedy = report["findings"][0]["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty());
            let is_right = tightest == wanted && first == "binds" && has_remedy && output.status.code() == Some(1);
            println!("{}: {title}: {tightest}", if is_right { "named" } else { "NOT NAMED" });
            named += usize::from(is_right);
        }
        print_figure(&format!("doctor names the right limit: {named} of {provoked}"));
        assert_eq!(named, provoked);
    });
}

trait ConcatAll {
    fn concat_all(self) -> Vec<Case>;
}

impl<const N: usize> ConcatAll for [Vec<Case>; N] {
    fn concat_all(self) -> Vec<Case> {
        self.into_iter().flatten().collect()
    }
}

fn case(title: &str, wanted: &'static str, output: Output) -> Case {
    (title.into(), wanted, Ok(output))
}

fn everywhere() -> Vec<Case> {
    vec![
        case("more than the pool has", POOL, run("doctor --need 1024T --json")),
        case("RLIMIT_AS", "RLIMIT_AS", run_after("ulimit -v 90000", "doctor --need 100M --json")),
        case("a size that no kernel has", "the page sizes of this kernel", run("doctor --page 8M --json")),
    ]
}

/// In that directory.
fn run_in(directory: &std::path::Path, need: &str) -> Output {
    run_with(&format!("doctor --need {need} --json"), &[("--huge-dir", directory)])
}

fn mounts() -> Vec<Case> {
    let small = Mounted::hugetlbfs(SIZE, "size=4M", 0);
    let read_only = Mounted::hugetlbfs(SIZE, "", libc::MS_RDONLY);
    vec![
        case("size= of a mount", "the size of the hugetlbfs mount", run_in(small.path(), "6M")),
        case("a read-only mount", PERMISSION, run_as(0, run_in_of(read_only.path()))),
        case("a directory that is no hugetlbfs", "the hugetlbfs mounts", run_in("/proc".as_ref(), "2M")),
    ]
}

fn run_in_of(directory: &std::path::Path) -> Command {
    let mut command = Command::new(executable());
    command.args(["doctor", "--json", "--huge-dir"]).arg(directory);
    command
}

fn run_as(user: u32, mut command: Command) -> Output {
    if user != 0 {
        command.uid(user).gid(user);
    }
    command.output().unwrap()
}

fn deny_memfds() -> std::io::Result<()> {
    let is_denied = deny_calls(&[libc::SYS_memfd_create], libc::EPERM);
    if is_denied { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn permissions() -> Vec<Case> {
    let others = Mounted::hugetlbfs(SIZE, "mode=0755", 0);
    let unprivileged = run_in_of(others.path());
    let mut denied = Command::new(executable());
    denied.args(["doctor", "--json"]);
    // SAFETY: the child makes two system calls.
    unsafe { denied.pre_exec(deny_memfds) };
    let mut cases = vec![case("memfd_create denied by seccomp", PERMISSION, denied.output().unwrap())];
    let mut reachable = Command::new(executable());
    reachable.arg("--version").uid(NOBODY).gid(NOBODY);
    // The checkout may be where nobody can go.
    cases.push(match reachable.output() {
        Ok(_) => case("a mount of somebody else", PERMISSION, run_as(NOBODY, unprivileged)),
        Err(error) => ("a mount of somebody else".into(), PERMISSION, Err(error.to_string())),
    });
    cases
}

fn cgroups() -> Vec<Case> {
    let mut cases = Vec::new();
    for version in [Version::V1, Version::V2] {
        for (limit, wanted) in [(Limit::Max, MAX), (Limit::Reserved, RESERVED)] {
            for on_parent in [false, true] {
                let spec = CgroupSpec { version, limit, bytes: 4 << 20, on_parent };
                let above = if on_parent { " of the group above" } else { "" };
                let title = format!("{}{above} ({version:?})", spec.file_name());
                cases.push((title, wanted, Cgroup::create(&spec).map(|cgroup| run_in_cgroup(&spec, &cgroup))));
            }
        }
    }
    cases
}

fn run_in_cgroup(spec: &CgroupSpec, cgroup: &Cgroup) -> Output {
    let join = format!("echo $$ > {}", cgroup.path().join("cgroup.procs").display());
    let output = run_after(&join, "doctor --need 8M --json");
    let remedy = json(&output)["report"]["findings"][0]["remedy"].as_str().unwrap().to_owned();
    assert!(remedy.starts_with("raise it: echo 8388608 > ") && remedy.ends_with(spec.file_name()), "{remedy}");
    assert_eq!(run_after(&join, "doctor --need 4M").status.code(), Some(0));
    output
}
