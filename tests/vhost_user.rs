//! examples/vhost_user against a real DPDK back end, and its parts against devices that break the rules.

#![allow(unsafe_code)]
// The example is a program; here are its modules, of which the tests use what they use.
#![allow(dead_code)]

mod support;

#[path = "../examples/vhost_user/backend.rs"]
mod backend;
#[path = "../examples/vhost_user/death.rs"]
mod death;
#[path = "../examples/vhost_user/exercise.rs"]
mod exercise;
#[path = "../examples/vhost_user/memory.rs"]
mod memory;
#[path = "../examples/vhost_user/packet.rs"]
mod packet;
#[path = "../examples/vhost_user/port.rs"]
mod port;
#[path = "../examples/vhost_user/queue.rs"]
mod queue;
#[path = "../examples/vhost_user/session.rs"]
mod session;
#[path = "../examples/vhost_user/traffic.rs"]
mod traffic;
#[path = "../examples/vhost_user/window.rs"]
mod window;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;

use hugearena::{Arena, Chunk, PageSize};

use exercise::Peer;
use packet::{Damage, LEN_MAX, LEN_MIN};
use queue::{AVAILABLE, Broken, Buffer, Direction, LEN, Queue, SIZE, USED, Used};
use support::{PoolUnchanged, missing, skip_program, skip_size};
use window::{Unexpected, Window};

/// Pages of 2 MiB for the arena and for `dpdk-testpmd`.
const PAGES: usize = 3 + 32;
const SOCKET: &str = "HUGEARENA_TEST_SOCKET";

/// The back end, or a printed reason for testing nothing. Without huge pages the tests run on base pages.
fn program(test: &str) -> Option<PathBuf> {
    if let Some(reason) = missing(PageSize::HUGE_2M, PAGES) {
        skip_size(PageSize::HUGE_2M, &format!("{test}: {reason}"));
    }
    let program = backend::find();
    if program.is_none() {
        skip_program("dpdk-testpmd", test, &format!("dpdk-testpmd is not installed ({})", backend::INSTALL));
    }
    program
}

#[test]
fn packets_come_back_though_the_back_end_is_killed() {
    let _guard = PoolUnchanged::begin();
    let Some(program) = program("vhost-user") else { return };
    let huge = missing(PageSize::HUGE_2M, PAGES).is_none();
    let peer = Peer::Own { program: &program, kills: 2 };
    let mut connections = 0;
    let outcome = exercise::run(&peer, 30_000, || connections += 1).unwrap();
    let tally = outcome.tally;
    assert_eq!(outcome.first_problem, None);
    assert_eq!((tally.received, outcome.missing, tally.corrupted, tally.unexpected), (30_000, 0, 0, 0));
    assert_eq!((connections, outcome.reconnects, outcome.regions), (3, 2, 2));
    assert_eq!(outcome.counters.unwrap().dropped, 0);
    let obtained_huge = outcome.on_huge_pages && outcome.obtained.starts_with("6291456 bytes on 2M pages");
    if obtained_huge {
        // Not one for each packet, nor for each page of packets. Base pages the kernel may move or take away at any time,
        // those of the program itself as well.
        assert!(outcome.page_faults < 100, "{} in the steady state", outcome.page_faults);
    } else if huge {
        skip_size(PageSize::HUGE_2M, "vhost-user: others took the pages, who know no lock");
    }
    for there in &outcome.there {
        // Two mappings of our file; the second region is not at its start.
        assert_eq!(there.len(), 2, "{there:x?}");
        assert!(there.iter().all(|range| outcome.here.iter().all(|own| own.start != range.start)));
    }
}

#[test]
fn a_front_end_that_is_killed_gives_its_pages_back() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        // We are the one to be killed.
        let connected = || println!("{}", death::CONNECTED);
        exercise::run(&Peer::Other(Path::new(&socket)), u64::MAX, connected).map(drop).unwrap();
        return;
    }
    let _guard = PoolUnchanged::begin();
    let Some(program) = program("the death of a vhost-user front end") else { return };
    let front_end = |socket: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_front_end_that_is_killed_gives_its_pages_back", "--nocapture"]);
        command.env(SOCKET, socket);
        command
    };
    let death = death::of(front_end, &program).unwrap();
    // That the pool is as full as before is the guard's to say, who knows whether others are at it.
    assert!(death.is_forgotten(), "{death}");
}

