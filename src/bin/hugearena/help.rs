//! The manual: what `--help` says.

pub const ABOUT: &str = "Huge pages: what can be had here, how to have more, who has them, and named arenas";

pub const LONG_ABOUT: &str = "\
Huge pages: what can be had here, how to have more, who has them, and named arenas.

The kernel keeps huge pages in pools, one for each page size. How many of them a process may have depends on the pool, \
on hugetlb cgroups, on resource limits and on NUMA nodes; when it gets none, the kernel does not say which it was. \
doctor, reserve and holders do.

A named arena is a file of huge pages that outlives the processes that use it. One process at a time owns it, with the \
library; create, inspect, map, list and remove are for whoever looks after the machine.";

pub const AFTER: &str = "\
EXIT STATUS
  0  yes: the pages can be had, or were reserved
  1  no, and the text says why
  2  wrong usage
  130  interrupted
  run has those of the program

OUTPUT
  Answers are on standard output, also those that are no. What could not be
  done is told on standard error; with --json it is an object with \"error\",
  \"operation\" and \"limit\" on standard output, or with \"error\" alone. Numbers
  in JSON are named for what they count: bytes, pages.

EXAMPLES
  hugearena doctor                      may this process have a page of 2 MiB?
  hugearena doctor --page 1G --need 8G  and eight of 1 GiB?
  sudo hugearena reserve 4G             4 GiB free in pages of 2 MiB
  sudo hugearena holders --json         who has the rest
  hugearena create packets 4G           a named arena, populated
  hugearena inspect packets             who owns it, and what it holds
  hugearena run -- redis-server         a program that need not know of them

SEE ALSO
  hugearena COMMAND --help; hugetlbpage.rst in the kernel's admin guide; memfd_create(2)";

pub const DOCTOR: &str = "Say whether pages can be had, which limit binds, and what to run about it";

pub const DOCTOR_LONG: &str = "\
Say whether pages can be had, which limit binds, and what to run about it.

Reads and changes nothing, and needs no privileges. Run it as the user, in the container and with the limits of the \
service that it is for: all of them matter. The first line is the answer; then what binds (the tightest limit first), \
warnings and notes, each with the figures behind it and a remedy; then the tables: pools, nodes, cgroups, resource \
limits, transparent huge pages, mounts.

What can be had is a figure of this moment: nothing is reserved.";

pub const DOCTOR_AFTER: &str = "\
EXIT STATUS
  0  the pages can be had
  1  they cannot: a finding that `binds` says why
  2  wrong usage

EXAMPLES
  hugearena doctor --need 512M
      exit status 0 if 256 pages of 2 MiB can be had
  hugearena doctor --need 2G || exit 1
      in a start script, before a service that insists on huge pages
  hugearena doctor --need 4G --huge-dir /dev/hugepages
      before a named arena is made there
  hugearena doctor --json | jq -r '.report.findings[].remedy'

FILES
  /sys/kernel/mm/hugepages/hugepages-*kB/         the pools
  /sys/devices/system/node/node*/hugepages/       each node's share
  /sys/fs/cgroup/**/hugetlb.*                     limits of cgroups
  /proc/self/{cgroup,mountinfo,status,statm}      what holds for this process

SEE ALSO
  hugearena reserve --help, getrlimit(2), cpuset(7)";

pub const RESERVE: &str = "Grow a pool until so much is free (needs root)";

pub const RESERVE_LONG: &str = "\
Grow a pool until so much is free, and say what was asked, what was had, and why not more. Needs root.

SIZE is what is to be free and promised to nobody afterwards, so that running it twice changes nothing the second \
time, and a pool that holds more is left alone. With --total it is what the pool holds in all, free or not: `reserve \
--total 0` gives every free page back, and pages in use follow as they are freed.

A huge page needs contiguous memory. Where the kernel does not find enough, memory is compacted once, which stalls \
other processes for a moment, and the kernel is asked again. Reserve the largest pages first, and soon after boot; \
surest is the kernel's command line: hugepagesz=1G hugepages=8.

What the pool holds is lost to everything else. Less than a sixteenth of the memory is left only with --force.";

