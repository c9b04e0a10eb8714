//! The manual: what `--help` says.

pub const ABOUT: &str = "Huge pages: what can be had here, how to have more, and who has them";

pub const LONG_ABOUT: &str = "\
Huge pages: what can be had here, how to have more, and who has them.

The kernel keeps huge pages in pools, one for each page size. How many of them a process may have depends on the pool, \
on hugetlb cgroups, on resource limits and on NUMA nodes; when it gets none, the kernel does not say which it was. \
These commands do.";

pub const AFTER: &str = "\
EXIT STATUS
  0  yes: the pages can be had, or were reserved
  1  no, and the text says why
  2  wrong usage

EXAMPLES
  hugearena doctor                      may this process have a page of 2 MiB?
  hugearena doctor --page 1G --need 8G  and eight of 1 GiB?
  sudo hugearena reserve 4G             4 GiB free in pages of 2 MiB
  sudo hugearena holders --json         who has the rest

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
  hugearena doctor --json | jq -r '.report.findings[].remedy'

FILES
  /sys/kernel/mm/hugepages/hugepages-*kB/         the pools
  /sys/devices/system/node/node*/hugepages/       each node's share
  /sys/fs/cgroup/**/hugetlb.*                     limits of cgroups, versions 1 and 2
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
  0  always; 2 for wrong usage

EXAMPLES
  sudo hugearena holders
  hugearena holders --json | jq '.processes[] | {process, command, counted_bytes}'

FILES
  /proc/PID/{status,smaps,map_files,fd,mountinfo}

SEE ALSO
  proc_pid_smaps(5), fuser(1)";