#[test]
fn a_back_end_that_goes_before_it_has_answered_is_told_from_one_that_refuses() {
    let _guard = PoolUnchanged::begin();
    let directory = backend::new_directory().unwrap();
    let socket = directory.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut memory = memory::Memory::open().unwrap();
    // What it says to GET_FEATURES, the first request: nothing, or that it has none.
    for answer in [None, Some([1_u32, 1 | 1 << 2, 8, 0, 0])] {
        let (listener, done) = (&listener, &std::sync::Barrier::new(2));
        let refused = std::thread::scope(|scope| {
            scope.spawn(move || {
                // The first one only looks whether anybody listens.
                let (_, (mut stream, _)) = (listener.accept().unwrap(), listener.accept().unwrap());
                stream.read_exact(&mut [0; 12]).unwrap();
                if let Some(answer) = answer {
                    stream.write_all(&answer.map(u32::to_ne_bytes).concat()).unwrap();
                    done.wait();
                }
            });
            let refused = exercise::connect(&socket, &mut memory, || None).err();
            if answer.is_some() {
                done.wait();
            }
            refused
        });
        let refused = refused.expect("no back end");
        assert_eq!(refused.is_gone, answer.is_none(), "{refused:?}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_a_killed_program_left_is_in_nobodys_way() {
    let first = backend::new_directory().unwrap();
    let (stem, number) = first.to_str().and_then(|path| path.rsplit_once('-')).unwrap();
    let number: u32 = number.parse().unwrap();
    // Other tests may take some of these names first, which is as good.
    let left: Vec<_> = (1..4).map(|more| PathBuf::from(format!("{stem}-{}", number + more))).collect();
    let left: Vec<_> = left.into_iter().filter(|path| std::fs::create_dir(path).is_ok()).collect();
    let next = backend::new_directory().unwrap();
    assert!(!left.contains(&next));
    for directory in left.iter().chain([&first, &next]) {
        std::fs::remove_dir(directory).unwrap();
    }
}

/// A queue in memory that only this test has, so that it can be the device too.
struct Device {
    queue: Queue,
    memory: Chunk,
}

impl Device {
    fn new(direction: Direction) -> Device {
        let size = PageSize::base();
        let arena = Arena::builder().page_size(size).capacity(LEN.next_multiple_of(size.bytes())).open().unwrap();
        let memory = arena.claim(LEN.div_ceil(size.bytes())).unwrap();
        // SAFETY: page-aligned, kept beside the queue.
        let queue = unsafe { Queue::new(memory.as_ptr(), direction) };
        Device { queue, memory }
    }

    fn at<T>(&self, at: usize) -> NonNull<T> {
        assert!(at + size_of::<T>() <= LEN);
        // SAFETY: inside the chunk.
        unsafe { self.memory.as_ptr().add(at).cast() }
    }

    /// Says that a descriptor is used, and how many are in all.
    fn put_used(&self, index: u16, id: u32, len: u32) {
        let entry = USED + 4 + 8 * usize::from(index.wrapping_sub(1) % SIZE);
        // SAFETY: inside the chunk, aligned, and no other thread is there.
        unsafe {
            self.at::<u32>(entry).write(id.to_le());
            self.at::<u32>(entry + 4).write(len.to_le());
            self.at::<u16>(USED + 2).write(index.to_le());
        }
    }

    /// The descriptor that the driver made available as its `number`th.
    fn available(&self, number: u16) -> u16 {
        // SAFETY: as above.
        unsafe { u16::from_le(self.at::<u16>(AVAILABLE + 4 + 2 * usize::from(number % SIZE)).read()) }
    }

    /// Address, length, flags and next of a descriptor.
    fn descriptor(&self, id: u16) -> (u64, u32, u16, u16) {
        let at = 16 * usize::from(id);
        // SAFETY: as above.
        unsafe { (self.at(at).read(), self.at(at + 8).read(), self.at(at + 12).read(), self.at(at + 14).read()) }
    }
}

fn buffer(len: u32) -> Buffer {
    Buffer { address: 0x1000, len }
}

#[test]
fn what_is_lent_is_what_the_specification_says() {
    let mut device = Device::new(Direction::FromDevice);
    device.queue.lend(7, Buffer { address: 0x12_3456_7890, len: 99 });
    // SAFETY: inside the chunk; the index comes with `publish`.
    let index = |device: &Device| unsafe { device.at::<u16>(AVAILABLE + 2).read() };
    assert_eq!(index(&device), 0);
    assert!(device.queue.publish(), "a device that says nothing wants to be told");
    assert_eq!(index(&device), 1);
    assert_eq!((device.available(0), device.descriptor(7)), (7, (0x12_3456_7890, 99, 2, 0)));
    // SAFETY: as above.
    unsafe { device.at::<u16>(USED).write(1) };
    assert!(!device.queue.publish(), "it polls");
    let mut device = Device::new(Direction::ToDevice);
    device.queue.lend(1023, buffer(5));
    assert_eq!((device.available(0), device.descriptor(1023)), (1023, (0x1000, 5, 0, 0)));
}

#[test]
fn indices_wrap() {
    let mut device = Device::new(Direction::FromDevice);
    let mut done = 0_u16;
    for round in 0..150_000_u32 {
        let id = (round.wrapping_mul(7) % u32::from(SIZE)) as u16;
        device.queue.lend(id, buffer(10 + u32::from(id)));
        device.queue.publish();
        assert_eq!(device.available(done), id);
        assert_eq!(device.queue.take(), Ok(None));
        done = done.wrapping_add(1);
        device.put_used(done, u32::from(id), 10);
        assert!(device.queue.is_waiting());
        assert_eq!(device.queue.take(), Ok(Some(Used { id, len: 10 })));
    }
}

#[test]
fn a_full_queue_comes_back_in_any_order() {
    let mut device = Device::new(Direction::ToDevice);
    let mut done = 0_u16;
    for _ in 0..100 {
        (0..SIZE).for_each(|id| device.queue.lend(id, buffer(1)));
        device.queue.publish();
        for id in (0..SIZE).rev() {
            done = done.wrapping_add(1);
            device.put_used(done, u32::from(id), 0);
        }
        (0..SIZE).rev().for_each(|id| assert_eq!(device.queue.take(), Ok(Some(Used { id, len: 0 }))));
        assert_eq!(device.queue.take(), Ok(None));
    }
}

#[test]
fn a_device_that_breaks_the_rules_is_found_out() {
    let lent = |direction| {
        let mut device = Device::new(direction);
        (0..4).for_each(|id| device.queue.lend(id, buffer(100)));
        device.queue.publish();
        device
    };
    // More used than were available; also just behind, which is nearly 2^16 ahead.
    for index in [5, 1000, u16::MAX] {
        let mut device = lent(Direction::FromDevice);
        device.put_used(index, 0, 1);
        assert_eq!(device.queue.take(), Err(Broken::Index { used: index, available: 4 }));
    }
    // No such descriptor, one that was not lent, one that would be right modulo 2^16.
    for id in [u32::from(SIZE), 4, 0x1_0000, u32::MAX] {
        let mut device = lent(Direction::FromDevice);
        device.put_used(1, id, 1);
        assert_eq!(device.queue.take(), Err(Broken::Id(id)));
    }
    // The same one twice.
    let mut device = lent(Direction::ToDevice);
    device.put_used(1, 3, 0);
    assert_eq!(device.queue.take(), Ok(Some(Used { id: 3, len: 0 })));
    device.put_used(2, 3, 0);
    assert_eq!(device.queue.take(), Err(Broken::Id(3)));
    // More bytes than the buffer has; exactly as many are fine.
    let mut device = lent(Direction::FromDevice);
    device.put_used(1, 2, 101);
    assert_eq!(device.queue.take(), Err(Broken::Len { id: 2, len: 101 }));
    device.put_used(1, 2, 100);
    assert_eq!(device.queue.take(), Ok(Some(Used { id: 2, len: 100 })));
}

#[test]
fn every_byte_of_a_packet_counts() {
    let (mut sent, mut room) = ([0; LEN_MAX], [0; LEN_MAX]);
    for number in [0, 1, 2, 255, 1 << 40, u64::MAX] {
        let len = packet::write(number, &mut sent);
        assert_eq!(packet::check(&sent[..len], &mut room), Ok(number));
        for at in 0..len {
            sent[at] ^= 1;
            assert!(packet::check(&sent[..len], &mut room).is_err(), "byte {at} of packet {number}");
            sent[at] ^= 1;
        }
        assert!(packet::check(&sent[..len - 1], &mut room).is_err());
    }
    assert_eq!(packet::check(&[0; LEN_MIN - 1], &mut room), Err(Damage::Length(LEN_MIN - 1)));
    let lens: std::collections::BTreeSet<_> = (0..20_000).map(packet::len).collect();
    assert_eq!((lens.len(), lens.first(), lens.last()), (LEN_MAX - LEN_MIN + 1, Some(&LEN_MIN), Some(&LEN_MAX)));
}

#[test]
fn the_window_tells_what_is_out() {
    let mut window = Window::new(5);
    assert_eq!([0; 4].map(|_| window.send()), [0, 1, 2, 3].map(Some));
    assert_eq!(window.receive(4), Err(Unexpected::NeverSent(4)));
    assert_eq!((window.receive(1), window.receive(1)), (Ok(()), Err(Unexpected::Twice(1))));
    assert_eq!((window.receive(0), window.receive(0)), (Ok(()), Err(Unexpected::Twice(0))));
    assert_eq!((window.received(), window.out(), window.in_flight()), (2, 2, 2));
    // What was out is sent again, before what is new.
    assert_eq!((window.start_over(), window.in_flight()), (2, 0));
    assert_eq!([0; 4].map(|_| window.send()), [Some(2), Some(3), Some(4), None]);
    assert_eq!([4, 2, 3].map(|number| window.receive(number)), [Ok(()); 3]);
    assert_eq!((window.received(), window.out(), window.in_flight()), (5, 0, 0));
    // A packet that stays away stops the window before numbers would be confused.
    let mut window = Window::new(u64::MAX);
    assert_eq!(window.send(), Some(0));
    let mut sent = 1;
    while let Some(number) = window.send() {
        window.receive(number).unwrap();
        sent += 1;
    }
    assert_eq!((sent, window.receive(0)), (1 << 14, Ok(())));
    assert_eq!(window.send(), Some(sent));
}