pub const RESERVE_AFTER: &str = "\
EXIT STATUS
  0  all of it is there
  1  less is, or nothing was changed, and the text says why
  2  wrong usage

EXAMPLES
  sudo hugearena reserve 2G --page 1G && sudo hugearena reserve 4G
      gigantic pages first
  sudo hugearena reserve 1G --node 1
      from the memory of node 1
  sudo hugearena reserve --total 0
      give back what is free

FILES
  /sys/kernel/mm/hugepages/hugepages-*kB/nr_hugepages
  /sys/devices/system/node/node*/hugepages/hugepages-*kB/nr_hugepages
  /proc/sys/vm/compact_memory

SEE ALSO
  hugearena doctor --help; sysctl.d(5): vm.nr_hugepages, to have them again after a reboot";

pub const HOLDERS: &str = "List the processes and files that hold huge pages";

pub const HOLDERS_LONG: &str = "\
List the processes and files that hold huge pages, and how many pages are left whose holder was not found.

For each process: the kernel's count (HugetlbPages), every mapping of huge pages with its name, and every memfd or \
file on hugetlbfs that is open and not mapped. For each file on the hugetlbfs mounts that are seen from here: what it \
holds, and who has it; a file keeps its pages when no process does. Transparent huge pages are not in the pools and \
not in this list.

Other users' processes can be looked into by root only; without root their count is shown and how many are left out \
is said. Files on mounts of other mount namespaces are found through the processes that have them.";

pub const HOLDERS_AFTER: &str = "\
EXIT STATUS
  0  always, unless it cannot be written (1); 2 for wrong usage

EXAMPLES
  sudo hugearena holders
  hugearena holders --json | jq -c '.processes[] | [.process, .counted_bytes]'

FILES
  /proc/PID/{status,smaps,map_files,fd,mountinfo}

SEE ALSO
  proc_pid_smaps(5), fuser(1)";

pub const CREATE: &str = "Make a named arena and populate it";

pub const CREATE_LONG: &str = "\
Make a named arena and populate it, so that the service that opens it finds its pages there.

The arena is a file, hugearena.NAME, on a hugetlbfs mount that this user may write to, and a record, kept elsewhere, of \
which of its pages are zero. It stays when the command ends, until `remove`. Every page is there afterwards, cleared by \
the kernel: what that takes (0.2 s/GiB and thread, more or less) the service does not wait for. A bar shows on a \
terminal how far it has come.

An arena that exists with that size is left as it is, but for pages that it lacks, so that a start script may run this \
each time. One that has an owner, or another size, is refused.

Ctrl-C, SIGTERM and SIGHUP give everything back. So does every failure, and the text says which limit bound.";

pub const CREATE_AFTER: &str = "\
EXIT STATUS
  0  it is there, populated
  1  it is not, and the text says why
  2  wrong usage
  130  interrupted; nothing is left behind

EXAMPLES
  hugearena create packets 4G
      2048 pages of 2 MiB, on the mount that has the most room for them
  hugearena create table 8G --page 1G --node 1
      8 pages of 1 GiB, all of node 1, or none
  hugearena create packets 4G --huge-dir /dev/huge/mine --record-dir /run/mine

FILES
  DIR/hugearena.NAME             the pages; of mode 0600, because who can write
                                 to it can cut it short
  /run/hugearena/NAME.record     what is zero: 4 KiB and a bit per page (root)
  $XDG_RUNTIME_DIR/hugearena/    the same for other users

SEE ALSO
  hugearena remove --help, hugearena doctor --help, mount(8)";

pub const INSPECT: &str = "Say who owns a named arena and what is known about it";

pub const INSPECT_LONG: &str = "\
Say who owns a named arena and what is known about it: geometry, which pages are zero, on which nodes they are, its \
file and its record, and how all who map it have to map it.

Works while an owner lives and takes no lock, so that no owner is ever in its way. It takes no page either, and \
changes nothing. With --record-dir root may look at arenas of other users.

What is claimed is what the owner has written down, a moment ago: figures of an arena in use are not exact. Pages that \
were never handed out and pages that were cleared since look the same, and are called clean.";

pub const INSPECT_AFTER: &str = "\
EXIT STATUS
  0  there is such an arena
  1  there is none
  2  wrong usage

EXAMPLES
  hugearena inspect packets
  hugearena inspect packets --json | jq .owner_process

FILES
  /proc/locks       which process the owner is

SEE ALSO
  hugearena map --help, hugearena holders --help (who has it mapped), fcntl(2) (F_OFD_GETLK)";

pub const MAP: &str = "Draw the pages of a named arena: clean, dirty, claimed";

pub const MAP_LONG: &str = "\
Draw the pages of a named arena, clean, dirty or claimed: a cell for each page, 64 in a row, each row after the number of its first \
page. Arenas of more than 2048 pages have several pages a cell, unless --all is given.

  .  clean: zero, never handed out or cleared since
  #  dirty: free, contents unknown
  @  claimed by its owner
  +  some of each
  (blank)  absent: room that the arena may grow into

With --json the runs of equal pages are listed instead.";

pub const MAP_AFTER: &str = "\
EXIT STATUS
  0  there is such an arena
  1  there is none
  2  wrong usage

EXAMPLES
  watch -n 1 hugearena map packets
  hugearena map packets --json | jq -c '.runs[] | [.state, .pages]'

SEE ALSO
  hugearena inspect --help";

pub const LIST: &str = "List the named arenas of this user";

pub const LIST_LONG: &str = "\
List the named arenas of this user: those that have a record, and those files on hugetlbfs mounts that have lost theirs.";

pub const LIST_AFTER: &str = "\
EXIT STATUS
  0  always, unless it cannot be written (1); 2 for wrong usage

EXAMPLES
  hugearena list
  sudo hugearena list --record-dir /run/user/1000/hugearena

SEE ALSO
  hugearena inspect --help";

pub const REMOVE: &str = "Remove a named arena: its pages go back to the pool";

pub const REMOVE_LONG: &str = "\
Remove a named arena, and its record. Its pages go back to the pool when the last process that has them mapped is gone. \
Refused while it has an owner.";

pub const REMOVE_AFTER: &str = "\
EXIT STATUS
  0  it is gone
  1  it has an owner, or there is none, or it cannot be deleted
  2  wrong usage

EXAMPLES
  hugearena remove packets

SEE ALSO
  hugearena holders --help (who has the pages still), unlink(2)";
pub const RUN: &str = "Run a program with the heap as its malloc";

pub const RUN_LONG: &str = "\
Run a program with the heap as its malloc: on pages of 2 MiB from the pool, else on transparent huge pages, else on \
base pages.

The program needs no change and need not be built again: the loader is asked, by LD_PRELOAD, to find malloc and its \
kin in the library. So do the programs that it starts. Programs that bring a malloc of their own without letting it be \
replaced do not use it; programs for which the loader ignores LD_PRELOAD (statically linked, setuid, of another \
machine, with capabilities of their file unless root runs them) are refused.

A process that has been forked and goes on without exec needs pages of its own for what it writes, as many as it \
writes to; where the pool has none left, the kernel kills it. Keep some free for servers that fork workers.

The library is that of --lib, else of $HUGEARENA_PRELOAD, else libpreload.so beside this command or in examples/ \
there. It is built by: cargo build --release --example preload --features preload";

pub const RUN_AFTER: &str = "\
EXIT STATUS
  that of the program, which replaces this command; else, as env(1),
  125  the library is not there
  126  the program cannot be run, or nothing can be preloaded into it
  127  there is no such program

EXAMPLES
  hugearena run -- redis-server --save ''
  hugearena run --stats --limit 4G -- python3 job.py
      on which pages it was, when it has ended
  hugearena run --lib /usr/local/lib/libpreload.so git gc

ENVIRONMENT
  HUGEARENA_PRELOAD   the library
  HUGEARENA_LIMIT     --limit, with K, M, G or T behind if you like
  HUGEARENA_STRICT    1: --strict
  HUGEARENA_STATS     1: --stats
  The last three hold for every program that the library is preloaded into. One
  that ends by _exit(2) or by a signal prints no statistics. This command has no
  output of its own: --json has no effect.

SEE ALSO
  ld.so(8), malloc(3), hugearena doctor --help";
